"""Trying attempts at every exercise: cases, outcomes, and cells as a notebook would hold them."""

import itertools
import linecache
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from autograder.course.reference import lab_module
from autograder.exercises import exercises
from autograder.judging import judge
from autograder.judging.exercise import Case, Driver, Exercise, Outcome
from autograder.judging.failure import TookTooLong
from autograder.judging.judge import difference, run, run_all

EXERCISES = list(exercises().values())
LABS = list(dict.fromkeys(exercise.lab for exercise in EXERCISES))
TODO = 'raise NotImplementedError("This TODO is not written yet.")'

every_exercise = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.name)


# ------------------------------------------------------------------------------ cases and outcomes


def cases_of(exercise: Exercise, seed: int = 0) -> list[Case]:
    return exercise.all_cases(torch.Generator().manual_seed(seed))


def frozen(value: Any) -> Any:
    """Plain data in a form that `==` compares; anything else is refused."""
    if isinstance(value, Tensor):
        return str(value.dtype), tuple(value.shape), value.tolist()
    if isinstance(value, dict):
        return {key: frozen(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [frozen(item) for item in value]
    assert value is None or isinstance(value, bool | int | float | str), type(value)
    return value


@dataclass(frozen=True)
class Trial:
    """The cases that one seed draws, and what the reference makes of them."""

    exercise: Exercise
    driver: Driver
    cases: list[Case]
    expected: list[Outcome]

    def outcomes(self, attempt: Any) -> list[Outcome]:
        return run_all(self.exercise, self.driver, attempt, self.cases, self.expected)

    def first_wrong(self, outcomes: list[Outcome]) -> Outcome | None:
        """The first of an attempt's outcomes that differs from the reference's."""
        for got, expected in zip(outcomes, self.expected, strict=True):
            if difference(self.exercise, got, expected) is not None:
                return got
        return None

    def rejects(self, attempt: Any) -> bool:
        """Whether some case tells the attempt from the reference; the others are left out then."""
        return self.told_by(attempt) is not None

    def told_by(self, attempt: Any) -> Outcome | None:
        """What comes of the attempt at the first case that tells it from the reference."""
        over = time.monotonic() + judge.SECONDS
        for case, expected in zip(self.cases, self.expected, strict=True):
            got = run(self.exercise, self.driver, attempt, case, over, expected.counts)
            if difference(self.exercise, got, expected) is not None:
                return got
        return None


@cache
def trials(exercise: Exercise, seed: int = 0) -> list[Trial]:
    """One for each way in which the exercise may be driven; an attempt that passes one is right."""
    return trials_on(exercise, cases_of(exercise, seed))


def trials_on(exercise: Exercise, cases: list[Case]) -> list[Trial]:
    drivers = [exercise.driver, *([exercise.as_built] if exercise.as_built else [])]
    return [
        Trial(exercise, driver, cases, run_all(exercise, driver, exercise.reference, cases))
        for driver in drivers
    ]


def ran_out_of_time(outcome: Outcome | None) -> bool:
    """What has no end is waited for once, not with every seed."""
    failure = outcome.failure if outcome else None
    return failure is not None and isinstance(failure.error, TookTooLong)


def is_rejected(exercise: Exercise, attempt: Any, seed: int = 0) -> bool:
    return all(trial.rejects(attempt) for trial in trials(exercise, seed))


# -------------------------------------------------------------------------------- as in a notebook

numbers = itertools.count(1)


def cell(source: str, names: dict[str, Any] | None = None) -> dict[str, Any]:
    """What there is once a cell with this source has run; Python finds its text as IPython's."""
    file = f"<cell {next(numbers)}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    names = {"__name__": "__main__"} if names is None else names
    exec(compile(source, file, "exec"), names)
    return names


def seen_of(exercise: Exercise, what: str) -> list[Any]:
    """All that was seen in the reference of what begins like this, whatever the case."""
    seen = (seen for outcome in trials(exercise)[0].expected for seen in outcome.seen)
    return [record.value for record in seen if record.what.startswith(what)]


def skeleton(lab: str, keep: str = "") -> str:
    """A lab's module as a student gets it, but for one stretch that is there already."""
    module = lab_module(lab)
    lines = list(module.lines)
    for path, stretch in sorted(module.stretches.items(), key=lambda item: -item[1].start):
        if path != keep:
            margin = lines[stretch.start][: -len(lines[stretch.start].lstrip())]
            lines[stretch.start : stretch.stop] = [margin + TODO]
    return "\n".join(lines)


def with_wrong_neighbours(exercise: Exercise, every: int) -> Iterator[tuple[Any, list[str]]]:
    """The right attempt in a notebook where every other exercise of its lab is wrong, and how.

    With every=1 each misconception of each neighbour comes once at least; with 3, every third one.
    """
    neighbours = [e for e in EXERCISES if e.lab == exercise.lab and e is not exercise]
    most = max((len(e.misconceptions) for e in neighbours), default=0)
    for number in range(0, most, every):
        names = cell("\n".join(lab_module(exercise.lab).lines))
        wrong = []
        for neighbour in neighbours:
            misconception = neighbour.misconceptions[number % len(neighbour.misconceptions)]
            put_wrong(names, neighbour, misconception.sources()[0])
            wrong.append(f"{neighbour.path}: {misconception.name}")
        yield names[exercise.attempt_name], wrong


def put_wrong(names: dict[str, Any], neighbour: Exercise, source: str) -> None:
    """Make one function or method of a notebook wrong; the rest of its class stays."""
    right = names[neighbour.attempt_name]
    cell(source, names)
    if "." in neighbour.path:
        method = neighbour.path.split(".")[1]
        setattr(right, method, vars(names[neighbour.attempt_name])[method])
        names[neighbour.attempt_name] = right
