"""What a notebook imports: `from autograder.check import check, hint, mine, status`."""

import contextlib
import copy
import difflib
import inspect
import sys
from collections import Counter
from dataclasses import dataclass, replace
from types import FunctionType, TracebackType
from typing import Any

from autograder.attempt.notebook import global_names
from autograder.attempt.plain import kind_of
from autograder.attempt.source import definition
from autograder.exercises import exercises
from autograder.judging.exercise import Case, Exercise
from autograder.judging.judge import PASSED, WRONG, judge
from autograder.notebook import cells
from autograder.notebook.card import VerdictCard, in_ipython, show
from autograder.notebook.kept import keep, mine, note_red
from autograder.notebook.passed import graded, state_of
from autograder.notebook.progress import status
from autograder.notebook.verdict import verdict_card

__all__ = ["CheckFailed", "Result", "check", "failing_case", "hint", "mine", "status"]


@dataclass(frozen=True)
class Result:
    """status: "passed", "not attempted" or "wrong"; points: what it earns."""

    status: str
    message: str
    points: int

    def _ipython_display_(self) -> None:
        """Show nothing: the card has shown it, and nbgrader would read a value as a score."""


NO_SOURCE = (
    "Your code can't be kept for later labs, which use the reference instead: Python finds no cell "
    "or file that defines this `{}`. Is there a `functools.partial`, or a decorator without "
    "`functools.wraps`?"
)


class CheckFailed(Exception):
    """Raised by a check that did not pass, so that Run All stops here and nbgrader gives 0."""

    def __init__(self, name: str, result: Result) -> None:
        super().__init__(f"{name} is {result.status}: see the card above.")
        self.result = result

    def _render_traceback_(self) -> list[str]:
        """What IPython prints instead of a traceback, which would lead through course code."""
        return [str(self)]


class Refused(ValueError):
    """What was asked for can't be done; the sentence says why, without a traceback, too."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class Interrupted(KeyboardInterrupt):
    """The person's own wish to stop a check, without a traceback through course code."""

    def _render_traceback_(self) -> list[str]:
        return ["The check was interrupted."]


def check(name: str, attempt: Any) -> Result:
    """Judge an attempt at an exercise, show the verdict, and keep the code if it passed.

    Raises CheckFailed unless it passes, Refused if the name is no exercise or the attempt is
    neither a function nor a class as it should be, and SystemExit inside an attempt that is being
    judged.
    """
    exercise = find_exercise(name)
    require_attempt(exercise, attempt)
    if (stopped := cells.failures.get(exercise.attempt_name)) is not None:
        fail(exercise, VerdictCard(name, WRONG, [not_defined(exercise, stopped)]))
    try:
        # Stock nbgrader gives 0 to a cell that writes anything to stderr, a warning for instance.
        with contextlib.redirect_stderr(sys.stdout):
            judgement = judge(exercise, attempt)
    except KeyboardInterrupt:
        raise Interrupted from None
    card = verdict_card(exercise, judgement)
    if judgement.status != PASSED:
        remember(judgement.case)
        unsure = neighbors(exercise, attempt) if judgement.status == WRONG else []
        fail(exercise, replace(card, paragraphs=[*unsure, *card.paragraphs]))
    show(replace(card, paragraphs=[*card.paragraphs, *not_kept(exercise, attempt)]))
    mark_passed(attempt)
    return Result(PASSED, judgement.message, exercise.card.points)


def mark_passed(attempt: Any) -> None:
    """Lab 21 compiles only functions that have passed."""
    if isinstance(function := inspect.unwrap(attempt), FunctionType):
        function.__dict__["has_passed"] = True


def fail(exercise: Exercise, card: VerdictCard) -> None:
    """Show the card of a check that did not pass, and stop the notebook there."""
    note_red(exercise)
    show(card)
    raise CheckFailed(exercise.name, Result(card.status, " ".join(card.paragraphs), 0))


def find_exercise(name: str) -> Exercise:
    found = exercises()
    if name in found:
        return found[name]
    near = difflib.get_close_matches(str(name), found, n=3, cutoff=0.4)
    meant = f"Did you mean {' or '.join(near)}? " if near else ""
    raise Refused(f"There is no exercise {name!r}. {meant}status() lists those of this lab.")


def require_attempt(exercise: Exercise, attempt: Any) -> None:
    """Refuse anything but the function or class: its result, for example, or a method."""
    name = exercise.attempt_name
    is_class = isinstance(exercise.reference, type)
    if isinstance(attempt, type) is is_class and callable(attempt):
        return
    what = f"the class {name} itself" if is_class else f"the function {name} itself"
    raise Refused(f'Pass {what}, not {kind_of(attempt)}: check("{exercise.name}", {name}).')


def not_defined(exercise: Exercise, stopped: str) -> str:
    return (
        f"The last cell that defines `{exercise.attempt_name}` did not run ({stopped}). "
        "Fix that cell and run it again: until then the name has its older definition."
    )


def neighbors(exercise: Exercise, attempt: Any) -> list[str]:
    """Exercises that it uses and that may be wrong: a bundle lends no right solutions of them."""
    if exercise.record is None or graded():
        return []
    used = global_names(definition(attempt) or "")
    own = [e for e in exercises().values() if e.record and e is not exercise and e.path in used]
    first = [f"`{e.name}`" for e in own if state_of(e.name) != PASSED]
    if not first:
        return []
    told = "It uses other exercises of yours that have not passed yet"
    return [f"{told}: {', '.join(first)}. Start there."]


def not_kept(exercise: Exercise, attempt: Any) -> list[str]:
    """Keep the code, and say so where that fails, on a full disk for example. It still passes."""
    try:
        if keep(exercise, attempt):
            return []
    except Exception as error:
        return [f"Your code could not be kept for later labs: {error}."]
    return [NO_SOURCE.format(exercise.attempt_name)]


# ------------------------------------------------------------------------------ the failing case

failed: list[Case] = []  # the one that the last failed check showed


def remember(case: Case | None) -> None:
    failed[:] = [case] if case else []


def failing_case() -> dict[str, Any]:
    """The data of the case that the last failed check has shown, by name. You may change it."""
    if not failed:
        raise Refused("No check has failed on a case yet.")
    return copy.deepcopy(dict(failed[0].data))


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
    hints = find_exercise(name).card.hints
    last = len(hints)
    if level is None:
        level = min(hints_given[name] + 1, last)
    if level not in range(1, last + 1):
        raise Refused(f"There is no hint of level {level}; the levels are 1 to {last}.")
    hints_given[name] = level
    more = "Run it again for the next one." if level < last else "The last one."
    back = f' `hint("{name}", 1)` goes back.' if level > 1 else ""
    show(Hint(f"**Hint {level} of {last}** for `{name}`. {more}{back}\n\n{hints[level - 1]}"))


# ------------------------------------------------------------------- in a notebook, in a script


def end_scripts_without_traceback() -> None:
    """In a plain script the card has said it all: a failed check ends it with exit status 1."""
    usual = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, tb: TracebackType | None) -> None:
        if not isinstance(error, CheckFailed):
            usual(kind, error, tb)

    sys.excepthook = hook


if shell := in_ipython():
    cells.watch(shell)
else:
    end_scripts_without_traceback()
