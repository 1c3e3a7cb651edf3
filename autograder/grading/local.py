"""Grading in several processes of this machine. One that dies costs nothing but its own time."""

import atexit
import multiprocessing
import signal
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Self

from autograder.grading.jail import Jail
from autograder.grading.oracle import grade_one
from autograder.grading.results import Result
from autograder.grading.submission import Submission

TRIES = 2  # for a submission whose grader dies under it


class GraderDied(RuntimeError):
    """A grader's process has ended at one submission again and again."""


class Grader:
    """A process that grades one submission after the other."""

    def __init__(self, secret: bytes, settings: Jail) -> None:
        context = multiprocessing.get_context("spawn")  # nothing of this process goes along
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, secret, settings), daemon=True)
        self.process.start()
        theirs.close()

    def begin(self, submission: Submission) -> Self:
        self.connection.send(submission)
        return self

    def result(self) -> Result | None:
        """None where the process has died."""
        try:
            found = self.connection.recv()
        except (EOFError, OSError):
            return None
        if isinstance(found, BaseException):
            raise found
        return found

    def close(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.join()


def serve(connection: Connection, secret: bytes, settings: Jail) -> None:
    """Ctrl-C is for whoever started this; it then ends with it."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    jail = settings.__enter__()
    atexit.register(settings.__exit__, None, None, None)
    while True:
        try:
            submission = connection.recv()
        except EOFError:
            return
        try:
            connection.send(grade_one(submission, secret, jail))
        except Exception as error:
            connection.send(error)


def graded_here(
    submissions: Iterable[Submission], secret: bytes, settings: Jail, jobs: int
) -> Iterator[tuple[Submission, Result]]:
    """Submissions with their results, as they come. Raises JailError, GraderDied."""
    left = iter(submissions)
    graders: dict[Connection, tuple[Grader, Submission, int]] = {}

    def begin(submission: Submission | None, tried: int = 0) -> None:
        if submission is not None:
            grader = Grader(secret, settings).begin(submission)
            graders[grader.connection] = grader, submission, tried + 1

    try:
        for _ in range(jobs):
            begin(next(left, None))
        while graders:
            for ready in wait(list(graders)):
                assert isinstance(ready, Connection)
                grader, submission, tried = graders.pop(ready)
                result = grader.result()
                if result is None:
                    grader.close()
                    if tried == TRIES:
                        raise GraderDied(
                            f"The process that grades {submission.student} has ended {TRIES} times "
                            "while it did. Is there enough memory? Try fewer --jobs."
                        )
                    begin(submission, tried)
                    continue
                following = next(left, None)
                if following is None:
                    grader.close()
                else:
                    graders[ready] = grader.begin(following), following, 1
                yield submission, result
    finally:
        for grader, _, _ in graders.values():
            grader.close()
