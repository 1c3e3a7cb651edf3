"""A download of a learning platform, sorted into submitted/: whose, which lab, and nothing lost."""

import csv
import io
import json
import os
import re
import stat
import struct
import tempfile
import time
import zipfile
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nbgrader.coursedir import CourseDirectory
from nbgrader.utils import find_all_files

from autograder.course.lesson import lessons
from autograder.grading import archive as archives
from autograder.grading.collect import Collected, NotCollected, collect
from autograder.grading.download import student

ROOT = Path(__file__).resolve().parents[2]
KV_CACHE, BATCHING = lessons()["kv_cache"], lessons()["batching"]
NOON = datetime(2026, 11, 20, 12)
HOUR = timedelta(hours=1)
THEN = "2026-11-20-10-00-00"


def text(words: str = "mine", grade_id: str | None = None) -> bytes:
    cells: list[dict[str, Any]] = [{"cell_type": "markdown", "metadata": {}, "source": words}]
    if grade_id:
        cells[0]["metadata"] = {"nbgrader": {"grade_id": grade_id}}
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4}).encode()


def zipped(*files: tuple[str | zipfile.ZipInfo, bytes], when: datetime = NOON) -> bytes:
    """A zip archive of names and contents, in this order, names twice if they are given twice."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files:
            info = name if isinstance(name, zipfile.ZipInfo) else entry(name, when)
            archive.writestr(info, content)
    return held.getvalue()


def entry(name: str, when: datetime = NOON, mode: int = 0) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, when.timetuple()[:6])
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = mode << 16
    return info


class Course:
    """A folder autograder/ in which downloads are collected."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.submitted = root / "autograder" / "submitted"
        self.table = root / "autograder" / "students.csv"

    def collect(
        self, *files: tuple[str | zipfile.ZipInfo, bytes], when: datetime = NOON, lesson=None
    ) -> Collected:
        path = self.root / "download.zip"
        path.write_bytes(zipped(*files, when=when))
        return collect(path, self.submitted, lesson)

    def files(self) -> dict[str, bytes]:
        """All that stands in submitted/, but for what is hidden."""
        return {
            str(path.relative_to(self.submitted)): path.read_bytes()
            for path in sorted(self.submitted.rglob("*"))
            if path.is_file() and not re.search(r"(^|/)\.", str(path.relative_to(self.submitted)))
        }

    def everything(self) -> list[bytes]:
        """What every notebook below the course's root holds, hidden or not."""
        return sorted(path.read_bytes() for path in self.root.rglob("*.ipynb"))

    def rows(self) -> list[dict[str, str]]:
        with self.table.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))


@pytest.fixture
def course(tmp_path: Path) -> Course:
    return Course(tmp_path)


def reasons(collected: Collected) -> dict[str, str]:
    return {each.file: each.reason for each in collected.left_out}


# ----------------------------------------------------------------------------------- whose it is

