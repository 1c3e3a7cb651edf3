"""Every entry of submitted/, for a lab: what is graded, and why the rest is not a submission.

A student whose folder has a wrong name would silently get no grade. So this module goes through the
names in submitted/ and reports what looks like a submission but is not graded. It opens no file,
follows no link, and limits the number of entries that it looks at.
"""

import os
import re
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path

from autograder.grading.collect.clutter import is_clutter, passed_over
from autograder.grading.collect.submitted import is_notebook, is_zip
from autograder.grading.judge.foreign import listed, shown
from autograder.grading.judge.submission import Unreadable, open_folder, students
from autograder.text.lesson import Lesson, lessons

MOST_STUDENTS = 100_000  # entries of submitted/
MOST_ENTRIES = 5_000  # of a student's folder
MOST_FOLDERS = 8  # nested
MOST_LINES = 50  # about students
NAMED = 20  # in a line

FILE, FOLDER, CLUTTER, CLOSED = "file", "folder", "clutter", "folder that can't be opened"

MOVE = "{what}. Move {which} to {there} and grade again."
PERHAPS = "{what}. If it is for this lab, move the notebook to {there} and grade again."
BESIDE = "{what}. The notebook in {lab}/ is graded. If that is the wrong one, replace it."
NOT_SEEN = (
    "the folder is too large to be searched, or can't be opened. If the notebook is in it, move it "
    "to {there} and grade again."
)
HIDDEN = "the folder's name begins with a dot. Rename it and grade again."
A_LABS = (
    "the folder is named after a lab instead of a student. Move its content to "
    "submitted/STUDENT/{lab}/ and grade again."
)

Names = tuple[str, ...]


@dataclass(frozen=True)
class Inventory:
    """The content of submitted/, for a lab.

    students: those who handed in something, and are graded. misplaced: by the name of a folder,
    what in it looks like a submission but is not graded, and what to do. without: the folders with
    nothing of this lab. loose: entries directly in submitted/ that aren't folders. clutter: the
    number of entries that are clutter. whole: whether all of submitted/ was searched.
    """

    lesson: Lesson
    students: Names
    misplaced: dict[str, str]
    without: Names
    loose: Names
    clutter: int
    whole: bool

    @property
    def lines(self) -> list[str]:
        """Say what is not graded: one line for each of the first students, and the notes."""
        lines = [f"{shown(name)}: {why}" for name, why in self.misplaced.items()]
        more = f"and {len(lines) - MOST_LINES} more: python -m autograder report {self.lesson.lab}"
        return [*lines[:MOST_LINES], *([more] if len(lines) > MOST_LINES else []), *self.notes]

    @property
    def notes(self) -> list[str]:
        """Return the lines that aren't about a single student."""
        notes = []
        if self.without:
            names = listed(self.without, NAMED)
            notes.append(f"Nothing of {self.lesson.name} ({len(self.without)}): {names}.")
        if self.loose:
            notes.append(
                f"Not a submission ({len(self.loose)}): {listed(self.loose, NAMED)}. Only folders "
                "directly in submitted/ count, and no links. Put a notebook into "
                f"submitted/STUDENT/{self.lesson.name}/, or collect an archive with "
                "python -m autograder collect FILE.zip"
            )
        if not self.whole:
            notes.append(f"Only {MOST_STUDENTS} entries of submitted/ were searched.")
        return notes + passed_over(self.clutter)


def inventory(submitted: Path, lesson: Lesson) -> Inventory:
    """Go through submitted/. Raises Unreadable if it can't be opened."""
    graded = dict.fromkeys(students(submitted, lesson))
    misplaced: dict[str, str] = {}
    without, loose, clutter = [], [], 0
    with open_folder(submitted) as course:
        kinds = kinds_in(course, MOST_STUDENTS)
        for name, kind in kinds.items():
            if kind == CLUTTER:
                clutter += 1
            elif kind == FOLDER:
                contents = look(course, name, lesson)
                clutter += contents.clutter
                if why := reason(name, contents, lesson, name in graded):
                    misplaced[name] = f"not a submission: {why}"
                elif name not in graded:
                    without.append(name)
            elif name not in graded:  # for example a link to a folder
                loose.append(name)
    whole = len(kinds) < MOST_STUDENTS
    return Inventory(lesson, tuple(graded), misplaced, tuple(without), tuple(loose), clutter, whole)


# ---------------------------------------------------------------------------- a student's folder


@dataclass
class Contents:
    """The content of a student's folder, for a lab.

    lab: whether something has the name of the lab's folder. in_place: whether a notebook is in that
    folder. notebooks: notebooks elsewhere that are named after this lab. others: archives, folders
    and other files that are. perhaps: notebooks and archives that are named after no lab. whole:
    whether everything was searched.
    """

    lab: bool = False
    in_place: bool = False
    notebooks: list[Names] = field(default_factory=list)
    others: list[Names] = field(default_factory=list)
    perhaps: list[Names] = field(default_factory=list)
    clutter: int = 0
    whole: bool = True


def look(course: int, student: str, lesson: Lesson) -> Contents:
    entries = list(islice(walk(course, student), MOST_ENTRIES))
    contents = Contents(whole=len(entries) < MOST_ENTRIES)
    for path, kind in entries:
        note(path, kind, lesson, contents)
    if contents.in_place:  # other files in the lab's folder are the student's own, or earlier ones
        contents.notebooks = [path for path in contents.notebooks if path[0] != lesson.name]
    return contents


