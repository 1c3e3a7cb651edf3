"""Reading what was handed in: whatever it is, it is a notebook or a sentence to the student."""

import codecs
import contextlib
import json
import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autograder.grading.collect.timestamp import handed_in_at, written
from autograder.grading.judge import submission as module
from autograder.grading.judge.submission import (
    MOST_BYTES,
    Cell,
    Submission,
    Unreadable,
    read_beside,
    read_cells,
    read_submission,
    students,
)
from autograder.text.lesson import lessons
from tests.common.handed_in import code, notebook, prose

LESSON = lessons()["kv_cache"]
CONTENT = notebook([code("1 + 1")]).encode()


@pytest.fixture
def submitted(tmp_path: Path) -> Path:
    """A course with a file that is nobody's business beside submitted/."""
    (tmp_path / "secret.ipynb").write_bytes(CONTENT)
    (tmp_path / "submitted").mkdir()
    return tmp_path / "submitted"


@pytest.fixture
def folder(submitted: Path) -> Path:
    """Where ada's lab belongs."""
    folder = submitted / "ada" / LESSON.name
    folder.mkdir(parents=True)
    return folder


def read(submitted: Path, student: str = "ada") -> Submission:
    return read_submission(submitted, student, LESSON)


# ------------------------------------------------------------------------------- in submitted/


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("kv_cache.ipynb", []),
        ("kv_cache.ipynb", ["copy.ipynb"]),
        ("kv_cache (1).ipynb", ["._kv_cache.ipynb", "notes.txt"]),
    ],
)
def test_the_notebook_of_the_right_name_is_read_or_the_only_one(name, others, submitted, folder):
    (folder / name).write_bytes(CONTENT)
    for other in others:
        (folder / other).write_bytes(b"no notebook")
    assert read(submitted) == Submission("ada", "kv_cache", CONTENT)
    (submitted.parent / "elsewhere").symlink_to(submitted)  # submitted/ itself may be a link
    assert read(submitted.parent / "elsewhere").content == CONTENT


def two_of_other_names(folder: Path) -> None:
    for name in ("b.ipynb", "a.ipynb"):
        (folder / name).write_bytes(CONTENT)


def linked_notebook(folder: Path, name: str = "kv_cache.ipynb") -> None:
    (folder / name).symlink_to(folder.parents[2] / "secret.ipynb")


def behind_a_link(folder: Path) -> None:
    folder.rename(folder.with_name("real"))
    folder.symlink_to("real")


def file_for_a_folder(folder: Path) -> None:
    folder.rmdir()
    folder.write_bytes(CONTENT)


def huge(folder: Path) -> None:
    with (folder / "kv_cache.ipynb").open("wb") as file:
        file.truncate(MOST_BYTES + 1)


LINK = "kv_cache.ipynb is a link to a file elsewhere. Hand in the notebook"
NOT_ORDINARY = "kv_cache.ipynb is not an ordinary file."
NONE = "There is no notebook in 02_kv_cache. Hand in kv_cache.ipynb."
NAMELESS = (
    "There are 2 notebooks in 02_kv_cache, but none is named kv_cache.ipynb (a.ipynb, b.ipynb). "
    "Hand in one notebook named kv_cache.ipynb."
)
ODD: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (lambda folder: None, NONE),
    "no folder": (Path.rmdir, "Nothing was handed in: there is no folder 02_kv_cache."),
    "several": (two_of_other_names, NAMELESS),
    "link": (linked_notebook, LINK),
    "link of another name": (lambda folder: linked_notebook(folder, "mine.ipynb"), NONE),
    "dangling link": (lambda folder: (folder / "kv_cache.ipynb").symlink_to("nowhere"), LINK),
    "linked lab": (
        behind_a_link,
        "02_kv_cache is a link or a file. Hand in a folder with this name",
    ),
    "linked student": (lambda folder: behind_a_link(folder.parent), "ada is a link or a file."),
    "pipe": (lambda folder: os.mkfifo(folder / "kv_cache.ipynb"), NOT_ORDINARY),
    "folder for a file": (lambda folder: (folder / "kv_cache.ipynb").mkdir(), NOT_ORDINARY),
    "file for a folder": (file_for_a_folder, "02_kv_cache is a link or a file."),
    "too large": (huge, "kv_cache.ipynb is larger than 32 MB. Clear its outputs"),
}


