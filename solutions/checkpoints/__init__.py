"""Lab 20, given: a model, its tokenizer and its chat template, from the files of a checkpoint."""
