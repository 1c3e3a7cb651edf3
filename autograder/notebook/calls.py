"""A case as the calls that a learner would write: its driver may make other things of its data."""

import ast
import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any

from torch import Tensor

from autograder.judging.exercise import Case, Exercise, no_services
from autograder.judging.judge import patience, run

MOST_CALLS, MOST_CHARACTERS = 6, 5000
WRITTEN = bool, int, float, str, bytes, list, tuple, dict, set, frozenset, Tensor, type(None)


def calls_of(exercise: Exercise, case: Case, python: Callable[[Any], str]) -> str:
    """Return the calls that a case consists of, in Python; "" if its data say as much.

    That is so if the first call gets what the case holds, by the same names. It is "" also for a
    method, for what can't be written down, such as a lent function, and in a bundle, which has no
    reference to call.
    """
    reference = exercise.reference
    is_callable = exercise.record is None and exercise.services is no_services
    if isinstance(reference, type) or not is_callable:
        return ""
    signature = inspect.signature(reference)
    calls: list[str] = []
    first: dict[str, str] = {}
    strange: list[Any] = []

    def noted(*given: Any, **named: Any) -> Any:
        strange.extend(value for value in (*given, *named.values()) if not is_written(value))
        texts = [*map(python, given), *(f"{name}={python(value)}" for name, value in named.items())]
        if not calls:
            bound = signature.bind(*given, **named).arguments
            first.update({name: python(value) for name, value in bound.items()})
        calls.append(f"{exercise.attempt_name}({', '.join(texts)})")
        return reference(*given, **named)

    run(exercise, exercise.driver, noted, case, patience())
    held = {name: python(value) for name, value in case.data.items()}
    text = "\n".join(calls)
    if strange or first.items() <= held.items() or not is_python(text):
        return ""
    return text if len(calls) <= MOST_CALLS and len(text) <= MOST_CHARACTERS else ""


def is_written(value: Any) -> bool:
    return isinstance(value, WRITTEN) or is_dataclass(value)


def is_python(text: str) -> bool:
    """Return whether a text can be read as Python, as `<function …>` can't."""
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True
