"""The course in nbgrader itself: three submissions of lab 1, from release to feedback.

What the grading of their code comes to is made up (tests/common/fake_results.py).
"""

import csv
import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from autograder.build import build
from autograder.exercises import exercises
from autograder.text.reference import AuthorError
from tests.common.course import Course, text_of
from tests.common.handed_in import code, label, notebook, prose, solved

ROOT = Path(__file__).resolve().parents[2]
LAB = "01_generate"
STUDENTS = ("correct", "untouched", "wrong")
BY_CHECKS = {name: e.card.points for name, e in exercises().items() if e.lab == "generate"}
BY_HAND = {"last_row": 2, "two_complaints": 2}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def released(tmp_path_factory) -> Course:
    return Course(tmp_path_factory.mktemp("course"))


@pytest.fixture(scope="module")
def graded(released) -> Course:
    """Three submissions, graded, with feedback and an export."""
    content = released.solved(LAB).read_text(encoding="utf-8")
    right, wrong = "(last - first) / (n - 1) if n > 1", "(last - start) / n  # wrong"
    assert right in content
    released.submit("correct", LAB, content)
    released.submit("wrong", LAB, content.replace(right, wrong))
    released.submit("untouched", LAB, released.released(LAB).read_text(encoding="utf-8"))
    released.nbgrader("autograde", LAB)
    released.nbgrader("generate_feedback", LAB)
    released.nbgrader("export", "--to", "grades.csv")
    return released


def test_nbgrader_releases_the_very_lab_that_the_build_wrote(released):
    built = released.released(LAB).read_bytes()
    released.nbgrader("generate_assignment", LAB, "--force")
    assert released.released(LAB).read_bytes() == built


def test_each_submission_has_the_score_it_earned(graded):
    expected = {
        "correct": BY_CHECKS,
        "wrong": {**BY_CHECKS, "generate.metrics": 0},
        "untouched": dict.fromkeys(BY_CHECKS, 0),
    }
    with graded.gradebook() as gradebook:
        for student in STUDENTS:
            notebook = gradebook.find_submission_notebook("generate", LAB, student)
            scores = {grade.name: grade.score for grade in notebook.grades}
            assert scores == {
                **{f"check-{name.replace('.', '-')}": p for name, p in expected[student].items()},
                **dict.fromkeys(BY_HAND, 0),
            }


def test_answers_in_prose_wait_for_a_person_unless_nobody_wrote_any(graded):
    with graded.gradebook() as gradebook:
        waiting = {s: gradebook.find_submission(LAB, s).needs_manual_grade for s in STUDENTS}
    assert waiting == {"correct": True, "wrong": True, "untouched": False}


def test_the_export_has_a_row_for_each_student(graded):
    with (graded.folder / "grades.csv").open() as file:
        rows = {row["student_id"]: row for row in csv.DictReader(file) if row["assignment"] == LAB}
    points = sum(BY_CHECKS.values())
    assert {student: float(row["score"]) for student, row in rows.items()} == {
        "correct": points,
        "wrong": points - BY_CHECKS["generate.metrics"],
        "untouched": 0,
    }
    assert {float(row["max_score"]) for row in rows.values()} == {points + sum(BY_HAND.values())}


def test_feedback_says_what_each_check_came_to(graded):
    said = {
        student: text_of(
            (graded.folder / "feedback" / student / LAB / "generate.html").read_text("utf-8")
        )
        for student in STUDENTS
    }
    assert "generate.metrics : wrong , 0 of 3 points" in said["wrong"]
    assert "generate.metrics : not attempted , 0 of 3 points" in said["untouched"]
    assert "generate.metrics : passed , 3 of 3 points" in said["correct"]
    assert "No response." in said["untouched"]


@pytest.mark.in_turn(2)
def test_validate_runs_a_students_own_checks(released):
    """Before handing in, on the student's own machine, nothing is made up."""
    assert "Success" in released.nbgrader("validate", str(up_to_its_last_check(released)))
    said = released.nbgrader("validate", str(released.released(LAB)))
    failed = len(BY_CHECKS) + len(BY_HAND)
    assert f"VALIDATION FAILED ON {failed} CELL(S)" in said
    for name in BY_CHECKS:
        assert f"{name} is not attempted" in said


def up_to_its_last_check(course: Course) -> Path:
    """The solved lab without what is timed behind its checks."""
    content = json.loads(course.solved(LAB).read_text(encoding="utf-8"))
    cells = content["cells"]
    last = max(i for i, cell in enumerate(cells) if cell["id"].startswith("check-"))
    content["cells"] = cells[: last + 1]
    path = course.root / "solved.ipynb"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_the_build_does_not_change_graded_cells_under_submissions(graded, tmp_path):
    for folder in ("course", "solutions"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shutil.copy(ROOT / "gpt.py", tmp_path)
    with (tmp_path / "course" / f"lab{LAB}" / "lesson.md").open("a") as lesson:
        lesson.write('\n<!-- #region answer="one_more" points=1 -->\nYes.\n<!-- #endregion -->\n')
    before = graded.released(LAB).read_bytes()
    with pytest.raises(AuthorError, match=r"gradebook\.db contains submissions for 01_generate"):
        build(tmp_path, graded.root, exercises())
    assert graded.released(LAB).read_bytes() == before


@pytest.fixture(scope="module")
def formgrader(graded) -> Iterator[str]:
    with graded.formgrader() as address:
        yield address


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read().decode()


def page_of(course: Course, student: str, formgrader: str) -> str:
    """What formgrader shows of a submission."""
    with course.gradebook() as gradebook:
        id = gradebook.find_submission_notebook("generate", LAB, student).id
    return get(f"{formgrader}/submissions/{id}/")


def test_a_students_prose_is_no_page_of_its_own(formgrader, graded):
    """It would run in the browser of whoever grades, who may change grades."""
    attack = "<script>attack()</script> <img src=x onerror=attack()> [x](javascript:attack())"
    cells = solved("generate")
    answer = next(cell for cell in cells if label(cell).get("grade_id") == "last_row")
    answer["source"] = f"{attack}\n\n```mermaid\n{attack}\n```\n\n![p](attachment:gone.png)"
    cells.append(prose(attack, cell_type="raw", metadata={"raw_mimetype": "text/html"}))
    cells.append(code(f"# {attack}"))
    graded.submit("attacker", LAB, notebook(cells))
    graded.autograde("attacker", LAB)
    for page in (page_of(graded, "attacker", formgrader), graded.feedback("attacker", LAB)):
        assert "&lt;script&gt;attack()" in page
        assert "<script>attack" not in page
        assert "<img src=x" not in page
        assert 'href="javascript' not in page
        assert text_of(page).count("[picture: p]") == 1
