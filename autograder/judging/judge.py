"""Judge an attempt: run it and the reference on every case, and say what is wrong with it."""

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from autograder.attempt.around import lending, notebook_of, torch_as_it_is
from autograder.attempt.failure import Failure, failure_of, line_of, words_of
from autograder.attempt.plain import plain
from autograder.attempt.records import plain_records
from autograder.attempt.source import exercise_function, lost_statements, unused_arguments
from autograder.attempt.tensors import as_in_an_engine
from autograder.judging.borrowed import borrowed
from autograder.judging.catalogue import Misconception, pairs
from autograder.judging.compare import Difference
from autograder.judging.exercise import ONCE_MORE, Case, Driver, Exercise, Outcome
from autograder.judging.given import given_statements, own_statements
from autograder.judging.interrupt import interrupted
from autograder.judging.patience import Patience, can_run
from autograder.judging.symptoms import extreme, symptom
from autograder.judging.terms import in_terms
from autograder.judging.verdicts import NOT_ATTEMPTED, PASSED, WRONG
from autograder.text.lesson import lessons
from autograder.text.reference import has_reference, module_of

TIMES_THE_WORK, MORE_WORK = 4, 64  # than the reference's, before an attempt is stopped
SECONDS = 10.0  # of work for all cases together, of which the reference needs hundredths
SECONDS_FOR_REFERENCE = 3600.0

CHANGES_BY_ITSELF = (
    "The same input gives another result the second time. Does your code draw random numbers, or "
    "does something stay from one call to the next: a global variable, a mutable default argument, "
    "an attribute of the function?"
)
NOTHING_YET = "There is no code here yet."
GIVEN_IS_GONE = (
    "The result is right on every case, but `{}` is gone, which was given with this TODO: put it "
    "back."
)
INSIDE = (
    "Your function calls `check` or `mine` itself, while it is being checked: take that call out "
    "of it."
)
STILL_RAISES = (
    "There is code here, but it still raises NotImplementedError: delete that line and run the "
    "cell again. If the line is there on purpose, is a `return` missing above it?"
)


@dataclass(frozen=True)
class Judgement:
    """status: PASSED, WRONG or NOT_ATTEMPTED. message: what was found, in one or two sentences.

    Where it is wrong: case, the smallest one that fails; difference, the two values that differ;
    cause, the sentence of the misconception that led there; observed, whether that is no more than
    what the values show; line, the learner's own line that an error came from; stopped, whether it
    did not end; misconception, the name of the misconception that gave the cause; uncompared,
    whether its result broke the comparison.
    """

    status: str
    message: str
    case: Case | None = None
    difference: Difference | None = None
    cause: str | None = None
    observed: bool = False
    line: str | None = None
    stopped: bool = False
    misconception: str | None = None
    uncompared: bool = False

    @property
    def paragraphs(self) -> list[str]:
        """The cause, where one is known, and what was found."""
        lead = "" if self.observed else "Likely cause: "
        return [*([lead + self.cause] if self.cause else []), self.message]

    def because(self, known: Misconception, observed: bool = False) -> "Judgement":
        return replace(self, cause=known.sentence, observed=observed, misconception=known.name)


class ReferenceFails(RuntimeError):
    """The reference does not run, for which no attempt is to blame."""


class Uncompared(Exception):
    """The result of an attempt breaks the comparison."""


