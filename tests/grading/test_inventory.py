"""Every entry of submitted/ is graded, or it is said why it is not and what to do."""

import argparse
import csv
import io
import os
import tempfile
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autograder.grading import commands
from autograder.grading.collect import inventory as module
from autograder.grading.collect.clutter import is_clutter
from autograder.grading.collect.inventory import Inventory, inventory
from autograder.grading.give_back.report import report, to_csv, to_html
from autograder.grading.judge.jail import Jail
from autograder.grading.judge.results import NotGraded
from autograder.grading.judge.submission import Unreadable, open_folder
from autograder.grading.refused import Refused
from autograder.grading.store import Course
from autograder.text.lesson import lessons
from tests.common.fake_class import fake_result

LESSON = lessons()["kv_cache"]
THERE = "submitted/ada/02_kv_cache/kv_cache.ipynb"
MOVE = f"Move it to {THERE} and grade again."


def take(folder: Path, *names: str) -> Inventory:
    """An inventory of a submitted/ with these files, and folders where a name ends with a slash."""
    submitted = folder / "submitted"
    submitted.mkdir(exist_ok=True)
    for name in names:
        place = submitted / name
        if name.endswith("/"):
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text("{}")
    return inventory(submitted, LESSON)


# --------------------------------------------------------------------------- of whom it is told


SURE = [
    *("kv_cache.ipynb", "2_kv_cache/kv_cache.ipynb", "2_kv_cache/mine.ipynb", "lab2/mine.ipynb"),
    *("02 KV-Cache (1)/mine.ipynb", "kvcache/deep/down/mine.ipynb", "01_generate/kv_cache.ipynb"),
    *(".02_kv_cache/kv_cache.ipynb", "02_kv_cache/.kv_cache.ipynb", "._kv_cache.ipynb"),
    *("02_kv_cache/work/kv_cache.ipynb", "02_kv_cache/kv_cache.ipynb.txt"),
]
PERHAPS = [
    *("homework.ipynb", "work/a.ipynb", "work.zip", "kv_cache.zip", "kv_cache.py"),
    *("2_kv_cache/", "Lab 2/", "02_kv_cahce/", "02_kv_cache/kv_cache.pdf"),
]
IF = f"If it is for this lab, move the notebook to {THERE} and grade again."
GRADED = (
    "kv_cache.ipynb. The notebook in 02_kv_cache/ is graded. If that is the wrong one, replace it."
)
INSTEAD = "instead of a student. Move its content to submitted/STUDENT/{}/ and grade again."
SEVERAL = f"kv_cache (1).ipynb, kv_cache.ipynb. Move the right one to {THERE} and grade again."
DOT = "begins with a dot. Rename it and grade again."
# What lies in submitted/; what is said of whom; and who has nothing of the lab.
FOLDERS: list[tuple[list[str], dict[str, str], str]] = [
    *(([f"ada/{name}"], {"ada": f": {name}. {MOVE}"}, "") for name in SURE),
    *(([f"ada/{name}"], {"ada": f": {name.rstrip('/')}. {IF}"}, "") for name in PERHAPS),
    (["ada/kv_cache.ipynb", "ada/kv_cache (1).ipynb", "ada/homework.ipynb"], {"ada": SEVERAL}, ""),
    (["ada/02_kv_cache/kv_cache.ipynb", "ada/kv_cache.ipynb"], {"ada": GRADED}, ""),
    (["ada/02_kv_cache/kv_cache.ipynb", "ada/02_kv_cache/.earlier/2026/kv_cache.ipynb"], {}, ""),
    (["ada/02_kv_cache/kv_cache.ipynb", "ada/02_kv_cache/work/kv_cache.ipynb"], {}, ""),
    (["ada/02_kv_cache/kv_cache.ipynb", "ada/notes.ipynb"], {}, ""),
    (["ada/01_generate/generate.ipynb", "bob/1_generate/a.ipynb"], {}, "ada, bob"),
    (["ada/03_batching/scratch.ipynb", "bob/"], {}, "ada, bob"),
    ([".ada/02_kv_cache/kv_cache.ipynb", ".bob/kv_cache.ipynb"], {".ada": DOT, ".bob": DOT}, ""),
    ([".config/a"], {}, ".config"),
    (["02_kv_cache/ada/kv_cache.ipynb"], {"02_kv_cache": INSTEAD.format("02_kv_cache")}, ""),
    (["kv_cache/ada/kv_cache.ipynb"], {"kv_cache": INSTEAD.format("02_kv_cache")}, ""),
    (["01_generate/ada/kv_cache.ipynb"], {"01_generate": INSTEAD.format("01_generate")}, ""),
]


