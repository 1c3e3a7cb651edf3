"""What stopped an attempt, in words that can be shown and sent.

It holds nothing of the answers, because it also runs in the process of a student's code.
"""

import dis
from dataclasses import dataclass, field
from typing import Any

from autograder.attempt.plain import without_addresses
from autograder.attempt.source import exercise_function, own_line

MOST_TOLD = 1000  # characters of what an exception says
RAISES = dis.opmap["RAISE_VARARGS"]  # what `raise` compiles to


class TooMuchWork(BaseException):
    """Stops an attempt that does many times the work it should. `except Exception` lets it pass."""


class TookTooLong(BaseException):
    """Stops an attempt that does not end: by its processor time."""


class Waited(TookTooLong):
    """Stops an attempt that waits for something that never comes."""


class Starved(TookTooLong):
    """Stops an attempt that gets hardly any processor time."""


WAITED = (
    "It was stopped: it waited for something that never comes (a lock, an input, an endless sleep)."
)
STARVED = (
    "It was stopped after many times as long as it should take. Does every loop end? Or this "
    "machine is very busy: run the check again."
)


@dataclass(frozen=True)
class Failure:
    """What stopped an attempt.

    told: one sentence. stopped: whether it did not end by itself. unwritten: whether it was the
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
    kind = type(error)  # not isinstance: that asks for `__class__`, which may be the attempt's own
    missing = getattr(error, "name", None) if kind is NameError else None
    return Failure(
        told(error, seconds),
        stopped=issubclass(kind, (TookTooLong, TooMuchWork)),
        unwritten=kind is NotImplementedError and is_own(error, path, attempt),
        missing=missing if isinstance(missing, str) else None,
        error=error,
    )


def told(error: BaseException, seconds: float) -> str:
    """An exception in words."""
    if issubclass(type(error), Waited):
        return WAITED
    if issubclass(type(error), Starved):
        return STARVED
    if issubclass(type(error), TookTooLong):
        return f"It was stopped after {seconds:.0f} seconds of work. Does every loop end?"
    if issubclass(type(error), TooMuchWork):
        return str(error)
    words = words_of(error)
    return f"It raised {type(error).__name__}" + (f": {words}" if words else ".")


def words_of(error: BaseException) -> str:
    """What an exception says, the same each time; even its `__str__` may be broken."""
    try:
        words = str(error).strip()
        return without_addresses(words[:MOST_TOLD]) + "…" * (len(words) > MOST_TOLD)
    except BaseException:
        return ""


def is_own(error: BaseException, path: str, attempt: Any) -> bool:
    """Whether a `raise` in the exercise's own code raised it, and not a function of torch."""
    function, last = exercise_function(path, attempt), error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if function is None or last is None or last.tb_frame.f_code is not function.__code__:
        return False
    return function.__code__.co_code[last.tb_lasti] == RAISES


def line_of(failure: Failure, path: str, attempt: Any) -> str | None:
    """The learner's own line that a failure came from."""
    return own_line(failure.error, attempt, path) if failure.error else failure.line