class Attempt(ABC):
    """An attempt at an exercise, wherever its code runs."""

    @abstractmethod
    def outcomes(
        self, driver: Driver, cases: Sequence[Case], expected: Sequence[Outcome]
    ) -> list[Outcome]:
        """Its outcomes, case by case; it is stopped when it does many times the expected work."""

    @abstractmethod
    def again(self, driver: Driver, case: Case) -> Outcome:
        """Its outcome now, on a case that it has had before."""

    @abstractmethod
    def has_own_code(self) -> bool:
        """Whether the learner has written anything in place of the TODO."""

    @abstractmethod
    def lost(self) -> list[str]:
        """The given statements of the function, of those that matter, that are gone."""

    @abstractmethod
    def unused(self) -> list[str]:
        """The arguments of the function that it never reads."""

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
            return run(self.exercise, driver, self.code, case, patience())

    def has_own_code(self) -> bool:
        function = exercise_function(self.exercise.path, self.code)
        lab, path = self.exercise.lab, self.exercise.path
        return function is not None and bool(own_statements(lab, path, function))

    def lost(self) -> list[str]:
        """Of what was written in the notebook or script itself; a module is another matter."""
        function = exercise_function(self.exercise.path, self.code)
        if function is None or function.__module__ != "__main__":
            return []
        given = given_statements(self.exercise.lab, self.exercise.path)
        return lost_statements(given, function)

    def unused(self) -> list[str]:
        function = exercise_function(self.exercise.path, self.code)
        return unused_arguments(function) if function else []

    def line(self, failure: Failure) -> str | None:
        return line_of(failure, self.exercise.path, self.code)


judging, called_inside = threading.Lock(), threading.Event()


def require_outside() -> None:
    """Refuse to judge while an attempt is being judged: it would judge itself without end.

    Raises SystemExit, which `except Exception` lets pass, and which ends a thread silently.
    """
    if judging.locked():
        called_inside.set()
        raise SystemExit(INSIDE)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let PyTorch work with one thread in the block, as in a grade.

    On a busy machine, the threads of one operation wait for each other most of the time.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@one_thread()
def judge(
    exercise: Exercise, attempt: Attempt | Any, cases: Sequence[Case] | None = None
) -> Judgement:
    """Judge an attempt on some cases; find the smallest that fails, and the cause.

    attempt: one that runs somewhere, or the function or class itself, which runs here. cases: by
    default those that seed 0 draws. An attempt that passes with one of the exercise's drivers is
    right; misconceptions are tried only if it passes with none. An attempt that calls a check
    itself is wrong, in whatever thread and even if it catches the error.
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
        if judgement.status == PASSED and (lost := attempt.lost()):
            judgement = Judgement(WRONG, GIVEN_IS_GONE.format(lost[0].splitlines()[0]))
    except Uncompared as error:
        judgement = Judgement(WRONG, str(error), uncompared=True)
    if called_inside.is_set():
        return replace(judgement, status=WRONG, message=INSIDE, cause=None, misconception=None)
    return judgement


@cache
def drawn(exercise: Exercise, seed: int = 0) -> list[Case]:
    """The cases of an exercise. Nothing that runs changes them, so one draw serves all."""
    return exercise.all_cases(torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class Trial:
    """What an attempt and the reference did with each case, seen by one driver."""

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
            raise ReferenceFails(f"The reference of {exercise.name} fails.") from fault.error
        got = attempt.outcomes(driver, cases, expected)
        return cls(exercise, driver, attempt, cases, expected, got)

    def judgement(self) -> Judgement:
        """Passed, not attempted, or wrong, with the first case that fails and no cause yet."""
        if (unwritten := self.not_implemented()) is not None:
            return unwritten
        stopped = any(was_stopped(outcome) for outcome in self.got)
        every = zip(self.cases, self.got, self.expected, self.differences(), strict=True)
        for case, got, expected, found in every:
            if found is not None:
                line = self.attempt.line(got.failure) if got.failure else None
                message = found.sentence + in_terms(case, got, expected)
                return Judgement(WRONG, message, case, found, line=line, stopped=stopped)
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
        """Whether it stopped at its own TODO, or in a bundle at an earlier one: it isn't lent."""
        if failure.unwritten or self.exercise.record is None:
            return failure.unwritten
        raised = isinstance(failure.error, NotImplementedError)
        return raised and not self.attempt.has_own_code()

    def passed_as_built(self, judgement: Judgement) -> Judgement | None:
        """The judgement, if the attempt passes when its own methods build every state."""
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
        if self.cases[smallest].label.endswith(ONCE_MORE):
            return replace(judgement, cause=CHANGES_BY_ITSELF)
        got, expected, cases = self.got[:ended], self.expected[:ended], self.cases[:ended]
        trial = replace(self, cases=cases, got=got, expected=expected)
        if (known := diagnose(trial, wrong_outcomes(trial))) is not None:
            return judgement.because(known)
        if (shown := trial.symptom()) is not None:
            return judgement.because(shown, observed=True)
        again = self.attempt.again(self.driver, self.cases[smallest])
        if not coincide(self.exercise, again, self.got[smallest]):
            return replace(judgement, cause=CHANGES_BY_ITSELF, observed=True, stopped=False)
        if (shown := trial.unused()) is not None:
            return judgement.because(shown, observed=True)
        if (known := diagnose(trial, wrong_in_two_ways(trial))) is not None:
            return judgement.because(known)
        if (shown := extreme(self.exercise, cases, got, expected)) is not None:
            return judgement.because(shown, observed=True)
        return judgement

    def symptom(self) -> Misconception | None:
        """What every case that fails shows alike."""
        both = zip(self.got, self.expected, self.differences(), strict=True)
        shown = [symptom(self.exercise, got, expected) for got, expected, found in both if found]
        return shown[0] if len({each and each.name for each in shown}) == 1 else None

    def unused(self) -> Misconception | None:
        """The arguments that the reference uses and the attempt doesn't, as a misconception."""
        raised = any(outcome.failure for outcome in self.got)  # then the error is nearer the cause
        if raised or self.exercise.record is not None:
            return None
        needed = exercise_function(self.exercise.path, self.exercise.reference)
        also = set(unused_arguments(needed)) if needed else set[str]()
        names = [f"`{name}`" for name in self.attempt.unused() if name not in also]
        if not names:
            return None
        are = "are" if len(names) > 1 else "is"
        sentence = f"{' and '.join(names)} {are} never used in your function."
        return Misconception(self.exercise.name, "unused", sentence, ())


