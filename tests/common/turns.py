"""Which cases of the large grids a run tries, and which it leaves out.

A test marked `in_turn(3)` tries a third of its cases in one run, and other ones in the next: those
whose number plus the turn is divisible by three. So of 24 turns in a row each case is in one at
least, and what a change touches is tried whole, in whatever turn. The number of an exercise or lab
is its place in the course, so all grids try the same ones, and share what is made for them.

The turn is the number of commits, unless the variable TURN holds a number, or "all". SINCE holds
the commit that a change began from; otherwise it is the last one that is a day older than the
newest.

`python -m tests.common.turns` collects the tests, runs none, and prints how often 24 turns try
each case.
"""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from zlib import crc32

import pytest
from xdist.scheduler import LoadFileScheduling

from autograder.text.imports import files_used
from autograder.text.lesson import Lesson, lessons
from autograder.text.reference import ROOT, SOLUTIONS, importing
from autograder.text.release import code_of

TURNS = 24  # in a row, in which each case is tried
ALL = "all"
DAY = 24 * 3600
MOST_TOUCHED = 16  # a change that touches more than one case in 16 is tried in turns, as ever
LAB_FOLDERS = ("autograder/attempt/drivers", "visuals")
OWN = r"course/lab\d\d_{lab}/.*|(autograder|solutions|visuals)/(.*/)?{lab}\.py"
COMPILED = "course/lab21_one_kernel/"
GRIDS = (  # the three that prove an exercise's judge: right, wrong, and under a secret
    "test_every_misconception_is_diagnosed_as_itself",
    "test_every_mutant_is_rejected",
    "test_no_misconception_passes_under_any_secret",
)


# ---------------------------------------------------------------------- the turn and the change


def git(*arguments: str) -> str:
    """Return what git says; nothing where there is no git or no repository."""
    if shutil.which("git") is None:
        return ""
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def turn_now() -> str:
    return os.environ.get("TURN") or git("rev-list", "--count", "HEAD") or "0"


def seed() -> str:
    """Return the seed of a run's random cases."""
    turn = os.environ["TURN"]
    return "0" if turn == ALL else turn


def begin() -> str:
    """Return the commit that the change under test began from, or nothing."""
    if "SINCE" in os.environ:
        return os.environ["SINCE"]
    newest = git("log", "-1", "--format=%ct")
    return newest and git("rev-list", "-1", f"--before={int(newest) - DAY}", "HEAD")


def changed_files(since: str) -> list[str]:
    """Return the paths that differ from a commit, and the new ones that git doesn't ignore."""
    if not since:
        return []
    names = git("diff", "--name-only", since), git("ls-files", "--others", "--exclude-standard")
    return [name for text in names for name in text.splitlines()]


def settle() -> None:
    """Find out the turn and the changed files once, for the processes that the tests run in."""
    since = begin()
    os.environ.update(
        TURN=turn_now(), SINCE=since, CHANGED_FILES=os.pathsep.join(changed_files(since))
    )


# ------------------------------------------------------------------------------- what a case tries


def subject_of(item: pytest.Item) -> str:
    """Return the name of the exercise or lab that a case tries, or ""."""
    for value in item.callspec.params.values() if hasattr(item, "callspec") else ():
        value = value.lab if isinstance(value, Lesson) else value
        exercise = getattr(value, "exercise", None)  # of an answer
        value = exercise if hasattr(exercise, "name") else value
        name = value if isinstance(value, str) else getattr(value, "name", "")
        if name.split(".")[0] in lessons():
            return name
    return ""


@cache
def places() -> dict[str, int]:
    """Return the place of each lab among the labs, and of each exercise among the exercises."""
    labs = lessons().values()
    exercises = [name for lesson in labs for name in lesson.cards]
    return {name: n for names in (list(lessons()), exercises) for n, name in enumerate(names)}


def is_due(number: int, every: int, turn: int) -> bool:
    return (number + turn) % every == 0


# --------------------------------------------------------------------------------- what is touched


def is_own(file: str, lab: str) -> bool:
    """Whether a file belongs to a lab: its module, lesson, cases, catalogue, answers and so on."""
    return ROOT / file in modules_of(lab) or re.match(OWN.format(lab=lab), file) is not None


@cache
def modules_of(lab: str) -> set[Path]:
    """Return the files of `solutions` that a lab uses and no earlier one does."""
    labs = list(lessons())
    return solutions_used(lab).difference(*map(solutions_used, labs[: labs.index(lab)]))


@cache
def solutions_used(lab: str) -> set[Path]:
    used = files_used([*importing([lab]), *code_of(lab)])
    return {path for path in used if SOLUTIONS in path.parents}


def distance(item: pytest.Item, changed: Sequence[str]) -> int | None:
    """Return how near a change is to a case.

    0: a file of its lab has changed. 1: one that these files or its test import. None: neither.
    """
    return distance_of(item.path, subject_of(item).split(".")[0], tuple(changed))


@cache
def distance_of(test: Path, lab: str, changed: tuple[str, ...]) -> int | None:
    if lab and any(is_own(file, lab) for file in changed):
        return 0
    files = {test}
    if lab:
        files |= {ROOT / folder / f"{lab}.py" for folder in LAB_FOLDERS} | modules_of(lab)
        files |= {*lessons()[lab].room.glob("*.py")}
    files |= files_used(file.read_text(encoding="utf-8") for file in files)
    return 1 if any(ROOT / file in files for file in changed) else None


