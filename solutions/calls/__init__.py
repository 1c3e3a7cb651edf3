"""Lab 24, given: how a model is told of its tools, dialogues to learn calls from, and a script."""