def right_outcomes(exercise: Exercise, driver: Driver, cases: Sequence[Case]) -> list[Outcome]:
    """The outcomes of the reference; in a bundle, those that were recorded."""
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
    """Run an attempt on the cases in turn, and stop it if it does not end.

    Its work is limited by the work that was expected. One limit of time holds for all cases, so
    that an endless loop is waited for once.
    """
    limit = patience(SECONDS if expected else SECONDS_FOR_REFERENCE)
    outcomes: list[Outcome] = []
    for i, case in enumerate(cases):
        if outcomes and was_stopped(outcomes[-1]):  # it would be stopped again, and again
            outcomes.append(outcomes[-1])
        else:
            work = expected[i].counts if expected else None
            outcomes.append(run(exercise, driver, attempt, case, limit, work))
    return outcomes


def was_stopped(outcome: Outcome) -> bool:
    """Whether an attempt had to be stopped."""
    return outcome.failure is not None and outcome.failure.stopped


def run(
    exercise: Exercise,
    driver: Driver,
    attempt: Any,
    case: Case,
    limit: Patience,
    work: Mapping[str, Mapping[str, int]] | None = None,
) -> Outcome:
    """Run one attempt on one case. Whatever it changes, the case stays as it was.

    SystemExit and its like count as errors of the attempt; only KeyboardInterrupt is the person's
    own wish to stop.
    """
    data = as_in_an_engine(dict(case.data), exercise.whole)
    services = exercise.services(data)
    for name, counts in limited(work or {}).items():
        services[name].limit(counts)
    functions = lent(exercise)  # before `try`: an error in a lab's module isn't the attempt's
    try:
        with torch_as_it_is(), lending(attempt, functions), interrupted(limit.look):
            own = notebook_of(attempt)
            seen = driver(attempt, **data, **{n: borrowed(s, own) for n, s in services.items()})
            records = plain_records(seen)
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
    """The work of each service at which an attempt is stopped, given the expected work."""
    return {
        service: {what: TIMES_THE_WORK * most + MORE_WORK for what, most in counts.items()}
        for service, counts in work.items()
    }


