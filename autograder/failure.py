"""What stopped an attempt, in words, so that it can be told and sent.

It holds nothing of the answers: it runs beside a student's code as well.
"""

import traceback
from dataclasses import dataclass, field
from typing import Any

from autograder.source import exercise_function, own_line


class TooMuchWork(BaseException):
    """Stops an attempt that does many times the work it should. `except Exception` lets it pass."""


class TookTooLong(BaseException):
    """Stops an attempt that does not end."""


@dataclass(frozen=True)
class Failure:
    """What stopped an attempt.

    told: one sentence. stopped: whether it did not come to its end. unwritten: whether it was the
    exercise's own NotImplementedError. missing: the name that was not defined. line: the learner's
    own line. error: the exception itself, where it was raised in this process.
    """

    told: str
    stopped: bool = False
    unwritten: bool = False
    missing: str | None = None
    line: str | None = None
    error: BaseException | None = field(default=None, compare=False)


def failure_of(error: BaseException, path: str, attempt: Any, seconds: float) -> Failure:
    """What an exception says of an attempt at the exercise `path`, which had so many seconds."""
    is_name = isinstance(error, NameError) and not isinstance(error, UnboundLocalError)
    return Failure(
        told(error, seconds),
        stopped=isinstance(error, (TookTooLong, TooMuchWork)),
        unwritten=isinstance(error, NotImplementedError) and is_own(error, path, attempt),
        missing=str(error.name) if is_name and isinstance(error, NameError) else None,
        error=error,
    )


def told(error: BaseException, seconds: float) -> str:
    """An exception in words."""
    if isinstance(error, TookTooLong):
        return f"It was stopped after {seconds:.0f} seconds. Does every loop come to its end?"
    if isinstance(error, TooMuchWork):
        return str(error)
    words = words_of(error)
    return f"It raised {type(error).__name__}" + (f": {words}" if words else ".")


def words_of(error: BaseException) -> str:
    """What an exception says; even its `__str__` may be broken."""
    try:
        return str(error).strip()
    except Exception:
        return ""


def is_own(error: BaseException, path: str, attempt: Any) -> bool:
    """Whether the exercise's own code raised it, not torch, and not another function."""
    function = exercise_function(path, attempt)
    last = list(traceback.walk_tb(error.__traceback__))[-1][0]
    return function is not None and last.f_code is function.__code__


def line_of(failure: Failure, path: str, attempt: Any) -> str | None:
    """The learner's own line that a failure came from."""
    return own_line(failure.error, attempt, path) if failure.error else failure.line
