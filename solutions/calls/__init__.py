"""Lab 24, given: two tools, dialogues about them, and how a model is told of its tools."""
