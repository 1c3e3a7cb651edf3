"""Moved to timing/memory.py: an experiment of lab 4, and no lab's solution."""

# Copies of lab 4 handed out earlier import it from here.
from timing.memory import *  # noqa: F403
