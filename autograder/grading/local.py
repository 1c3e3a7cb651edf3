"""Grading in several processes of this machine. If one dies, only its own time is lost."""

import multiprocessing
import os
import signal
import tempfile
import traceback
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Self

import torch

from autograder.grading.judge.bounds import is_of_memory
from autograder.grading.judge.jail import Jail, JailError
from autograder.grading.judge.oracle import grade_one
from autograder.grading.judge.results import NotGraded, Result
from autograder.grading.judge.secret import Key, key_of
from autograder.grading.judge.submission import Submission
from autograder.grading.refused import writing_temporary
from autograder.grading.temporary import Temporary, hold, remove_leftovers

TRIES = 2  # for a submission whose grader dies while grading it
FAREWELL = 10  # seconds for a grader to clean up
TOO_LITTLE = "Is there enough memory? Try fewer --jobs."


class Grader:
    """A process that grades one submission after the other."""

    def __init__(self, settings: Jail, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")  # shares nothing with this process
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, settings, folder), daemon=True)
        self.process.start()
        theirs.close()

    def begin(self, submission: Submission, key: Key) -> Self:
        with suppress(OSError):  # it has died, which `result` reports
            self.connection.send((submission, key))
        return self

    def result(self) -> Result | NotGraded | None:
        """Return None if the process has died. Raises JailError if it can't make a sandbox.

        Unless it returns a Result, it closes the grader, because the same failure could happen in
        it again. A new grader starts by testing a sandbox.
        """
        try:
            answer = self.connection.recv()
        except (EOFError, OSError):
            answer = None
        if answer is None or isinstance(answer, JailError):
            self.process.join(FAREWELL)  # it ends by itself
        if not isinstance(answer, Result):
            self.close()
        if isinstance(answer, JailError):
            raise answer
        return answer

    def close(self) -> None:
        self.connection.close()
        self.process.terminate()
        self.process.join(FAREWELL)
        self.process.kill()
        self.process.join()


def serve(connection: Connection, settings: Jail, folder: Path) -> None:
    """Grade the submissions that come through the connection, until it is closed.

    The parent process handles Ctrl-C and then ends this one. folder: the parent's folder for all
    temporary files, so that a killed grader leaves none behind.
    """
    tempfile.tempdir = str(folder)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    torch.set_num_threads(1)
    with suppress(EOFError, ConnectionError, KeyboardInterrupt), ExitStack() as stack:
        stack.callback(signal.signal, signal.SIGTERM, signal.SIG_IGN)  # then it ends by itself
        try:
            stack.callback(remove_leftovers, folder.parent)  # the parent may have been killed
            stack.callback(os.close, hold(folder))
            jail = stack.enter_context(settings)
        except (JailError, OSError) as error:
            connection.send(JailError(str(error)))
            return
        while True:
            submission, key = connection.recv()
            connection.send(graded_or_not(submission, key, jail))


def graded_or_not(submission: Submission, key: Key, jail: Jail) -> Result | NotGraded:
    """Return the result, or why there is none if grading fails. The jail must be entered."""
    try:
        return grade_one(submission, key, jail)
    except JailError as error:
        return NotGraded(str(error))
    except Exception as error:
        if is_of_memory(error):
            return NotGraded(f"Grading it took more memory than there is. {TOO_LITTLE}")
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}, line {last.lineno}"
        return NotGraded(f"Grading it failed: {type(error).__name__} in {where}: {error}")


def died(exitcode: int | None) -> NotGraded:
    """Say why a submission has no result if every grader died, by the last one's exit code."""
    again = f"The process that graded it has ended {TRIES} times"
    if exitcode == -signal.SIGKILL:  # Linux kills a process when memory runs out
        return NotGraded(f"{again}: it was killed. {TOO_LITTLE}")
    return NotGraded(f"{again}, with exit code {exitcode}. Its last error is printed above.")


def graded_here(
    submissions: Iterable[Submission], secret: bytes, settings: Jail, jobs: int
) -> Iterator[tuple[Submission, Result | NotGraded]]:
    """Yield submissions with their results, as they come. Raises JailError and Refused."""
    left = iter(submissions)
    graders: dict[Connection, tuple[Grader, Submission, int]] = {}

    def begin(submission: Submission | None, grader: Grader | None, tried: int = 1) -> None:
        if submission is not None:
            key = key_of(secret, submission)
            grader = (grader or Grader(settings, folder)).begin(submission, key)
            graders[grader.connection] = grader, submission, tried
        elif grader is not None:
            grader.close()

    with ExitStack() as stack:
        with writing_temporary():
            folder = stack.enter_context(Temporary("grader"))
        folder.chmod(0o755)  # code in a sandbox runs as another user
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
                    begin(next(left, None), grader if isinstance(result, Result) else None)
                    yield submission, result or died(grader.process.exitcode)
        finally:
            for grader, _, _ in graders.values():
                grader.close()
