"""Judging an attempt: run it on every case beside the reference, and say what is wrong with it."""

import copy
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from autograder.drivers.seen import Seen, lending, notebook_of, plain, torch_as_it_is
from autograder.exercises import exercises
from autograder.judging.catalogue import Misconception
from autograder.judging.compare import Difference
from autograder.judging.exercise import Case, Driver, Exercise, Outcome
from autograder.judging.failure import Failure, TookTooLong, failure_of, line_of, words_of
from autograder.judging.interrupt import interrupted
from autograder.judging.source import exercise_function, own_statements
from autograder.judging.symptoms import symptom
from autograder.lending.borrowed import borrowed

NOT_ATTEMPTED, WRONG, PASSED = "not attempted", "wrong", "passed"

TIMES_THE_WORK, MORE_WORK = 4, 64  # than the reference's, before an attempt is stopped
SECONDS = 10.0  # for all cases together, of which the reference needs hundredths
PATIENCE = 3600.0  # with the reference, on a machine however busy

CHANGES_BY_ITSELF = (
    "The same input gave another result the second time: something random is in it, or something "
    "survives from one call to the next (a global variable, a mutable default argument)."
)
NOTHING_YET = "There is no code here yet."
INSIDE = (
    "`check` or `mine` was called while an attempt is being checked: take the call out of the "
    "function."
)
STILL_RAISES = (
    "There is code here, and it still raises NotImplementedError: delete that line and run the "
    "cell again. If you have, is a `return` missing above it?"
)


@dataclass(frozen=True)
class Judgement:
    """status: PASSED, WRONG or NOT_ATTEMPTED. message: what was found, in one or two sentences.

    Where it is wrong: case, the smallest one that fails; difference, the two values that differ;
    cause, the sentence of the misconception that led there; sure, whether it explains every case;
    line, the learner's own line that an error came from; stopped, whether it did not end;
    misconception, the name of the one whose sentence the cause is; uncompared, whether what came
    of it broke the comparison.
    """

    status: str
    message: str
    case: Case | None = None
    difference: Difference | None = None
    cause: str | None = None
    sure: bool = True
    line: str | None = None
    stopped: bool = False
    misconception: str | None = None
    uncompared: bool = False


class Uncompared(Exception):
    """What came of an attempt is like nothing that the comparison knows."""


class Attempt(ABC):
    """An attempt at an exercise, wherever its code runs."""

    @abstractmethod
    def outcomes(
        self, driver: Driver, cases: Sequence[Case], expected: Sequence[Outcome]
    ) -> list[Outcome]:
        """What comes of it, case by case; stopped where it does many times the work expected."""

    @abstractmethod
    def again(self, driver: Driver, case: Case) -> Outcome:
        """What comes of it now, at a case that it has had before."""

    @abstractmethod
    def has_own_code(self) -> bool:
        """Whether the learner has written anything where the TODO stood."""

    @abstractmethod
    def line(self, failure: Failure) -> str | None:
        """The learner's own line that a failure came from."""


@dataclass(frozen=True)
class Here(Attempt):
    """An attempt in this process, as a notebook hands it to `check`."""

    exercise: Exercise
    code: Any

    def outcomes(
        self, driver: Driver, cases: Sequence[Case], expected: Sequence[Outcome]
    ) -> list[Outcome]:
        with judging:
            return run_all(self.exercise, driver, self.code, cases, expected)

    def again(self, driver: Driver, case: Case) -> Outcome:
        with judging:
            return run(self.exercise, driver, self.code, case, time.monotonic() + SECONDS)

    def has_own_code(self) -> bool:
        function = exercise_function(self.exercise.path, self.code)
        lab, path = self.exercise.lab, self.exercise.path
        return function is not None and bool(own_statements(lab, path, function))

    def line(self, failure: Failure) -> str | None:
        return line_of(failure, self.exercise.path, self.code)


judging, called_inside = threading.Lock(), threading.Event()


def require_outside() -> None:
    """Refuse to judge while an attempt is being judged: each would go on to judge itself.

    Raises SystemExit, which `except Exception` lets pass, and which ends a thread without a word.
    """
    if judging.locked():
        called_inside.set()
        raise SystemExit(INSIDE)


