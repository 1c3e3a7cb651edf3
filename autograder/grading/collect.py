"""From a learning platform's download to submitted/: the work behind `collect FILE.zip`.

    submitted/ada-lovelace-123456/02_kv_cache/kv_cache.ipynb

What is collected twice. A notebook that was collected before is left alone, whatever became of it
in submitted/ since. A different one goes in if it is newer than the one that is there: by the time
in its name (Blackboard), else by the archive's (which in Canvas and Moodle is that of the
download). So, after late submissions, download again and collect again, and everybody's last
version is there. What was there moves to .earlier/ beside it, with its timestamp.txt. Nothing is
ever overwritten.

Collect the archive of one assignment with its lab (`--lab`). Then notebooks of other labs stay out,
so that nobody hands in lab 2 once more within a zip for lab 3, and a student of whose files none
can be collected gets an empty folder, for the grader to give its zero with the reason.

Everything in an archive is accounted for: it is collected, it was collected before, it is left out
for a reason, or it is counted as clutter (what operating systems and tools leave).

Times are in UTC; those in names and archives are taken to be in this machine's time zone. Where a
name tells when it was handed in, timestamp.txt notes it, by which nbgrader knows late work. Canvas
says LATE but not how late: that is told, and no penalty can come of it.
"""

import csv
import hashlib
import io
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from zipfile import ZipFile

from autograder.course.lesson import Lesson, lessons
from autograder.grading import timestamp
from autograder.grading.archive import (
    Allowance,
    Entry,
    Refused,
    entries,
    open_archive,
    read,
)
from autograder.grading.clutter import passed_over
from autograder.grading.download import HandedIn, Student, attributed
from autograder.grading.foreign import cell, listed, shown

COLUMNS = ["id", "name", "file"]  # of students.csv
EARLIER, COLLECTED = ".earlier", ".collected"  # beside a submission, hidden from everything else
LONG_AGO = datetime(1980, 1, 1, tzinfo=UTC)

NOBODYS = (
    "the name doesn't tell whose it is (give each student a folder, and zip the folders together)"
)
NO_LAB = "neither its name nor its cells tell which lab it is (say so with --lab)"
OTHER_LAB = "it is of another lab than {}"
OUTDONE = "the archive holds one of the same student and lab that is newer or less doubtful"
NOT_NEWER = (
    "submitted/ holds a different one that is no older (if that is the wrong one, move its folder "
    "away and collect again)"
)
IN_THE_WAY = "something else stands in its place in submitted/ (a link, say)"
HIDDEN = (
    "its name or that of a folder around it begins with a dot (if it is what was handed in, rename "
    "it, and zip it again)"
)
NO_NOTEBOOK = "it is not a notebook"
TWICE = "the archive holds the same notebook of the same student more than once"
TWICE_PACKED = "it is a zip archive within a student's zip archive"


class NotCollected(Exception):
    """Nothing was collected. The text says why, and what to do."""


@dataclass(frozen=True)
class Placed:
    """file: its name in the archive. earlier: the folder of the one whose place it took."""

    student: Student
    lesson: str
    file: str
    late: bool
    earlier: Path | None


@dataclass(frozen=True)
class LeftOut:
    file: str
    reason: str


@dataclass(frozen=True)
class Collected:
    """What collecting an archive came to.

    again: how many notebooks had been collected before. without: the students of whose files none
    could be collected, and what they handed in. clutter: how many entries were clutter.
    """

    placed: tuple[Placed, ...]
    again: int
    left_out: tuple[LeftOut, ...]
    without: tuple[tuple[Student, tuple[str, ...]], ...]
    clutter: int

    def __str__(self) -> str:
        students = len({each.student for each in self.placed})
        total = f"{counted(len(self.placed), 'notebook')} of {counted(students, 'student')}"
        again = f"; {self.again} more had been collected before" if self.again else ""
        return "\n".join(
            [
                f"Collected {total}{again}.",
                *per_lesson(self.placed),
                *replacements(self.placed),
                *reasons(self.left_out),
                *nothing_of(self.without),
                *passed_over(self.clutter),
            ]
        )


