"""Exercises in a bundle: cases, and the outcomes of the right solution and the wrong ones.

A bundle has neither the reference of its own lab nor its misconceptions. `autograder/records/`
holds what was seen of them when the bundle was made: kv_cache.frames has one frame of the wire for
each exercise, in their order. The lab's module in `solutions/` is the one that a learner gets.
"""

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from autograder.attempt.failure import Failure
from autograder.attempt.records import Seen
from autograder.attempt.wire import LENGTHS, lengths, packed, unpacked
from autograder.judging.catalogue import Misconception
from autograder.judging.exercise import Case, Exercise, Outcome, Record
from autograder.text.reference import ROOT

RECORDS = ROOT / "autograder" / "records"  # exists only in a bundle


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


class Once:
    """Plain data, each value kept once, and found by its number."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.numbers: dict[bytes, int] = {}

    def number(self, value: Any) -> int:
        key = packed(value)
        if key not in self.numbers:
            self.numbers[key] = len(self.values)
            self.values.append(value)
        return self.numbers[key]


def frame(exercise: Exercise, cases: Sequence[Case], record: Record) -> bytes:
    """An exercise as it is recorded. Wrong solutions do much as the right one does."""
    outcomes, seen = Once(), Once()

    def numbered(found: Sequence[Outcome]) -> list[int]:
        return [outcomes.number(outcome_to_data(outcome, seen)) for outcome in found]

    return packed(
        {
            "name": exercise.name,
            "driver": place_of(exercise.driver),
            "compare": place_of(exercise.compare),
            "services": place_of(exercise.services),
            "as_built": place_of(exercise.as_built) if exercise.as_built else None,
            "whole": exercise.whole,
            "cases": [[case.label, dict(case.data), dict(case.terms)] for case in cases],
            "right": {driver: numbered(outcomes) for driver, outcomes in record.right.items()},
            "wrong": [[m.name, m.sentence, numbered(outcomes)] for m, outcomes in record.wrong],
            "outcomes": outcomes.values,
            "seen": seen.values,
        }
    )


def from_data(data: dict[str, Any]) -> Exercise:
    seen = [Seen(*record) for record in data["seen"]]
    outcomes = [outcome_from_data(outcome, seen) for outcome in data["outcomes"]]
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
        whole=data["whole"],
        record=Record({driver: named(n) for driver, n in data["right"].items()}, wrong),
    )


def outcome_to_data(outcome: Outcome, seen: Once) -> list[Any]:
    failure = outcome.failure
    return [
        [seen.number(list(record)) for record in outcome.seen],
        {service: dict(counts) for service, counts in outcome.counts.items()},
        [failure.told, failure.stopped] if failure else None,
        outcome.changed,
    ]


def outcome_from_data(data: list[Any], seen: Sequence[Seen]) -> Outcome:
    numbers, counts, failure, changed = data
    records = tuple(seen[number] for number in numbers)
    return Outcome(records, counts, Failure(*failure) if failure else None, changed)


def place_of(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__name__}"


def at_place(place: str) -> Any:
    module, _, name = place.rpartition(".")
    return getattr(import_module(module), name)
