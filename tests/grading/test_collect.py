"""A download of a learning platform, sorted into submitted/: whose, which lab, and nothing lost."""

import csv
import io
import os
import re
import stat
import tempfile
import time
import unicodedata
import zipfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nbgrader.coursedir import CourseDirectory

from autograder.grading.collect import archive as archives
from autograder.grading.collect import timestamp
from autograder.grading.collect.download import student
from autograder.grading.collect.submitted import Collected, collect
from autograder.grading.refused import Refused
from autograder.text.lesson import lessons
from tests.common.handed_in import notebook, prose

ROOT = Path(__file__).resolve().parents[2]
KV_CACHE, BATCHING = lessons()["kv_cache"], lessons()["batching"]
NOON = datetime(2026, 11, 20, 12)
HOUR = timedelta(hours=1)
THEN = "2026-11-20-10-00-00"
HERS = "ada/02_kv_cache/kv_cache.ipynb"


def text(words: str = "mine", grade_id: str | None = None) -> bytes:
    metadata = {"nbgrader": {"grade_id": grade_id}} if grade_id else {}
    return notebook([prose(words, metadata=metadata)]).encode()


Named = str | zipfile.ZipInfo
File = Named | tuple[Named, bytes]  # a name alone: of a notebook that says its name


def zipped(*files: File, when: datetime = NOON) -> bytes:
    """A zip archive of names and contents, in this order, names twice if they are given twice."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            name, content = file if isinstance(file, tuple) else (file, text(name_of(file)))
            archive.writestr(entry(name, when) if isinstance(name, str) else name, content)
    return held.getvalue()


def name_of(file: Named) -> str:
    return file if isinstance(file, str) else file.filename


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

    def collect(self, *files: File, when: datetime = NOON, lesson=None) -> Collected:
        return self.take(zipped(*files, when=when), lesson)

    def take(self, archive: bytes, lesson=None) -> Collected:
        path = self.root / "download.zip"
        path.write_bytes(archive)
        return collect(path, self.submitted, lesson)

    def hand_in(self, words: str, hours: int = 0) -> Collected:
        """Collect ada's notebook of lab 2, in a download so many hours after noon."""
        return self.collect(("ada/kv_cache.ipynb", text(words)), when=NOON + hours * HOUR)

    def files(self) -> dict[str, bytes]:
        """All that stands in submitted/, but for what is hidden and the times."""
        found = {
            str(path.relative_to(self.submitted)): path.read_bytes()
            for path in sorted(self.submitted.rglob("*"))
            if path.is_file() and path.name != "timestamp.txt"
        }
        return {name: found[name] for name in found if not re.search(r"(^|/)\.", name)}

    def everything(self) -> list[bytes]:
        """What every notebook below the course's root holds, hidden or not."""
        return sorted(path.read_bytes() for path in self.root.rglob("*.ipynb"))

    def rows(self) -> list[dict[str, str]]:
        with self.table.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))


