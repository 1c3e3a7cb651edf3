"""Grading with nbgrader's own autograde and made-up results: gradebook, feedback, regrades."""

import copy
import json
import os
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_notebook

from autograder.grading.give_back.plugins import GradeSubmission, apply, card_of
from autograder.grading.judge.rebuild import check_id
from autograder.grading.judge.results import RESULT, Mark, Result, result_id
from autograder.grading.judge.submission import Submission
from autograder.text.lesson import lessons
from autograder.text.release import release_of
from tests.common.course import Course, text_of
from tests.common.fake_class import fake_result
from tests.common.files import tree
from tests.common.handed_in import code, is_check, label, notebook, released, solved

LAB, NAME = "generate", "01_generate"
CHECKS = {check_id(name): card.points for name, card in lessons()[LAB].cards.items()}
PROSE = lessons()[LAB].questions
ZEROS = dict.fromkeys([*CHECKS, *PROSE], 0)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Course:
    return Course(tmp_path_factory.mktemp("course"))


@pytest.fixture
def student(request) -> str:
    """A student of whom nobody has heard yet."""
    return request.node.name.replace("[", "-").replace("]", "")


def autograded(course: Course, student: str) -> Path:
    return course.folder / "autograded" / student / NAME


def hand_in(course: Course, student: str, cells: list[dict[str, Any]]) -> Path:
    return course.submit(student, NAME, notebook(cells))


def grade(course: Course, student: str, **config: dict) -> dict[str, float | None]:
    course.autograde(student, NAME, **config)
    return course.scores(student, NAME)


# ----------------------------------------------------------------------------- scores and why


REASONS = {
    "unreadable": "The file can't be read as a notebook",
    "pipe": "is not an ordinary file",
    "notebook": "is a link to a file elsewhere",
    "lab": "is a link or a file",
    "student": "is a link or a file",
}


@pytest.mark.parametrize("what", REASONS)
def test_what_is_no_notebook_is_graded_with_zeros_and_the_reason(what, course, student, tmp_path):
    """Each link leads to the solved notebook, which nobody but the course may hand in."""
    real = tmp_path / "real" / NAME / "generate.ipynb"
    real.parent.mkdir(parents=True)
    real.write_bytes(course.solved(NAME).read_bytes())
    real.with_name("private.txt").write_text("private")
    handed_in = course.folder / "submitted" / student / NAME / "generate.ipynb"
    up = {"lab": 1, "student": 2}.get(what, 0)
    place, target = [handed_in, *handed_in.parents][up], [real, *real.parents][up]
    place.parent.mkdir(parents=True, exist_ok=True)
    if what == "unreadable":
        place.write_bytes(b'{"cells": [[[')
    elif what == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to(target)
    assert grade(course, student) == ZEROS
    assert text_of(course.feedback(student, NAME)).count(REASONS[what]) == len(CHECKS)
    assert set(tree(autograded(course, student))) == {"generate.ipynb"}


def test_the_card_tells_points_cause_case_and_what_to_reread(course, student):
    cells = solved(LAB)
    for cell in cells:
        cell["source"] += "\n# wrong" if label(cell).get("solution") else ""
    hand_in(course, student, cells)
    grade(course, student)
    said = text_of(course.feedback(student, NAME))
    assert (
        "generate.metrics : wrong , 0 of 3 points It was wrong <&>. Read again: 1. Here "
        "Graded without a sandbox. smallest failing case two <b>rows</b>"
    ) in said


