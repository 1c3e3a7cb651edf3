"""Grading a class: the trusted side, which reads submissions, judges them and keeps the results."""
