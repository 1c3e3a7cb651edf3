"""Judge one submission: cases from the secret, the code in a sandbox, the comparison out here.

The process that runs a student's code never judges, never holds a reference, a seed or a case
before its turn, and never touches the gradebook. What comes back from it is data, and is compared
with what the reference does.
"""

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

import torch

from autograder.attempt.around import torch_as_it_is
from autograder.attempt.failure import (
    Failure,
    Starved,
    TookTooLong,
    TooMuchWork,
    Waited,
    told,
    words_of,
)
from autograder.attempt.notebook import global_names
from autograder.attempt.peer import Gone
from autograder.attempt.plain import Strange, plain
from autograder.attempt.records import Seen
from autograder.attempt.shown import ShownModel
from autograder.attempt.wire import WireError
from autograder.exercises import exercises
from autograder.grading.judge.bounds import (
    TooMuchToJudge,
    bounded,
    is_of_memory,
    machine_has_room,
)
from autograder.grading.judge.foreign import shown
from autograder.grading.judge.jail import Jail, JailError, Sandbox
from autograder.grading.judge.near import Lent, Near
from autograder.grading.judge.rebuild import Rebuilt, rebuild
from autograder.grading.judge.results import Mark, Result
from autograder.grading.judge.secret import Key
from autograder.grading.judge.submission import Submission
from autograder.grading.judge.turns import turn
from autograder.grading.judge.version import course_version
from autograder.judging.draws import model_seed
from autograder.judging.exercise import Case, Driver, Exercise, Outcome, Service
from autograder.judging.given import given_statements
from autograder.judging.interrupt import interrupted
from autograder.judging.judge import (
    NOT_ATTEMPTED,
    NOTHING_YET,
    PASSED,
    WRONG,
    Attempt,
    Judgement,
    ReferenceFails,
    changed_part,
    judge,
    lent,
    limited,
)
from autograder.judging.patience import Patience, can_run
from autograder.notebook.verdict import rows
from autograder.text.lesson import lessons
from autograder.text.reference import lab_module
from autograder.text.release import heading_of, release_of

MOST_TOLD = 600  # characters of a paragraph
MOST_NUMBERS = 6  # of four digits and more that the words of an attempt may hold
NUMBER = re.compile(r"\d[\d.]{3,}")
MOST_DRAWS = 10  # of cases for one exercise with the same models; one in ten fails at most
MOST_MODELS = 10
IDLE = 10.0  # seconds in all that an attempt may wait for something else than a processor
JUDGING = 60.0  # seconds of this process for one exercise; honest ones need a few


def grade_one(submission: Submission, key: Key, jail: Jail) -> Result:
    """What a submission earns. It depends on the submission, its key and the course alone.

    Never raises for what a student handed in. Raises JailError where no sandbox can be had, and
    whatever else stops it for a reason outside the student's code: no result comes of that.
    """
    began = time.process_time()
    lesson = lessons()[submission.lab]
    rebuilt = rebuild(submission, release_of(submission.lab))
    tried = Trying(submission, rebuilt, key, jail)
    with tried:
        marks = tuple(
            tried.mark(exercise) for exercise in exercises().values() if exercise.lab == lesson.lab
        )
    return Result(
        submission.student,
        submission.lab,
        submission.sha256,
        marks,
        (*rebuilt.remarks, *tried.remarks),
        jail.limits,
        jail.sandboxed,
        course_version(),
        key.secret,
        time.process_time() - began + sum(mark.seconds for mark in marks),
    )


@contextmanager
def models_of(key: Key, number: int = 0) -> Iterator[None]:
    """In the block, small models and slow memory hold numbers that follow from the key alone.

    number: of the choice of them, since not from every model texts of every kind can be had.
    """
    before = model_seed.set(key.part("models", str(number)))
    try:
        yield
    finally:
        model_seed.reset(before)