def test_the_copies_of_a_check_and_unknown_schemas_abort_nothing(course):
    cells = solved(LAB)
    checks = [cell for cell in cells if is_check(cell)]
    strange = [
        {**cell, "metadata": {"nbgrader": {**label(cell), "schema_version": version}}}
        for cell in cells
        for version in (2, 99, "three")
    ]
    odd = code("x = 1", metadata={"nbgrader": {"grade": True, "grade_id": "free", "points": 99}})
    for name, own in {
        "batch-a": [*cells, *checks],
        "batch-b": strange,
        "batch-c": [*cells, odd],
        "batch-d": [{**cell, "cell_type": "raw"} for cell in cells],
        "batch-e": cells,
    }.items():
        hand_in(course, name, own)
    course.autograde("batch-*", NAME)
    for name in "abcde":
        assert course.scores(f"batch-{name}", NAME) == {**CHECKS, **dict.fromkeys(PROSE)}, name


def test_no_output_of_a_submission_counts_and_no_cell_is_run(course, student, tmp_path):
    cells = released(LAB)
    for cell in cells:
        if is_check(cell):
            result = {"output_type": "execute_result", "data": {"text/plain": "5"}, "metadata": {}}
            cell["outputs"] = [{**result, "execution_count": 1}]
    cells.insert(0, code(f"open({str(tmp_path / 'ran')!r}, 'w')"))
    hand_in(course, student, cells)
    assert grade(course, student) == ZEROS
    assert not (tmp_path / "ran").exists()


def replaced_meanwhile(submission: Submission, course: Path) -> Result:
    """What a submission earns whose student hands in something else while it is graded."""
    (course / "submitted" / submission.student / lessons()[LAB].notebook).write_bytes(b"else")
    return fake_result(submission.student, lessons()[LAB])


def test_what_is_shown_is_what_was_graded_and_no_metadata_of_a_submission_counts(tmp_path):
    path = tmp_path / "submitted" / "ada" / lessons()[LAB].notebook
    path.parent.mkdir(parents=True)
    forged = {**json.loads(notebook(solved(LAB))), "metadata": {RESULT: "forged", "own": 1}}
    path.write_text(json.dumps(forged))
    step = GradeSubmission(
        submitted=str(tmp_path / "submitted"), result_for=f"{__name__}.replaced_meanwhile"
    )
    named = {"nbgrader": {"assignment": NAME, "student": "ada"}}
    graded, _ = step.preprocess(new_notebook(), named)
    expected = result_id(fake_result("ada", lessons()[LAB]))
    assert graded.metadata == {**release_of(LAB).metadata, RESULT: expected}
    assert [cell.source for cell in graded.cells] == [cell["source"] for cell in solved(LAB)]


def test_only_labs_of_the_course_are_graded(course, student):
    api = course.api()
    exam = course.solved("07_exam")
    exam.parent.mkdir()
    nbformat.write(new_notebook(cells=[]), exam)
    assert api.generate_assignment("07_exam")["success"]
    course.submit(student, "07_exam", notebook([]))
    done = api.autograde("07_exam", student)
    assert not done["success"]
    assert "There is no lab '07_exam'. The labs are 01_generate" in done["log"]


# --------------------------------------------------------------------- what nbgrader goes on doing


def test_a_manual_grade_survives_a_regrade(course, student):
    hand_in(course, student, solved(LAB))
    grade(course, student)
    by_hand = {"last_row": 2, "check-generate-generate": 1}
    with course.gradebook() as gradebook:
        for id, points in by_hand.items():
            found = gradebook.find_grade(id, LAB, NAME, student)
            found.manual_score, found.needs_manual_grade = points, False
        gradebook.db.commit()
    grade(course, student)
    with course.gradebook() as gradebook:
        for id, points in by_hand.items():
            found = gradebook.find_grade(id, LAB, NAME, student)
            assert (found.manual_score, found.score) == (points, points)


def test_a_late_submission_is_penalised_as_the_course_says(course, student):
    folder = hand_in(course, student, solved(LAB))
    (folder / "timestamp.txt").write_text("2026-05-04 10:00:00 UTC")
    with course.gradebook() as gradebook:
        gradebook.find_assignment(NAME).duedate = datetime(2026, 5, 4, 9)
        gradebook.db.commit()
    grade(course, student, LateSubmissionPlugin={"penalty_method": "zero"})
    with course.gradebook() as gradebook:
        found = gradebook.find_submission(NAME, student)
        assert found.total_seconds_late == 3600
        assert found.late_submission_penalty == found.score == sum(CHECKS.values())