SHAPES = {
    "Ada Lovelace_123456_assignsubmission_file_/kv_cache.ipynb": "ada-lovelace-123456",
    "Ada Lovelace_123456_assignsubmission_file/kv_cache.ipynb": "ada-lovelace-123456",
    "Ada Lovelace_123456_assignsubmission_file_kv_cache.ipynb": "ada-lovelace-123456",
    "Participant_77_assignsubmission_file_/deep/down/kv_cache.ipynb": "participant-77",
    "Зоя_9_assignsubmission_file_/kv_cache.ipynb": "student-9",
    "lovelaceada_12345_67890_kv_cache.ipynb": "lovelaceada-12345",
    "lovelaceada_LATE_12345_67890_kv_cache-1.ipynb": "lovelaceada-12345",
    "lovelace_ada_12345_67890_kv_cache.ipynb": "lovelace-ada-12345",
    "Assignment_ada_attempt_2026-11-20-10-00-00_kv_cache.ipynb": "ada",
    "Lab_2_20103940_attempt_2026-11-20-10-00-00_kv_cache.ipynb": "20103940",
    "ada/kv_cache.ipynb": "ada",
    "ada/02_kv_cache/kv_cache.ipynb": "ada",
    "ada\\work\\kv_cache.ipynb": "ada",
    "./.Ada Lovelace_123456_assignsubmission_file_/kv_cache.ipynb": "ada-lovelace-123456",
    ".ada_12345_67890_kv_cache.ipynb": "ada-12345",
    "._ada_12345_67890_kv_cache.ipynb": "ada-12345",
    "Lab_.ada_attempt_2026-11-20-10-00-00_kv_cache.ipynb": student(".ada").id,
    ".ada/02_kv_cache/kv_cache.ipynb": student(".ada").id,
    "...ada/kv_cache.ipynb": student("...ada").id,
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_file_goes_to_the_student_whom_its_name_tells(course: Course, name: str) -> None:
    collected = course.collect((name, text()))
    assert course.files().keys() - timestamps(course) == {
        f"{SHAPES[name]}/02_kv_cache/kv_cache.ipynb"
    }
    assert [placed.file for placed in collected.placed] == [name]
    assert not collected.left_out
    assert not collected.without


def timestamps(course: Course) -> set[str]:
    return {name for name in course.files() if name.endswith("timestamp.txt")}


def test_canvas_without_names_keeps_small_and_capital_letters_apart(course: Course) -> None:
    course.collect(
        ("anon_AbC12_1_kv_cache.ipynb", text("one")),
        ("anon_aBc12_2_kv_cache.ipynb", text("two")),
        ("LATE_anon_x9_3_kv_cache.ipynb", text("three")),
    )
    ids = [name.split("/")[0] for name in course.files()]
    assert len({id.lower() for id in ids}) == 3
    assert sum(id.startswith("anon-abc12-") for id in ids) == 2


def test_two_students_of_one_name_stay_two(course: Course) -> None:
    course.collect(
        ("Ada Lovelace_1_assignsubmission_file_/kv_cache.ipynb", text("first")),
        ("Ada Lovelace_2_assignsubmission_file_/kv_cache.ipynb", text("second")),
    )
    assert course.files() == {
        "ada-lovelace-1/02_kv_cache/kv_cache.ipynb": text("first"),
        "ada-lovelace-2/02_kv_cache/kv_cache.ipynb": text("second"),
    }


@pytest.mark.parametrize(
    "names",
    [
        ("ada", "Ada", "ADA"),
        ("zoë", "zoe", "zoê"),
        ("a b", "a  b", "a-b"),
        ("ada", "ada\u202e", "ada\u200b", "ada\n"),
        ("x" * 300, "x" * 299 + "y", "x" * 40),
        ("[ab]*", "?ab", "ab"),
        ("con", "con.x", "aux"),
        ("a+b", "a", "ab:c", "{a}"),
        ("ada.", "ada"),
    ],
)
def test_names_that_look_alike_stay_apart_on_every_disk(course: Course, names) -> None:
    course.collect(*((f"{name}/kv_cache.ipynb", text(name)) for name in names))
    files = course.files()
    assert sorted(files.values()) == sorted(text(name) for name in names)
    ids = {name.split("/")[0] for name in files}
    assert len({id.lower() for id in ids}) == len(names)
    assert all(re.fullmatch(r"[a-z0-9]([a-z0-9._-]{0,60}[a-z0-9])?", id) for id in ids)
    assert not ids & {"con", "con.x", "aux"}
    assert all(CourseDirectory(student_id=id).student_id == id for id in ids)


def test_a_name_is_the_same_student_however_its_accents_are_written() -> None:
    assert student("zoe\u0308").id == student("zo\u00eb").id


def test_a_folder_around_the_download_is_not_a_student(course: Course) -> None:
    course.collect(
        ("submissions/ada/kv_cache.ipynb", text("a")),
        ("submissions/bob/kv_cache.ipynb", text("b")),
        ("submissions/grades.csv", b"x"),
    )
    assert {name.split("/")[0] for name in course.files()} == {"ada", "bob"}
    course.collect(("lab 2/lovelaceada_1_2_kv_cache.ipynb", text("c")))
    assert "lovelaceada-1/02_kv_cache/kv_cache.ipynb" in course.files()


def test_a_folder_around_one_students_work_is_the_student(course: Course) -> None:
    course.collect(
        ("ada/02_kv_cache/kv_cache.ipynb", text("a")),
        ("ada/03_batching/batching.ipynb", text("a")),
    )
    course.collect(
        ("Bob_1_assignsubmission_file_/Ada_9_assignsubmission_file_/kv_cache.ipynb", text("b"))
    )
    course.collect(("Cat_2_assignsubmission_file_/ada_9_9_kv_cache.ipynb", text()), lesson=KV_CACHE)
    assert {name.split("/")[0] for name in course.files()} == {"ada", "bob-1", "cat-2"}


@pytest.mark.parametrize("prefix", ["A_1_assignsubmission_file_", "a_1_2_", f"L_a_attempt_{THEN}_"])
def test_odd_characters_in_a_file_name_make_it_nobody_elses(course: Course, prefix: str) -> None:
    course.collect((f"{prefix}kv\n\u202e\x07cache.ipynb", text()), lesson=KV_CACHE)
    [folder] = course.submitted.iterdir()
    assert folder.name in ("a", "a-1")


def test_a_student_who_names_a_file_like_anothers_stays_who_they_are(course: Course) -> None:
    course.collect(
        ("eve_1_10_Lab_ada_attempt_2026-11-20-10-00-00_kv_cache.ipynb", text("eve")),
        ("lovelaceada_2_11_kv_cache.ipynb", text("ada")),
        lesson=KV_CACHE,
    )
    assert course.files() == {
        "eve-1/02_kv_cache/kv_cache.ipynb": text("eve"),
        "lovelaceada-2/02_kv_cache/kv_cache.ipynb": text("ada"),
    }
    course.collect(
        ("eve/Ada_9_assignsubmission_file_kv_cache.ipynb", text("eve", "check-batching-pad_left")),
        ("ada/kv_cache.ipynb", text("ada")),
    )
    assert "eve/03_batching/batching.ipynb" in course.files()


def test_blackboard_names_that_end_alike_stay_apart(course: Course) -> None:
    course.collect(
        ("Lab_ada_l_attempt_2026-11-20-10-00-00_kv_cache.ipynb", text("ada")),
        ("Lab_bob_l_attempt_2026-11-20-10-00-00_kv_cache.ipynb", text("bob")),
    )
    assert {text("ada"), text("bob")} <= set(course.files().values())


def test_a_file_that_nobody_is_named_on_is_left_out_with_what_to_do(course: Course) -> None:
    collected = course.collect(("kv_cache.ipynb", text()), ("ada/kv_cache.ipynb", text()))
    assert "give each student a folder" in reasons(collected)["kv_cache.ipynb"]
    assert len(collected.placed) == 1


# ---------------------------------------------------------------------------------- which lab


@pytest.mark.parametrize(
    "file",
    [
        "kv_cache.ipynb",
        "kv_cache-1.ipynb",
        "kv_cache (2).ipynb",
        "kv_cache-Copy1.ipynb",
        "Copy of KV cache.ipynb",
        "02_kv_cache.ipynb",
        "KV-Cache.IPYNB",
        "kv_cache.ipynb.txt",
        "kv_cache.ipynb.json",
    ],
)
def test_a_lab_is_known_by_its_file_name(course: Course, file: str) -> None:
    course.collect((f"ada/{file}", text(grade_id="check-batching-pad_left")))
    assert list(course.files()) == ["ada/02_kv_cache/kv_cache.ipynb"]


@pytest.mark.parametrize(
    "content",
    [
        text(grade_id="check-kv_cache-KVCache-attend"),
        text(grade_id="kv_cache-causal_mask"),
        text(grade_id="memory_or_compute"),
        (ROOT / "labs" / KV_CACHE.notebook).read_bytes(),
        b'{"metadata": {"lesson_build": {"lesson": "solutions/lessons/02_kv_cache.md"}}}',
        text(grade_id="check-kv_cache-causal_mask")[:-9],
    ],
    ids=["check", "solution", "question", "released", "built", "torn"],
)
def test_else_by_its_cells_even_where_it_is_broken(course: Course, content: bytes) -> None:
    course.collect(("ada/final version.ipynb", content))
    assert course.files() == {"ada/02_kv_cache/kv_cache.ipynb": content}


def test_else_by_the_lab_that_was_given(course: Course) -> None:
    collected = course.collect(("ada/homework.ipynb", b"no notebook at all"))
    assert "--lab" in reasons(collected)["ada/homework.ipynb"]
    assert course.files() == {}
    course.collect(("ada/homework.ipynb", b"no notebook at all"), lesson=KV_CACHE)
    assert course.files() == {"ada/02_kv_cache/kv_cache.ipynb": b"no notebook at all"}


def test_a_notebook_that_may_be_anything_yields_to_one_of_the_lab(course: Course) -> None:
    collected = course.collect(
        (entry("ada/scratch.ipynb", NOON + HOUR), text("scratch")),
        ("ada/kv_cache.ipynb", text("lab")),
        lesson=KV_CACHE,
    )
    assert course.files() == {"ada/02_kv_cache/kv_cache.ipynb": text("lab")}
    assert "less doubtful" in reasons(collected)["ada/scratch.ipynb"]


def test_with_a_lab_given_no_other_is_touched(course: Course) -> None:
    course.collect(("ada/kv_cache.ipynb", text("in time")), lesson=KV_CACHE)
    collected = course.collect(
        ("ada/kv_cache.ipynb", text("after the solutions were out")),
        ("ada/batching.ipynb", text("lab 3")),
        when=NOON + HOUR,
        lesson=BATCHING,
    )
    assert course.files() == {
        "ada/02_kv_cache/kv_cache.ipynb": text("in time"),
        "ada/03_batching/batching.ipynb": text("lab 3"),
    }
    assert "another lab than 03_batching" in reasons(collected)["ada/kv_cache.ipynb"]


# ------------------------------------------------------------------------------- within an archive


def test_a_students_own_zip_is_opened(course: Course) -> None:
    released = (ROOT / "labs" / KV_CACHE.notebook).read_bytes()
    course.collect(
        (
            "lovelaceada_1_2_work.zip",
            zipped(
                ("work/02_kv_cache/kv_cache.ipynb", text("solved")),
                (entry("labs/02_kv_cache/kv_cache.ipynb", NOON - HOUR), released),
                ("work/03_batching/batching.ipynb", text("batching")),
                ("__MACOSX/work/._kv_cache.ipynb", b"junk"),
                (
                    entry("work/.ipynb_checkpoints/kv_cache-checkpoint.ipynb", NOON + HOUR),
                    text("old", "check-kv_cache-causal_mask"),
                ),
                ("gpt.py", b"import torch"),
            ),
        )
    )
    assert course.files() == {
        "lovelaceada-1/02_kv_cache/kv_cache.ipynb": text("solved"),
        "lovelaceada-1/03_batching/batching.ipynb": text("batching"),
    }


def test_names_within_a_students_zip_are_the_students_own(course: Course) -> None:
    inner = zipped(("Ada Lovelace_9_assignsubmission_file_/kv_cache.ipynb", text("eve")))
    course.collect(("Eve_1_assignsubmission_file_/mine.zip", inner))
    assert list(course.files()) == ["eve-1/02_kv_cache/kv_cache.ipynb"]


def test_a_zip_within_a_students_zip_stays_closed(course: Course) -> None:
    inner = zipped(("kv_cache.ipynb", text()))
    collected = course.collect(("ada/a.zip", zipped(("b.zip", inner))))
    assert course.files() == {}
    assert "within a student's zip" in reasons(collected)["ada/a.zip › b.zip"]
    assert [student.id for student, _ in collected.without] == ["ada"]


def test_of_two_uploads_the_last_one_counts(course: Course) -> None:
    collected = course.collect(
        ("lovelaceada_LATE_1_100_kv_cache-1.ipynb", text("last")),
        ("lovelaceada_1_99_kv_cache.ipynb", text("first")),
        ("bob_2_98_kv_cache.ipynb", text("bob")),
    )
    assert course.files()["lovelaceada-1/02_kv_cache/kv_cache.ipynb"] == text("last")
    assert list(reasons(collected)) == ["lovelaceada_1_99_kv_cache.ipynb"]
    assert [placed.late for placed in collected.placed] == [False, True]
    assert "1 late" in str(collected)


def test_of_two_attempts_the_last_one_counts_whatever_the_archive_says(course: Course) -> None:
    course.collect(
        ("L_ada_attempt_2026-11-20-10-00-00_kv_cache.ipynb", text("last")),
        (entry("L_ada_attempt_2026-11-19-10-00-00_kv_cache.ipynb", NOON + HOUR), text("first")),
        ("L_ada_attempt_2026-11-20-10-00-00.txt", b"Name: Ada Lovelace (ada)"),
    )
    assert course.files()["ada/02_kv_cache/kv_cache.ipynb"] == text("last")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_of_two_entries_of_one_name_the_last_one_counts(course: Course) -> None:
    collected = course.collect(("ada/kv_cache.ipynb", text("1")), ("ada/kv_cache.ipynb", text("2")))
    assert course.files() == {"ada/02_kv_cache/kv_cache.ipynb": text("2")}
    assert len(collected.left_out) == 1


def test_a_student_without_a_notebook_is_named_and_gets_a_folder(course: Course) -> None:
    files = [("ada/report.pdf", b"%PDF"), ("ada/notes.txt", b""), ("bob/kv_cache.ipynb", text())]
    collected = course.collect(*files)
    assert not (course.submitted / "ada").exists()  # of which lab, nobody said
    collected = course.collect(*files, lesson=KV_CACHE)
    assert [(s.id, names) for s, names in collected.without] == [
        ("ada", ("ada/report.pdf", "ada/notes.txt"))
    ]
    assert list((course.submitted / "ada" / "02_kv_cache").iterdir()) == []
    assert "Nothing could be collected of ada (ada): ada/report.pdf" in str(collected)


def encrypted(archive: bytes) -> bytes:
    """The same archive, of which the first entry says that it is encrypted."""
    changed = bytearray(archive)
    changed[archive.index(b"PK\x01\x02") + 8] |= 1
    return bytes(changed)


LINK = entry("eve/kv_cache.ipynb", mode=stat.S_IFLNK | 0o777)
DEEP = "eve/" + "a/" * 100 + "kv_cache.ipynb"
NOTHING_TO_READ = [
    ("it is a link", zipped((LINK, b"/etc/passwd"))),
    ("it is encrypted", encrypted(zipped(("eve/kv_cache.ipynb", text())))),
    ("the name leads out", zipped(("eve/../../kv_cache.ipynb", text()))),
    ("the name leads out", zipped(("../eve_1_2_kv_cache.ipynb", text()))),
    ("begins with a dot", zipped(("eve/.work/kv_cache.ipynb", text()))),
    ("begins with a dot", zipped(("eve_1_2_.kv_cache.ipynb", text()))),
    ("it is an empty folder", zipped(("eve/work/", b""))),
    ("it lies in more than 100 folders", zipped((DEEP, text()))),
    ("it is not a notebook", zipped(("eve/kv_cache.py", b""))),
    ("there is nothing in it", zipped(("eve/work.zip", zipped()))),
    ("Passed over: 1 file or folder", zipped(("eve/.DS_Store", b""))),
]


@pytest.mark.parametrize(("reason", "download"), NOTHING_TO_READ)
def test_a_student_of_whom_nothing_can_be_read_is_named_and_gets_a_folder(
    course: Course, reason: str, download: bytes
) -> None:
    path = course.root / "download.zip"
    path.write_bytes(download)
    collected = collect(path, course.submitted, KV_CACHE)
    [(eve, _)] = collected.without
    assert eve.id in ("eve", "eve-1")
    assert list((course.submitted / eve.id / "02_kv_cache").iterdir()) == []
    assert f"Nothing could be collected of eve ({eve.id}): " in str(collected)
    assert reason in str(collected)
    assert course.everything() == []
    assert [row["id"] for row in course.rows()] == [eve.id]


def test_what_is_hidden_is_left_out_by_name_and_what_tools_leave_is_counted(course: Course) -> None:
    inner = zipped(("__MACOSX/._kv_cache.ipynb", b""), (".kv_cache.ipynb", text("hidden")))
    collected = course.collect(
        ("ada/kv_cache.ipynb", text("ada")),
        ("ada/.trash/kv_cache.ipynb", text("thrown away")),
        ("ada/._kv_cache.ipynb", b"junk"),
        ("ada/.ipynb_checkpoints/kv_cache-checkpoint.ipynb", text("old")),
        ("ada/work.zip", inner),
        (".DS_Store", b""),
        ("__MACOSX/ada/._kv_cache.ipynb", b""),
    )
    assert set(reasons(collected)) == {
        "ada/.trash/kv_cache.ipynb",
        "ada/work.zip › .kv_cache.ipynb",
    }
    assert "Passed over: 5 files and folders" in str(collected)
    assert course.everything() == [text("ada")]
    assert [placed.student.id for placed in collected.placed] == ["ada"]
    assert not collected.without


def test_what_lies_beside_the_folder_around_a_download_is_told(course: Course) -> None:
    collected = course.collect(
        ("submissions/ada/kv_cache.ipynb", text("a")),
        ("submissions/bob/kv_cache.ipynb", text("b")),
        ("grades.csv", b"x"),
        ("../kv_cache.ipynb", text("out")),
    )
    assert {placed.student.id for placed in collected.placed} == {"ada", "bob"}
    assert set(reasons(collected)) == {"grades.csv", "../kv_cache.ipynb"}


def test_folders_around_files_are_no_entries_and_empty_ones_are(course: Course) -> None:
    collected = course.collect(
        ("./", b""),
        ("ada/", b""),
        ("ada-b/", b""),
        ("ada/work\\", b""),
        ("ada/work/kv_cache.ipynb", text()),
    )
    assert [placed.student.id for placed in collected.placed] == ["ada"]
    assert reasons(collected) == {"ada-b/": "it is an empty folder"}
    assert [student.id for student, _ in collected.without] == ["ada-b"]


PARTS = ["ada", ".ada", "..", ".", "__MACOSX", "kv_cache.ipynb", "batching.ipynb", "a_1_2_a.ipynb"]
PARTS += ["notes.txt", ".DS_Store", "._kv_cache.ipynb", "", "w.zip", "C:", "a_1_2_b.zip", "a\\b"]
NAMES = st.lists(st.sampled_from(PARTS), min_size=1, max_size=4).map("/".join)
FILES = NAMES.filter(lambda name: name and not name.endswith("/"))
KINDS = st.sampled_from([0, 0, 0, stat.S_IFREG | 0o644, stat.S_IFLNK | 0o777])


@pytest.mark.filterwarnings("ignore:Duplicate name")
@given(st.lists(st.tuples(FILES, KINDS), max_size=8), st.sampled_from([None, KV_CACHE]))
def test_no_entry_of_an_archive_is_lost(files: list[tuple[str, int]], lesson) -> None:
    """Each is placed, was there before, is left out with a reason, or is counted as clutter."""
    with tempfile.TemporaryDirectory() as folder:
        content = [(entry(name, mode=mode), text(name)) for name, mode in files]
        found = Course(Path(folder)).collect(*content, lesson=lesson)
    told = len(found.placed) + found.again + len(found.left_out) + found.clutter
    assert told == len(files)


# ------------------------------------------------------------------------------- collecting twice


def test_the_same_download_again_changes_nothing(course: Course) -> None:
    files = [(name, text(name)) for name in ("ada/kv_cache.ipynb", "bob/kv_cache.ipynb")]
    course.collect(*files)
    before = {path: path.stat().st_mtime_ns for path in course.submitted.rglob("*")}
    collected = course.collect(*files)
    assert (collected.placed, collected.again, collected.left_out) == ((), 2, ())
    assert {path: path.stat().st_mtime_ns for path in course.submitted.rglob("*")} == before
    assert len(course.rows()) == 2


def test_what_was_put_there_by_hand_and_is_the_same_stays(course: Course) -> None:
    path = course.submitted / "ada/02_kv_cache/kv_cache.ipynb"
    path.parent.mkdir(parents=True)
    path.write_bytes(text())
    os.utime(path, (0, 0))
    collected = course.collect(("ada/kv_cache.ipynb", text()))
    assert (collected.again, path.stat().st_mtime) == (1, 0)


def test_a_different_one_of_the_same_time_takes_no_place(course: Course) -> None:
    course.collect(("ada/kv_cache.ipynb", text("first")))
    collected = course.collect(("ada/kv_cache.ipynb", text("other")))
    assert course.files() == {"ada/02_kv_cache/kv_cache.ipynb": text("first")}
    assert "no older" in reasons(collected)["ada/kv_cache.ipynb"]


def test_a_late_resubmission_goes_in_and_the_one_before_is_kept(course: Course) -> None:
    course.collect(("ada/kv_cache.ipynb", text("v1")))
    collected = course.collect(("ada/kv_cache.ipynb", text("v2")), when=NOON + HOUR)
    course.collect(("ada/kv_cache.ipynb", text("v3")), when=NOON + 2 * HOUR)
    assert course.files() == {"ada/02_kv_cache/kv_cache.ipynb": text("v3")}
    earlier = sorted((course.submitted / "ada" / "02_kv_cache" / ".earlier").rglob("*.ipynb"))
    assert [path.read_bytes() for path in earlier] == [text("v1"), text("v2")]
    assert collected.placed[0].earlier == earlier[0].parent
    assert "handed in 02_kv_cache again" in str(collected)


def test_a_student_may_go_back_to_an_earlier_version(course: Course) -> None:
    for hours, words in enumerate(["v1", "v2", "v1"]):
        course.collect(("ada/kv_cache.ipynb", text(words)), when=NOON + hours * HOUR)
    assert course.files() == {"ada/02_kv_cache/kv_cache.ipynb": text("v1")}


def test_an_older_download_takes_no_place(course: Course) -> None:
    course.collect(("ada/kv_cache.ipynb", text("v2")))
    collected = course.collect(("ada/kv_cache.ipynb", text("v1")), when=NOON - HOUR)
    assert course.files() == {"ada/02_kv_cache/kv_cache.ipynb": text("v2")}
    assert "no older" in reasons(collected)["ada/kv_cache.ipynb"]


def test_what_was_corrected_by_hand_stays_until_the_student_hands_in_again(course: Course) -> None:
    course.collect(("ada/kv_cache.ipynb", text("v1")))
    path = course.submitted / "ada/02_kv_cache/kv_cache.ipynb"
    path.write_bytes(text("v1, without the endless loop"))
    os.utime(path, (NOON.timestamp() + 60,) * 2)
    collected = course.collect(("ada/kv_cache.ipynb", text("v1")), when=NOON + HOUR)
    assert (collected.again, path.read_bytes()) == (1, text("v1, without the endless loop"))
    course.collect(("ada/kv_cache.ipynb", text("v2")), when=NOON + 2 * HOUR)
    assert path.read_bytes() == text("v2")
    assert text("v1, without the endless loop") in course.everything()


def test_a_time_within_a_students_own_zip_decides_nothing_but_among_its_files(course) -> None:
    future = NOON + timedelta(days=9000)
    course.collect(("ada/a.zip", zipped(("kv_cache.ipynb", text("v1")), when=future)))
    course.collect(("ada/kv_cache.ipynb", text("v2")), when=NOON + HOUR)
    assert course.files() == {"ada/02_kv_cache/kv_cache.ipynb": text("v2")}


@pytest.fixture
def in_athens(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TZ", "Europe/Athens")  # in November two hours ahead of UTC
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="Windows has no TZ")
def test_nbgrader_reads_when_an_attempt_was_handed_in(course: Course, in_athens) -> None:
    course.collect(("L_ada_attempt_2026-11-20-10-00-00_kv_cache.ipynb", text("v1")))
    folder = course.submitted / "ada" / "02_kv_cache"
    directory = CourseDirectory(root=str(course.root))
    assert directory.get_existing_timestamp(str(folder)) == datetime(2026, 11, 20, 8)
    course.collect(("L_ada_attempt_2026-11-21-10-00-00_kv_cache.ipynb", text("v2")))
    assert directory.get_existing_timestamp(str(folder)) == datetime(2026, 11, 21, 8)
    [earlier] = (folder / ".earlier").iterdir()
    assert directory.get_existing_timestamp(str(earlier)) == datetime(2026, 11, 20, 8)


def test_no_time_is_noted_where_the_name_tells_none(course: Course) -> None:
    course.collect(("lovelaceada_LATE_1_2_kv_cache.ipynb", text()))
    assert not timestamps(course)


def test_a_time_noted_by_hand_before_is_not_overwritten(course: Course) -> None:
    noted = course.submitted / "ada" / "02_kv_cache" / "timestamp.txt"
    noted.parent.mkdir(parents=True)
    noted.write_text("2026-11-19 00:00:00 UTC")
    course.collect((f"L_ada_attempt_{THEN}_kv_cache.ipynb", text()))
    assert noted.read_text() == "2026-11-19 00:00:00 UTC"
    assert noted.with_name("kv_cache.ipynb").exists()


def test_an_extension_noted_by_hand_is_kept_with_what_it_was_for(course: Course) -> None:
    course.collect(("ada_1_2_kv_cache.ipynb", text("v1")))
    folder = course.submitted / "ada-1" / "02_kv_cache"
    (folder / "timestamp.txt").write_text("2026-11-19 00:00:00 UTC")
    course.collect(("ada_LATE_1_3_kv_cache.ipynb", text("v2")), when=NOON + HOUR)
    assert not (folder / "timestamp.txt").exists()
    [earlier] = (folder / ".earlier").iterdir()
    assert (earlier / "timestamp.txt").read_text() == "2026-11-19 00:00:00 UTC"


def test_nbgrader_sees_nothing_of_what_is_hidden(course: Course) -> None:
    course.collect(("ada/kv_cache.ipynb", text("v1")))
    course.collect(("ada/kv_cache.ipynb", text("v2")), when=NOON + HOUR)
    seen = find_all_files(str(course.submitted), [".earlier", ".collected"])
    assert [Path(path).name for path in seen] == ["kv_cache.ipynb"]


def test_interrupted_and_collected_again_everything_is_there(course: Course, monkeypatch) -> None:
    files = [(f"{name}/kv_cache.ipynb", text(name)) for name in ("ada", "bob", "cat")]
    real = Path.replace
    written: list[Path] = []

    def stop_at_the_second(self: Path, target: Path) -> Path:
        if len(written) == 1:
            raise KeyboardInterrupt
        written.append(target)
        return real(self, target)

    monkeypatch.setattr(Path, "replace", stop_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        course.collect(*files)
    monkeypatch.setattr(Path, "replace", real)
    collected = course.collect(*files)
    assert (len(collected.placed), collected.again) == (2, 1)
    assert sorted(course.files().values()) == sorted(content for _, content in files)
    assert [row["id"] for row in course.rows()] == ["ada", "bob", "cat"]


# ---------------------------------------------------------------------------------- who is who


def test_the_table_says_who_is_who(course: Course) -> None:
    name = "Ada Lovelace_123456_assignsubmission_file_/kv_cache.ipynb"
    course.collect((name, text()), ("Bob_2_assignsubmission_file_/report.pdf", b""))
    assert course.rows() == [
        {"id": "ada-lovelace-123456", "name": "Ada Lovelace", "file": name},
        {"id": "bob-2", "name": "Bob", "file": "Bob_2_assignsubmission_file_/report.pdf"},
    ]


def test_rows_are_added_and_what_somebody_wrote_there_stays(course: Course) -> None:
    course.table.parent.mkdir()
    course.table.write_text("matriculation,id,name,file\n123,ada,Ada,ada/kv_cache.ipynb")
    course.collect(("ada/kv_cache.ipynb", text()), ("bob/kv_cache.ipynb", text()))
    assert course.table.read_text() == (
        "matriculation,id,name,file\n123,ada,Ada,ada/kv_cache.ipynb\n,bob,bob,bob/kv_cache.ipynb\n"
    )


@pytest.mark.parametrize("content", [b"id;name;file\n", b"\xff\xfe"])
def test_a_table_that_cannot_be_added_to_is_refused_before_anything_happens(
    course: Course, content: bytes
) -> None:
    course.table.parent.mkdir()
    course.table.write_bytes(content)
    with pytest.raises(NotCollected, match="Give it another name"):
        course.collect(("ada/kv_cache.ipynb", text()))
    assert not course.submitted.exists()
    assert course.table.read_bytes() == content


def test_no_cell_of_the_table_is_a_formula_or_hides_anything(course: Course) -> None:
    names = ["=cmd|'calc'!A0", "+1", "@x", "-2", " =3", "\t=4", "ada\u202etxt", "a\nb", "x" * 300]
    course.collect(*((f"{name}/kv_cache.ipynb", text(name)) for name in names))
    cells = [value for row in course.rows() for value in row.values()]
    assert len(cells) == 3 * len(names)
    assert not [c for c in cells if c.lstrip()[:1] in tuple("=+-@\t")]
    assert not [c for c in cells if not c.isprintable()]


# ------------------------------------------------------------------------------- hostile archives


@pytest.mark.parametrize(
    "name",
    [
        "../../outside/kv_cache.ipynb",
        "ada/../../kv_cache.ipynb",
        "..\\..\\kv_cache.ipynb",
        "/tmp/ada/kv_cache.ipynb",
        "\\\\server\\ada\\kv_cache.ipynb",
        "C:\\ada\\kv_cache.ipynb",
        "c:ada/kv_cache.ipynb",
    ],
)
@pytest.mark.parametrize("inside", [False, True], ids=["download", "student's zip"])
def test_a_name_that_leads_elsewhere_is_left_out(course: Course, name: str, inside: bool) -> None:
    hostile = (name, text("hostile"))
    file = ("eve/work.zip", zipped(hostile)) if inside else hostile
    collected = course.collect(file, ("ada/kv_cache.ipynb", text("honest")))
    assert course.everything() == [text("honest")]
    [(left_out, reason)] = reasons(collected).items()
    assert left_out.endswith(name)
    assert reason == "the name leads out of the archive"
    assert [student.id for student, _ in collected.without] == (["eve"] if inside else [])


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO])
@pytest.mark.parametrize("inside", [False, True], ids=["download", "student's zip"])
def test_links_and_devices_are_left_out(course: Course, kind: int, inside: bool) -> None:
    hostile = (entry("eve/kv_cache.ipynb", mode=kind | 0o777), b"/etc/passwd")
    file = ("eve/work.zip", zipped(hostile)) if inside else hostile
    collected = course.collect(file, ("ada/kv_cache.ipynb", text()))
    assert list(course.files()) == ["ada/02_kv_cache/kv_cache.ipynb"]
    assert set(reasons(collected).values()) == {"it is a link or a device, and no file"}


