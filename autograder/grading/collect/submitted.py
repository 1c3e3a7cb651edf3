"""From a learning platform's download to submitted/: the work behind `collect FILE.zip`.

    submitted/ada-lovelace-123456/02_kv_cache/kv_cache.ipynb

You can collect again at any time. A notebook that was collected before is ignored, even if its copy
in submitted/ has changed since. A different notebook of the same student and lab is collected if it
is newer than the present one: by the time in its name (Blackboard), otherwise by the time in the
archive (in Canvas and Moodle, the time of the download). So after late submissions, download again
and collect again to get everyone's last version. The previous version moves to .earlier/ in the
same folder, with its timestamp.txt. Nothing is ever overwritten.

If an archive is of one assignment, give its lab (`--lab`). Then notebooks of other labs are left
out, so that no student hands in lab 2 again within a zip for lab 3. A student without any usable
file gets an empty folder, so that the grader gives zero points with the reason.

Every entry of an archive is accounted for: it is collected, it was collected before, it is left out
for a reason, or it is counted as clutter (files that operating systems and tools leave).

Times are in UTC; times in names and archives are assumed to be in this machine's time zone, which
the summary names. If a name contains the time of the submission, it is written to timestamp.txt,
where nbgrader finds late work, and the summary says what is doubtful about it. Canvas says LATE but
not how late: the summary says so, and no penalty can follow from it.
"""

import csv
import hashlib
import io
import os
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from zipfile import ZipFile

from autograder.grading import refused
from autograder.grading.collect import timestamp
from autograder.grading.collect.archive import (
    Allowance,
    Entry,
    Refused,
    entries,
    open_archive,
    read,
)
from autograder.grading.collect.clutter import passed_over
from autograder.grading.collect.download import HandedIn, Student, attributed
from autograder.grading.judge.foreign import cell, counted, listed, shown
from autograder.text.lesson import Lesson, lessons

COLUMNS = ["id", "name", "file"]  # of students.csv
EARLIER, COLLECTED = ".earlier", ".collected"  # in a submission's folder, hidden from others
LONG_AGO = datetime(1980, 1, 1, tzinfo=UTC)

NOBODYS = (
    "its name doesn't contain a student (give each student a folder, and zip the folders together)"
)
NO_LAB = "neither its name nor its cells say which lab it is (give the lab with --lab)"
OTHER_LAB = "it belongs to another lab than {}"
OUTDONE = "the archive has a newer or more certain one of the same student and lab"
NOT_NEWER = (
    "submitted/ has a different one that is as new or newer (if that is the wrong one, move its "
    "folder away and collect again)"
)
IN_THE_WAY = "something else is in its place in submitted/ (for example a link)"
HIDDEN = (
    "its name or the name of a folder around it begins with a dot (if it is the submission, rename "
    "it, and zip it again)"
)
NO_NOTEBOOK = "it is not a notebook"
TWICE = "the archive contains the same notebook of the same student more than once"
TWICE_PACKED = "it is a zip archive inside a student's zip archive"


@dataclass(frozen=True)
class Placed:
    """file: its name in the archive. earlier: the folder of the version it replaced, or None."""

    handed_in: HandedIn
    lesson: str
    file: str
    earlier: Path | None

    @property
    def student(self) -> Student:
        return self.handed_in.student


@dataclass(frozen=True)
class LeftOut:
    file: str
    reason: str


@dataclass
class Collected:
    """The result of collecting an archive, or the result so far.

    again: the number of notebooks that were collected before. left_out: each with the reason.
    without: the students without a usable file, and what they handed in. clutter: the number of
    entries that were clutter.
    """

    placed: list[Placed] = field(default_factory=list)
    again: int = 0
    left_out: list[LeftOut] = field(default_factory=list)
    without: list[tuple[Student, list[str]]] = field(default_factory=list)
    clutter: int = 0

    def leave_out(self, file: str, reason: Refused | str) -> None:
        self.left_out.append(LeftOut(file, str(reason)))

    def __str__(self) -> str:
        students = len({each.student for each in self.placed})
        total = f"{counted(len(self.placed), 'notebook')} of {counted(students, 'student')}"
        again = f"; {self.again} more were collected before" if self.again else ""
        return "\n".join(
            [
                f"Collected {total}{again}.",
                *per_lesson(self.placed),
                *times(self.placed),
                *replacements(self.placed),
                *reasons(self.left_out),
                *nothing_of(self.without),
                *passed_over(self.clutter),
            ]
        )