def collect(archive: Path, submitted: Path, lesson: Lesson | None) -> Collected:
    """Put the notebooks of a download where nbgrader looks for them; with a lesson, its alone.

    Students' names are noted in students.csv beside `submitted`. Raises NotCollected.
    """
    table = Table(submitted.parent / "students.csv")
    tally = Tally()
    if not archive.is_file():
        raise NotCollected(f"There is no file {archive}.")
    try:
        download = open_archive(archive)
    except Refused as reason:
        raise NotCollected(
            f"{archive} can't be collected: {reason}. Download it again, as a zip archive."
        ) from None
    with download:
        for student, files in sorted(by_student(download, tally).items()):
            collect_student(student, files, download, submitted, lesson, tally)
            table.note(student, files)
    table.write()
    return Collected(
        tuple(tally.placed),
        tally.again,
        tuple(tally.left_out),
        tuple(tally.without),
        tally.clutter,
    )


@dataclass
class Tally:
    """What has come of it so far."""

    placed: list[Placed] = field(default_factory=list)
    again: int = 0
    left_out: list[LeftOut] = field(default_factory=list)
    without: list[tuple[Student, tuple[str, ...]]] = field(default_factory=list)
    clutter: int = 0

    def leave_out(self, file: str, reason: Refused | str) -> None:
        self.left_out.append(LeftOut(file, str(reason)))


def by_student(download: ZipFile, tally: Tally) -> dict[Student, list[HandedIn]]:
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
    tally: Tally,
) -> None:
    notebooks = list(notebooks_of(files, download, only, tally))
    chosen = newest(notebooks, only, tally)
    for notebook in chosen:
        place(notebook, submitted / student.id / notebook.lesson.name, tally)
    if not chosen:
        tally.without.append((student, tuple(each.entry.name for each in files)))
        if only and not in_the_way(submitted / student.id / only.name, only):
            (submitted / student.id / only.name).mkdir(parents=True, exist_ok=True)


# ---------------------------------------------------------------------------- what was handed in


@dataclass(frozen=True)
class Notebook:
    """A student's notebook.

    file: its name in the archive. certain: whether it is of its lesson by its own account. packed:
    its time in the student's own zip archive. The student can set that one at will, so that it
    decides nothing but which of the student's notebooks is the newest.
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
    files: Sequence[HandedIn], download: ZipFile, only: Lesson | None, tally: Tally
) -> Iterator[Notebook]:
    """A student's notebooks of a known lab, those in a zip archive of their own included."""
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
    handed_in: HandedIn, packed: bytes, allowance: Allowance, only: Lesson | None, tally: Tally
) -> Iterator[Notebook]:
    """Those in a student's own zip archive. Raises Refused where there is nothing in it."""
    archive = open_archive(packed)
    found = list(entries(archive))
    if not found:
        raise Refused("there is nothing in it")
    for entry in found:
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
    """Raise Refused for what can't be a submission. path: the part that the student chose."""
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
    own = by_name(file) or by_cells(content)
    lesson = own or only
    if lesson is None:
        raise Refused(NO_LAB)
    return Notebook(handed_in, name, content, lesson, own is not None, packed)


def newest(notebooks: Sequence[Notebook], only: Lesson | None, tally: Tally) -> list[Notebook]:
    """One notebook for each lesson."""
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
    """Some browsers append .txt or .json to what they save."""
    return re.search(r"\.ipynb(\.txt|\.json)?$", file, re.IGNORECASE) is not None


def is_zip(file: str) -> bool:
    return file.lower().endswith(".zip")


# ------------------------------------------------------------------------------------- which lab


def by_name(file: str) -> Lesson | None:
    """The lesson that a file is named after, but for what copying and uploading append."""
    stem = file.lower().split(".ipynb")[0].removeprefix("copy of ")
    stem = re.sub(r"([-_ ]?\([0-9]+\)|-[0-9]+|-copy[0-9]*| copy)+$", "", stem)
    stem = re.sub(r"[- ]", "_", stem)
    return next((each for each in lessons().values() if stem in (each.lab, each.name)), None)


def by_cells(content: bytes) -> Lesson | None:
    """The lesson whose cells a notebook has, else the one that it says it was built from.

    The text is searched and not parsed: a notebook may be broken, and be of a lab all the same.
    """
    ids = [id.decode() for id in re.findall(rb'"grade_id": *"([\w-]{1,100})"', content)]
    labs = Counter(labs_of_cells()[id] for id in ids if id in labs_of_cells())
    if labs:
        return lessons()[labs.most_common(1)[0][0]]
    built = re.search(rb'"lesson": *"solutions/lessons/[0-9]{2}_(\w{1,100})\.md"', content)
    return lessons().get(built[1].decode()) if built else None