def test_a_later_submission_is_graded_again_without_being_forced(course, student):
    folder = hand_in(course, student, released(LAB))
    (folder / "timestamp.txt").write_text("2026-05-04 10:00:00 UTC")
    grade(course, student)
    hand_in(course, student, solved(LAB))
    api = course.api()
    assert api.autograde(NAME, student, force=False)["success"]
    assert course.scores(student, NAME) == ZEROS
    (folder / "timestamp.txt").write_text("2026-05-05 10:00:00 UTC")
    assert api.autograde(NAME, student, force=False)["success"]
    assert course.scores(student, NAME) == {**CHECKS, **dict.fromkeys(PROSE)}


# --------------------------------------------------------------- what lies beside a notebook


def test_nothing_else_of_a_students_folder_comes_along(course, student, tmp_path):
    (tmp_path / "secret").write_text("secret")
    folder = hand_in(course, student, solved(LAB))
    (folder / "timestamp.txt").write_text("2026-05-04 10:00:00 UTC")
    (folder / "submission_secret.txt").write_text("abc")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / ".hidden").symlink_to(tmp_path / "secret")
    (folder / "folder").symlink_to(tmp_path)
    (folder / "own").mkdir()
    (folder / "own" / "data.txt").write_text("data")
    (folder / "other.ipynb").symlink_to(tmp_path / "secret")
    (folder / "generate.html").write_text("<script>")
    course.autograde(student, NAME)
    assert set(tree(autograded(course, student))) == {
        "generate.ipynb",
        "timestamp.txt",
        "submission_secret.txt",
    }
    course.feedback(student, NAME)
    assert set(tree(course.folder / "feedback" / student / NAME)) == {
        "generate.html",
        "timestamp.txt",
        "submission_secret.txt",
    }


# ----------------------------------------------------------------------- results in a notebook


def result(*marks: Mark, remarks: tuple[str, ...] = ()) -> Result:
    return fake_result("ada", lessons()[LAB], marks, remarks)


def test_a_card_holds_what_a_student_needs_and_nothing_that_hides():
    cause, line = "Likely cause: a\x1b[2J\u202e.", ("your line", "\x00x")
    mark = Mark("generate.generate", 0, 5, "wrong", (cause,), (line,), reread="3. Generate")
    card = card_of(mark, result(mark, remarks=("It is late.",)))
    assert repr(card) == (
        "generate.generate: wrong, 0 of 5 points\n  Likely cause: a[2J.\n"
        "  Read again: 3. Generate\n  It is late.\n  your line: x"
    )
    assert "0 of 5 points" in card._repr_html_()
    assert card_of(replace(mark, points=0.5, most=1), result(mark)).points == "0.5 of 1 point"


FIRST, SECOND = (Mark(f"generate.{name}", 3, 3, "passed", ()) for name in ("generate", "metrics"))
FIRST = replace(FIRST, points=5, most=5)


@pytest.mark.parametrize(
    "marks",
    [
        [replace(FIRST, points=6), SECOND],
        [replace(FIRST, points=-1), SECOND],
        [replace(FIRST, points=float("nan")), SECOND],
        [replace(FIRST, points=3, most=3), SECOND],
        [FIRST],
        [FIRST, replace(SECOND, exercise="generate.else")],
    ],
)
def test_a_mark_that_nbgrader_would_misread_is_refused(marks):
    notebook = copy.deepcopy(release_of(LAB))
    apply(result(FIRST, SECOND), notebook)
    with pytest.raises(ValueError, match="Run `make labs` and grade this lab again"):
        apply(result(*marks), notebook)