def collect(archive: Path, submitted: Path, lesson: Lesson | None) -> Collected:
    """Put the notebooks of a download where nbgrader looks for them; with a lesson, only its own.

    Students' names are added to students.csv, next to `submitted`. Raises refused.Refused.
    """
    table = Table(submitted.parent / "students.csv")
    tally = Collected()
    if not archive.is_file():
        raise refused.Refused(f"There is no file {archive}.")
    try:
        download = open_archive(archive)
    except Refused as reason:
        raise refused.Refused(
            f"{archive} can't be collected: {reason}. Download it again, as a zip archive."
        ) from None
    with download:
        for student, files in sorted(by_student(download, tally).items()):
            collect_student(student, files, download, submitted, lesson, tally)
            table.note(student, files)
    table.write()
    return tally


def by_student(download: ZipFile, tally: Collected) -> dict[Student, list[HandedIn]]:
    handed_in, nobodys = attributed(list(entries(download)))
    for entry in nobodys:
        if entry.clutter:
            tally.clutter += 1
        else:
            tally.leave_out(entry.name, entry.problem or NOBODYS)
    files = defaultdict(list)
    for each in handed_in:
        files[each.student].append(each)
    return files


def collect_student(
    student: Student,
    files: Sequence[HandedIn],
    download: ZipFile,
    submitted: Path,
    only: Lesson | None,
    tally: Collected,
) -> None:
    notebooks = list(notebooks_of(files, download, only, tally))
    chosen = newest(notebooks, only, tally)
    for notebook in chosen:
        place(notebook, submitted / student.id / notebook.lesson.name, tally)
    if not chosen:
        tally.without.append((student, [each.entry.name for each in files]))
        if only and not in_the_way(submitted / student.id / only.name, only):
            (submitted / student.id / only.name).mkdir(parents=True, exist_ok=True)


# ----------------------------------------------------------------------------- submitted files


@dataclass(frozen=True)
class Notebook:
    """A student's notebook.

    file: its name in the archive. certain: whether its own name or cells say which lesson it is.
    packed: its time in the student's own zip archive. The student can set that time at will, so it
    only decides which of the student's own notebooks is the newest.
    """

    handed_in: HandedIn
    file: str
    content: bytes
    lesson: Lesson
    certain: bool
    packed: datetime | None

    @property
    def time(self) -> datetime:
        return self.handed_in.time or self.handed_in.entry.time or LONG_AGO

    @property
    def rank(self) -> tuple[bool, int, datetime, datetime]:
        return self.certain, self.handed_in.upload, self.time, self.packed or LONG_AGO

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


def notebooks_of(
    files: Sequence[HandedIn], download: ZipFile, only: Lesson | None, tally: Collected
) -> Iterator[Notebook]:
    """Yield a student's notebooks of a known lab, including those in the student's own zip."""
    allowance = Allowance()
    for handed_in in files:
        name = handed_in.entry.name
        if handed_in.entry.clutter:
            tally.clutter += 1
            continue
        try:
            require_work(handed_in.entry, handed_in.path)
            content = read(download, handed_in.entry, allowance)
            if is_zip(handed_in.file):
                yield from packed_notebooks(handed_in, content, allowance, only, tally)
            else:
                yield notebook(handed_in, name, handed_in.file, content, only)
        except Refused as reason:
            tally.leave_out(name, reason)


def packed_notebooks(
    handed_in: HandedIn, packed: bytes, allowance: Allowance, only: Lesson | None, tally: Collected
) -> Iterator[Notebook]:
    """Yield the notebooks in a student's own zip archive. Raises Refused if it is empty."""
    archive = open_archive(packed)
    packed_files = list(entries(archive))
    if not packed_files:
        raise Refused("it is empty")
    for entry in packed_files:
        name = f"{handed_in.entry.name} › {entry.name}"
        if entry.clutter:
            tally.clutter += 1
            continue
        try:
            require_work(entry, entry.path)
            if is_zip(entry.file):
                raise Refused(TWICE_PACKED)
            content = read(archive, entry, allowance)
            yield notebook(handed_in, name, entry.file, content, only, entry.time)
        except Refused as reason:
            tally.leave_out(name, reason)


def require_work(entry: Entry, path: Sequence[str]) -> None:
    """Raise Refused for files that can't be a submission. path: the part that the student chose."""
    if entry.problem:
        raise Refused(entry.problem)
    if any(part.startswith(".") for part in path):
        raise Refused(HIDDEN)
    if not (is_notebook(path[-1]) or is_zip(path[-1])):
        raise Refused(NO_NOTEBOOK)


