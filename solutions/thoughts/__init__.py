"""Lab 25, given: questions that take several steps, and an engine whose requests have guides."""