@pytest.fixture(autouse=True, scope="module")
def december() -> Iterator[None]:
    """Let it be a month after the downloads, so that no time in them is in the future."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timestamp, "now", lambda: datetime(2026, 12, 20, tzinfo=UTC))
        yield


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
    f"Assignment_ada_attempt_{THEN}_kv_cache.ipynb": "ada",
    f"Lab_2_20103940_attempt_{THEN}_kv_cache.ipynb": "20103940",
    "ada/kv_cache.ipynb": "ada",
    "ada/02_kv_cache/kv_cache.ipynb": "ada",
    "ada\\work\\kv_cache.ipynb": "ada",
    "./.Ada Lovelace_123456_assignsubmission_file_/kv_cache.ipynb": "ada-lovelace-123456",
    ".ada_12345_67890_kv_cache.ipynb": "ada-12345",
    "._ada_12345_67890_kv_cache.ipynb": "ada-12345",
    f"Lab_.ada_attempt_{THEN}_kv_cache.ipynb": student(".ada").id,
    ".ada/02_kv_cache/kv_cache.ipynb": student(".ada").id,
    "...ada/kv_cache.ipynb": student("...ada").id,
    # Odd characters in a file's name make it nobody else's.
    "A_1_assignsubmission_file_kv\n\u202e\x07cache.ipynb": "a-1",
    "a_1_2_kv\n\u202e\x07cache.ipynb": "a-1",
    f"L_a_attempt_{THEN}_kv\n\u202e\x07cache.ipynb": "a",
    # Nor does a name like that of somebody else's file, which a student chose.
    "Bob_1_assignsubmission_file_/Ada_9_assignsubmission_file_/kv_cache.ipynb": "bob-1",
    "Cat_2_assignsubmission_file_/ada_9_9_kv_cache.ipynb": "cat-2",
}
SEVERAL: dict[str, dict[str, str | None]] = {
    "a folder around the download is not a student": {
        "submissions/ada/kv_cache.ipynb": "ada",
        "submissions/bob/kv_cache.ipynb": "bob",
        "submissions/grades.csv": None,
    },
    "nor one around files": {"lab 2/lovelaceada_1_2_kv_cache.ipynb": "lovelaceada-1"},
    "but a folder around one student's work is": {
        "ada/02_kv_cache/kv_cache.ipynb": "ada",
        "ada/03_batching/batching.ipynb": None,
    },
    "beside the folder around a download": {
        "submissions/ada/kv_cache.ipynb": "ada",
        "submissions/bob/kv_cache.ipynb": "bob",
        "grades.csv": None,
        "../kv_cache.ipynb": None,
    },
    "one platform's pattern is applied to all": {
        f"eve_1_10_Lab_ada_attempt_{THEN}_kv_cache.ipynb": "eve-1",
        "lovelaceada_2_11_kv_cache.ipynb": "lovelaceada-2",
    },
    "folders come before it": {
        "eve/Ada_9_assignsubmission_file_kv_cache.ipynb": "eve",
        "ada/kv_cache.ipynb": "ada",
    },
}


@pytest.mark.parametrize(
    "owners", [*({name: id} for name, id in SHAPES.items()), *SEVERAL.values()], ids=ascii
)
def test_a_file_goes_to_the_student_whom_its_name_tells(course: Course, owners) -> None:
    collected = course.collect(*owners, lesson=KV_CACHE)
    placed = {name: id for name, id in owners.items() if id}
    assert {each.file: each.student.id for each in collected.placed} == placed
    assert course.files() == {
        f"{id}/02_kv_cache/kv_cache.ipynb": text(name) for name, id in placed.items()
    }
    assert reasons(collected).keys() == owners.keys() - placed.keys()
    assert not collected.without or None in owners.values()


def in_folders(*students: str) -> list[str]:
    return [f"{student}/kv_cache.ipynb" for student in students]


@pytest.mark.parametrize(
    "names",
    [
        in_folders("ada", "Ada", "ADA"),
        in_folders("zoë", "zoe", "zoê"),
        in_folders("a b", "a  b", "a-b"),
        in_folders("ada", "ada\u202e", "ada\u200b", "ada\n"),
        in_folders("x" * 300, "x" * 299 + "y", "x" * 40),
        in_folders("[ab]*", "?ab", "ab"),
        in_folders("con", "con.x", "aux"),
        in_folders("a+b", "a", "ab:c", "{a}"),
        in_folders("ada.", "ada"),
        in_folders(*(f"Ada Lovelace_{number}_assignsubmission_file_" for number in (1, 2))),
        [
            f"{anonymous}_1_kv_cache.ipynb"
            for anonymous in ("anon_AbC1", "anon_aBc1", "LATE_anon_x9")
        ],
        [f"Lab_{student}_attempt_{THEN}_kv_cache.ipynb" for student in ("ada_l", "bob_l")],
    ],
)
def test_names_that_look_alike_stay_apart_on_every_disk(course: Course, names) -> None:
    course.collect(*names)
    files = course.files()
    assert sorted(files.values()) == sorted(map(text, names))
    ids = {name.split("/")[0] for name in files}
    assert len({id.lower() for id in ids}) == len(names)
    assert all(re.fullmatch(r"[a-z0-9]([a-z0-9._-]{0,60}[a-z0-9])?", id) for id in ids)
    assert not ids & {"con", "con.x", "aux"}
    assert all(CourseDirectory(student_id=id).student_id == id for id in ids)


def test_one_file_with_its_accents_written_in_two_ways_is_one(course: Course) -> None:
    composed = "Zo\u00eb M\u00fcller_7_assignsubmission_file_/\u00fcbung kv_cache.ipynb"
    decomposed = unicodedata.normalize("NFD", composed)
    one = course.collect((composed, text("first")), lesson=KV_CACHE)
    other = course.collect((decomposed, text("second")), when=NOON + HOUR, lesson=KV_CACHE)
    assert one.placed[0].student == other.placed[0].student
    assert [row["file"] for row in course.rows()] == [composed]
    both = course.collect((composed, text("third")), (decomposed, text("4th")), lesson=KV_CACHE)
    assert len(both.placed) + len(both.left_out) == 2
    assert len({each.student for each in both.placed}) <= 1


# ---------------------------------------------------------------------------------- which lab


OF_BATCHING = text(grade_id="check-batching-pad_left")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        *(
            (file, OF_BATCHING)
            for file in (
                *("kv_cache.ipynb", "kv_cache-1.ipynb", "kv_cache (2).ipynb", "02_kv_cache.ipynb"),
                *("kv_cache-Copy1.ipynb", "Copy of KV cache.ipynb", "KV-Cache.IPYNB"),
                *("kv_cache.ipynb.txt", "kv_cache.ipynb.json"),
            )
        ),
        ("a check.ipynb", text(grade_id="check-kv_cache-KVCache-attend")),
        ("a solution.ipynb", text(grade_id="kv_cache-causal_mask")),
        ("a question.ipynb", text(grade_id="memory_or_compute")),
        ("released.ipynb", (ROOT / "labs" / KV_CACHE.notebook).read_bytes()),
        ("built.ipynb", b'{"lesson_build": {"lesson": "solutions/lessons/02_kv_cache.md"}}'),
        ("rebuilt.ipynb", b'{"lesson_build": {"lesson": "course/lab02_kv_cache/lesson.md"}}'),
        ("torn.ipynb", text(grade_id="check-kv_cache-causal_mask")[:-9]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_lab_is_known_by_its_file_name_else_by_its_cells(course, file, content):
    course.collect((f"ada/{file}", content))
    assert course.files() == {HERS: content}


def test_else_by_the_lab_that_was_given(course: Course) -> None:
    homework = "ada/homework.ipynb", b"no notebook at all"
    assert "--lab" in reasons(course.collect(homework))["ada/homework.ipynb"]
    assert course.files() == {}
    course.collect(homework, lesson=KV_CACHE)
    assert course.files() == {HERS: homework[1]}


def test_with_a_lab_given_no_other_is_touched(course: Course) -> None:
    course.hand_in("in time")
    collected = course.collect(
        "ada/kv_cache.ipynb", "ada/batching.ipynb", when=NOON + HOUR, lesson=BATCHING
    )
    assert course.files() == {
        HERS: text("in time"),
        "ada/03_batching/batching.ipynb": text("ada/batching.ipynb"),
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
    inner = zipped("Ada Lovelace_9_assignsubmission_file_/kv_cache.ipynb")
    course.collect(("Eve_1_assignsubmission_file_/mine.zip", inner))
    assert list(course.files()) == ["eve-1/02_kv_cache/kv_cache.ipynb"]


ATTEMPT = f"L_ada_attempt_{THEN}_kv_cache.ipynb"


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("files", "counts"),
    [
        (["ada_LATE_1_100_kv_cache-1.ipynb", "ada_1_99_kv_cache.ipynb"], 0),
        (
            [ATTEMPT, entry(ATTEMPT.replace("11-20", "11-19"), NOON + HOUR)],
            0,
        ),  # whatever the archive says
        (["ada/kv_cache.ipynb", "ada/kv_cache.ipynb"], 1),
        ([entry("ada/scratch.ipynb", NOON + HOUR), "ada/kv_cache.ipynb"], 1),  # more certain
    ],
)
def test_of_two_notebooks_the_last_one_counts(course: Course, files, counts: int) -> None:
    contents = [text("one"), text("two")]
    collected = course.collect(*zip(files, contents, strict=True), lesson=KV_CACHE)
    assert list(course.files().values()) == [contents[counts]]
    [(left_out, reason)] = reasons(collected).items()
    assert left_out == name_of(files[1 - counts])
    assert "newer or more certain" in reason


def test_a_receipt_is_no_work(course: Course) -> None:
    collected = course.collect(ATTEMPT, (f"L_ada_attempt_{THEN}.txt", b"Name: Ada Lovelace (ada)"))
    assert list(course.files()) == [HERS]
    assert not collected.without


def test_a_student_without_a_notebook_is_named_and_gets_a_folder(course: Course) -> None:
    files: list[File] = [("ada/report.pdf", b"%PDF"), ("ada/notes.txt", b""), "bob/kv_cache.ipynb"]
    collected = course.collect(*files)
    assert not (course.submitted / "ada").exists()  # of which lab, nobody said
    collected = course.collect(*files, lesson=KV_CACHE)
    assert [(student.id, names) for student, names in collected.without] == [
        ("ada", ["ada/report.pdf", "ada/notes.txt"])
    ]
    assert list((course.submitted / "ada" / "02_kv_cache").iterdir()) == []
    assert "No file of ada (ada) could be collected: ada/report.pdf" in str(collected)


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
    assert "Ignored: 5 files and folders" in str(collected)
    assert course.everything() == [text("ada")]
    assert [placed.student.id for placed in collected.placed] == ["ada"]
    assert not collected.without


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
    files = in_folders("ada", "bob")
    course.collect(*files)
    before = {path: path.stat().st_mtime_ns for path in course.submitted.rglob("*")}
    collected = course.collect(*files)
    assert (collected.placed, collected.again, collected.left_out) == ([], 2, [])
    assert {path: path.stat().st_mtime_ns for path in course.submitted.rglob("*")} == before
    assert len(course.rows()) == 2


def test_what_was_put_there_by_hand_and_is_the_same_stays(course: Course) -> None:
    path = course.submitted / HERS
    path.parent.mkdir(parents=True)
    path.write_bytes(text("mine"))
    os.utime(path, (0, 0))
    assert course.hand_in("mine").again == 1
    assert path.stat().st_mtime == 0


def test_a_late_resubmission_goes_in_and_the_one_before_is_kept(course: Course) -> None:
    handed_in = [text(words) for words in ("v1", "v2", "v1", "v3")]  # one goes back to an earlier
    for hours, content in enumerate(handed_in):
        collected = course.collect(("ada/kv_cache.ipynb", content), when=NOON + hours * HOUR)
        assert course.files() == {HERS: content}
    earlier = sorted((course.submitted / "ada" / "02_kv_cache" / ".earlier").rglob("*.ipynb"))
    assert [path.read_bytes() for path in earlier] == handed_in[:3]
    assert collected.placed[0].earlier == earlier[2].parent
    assert "handed in 02_kv_cache again" in str(collected)


@pytest.mark.parametrize("hours", [0, -1])
def test_one_that_is_no_newer_takes_no_place(course: Course, hours: int) -> None:
    course.hand_in("first")
    collected = course.hand_in("other", hours)
    assert course.files() == {HERS: text("first")}
    assert "as new or newer" in reasons(collected)["ada/kv_cache.ipynb"]


def test_what_was_corrected_by_hand_stays_until_the_student_hands_in_again(course: Course) -> None:
    course.hand_in("v1")
    path = course.submitted / HERS
    path.write_bytes(text("v1, without the endless loop"))
    os.utime(path, (NOON.timestamp() + 60,) * 2)
    collected = course.hand_in("v1", hours=1)
    assert (collected.again, path.read_bytes()) == (1, text("v1, without the endless loop"))
    course.hand_in("v2", hours=2)
    assert path.read_bytes() == text("v2")
    assert text("v1, without the endless loop") in course.everything()


def test_a_time_within_a_students_own_zip_decides_nothing_but_among_its_files(course) -> None:
    future = NOON + timedelta(days=9000)
    course.collect(("ada/a.zip", zipped(("kv_cache.ipynb", text("v1")), when=future)))
    course.hand_in("v2", hours=1)
    assert course.files() == {HERS: text("v2")}


@pytest.fixture
def in_athens(monkeypatch: pytest.MonkeyPatch):
    """November is two hours ahead of UTC. The clocks change on March 29 and October 25, 2026."""
    monkeypatch.setenv("TZ", "EET-2EEST,M3.5.0/3,M10.5.0/4")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="Windows has no TZ")
def test_nbgrader_reads_when_an_attempt_was_handed_in(course: Course, in_athens) -> None:
    course.collect(ATTEMPT)
    folder = course.submitted / "ada" / "02_kv_cache"
    directory = CourseDirectory(root=str(course.root))
    assert directory.get_existing_timestamp(str(folder)) == datetime(2026, 11, 20, 8)
    course.collect(ATTEMPT.replace("11-20", "11-21"))
    assert directory.get_existing_timestamp(str(folder)) == datetime(2026, 11, 21, 8)
    [earlier] = (folder / ".earlier").iterdir()
    assert directory.get_existing_timestamp(str(earlier)) == datetime(2026, 11, 20, 8)


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="Windows has no TZ")
@pytest.mark.parametrize(
    ("named", "noted", "told"),
    [
        ("2026-11-20-10-00-00", "2026-11-20 08:00:00.000000 UTC", ""),
        ("2026-10-25-03-30-00", "2026-10-25 00:30:00.000000 UTC", timestamp.TWICE),
        ("2026-03-29-03-30-00", None, timestamp.NEVER),
        ("2026-02-30-10-00-00", None, timestamp.NEVER),
        ("2099-11-20-10-00-00", None, timestamp.FUTURE),
        ("9999-12-31-23-59-59", None, timestamp.NEVER),
    ],
)
def test_a_doubtful_time_is_told_with_the_zone_and_never_made_up(
    named, noted, told, course: Course, in_athens
) -> None:
    name = ATTEMPT.replace(THEN, named)
    said = str(course.collect(name))
    file = course.submitted / "ada" / "02_kv_cache" / "timestamp.txt"
    assert (file.read_text() if file.exists() else None) == noted
    assert "local times of this machine (EET/EEST)" in said
    assert (f"Look at the time of {name}: {told}." in said) == bool(told)
    assert "Look at" in said or not told


def test_late_work_is_told_and_no_time_noted_where_the_name_tells_none(course: Course) -> None:
    collected = course.collect("ada_LATE_1_2_kv_cache.ipynb", "bob_2_98_kv_cache.ipynb")
    assert [placed.handed_in.late for placed in collected.placed] == [True, False]
    assert "1 marked late" in str(collected)
    assert "local times" not in str(collected)  # and no zone
    assert not list(course.submitted.rglob("timestamp.txt"))


def test_a_time_noted_by_hand_is_not_overwritten_and_is_kept_with_what_it_was_for(course):
    noted = course.submitted / "ada" / "02_kv_cache" / "timestamp.txt"
    noted.parent.mkdir(parents=True)
    noted.write_text("2026-11-19 00:00:00 UTC")
    course.collect(ATTEMPT)
    assert noted.read_text() == "2026-11-19 00:00:00 UTC"
    course.collect("ada/kv_cache.ipynb", when=NOON + HOUR)
    assert not noted.exists()
    [earlier] = noted.parent.joinpath(".earlier").iterdir()
    assert (earlier / "timestamp.txt").read_text() == "2026-11-19 00:00:00 UTC"


def test_interrupted_and_collected_again_everything_is_there(course: Course, monkeypatch) -> None:
    files = in_folders("ada", "bob", "cat")
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
    assert sorted(course.files().values()) == sorted(map(text, files))
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
def test_a_table_that_cannot_be_added_to_is_refused_before_anything_happens(course, content):
    course.table.parent.mkdir()
    course.table.write_bytes(content)
    with pytest.raises(Refused, match="Rename it"):
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


def encrypted(archive: bytes) -> bytes:
    """The same archive, of which the first entry says that it is encrypted."""
    return with_byte(archive, archive.index(archives.CENTRAL_HEADER) + 8, lambda flags: flags | 1)


def damaged(archive: bytes) -> bytes:
    return with_byte(archive, 50, lambda byte: byte ^ 0xFF)


def lying(archive: bytes) -> bytes:
    """The same archive, of which the first entry says that it unpacks to few bytes."""
    return with_byte(archive, archive.index(archives.CENTRAL_HEADER) + 24, lambda size: 10)


def with_byte(archive: bytes, at: int, change: Callable[[int], int]) -> bytes:
    return archive[:at] + bytes([change(archive[at])]) + archive[at + 1 :]


HONEST = "ada/kv_cache.ipynb", text("honest")
UNREADABLE: list[tuple[str, File]] = [
    *(
        ("the name leads out of the archive", name)
        for name in (
            *("../../outside/kv_cache.ipynb", "ada/../../kv_cache.ipynb"),
            *("eve/../../kv_cache.ipynb", "../eve_1_2_kv_cache.ipynb", "..\\..\\kv_cache.ipynb"),
            *("/tmp/ada/kv_cache.ipynb", "\\\\server\\ada\\kv_cache.ipynb"),
            *("C:\\ada\\kv_cache.ipynb", "c:ada/kv_cache.ipynb"),
        )
    ),
    *(
        ("it is a link or a device, not a file", entry("eve/kv_cache.ipynb", mode=kind))
        for kind in (stat.S_IFLNK | 0o777, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO)
    ),
    ("times its size", ("eve/kv_cache.ipynb", b"0" * 3_000_000)),
    ("begins with a dot", "eve/.work/kv_cache.ipynb"),
    ("it is an empty folder", ("eve/work/", b"")),
    ("it is nested in more than 100 folders", "eve/" + "a/" * 100 + "kv_cache.ipynb"),
    ("it is not a notebook", "eve/kv_cache.py"),
    ("Ignored: 1 file or folder", "eve/.DS_Store"),
]
CHANGED = ("it is encrypted", encrypted), ("it is damaged", damaged), ("it is damaged", lying)


def unreadable(*others: File) -> Iterator[tuple[str, bytes]]:
    """Archives of which the first entry can't be read, with the reason."""
    yield from ((reason, zipped(file, *others)) for reason, file in UNREADABLE)
    for reason, change in CHANGED:
        yield reason, change(zipped("eve/kv_cache.ipynb", *others))