@pytest.mark.parametrize(
    ("names", "misplaced", "without"), FOLDERS, ids=lambda part: str(part)[:40]
)
def test_what_is_not_graded_is_told_with_what_to_do(names, misplaced, without, tmp_path):
    found = take(tmp_path, *names)
    assert found.misplaced.keys() == misplaced.keys()
    for name, why in found.misplaced.items():
        assert why.startswith("not a submission: ")
        assert why.endswith(misplaced[name])
    assert (", ".join(found.without), found.loose) == (without, ())
    notes = [f"Nothing of 02_kv_cache ({len(found.without)}): {without}."] if without else []
    assert found.notes == notes


def test_what_is_directly_in_submitted_is_told(tmp_path: Path) -> None:
    (tmp_path / "submitted").mkdir()
    (tmp_path / "submitted" / "linked").symlink_to("/etc")
    found = take(tmp_path, "kv_cache.ipynb", "all.zip", "ada/02_kv_cache/")
    assert found.loose == ("all.zip", "kv_cache.ipynb", "linked")
    [line] = found.lines
    assert line.startswith("Not a submission (3): all.zip, kv_cache.ipynb, linked. ")
    assert "submitted/STUDENT/02_kv_cache/" in line
    assert "autograder collect FILE.zip" in line


def test_clutter_is_counted_in_one_line(tmp_path: Path) -> None:
    found = take(
        tmp_path,
        ".DS_Store",
        "Thumbs.db",
        "__MACOSX/ada/._kv_cache.ipynb",
        "ada/02_kv_cache/kv_cache.ipynb",
        "ada/02_kv_cache/._kv_cache.ipynb",
        "ada/02_kv_cache/.ipynb_checkpoints/kv_cache-checkpoint.ipynb",
    )
    [line] = found.lines
    assert line.startswith("Ignored: 5 files and folders that operating systems")


# ------------------------------------------------------------------------------------- the walls