@cache
def labs_of_cells() -> dict[str, str]:
    """The lab of each grade_id that the lesson build gives."""
    labs = {}
    for lesson in lessons().values():
        exercises = [name.replace(".", "-") for name in lesson.cards]
        checks = [f"check-{name}" for name in exercises]
        labs.update(dict.fromkeys([*exercises, *checks, *lesson.questions], lesson.lab))
    return labs


# --------------------------------------------------------------------------------- into submitted/


def place(notebook: Notebook, folder: Path, tally: Tally) -> None:
    """Put a notebook into its folder, unless what is there is the same or newer."""
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
    handed_in = notebook.handed_in
    tally.placed.append(
        Placed(handed_in.student, notebook.lesson.name, notebook.file, handed_in.late, earlier)
    )


def in_the_way(folder: Path, lesson: Lesson) -> bool:
    """Whether there are links, or folders for files, where a submission belongs."""
    file = f"{lesson.lab}.ipynb"
    names = (EARLIER, COLLECTED, timestamp.NAME, file, f".{file}.part")
    ours = [folder / name for name in names]
    return (
        any(path.is_symlink() for path in (folder.parent, folder, *ours))
        or any(path.exists() and not path.is_dir() for path in (folder.parent, folder, ours[0]))
        or any(path.is_dir() for path in ours[1:])
    )


def move_away(target: Path) -> Path:
    """Move a submission and its timestamp to a folder of their own in .earlier/."""
    name = f"{time_of(target):%Y-%m-%d-%H-%M-%S}-{digest_of(target)[:16]}"
    earlier = target.parent / EARLIER / name
    earlier.mkdir(parents=True, exist_ok=True)
    for file in (target.with_name(timestamp.NAME), target):
        if file.exists():
            file.replace(earlier / file.name)  # the same file, if ever the name is taken
    return earlier


def write(notebook: Notebook, target: Path) -> None:
    """Write a notebook with its time. It gets its name last, so that a crash leaves no half."""
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
    """The digest of the notebook that was last put there; it may have been corrected by hand."""
    note = folder / COLLECTED
    return note.read_text().strip() if note.exists() else None


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def time_of(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC)


# ---------------------------------------------------------------------------------- students.csv


class Table:
    """Who is who: id, name and file, a row for each file. Rows are added and never changed."""

    def __init__(self, path: Path) -> None:
        """Raises NotCollected for a table that can't be added to."""
        self.path = path
        self.new: list[dict[str, str]] = []
        try:
            self.text = path.read_text(encoding="utf-8-sig") if path.exists() else ""
            rows = csv.DictReader(io.StringIO(self.text))
            self.columns = list(rows.fieldnames or COLUMNS)
            self.known = {(row.get("id"), row.get("file")) for row in rows}
        except (UnicodeDecodeError, csv.Error):
            self.columns = []
        if not set(COLUMNS) <= set(self.columns):
            raise NotCollected(
                f"Rows have to be added to {path}, and it is no table in UTF-8 with the columns "
                f"{', '.join(COLUMNS)}, separated by commas. Give it another name."
            )

    def note(self, student: Student, files: Sequence[HandedIn]) -> None:
        work = [each for each in files if is_notebook(each.file) or is_zip(each.file)]
        for each in work or files[:1]:
            values = (student.id, cell(student.name), cell(each.entry.name))
            row = dict(zip(COLUMNS, values, strict=True))
            if (row["id"], row["file"]) not in self.known:
                self.known.add((row["id"], row["file"]))
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


# -------------------------------------------------------------------------------------- in words


def per_lesson(placed: Sequence[Placed]) -> Iterator[str]:
    for lesson, number in sorted(Counter(each.lesson for each in placed).items()):
        late = sum(each.late for each in placed if each.lesson == lesson)
        yield f"  {lesson}: {number}" + (f", {late} late by its name" if late else "")


def replacements(placed: Sequence[Placed]) -> Iterator[str]:
    for each in placed:
        if each.earlier:
            yield (
                f"{each.student.id} handed in {each.lesson} again; the one before is kept in "
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
        yield f"Nothing could be collected of {who}: {listed(files)}."


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
