"""Made-up results of a whole class, for tests of the code that shows or stores results.

Most students do well, and less well in exercises with a higher difficulty on their cards.
"""

import random
from typing import Any

from autograder.grading.judge.results import Mark, Result
from autograder.judging.catalogue import misconceptions
from autograder.judging.judge import NOT_ATTEMPTED, PASSED, WRONG
from autograder.text.lesson import Lesson

NAMES = ["ada", "bob", "cat", "dan", "eve", "fay", "gus", "hal", "ida", "jon", "kim", "leo"]


def fake_class(lesson: Lesson, students: int, seed: int = 0) -> list[Result]:
    chance = random.Random(seed)
    names = [f"{NAMES[i % len(NAMES)]}{i // len(NAMES) or ''}" for i in range(students)]
    return [some_result(name, lesson, chance) for name in names]


def some_result(student: str, lesson: Lesson, chance: random.Random) -> Result:
    skill = chance.betavariate(3, 1.3)
    marks = tuple(some_mark(exercise, skill, lesson, chance) for exercise in lesson.cards)
    return fake_result(student, lesson, marks, seconds=sum(mark.seconds for mark in marks))


def some_mark(exercise: str, skill: float, lesson: Lesson, chance: random.Random) -> Mark:
    if chance.random() < skill ** (lesson.cards[exercise].difficulty / 3):
        return fake_mark(exercise, PASSED, lesson, seconds=chance.lognormvariate(-2, 0.5))
    if chance.random() < 0.4 * (1 - skill):
        return fake_mark(exercise, NOT_ATTEMPTED, lesson)
    known = [misconception.name for misconception in misconceptions(exercise)]
    common = known[min(int(chance.expovariate(0.8)), len(known) - 1)]
    cause = common if chance.random() < 0.8 else None
    return fake_mark(exercise, WRONG, lesson, cause, seconds=chance.lognormvariate(-1.5, 0.8))


def fake_mark(
    exercise: str,
    status: str,
    lesson: Lesson,
    misconception: str | None = None,
    seconds: float = 0.0,
) -> Mark:
    most = float(lesson.cards[exercise].points)
    points = most if status == PASSED else 0.0
    said = (f"It is {status}.",)
    return Mark(exercise, points, most, status, said, (), misconception, "", seconds)


def fake_result(
    student: str,
    lesson: Lesson,
    marks: tuple[Mark, ...] | None = None,
    remarks: tuple[str, ...] = (),
    **others: Any,
) -> Result:
    """Return a result; without `marks`, nothing was attempted. others: further fields of it."""
    if marks is None:
        marks = tuple(fake_mark(exercise, NOT_ATTEMPTED, lesson) for exercise in lesson.cards)
    fields = {
        "submission": student.encode("utf-8", "replace").hex().ljust(64, "0")[:64],
        "limits": ("20 s of processor time for each exercise", "2 GB of memory"),
        "sandboxed": True,
        "version": "a1b2c3d4",
        "secret": "5e6f7a8b",
    }
    return Result(student, lesson.lab, marks=marks, remarks=remarks, **{**fields, **others})
