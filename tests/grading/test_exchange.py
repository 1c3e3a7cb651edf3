"""Collecting from nbgrader's exchange: ordinary files only, and everybody's feedback goes out."""

import os
from pathlib import Path

import pytest

from autograder.text.lesson import lessons
from tests.common.course import Course
from tests.common.files import tree
from tests.common.handed_in import notebook, solved

LAB, NAME = "generate", "01_generate"
TIME = "2026-05-04 10:11:12.131415 UTC"
NAMES = "ada", "eve", "fay"
POINTS = sum(card.points for card in lessons()[LAB].cards.values())

pytestmark = pytest.mark.slow


@pytest.fixture
def course(tmp_path) -> Course:
    (tmp_path / "course").mkdir()
    course = Course(tmp_path / "course")
    inbound(course).mkdir(parents=True)
    return course


def inbound(course: Course) -> Path:
    return course.folder / "exchange" / "llm-inference" / "inbound"


def hand_in(course: Course, student: str, content: str) -> Path:
    """As `nbgrader submit` does it."""
    folder = inbound(course) / f"{student}+{NAME}+{TIME}+random"
    folder.mkdir()
    (folder / "generate.ipynb").write_text(content)
    (folder / "timestamp.txt").write_text(TIME)
    (folder / "submission_secret.txt").write_text("abc123")
    return folder


def test_only_ordinary_files_are_collected(course, tmp_path):
    """nbgrader by itself follows a link to the solved notebook, which its owner may read."""
    content = notebook(solved(LAB))
    hand_in(course, "ada", content)
    folder = hand_in(course, "eve", "")
    (folder / "generate.ipynb").unlink()
    (folder / "generate.ipynb").symlink_to(course.solved(NAME))
    (folder / "gradebook").symlink_to(course.folder / "gradebook.db")
    (folder / "data.txt").write_text("data")
    os.mkfifo(folder / "pipe.ipynb")
    (tmp_path / "private.ipynb").write_text("private")
    (inbound(course) / f"fay+{NAME}+{TIME}+random").symlink_to(tmp_path)
    assert course.api().collect(NAME)["success"]
    collected = {student: course.folder / "submitted" / student / NAME for student in NAMES}
    assert tree(collected["ada"]) == {
        "generate.ipynb": content.encode(),
        "timestamp.txt": TIME.encode(),
        "submission_secret.txt": b"abc123",
    }
    for student in ("eve", "fay"):
        assert set(tree(collected[student])) == {"timestamp.txt", "submission_secret.txt"}


def test_a_spoilt_time_or_secret_keeps_nobodys_feedback_back(course):
    content = notebook(solved(LAB))
    hand_in(course, "ada", content)
    spoilt = hand_in(course, "eve", content)
    (spoilt / "timestamp.txt").write_text("never")
    (spoilt / "submission_secret.txt").write_bytes(b"\xff")
    bare = hand_in(course, "bob", content)
    (bare / "timestamp.txt").unlink()
    (bare / "submission_secret.txt").unlink()
    api = course.api()
    assert api.collect(NAME)["success"]
    assert api.autograde(NAME, "*")["success"]
    assert api.generate_feedback(NAME)["success"]
    done = api.release_feedback(NAME)
    assert done["success"], done
    released = course.folder / "exchange" / "llm-inference" / "feedback"
    assert len(list(released.iterdir())) == 3
    for student in ("ada", "eve", "bob"):
        scores = course.scores(student, NAME)
        assert sum(score for score in scores.values() if score is not None) == POINTS
