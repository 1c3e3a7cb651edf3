"""Kept results: whole, or graded once more; and which of them nbgrader has."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autograder.grading import commands
from autograder.grading.judge.jail import Jail
from autograder.grading.judge.results import RESULT, Result, from_json, result_id, to_json
from autograder.grading.judge.submission import Submission
from autograder.grading.store import Course
from autograder.text.lesson import lessons
from tests.common.fake_class import fake_mark, fake_result

LESSON = lessons()["generate"]
ADA = Submission("ada", "generate", b"her notebook")
MARK = replace(
    fake_mark("generate.generate", "wrong", LESSON, "one_too_many", seconds=0.1),
    rows=(("got", "1"), ("expected", "2")),
)
RESULT_OF_ADA = fake_result("ada", LESSON, (MARK,), remarks=("It is late.",), seconds=1.5)


@pytest.fixture
def course(tmp_path: Path) -> Course:
    return Course(tmp_path)


def changed(*path: str | int, to: Any) -> str:
    """The kept result with another value somewhere."""
    whole = json.loads(to_json(RESULT_OF_ADA))
    inner = whole
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = to
    return json.dumps(whole)


def without(name: str) -> str:
    return json.dumps({k: v for k, v in json.loads(to_json(RESULT_OF_ADA)).items() if k != name})


UNREADABLE = {
    "cut": to_json(RESULT_OF_ADA)[:200],
    "empty": "",
    "no object": "[]",
    "nothing": "null",
    "deep": "[" * 100_000,
    "no UTF-8": "\udcff",
    "other names": '{"student": "ada"}',
    "one name more": changed("more", to=1),
    "one name less": without("seconds"),
    "marks no list": changed("marks", to="generate.generate"),
    "mark no object": changed("marks", 0, to=["generate.generate"]),
    "points no number": changed("marks", 0, "points", to="5"),
    "points nothing": changed("marks", 0, "points", to=None),
    "paragraph no text": changed("marks", 0, "paragraphs", to=[1]),
    "row of three": changed("marks", 0, "rows", to=[["a", "b", "c"]]),
    "remarks no list": changed("remarks", to="late"),
    "student no text": changed("student", to=["ada"]),
    "sandboxed no truth": changed("sandboxed", to=1),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_an_unreadable_result_counts_as_absent(what: str, course: Course) -> None:
    assert course.kept(ADA) is None
    course.keep(ADA, RESULT_OF_ADA)
    course.file(ADA).write_bytes(UNREADABLE[what].encode("utf-8", "surrogateescape"))
    assert course.kept(ADA) is None
    course.keep(ADA, RESULT_OF_ADA)
    assert course.kept(ADA) == RESULT_OF_ADA


def test_an_unreadable_result_is_graded_again_and_no_other(course, monkeypatch):
    submissions = [replace(ADA, student=name) for name in ("ada", "bob", "cat")]
    for submission in submissions:
        course.keep(submission, fake_result(submission.student, LESSON))
    course.file(submissions[1]).write_text("{")
    monkeypatch.setattr(
        commands,
        "graded_here",
        lambda these, *how: [(s, fake_result(s.student, LESSON, seconds=9)) for s in these],
    )
    found = dict(commands.graded(course, submissions, Jail(), 1, None, None))
    seconds = {submission.student: vars(result)["seconds"] for submission, result in found.items()}
    assert seconds == {"ada": 0, "bob": 9, "cat": 0}
    assert all(course.kept(submission) for submission in submissions)


# ------------------------------------------------------------------------- what nbgrader has of it


def with_result(result: Result) -> str:
    return json.dumps({"cells": [], "metadata": {RESULT: result_id(result)}})


@pytest.mark.parametrize(
    ("content", "given"),
    [
        (with_result(RESULT_OF_ADA), True),
        (with_result(from_json(to_json(RESULT_OF_ADA))), True),
        (with_result(replace(RESULT_OF_ADA, remarks=())), False),  # of another submission
        (with_result(RESULT_OF_ADA)[:-5], False),
        ('{"cells": [], "metadata": {}}', False),  # nbgrader was killed before the points were in
        ('{"metadata": []}', False),
        ("[]", False),
        ("", False),
    ],
)
def test_a_result_is_entered_again_unless_nbgraders_copy_has_it(content, given, course):
    assert not course.is_given(RESULT_OF_ADA)
    copy = course.folder / "autograded" / "ada" / LESSON.notebook
    copy.parent.mkdir(parents=True)
    copy.write_text(content, encoding="utf-8")
    assert course.is_given(RESULT_OF_ADA) == given
