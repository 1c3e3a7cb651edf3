"""What is lent to an attempt for a case: a model, and replacements for other parts of the engine.

One file for each: a bundle of a lab has those that its exercises need, and none that needs answers
of that lab. What the reference itself lends is next to the cases, in `exercises/`.
"""
