"""Results without grading: nothing is run. What was changed passes, unless it says "# wrong"."""

from pathlib import Path

from autograder.course.lesson import lessons
from autograder.grading.rebuild import rebuild
from autograder.grading.release import release_of
from autograder.grading.results import Mark, Result
from autograder.grading.submission import Submission
from autograder.judging.judge import NOT_ATTEMPTED, PASSED, WRONG


def result_for(submission: Submission, course: Path) -> Result:
    rebuilt = rebuild(submission, release_of(submission.lab))
    marks = []
    for exercise, card in lessons()[submission.lab].cards.items():
        status = NOT_ATTEMPTED
        if rebuilt.attempted(exercise):
            status = WRONG if "# wrong" in rebuilt.cells_before(exercise)[-1] else PASSED
        points = card.points if status == PASSED else 0
        marks.append(
            Mark(
                exercise,
                points,
                card.points,
                status,
                (f"It was {status} <&>.",),
                ROWS,
                reread="1. Here",
            )
        )
    return Result(
        submission.student,
        submission.lab,
        submission.sha256,
        tuple(marks),
        rebuilt.remarks,
        limits=(),
        sandboxed=False,
        version="1",
        secret="1",
    )


ROWS = (("smallest failing case", "two <b>rows</b>\x1b[31m"),)