@pytest.mark.parametrize("what", ODD)
def test_what_is_no_ordinary_notebook_is_not_read_and_its_student_is_one(what, submitted, folder):
    make, problem = ODD[what]
    if what.startswith("linked"):
        (folder / "kv_cache.ipynb").write_bytes(CONTENT)
    make(folder)
    found = read(submitted)
    assert found.content is None
    assert found.problem.startswith(problem)
    assert ("ada" in students(submitted, LESSON)) == (what != "no folder")


@pytest.mark.parametrize("name", ["..", ".", "../submitted/ada", "/etc"])
def test_a_student_is_a_folder_in_submitted(name, submitted, folder):
    (submitted / LESSON.name).mkdir()
    (submitted.parent / LESSON.name).mkdir()
    for place in (submitted, submitted.parent):
        (place / LESSON.name / "kv_cache.ipynb").write_bytes(CONTENT)
    assert read(submitted, name).content is None


def test_the_largest_notebook_is_read_whole(submitted, folder):
    (folder / "kv_cache.ipynb").write_bytes(b" " * MOST_BYTES)
    assert len(read(submitted).content) == MOST_BYTES


def test_hashes_tell_submissions_apart():
    a, b = Submission("ada", "kv_cache", b"a"), Submission("ada", "kv_cache", b"b")
    none = Submission("ada", "kv_cache", None, "There is none.")
    assert len({a.sha256, b.sha256, none.sha256}) == 3
    assert a.sha256 == Submission("bob", "kv_cache", b"a").sha256


# ------------------------------------------------------------------------------------ students


def test_students_are_those_who_handed_in_something_for_the_lab(submitted, folder):
    for name in ("zoe", "bob"):
        (submitted / name / LESSON.name).mkdir(parents=True)
    (submitted / "other lab" / "01_generate").mkdir(parents=True)
    (submitted / ".hidden" / LESSON.name).mkdir(parents=True)
    (submitted / "grades.csv").write_text("")
    assert students(submitted, LESSON) == ["ada", "bob", "zoe"]


# -------------------------------------------------------------------------- beside a notebook


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-05-04 10:11:12.131415 UTC", datetime(2026, 5, 4, 10, 11, 12, 131415)),
        ("2026-05-04T10:11:12+02:00\n", datetime(2026, 5, 4, 8, 11, 12)),
        ("2026-05-04", datetime(2026, 5, 4)),
        (written(datetime(2026, 5, 4, 10, 11, 12, 5)), datetime(2026, 5, 4, 10, 11, 12, 5)),
        ("", None),
        ("soon", None),
        ("9" * 90, None),
        ("1" * 1000, None),
        ("2026-05-04 10:11:12 /etc/passwd", None),
    ],
)
def test_the_time_is_read_where_it_is_one(text, time, submitted, folder):
    (folder / "timestamp.txt").write_text(text)
    assert handed_in_at(submitted, "ada", LESSON) == time


def test_no_time_is_read_through_a_link_or_a_pipe(submitted, folder, tmp_path):
    (tmp_path / "time").write_text("2026-05-04")
    (folder / "timestamp.txt").symlink_to(tmp_path / "time")
    assert handed_in_at(submitted, "ada", LESSON) is None
    (folder / "timestamp.txt").unlink()
    os.mkfifo(folder / "timestamp.txt")
    assert handed_in_at(submitted, "ada", LESSON) is None
    assert read_beside(submitted, "nobody", LESSON, "timestamp.txt", 10) is None


# ------------------------------------------------------------------------------ in a notebook


CELLS = [Cell(code=True, source="x = 'é'"), Cell(code=False, source="Prose")]
JSON = notebook([code("x = 'é'"), prose("Prose")])
PLAIN = json.dumps(json.loads(JSON), ensure_ascii=False)


OLD = {"nbformat": 3, "worksheets": [{"cells": [{"cell_type": "code", "input": "x"}]}, 4]}


