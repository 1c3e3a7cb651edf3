"""Lab 15, given: trees of guesses with their counts, and proposers that need no exercise."""
