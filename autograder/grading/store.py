"""Keeping results, so that grading continues where it stopped.

A result is in autograder/graded/02_kv_cache/KEY.json. The key is made from everything that the
result depends on: the student, the lab, the submission, the version of the course, and the secret.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from autograder.grading.judge.jail import Jail
from autograder.grading.judge.oracle import grade_one
from autograder.grading.judge.results import RESULT, Result, from_json, result_id, to_json
from autograder.grading.judge.secret import kept_secret, key_of, secret_id
from autograder.grading.judge.submission import Submission, read_submission, students
from autograder.grading.judge.version import course_version
from autograder.grading.refused import writing
from autograder.grading.temporary import write_whole
from autograder.text.lesson import Lesson, lessons
from autograder.text.reference import ROOT


@dataclass(frozen=True)
class Course:
    """The folder where a course keeps submissions, results and its secret."""

    folder: Path

    @property
    def submitted(self) -> Path:
        return self.folder / "submitted"

    @cached_property
    def secret(self) -> bytes:
        return kept_secret(self.folder / "secret")

    def submissions(self, lesson: Lesson, student: str | None = None) -> Iterator[Submission]:
        """Yield the submissions for a lab, of one student or of all."""
        for name in students(self.submitted, lesson) if student is None else [student]:
            yield read_submission(self.submitted, name, lesson)

    def graded(self, lesson: Lesson) -> Path:
        """Return the folder of the kept results."""
        return self.folder / "graded" / lesson.name

    def file(self, submission: Submission) -> Path:
        parts = submission.student, submission.lab, submission.sha256
        key = repr((*parts, course_version(), secret_id(self.secret)))
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
        return self.graded(lessons()[submission.lab]) / f"{digest[:32]}.json"

    def kept(self, submission: Submission) -> Result | None:
        """Return the kept result; None if there is none or it can't be read."""
        try:
            return from_json(self.file(submission).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def keep(self, submission: Submission, result: Result) -> None:
        """Write a result. Raises Refused if that fails."""
        path = self.file(submission)
        with writing(path.parent):
            write_whole(path, to_json(result))

    @property
    def students(self) -> Path:
        return self.folder / "students.csv"

    @property
    def gradebook(self) -> Path:
        return self.folder / "gradebook.db"

    def is_given(self, result: Result) -> bool:
        """Whether nbgrader's copy of the submission has this result.

        nbgrader writes it there after entering the points into its gradebook.
        """
        given = self.folder / "autograded" / result.student / lessons()[result.lab].notebook
        try:
            return json.loads(given.read_bytes())["metadata"][RESULT] == result_id(result)
        except (OSError, ValueError, LookupError, TypeError):  # no copy, or a partial one
            return False

    def results(self, lesson: Lesson) -> list[Result]:
        """Return the kept results of the present submissions."""
        results = (self.kept(submission) for submission in self.submissions(lesson))
        return [result for result in results if result is not None]


COURSE = Course(ROOT / "autograder")


def result_for(submission: Submission, folder: Path) -> Result:
    """Return the kept result of a submission; if there is none, grade it."""
    course = Course(folder)
    kept = course.kept(submission)
    if kept is None:
        with Jail() as jail:
            kept = grade_one(submission, key_of(course.secret, submission), jail)
        course.keep(submission, kept)
    return kept
