"""The exercises of all labs, from the cases.py of each. Their prose is in the lessons.

A bundle has no such module for its own lab, but a record; see recorded.py.
"""

from functools import cache
from importlib import import_module

from autograder.judging.exercise import Exercise
from autograder.judging.recorded import recorded_exercises
from autograder.text.lesson import lessons
from autograder.text.reference import has_reference


@cache
def exercises() -> dict[str, Exercise]:
    """Every exercise by its name, in the order of the course: that of the lessons."""
    return {exercise.name: exercise for lab in lessons() for exercise in of_lab(lab)}


def of_lab(lab: str) -> tuple[Exercise, ...]:
    if has_reference(lab):
        return import_module(f"{lessons()[lab].package}.cases").EXERCISES
    return recorded_exercises(lab)