def judge(
    exercise: Exercise, attempt: Attempt | Any, cases: Sequence[Case] | None = None
) -> Judgement:
    """Judge an attempt on some cases; tell the smallest that fails, and what led to it.

    attempt: one that runs somewhere, or the function or class itself, which runs here. cases: those
    that seed 0 draws, where none are given. An attempt is right that passes with one of the
    exercise's drivers; misconceptions are tried only where it passes with none. It is wrong where
    it calls a check itself, in whatever thread and whatever becomes of the error.
    """
    if not isinstance(attempt, Attempt):
        require_outside()
        attempt = Here(exercise, attempt)
    if cases is None:
        cases = drawn(exercise)
    called_inside.clear()
    try:
        trial = Trial.of(exercise, exercise.driver, attempt, cases)
        judgement = trial.judgement()
        if judgement.status == WRONG:
            judgement = trial.passed_as_built(judgement) or trial.explained(judgement)
    except Uncompared as error:
        judgement = Judgement(WRONG, str(error), uncompared=True)
    if called_inside.is_set():
        return replace(judgement, status=WRONG, message=INSIDE, cause=None, misconception=None)
    return judgement


@cache
def drawn(exercise: Exercise, seed: int = 0) -> list[Case]:
    """The cases of an exercise. Nothing that runs changes them, so one draw serves all."""
    return exercise.cases(torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Trial:
    """What an attempt did with each case, by one driver, beside what the reference does."""

    exercise: Exercise
    driver: Driver
    attempt: Attempt
    cases: Sequence[Case]
    expected: list[Outcome]
    got: list[Outcome]

    @classmethod
    def of(
        cls, exercise: Exercise, driver: Driver, attempt: Attempt, cases: Sequence[Case]
    ) -> "Trial":
        expected = right_outcomes(exercise, driver, cases)
        if fault := next((outcome.failure for outcome in expected if outcome.failure), None):
            raise RuntimeError(f"The reference of {exercise.name} does not run.") from fault.error
        got = attempt.outcomes(driver, cases, expected)
        return cls(exercise, driver, attempt, cases, expected, got)

    def judgement(self) -> Judgement:
        """Passed, not attempted, or wrong: then with the first case that fails, and no cause."""
        if (unwritten := self.not_implemented()) is not None:
            return unwritten
        stopped = any(was_stopped(outcome) for outcome in self.got)
        for case, got, found in zip(self.cases, self.got, self.differences(), strict=True):
            if found is not None:
                line = self.attempt.line(got.failure) if got.failure else None
                return Judgement(WRONG, found.sentence, case, found, line=line, stopped=stopped)
        return Judgement(PASSED, "Right on every case.")

    def differences(self) -> Iterator[Difference | None]:
        """Between the attempt and the reference, case by case."""
        for got, expected in zip(self.got, self.expected, strict=True):
            yield difference(self.exercise, got, expected)

    def not_implemented(self) -> Judgement | None:
        """The judgement where the exercise's own code raised NotImplementedError."""
        for case, outcome in zip(self.cases, self.got, strict=True):
            if outcome.failure is None or not self.is_unwritten(outcome.failure):
                continue
            if self.attempt.has_own_code() or any(o.failure is None for o in self.got):
                line = self.attempt.line(outcome.failure)
                return Judgement(WRONG, STILL_RAISES, case, line=line)
            return Judgement(NOT_ATTEMPTED, NOTHING_YET)
        return None

    def is_unwritten(self, failure: Failure) -> bool:
        """Whether it stopped at its own TODO, or in a bundle at one before it, which isn't lent."""
        if failure.unwritten or self.exercise.record is None:
            return failure.unwritten
        raised = isinstance(failure.error, NotImplementedError)
        return raised and not self.attempt.has_own_code()

    def passed_as_built(self, judgement: Judgement) -> Judgement | None:
        """The judgement where an attempt's own methods lead it to what is right."""
        if self.exercise.as_built is None or judgement.stopped:
            return None
        found = Trial.of(self.exercise, self.exercise.as_built, self.attempt, self.cases)
        judgement = found.judgement()
        return judgement if judgement.status == PASSED else None

    def explained(self, judgement: Judgement) -> Judgement:
        """A judgement with the cause of its difference, where one is found."""
        smallest = next(i for i, case in enumerate(self.cases) if case is judgement.case)
        ended = len(list(takewhile(lambda outcome: not was_stopped(outcome), self.got)))
        if judgement.difference is None or smallest >= ended:
            return judgement
        got, expected, cases = self.got[:ended], self.expected[:ended], self.cases[:ended]
        known, sure = replace(self, cases=cases, got=got, expected=expected).cause()
        if not (known and sure):
            again = self.attempt.again(self.driver, self.cases[smallest])
            if not coincide(self.exercise, again, self.got[smallest]):
                return replace(judgement, cause=CHANGES_BY_ITSELF, stopped=False)
        if known is None:
            return judgement
        return replace(judgement, cause=known.sentence, sure=sure, misconception=known.name)

    def cause(self) -> tuple[Misconception | None, bool]:
        """What led to an attempt, and whether that is sure: a misconception, or what shows alike in
        every case that fails.
        """
        known, sure = diagnose(self)
        if known and sure:
            return known, True
        both = zip(self.got, self.expected, self.differences(), strict=True)
        shown = [symptom(self.exercise, got, expected) for got, expected, found in both if found]
        alike = len({each and each.name for each in shown}) == 1
        return (shown[0], True) if shown[0] and alike else (known, False)


def right_outcomes(exercise: Exercise, driver: Driver, cases: Sequence[Case]) -> list[Outcome]:
    """What the reference does; what it did, where it isn't here."""
    if exercise.record is not None:
        return list(exercise.record.right[driver.__name__])
    return run_all(exercise, driver, exercise.reference, cases)


# ---------------------------------------------------------------------------------- running


def run_all(
    exercise: Exercise,
    driver: Driver,
    attempt: Any,
    cases: Sequence[Case],
    expected: Sequence[Outcome] | None = None,
) -> list[Outcome]:
    """Run an attempt on the cases in turn, stopped where it does not end.

    Work is limited by what was expected of it. One deadline holds for all cases, so that a loop
    without an end is waited for once.
    """
    over = time.monotonic() + (SECONDS if expected else PATIENCE)
    outcomes: list[Outcome] = []
    for i, case in enumerate(cases):
        if outcomes and was_stopped(outcomes[-1]):  # it would be stopped again, and again
            outcomes.append(outcomes[-1])
        else:
            work = expected[i].counts if expected else None
            outcomes.append(run(exercise, driver, attempt, case, over, work))
    return outcomes


def was_stopped(outcome: Outcome) -> bool:
    """Whether an attempt did not come to its end."""
    return outcome.failure is not None and outcome.failure.stopped


def run(
    exercise: Exercise,
    driver: Driver,
    attempt: Any,
    case: Case,
    over: float,
    work: Mapping[str, Mapping[str, int]] | None = None,
) -> Outcome:
    """Run one attempt on one case. Whatever it changes, the case stays as it was.

    SystemExit and its like count as errors of the attempt; only KeyboardInterrupt is the person's
    own wish to stop.
    """
    data = copy.deepcopy(dict(case.data))
    services = exercise.services(data)
    for name, counts in limited(work or {}).items():
        services[name].limit(counts)
    functions = lent(exercise)  # here: an error in a lab's module is none of the attempt's
    try:
        with torch_as_it_is(), lending(attempt, functions), deadline(over):
            own = notebook_of(attempt)
            seen = driver(attempt, **data, **{n: borrowed(s, own) for n, s in services.items()})
            records = tuple(Seen(what, plain(value), where) for what, value, where in seen)
            touched = [f"a weight of `{n}`" for n, s in services.items() if not s.untouched()]
            after = plain(data)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return Outcome(failure=failure_of(error, exercise.path, attempt, SECONDS))
    return Outcome(
        records,
        {name: service.counts() for name, service in services.items()},
        changed=next(iter(touched), changed_part(after, case.data)),
    )


def limited(work: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """At how much work of each service an attempt is stopped, where so much is expected."""
    return {
        service: {what: TIMES_THE_WORK * most + MORE_WORK for what, most in counts.items()}
        for service, counts in work.items()
    }


@cache
def lent(exercise: Exercise) -> dict[str, Any]:
    """Right solutions of the functions that are exercises before this one in the course.

    Those behind it may be built on it, and then its answer could be had from them. Where the
    reference of this lab isn't here, the learner's own stay in their place.
    """
    before = takewhile(lambda other: other.name != exercise.name, exercises().values())
    right = [other for other in before if other.record is None and "." not in other.path]
    functions = {id(other.reference) for other in right}
    return {name: value for name, value in vars(exercise.module).items() if id(value) in functions}


def changed_part(now: Any, before: Any, path: str = "") -> str | None:
    """The first place at which plain data is no longer what it was; None where there is none."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        dot = "." if path else ""
        parts = ((f"{path}{dot}{key}", now.get(key), value) for key, value in before.items())
    elif type(now) is not type(before):
        return f"`{path}`"
    elif isinstance(before, Tensor):
        same = now.dtype == before.dtype and now.shape == before.shape and torch.equal(now, before)
        return None if same else f"`{path}`"
    elif isinstance(before, (list, tuple)):
        both = zip(now, before, strict=False)
        parts = ((f"{path}[{i}]", n, b) for i, (n, b) in enumerate(both))
    else:
        return None if now == before else f"`{path}`"
    if len(now) != len(before):
        return f"`{path}`"
    return next((found for p, n, b in parts if (found := changed_part(n, b, p))), None)


def deadline(over: float) -> AbstractContextManager[None]:
    """Raise TookTooLong in the block when the clock has passed `over`, and until it gives up."""
    return interrupted(TookTooLong, lambda: time.monotonic() > over)


# ---------------------------------------------------------------------------------- comparing


def difference(exercise: Exercise, got: Outcome, expected: Outcome) -> Difference | None:
    """None where the two outcomes agree, else the first difference. Raises Uncompared."""
    if got.failure is not None:
        return Difference(got.failure.told + what_to_run(exercise, got.failure))
    try:
        found = exercise.compare(got, expected)
    except Exception as error:
        told = f"{type(error).__name__}: {words_of(error)}"
        raise Uncompared(f"What came of it could not be compared ({told}).") from error
    if found is not None or got.changed == expected.changed:
        return found
    changed = got.changed or "something"
    return Difference(
        f"The result is right, but {changed} is no longer what it was before the call."
    )


def what_to_run(exercise: Exercise, failure: Failure) -> str:
    """What helps where a name is missing that a given cell defines or imports; else nothing."""
    if failure.missing not in vars(exercise.module):
        return ""
    return f". `{failure.missing}` comes from a cell above: run the cells above."


# ---------------------------------------------------------------------------------- diagnosing


def diagnose(trial: Trial) -> tuple[Misconception | None, bool]:
    """The misconception that led to an attempt, and whether that is sure.

    It is where one coincides with the attempt on every case. Else another mistake may have come on
    top: then one is likely that coincides on the smallest case that fails, and on most of the cases
    in which it goes wrong itself, two at least.
    """
    exercise, got = trial.exercise, trial.got
    smallest = next(i for i, found in enumerate(trial.differences()) if found)
    upto = smallest + 1
    likely, most = None, 1
    for misconception, outcomes in wrong_outcomes(trial):
        theirs = outcomes(slice(upto))
        if not coincide(exercise, got[smallest], theirs[smallest]):
            continue  # as most do, and the other cases need not run
        theirs += outcomes(slice(upto, None))
        same = [coincide(exercise, g, t) for g, t in zip(got, theirs, strict=True)]
        if all(same):
            return misconception, True
        fails = replace(trial, got=theirs).differences()
        explained = [s for s, failed in zip(same, fails, strict=True) if failed]
        if most < sum(explained) and len(explained) <= 2 * sum(explained):
            likely, most = misconception, sum(explained)
    return likely, False


def wrong_outcomes(
    trial: Trial,
) -> Iterator[tuple[Misconception, Callable[[slice], list[Outcome]]]]:
    """The misconceptions, form by form, with what each does on a part of the cases, or did."""
    exercise, driver, cases, expected = trial.exercise, trial.driver, trial.cases, trial.expected
    for misconception, outcomes in exercise.record.wrong if exercise.record else ():
        yield misconception, list(outcomes)[: len(cases)].__getitem__
    for misconception in exercise.misconceptions:
        for code in misconception.attempts():

            def outcomes_of(part: slice, code: Any = code) -> list[Outcome]:
                return run_all(exercise, driver, code, cases[part], expected[part])

            yield misconception, outcomes_of


def coincide(exercise: Exercise, got: Outcome, theirs: Outcome) -> bool:
    """Whether two wrong outcomes are the same one. Two mistakes may raise the same type of error,
    and few the same words."""
    if got.failure is None and theirs.failure is None:
        return difference(exercise, got, theirs) is None
    if got.failure is None or theirs.failure is None:
        return False
    return got.failure.told == theirs.failure.told