def notebook(
    handed_in: HandedIn,
    name: str,
    file: str,
    content: bytes,
    only: Lesson | None,
    packed: datetime | None = None,
) -> Notebook:
    named = by_name(file) or by_cells(content)
    lesson = named or only
    if lesson is None:
        raise Refused(NO_LAB)
    return Notebook(handed_in, name, content, lesson, named is not None, packed)


def newest(notebooks: Sequence[Notebook], only: Lesson | None, tally: Collected) -> list[Notebook]:
    """Choose one notebook for each lesson."""
    choices = defaultdict(list)
    for each in notebooks:
        if only and each.lesson != only:
            tally.leave_out(each.file, OTHER_LAB.format(only.name))
        else:
            choices[each.lesson.name].append(each)
    chosen = [max(reversed(several), key=lambda each: each.rank) for several in choices.values()]
    for best in chosen:
        for each in choices[best.lesson.name]:
            if each is not best:
                tally.leave_out(each.file, TWICE if each.content == best.content else OUTDONE)
    return chosen


def is_notebook(file: str) -> bool:
    """Whether a file is a notebook. Some browsers append .txt or .json to the name."""
    return re.search(r"\.ipynb(\.txt|\.json)?$", file, re.IGNORECASE) is not None


def is_zip(file: str) -> bool:
    return file.lower().endswith(".zip")


# --------------------------------------------------------------------------------- finding the lab


def by_name(file: str) -> Lesson | None:
    """Find the lesson by a file's name, ignoring what copying and uploading append to it."""
    stem = file.lower().split(".ipynb")[0].removeprefix("copy of ")
    stem = re.sub(r"([-_ ]?\([0-9]+\)|-[0-9]+|-copy[0-9]*| copy)+$", "", stem)
    stem = re.sub(r"[- ]", "_", stem)
    return next((each for each in lessons().values() if stem in (each.lab, each.name)), None)


def by_cells(content: bytes) -> Lesson | None:
    """Find the lesson by a notebook's cells, otherwise by the lesson that it was built from.

    The text is searched, not parsed, so that a broken notebook is found too.
    """
    ids = [id.decode() for id in re.findall(rb'"grade_id": *"([\w-]{1,100})"', content)]
    labs = Counter(labs_of_cells()[id] for id in ids if id in labs_of_cells())
    if labs:
        return lessons()[labs.most_common(1)[0][0]]
    place = rb"(?:course/lab|solutions/lessons/)[0-9]{2}_(\w{1,100})[./]"
    built = re.search(rb'"lesson": *"' + place, content)
    return lessons().get(built[1].decode()) if built else None


@cache
def labs_of_cells() -> dict[str, str]:
    """Return the lab of each grade_id that the lesson build gives."""
    labs = {}
    for lesson in lessons().values():
        exercises = [name.replace(".", "-") for name in lesson.cards]
        checks = [f"check-{name}" for name in exercises]
        labs.update(dict.fromkeys([*exercises, *checks, *lesson.questions], lesson.lab))
    return labs


# ----------------------------------------------------------------------------- writing submitted/


def place(notebook: Notebook, folder: Path, tally: Collected) -> None:
    """Put a notebook into its folder, unless the one there is the same or newer."""
    target = folder / f"{notebook.lesson.lab}.ipynb"
    earlier = None
    if in_the_way(folder, notebook.lesson):
        tally.leave_out(notebook.file, IN_THE_WAY)
        return
    if target.exists():
        if notebook.digest in (digest_of(target), last_collected(folder)):
            tally.again += 1
            return
        if notebook.time <= time_of(target):
            tally.leave_out(notebook.file, NOT_NEWER)
            return
        earlier = move_away(target)
    write(notebook, target)
    tally.placed.append(Placed(notebook.handed_in, notebook.lesson.name, notebook.file, earlier))


def in_the_way(folder: Path, lesson: Lesson) -> bool:
    """Whether there are links, or folders instead of files, where a submission belongs."""
    file = f"{lesson.lab}.ipynb"
    names = (EARLIER, COLLECTED, timestamp.NAME, file, f".{file}.part")
    ours = [folder / name for name in names]
    return (
        any(path.is_symlink() for path in (folder.parent, folder, *ours))
        or any(path.exists() and not path.is_dir() for path in (folder.parent, folder, ours[0]))
        or any(path.is_dir() for path in ours[1:])
    )


def move_away(target: Path) -> Path:
    """Move a submission and its timestamp to a new folder in .earlier/."""
    name = f"{time_of(target):%Y-%m-%d-%H-%M-%S}-{digest_of(target)[:16]}"
    earlier = target.parent / EARLIER / name
    earlier.mkdir(parents=True, exist_ok=True)
    for file in (target.with_name(timestamp.NAME), target):
        if file.exists():
            file.replace(earlier / file.name)  # if the name is taken, it is the same file
    return earlier