@dataclass
class Trying:
    """All exercises of one submission, in as few sandboxes as may be.

    spent: seconds so far. remarks: what an instructor should look at.
    """

    submission: Submission
    rebuilt: Rebuilt
    key: Key
    jail: Jail
    sandbox: Sandbox | None = None
    spent: float = 0.0
    remarks: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        """The part of its limits that an exercise still has."""
        return 1 if self.spent < self.jail.budget else 1 / 5

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None:
            self.leave()
        elif self.sandbox is not None:
            self.jail.give_back(self.submission.lab, self.sandbox)

    def leave(self) -> None:
        if self.sandbox is not None:
            self.sandbox.close()
        self.sandbox = None

    def enter(self) -> Sandbox:
        if self.sandbox is not None and not self.sandbox.runs():
            self.leave()
        if self.sandbox is None:
            self.sandbox = self.jail.take(self.submission.lab)
        return self.sandbox

    def mark(self, exercise: Exercise) -> Mark:
        attempt, judgement = There(exercise, self), Judgement(NOT_ATTEMPTED, NOTHING_YET)
        if attempt.has_own_code():
            judgement = self.judgement(exercise, attempt)
        most = float(exercise.card.points)
        passed = judgement.status == PASSED
        return Mark(
            exercise.name,
            most if passed else 0.0,
            most,
            judgement.status,
            tuple(map(readable, judgement.paragraphs)),
            () if passed else tuple(readable_rows(judgement)),
            None if judgement.observed else judgement.misconception,
            "" if passed else heading_of(exercise.name),
            attempt.seconds,
        )

    def judgement(self, exercise: Exercise, attempt: "There") -> Judgement:
        for number in range(MOST_MODELS):
            with models_of(self.key, number):
                if cases := self.cases(exercise, number):
                    judgement = self.judged(exercise, attempt, cases)
                    if judgement.uncompared:
                        self.remarks.append(f"{exercise.name}: {readable(judgement.message)}")
                    return judgement
        raise RuntimeError(f"No cases of {exercise.name} could be drawn from this secret.")

    def judged(self, exercise: Exercise, attempt: "There", cases: Sequence[Case]) -> Judgement:
        """Judge within limits. An error about the attempt's results costs it the exercise.

        Raises what has another cause: JailError, ReferenceFails, OSError, too little memory.
        """
        began = time.thread_time()
        try:
            # Judging is stopped at any place, so torch's settings are put back around it.
            with torch_as_it_is(), bounded(JUDGING * self.share, TooMuchToJudge):
                return judge(exercise, attempt, cases)
        except (JailError, ReferenceFails, OSError):
            raise
        except (Exception, TooMuchToJudge) as error:
            self.leave()
            if is_of_memory(error) and not machine_has_room():
                raise
            return Judgement(WRONG, not_judged(error), uncompared=True)
        finally:
            self.spent += time.thread_time() - began

    def cases(self, exercise: Exercise, number: int = 0) -> list[Case]:
        """What this submission is tried on: the same each time, and not known before.

        None at all where the small models make no text of some kind that is needed, or hardly ever.
        """
        for trial in range(MOST_DRAWS):
            drawn = self.key.part("cases", exercise.name, str(number), str(trial))
            generator = torch.Generator().manual_seed(int.from_bytes(drawn[:8], "big"))
            try:
                return exercise.all_cases(generator)
            except RuntimeError:
                continue
        return []


def not_judged(error: BaseException) -> str:
    if isinstance(error, TooMuchToJudge):
        return "It was stopped: its results take too long to be judged."
    if is_of_memory(error):
        return "It was stopped: its results take more memory than judging them may use."
    return f"The results can't be judged ({type(error).__name__}: {words_of(error)})."


def readable_rows(judgement: Judgement) -> Iterator[tuple[str, str]]:
    for label, value in rows(judgement):
        yield label, readable(value, MOST_NUMBERS if label in ("got", "your line") else len(value))


def readable(text: str, most_numbers: int = MOST_NUMBERS) -> str:
    """Words that may be a stranger's, on one line, with every character to be seen.

    They are cut at the first number too many, so that they show no model's weights.
    """
    line = " ".join(text.split())
    numbers = list(NUMBER.finditer(line))
    if len(numbers) > most_numbers:
        line = f"{line[: numbers[most_numbers].start()]}…"
    return shown(line, MOST_TOLD)


# ------------------------------------------------------------------- an attempt in the sandbox


