"""Which exercises have passed, as the files in work/.mine say. It needs only the standard library.

One file an exercise, work/.mine/kv_cache/KVCache.attend.py, holds the code that passed. Next to it,
KVCache.attend.red says that the check has failed since.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from autograder.judging.verdicts import PASSED
from autograder.text.lesson import Card, Lesson, lessons
from autograder.text.reference import ROOT

OPEN, RED = "open", "red again"  # the states that a check alone does not know


def folder() -> Path:
    """Return where passed code is kept. The environment variable MINE_FOLDER puts it elsewhere."""
    return Path(os.environ.get("MINE_FOLDER", ROOT / "work" / ".mine"))


def graded() -> bool:
    """Return whether nbgrader runs this: then nothing is kept, and `mine` is the reference."""
    return "NBGRADER_EXECUTION" in os.environ


def kept_file(exercise: str) -> Path:
    lab, _, path = exercise.partition(".")
    return folder() / lab / f"{path}.py"


def red_file(exercise: str) -> Path:
    return kept_file(exercise).with_suffix(".red")


def is_kept(exercise: str) -> bool:
    return not graded() and kept_file(exercise).exists()


def state_of(exercise: str) -> str:
    if not is_kept(exercise):
        return OPEN
    return RED if red_file(exercise).exists() else PASSED


@dataclass(frozen=True)
class Progress:
    """How far a learner is in one lab. states: of each exercise, by its name, in lesson order."""

    lesson: Lesson
    states: dict[str, str]

    @property
    def passed(self) -> list[Card]:
        return [c for name, c in self.lesson.cards.items() if self.states[name] == PASSED]

    @property
    def left(self) -> list[Card]:
        """The exercises that haven't passed, last those that the lab can be finished without."""
        open_ones = [c for name, c in self.lesson.cards.items() if self.states[name] != PASSED]
        return sorted(open_ones, key=lambda card: card.beyond)

    @property
    def red(self) -> list[str]:
        """The exercises whose check has failed since they passed."""
        return [name for name, state in self.states.items() if state == RED]

    @property
    def is_begun(self) -> bool:
        return set(self.states.values()) != {OPEN}

    @property
    def is_finished(self) -> bool:
        """Whether only exercises beyond the lab are left, if any."""
        return all(card.beyond for card in self.left)

    def minutes_left(self, beyond: bool) -> int:
        """The minutes of the exercises that are left, without the reading between them.

        beyond: of those that the lab can be finished without, else of the others.
        """
        return sum(card.minutes for card in self.left if card.beyond == beyond)

    @property
    def points(self) -> tuple[int, int]:
        """The points of the exercises that passed, and of all that a check can see."""
        earned = sum(card.points for card in self.passed)
        return earned, sum(card.points for card in self.lesson.cards.values())


def progress_in(lesson: Lesson) -> Progress:
    return Progress(lesson, {exercise: state_of(exercise) for exercise in lesson.cards})


def newest_pass() -> str | None:
    """Return the exercise that passed last; None if none has."""
    passed = [name for lesson in lessons().values() for name in lesson.cards if is_kept(name)]
    return max(passed, key=lambda name: kept_file(name).stat().st_mtime, default=None)


def newest_lab() -> Lesson:
    """Return the lab of the newest pass; the first one if nothing has passed."""
    newest = newest_pass()
    return lessons()[newest.split(".")[0]] if newest else next(iter(lessons().values()))
