"""Lab 11, given: caches, a model and engines with a smaller KV cache."""