def test_an_encrypted_file_is_left_out(course: Course) -> None:
    download = bytearray(zipped(("eve/kv_cache.ipynb", text()), ("ada/kv_cache.ipynb", text())))
    central = download.index(b"PK\x01\x02")
    download[central + 8] |= 1
    path = course.root / "encrypted.zip"
    path.write_bytes(download)
    collected = collect(path, course.submitted, None)
    assert reasons(collected) == {"eve/kv_cache.ipynb": "it is encrypted"}
    assert list(course.files()) == ["ada/02_kv_cache/kv_cache.ipynb"]


def test_a_damaged_file_costs_nobody_else(course: Course) -> None:
    download = bytearray(zipped(("eve/kv_cache.ipynb", text()), ("ada/kv_cache.ipynb", text())))
    download[50] ^= 0xFF
    path = course.root / "damaged.zip"
    path.write_bytes(download)
    collected = collect(path, course.submitted, KV_CACHE)
    assert reasons(collected) == {"eve/kv_cache.ipynb": "it is damaged"}
    assert [student.id for student, _ in collected.without] == ["eve"]
    assert list(course.files()) == ["ada/02_kv_cache/kv_cache.ipynb"]


def test_a_students_zip_that_is_none_costs_nobody_else(course: Course) -> None:
    collected = course.collect(("eve/work.zip", b"PK\x03\x04"), ("ada/kv_cache.ipynb", text()))
    assert reasons(collected) == {"eve/work.zip": "it is damaged, or no zip archive"}
    assert list(course.files()) == ["ada/02_kv_cache/kv_cache.ipynb"]