def walk(course: int, student: str) -> Iterator[tuple[Names, str]]:
    """Yield everything in a student's folder with its kind, the outer folders first."""
    ahead: deque[Names] = deque([()])
    while ahead:
        path = ahead.popleft()
        try:
            kinds = kinds_below(course, (student, *path))
        except Unreadable:
            yield path, CLOSED
            continue
        for name, kind in kinds.items():
            inner = (*path, name)
            yield inner, CLOSED if kind == FOLDER and len(inner) == MOST_FOLDERS else kind
            if kind == FOLDER and len(inner) < MOST_FOLDERS:
                ahead.append(inner)


def kinds_below(course: int, path: Names) -> dict[str, str]:
    """Raises Unreadable if a folder on the way is a link, or can't be opened."""
    with ExitStack() as open_ones:
        folder = course
        for name in path:
            folder = open_ones.enter_context(open_folder(name, folder))
        return kinds_in(folder, MOST_ENTRIES)


def kinds_in(folder: int, most: int) -> dict[str, str]:
    """Return the content of an open folder, sorted by name, with its kinds."""
    with os.scandir(folder) as entries:
        is_folder = {e.name: e.is_dir(follow_symlinks=False) for e in islice(entries, most)}
    beside = {(name,) for name in is_folder}
    kinds = {name: FOLDER if is_folder[name] else FILE for name in sorted(is_folder)}
    clutter = [name for name in kinds if is_clutter((name,), beside, is_folder[name])]
    return kinds | dict.fromkeys(clutter, CLUTTER)


def note(path: Names, kind: str, lesson: Lesson, contents: Contents) -> None:
    if kind == CLOSED:
        contents.whole = False
    elif kind == CLUTTER:
        contents.clutter += 1
    elif path == (lesson.name,):
        contents.lab = True
    elif kind == FILE and path[:-1] == (lesson.name,) and is_graded(path[-1]):
        contents.in_place = True
    elif kind == FILE and (is_notebook(path[-1]) or is_zip(path[-1])):
        ours = is_of(path, lesson)
        if ours is None:
            contents.perhaps.append(path)
        elif ours:
            (contents.notebooks if is_notebook(path[-1]) else contents.others).append(path)
    elif named_after(path[-1]) == lesson or (kind == FOLDER and is_numbered(path[-1], lesson)):
        contents.others.append(path)


def is_graded(file: str) -> bool:
    """Whether a file counts as the notebook in a lab's folder, as in submission.py."""
    return file.lower().endswith(".ipynb") and not file.startswith(".")


def reason(student: str, contents: Contents, lesson: Lesson, graded: bool) -> str | None:
    """Say why something in a folder is not a submission, and what to do; None if all is well."""
    there = f"submitted/{shown(student)}/{lesson.notebook}"
    paths = contents.notebooks or ([] if contents.in_place else contents.others or contents.perhaps)
    what = listed(["/".join(path) for path in paths])
    if student in labs() and not contents.lab:
        return A_LABS.format(lab=labs()[student].name)
    if student.startswith(".") and (paths or contents.lab):
        return HIDDEN
    if paths and contents.in_place:
        return BESIDE.format(what=what, lab=lesson.name)
    if contents.notebooks:
        which = "it" if len(paths) == 1 else "the right one"
        return MOVE.format(what=what, which=which, there=there)
    if paths:
        return PERHAPS.format(what=what, there=there)
    if not contents.in_place and (not contents.whole or (contents.lab and not graded)):
        return NOT_SEEN.format(there=there)
    return None


# -------------------------------------------------------------------------------- finding the lab


def is_of(path: Names, lesson: Lesson) -> bool | None:
    """Whether a path belongs to a lab, by the innermost name with a lab in it; None if unknown."""
    for name in reversed(path):
        if other := named_after(name):
            return other == lesson
    return any(is_numbered(name, lesson) for name in path) or None


def named_after(name: str) -> Lesson | None:
    """Find the lesson named in a name, however it is written: "KV-Cache (2)", "2_kvcache"."""
    labels = [each.replace("_", "") for each in lab_names().findall(words(name))]
    return labs()[max(labels, key=len)] if labels else None


def is_numbered(name: str, lesson: Lesson) -> bool:
    """Whether a name begins with the number of a lesson: "2", "lab2", "02-cache"."""
    return re.match(rf"(?:lab_)?0*{int(lesson.name[:2])}(?:_|$)", words(name)) is not None


def words(name: str) -> str:
    return "_".join(re.findall("[a-z]+|[0-9]+", name.lower()))


@cache
def lab_names() -> re.Pattern[str]:
    longest_first = sorted(lessons(), key=len, reverse=True)
    either = "|".join(lab.replace("_", "_?") for lab in longest_first)
    return re.compile(rf"(?<![a-z])(?:{either})(?![a-z])")


@cache
def labs() -> dict[str, Lesson]:
    """Return the lessons by all of their names."""
    return {
        name: each
        for each in lessons().values()
        for name in (each.lab.replace("_", ""), each.lab, each.name)
    }
