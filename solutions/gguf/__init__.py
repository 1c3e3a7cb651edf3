"""Lab 20, given: what a GGUF file consists of, and the names of the weights in it."""
