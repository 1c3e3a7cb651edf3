"""Exercises in a bundle: cases, and what came of the right solution and the wrong ones.

A bundle has neither the reference of its own lab nor its misconceptions. `autograder/records/`
holds what was seen of them when the bundle was made: kv_cache.frames has one frame of the wire for
each exercise, in their order. Beside it, kv_cache.py is what a learner gets of the lab's module.
"""

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from autograder.catalogue import Misconception
from autograder.drivers.seen import Seen
from autograder.exercise import Case, Exercise, Outcome, Record
from autograder.failure import Failure
from autograder.reference import RECORDS
from autograder.sandbox.wire import LENGTHS, lengths, packed, unpacked


def recorded_exercises(lab: str) -> tuple[Exercise, ...]:
    """The exercises of the lab that a bundle is for."""
    return tuple(map(from_data, frames(RECORDS / f"{lab}.frames")))


def frames(path: Path) -> Iterator[dict[str, Any]]:
    content = path.read_bytes()
    while content:
        header, body = lengths(content[: LENGTHS.size])
        content = content[LENGTHS.size :]
        yield unpacked(content[:header], content[header : header + body])
        content = content[header + body :]


def frame(exercise: Exercise, cases: Sequence[Case], record: Record) -> bytes:
    """An exercise as it is recorded. Many outcomes are the same, and each is kept once."""
    numbers: dict[bytes, int] = {}
    once: list[Any] = []

    def numbered(outcomes: Sequence[Outcome]) -> list[int]:
        for outcome in outcomes:
            data = outcome_to_data(outcome)
            if numbers.setdefault(packed(data), len(once)) == len(once):
                once.append(data)
        return [numbers[packed(outcome_to_data(outcome))] for outcome in outcomes]

    return packed(
        {
            "name": exercise.name,
            "driver": place_of(exercise.driver),
            "compare": place_of(exercise.compare),
            "services": place_of(exercise.services),
            "as_built": place_of(exercise.as_built) if exercise.as_built else None,
            "cases": [[case.label, dict(case.data)] for case in cases],
            "right": {driver: numbered(outcomes) for driver, outcomes in record.right.items()},
            "wrong": [[m.name, m.sentence, numbered(outcomes)] for m, outcomes in record.wrong],
            "outcomes": once,
        }
    )


def from_data(data: dict[str, Any]) -> Exercise:
    outcomes = [outcome_from_data(outcome) for outcome in data["outcomes"]]
    cases = [Case(*case) for case in data["cases"]]

    def named(numbers: list[int]) -> list[Outcome]:
        return [outcomes[number] for number in numbers]

    wrong = [
        (Misconception(data["name"], name, sentence, ()), named(numbers))
        for name, sentence, numbers in data["wrong"]
    ]
    return Exercise(
        data["name"],
        at_place(data["driver"]),
        lambda generator: cases,
        at_place(data["compare"]),
        at_place(data["services"]),
        as_built=at_place(data["as_built"]) if data["as_built"] else None,
        record=Record({driver: named(n) for driver, n in data["right"].items()}, wrong),
    )


def outcome_to_data(outcome: Outcome) -> list[Any]:
    failure = outcome.failure
    return [
        [list(record) for record in outcome.seen],
        {service: dict(counts) for service, counts in outcome.counts.items()},
        [failure.told, failure.stopped] if failure else None,
        outcome.changed,
    ]


def outcome_from_data(data: list[Any]) -> Outcome:
    seen, counts, failure, changed = data
    records = tuple(Seen(*record) for record in seen)
    return Outcome(records, counts, Failure(*failure) if failure else None, changed)


def place_of(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__name__}"


def at_place(place: str) -> Any:
    module, _, name = place.rpartition(".")
    return getattr(import_module(module), name)
