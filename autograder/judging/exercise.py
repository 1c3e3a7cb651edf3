"""An exercise: a name, a driver, cases, and a comparison of two outcomes.

A driver runs an attempt on a case: plain data in, a list of what it saw out. It imports nothing but
`gpt` and the solutions of earlier labs, so that it can run where the answers are not. Cases, the
reference, the comparison and the misconceptions stay on the trusted side. The reference and every
misconception go through the same driver as the student's attempt: all are judged by what they do.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from operator import attrgetter
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor

from autograder.attempt.failure import Failure
from autograder.attempt.records import Seen
from autograder.attempt.tensors import tensors_in
from autograder.judging.catalogue import Misconception, misconceptions
from autograder.judging.compare import Difference, same_seen
from autograder.text.lesson import Card, card_of
from autograder.text.reference import module_of

Driver = Callable[..., list[Seen]]


@dataclass(frozen=True)
class Case:
    """One input of an exercise: a label that a student understands, and plain data.

    Plain data is tensors, numbers, text, bytes, None, and lists, tuples and dicts of them. terms:
    of which terms a right number is the sum, by what is seen and by name.
    """

    label: str
    data: Mapping[str, Any]
    terms: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def case_of(*names: str) -> Callable[..., Case]:
    """Make cases of values in the order of these names; further values have their own names."""

    def case(label: str, *values: Any, **more: Any) -> Case:
        return Case(label, {**dict(zip(names, values, strict=True)), **more})

    return case


@dataclass(frozen=True)
class Lends:
    """The names of a lent thing that an attempt may read and call: "" is the thing itself.

    What it reads is a copy. It can set nothing, and any other name is an AttributeError.
    """

    read: Set[str] = frozenset()
    call: Set[str] = frozenset()

    def allows(self, verb: str, name: str) -> bool:
        """Whether the other end of a wire may do this with a name: "get" or "call" it."""
        if verb == "get":  # as a method is before it is called
            return name in self.read or name in self.call
        return verb == "call" and name in self.call


FORWARDS, TOKENS = "forward calls", "tokens computed"  # what services count
MOVED = "numbers moved"  # to and from slow memory


class Service(Protocol):
    """Something that the trusted side lends a driver for one case: a model that counts its work."""

    lends: Lends

    def counts(self) -> dict[str, int]:
        """The work that it has done, by what was counted ("forward calls")."""

    def limit(self, counts: Mapping[str, int]) -> None:
        """From now on raise TooMuchWork rather than do more work than this."""

    def untouched(self) -> bool:
        """Whether what it showed of itself, weights for instance, is as it was."""


@dataclass(frozen=True)
class Outcome:
    """The result of one attempt on one case.

    seen: what the driver saw. counts: the work that each service counted. failure: what stopped it.
    changed: the part of the case that the attempt has changed ("`prompts[0]`").
    """

    seen: tuple[Seen, ...] = ()
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    failure: Failure | None = None
    changed: str | None = None


Services = Callable[[Mapping[str, Any]], Mapping[str, Service]]


def no_services(data: Mapping[str, Any]) -> dict[str, Service]:
    return {}


# ------------------------------------------------------------------- cases that every exercise gets

ONCE_MORE = ", once more after all others"  # then what survives from call to call shows
SOME = 8  # numbers, so that a result isn't right in any dtype


def in_float32(case: Case) -> Case:
    """The same case with its float64 numbers in float32."""
    return Case(f"{case.label}, in float32", to_float32(case.data))


def first_in_float32(cases: Sequence[Case]) -> list[Case]:
    """The first case with several float64 numbers again, in float32."""
    for case in cases:
        if sum(tensor.numel() for tensor in doubles_in(case.data)) >= SOME:
            return [in_float32(case)]
    return []


def doubles_in(value: Any) -> Iterator[Tensor]:
    return (t for t in tensors_in(value) if t.dtype == torch.float64)


def to_float32(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.float() if value.dtype == torch.float64 else value
    if isinstance(value, Mapping):
        return {key: to_float32(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(to_float32(item) for item in value)
    return value


def compare_seen(got: Outcome, expected: Outcome) -> Difference | None:
    return same_seen(got.seen, expected.seen)


@dataclass(frozen=True)
class Record:
    """The outcomes of the reference and of each form of each misconception, case by case.

    A bundle has these instead of the reference. right: by the name of the driver.
    """

    right: Mapping[str, Sequence[Outcome]]
    wrong: Sequence[tuple[Misconception, Sequence[Outcome]]]


@dataclass(frozen=True)
class Exercise:
    """One TODO, and how an attempt at it is judged.

    name: the object's path in `solutions`, "kv_cache.KVCache.attend".
    driver: called as driver(attempt, **data, **services). `attempt` is the function itself, or the
        class for an exercise that is a method.
    cases: draws cases from a seeded generator, smallest first.
    compare: gets two outcomes without errors; None where they agree, else the first difference.
    services: what the trusted side lends the driver for one case.
    as_built: the driver again, for an attempt that keeps books of its own besides those that are
        asked for: it reaches every state by the attempt's own methods, where the first driver sets
        it by hand. An attempt that passes with one of them is right.
    whole: names of a case's tensors that an engine has as a whole, and not as slices.
    in_bundle: what is lent in a bundle, if `services` lends what the lab's own reference makes.
    record: in a bundle, the outcomes of the reference and of the misconceptions.
    """

    name: str
    driver: Driver
    cases: Callable[[torch.Generator], list[Case]]
    compare: Callable[[Outcome, Outcome], Difference | None] = compare_seen
    services: Services = no_services
    as_built: Driver | None = None
    in_bundle: Services | None = None
    whole: tuple[str, ...] = ()
    record: Record | None = field(default=None, compare=False)

    def all_cases(self, generator: torch.Generator) -> list[Case]:
        """Its own cases, then what every exercise gets: a case in float32, and one once more."""
        cases = self.cases(generator)
        if self.record is not None:  # they were recorded with the others
            return cases
        middle = cases[len(cases) // 2]
        again = replace(middle, label=f"{middle.label}{ONCE_MORE}")
        lent = self.services is not no_services  # and the dtype with it
        return [*cases, *([] if lent else first_in_float32(cases)), again]

    @property
    def lab(self) -> str:
        return self.name.split(".")[0]

    @property
    def path(self) -> str:
        """Within its lab: KVCache.attend."""
        return self.name.split(".", 1)[1]

    @property
    def attempt_name(self) -> str:
        """The name a student's notebook gives the attempt: KVCache in kv_cache.KVCache.attend."""
        return self.name.split(".")[1]

    @property
    def module(self) -> ModuleType:
        return module_of(self.lab)

    @property
    def reference(self) -> Any:
        """The right function, or the class with the right method; in a bundle, its skeleton."""
        return getattr(self.module, self.attempt_name)

    def called(self, place: str | None) -> str:
        """What a student calls a part of a case that has changed: by the name of an argument."""
        *_, function = self.path.split(".")
        arguments = inspect.signature(attrgetter(self.path)(self.module)).parameters
        names = re.findall(r"[a-z_]+", place or "")
        if place is None or not names:
            return "something"
        if place.startswith("a weight") or names[0] in arguments:
            return place
        known = [name for name in names[1:] if name in arguments]
        return f"`{known[-1]}`" if known else f"something that `{function}` was given"

    @property
    def card(self) -> Card:
        return card_of(self.name)

    @property
    def misconceptions(self) -> tuple[Misconception, ...]:
        return misconceptions(self.name)
