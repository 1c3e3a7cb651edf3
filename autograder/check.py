"""What a notebook imports: `from autograder.check import check, hint, mine, status`."""

import contextlib
import difflib
import linecache
import sys
import traceback
from collections import Counter
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from autograder.card import Card, brief, narrowed, show
from autograder.exercise import PASSED, WRONG, Exercise, Judgement, Outcome
from autograder.exercises import exercises
from autograder.kept import function_of, keep, mine
from autograder.progress import status

__all__ = ["CheckFailed", "Result", "check", "hint", "mine", "status"]


@dataclass(frozen=True)
class Result:
    """status: "passed", "not attempted" or "wrong"; points: what it earns."""

    status: str
    message: str
    points: int

    def _ipython_display_(self) -> None:
        """Nothing: the card has shown it, and nbgrader would read a value as a score."""


class CheckFailed(Exception):
    """Raised by a check that did not pass, so that Run All stops here and nbgrader gives 0."""

    def __init__(self, name: str, result: Result) -> None:
        super().__init__(f"{name} is {result.status}. {result.message}")
        self.result = result

    def _render_traceback_(self) -> list[str]:
        """What IPython prints in place of a traceback, which would lead through course code."""
        return [str(self)]


def check(name: str, attempt: Any) -> Result:
    """Judge an attempt at an exercise, show the verdict, and keep the code if it passed.

    Raises CheckFailed unless it passes, ValueError for a name that is no exercise.
    """
    exercise = find_exercise(name)
    if not callable(attempt):
        raise ValueError(
            f"Hand over {exercise.attempt_name} itself, not {brief(attempt)}: "
            f'check("{name}", {exercise.attempt_name}).'
        )
    # Stock nbgrader gives 0 to a cell that writes anything to stderr, a warning for instance.
    with contextlib.redirect_stderr(sys.stdout):
        judgement = exercise.judge(attempt)
    if judgement.status != PASSED:
        result = Result(judgement.status, message_of(judgement), 0)
        show(Card(name, result.status, paragraphs_of(judgement, name), rows_of(judgement, attempt)))
        raise CheckFailed(name, result)
    result = Result(PASSED, judgement.message, exercise.points)
    show(Card(name, PASSED, [judgement.message, *not_kept(exercise, attempt)]))
    return result


def find_exercise(name: str) -> Exercise:
    found = exercises()
    if name in found:
        return found[name]
    near = difflib.get_close_matches(str(name), found, n=3, cutoff=0.4)
    meant = f"Did you mean {' or '.join(near)}? " if near else ""
    raise ValueError(f"There is no exercise {name!r}. {meant}status() lists them all.")


def not_kept(exercise: Exercise, attempt: Any) -> list[str]:
    """Keep the code; a full or read-only disk is told, and takes nothing from the pass."""
    try:
        keep(exercise, attempt)
    except OSError as error:
        return [f"Your code could not be kept for later labs: {error}."]
    return []


# ----------------------------------------------------------------------- the verdict, in words


def message_of(judgement: Judgement) -> str:
    if judgement.misconception is None:
        return judgement.message
    return f"{judgement.misconception.sentence} {judgement.message}"


def paragraphs_of(judgement: Judgement, name: str) -> list[str]:
    if judgement.status != WRONG:
        return [judgement.message, f'For a start: `hint("{name}")`']
    if judgement.misconception is None:
        return [judgement.message]
    return [f"Likely cause: {judgement.misconception.sentence}", judgement.message]


def rows_of(judgement: Judgement, attempt: Any) -> list[tuple[str, str]]:
    """The smallest failing case: its data, what came back, what was expected."""
    if judgement.case is None or judgement.got is None or judgement.expected is None:
        return []
    rows = [("smallest failing case", judgement.case.label)]
    rows += [(key, brief(value)) for key, value in judgement.case.data.items()]
    if judgement.got.error is not None:
        place = own_line(judgement.got.error, attempt)
        return [*rows, ("raised at", place)] if place else rows
    got, expected = narrowed(judgement.got.returned, judgement.expected.returned)
    return [*rows, ("got", brief(got)), ("expected", expected_text(judgement.expected, expected))]


def expected_text(outcome: Outcome, value: Any) -> str:
    return f"{type(outcome.error).__name__}: {outcome.error}" if outcome.error else brief(value)


def own_line(error: BaseException, attempt: Any) -> str | None:
    """The last line of the learner's own code that an error passed through."""
    function = function_of(attempt)
    if function is None:
        return None
    filename = function.__code__.co_filename
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == filename]
    return f"line {lines[-1]}: {linecache.getline(filename, lines[-1]).strip()}" if lines else None


# ---------------------------------------------------------------------------------------- hints


class Hint(str):
    """Markdown in a notebook, the same text in a terminal."""

    def __repr__(self) -> str:
        return str(self)

    def _repr_markdown_(self) -> str:
        return str(self)


hints_given: Counter[str] = Counter()


def hint(name: str, level: int | None = None) -> None:
    """Show a hint: level 1 first, then 2 and 3 when called again; or the level asked for."""
    exercise = find_exercise(name)
    last = len(exercise.hints)
    if level is None:
        level = min(hints_given[name] + 1, last)
    if level not in range(1, last + 1):
        raise ValueError(f"There is no hint of level {level}; the levels are 1 to {last}.")
    hints_given[name] = level
    show(Hint(f"Hint {level} of {last} for {name}\n\n{exercise.hints[level - 1]}"))


# ----------------------------------------------------------------------------------- in a script

python_excepthook = sys.excepthook


def without_traceback(
    kind: type[BaseException], error: BaseException, tb: TracebackType | None
) -> None:
    """In a plain script the card has said it all: stop, with exit status 1."""
    if not isinstance(error, CheckFailed):
        python_excepthook(kind, error, tb)


sys.excepthook = without_traceback