@pytest.mark.parametrize(
    ("content", "cells"),
    [
        (JSON.encode(), CELLS),
        (PLAIN.encode(), CELLS),
        (codecs.BOM_UTF8 + PLAIN.encode(), CELLS),
        (PLAIN.encode("utf-16"), CELLS),
        (PLAIN.encode("latin-1"), CELLS),
        (PLAIN.replace("3", "3" * 10_000).encode(), CELLS),
        (PLAIN.replace("3", "NaN").encode(), CELLS),
        (b'{"cells": [{"source": "a\tb\nc"}]}', [Cell(False, "a\tb\nc")]),  # a tab as it is
        (json.dumps(OLD).encode(), [Cell(True, "x")]),
    ],
)
def test_cells_are_read_whatever_the_encoding_and_the_format(content, cells):
    assert read_cells(content) == cells


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ({"cell_type": "code", "source": ["a\r\n", "b"]}, Cell(True, "a\nb")),
        ({"cell_type": "code", "source": ["a", 3, None]}, Cell(True, "a")),
        ({"cell_type": "code", "source": {"a": 1}}, Cell(True, "")),
        ({"cell_type": "code", "input": "old"}, Cell(True, "old")),
        ({"cell_type": "code"}, Cell(True, "")),
        ({"cell_type": "heading", "source": "H"}, Cell(False, "H")),
        ({"cell_type": "raw", "source": "r"}, Cell(False, "r")),
        ({"cell_type": ["code"], "source": "r"}, Cell(False, "r")),
        ({"source": "\ud800!"}, Cell(False, "\ufffd!")),
        ({"source": "a\nb\tc"}, Cell(False, "a\nb\tc")),
        ({"source": "s", "id": "x", "metadata": None}, Cell(False, "s", "x")),
        ({"source": "s", "id": 3, "metadata": {"nbgrader": []}}, Cell(False, "s")),
        (
            {"source": "s", "metadata": {"nbgrader": {"grade_id": "g", "schema_version": 99}}},
            Cell(False, "s", None, "g"),
        ),
        ({"source": "s", "metadata": {"nbgrader": {"grade_id": ["g"]}}}, Cell(False, "s")),
    ],
)
def test_what_can_be_used_of_a_cell_is_used(cell, expected):
    content = json.dumps({"cells": [3, None, cell, "cell"]}).encode()
    assert read_cells(content) == [expected]


def test_only_pictures_are_taken_of_what_is_pasted_into_prose():
    good = {"image/png": "iVBORw0KGgo=\n"}
    pasted = {
        "a.png": {**good, "text/html": "<script>"},
        "b.svg": {"image/svg+xml": "PHN2Zz4="},
        "c.png": {"image/png": '"><script>'},
        "d.png": 3,
        "\ud800.png": good,
    }
    (cell,) = read_cells(notebook([prose("![a](attachment:a.png)", attachments=pasted)]).encode())
    assert cell.pictures == {"a.png": good, "\ufffd.png": good}


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"\x00\x01", b"print('hello')", b"<html>", b"[]", b"3", b"{}"),
        *(b'{"cells": 3}', b'{"cells": {"a": 1}}'),
        JSON.encode()[:-20],
        b'{"cells": ' + b"[" * 100_000,
        b'{"cells": [' + b"[]," * 600_000 + b"[]]}",
        b'{"cells": [' + b'{"a":' * 5000,
    ],
)
def test_what_is_no_notebook_is_told_in_a_sentence(content):
    with pytest.raises(Unreadable, match=r"^The .* JupyterLab\.$|hand it in again\.$"):
        read_cells(content)


@given(st.binary(max_size=200))
def test_no_bytes_at_all_stop_the_reader(content):
    with contextlib.suppress(Unreadable):
        read_cells(content)


KEYS = ["cells", "worksheets", "cell_type", "source", "input", "id", "metadata", "nbgrader"]
KEYS += ["grade_id", "attachments", "a.png", "image/png"]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5)
    ),
    max_leaves=20,
)


@given(st.lists(VALUES, max_size=4))
def test_no_notebook_at_all_stops_the_reader(cells):
    for cell in read_cells(json.dumps({"cells": cells}).encode()):
        assert isinstance(cell.source, str)
        cell.source.encode()


def test_the_parts_of_a_notebook_are_counted_before_it_is_read(monkeypatch):
    monkeypatch.setattr(module, "MOST_PARTS", 10)
    with pytest.raises(Unreadable, match="too many parts"):
        read_cells(notebook([code("[1, 2]")] * 10).encode())
