"""A section that a lab can be finished without is marked, and is counted apart."""

from pathlib import Path

import pytest

from autograder.build import card_cell, read_modules
from autograder.grading import bundle
from autograder.notebook import passed
from autograder.notebook.progress import status_of
from autograder.text.lesson import Lesson, lessons, read_lesson
from autograder.text.reference import SOLUTIONS
from start import going_on, paths
from start.words import time_of

NEEDED, BEYOND = lessons()["generate"].cards


def card(name: str, points: int) -> str:
    return f"""\
<!-- #region exercise="{name}" title="A title" points={points} difficulty=2 minutes=20 -->
Its place.

**Hint 1.** Think.

**Hint 2.** Look.

**Hint 3.** `____`

```python
____
```
<!-- #endregion -->
"""


def lesson_in(folder: Path) -> Lesson:
    room = folder / "lab01_generate"
    room.mkdir()
    words = "word " * 1200
    sections = [
        f"---\njupyter:\n---\n# Toys, {words}\n",
        f"## 1. Needed\n\n{card(NEEDED, 2)}",
        f"## 2. More of it (beyond)\n\n{card(BEYOND, 0)}\n{words}\n",
        "## 3. The end\n\n```python\nx = 1\n```\n",
    ]
    (room / "lesson.md").write_text("\n".join(sections))
    return read_lesson(room / "lesson.md")


@pytest.fixture
def lesson(tmp_path: Path) -> Lesson:
    return lesson_in(tmp_path)


def test_its_minutes_are_counted_apart(lesson: Lesson) -> None:
    assert (lesson.minutes, lesson.beyond) == (30, 30)
    assert time_of(lesson) == "30 min + 30 min beyond"


def test_its_card_says_so(lesson: Lesson) -> None:
    modules = read_modules(SOLUTIONS)
    needed, beyond = (card_cell(c, modules, "").source for c in lesson.cards.values())
    assert "**Beyond** the lab, which you can finish without it" in beyond
    assert "**Beyond**" not in needed


def test_an_exercise_may_count_for_nothing(lesson: Lesson) -> None:
    assert [card.points for card in lesson.cards.values()] == [2, 0]


def test_a_bundle_keeps_the_mark(lesson: Lesson, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(bundle, "lessons", lambda: {"generate": lesson})
    monkeypatch.setattr("autograder.text.lesson.COURSE", tmp_path)
    text = bundle.cards("generate")
    (tmp_path / "lab01_generate" / "lesson.md").write_text(text)
    again = read_lesson(tmp_path / "lab01_generate" / "lesson.md")
    assert again.cards == lesson.cards
    assert again.minutes == again.beyond == 0


@pytest.fixture
def pass_it(monkeypatch, tmp_path):
    """Let an exercise pass in a course that has only the lab above."""
    monkeypatch.setenv("MINE_FOLDER", str(tmp_path))
    lesson = lesson_in(tmp_path)
    for module in (passed, going_on):
        monkeypatch.setattr(module, "lessons", lambda: {"generate": lesson})

    def pass_it(name: str) -> None:
        passed.kept_file(name).parent.mkdir(exist_ok=True)
        passed.kept_file(name).touch()

    return pass_it


def test_the_lab_is_finished_without_it(pass_it) -> None:
    lesson = passed.lessons()["generate"]
    told = status_of(lesson).sentences[0]
    assert "about 20 minutes left and about 20 minutes beyond the lab. Go on with" in told
    pass_it(NEEDED)
    assert passed.progress_in(lesson).is_finished
    told = repr(status_of(lesson))
    assert "A title (beyond)" in told
    assert f"This lab is finished. If you like, go on with {BEYOND}." in told
    pass_it(BEYOND)
    assert "All 2 exercises of this lab passed." in repr(status_of(lesson))


def test_it_comes_last_of_what_is_left(pass_it) -> None:
    lesson = passed.lessons()["generate"]
    assert [card.exercise for card in passed.progress_in(lesson).left] == [NEEDED, BEYOND]
    pass_it(NEEDED)
    progress = going_on.next_progress()
    assert progress is not None
    assert progress.left[0].exercise == BEYOND
    pass_it(BEYOND)
    assert going_on.next_progress() is None


def test_a_path_leaves_it_out_and_says_so(lesson: Lesson, monkeypatch) -> None:
    monkeypatch.setattr(paths, "lessons", lambda: {"generate": lesson})
    path = paths.CoursePath("All", "", "day", (("generate",),))
    assert path.minutes == 30
    assert path.left_out == "what is beyond in lab 1 (30 min)"
    partly = paths.CoursePath("Part", "", "day", (("generate",),), {"another": ("lab",)})
    assert [card.exercise for card in partly.exercises(lesson)] == [NEEDED]