@cache
def lent(exercise: Exercise) -> dict[str, Any]:
    """Right solutions of the functions that are exercises before this one in the course.

    Later functions may be built on this one, and would give its answer away. In a bundle, which has
    no reference of its lab, the learner's own functions are used.
    """
    names = [name for lesson in lessons().values() for name in lesson.cards]
    before = (name.split(".") for name in names[: names.index(exercise.name)])
    functions = {
        id(getattr(module_of(lab), path[0]))
        for lab, *path in before
        if not path[1:] and has_reference(lab)
    }
    return {name: value for name, value in vars(exercise.module).items() if id(value) in functions}


def changed_part(now: Any, before: Any, path: str = "") -> str | None:
    """The first place at which plain data is no longer what it was; None if it is unchanged."""
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


def patience(seconds: float | None = None) -> Patience:
    """With an attempt in this process, whose threads all count. seconds: SECONDS if not given."""
    seconds = SECONDS if seconds is None else seconds
    return Patience(seconds, seconds, time.process_time, partial(can_run, [os.getpid()], "RD"))


# ---------------------------------------------------------------------------------- comparing


def difference(exercise: Exercise, got: Outcome, expected: Outcome) -> Difference | None:
    """None where the two outcomes agree, else the first difference. Raises Uncompared."""
    if got.failure is not None:
        return Difference(got.failure.told + what_to_run(exercise, got.failure))
    try:
        found = exercise.compare(got, expected)
    except Exception as error:
        told = f"{type(error).__name__}: {words_of(error)}"
        raise Uncompared(f"The result can't be compared ({told}).") from error
    if found is not None or got.changed == expected.changed:
        return found
    changed = exercise.called(got.changed)
    return Difference(
        f"The result is right, but {changed} is no longer what it was before the call."
    )


def what_to_run(exercise: Exercise, failure: Failure) -> str:
    """Advice, if the missing name is defined or imported by a given cell; else nothing."""
    if failure.missing not in vars(exercise.module):
        return ""
    return f". `{failure.missing}` comes from a cell above: run the cells above."


# ---------------------------------------------------------------------------------- diagnosing


Wrong = Iterator[tuple[Misconception, Callable[[int], Outcome]]]


def diagnose(trial: Trial, wrong: Wrong) -> Misconception | None:
    """The misconception that does the same as the attempt on every case."""
    exercise, got = trial.exercise, trial.got
    smallest = next(i for i, found in enumerate(trial.differences()) if found is not None)
    # Most do something else on the smallest case, and then the others need not run.
    order = [smallest, *(i for i in range(len(got)) if i != smallest)]
    began = time.thread_time()
    for misconception, outcome in wrong:
        if time.thread_time() - began > SECONDS:
            break  # the difference is told without a cause
        if all(coincide(exercise, got[i], outcome(i)) for i in order):
            return misconception
    return None


def wrong_outcomes(trial: Trial) -> Wrong:
    """The misconceptions, form by form, with what each does on a case, by its number, or did."""
    for misconception, outcomes in trial.exercise.record.wrong if trial.exercise.record else ():
        yield misconception, list(outcomes).__getitem__
    for misconception in trial.exercise.misconceptions:
        for code in misconception.attempts():
            yield misconception, outcome_of(trial, code)


def wrong_in_two_ways(trial: Trial) -> Wrong:
    """Two misconceptions at once, pair by pair; a bundle knows none."""
    if trial.exercise.record is None:
        for both, code in pairs(trial.exercise.name):
            yield both, outcome_of(trial, code)


def outcome_of(trial: Trial, code: Any) -> Callable[[int], Outcome]:
    """What a wrong solution does on a case."""

    def outcome(i: int) -> Outcome:
        case, work = trial.cases[i], trial.expected[i].counts
        return run(trial.exercise, trial.driver, code, case, patience(), work)

    return outcome


def coincide(exercise: Exercise, got: Outcome, theirs: Outcome) -> bool:
    """Whether two wrong outcomes are the same. Errors need the same message: many mistakes raise
    the same type of error, but few with the same words."""
    if got.failure is None and theirs.failure is None:
        return difference(exercise, got, theirs) is None
    if got.failure is None or theirs.failure is None:
        return False
    return got.failure.told == theirs.failure.told
