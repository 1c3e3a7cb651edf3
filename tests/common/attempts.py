"""Attempts that are not in the catalogue: answers.py of each lab has them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from autograder.exercises import exercises
from autograder.judging.exercise import Exercise


@dataclass(frozen=True)
class Answer:
    """An attempt at an exercise. `said`: texts that the author of a wrong attempt must read."""

    exercise: Exercise
    attempt: Any
    name: str
    said: tuple[str, ...] = ()


RIGHT: list[Answer] = []
WRONG: list[Answer] = []


def right(*solutions: Callable[..., Any]) -> Callable[[Any], Any]:
    """Mark a function or class as a right answer to the exercises that have these solutions.

    If the exercise asks for a method, a function becomes that method of the right class.
    """
    return added_to(RIGHT, solutions)


def wrong(solution: Callable[..., Any], *said: str) -> Callable[[Any], Any]:
    """Mark a function or class as a wrong answer; its author must read every part of `said`."""
    return added_to(WRONG, [solution], said)


def added_to(
    answers: list[Answer], solutions: Any, said: tuple[str, ...] = ()
) -> Callable[[Any], Any]:
    def add(written: Any) -> Any:
        for exercise in map(exercise_of, solutions):
            attempt = written if isinstance(written, type) else as_attempt(exercise, written)
            answers.append(Answer(exercise, attempt, written.__name__, said))
        return written

    return add


@cache
def exercise_of(solution: Callable[..., Any]) -> Exercise:
    return next(e for e in exercises().values() if own_function(e) is solution)


def own_function(exercise: Exercise) -> Callable[..., Any]:
    """Return the function or the method that a student writes."""
    method = exercise.path.split(".")[1:]
    return getattr(exercise.reference, *method) if method else exercise.reference


def as_attempt(exercise: Exercise, function: Callable[..., Any]) -> Any:
    """Return the function itself, or the right class with the function as the method."""
    base, *method = exercise.reference, *exercise.path.split(".")[1:]
    return type(base.__name__, (base,), {method[0]: function}) if method else function