def test_a_bomb_is_left_out_after_its_first_megabytes(course: Course) -> None:
    bomb = ("kv_cache.ipynb", b"0" * 30_000_000)
    for file in ((f"eve/{bomb[0]}", bomb[1]), ("eve/work.zip", zipped(bomb))):
        collected = course.collect(file, ("ada/kv_cache.ipynb", text()))
        [reason] = reasons(collected).values()
        assert "times its size" in reason
    assert list(course.files()) == ["ada/02_kv_cache/kv_cache.ipynb"]


def test_sizes_are_counted_and_not_believed(course: Course, monkeypatch) -> None:
    download = bytearray(zipped(("eve/kv_cache.ipynb", os.urandom(3_000_000))))
    unpacked_size = download.index(b"PK\x01\x02") + 24
    struct.pack_into("<L", download, unpacked_size, 10)
    path = course.root / "lying.zip"
    path.write_bytes(download)
    assert set(reasons(collect(path, course.submitted, None)).values()) == {"it is damaged"}
    monkeypatch.setattr(archives, "MOST_MEGABYTES", 2)
    allowance = archives.Allowance(2_000_000)
    honest = archives.open_archive(zipped(("kv_cache.ipynb", os.urandom(3_000_000))))
    [one] = archives.entries(honest)
    with pytest.raises(archives.Refused, match="more than 2 MB"):
        archives.read(honest, one, allowance)


