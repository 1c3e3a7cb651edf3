"""Entering results where the gradebook or the disk stands in the way: real locks, real full disks.

What grading comes to is made up: no code is run.
"""

import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from nbconvert.writers import FilesWriter
from nbgrader.api import Gradebook
from nbgrader.apps import NbGraderAPI

from autograder.__main__ import main
from autograder.grading import commands, demo
from autograder.grading.give_back.gradebook import name_students, reason
from autograder.grading.give_back.plugins import GradeSubmission
from autograder.grading.store import Course
from tests.common.disks import NO_ROOM, full_disk
from tests.common.fake_class import fake_result

LESSON = demo.LESSON
STUDENTS = ("ada", "ben", "cleo")
LOCKED = "is locked by another program. Close that program, or wait until it is done."
GOES_ON = "The results so far are kept: run the same command again to continue from there."

connect = sqlite3.dbapi2.connect
real_autograde = NbGraderAPI.autograde


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Course:
    course = Course(tmp_path_factory.mktemp("course") / "autograder")
    demo.make_course(course)
    for student in STUDENTS:
        folder = course.submitted / student / LESSON.name
        folder.mkdir(parents=True)
        (folder / f"{LESSON.lab}.ipynb").write_bytes(demo.Notebook().file())
    return course


@pytest.fixture
def course(made: Course, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    """A course of three, of whom none is graded, as the command finds it."""
    course = Course(shutil.copytree(made.folder, tmp_path / "autograder"))
    monkeypatch.setattr(commands, "COURSE", course)
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setattr(
        commands,
        "graded_here",
        lambda these, *how: [
            (each, fake_result(each.student, LESSON, submission=each.sha256)) for each in these
        ],
    )
    monkeypatch.setattr(sqlite3.dbapi2, "connect", partial(connect, timeout=0.05))  # not 5 s
    return course


@contextmanager
def locked(course: Course, how: str) -> Iterator[None]:
    with closing(connect(course.gradebook, isolation_level=None)) as other:
        other.execute(f"BEGIN {how}")
        yield


def grade(capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """What the command returns, and what it says, in one line."""
    code = main(["grade", LESSON.lab])
    said = capsys.readouterr()
    return code, " ".join((said.out + said.err).split())


def kept(course: Course) -> int:
    return sum(course.kept(each) is not None for each in course.submissions(LESSON))


def require_all_entered(course: Course, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = grade(capsys)
    assert (code, "did not accept" in said) == (0, False)
    assert demo.scores_of(course) == dict.fromkeys(STUDENTS, 0)
    for student in STUDENTS:
        copy = course.folder / "autograded" / student / LESSON.notebook
        assert "It is not attempted." in copy.read_text(encoding="utf-8")


# ----------------------------------------------------------------------------------- a locked one


@pytest.mark.slow
def test_a_gradebook_that_is_locked_at_the_start_is_told(course: Course, capsys) -> None:
    with locked(course, "EXCLUSIVE"):
        assert grade(capsys) == (1, f"nbgrader's gradebook, {course.gradebook}, {LOCKED}")
    require_all_entered(course, capsys)


@pytest.mark.slow
def test_one_that_is_locked_meanwhile_is_tried_once_and_costs_no_grade(course, capsys, monkeypatch):
    """Each try would wait for five seconds."""
    tried = calls_of_autograde(monkeypatch)
    with locked(course, "IMMEDIATE"):  # it can be read
        code, said = grade(capsys)
    assert code == 1
    assert (
        f"nbgrader did not accept ada, ben, cleo: nbgrader's gradebook, {course.gradebook}, "
        f"{LOCKED} {GOES_ON}"
    ) in said
    assert (tried, kept(course)) == (["ada"], 3)
    require_all_entered(course, capsys)


def calls_of_autograde(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The students whom nbgrader autogrades from now on."""
    students = []

    def autograde(api: NbGraderAPI, lab: str, student: str, **how: Any) -> Any:
        students.append(student)
        return real_autograde(api, lab, student, **how)

    monkeypatch.setattr(NbGraderAPI, "autograde", autograde)
    return students


# ------------------------------------------------------------------------- no room, no right


@pytest.mark.slow
def test_a_full_gradebook_is_told_and_nothing_is_lost(course: Course, capsys) -> None:
    disk, writer = course.folder / "disk", (Gradebook, "update_or_create_student")
    with full_disk(disk, writer, partial(move_there, course.gradebook, disk)) as make_room:
        said = require_not_entered(course, capsys)
        assert re.search(f"{course.folder} can't be written to: .*(full|No space).* Free", said)
        make_room()
        require_all_entered(course, capsys)


def move_there(file: Path, folder: Path) -> None:
    file.symlink_to(shutil.move(file, folder))


def test_a_gradebook_that_can_only_be_read_is_told(course: Course, capsys, monkeypatch) -> None:
    def connect_to_read(path: str, **options: Any) -> sqlite3.Connection:
        return connect(f"file:{path}?mode=ro", **{**options, "uri": True})

    monkeypatch.setattr(sqlite3.dbapi2, "connect", connect_to_read)
    said = require_not_entered(course, capsys)
    assert "can't be written to: attempt to write a readonly database. Check that you may" in said


@pytest.mark.slow
def test_no_room_for_nbgraders_copies_is_told(course: Course, capsys) -> None:
    with full_disk(course.folder / "autograded", (FilesWriter, "write")) as make_room:
        said = require_not_entered(course, capsys)
        assert f"{course.folder} can't be written to: {NO_ROOM}. Free space on its disk. " in said
        make_room()
        require_all_entered(course, capsys)


def require_not_entered(course: Course, capsys: pytest.CaptureFixture[str]) -> str:
    """Every result is kept, none is entered, and the command says why. Return what it says."""
    code, said = grade(capsys)
    assert (code, kept(course)) == (1, 3)
    assert "nbgrader did not accept ada, ben, cleo: " in said
    assert GOES_ON in said
    assert not list((course.folder / "autograded").rglob("*.ipynb"))
    return said


@pytest.mark.slow
def test_no_room_for_results_or_the_report_ends_it_with_a_sentence(course: Course, capsys) -> None:
    full = "{} can't be written to: " + f"{NO_ROOM}. Free space on its disk. {GOES_ON}"
    with full_disk(course.graded(LESSON)) as make_room:
        code, said = grade(capsys)
        assert code == 1
        assert said.endswith(full.format(course.graded(LESSON)))
        make_room()
        require_all_entered(course, capsys)
        folder = course.folder / "reports"
        with full_disk(folder) as make_room:
            assert main(["report", LESSON.lab]) == 1
            assert full.format(folder) in capsys.readouterr().err
            make_room()
            assert main(["report", LESSON.lab]) == 0
            assert {path.suffix for path in folder.iterdir()} == {".html", ".csv"}


def remove_the_lab(course: Course) -> None:
    with Gradebook(f"sqlite:///{course.gradebook}") as known:
        known.remove_assignment(LESSON.name)


NO_LAB = f"doesn't have {LESSON.name}. Enter the labs: make labs"
NO_DATABASE = "can't be read: file is not a database. Restore your last copy of it."
SPOILED: dict[str, tuple[Callable[[Course], object], str]] = {
    "another file": (
        lambda course: (course.folder / "secret").mkdir(mode=0o700),
        "secret: Is a directory. Check that it exists",
    ),
    "no database": (lambda course: course.gradebook.write_bytes(b"none" * 1000), NO_DATABASE),
    "no gradebook": (lambda course: course.gradebook.unlink(), NO_LAB),
    "an empty file": (lambda course: course.gradebook.write_bytes(b""), NO_LAB),
    "without the lab": (remove_the_lab, NO_LAB),
}


@pytest.mark.parametrize(("spoil", "why"), SPOILED.values(), ids=SPOILED)
def test_a_file_that_it_cannot_use_is_told_before_it_grades(spoil, why, course, capsys) -> None:
    spoil(course)
    code, said = grade(capsys)
    assert (code, list(course.graded(LESSON).glob("*.json"))) == (1, [])
    assert why in said


def test_while_one_grader_is_at_work_another_is_refused(course: Course, capsys) -> None:
    with commands.only_grader(course):
        code, said = grade(capsys)
    assert (code, kept(course)) == (1, 0)
    assert said == (
        f"Another grader is at work on the course in {course.folder}. Wait until it is done, or "
        "stop it. Then run the same command again: what is graded by then is not graded again."
    )


def test_students_get_their_names_from_the_table_unless_they_have_one(course: Course) -> None:
    with Gradebook(f"sqlite:///{course.gradebook}") as known:
        known.add_student("ada-7")
        known.add_student("ben", first_name="Ben", last_name="Bold")
        known.add_student("cleo")
    rows = "id,name,file", "ada-7,Ada Lovelace,a.ipynb", "ben,Benjamin,b.ipynb"
    course.students.write_text("\n".join(rows))
    name_students(course)
    with Gradebook(f"sqlite:///{course.gradebook}") as known:
        found = {each.id: (each.last_name, each.first_name) for each in known.students}
    assert found["ada-7"] == ("Ada Lovelace", "")
    assert (found["ben"], found["cleo"]) == (("Bold", "Ben"), (None, None))


# ----------------------------------------------------------------------- what nbgrader makes of it


class Killed(BaseException):
    """Stops nbgrader as a kill would: it puts nothing away."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stopped_by", "ends_with", "copies", "results"),
    [(Killed, 1, 3, 3), (KeyboardInterrupt, 130, 0, 1)],  # nbgrader catches a KeyboardInterrupt
)
def test_one_that_was_stopped_before_it_entered_points_is_entered_again(
    stopped_by, ends_with, copies, results, course: Course, capsys, monkeypatch
) -> None:
    """Of one that was killed nbgrader's copy is there by then, and newer than the result."""

    def stopped(*_: Any) -> None:
        raise stopped_by

    with monkeypatch.context() as patch:
        patch.setattr(GradeSubmission, "preprocess", stopped)
        assert grade(capsys)[0] == ends_with
    assert len(list((course.folder / "autograded").rglob("*.ipynb"))) == copies
    assert kept(course) == results
    require_all_entered(course, capsys)


@pytest.mark.slow
def test_an_earlier_notebook_that_is_handed_in_again_is_entered_again(course, capsys, monkeypatch):
    path = course.submitted / "ada" / LESSON.notebook
    earlier = path.read_bytes()
    for content in (earlier, b"later", earlier):
        path.write_bytes(content)
        tried = calls_of_autograde(monkeypatch)
        grade(capsys)
        assert "ada" in tried


def test_a_reason_is_the_last_error_that_is_told_of() -> None:
    log = "[ERROR] It went wrong\n    Traceback\n      raise x\n    a.B: in the way\n\n[ERROR] so"
    assert reason({"log": log, "error": "Traceback\nc.D: see above"}) == "a.B: in the way"
    assert reason({"log": "[ERROR] so", "error": "Traceback\nc.D: here"}) == "c.D: here"
    assert reason({"error": ""}) == "nbgrader gave no reason."
