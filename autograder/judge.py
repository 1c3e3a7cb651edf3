"""Judging an attempt: run it on every case beside the reference, and say what is wrong with it."""

import copy
import ctypes
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from autograder.catalogue import Misconception
from autograder.compare import Difference
from autograder.drivers.seen import Seen, lending, plain
from autograder.exercise import Case, Driver, Exercise, Outcome, TooMuchWork
from autograder.exercises import exercises
from autograder.source import exercise_function, own_line, own_statements

NOT_ATTEMPTED, WRONG, PASSED = "not attempted", "wrong", "passed"

TIMES_THE_WORK, MORE_WORK = 4, 64  # than the reference's, before an attempt is stopped
SECONDS = 10.0  # for all cases together, of which the reference needs hundredths

CHANGES_BY_ITSELF = (
    "The same input gave another result the second time: something random is in it, or something "
    "survives from one call to the next (a global variable, a mutable default argument)."
)
NOTHING_YET = "There is no code here yet."
STILL_RAISES = (
    "There is code here, and it still raises NotImplementedError: delete that line and run the "
    "cell again. If you have, is a `return` missing above it?"
)


@dataclass(frozen=True)
class Judgement:
    """status: PASSED, WRONG or NOT_ATTEMPTED. message: what was found, in one or two sentences.

    Where it is wrong: case, the smallest one that fails; difference, the two values that differ;
    cause, the sentence of the misconception that led there; sure, whether it explains every case;
    line, the learner's own line that an error came from; stopped, whether it did not end.
    """

    status: str
    message: str
    case: Case | None = None
    difference: Difference | None = None
    cause: str | None = None
    sure: bool = True
    line: str | None = None
    stopped: bool = False


def judge(exercise: Exercise, attempt: Any, seed: int = 0) -> Judgement:
    """Judge an attempt on the cases that `seed` draws; tell the smallest that fails."""
    cases = drawn(exercise, seed)
    judgement = judge_with(exercise, exercise.driver, attempt, cases)
    if judgement.status == WRONG and exercise.as_built is not None and not judgement.stopped:
        as_built = judge_with(exercise, exercise.as_built, attempt, cases, diagnosed=False)
        if as_built.status == PASSED:
            return as_built
    return judgement


@cache
def drawn(exercise: Exercise, seed: int) -> list[Case]:
    """The cases of an exercise. Nothing that runs changes them, so one draw serves all."""
    return exercise.cases(torch.Generator().manual_seed(seed))


def judge_with(
    exercise: Exercise, driver: Driver, attempt: Any, cases: list[Case], diagnosed: bool = True
) -> Judgement:
    expected = run_all(exercise, driver, exercise.reference, cases)
    if fault := next((outcome.error for outcome in expected if outcome.error), None):
        raise RuntimeError(f"The reference of {exercise.name} does not run.") from fault
    got = run_all(exercise, driver, attempt, cases, expected)
    if (judgement := not_implemented(exercise, attempt, cases, got)) is not None:
        return judgement
    for case, mine, theirs in zip(cases, got, expected, strict=True):
        found = difference(exercise, mine, theirs)
        if found is None:
            continue
        line = own_line(mine.error, attempt, exercise.path) if mine.error else None
        stopped = any(map(was_stopped, got))
        if stopped or not diagnosed:
            return Judgement(WRONG, found.sentence, case, found, line=line, stopped=stopped)
        known, sure = diagnose(exercise, driver, cases, got, expected)
        cause = known.sentence if known else None
        if not (known and sure) and changes_by_itself(exercise, driver, attempt, case, mine):
            cause, sure = CHANGES_BY_ITSELF, True
        return Judgement(WRONG, found.sentence, case, found, cause, sure, line)
    return Judgement(PASSED, "Right on every case.")


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
    over = time.monotonic() + SECONDS
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
    return isinstance(outcome.error, (TookTooLong, TooMuchWork))


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
    for name, counts in (work or {}).items():
        services[name].limit({n: TIMES_THE_WORK * most + MORE_WORK for n, most in counts.items()})
    functions = lent(exercise)  # here: an error in a lab's module is none of the attempt's
    try:
        with torch_as_it_is(), lending(attempt, functions), deadline(over):
            seen = driver(attempt, **data, **services)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return Outcome(error=error, changed=None)
    touched = [f"the weights of `{n}`" for n, s in services.items() if not s.untouched()]
    return Outcome(
        tuple(Seen(what, plain(value), where) for what, value, where in seen),
        {name: service.counts() for name, service in services.items()},
        changed=next(iter(touched), changed_part(data, dict(case.data))),
    )


@cache
def lent(exercise: Exercise) -> dict[str, Any]:
    """Right solutions of the functions that are exercises of this lab or an earlier one."""
    functions = {
        id(e.reference) for e in exercises().values() if e is not exercise and "." not in e.path
    }
    return {name: value for name, value in vars(exercise.module).items() if id(value) in functions}


def changed_part(now: Any, before: Any, path: str = "") -> str | None:
    """The first place at which plain data is no longer what it was; None where there is none."""
    if isinstance(before, Tensor):
        same = isinstance(now, Tensor) and now.dtype == before.dtype and now.shape == before.shape
        return None if same and torch.equal(now, before) else f"`{path}`"
    if type(now) is not type(before):
        return f"`{path}`"
    if isinstance(before, Mapping):
        dot = "." if path else ""
        parts = [(f"{path}{dot}{key}", now.get(key), value) for key, value in before.items()]
    elif isinstance(before, (list, tuple)):
        parts = [(f"{path}[{i}]", n, b) for i, (n, b) in enumerate(zip(now, before, strict=False))]
    else:
        return None if now == before else f"`{path}`"
    if len(now) != len(before):
        return f"`{path}`"
    return next((found for p, n, b in parts if (found := changed_part(n, b, p))), None)