def test_no_link_is_followed_and_no_pipe_opened(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kv_cache.ipynb").write_text("{}")
    take(tmp_path, "ada/a", "cat/a")
    (tmp_path / "submitted" / "ada" / "work").symlink_to(outside)
    (tmp_path / "submitted" / "bob").symlink_to(outside)
    os.mkfifo(tmp_path / "submitted" / "cat" / "kv_cache.ipynb")
    found = take(tmp_path)
    assert (set(found.misplaced), found.without, found.loose) == ({"cat"}, ("ada",), ("bob",))
    assert MOVE.replace("ada", "cat") in found.misplaced["cat"]


def test_a_folder_that_cannot_be_opened_is_told(tmp_path: Path, monkeypatch) -> None:
    def closed(name, inside=None):
        if name in ("ada", "private"):
            raise Unreadable("It can't be opened.")
        return open_folder(name, inside)

    monkeypatch.setattr(module, "open_folder", closed)
    found = take(tmp_path, "ada/a", "bob/private/a", "cat/private/a", "cat/02_kv_cache/a.ipynb")
    assert set(found.misplaced) == {"ada", "bob"}
    assert all("can't be opened" in why for why in found.misplaced.values())


def test_of_a_large_folder_only_so_much_is_looked_at(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module, "MOST_ENTRIES", 30)
    monkeypatch.setattr(module, "MOST_STUDENTS", 4)
    files = [f"ada/{i}.txt" for i in range(100)]
    found = take(tmp_path, *files, "bob/a/b/c/d/e/f/g/h/i/j/kv_cache.ipynb", "cat/a.txt")
    assert set(found.misplaced) == {"ada", "bob"}
    assert all("too large" in why for why in found.misplaced.values())
    assert found.whole
    found = take(tmp_path, *(f"{i}" for i in range(10)))
    assert len(found.loose) + len(found.misplaced) + len(found.without) == 4
    assert "Only 4 entries of submitted/ were searched." in found.lines


def test_names_show_every_character_and_lines_stay_few(tmp_path: Path) -> None:
    names = [f"ada\u202e\x1b[2J\n{i}" for i in range(200)]
    tries = [f"{name}/2_kv_cache/kv\ncache\x07.ipynb" for name in names]
    found = take(
        tmp_path, *tries, *(f"empty\n{name}/" for name in names), *(f"f{n}" for n in names)
    )
    assert len(found.misplaced) == len(found.without) == len(found.loose) == 200
    assert all(line.isprintable() and len(line) < 4000 for line in found.lines)
    assert len(found.lines) < 60
    assert "and 150 more: python -m autograder report kv_cache" in found.lines


PARTS = ["ada", ".ada", "02_kv_cache", "2_kv_cache", "01_generate", "work", "__MACOSX"]
PARTS += ["kv_cache.ipynb", "a.ipynb", "generate.ipynb", "notes.txt", ".DS_Store", "w.zip"]
PATHS = st.lists(st.sampled_from(PARTS), min_size=1, max_size=3).map("/".join)


@given(st.lists(PATHS, max_size=6))
def test_nothing_in_submitted_is_lost(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        kept = [
            name for name in names if not any(f"{name}/" in f"{n}/" for n in names if n != name)
        ]
        try:
            found = take(Path(folder), *kept)
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            return  # a name is a file's and a folder's
        told = {*found.students, *found.misplaced, *found.without, *found.loose}
        for name in os.listdir(Path(folder, "submitted")):
            is_folder = Path(folder, "submitted", name).is_dir()
            assert name in told or is_clutter((name,), (), is_folder)
        for name in kept:
            student, *path = name.split("/")
            if path and path[-1] == "kv_cache.ipynb" and "__MACOSX" not in name:
                assert student in found.students or student in found.misplaced


# --------------------------------------------------------------------------- where it is told


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    monkeypatch.setattr(commands, "COURSE", Course(tmp_path))
    return commands.COURSE


def test_grading_a_lab_that_nobody_has_says_where_it_may_be(course: Course) -> None:
    take(course.folder, "ada/2_kv_cache/kv_cache.ipynb")
    with pytest.raises(Refused, match=rf"No student has handed in 02_kv_cache: .*\nada: .*{MOVE}"):
        commands.grade_course(course, LESSON, Jail())


@pytest.mark.parametrize("graded", [["ada", "bob"], []])
def test_grading_ends_with_what_is_not_graded(graded, course, monkeypatch, capsys) -> None:
    take(course.folder, *(f"{name}/02_kv_cache/" for name in ("ada", "bob", "mallory")))
    take(course.folder, "zoe/2_kv_cache/kv_cache.ipynb")
    entered: list[str] = []

    def graded_here(submissions, *how):
        for submission in submissions:
            found = fake_result(submission.student, LESSON, submission=submission.sha256)
            yield submission, found if found.student in graded else NotGraded("It went wrong.")

    monkeypatch.setattr(commands, "graded_here", graded_here)
    monkeypatch.setattr(commands, "entered", lambda *_: set())
    monkeypatch.setattr(commands, "gradebook", lambda *_: nullcontext(entered.append))
    assert commands.grade_course(course, LESSON, Jail()) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "mallory is not graded. It went wrong." in said
    assert "zoe: not a submission: 2_kv_cache/kv_cache.ipynb. Move it to" in said
    assert entered == graded == [result.student for result in course.results(LESSON)]


def test_the_command_writes_it_into_the_report(course, capsys) -> None:
    take(course.folder, "bob/2_kv_cache/kv_cache.ipynb", "ada/02_kv_cache/kv_cache.ipynb")
    given = argparse.Namespace(lab=LESSON)
    with pytest.raises(Refused, match=r"No submission of 02_kv_cache is graded.*\nbob: not a subm"):
        commands.report(given)
    [submission] = course.submissions(LESSON)
    course.keep(submission, fake_result("ada", LESSON, submission=submission.sha256))
    assert commands.report(given) == 0
    for path in capsys.readouterr().out.split():
        assert "2_kv_cache/kv_cache.ipynb. Move it to" in Path(path).read_text(encoding="utf-8")


def test_the_page_and_the_table_tell_of_everybody(tmp_path: Path) -> None:
    found = take(
        tmp_path,
        "ada/02_kv_cache/kv_cache.ipynb",
        "ada/kv_cache.ipynb",
        "bob/kv_cache.ipynb",
        "cat/01_generate/",
        "dan/02_kv_cache/kv_cache.ipynb",
        "stray.ipynb",
    )
    counted = report([fake_result("ada", LESSON, remarks=("Odd.",))], LESSON, found)
    rows = {row["student"]: row for row in csv.DictReader(io.StringIO(to_csv(counted)))}
    assert list(rows) == ["ada", "bob", "dan"]
    assert rows["ada"]["remarks"].startswith("Odd. not a submission: kv_cache.ipynb. The")
    assert rows["bob"]["remarks"].startswith("not a submission: kv_cache.ipynb. Move it to")
    assert rows["dan"]["remarks"] == "not graded yet: python -m autograder grade kv_cache"
    assert (rows["ada"]["total"], rows["bob"]["total"]) == ("0", "")
    page = to_html(counted)
    for said in ("bob", "dan", "Nothing of 02_kv_cache (1): cat.", "(1): stray.ipynb."):
        assert page.index("What is not graded") < page.index(said) < page.index("Students</h2>")
    assert "Results of 1 student." in page