# --------------------------------------------------------------------------------------- thinning


@dataclass(frozen=True)
class Thinned:
    """The cases of the large grids: those that a run tries, those of them that it tries because of
    a change, those that it leaves out, and the number of those that the change touches."""

    tried: list[pytest.Item]
    whole: set[pytest.Item]
    left_out: list[pytest.Item]
    touched: int

    def report(self) -> list[str]:
        """Return lines that say what was left out, and how to repeat the turn."""
        turn, since = os.environ["TURN"], os.environ["SINCE"][:10] or "nothing that is known"
        cases = Counter(test_of(item) for item in [*self.tried, *self.left_out])
        tried = Counter(test_of(item) for item in self.tried)
        touched = f"The change since {since} touches {self.touched:,} cases"
        if len(self.whole) < self.touched:
            touched += f", too many for one run: {len(self.whole):,} of them were tried for it"
        return [
            f"Turn {turn}: {tried.total():,} of {cases.total():,} cases. {touched}.",
            f"TURN={turn} repeats it, TURN=all tries all of them.",
            *(f"{tried[test]:6,} of {cases[test]:5,}  {test}" for test in sorted(cases)),
        ]


def thin(items: Iterable[pytest.Item]) -> Thinned:
    """Sort the cases marked `in_turn` into those that this run tries and the others."""
    shares = {
        item: mark.args[0]
        for item in items
        if (mark := item.get_closest_marker("in_turn")) and not item.get_closest_marker("soak")
    }
    if (most := max(shares.values(), default=1)) > TURNS:
        raise pytest.UsageError(f"in_turn({most}) takes more than {TURNS} turns.")
    near = touched(list(shares))
    whole = set[pytest.Item]()
    for more in (near[0], near[1]):
        if len(whole | more) * MOST_TOUCHED <= len(shares):
            whole |= more
    turn, numbers = os.environ["TURN"], Counter[str]()
    tried, left_out = list[pytest.Item](), list[pytest.Item]()
    for item, every in shares.items():
        test = test_of(item)
        own = crc32(test.encode())  # or all tests of one case would come in the same turn
        number = places().get(subject_of(item), own + numbers[test])
        numbers[test] += 1
        due = turn == ALL or is_due(number, every, int(turn)) or item in whole
        (tried if due else left_out).append(item)
    return Thinned(tried, whole, left_out, len(near[0] | near[1]))


def touched(items: list[pytest.Item]) -> tuple[set[pytest.Item], set[pytest.Item]]:
    """Return the cases of labs that have changed, and those that use something that has."""
    changed = [file for file in os.environ["CHANGED_FILES"].split(os.pathsep) if file]
    near = {item: distance(item, changed) for item in items if changed}
    both = [{item for item, found in near.items() if found == reach} for reach in (0, 1)]
    return both[0], both[1]


def test_of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


# ----------------------------------------------------------------------------------------- units


class ByUnit(LoadFileScheduling):
    """Hand the tests to processes a unit at a time: a file, or what tests/judging says of a lab.

    The tests of a unit share what is made for it: the cases of an exercise, and what the reference
    does with them. Those of lab 21 share what numba compiles for them, in half a minute.
    """

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        if file.startswith(COMPILED):
            return COMPILED
        lab = re.search(rf"\b({'|'.join(lessons())})\b", test.partition("[")[2])
        return f"tests/judging/{lab[0]}" if lab and file.startswith("tests/judging/") else file


# ---------------------------------------------------------------------------------- all turns


class Collected:
    """Keep the tests that pytest collects, before any is left out."""

    def __init__(self) -> None:
        self.items: list[pytest.Item] = []

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        self.items.append(item)


def main() -> int:
    """Print how often 24 turns try each case, from the present one on."""
    first = int(turn_now())
    collected = Collected()
    with redirect_stdout(StringIO()):
        pytest.main(["--collect-only"], [collected])
    os.environ.update(SINCE="", CHANGED_FILES="")
    runs = []
    for turn in range(first, first + TURNS):
        os.environ["TURN"] = str(turn)
        runs.append(thin(collected.items))
    cases = [*runs[0].tried, *runs[0].left_out]
    times = Counter(item for run in runs for item in run.tried)
    print(f"Turns {first} to {first + TURNS - 1}\n cases    in a turn  in none  test")
    for test in sorted({test_of(item) for item in cases}):
        own = [item for item in cases if test_of(item) == test]
        counts = sorted(sum(item in run.tried for item in own) for run in runs)
        missed = sum(times[item] == 0 for item in own)
        print(f"{len(own):6,} {counts[0]:6,} to {counts[-1]:<5,} {missed:5,}  {test}")
    exercises = {name for lesson in lessons().values() for name in lesson.cards}
    proved = [{subject_of(i) for i in run.tried if test_of(i).endswith(GRIDS)} for run in runs]
    outside = [len(exercises - found) for found in proved]
    never = exercises.difference(*proved)
    print(f"{len(exercises)} exercises. In none of the three main grids, turn by turn: {outside}")
    print(f"In none of them in all {TURNS} turns: {len(never)}. {' '.join(sorted(never))}")
    return 1 if never or any(times[item] == 0 for item in cases) else 0


if __name__ == "__main__":
    sys.exit(main())
