"""The exercises, one module a lab: cases, drivers, comparison. Their prose is in the lessons."""

from functools import cache
from importlib import import_module

from autograder.exercise import Exercise
from autograder.lesson import lessons


@cache
def exercises() -> dict[str, Exercise]:
    """Every exercise by its name, in the order of the course: that of the lessons."""
    modules = [import_module(f"{__name__}.{lab}") for lab in lessons()]
    return {exercise.name: exercise for module in modules for exercise in module.EXERCISES}
