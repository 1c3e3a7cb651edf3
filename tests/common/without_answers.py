"""Run each lab's drivers when neither its answers nor those of later labs can be imported.

    python -m tests.common.without_answers

The cases and expected outcomes are prepared first. Then the modules with answers are closed, from
the last lab to the first, because a closed module stays closed. Prints the number of cases that ran
for each lab.
"""

import importlib
import sys
from collections.abc import Iterator
from typing import Any

from autograder.course.reference import fresh_copy, import_name, parts_of
from autograder.drivers.seen import Seen
from autograder.judging.exercise import Case, Exercise, Outcome
from autograder.judging.judge import lent, run_all
from tests.common.trials import EXERCISES, LABS, cases_of

OPEN = {"autograder", "autograder.drivers"}
OPEN |= {"autograder.drivers.seen", "autograder.drivers.queues"}


def prepared(exercise: Exercise, answers: set[str]) -> tuple[Any, ...]:
    """Return the exercise, the functions that may be lent, and each case with its outcome."""
    cases = cases_of(exercise)
    outcomes = run_all(exercise, exercise.driver, exercise.reference, cases)
    services = [exercise.services(case.data) for case in cases]
    lendable = {n: f for n, f in lent(exercise).items() if f.__module__ not in answers}
    return exercise, lendable, list(zip(cases, outcomes, services, strict=True))


def answers_of(lab: str) -> set[str]:
    """Return the modules that hold the answers of a lab and of all later ones."""
    later = LABS[LABS.index(lab) :]
    return {import_name(part) for name in later for part in parts_of(name)}


def close(lab: str, answers: set[str]) -> None:
    """Let no import find an answer, nor any module of ours other than the lab's drivers."""
    for name in answers:
        sys.modules[name] = None  # type: ignore[assignment]  # importing it now fails
        package, _, module = name.rpartition(".")
        vars(sys.modules[package]).pop(module, None)
    for name in [name for name in sys.modules if f"{name}.".startswith("autograder.")]:
        if name in OPEN or name == f"autograder.drivers.{lab}":
            del sys.modules[name]
        else:
            sys.modules[name] = None  # type: ignore[assignment]


def run_lab(lab: str, notebook: dict[str, Any], trials: list[tuple[Any, ...]]) -> Iterator[Case]:
    """Run the cases of a lab, and yield each when it has run. `notebook`: a student's names."""
    drivers = importlib.import_module(f"autograder.drivers.{lab}")
    seen = importlib.import_module("autograder.drivers.seen")
    assert seen.Seen is not Seen
    for exercise, lendable, cases in trials:
        driver = getattr(drivers, exercise.driver.__name__)
        attempt = notebook[exercise.attempt_name]
        for case, expected, services in cases:
            with seen.torch_as_it_is(), seen.lending(attempt, lendable):
                records = driver(attempt, **case.data, **services)
            counts = {name: service.counts() for name, service in services.items()}
            plain = tuple(Seen(what, seen.plain(value), where) for what, value, where in records)
            difference = exercise.compare(Outcome(plain, counts), expected)
            assert difference is None, (exercise.name, case.label, difference)
            yield case


if __name__ == "__main__":
    ready = {
        lab: (
            vars(fresh_copy(lab)),
            [prepared(exercise, answers_of(lab)) for exercise in EXERCISES if exercise.lab == lab],
        )
        for lab in LABS
    }
    hidden = {lab: answers_of(lab) for lab in LABS}
    for lab in reversed(LABS):
        close(lab, hidden[lab])
        print(lab, len(list(run_lab(lab, *ready[lab]))))
