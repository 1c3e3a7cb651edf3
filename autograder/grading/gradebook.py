"""Results into nbgrader's gradebook, by nbgrader's own autograde: nothing else writes to it."""

import contextlib
import io
import logging
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbformat.v4 import new_notebook
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.apps import NbGraderAPI
from traitlets.config import Config, PyFileConfigLoader

from autograder.grading import timestamp
from autograder.grading.refused import Refused
from autograder.grading.store import Course
from autograder.lesson import Lesson


class NotEntered(RuntimeError):
    """Why nbgrader did not take a result."""


@contextlib.contextmanager
def gradebook(course: Course, lesson: Lesson) -> Iterator[Any]:
    """nbgrader, to be told of one student after the other.

    It grades what it finds in a folder. So that everybody is found, and nobody's files are, it is
    pointed at one with an empty notebook for each; the plug-ins read the real one.
    """
    with tempfile.TemporaryDirectory(prefix="inference-gradebook-") as folder:
        staged = Path(folder)
        config = course_config(course, staged)
        api = NbGraderAPI(config=config)
        api.coursedir.log.setLevel(logging.ERROR)

        def enter(student: str) -> None:
            """Raises NotEntered."""
            own = staged / student / lesson.name
            own.mkdir(parents=True)
            nbformat.write(new_notebook(), own / f"{lesson.lab}.ipynb")
            time = timestamp.handed_in_at(course.submitted, student, lesson)
            if time is not None:
                (own / timestamp.NAME).write_text(timestamp.written(time))
            said = io.StringIO()
            try:
                with contextlib.redirect_stderr(said):
                    answer = api.autograde(lesson.name, student, force=True, create=True)
            except Exception as error:  # a folder's name that nbgrader can't take, for instance
                raise NotEntered(f"{error}. Is it the folder's name? Rename it.") from None
            finally:
                shutil.rmtree(staged / student, ignore_errors=True)
            if not answer["success"]:
                raise NotEntered(reason(answer))

        yield enter


def entered(course: Course, lesson: Lesson) -> set[str]:
    """The students of whom nbgrader's gradebook has this lab, graded.

    Raises Refused where it has not even the lab.
    """
    if course.gradebook.exists():
        with Gradebook(f"sqlite:///{course.gradebook}") as known, contextlib.suppress(MissingEntry):
            submissions = known.assignment_submissions(lesson.name)
            return {submission.student.id for submission in submissions}
    raise Refused(
        f"nbgrader's gradebook, {course.gradebook}, doesn't know {lesson.name}. Enter the labs: "
        "make labs"
    )


def course_config(course: Course, staged: Path) -> Config:
    loader = PyFileConfigLoader("nbgrader_config.py", path=str(course.folder))
    config = loader.load_config()
    config.CourseDirectory.submitted_directory = str(staged)
    config.NbGrader.logfile = ""
    return config


def reason(answer: dict[str, Any]) -> str:
    lines: Sequence[str] = (answer.get("error") or answer.get("log") or "").strip().splitlines()
    return lines[-1] if lines else "nbgrader gave no reason."