@contextmanager
def torch_as_it_is() -> Iterator[None]:
    """Put back what an attempt may change for everybody: defaults, and the random state."""
    dtype, device, state = (
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.get_rng_state(),
    )
    grad = torch.is_grad_enabled()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_default_device(None if device.type == "cpu" else device)
        torch.set_rng_state(state)
        torch.set_grad_enabled(grad)


class TookTooLong(BaseException):
    """Stops an attempt that does not end."""


@contextmanager
def deadline(over: float) -> Iterator[None]:
    """Raise TookTooLong in the block when the clock has passed `over`, and until it gives up.

    A thread raises it from outside, which works on every system where a signal would not; a block
    inside a long call to C is stopped when that call returns.
    """
    thread = ctypes.c_ulong(threading.get_ident())
    done = threading.Event()

    def watch() -> None:
        wait = max(0.0, over - time.monotonic())
        while not done.wait(wait):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(TookTooLong))
            wait = 0.5

    watcher = threading.Thread(target=watch, daemon=True)
    try:
        watcher.start()  # within: where the time is already over, it raises at once
        yield
    finally:
        try:
            done.set()
            watcher.join()
        except TookTooLong:  # at the last moment; the next one would come half a second later
            done.set()
            watcher.join()
        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, None)


# ---------------------------------------------------------------------------------- comparing


def difference(exercise: Exercise, got: Outcome, expected: Outcome) -> Difference | None:
    """None where the two outcomes agree, else the first difference."""
    if got.error is not None:
        return Difference(told(got.error) + what_to_run(exercise, got.error))
    if (found := exercise.compare(got, expected)) is not None:
        return found
    if got.changed == expected.changed:
        return None
    return Difference(
        f"The result is right, but {got.changed or 'something'} is no longer what it was before "
        "the call: make new tensors and lists, and leave those you are handed as they were."
    )


def told(error: BaseException) -> str:
    """An exception in words."""
    if isinstance(error, TookTooLong):
        return f"It was stopped after {SECONDS:.0f} seconds. Does every loop come to its end?"
    if isinstance(error, TooMuchWork):
        return str(error)
    return f"It raised {type(error).__name__}" + (
        f": {words}" if (words := words_of(error)) else "."
    )


def what_to_run(exercise: Exercise, error: BaseException) -> str:
    """What helps where a name is missing that a given cell defines or imports; else nothing."""
    if not isinstance(error, NameError) or isinstance(error, UnboundLocalError):
        return ""
    if error.name not in vars(exercise.module):
        return ""
    return f". `{error.name}` comes from a cell above: run the cells above."


def words_of(error: BaseException) -> str:
    """What an exception says; even its `__str__` may be broken."""
    try:
        return str(error).strip()
    except Exception:
        return ""


def not_implemented(
    exercise: Exercise, attempt: Any, cases: Sequence[Case], got: Sequence[Outcome]
) -> Judgement | None:
    """The judgement where the exercise's own code raised NotImplementedError."""
    function = exercise_function(exercise.path, attempt)
    for case, outcome in zip(cases, got, strict=True):
        if not isinstance(outcome.error, NotImplementedError) or function is None:
            continue
        last = list(traceback.walk_tb(outcome.error.__traceback__))[-1][0]
        if last.f_code is not function.__code__:
            continue  # torch's own, or that of another function, which the message names
        own = own_statements(exercise.lab, exercise.path, function)
        if own or any(o.error is None for o in got):
            line = own_line(outcome.error, attempt, exercise.path)
            return Judgement(WRONG, STILL_RAISES, case, line=line)
        return Judgement(NOT_ATTEMPTED, NOTHING_YET)
    return None


# ---------------------------------------------------------------------------------- diagnosing


def diagnose(
    exercise: Exercise,
    driver: Driver,
    cases: Sequence[Case],
    got: Sequence[Outcome],
    expected: Sequence[Outcome],
) -> tuple[Misconception | None, bool]:
    """The misconception that led to an attempt, and whether that is sure.

    It is where one coincides with the attempt on every case. Else another mistake may have come on
    top: then one is likely that coincides on the smallest case that fails, and on most of the cases
    in which it goes wrong itself, two at least.
    """
    pairs = list(zip(got, expected, strict=True))
    smallest = next(i for i, pair in enumerate(pairs) if difference(exercise, *pair))
    likely, most = None, 1
    for misconception in exercise.misconceptions:
        for wrong in misconception.attempts():
            theirs = run_all(exercise, driver, wrong, cases, expected)
            same = [coincide(exercise, g, t) for g, t in zip(got, theirs, strict=True)]
            if all(same):
                return misconception, True
            fails = [difference(exercise, t, e) for t, e in zip(theirs, expected, strict=True)]
            explained = [s for s, failed in zip(same, fails, strict=True) if failed]
            if same[smallest] and most < sum(explained) and len(explained) <= 2 * sum(explained):
                likely, most = misconception, sum(explained)
    return likely, False


def coincide(exercise: Exercise, got: Outcome, theirs: Outcome) -> bool:
    """Whether two wrong outcomes are the same one. Two mistakes may raise the same type of error,
    and few the same words."""
    if got.error is None and theirs.error is None:
        return difference(exercise, got, theirs) is None
    if got.error is None or theirs.error is None:
        return False
    return told(got.error) == told(theirs.error)


def changes_by_itself(
    exercise: Exercise, driver: Driver, attempt: Any, case: Case, got: Outcome
) -> bool:
    """Whether the attempt now does something else with the same case."""
    again = run(exercise, driver, attempt, case, time.monotonic() + SECONDS)
    return not coincide(exercise, again, got)