def write(notebook: Notebook, target: Path) -> None:
    """Write a notebook with its time. It gets its name last, so a crash leaves no partial file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handed_in_at = target.with_name(timestamp.NAME)
    if notebook.handed_in.time and not handed_in_at.exists():
        handed_in_at.write_text(timestamp.written(notebook.handed_in.time))
    part = target.with_name(f".{target.name}.part")
    part.write_bytes(notebook.content)
    os.utime(part, (notebook.time.timestamp(),) * 2)
    part.replace(target)
    target.with_name(COLLECTED).write_text(f"{notebook.digest}\n")


def last_collected(folder: Path) -> str | None:
    """Return the digest of the notebook last put there, which may have been edited since."""
    note = folder / COLLECTED
    return note.read_text().strip() if note.exists() else None


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def time_of(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC)


# ---------------------------------------------------------------------------------- students.csv


class Table:
    """The students' ids, names and files, one row per file. Rows are added and never changed."""

    def __init__(self, path: Path) -> None:
        """Raises refused.Refused for a table to which no rows can be added."""
        self.path = path
        self.new: list[dict[str, str]] = []
        try:
            self.text = path.read_text(encoding="utf-8-sig") if path.exists() else ""
            rows = csv.DictReader(io.StringIO(self.text))
            self.columns = list(rows.fieldnames or COLUMNS)
            held = list(rows)
            self.known = {(row.get("id"), alike(row.get("file") or "")) for row in held}
            self.names = {row.get("id"): row.get("name") or "" for row in held}
        except (UnicodeDecodeError, csv.Error):
            self.columns = []
        if not set(COLUMNS) <= set(self.columns):
            raise refused.Refused(
                f"No rows can be added to {path}: it is not a table in UTF-8 with the columns "
                f"{', '.join(COLUMNS)}, separated by commas. Rename it and collect again."
            )

    def note(self, student: Student, files: Sequence[HandedIn]) -> None:
        work = [each for each in files if is_notebook(each.file) or is_zip(each.file)]
        for each in work or files[:1]:
            values = (student.id, cell(student.name), cell(each.entry.name))
            row = dict(zip(COLUMNS, values, strict=True))
            key = row["id"], alike(row["file"])
            if key not in self.known:
                self.known.add(key)
                self.new.append(row)

    def write(self) -> None:
        if not self.new:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8", newline="") as file:
            if self.text and not self.text.endswith("\n"):
                file.write("\n")
            rows = csv.DictWriter(file, self.columns, lineterminator="\n")
            if not self.text:
                rows.writeheader()
            rows.writerows(self.new)


def alike(file: str) -> str:
    """Return a name in the form that is the same however its accents were written."""
    return unicodedata.normalize("NFC", file)


# ------------------------------------------------------------------------------------- the summary


def per_lesson(placed: Sequence[Placed]) -> Iterator[str]:
    for lesson, number in sorted(Counter(each.lesson for each in placed).items()):
        late = sum(each.handed_in.late for each in placed if each.lesson == lesson)
        yield f"  {lesson}: {number}" + (f", {late} marked late" if late else "")


def times(placed: Sequence[Placed]) -> Iterator[str]:
    """Say of times in names in which zone they were read, and which of them are doubtful."""
    files = defaultdict(list)
    for each in placed:
        if each.handed_in.time or each.handed_in.doubt:
            files[each.handed_in.doubt].append(each.file)
    if files:
        yield (
            f"Times in names were read as local times of this machine ({timestamp.zone()}). If the "
            "platform has another time zone, move submitted/ away and collect again with TZ set: "
            "TZ=Europe/Berlin python -m autograder collect ..."
        )
    for doubt, names in files.items():
        if doubt:
            yield f"Look at the time of {listed(names)}: {doubt}."


def replacements(placed: Sequence[Placed]) -> Iterator[str]:
    for each in placed:
        if each.earlier:
            yield (
                f"{each.student.id} handed in {each.lesson} again; the previous version is kept in "
                f"{each.earlier}."
            )


def reasons(left_out: Sequence[LeftOut]) -> Iterator[str]:
    files = defaultdict(list)
    for each in left_out:
        files[each.reason].append(each.file)
    for reason, names in files.items():
        yield f"Left out, because {reason}: {listed(names)}."


def nothing_of(without: Sequence[tuple[Student, Sequence[str]]]) -> Iterator[str]:
    for student, files in without:
        who = f"{shown(student.name)} ({student.id})"
        yield f"No file of {who} could be collected: {listed(files)}."
