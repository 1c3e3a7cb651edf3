"""Lab 23, given: adapters of a whole model, in files and in lab 7's engine, and their training."""
