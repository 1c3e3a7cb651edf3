"""What the tests of every lab's exercises share: attempts that nobody told the exercises about."""

from collections.abc import Callable
from typing import Any

import pytest


def attempt_at(kind: list[Any], exercise: str, base: type | None = None, *said: str) -> Callable:
    """Add the function below to RIGHT or WRONGS; with a base, as its method.

    said: of a wrong one, something of what its author is told.
    """

    def add(function: Callable) -> Callable:
        attempt = function if base is None else with_method(base, exercise, function)
        kind.append(pytest.param(exercise, attempt, *said, id=f"{exercise}-{function.__name__}"))
        return function

    return add


def with_method(base: type, exercise: str, function: Callable) -> type:
    return type(base.__name__, (base,), {exercise.split(".")[-1]: function})
