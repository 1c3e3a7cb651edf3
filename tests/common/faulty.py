"""Graders that fail for certain students. They make up their results and run no code.

`serve` replaces `local.serve`. The variable FAULTS names a folder. A file `no_sandbox` in it means
that there is no sandbox, and a file `go_on` lets a waiting grader continue.
"""

import os
import time
from pathlib import Path

from autograder.grading import local
from autograder.grading.judge.jail import Jail, JailError
from autograder.grading.judge.results import Result
from autograder.grading.judge.secret import Key
from autograder.grading.judge.submission import Submission
from autograder.text.lesson import lessons
from tests.common.fake_class import fake_result

GONE, GONE_FOR_EVER, WAITS = "gone", "gone for ever", "waits"


def faults() -> Path:
    return Path(os.environ["FAULTS"])


def grade_one(submission: Submission, key: Key, jail: Jail) -> Result:
    """Return a made-up result, with the process id as its seconds."""
    student = submission.student
    if student == GONE_FOR_EVER:
        (faults() / "no_sandbox").touch()
    if student in (GONE, GONE_FOR_EVER):
        raise JailError("The sandbox is gone.")
    if student == WAITS:
        (faults() / "waits").touch()
        while not (faults() / "go_on").exists():
            time.sleep(0.01)
    return fake_result(student, lessons()[submission.lab], seconds=os.getpid())


class Entered:
    """Replaces a Jail."""

    def __enter__(self) -> None:
        if (faults() / "no_sandbox").exists():
            raise JailError("There is no sandbox to be had.")

    def __exit__(self, *error: object) -> None:
        pass


def serve(connection, settings, folder):
    local.grade_one = grade_one
    local_serve(connection, Entered(), folder)


local_serve = local.serve
