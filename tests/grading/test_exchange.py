"""Collecting from nbgrader's exchange: ordinary files only, and everybody's feedback goes out."""

import os
from pathlib import Path

import pytest

from autograder.course.lesson import lessons
from tests.common.course import Course
from tests.common.handed_in import notebook, solved

LAB, NAME = "generate", "01_generate"
TIME = "2026-05-04 10:11:12.131415 UTC"
FILES = {"generate.ipynb", "timestamp.txt", "submission_secret.txt"}
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


def collect(course: Course, student: str) -> Path:
    done = course.api().collect(NAME)
    assert done["success"], done
    return course.folder / "submitted" / student / NAME


def test_what_was_handed_in_is_collected(course):
    content = notebook(solved(LAB))
    hand_in(course, "ada", content)
    folder = collect(course, "ada")
    assert {path.name for path in folder.iterdir()} == FILES
    assert (folder / "generate.ipynb").read_text() == content
    assert (folder / "timestamp.txt").read_text() == TIME
    assert (folder / "submission_secret.txt").read_text() == "abc123"


def test_nothing_is_collected_through_a_link(course):
    """nbgrader by itself collects the solved notebook, which its owner may read."""
    folder = hand_in(course, "eve", "")
    (folder / "generate.ipynb").unlink()
    (folder / "generate.ipynb").symlink_to(course.solved(NAME))
    (folder / "gradebook").symlink_to(course.folder / "gradebook.db")
    (folder / "data.txt").write_text("data")
    os.mkfifo(folder / "pipe.ipynb")
    collected = collect(course, "eve")
    assert {path.name for path in collected.iterdir()} == FILES - {"generate.ipynb"}


def test_a_link_to_a_folder_is_collected_empty(course, tmp_path):
    (tmp_path / "private.ipynb").write_text("private")
    (inbound(course) / f"eve+{NAME}+{TIME}+random").symlink_to(tmp_path)
    assert {path.name for path in collect(course, "eve").iterdir()} == FILES - {"generate.ipynb"}


def test_a_spoilt_time_or_secret_keeps_nobodys_feedback_back(course):
    content = notebook(solved(LAB))
    hand_in(course, "ada", content)
    spoilt = hand_in(course, "eve", content)
    (spoilt / "timestamp.txt").write_text("never")
    (spoilt / "submission_secret.txt").write_bytes(b"\xff")
    bare = hand_in(course, "bob", content)
    (bare / "timestamp.txt").unlink()
    (bare / "submission_secret.txt").unlink()
    collect(course, "eve")
    api = course.api()
    assert api.autograde(NAME, "*")["success"]
    assert api.generate_feedback(NAME)["success"]
    done = api.release_feedback(NAME)
    assert done["success"], done
    released = course.folder / "exchange" / "llm-inference" / "feedback"
    assert len(list(released.iterdir())) == 3
    for student in ("ada", "eve", "bob"):
        scores = course.scores(student, NAME)
        assert sum(score for score in scores.values() if score is not None) == POINTS