ZIPS = [
    *unreadable(),
    ("it is empty", zipped()),
    ("it is damaged, or not a zip archive", b"PK\x03\x04"),
    ("inside a student's zip", zipped(("b.zip", zipped("kv_cache.ipynb")))),
]
DOWNLOADS = [
    *unreadable(HONEST),
    ("begins with a dot", zipped("eve_1_2_.kv_cache.ipynb", HONEST)),
    ("give each student a folder", zipped("kv_cache.ipynb", HONEST)),
    *((reason, zipped(("eve/work.zip", packed), HONEST)) for reason, packed in ZIPS),
]


@pytest.mark.parametrize(("reason", "download"), DOWNLOADS, ids=lambda part: str(part)[:40])
def test_what_cannot_be_read_costs_nobody_else_and_its_student_is_named(course, reason, download):
    collected = course.take(download, KV_CACHE)
    assert reason in str(collected)
    assert course.everything() == [HONEST[1]]
    without = [student.id for student, _ in collected.without]
    assert without in ([["eve"], ["eve-1"]] if b"eve" in download else [[]])
    for id in without:
        assert list((course.submitted / id / "02_kv_cache").iterdir()) == []
        assert f"No file of eve ({id}) could be collected: " in str(collected)
    assert {row["id"] for row in course.rows()} == {"ada", *without}


