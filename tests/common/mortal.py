"""Make a process die while it grades certain students, as if it had been killed.

Use it in processes that are started for it: `dask worker --preload tests.common.mortal`, or `serve`
instead of `local.serve`. The variable DEATHS names a folder with one file per death.
"""

import os
import signal
from pathlib import Path

from autograder.grading import local
from autograder.grading.judge.oracle import grade_one

DIES_ONCE, DIES_ALWAYS, FAILS = "cyd", "mallory", "fay"


def deaths(folder: Path) -> list[str]:
    """Return the students whose grading a process died in, once for each death."""
    return sorted(path.name.split(".")[0] for path in folder.iterdir())


def mortal_grade_one(submission, key, jail):
    folder = Path(os.environ["DEATHS"])
    result = grade_one(submission, key, jail)
    died = deaths(folder).count(submission.student)
    if submission.student == DIES_ALWAYS or (submission.student == DIES_ONCE and not died):
        (folder / f"{submission.student}.{died}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if submission.student == FAILS:
        raise LookupError("a mistake of the grader's own")
    return result


def serve(*arguments):
    local.grade_one = mortal_grade_one
    local_serve(*arguments)


local_serve = local.serve


def dask_setup(worker):
    local.grade_one = mortal_grade_one
