"""Results that are kept, so that grading goes on where it stopped.

autograder/graded/02_kv_cache/KEY.json, where the key is made of all that a result depends on: the
student, the lab, what was handed in, the version of the course, and the secret.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from autograder.grading.jail import Jail
from autograder.grading.oracle import grade_one
from autograder.grading.results import Result, from_json, to_json
from autograder.grading.secret import kept_secret, secret_id
from autograder.grading.submission import Submission, read_submission, students
from autograder.grading.version import course_version
from autograder.lesson import Lesson, lessons
from autograder.reference import ROOT


@dataclass(frozen=True)
class Course:
    """Where a course keeps what was handed in, what came of it, and its secret."""

    folder: Path

    @property
    def submitted(self) -> Path:
        return self.folder / "submitted"

    @cached_property
    def secret(self) -> bytes:
        return kept_secret(self.folder / "secret")

    def submissions(self, lesson: Lesson, student: str | None = None) -> Iterator[Submission]:
        """What was handed in for a lab, by one student or by all."""
        for name in students(self.submitted, lesson) if student is None else [student]:
            yield read_submission(self.submitted, name, lesson)

    def file(self, submission: Submission) -> Path:
        parts = submission.student, submission.lab, submission.sha256
        key = repr((*parts, course_version(), secret_id(self.secret)))
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
        return self.folder / "graded" / lessons()[submission.lab].name / f"{digest[:32]}.json"

    def kept(self, submission: Submission) -> Result | None:
        path = self.file(submission)
        return from_json(path.read_text(encoding="utf-8")) if path.exists() else None

    def keep(self, submission: Submission, result: Result) -> None:
        """Written whole or not at all, whatever happens meanwhile."""
        path = self.file(submission)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(to_json(result), encoding="utf-8")
        part.replace(path)

    @property
    def gradebook(self) -> Path:
        return self.folder / "gradebook.db"

    def is_given(self, submission: Submission) -> bool:
        """Whether nbgrader's copy of a submission was written after its kept result."""
        given = self.folder / "autograded" / submission.student / lessons()[submission.lab].notebook
        return given.exists() and given.stat().st_mtime > self.file(submission).stat().st_mtime

    def results(self, lesson: Lesson) -> list[Result]:
        """Those of what lies in submitted/ now."""
        found = (self.kept(submission) for submission in self.submissions(lesson))
        return [result for result in found if result is not None]


COURSE = Course(ROOT / "autograder")


def result_for(submission: Submission, folder: Path) -> Result:
    """The kept result of a submission to a course; where there is none, it is graded."""
    course = Course(folder)
    kept = course.kept(submission)
    if kept is None:
        with Jail() as jail:
            kept = grade_one(submission, course.secret, jail)
        course.keep(submission, kept)
    return kept
