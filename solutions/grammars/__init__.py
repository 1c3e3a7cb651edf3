"""Lab 14, given: patterns over bytes, and JSON schemas as patterns."""
