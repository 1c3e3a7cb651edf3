"""Try attempts at every exercise: cases, outcomes, and cells like those of a notebook."""

import itertools
import linecache
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from autograder.attempt.failure import TookTooLong
from autograder.exercises import exercises
from autograder.judging import judge as judge_module
from autograder.judging.exercise import Case, Driver, Exercise, Outcome
from autograder.judging.judge import Judgement, difference, drawn, judge, patience, run, run_all
from autograder.text.reference import TODO, lab_module

EXERCISES = list(exercises().values())
LABS = list(dict.fromkeys(exercise.lab for exercise in EXERCISES))
FIRST = {exercise.lab: exercise for exercise in reversed(EXERCISES)}.values()

every_exercise = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.name)
every_seed = pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (1, 2))]
)
seeds = pytest.mark.parametrize("seed", range(3))  # of a lab's own tests of its cases
# The quick tests take the first exercise of each lab, the slow ones a share of the others.
every_exercise_in_time = pytest.mark.parametrize(
    "exercise",
    [
        e if e in FIRST else pytest.param(e, marks=[pytest.mark.slow, pytest.mark.in_turn(24)])
        for e in EXERCISES
    ],
    ids=lambda e: e.name,
)


# ------------------------------------------------------------------------------ cases and outcomes


def cases_of(exercise: Exercise, seed: int = 0) -> list[Case]:
    return exercise.all_cases(torch.Generator().manual_seed(seed))


def frozen(value: Any) -> Any:
    """Return plain data in a form that `==` can compare. Asserts that it is plain."""
    if isinstance(value, Tensor):
        return str(value.dtype), tuple(value.shape), value.tolist()
    if isinstance(value, dict):
        return {key: frozen(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [frozen(item) for item in value]
    assert value is None or isinstance(value, bool | int | float | str | bytes), type(value)
    return value


@dataclass(frozen=True)
class Trial:
    """The cases that one seed draws, and the reference's outcomes on them."""

    exercise: Exercise
    driver: Driver
    cases: list[Case]
    expected: list[Outcome]

    def outcomes(self, attempt: Any) -> list[Outcome]:
        return run_all(self.exercise, self.driver, attempt, self.cases, self.expected)

    def first_wrong(self, outcomes: list[Outcome]) -> Outcome | None:
        """Return the first of an attempt's outcomes that differs from the reference's."""
        for got, expected in zip(outcomes, self.expected, strict=True):
            if difference(self.exercise, got, expected) is not None:
                return got
        return None

    def rejects(self, attempt: Any) -> bool:
        """Whether the attempt differs from the reference on some case; stops at the first."""
        return self.told_by(attempt) is not None

    def told_by(self, attempt: Any) -> Outcome | None:
        """Return the attempt's outcome on the first case where it differs from the reference."""
        limit = patience()
        for case, expected in zip(self.cases, self.expected, strict=True):
            got = run(self.exercise, self.driver, attempt, case, limit, expected.counts)
            if difference(self.exercise, got, expected) is not None:
                return got
        return None


def trials(exercise: Exercise, seed: int = 0) -> list[Trial]:
    """Return a trial for each way to drive the exercise; an attempt that passes one is right."""
    return kept_trials(exercise, seed)


@cache  # which would keep what is asked for with a default once more
def kept_trials(exercise: Exercise, seed: int) -> list[Trial]:
    return trials_on(exercise, drawn(exercise, seed))


def trials_on(exercise: Exercise, cases: list[Case]) -> list[Trial]:
    drivers = [exercise.driver, *([exercise.as_built] if exercise.as_built else [])]
    return [
        Trial(exercise, driver, cases, run_all(exercise, driver, exercise.reference, cases))
        for driver in drivers
    ]


def judged(exercise: Exercise, attempt: Any, seed: int = 0) -> Judgement:
    """Judge an attempt on the cases of a seed, for which the reference doesn't run once more."""
    known = {trial.driver: trial.expected for trial in trials(exercise, seed)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge_module, "right_outcomes", lambda _, driver, __: known[driver])
        return judge(exercise, attempt, drawn(exercise, seed))


def ran_out_of_time(outcome: Outcome | None) -> bool:
    """Whether the attempt ran out of time: tests wait for this once, not with every seed."""
    failure = outcome.failure if outcome else None
    return failure is not None and isinstance(failure.error, TookTooLong)


def is_rejected(exercise: Exercise, attempt: Any, seed: int = 0) -> bool:
    return all(trial.rejects(attempt) for trial in trials(exercise, seed))


# ------------------------------------------------------------------------------------- notebooks

numbers = itertools.count(1)


def cell(source: str, names: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run a cell and return its names. Python can find its source, as with IPython's cells."""
    file = f"<cell {next(numbers)}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    names = {"__name__": "__main__"} if names is None else names
    exec(compile(source, file, "exec"), names)
    return names


def seen_of(exercise: Exercise, what: str) -> list[Any]:
    """Return the values of the reference's records whose name begins with `what`, in all cases."""
    seen = (seen for outcome in trials(exercise)[0].expected for seen in outcome.seen)
    return [record.value for record in seen if record.what.startswith(what)]


def skeleton(lab: str, keep: str = "") -> str:
    """Return a lab's module as a student gets it, except that the stretch `keep` is solved."""
    module = lab_module(lab)
    lines = list(module.lines)
    for path, stretch in sorted(module.stretches.items(), key=lambda item: -item[1].start):
        if path != keep:
            margin = lines[stretch.start][: -len(lines[stretch.start].lstrip())]
            lines[stretch.start : stretch.stop] = [margin + TODO]
    return "\n".join(lines)


def with_wrong_neighbors(exercise: Exercise, every: int) -> Iterator[tuple[Any, list[str]]]:
    """Yield the right attempt in notebooks where every other exercise of the lab is wrong, and how.

    With every=1, each misconception of each neighbor occurs at least once; with 3, every third.
    """
    neighbors = [e for e in EXERCISES if e.lab == exercise.lab and e is not exercise]
    most = max((len(e.misconceptions) for e in neighbors), default=0)
    for number in range(0, most, every):
        names = cell("\n".join(lab_module(exercise.lab).lines))
        wrong = []
        for neighbor in neighbors:
            misconception = neighbor.misconceptions[number % len(neighbor.misconceptions)]
            put_wrong(names, neighbor, misconception.sources()[0])
            wrong.append(f"{neighbor.path}: {misconception.name}")
        yield names[exercise.attempt_name], wrong


def put_wrong(names: dict[str, Any], neighbor: Exercise, source: str) -> None:
    """Make one function or method of a notebook wrong; the rest of its class stays right."""
    right = names[neighbor.attempt_name]
    cell(source, names)
    if "." in neighbor.path:
        method = neighbor.path.split(".")[1]
        setattr(right, method, vars(names[neighbor.attempt_name])[method])
        names[neighbor.attempt_name] = right