def test_what_is_unpacked_of_a_student_is_limited_in_sum(course: Course, monkeypatch) -> None:
    noise = [os.urandom(700_000) for _ in range(4)]
    files = [(f"{i}/kv_cache.ipynb", content) for i, content in enumerate(noise)]
    monkeypatch.setattr(archives.Allowance, "__init__", lambda self: setattr(self, "left", 2**21))
    collected = course.collect(("eve/work.zip", zipped(*files[:2])), ("ada/kv_cache.ipynb", b"a"))
    assert "would have to be unpacked" in " ".join(reasons(collected).values())
    assert "ada/02_kv_cache/kv_cache.ipynb" in course.files()


@pytest.mark.parametrize("inside", [False, True], ids=["download", "student's zip"])
def test_too_many_files_are_refused(course: Course, monkeypatch, inside: bool) -> None:
    monkeypatch.setattr(archives, "MOST_ENTRIES", 20)
    many = [(f"{i}.txt", b"") for i in range(21)]
    if inside:
        collected = course.collect(("eve/work.zip", zipped(*many)), ("ada/kv_cache.ipynb", text()))
        assert reasons(collected) == {"eve/work.zip": "it holds more than 20 files"}
    else:
        with pytest.raises(NotCollected, match="more than 20 files"):
            course.collect(*many)