@dataclass
class There(Attempt):
    """An attempt in the sandbox.

    seconds: the processor time that it took. gone: the given statements that it lacks, as the
    sandbox says.
    """

    exercise: Exercise
    trying: Trying
    seconds: float = field(default=0.0, init=False)
    gone: list[str] = field(default_factory=list, init=False)

    def outcomes(
        self, driver: Driver, cases: Sequence[Case], expected: Sequence[Outcome]
    ) -> list[Outcome]:
        """Raises JailError where the attempt never came to run, for which it can't be blamed.

        Where the cause of its end may be another, it is tried once more, alone.
        """
        with turn(alone=False):
            run = self.run(driver, cases, expected)
        if run.is_doubtful:
            if not run.is_whole:
                self.trying.leave()
            with turn(alone=True):
                run = self.run(driver, cases, expected)
        if run.stopped_by is Starved:
            self.trying.leave()
            raise JailError(TOO_BUSY.format(self.exercise.name))
        if not run.begun:
            self.trying.leave()
            raise JailError("Two sandboxes ended before the attempt in them had begun.")
        outcomes = run.outcomes
        stopped = outcomes[-1] if outcomes else Outcome(failure=Failure("It never began."))
        return outcomes + [stopped] * (len(cases) - len(outcomes))

    def again(self, driver: Driver, case: Case) -> Outcome:
        return self.outcomes(driver, [case], [Outcome()])[0]

    def has_own_code(self) -> bool:
        return self.trying.rebuilt.attempted(self.exercise.name)

    def lost(self) -> list[str]:
        return self.gone

    def unused(self) -> list[str]:
        """Not looked at: it changes no mark."""
        return []

    def line(self, failure: Failure) -> str | None:
        return failure.line

    def run(self, driver: Driver, cases: Sequence[Case], expected: Sequence[Outcome]) -> "Run":
        """Try the cases, up to the one at which the attempt is stopped."""
        trying, jail, run = self.trying, self.trying.jail, Run()
        share = trying.share
        seconds = jail.seconds * share
        sandbox = trying.enter()
        try:
            with sandbox.begin() as connection, bounded(seconds):
                near = Near(connection, self.exercise.module)
                run.patience = patience(near, sandbox, seconds, IDLE * share)
                with interrupted(run.patience.look):
                    self.converse(near, run, driver, cases, expected, seconds)
        except (TookTooLong, TooMuchWork) as error:
            run.stop(told(error, seconds), type(error))
        except Gone:
            run.stop(GONE)
        except MemoryError:
            run.stop(TOO_LARGE)
        except Exception as error:
            run.stop(f"What its process sent is no answer: {error}"[:500])
        try:
            used, clean = sandbox.end()
        except JailError:
            used, clean, run.sandbox_lives = seconds, False, False
        if not clean:
            trying.leave()
        self.seconds += used
        trying.spent += used + run.waited
        return run

    def converse(
        self,
        near: Near,
        run: "Run",
        driver: Driver,
        cases: Sequence[Case],
        expected: Sequence[Outcome],
        seconds: float,
    ) -> None:
        """Hand over the order and then the cases; what comes of them goes into `run`."""
        exercise = self.exercise
        near.send(
            "order",
            {
                "lab": exercise.lab,
                "path": exercise.path,
                "attempt": exercise.attempt_name,
                "is_class": isinstance(exercise.reference, type),
                "driver": driver.__name__,
                "whole": exercise.whole,
                "cells": self.trying.rebuilt.cells_before(exercise.name),
                "given": given_statements(exercise.lab, exercise.path),
                "lent": {name: near.share(Lent(f)) for name, f in needed(exercise).items()},
                "limits": self.trying.jail.resources,
                "seconds": seconds,
            },
        )
        run.begun = near.receive()[0] == "begun"
        kind, content = near.receive()
        if kind == "failed":
            run.outcomes.append(Outcome(failure=failed(content)))
            return
        given = given_statements(exercise.lab, exercise.path)
        self.gone = [text for text in given if isinstance(content, list) and text in content]
        for case, right in zip(cases, expected, strict=True):
            outcome = outcome_of(near, exercise, case, right)
            run.outcomes.append(outcome)
            if outcome.failure is not None and outcome.failure.stopped:
                return


@dataclass
class Run:
    """What came of trying some cases.

    begun: whether it came as far as the student's code. sandbox_lives: whether the sandbox was
    there at the end. stopped_by: the class of what stopped it.
    """

    outcomes: list[Outcome] = field(default_factory=list)
    begun: bool = False
    sandbox_lives: bool = True
    patience: Patience | None = None
    stopped_by: type[BaseException] | None = None

    @property
    def is_whole(self) -> bool:
        return self.begun and self.sandbox_lives

    @property
    def is_doubtful(self) -> bool:
        """Whether the cause of its end may lie outside the student's code, as with a clock."""
        return not self.is_whole or self.stopped_by in (Waited, Starved)

    @property
    def waited(self) -> float:
        return self.patience.waited if self.patience else 0.0

    def stop(self, why: str, by: type[BaseException] | None = None) -> None:
        self.outcomes.append(Outcome(failure=Failure(why, stopped=True)))
        self.stopped_by = by