def test_what_is_unpacked_of_a_student_is_limited_in_sum(course: Course, monkeypatch) -> None:
    noise = [os.urandom(700_000) for _ in range(4)]
    files = [(f"{i}/kv_cache.ipynb", content) for i, content in enumerate(noise)]
    monkeypatch.setattr(archives.Allowance, "__init__", lambda self: setattr(self, "left", 2**21))
    collected = course.collect(("eve/work.zip", zipped(*files[:2])), ("ada/kv_cache.ipynb", b"a"))
    assert "unpacking it would take" in " ".join(reasons(collected).values())
    assert "ada/02_kv_cache/kv_cache.ipynb" in course.files()


@pytest.mark.parametrize("inside", [False, True], ids=["download", "student's zip"])
def test_too_many_files_are_refused(course: Course, monkeypatch, inside: bool) -> None:
    monkeypatch.setattr(archives, "MOST_ENTRIES", 20)
    many = zipped(*(f"{i}.txt" for i in range(21)))
    if inside:
        collected = course.collect(("eve/work.zip", many), "ada/kv_cache.ipynb")
        assert reasons(collected) == {"eve/work.zip": "it holds more than 20 files"}
    else:
        with pytest.raises(Refused, match="more than 20 files"):
            course.take(many)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["ada\u202e\x1b[2J/x.ipynb", "b\nob\r/x.ipynb"], "\\u202e\\x1b[2J"),
        (["c" * 3000 + "/x.ipynb"], "…"),
        ([f"ada/{i}.ipynb" for i in range(500)], "and 495 more"),
    ],
    ids=["hidden characters", "a long name", "many files"],
)
def test_what_is_said_is_short_and_shows_every_character(course: Course, names, told: str) -> None:
    said = str(course.collect(*((name, b"?") for name in names)))
    assert told in said
    assert all(line.isprintable() for line in said.split("\n"))
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
    collected = course.collect("ada/kv_cache.ipynb", lesson=KV_CACHE)
    assert "something else is in its place" in reasons(collected)["ada/kv_cache.ipynb"]
    collected = course.collect("ada/report.pdf", lesson=KV_CACHE)  # for which no folder is made
    assert [student.id for student, _ in collected.without] == ["ada"]
    assert [path.name for path in elsewhere.iterdir()] == ["kept.txt"]


def test_no_archive_is_refused_in_a_sentence(course: Course) -> None:
    with pytest.raises(Refused, match="There is no file"):
        collect(course.root / "missing.zip", course.submitted, None)
    (course.root / "page.zip").write_text("<html>Please log in</html>")
    with pytest.raises(Refused, match="not a zip archive"):
        collect(course.root / "page.zip", course.submitted, None)
    assert not course.submitted.exists()
    assert not course.table.exists()
