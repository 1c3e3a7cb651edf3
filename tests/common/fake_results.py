"""Results without running any code: a changed exercise passes unless it contains "# wrong"."""

from dataclasses import replace
from pathlib import Path

from autograder.grading.judge.rebuild import rebuild
from autograder.grading.judge.results import Result
from autograder.grading.judge.submission import Submission
from autograder.judging.judge import NOT_ATTEMPTED, PASSED, WRONG
from autograder.text.lesson import lessons
from autograder.text.release import release_of
from tests.common.fake_class import fake_mark, fake_result


def result_for(submission: Submission, course: Path) -> Result:
    rebuilt = rebuild(submission, release_of(submission.lab))
    lesson = lessons()[submission.lab]
    marks = []
    for exercise in lesson.cards:
        status = NOT_ATTEMPTED
        if rebuilt.attempted(exercise):
            status = WRONG if "# wrong" in rebuilt.cells_before(exercise)[-1] else PASSED
        mark = fake_mark(exercise, status, lesson)
        marks.append(
            replace(mark, paragraphs=(f"It was {status} <&>.",), rows=ROWS, reread="1. Here")
        )
    found = fake_result(submission.student, lesson, tuple(marks), rebuilt.remarks, sandboxed=False)
    return replace(found, submission=submission.sha256)


ROWS = (("smallest failing case", "two <b>rows</b>\x1b[31m"),)
