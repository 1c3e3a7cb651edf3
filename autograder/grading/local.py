"""Grading in several processes of this machine. One that dies costs nothing but its own time."""

import multiprocessing
import signal
import tempfile
import traceback
from collections.abc import Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Self

import torch

from autograder.grading.jail import Jail, JailError
from autograder.grading.oracle import grade_one
from autograder.grading.results import NotGraded, Result
from autograder.grading.submission import Submission

TRIES = 2  # for a submission whose grader dies under it
FAREWELL = 10  # seconds that a grader has to put its things away
DIED = NotGraded(
    f"The process that graded it has ended {TRIES} times. Is there enough memory? Try fewer --jobs."
)


class Grader:
    """A process that grades one submission after the other."""

    def __init__(self, secret: bytes, settings: Jail, folder: str) -> None:
        context = multiprocessing.get_context("spawn")  # nothing of this process goes along
        self.connection, theirs = context.Pipe()
        arguments = theirs, secret, settings, folder
        self.process = context.Process(target=serve, args=arguments, daemon=True)
        self.process.start()
        theirs.close()

    def begin(self, submission: Submission) -> Self:
        with suppress(OSError):  # it has died, as `result` will find
            self.connection.send(submission)
        return self

    def result(self) -> Result | NotGraded | None:
        """None where the process has died. Raises JailError; after both, it is closed."""
        try:
            found = self.connection.recv()
        except (EOFError, OSError):
            found = None
        if found is None or isinstance(found, JailError):
            self.close()
        if isinstance(found, JailError):
            raise found
        return found

    def close(self) -> None:
        self.connection.close()
        self.process.terminate()
        self.process.join(FAREWELL)
        self.process.kill()
        self.process.join()


def serve(connection: Connection, secret: bytes, settings: Jail, folder: str) -> None:
    """Ctrl-C is for whoever started this; it then ends with it.

    folder: for all temporary files, so that none is left of a grader that was killed.
    """
    tempfile.tempdir = folder
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    torch.set_num_threads(1)
    with suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        try:
            with settings as jail:
                while True:
                    connection.send(graded_or_not(connection.recv(), secret, jail))
        except JailError as error:
            connection.send(error)


def graded_or_not(submission: Submission, secret: bytes, jail: Jail) -> Result | NotGraded:
    """The result, in a jail that has been entered; where grading fails, why: the others go on."""
    try:
        return grade_one(submission, secret, jail)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}, line {last.lineno}"
        return NotGraded(f"Grading it failed: {type(error).__name__} in {where}: {error}")


def graded_here(
    submissions: Iterable[Submission], secret: bytes, settings: Jail, jobs: int
) -> Iterator[tuple[Submission, Result | NotGraded]]:
    """Submissions with their results, as they come. Raises JailError."""
    left = iter(submissions)
    graders: dict[Connection, tuple[Grader, Submission, int]] = {}

    def begin(submission: Submission | None, grader: Grader | None, tried: int = 1) -> None:
        if submission is not None:
            grader = (grader or Grader(secret, settings, folder)).begin(submission)
            graders[grader.connection] = grader, submission, tried
        elif grader is not None:
            grader.close()

    with tempfile.TemporaryDirectory(prefix="inference-grader-") as folder:
        Path(folder).chmod(0o755)  # what runs in a sandbox is another user
        try:
            for _ in range(jobs):
                begin(next(left, None), None)
            while graders:
                for ready in wait(list(graders)):
                    assert isinstance(ready, Connection)
                    grader, submission, tried = graders.pop(ready)
                    result = grader.result()
                    if result is None and tried < TRIES:
                        begin(submission, None, tried + 1)
                        continue
                    begin(next(left, None), grader if result else None)
                    yield submission, result or DIED
        finally:
            for grader, _, _ in graders.values():
                grader.close()
