"""Lab 11, given: what makes a KV cache smaller, as caches, a model and engines."""