def test_what_is_said_shows_every_character(course: Course) -> None:
    names = ["ada\u202e\x1b[2J/x.ipynb", "b\nob\r/x.ipynb", "c" * 3000 + "/x.ipynb"]
    said = str(course.collect(*((name, b"?") for name in names)))
    assert all(line.isprintable() for line in said.split("\n"))
    assert "\\u202e\\x1b[2J" in said
    assert "…" in said
    assert len(said) < 2000


def test_what_is_said_is_short_for_any_number_of_files(course: Course) -> None:
    said = str(course.collect(*((f"ada/{i}.ipynb", text(str(i))) for i in range(500))))
    assert "and 495 more" in said
    assert len(said) < 1000


@pytest.mark.parametrize("place", ["ada", "ada/02_kv_cache", "ada/02_kv_cache/kv_cache.ipynb"])
@pytest.mark.parametrize("kind", ["link", "other"])
def test_nothing_is_written_through_what_is_in_the_way(course: Course, place, kind) -> None:
    elsewhere = course.root / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept.txt").write_text("kept")
    spot = course.submitted / place
    spot.parent.mkdir(parents=True)
    if kind == "link":
        spot.symlink_to(elsewhere)
    elif place.endswith(".ipynb"):
        spot.mkdir()
    else:
        spot.write_text("a file")
    collected = course.collect(("ada/kv_cache.ipynb", text()), lesson=KV_CACHE)
    assert "something else stands in its place" in reasons(collected)["ada/kv_cache.ipynb"]
    assert [path.name for path in elsewhere.iterdir()] == ["kept.txt"]


def test_no_folder_is_made_through_a_link(course: Course) -> None:
    elsewhere = course.root / "elsewhere"
    elsewhere.mkdir()
    course.submitted.mkdir(parents=True)
    (course.submitted / "ada").symlink_to(elsewhere)
    collected = course.collect(("ada/report.pdf", b"%PDF"), lesson=KV_CACHE)
    assert [student.id for student, _ in collected.without] == ["ada"]
    assert list(elsewhere.iterdir()) == []


def test_no_archive_is_refused_in_a_sentence(course: Course) -> None:
    with pytest.raises(NotCollected, match="There is no file"):
        collect(course.root / "missing.zip", course.submitted, None)
    (course.root / "page.zip").write_text("<html>Please log in</html>")
    with pytest.raises(NotCollected, match="no zip archive"):
        collect(course.root / "page.zip", course.submitted, None)
    assert not course.submitted.exists()
    assert not course.table.exists()
