"""The techniques on the table: every lab's, those of transformers, and the learner's own."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

from autograder.text.lesson import Lesson, lessons
from timing import hf
from timing.table import Bench, Own, Prepare, Prepared, Rows, is_learners
from timing.table.workloads import CHAT, EQUAL, LENGTHS, RAGGED, SAMPLED


def rows_of(lesson: Lesson) -> Any:
    """Import the module with a lab's rows.

    ROWS: the function that prepares each row, by the row's name and by kind of workload. OWN: if
    the learner writes something that can be timed, what makes the row `mine`.
    """
    return import_module(f"{lesson.package}.row")


# In the order of the table's parts, and of the labs in each. So the last technique that a learner
# has written is the fastest, too.
PARTS = "one", "many", "engine"
LABS = [rows_of(lab) for lab in sorted(lessons().values(), key=lambda lab: PARTS.index(lab.table))]
TECHNIQUES: Rows = {name: row for lab in (*LABS, hf) for name, row in lab.ROWS.items()}
OWN: list[Own] = [own for lab in LABS for own in getattr(lab, "OWN", [])]

# The row `mine`, by kinds of workload: how its line begins, and the row that it is until some code
# of the learner's has passed, with its name.
UNTIL: dict[tuple[str, ...], tuple[str, str, str]] = {
    (LENGTHS,): ("", "cached", "cached loop: no loop of yours has passed its check yet"),
    (SAMPLED,): ("", "sampled", "sampling: no sampler of yours has passed its check yet"),
    (RAGGED, EQUAL): (
        "many requests: ",
        "static",
        "static batches, until batching of yours has passed",
    ),
    (CHAT,): (
        "chats: ",
        "engine",
        "engine, until an engine or a prefix cache of yours has passed",
    ),
}


def mine_rows(mine: Callable[[str], ModuleType]) -> dict[str, Prepare]:
    """Return the row `mine`. mine: returns a lab's module and prints whose each part is."""
    return {kind: partial(newest, mine, kinds) for kinds in UNTIL for kind in kinds}


def newest(mine: Callable[[str], ModuleType], kinds: tuple[str, ...], bench: Bench) -> Prepared:
    """Prepare the newest technique for these workloads that has a part of the learner's own."""
    labs = functools.cache(mine)
    prefix, row, about = UNTIL[kinds]
    for own in written(labs, kinds[0]):
        made: Any = own.prepare(replace(bench, lab=labs))
        return replace(made, about=prefix + own.about)
    made = TECHNIQUES[row][kinds[0]](bench)
    return replace(made, about=f"{prefix}the reference's {about}")


def written(labs: Callable[[str], ModuleType], kind: str) -> Iterator[Own]:
    """Yield the techniques for a kind of workload with a part of the learner's, newest first."""
    for own in reversed(OWN):
        if kind in own.kinds and any(is_learners(labs(own.lab), part) for part in own.parts):
            yield own