def patience(near: Near, sandbox: Sandbox, seconds: float, idle: float) -> Patience:
    """Limit the work and the waiting of all processes in a sandbox.

    They are right to wait for an answer from this process. So they wait in vain only while it waits
    for them, and has no message from them that it would read if it had a processor. Threads are
    looked at one after the other, and between two of them this process may be stopped, so a message
    that has moved meanwhile also tells that they work.
    """

    def either_can_run() -> bool | None:
        moves = near.moves
        found = can_run([os.getpid()]) or sandbox.can_run()
        return True if near.moves != moves or near.is_spoken_to() else found

    work = 1.2 * seconds + 1  # the process itself keeps to `seconds`
    return Patience(work, idle, sandbox.used, either_can_run, lambda: not near.awaits)


@cache
def needed(exercise: Exercise) -> dict[str, Any]:
    """What is lent to an attempt: right solutions that the reference uses too, and no others.

    They run out here, on whatever a stranger hands them.
    """
    module, names, left = lab_module(exercise.lab), set[str](), {exercise.attempt_name}
    while left:
        names |= left
        used = (global_names(module.text(module.objects[n])) for n in left if n in module.objects)
        left = {name for each in used for name in each} - names
    return {name: function for name, function in lent(exercise).items() if name in names}


TOO_BUSY = (
    "This machine is too busy: {} got hardly any processor time, neither the first time nor alone. "
    "Grade again when other programs leave it some."
)
TOO_LARGE = "It was stopped: its result takes more memory than an attempt may use."
GONE = (
    "Its process ended before it answered: it exited Python, crashed, or used more memory than it "
    "may."
)


def outcome_of(near: Near, exercise: Exercise, case: Case, expected: Outcome) -> Outcome:
    """The outcome of one case over there. What is lent for it stays here."""
    data = dict(case.data)
    services = exercise.services(data)
    for name, most in limited(expected.counts).items():
        services[name].limit(most)
    lending = {name: offered(near, service) for name, service in services.items()}
    near.send("case", {"data": data, "services": lending})
    kind, content = near.receive()
    if kind == "failed":
        return Outcome(failure=failed(content))
    records, after, shown = answered(kind, content)
    if after.keys() != data.keys():
        raise WireError("an answer has all parts of the case")
    counts = {name: service.counts() for name, service in services.items()}
    touched = [n for n, s in services.items() if not same_embeddings(s, shown.get(n))]
    changed = f"a weight of `{touched[0]}`" if touched else changed_part(after, data)
    return Outcome(records, counts, changed=changed)


def offered(near: Near, service: Service) -> dict[str, Any]:
    """How the other side comes to what is lent to it."""
    shown = None
    if isinstance(service, ShownModel):
        shown = {"config": asdict(service.config), "embeddings": service.embeddings()}
    return {"number": near.share(service), "model": shown}


def answered(kind: str, content: Any) -> tuple[tuple[Seen, ...], dict[str, Any], Mapping[str, Any]]:
    """What a driver saw, the case's data after it, and the embeddings that it was shown."""
    if kind != "done" or not isinstance(content, dict):
        raise WireError(f"an answer is expected, not {kind!r}")
    seen, after, shown = (content.get(name) for name in ("seen", "data", "shown"))
    if not isinstance(seen, list) or not isinstance(shown, dict) or not isinstance(after, dict):
        raise WireError("an answer says what was seen")
    seen = plain(seen)  # once more: who sent it may have left that out
    if isinstance(seen, Strange):
        raise WireError(f"what was seen is {seen.kind}")
    records = []
    for record in seen:
        if not isinstance(record, list) or len(record) != 3:
            raise WireError("what was seen comes in records of three")
        what, value, where = record
        records.append(Seen(str(what)[:300], value, str(where)[:300]))
    return tuple(records), after, shown


def same_embeddings(service: Service, shown: Any) -> bool:
    """Whether what came back of a model's embeddings is what was shown of them."""
    if not isinstance(service, ShownModel):
        return True
    return changed_part(shown, [e.detach() for e in service.embeddings()]) is None


def failed(content: Any) -> Failure:
    """A failure in the words of the sandbox; a student may have made it up, which earns nothing."""
    if not isinstance(content, dict):
        raise WireError("a failure comes in words")

    def words(name: str) -> str | None:
        found = content.get(name)
        return found[:2000] if isinstance(found, str) else None

    return Failure(
        words("told") or "It failed.",
        stopped=content.get("stopped") is True,
        unwritten=content.get("unwritten") is True,
        missing=words("missing"),
        line=words("line"),
    )
