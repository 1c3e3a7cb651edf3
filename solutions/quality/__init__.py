"""Labs 10 and 11, given: how well a model predicts a text, in bits per byte."""
