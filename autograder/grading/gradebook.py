"""Results into nbgrader's gradebook, by nbgrader's own autograde: nothing else writes to it."""

import contextlib
import errno
import io
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbformat.v4 import new_notebook
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.apps import NbGraderAPI
from sqlalchemy.exc import DatabaseError
from traitlets.config import Config, PyFileConfigLoader

from autograder.course.lesson import Lesson
from autograder.grading import timestamp
from autograder.grading.refused import GOES_ON, Refused, not_written, writing_temporary
from autograder.grading.store import Course
from autograder.grading.temporary import Temporary


class NotEntered(RuntimeError):
    """Why nbgrader did not take a result."""


@contextlib.contextmanager
def gradebook(course: Course, lesson: Lesson) -> Iterator[Callable[[str], None]]:
    """nbgrader, to be told of one student after the other.

    It grades what it finds in a folder. So that everybody is found, and nobody's files are, it is
    pointed at one with an empty notebook for each; the plug-ins read the real one.
    """
    with contextlib.ExitStack() as stack:
        with writing_temporary():
            staged = stack.enter_context(Temporary("gradebook"))
        api = NbGraderAPI(config=course_config(course, staged))
        api.coursedir.log.setLevel(logging.ERROR)
        closed: str | None = None

        def enter(student: str) -> None:
            """Raises NotEntered. After a cause that concerns every student, none is tried again:
            each try waits five seconds for a locked gradebook."""
            nonlocal closed
            if closed is None:
                with writing_temporary(NotEntered), contextlib.ExitStack() as after:
                    after.callback(shutil.rmtree, staged / student, ignore_errors=True)
                    stage(course, lesson, staged, student)
                    failure = autograde(api, lesson, student)
                if failure is None:
                    return
                closed = trouble(course, failure)
                if closed is None:
                    raise NotEntered(failure)
            raise NotEntered(f"{closed} {GOES_ON}")

        yield enter


def stage(course: Course, lesson: Lesson, staged: Path, student: str) -> None:
    """Write an empty notebook for a student, and when the real one was handed in."""
    own = staged / student / lesson.name
    own.mkdir(parents=True)
    nbformat.write(new_notebook(), own / f"{lesson.lab}.ipynb")
    time = timestamp.handed_in_at(course.submitted, student, lesson)
    if time is not None:
        (own / timestamp.NAME).write_text(timestamp.written(time))


def autograde(api: NbGraderAPI, lesson: Lesson, student: str) -> str | None:
    """Have nbgrader enter a student's result. Return None, or why nbgrader did not take it."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            answer = api.autograde(lesson.name, student, force=True, create=True)
    except Exception as error:  # a folder's name that nbgrader can't take, for instance
        return f"{error}. Is it the folder's name? Rename it."
    if answer["success"]:
        return None
    if answer["error"].rstrip().endswith("KeyboardInterrupt"):  # nbgrader catches it
        raise KeyboardInterrupt
    return reason(answer)


def entered(course: Course, lesson: Lesson) -> set[str]:
    """The students of whom nbgrader's gradebook has this lab, graded.

    Raises Refused if the gradebook doesn't have the lab, or can't be read.
    """
    try:
        if course.gradebook.exists():
            with Gradebook(f"sqlite:///{course.gradebook}") as known:
                submissions = known.assignment_submissions(lesson.name)
                return {submission.student.id for submission in submissions}
    except MissingEntry:
        pass
    except DatabaseError as error:
        raise Refused(
            trouble(course, str(error))
            or f"nbgrader's gradebook, {course.gradebook}, can't be read: {error.orig}. Put your "
            "last copy of it there. If nbgrader has a new version: `nbgrader db upgrade`"
        ) from None
    raise Refused(
        f"nbgrader's gradebook, {course.gradebook}, doesn't know {lesson.name}. Enter the labs: "
        "make labs"
    )


# What SQLite and the system say if nothing can be written to the course's folder.
NOT_WRITTEN = {
    "database or disk is full": errno.ENOSPC,
    "attempt to write a readonly database": errno.EROFS,
    "unable to open database file": errno.EACCES,
    "disk I/O error": errno.EIO,
    **{os.strerror(code): code for code in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)},
}


def trouble(course: Course, said: str) -> str | None:
    """What keeps every student from being entered, and what to do; None for another error."""
    if "database is locked" in said:
        return (
            f"nbgrader's gradebook, {course.gradebook}, is locked by another program. Close what "
            "has it open, or wait until it is done."
        )
    for words, code in NOT_WRITTEN.items():
        if words in said:
            return not_written(course.folder, OSError(code, words))
    return None


def course_config(course: Course, staged: Path) -> Config:
    loader = PyFileConfigLoader("nbgrader_config.py", path=str(course.folder))
    config = loader.load_config()
    config.CourseDirectory.submitted_directory = str(staged)
    config.NbGrader.logfile = ""
    return config


def reason(answer: dict[str, Any]) -> str:
    """The last error in nbgrader's log, because what nbgrader raises often only refers to it."""
    told = (answer.get(name, "") for name in ("log", "error"))
    errors = (re.findall(r"^ *([\w.]+: .+)", text, re.M) for text in told)
    return next((found[-1] for found in errors if found), "nbgrader gave no reason.")
