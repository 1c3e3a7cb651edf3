"""Judging attempts at the exercises: in the notebook, in the grade, in the course's own tests."""
