"""Entering results into nbgrader's gradebook, through nbgrader's own autograde alone."""

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

from autograder.grading.collect import timestamp
from autograder.grading.collect.submitted import Table
from autograder.grading.refused import GOES_ON, Refused, not_written, writing_temporary
from autograder.grading.store import Course
from autograder.grading.temporary import Temporary
from autograder.text.lesson import Lesson


class NotEntered(RuntimeError):
    """Why nbgrader did not accept a result."""


@contextlib.contextmanager
def gradebook(course: Course, lesson: Lesson) -> Iterator[Callable[[str], None]]:
    """Yield a function that enters one student's result into nbgrader's gradebook.

    nbgrader grades the notebooks that it finds in a folder. It gets a folder with an empty notebook
    for each student, so that it finds every student but reads none of their files; the plug-ins
    read the real notebook. At the end, students get their names.
    """
    with contextlib.ExitStack() as stack:
        with writing_temporary():
            staged = stack.enter_context(Temporary("gradebook"))
        config = course_config(course)
        config.CourseDirectory.submitted_directory = str(staged)
        config.NbGrader.logfile = ""
        api = NbGraderAPI(config=config)
        api.coursedir.log.setLevel(logging.ERROR)
        closed: str | None = None

        def enter(student: str) -> None:
            """Raises NotEntered. After a failure that concerns every student, no other student is
            tried, because each try waits five seconds for a locked gradebook."""
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
        name_students(course)


def stage(course: Course, lesson: Lesson, staged: Path, student: str) -> None:
    """Write an empty notebook for a student, and the time when the real one was handed in."""
    folder = staged / student / lesson.name
    folder.mkdir(parents=True)
    nbformat.write(new_notebook(), folder / f"{lesson.lab}.ipynb")
    time = timestamp.handed_in_at(course.submitted, student, lesson)
    if time is not None:
        (folder / timestamp.NAME).write_text(timestamp.written(time))


def autograde(api: NbGraderAPI, lesson: Lesson, student: str) -> str | None:
    """Have nbgrader enter a student's result. Return None, or why nbgrader did not accept it."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            answer = api.autograde(lesson.name, student, force=True, create=True)
    except Exception as error:  # for example a folder name that nbgrader can't handle
        return f"{error}. If the folder's name is the cause, rename it."
    if answer["success"]:
        return None
    if answer["error"].rstrip().endswith("KeyboardInterrupt"):  # nbgrader catches it
        raise KeyboardInterrupt
    return reason(answer)


def entered(course: Course, lesson: Lesson) -> set[str]:
    """Return the students whose result for this lab is in nbgrader's gradebook.

    Raises Refused if the gradebook doesn't have the lab, or can't be read.
    """
    try:
        if course.gradebook.exists() and course.gradebook.stat().st_size:
            with Gradebook(f"sqlite:///{course.gradebook}") as known:
                known.find_assignment(lesson.name)
                submissions = known.assignment_submissions(lesson.name)
                return {submission.student.id for submission in submissions}
    except MissingEntry:
        pass
    except DatabaseError as error:
        raise Refused(
            trouble(course, str(error))
            or f"nbgrader's gradebook, {course.gradebook}, can't be read: {error.orig}. Restore "
            "your last copy of it. If you have installed a new nbgrader, run `nbgrader db upgrade`."
        ) from None
    raise Refused(
        f"nbgrader's gradebook, {course.gradebook}, doesn't have {lesson.name}. Enter the labs: "
        "make labs"
    )


def name_students(course: Course) -> None:
    """Give students who have no name in nbgrader's gradebook the one in students.csv.

    It goes whole into the last name: no platform says which part of it that is. Where it can't be
    entered now, it is entered the next time.
    """
    with contextlib.suppress(DatabaseError, Refused):
        names = Table(course.students).names
        with Gradebook(f"sqlite:///{course.gradebook}") as known:
            for student in known.students:
                if student.id in names and not (student.first_name or student.last_name):
                    student.first_name, student.last_name = "", names[student.id]
            known.db.commit()


# The errors of SQLite and the system if the course's folder can't be written to.
NOT_WRITTEN = {
    "database or disk is full": errno.ENOSPC,
    "attempt to write a readonly database": errno.EROFS,
    "unable to open database file": errno.EACCES,
    "disk I/O error": errno.EIO,
    **{os.strerror(code): code for code in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)},
}


def trouble(course: Course, said: str) -> str | None:
    """Say what keeps all students from being entered, and what to do; None for other errors."""
    if "database is locked" in said:
        return (
            f"nbgrader's gradebook, {course.gradebook}, is locked by another program. Close that "
            "program, or wait until it is done."
        )
    for words, code in NOT_WRITTEN.items():
        if words in said:
            return not_written(course.folder, OSError(code, words))
    return None


def course_config(course: Course) -> Config:
    return PyFileConfigLoader("nbgrader_config.py", path=str(course.folder)).load_config()


def reason(answer: dict[str, Any]) -> str:
    """Return the last error in nbgrader's log; what nbgrader raises often only refers to it."""
    texts = (answer.get(name, "") for name in ("log", "error"))
    errors = (re.findall(r"^ *([\w.]+: .+)", text, re.M) for text in texts)
    return next((lines[-1] for lines in errors if lines), "nbgrader gave no reason.")
