"""What an exercise is, and how an attempt at it is judged.

A driver runs an attempt on a case: plain data in, plain data out. It imports nothing but `gpt` and
the solutions of earlier labs, so that it can run where the answers are not. Cases, the reference,
the comparison and the misconceptions stay on this side. The reference and every misconception go
through the same driver as the student's attempt, so all of them are judged by what they do.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

NOT_ATTEMPTED, WRONG, PASSED = "not attempted", "wrong", "passed"


@dataclass(frozen=True)
class Case:
    """One input of an exercise: a label that a student understands, and plain data.

    Plain data is tensors, numbers, strings, None, and lists, tuples and dicts of them.
    """

    label: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Misconception:
    """A wrong solution that people really write, and what to tell who wrote it.

    `attempt` is a function or a class, as a student's is. One that keeps something from call to
    call is a callable object that holds it, so that every judgement starts it afresh.
    """

    name: str
    sentence: str
    attempt: Any


CHANGES_BY_ITSELF = Misconception(
    "changes by itself",
    "The same input gave another result the second time: something random is in it, or something "
    "survives from one call to the next (a global variable, a mutable default argument).",
    None,
)


@dataclass(frozen=True)
class Outcome:
    """What a driver brought back from one case, or the exception that stopped it."""

    returned: Any = None
    error: BaseException | None = None


@dataclass(frozen=True)
class Judgement:
    status: str
    message: str
    case: Case | None = None
    got: Outcome | None = None
    expected: Outcome | None = None
    misconception: Misconception | None = None


def no_services(data: Mapping[str, Any]) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Exercise:
    """One TODO: its card, its hints, and everything needed to judge an attempt.

    name: the object's path in `solutions`, "kv_cache.KVCache.attend".
    driver: called as driver(attempt, **data, **services); returns plain data. `attempt` is the
        function itself, or the class for an exercise that is a method.
    cases: draws cases from a seeded generator, smallest first.
    services: what the trusted side lends the driver for one case, a counted model for instance.
        A service with a `counts()` method has its counts compared along with what is returned.
    compare: gets {"returned": what the driver returned, service: its counts} of both. None where
        got equals expected, else one sentence that says how they differ.
    """

    name: str
    lab: str
    title: str
    points: int
    difficulty: int
    minutes: int
    place: str
    hints: tuple[str, str, str]
    reference: Any
    driver: Callable[..., Any]
    cases: Callable[[torch.Generator], list[Case]]
    compare: Callable[[Any, Any], str | None]
    misconceptions: tuple[Misconception, ...] = field(repr=False)
    services: Callable[[Mapping[str, Any]], dict[str, Any]] = no_services

    @property
    def attempt_name(self) -> str:
        """The name a student's notebook gives the attempt: KVCache in kv_cache.KVCache.attend."""
        return self.name.split(".")[1]

    def run(self, attempt: Any, case: Case) -> Outcome:
        """Run one attempt on one case. Whatever it changes, the case stays as it was.

        SystemExit and its like count as errors of the attempt; only KeyboardInterrupt is the
        person's own wish to stop.
        """
        data = copy.deepcopy(dict(case.data))
        services = self.services(data)
        try:
            returned = self.driver(attempt, **data, **services)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return Outcome(error=error)
        counts = {name: s.counts() for name, s in services.items() if hasattr(s, "counts")}
        return Outcome(returned={"returned": returned, **counts})

    def run_all(self, attempt: Any, cases: list[Case]) -> Iterator[Outcome]:
        """Run an attempt on the cases in turn. A callable object starts in the state it has now."""
        attempt = copy.deepcopy(attempt)  # functions and classes stay the same object
        return (self.run(attempt, case) for case in cases)

    def difference(self, got: Outcome, expected: Outcome) -> str | None:
        """None where the two outcomes agree, else one sentence about the first difference."""
        if got.error is not None or expected.error is not None:
            if type(got.error) is type(expected.error):
                return None
            if got.error is None:
                return f"It should have raised {type(expected.error).__name__}, and did not."
            return f"It raised {type(got.error).__name__}: {got.error}"
        return self.compare(got.returned, expected.returned)

    def judge(self, attempt: Any, seed: int = 0) -> Judgement:
        """Judge an attempt on the cases that `seed` draws; tell the smallest that fails."""
        cases = self.cases(torch.Generator().manual_seed(seed))
        got = list(self.run_all(attempt, cases))
        if any(isinstance(outcome.error, NotImplementedError) for outcome in got):
            return Judgement(NOT_ATTEMPTED, "There is no code here yet.")
        expected = self.run_all(self.reference, cases)
        for case, mine, theirs in zip(cases, got, expected, strict=True):
            message = self.difference(mine, theirs)
            if message is not None:
                known = self.diagnose(cases, got) or self.second_time(attempt, case, mine)
                return Judgement(WRONG, message, case, mine, theirs, known)
        return Judgement(PASSED, "Right on every case.")

    def diagnose(self, cases: list[Case], got: list[Outcome]) -> Misconception | None:
        """The misconception that coincides with the attempt on every case, if there is one."""
        for misconception in self.misconceptions:
            theirs = self.run_all(misconception.attempt, cases)
            if all(self.coincide(g, t) for g, t in zip(got, theirs, strict=True)):
                return misconception
        return None

    def coincide(self, got: Outcome, theirs: Outcome) -> bool:
        """Whether two wrong outcomes are the same one. Two mistakes may raise the same type of
        error, and few the same words."""
        return str(got.error) == str(theirs.error) and self.difference(got, theirs) is None

    def second_time(self, attempt: Any, case: Case, got: Outcome) -> Misconception | None:
        """Whether the attempt now does something else with the same case."""
        again = self.run(attempt, case)
        return None if self.difference(again, got) is None else CHANGES_BY_ITSELF
