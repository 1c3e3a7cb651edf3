"""Attempts that the catalogue doesn't hold: tests/answers/ has a file a lab, full of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """An attempt at an exercise. `said`: what its author must read, where it is wrong."""

    exercise: str
    attempt: Any
    name: str
    said: tuple[str, ...] = ()


RIGHT: list[Answer] = []
WRONG: list[Answer] = []


def right(*exercises: str, base: type | None = None) -> Callable[[Any], Any]:
    """Mark what stands below, a class or a function, as a right answer.

    With a base, the function becomes that class's method of the exercise's name.
    """
    return added_to(RIGHT, exercises, base)


def wrong(exercise: str, *said: str, base: type | None = None) -> Callable[[Any], Any]:
    """Mark what stands below as a wrong answer, whose author must read every part of `said`."""
    return added_to(WRONG, [exercise], base, said)


def added_to(
    answers: list[Answer], exercises: Any, base: type | None, said: tuple[str, ...] = ()
) -> Callable[[Any], Any]:
    def add(written: Any) -> Any:
        for exercise in exercises:
            attempt = with_method(base, exercise, written) if base else written
            answers.append(Answer(exercise, attempt, written.__name__, said))
        return written

    return add


def with_method(base: type, exercise: str, function: Callable) -> type:
    return type(base.__name__, (base,), {exercise.split(".")[-1]: function})
