r"""Finding the student of a file, by its name in a learning platform's download.

Moodle    "Ada Lovelace_123456_assignsubmission_file_/kv_cache.ipynb", a folder for each student
          (newer versions leave the last underscore out), or, if folders are switched off, the
          same in one name. A group replaces its students; the default group has no
          number. Source: mod/assign/classes/downloader.php, get_student_prefix and
          load_submissionplugin_filelist. Every assignment numbers its participants separately, so
          a Moodle student has another id in each lab; the number is the one in Moodle's grading
          worksheet, "Participant 123456".
Canvas    "lovelaceada_12345_67890_kv_cache.ipynb": sortable name, user, upload; LATE after the
          name if it was late; "anon_x7Rt2" for name and user if marking is anonymous; a text or a
          link is "lovelaceada_12345_text.html". A file that is handed in again under the same name
          is called kv_cache-1.ipynb. Source: lib/content_zipper.rb of canvas-lms, get_filename and
          add_upload_submission, and make_unique_filename in app/models/attachment.rb.
Blackboard "Lab 2_ada_attempt_2026-11-20-10-00-00_kv_cache.ipynb", and for each attempt a receipt in
          .txt without a file name. Source: nbgrader's documentation of zip_collect, which gives
          (?P<student_id>\w+)_attempt_(?P<timestamp>[0-9\-]+)_(?P<file_id>.*).
Folders   "ada/kv_cache.ipynb": the first folder is the student.

Only the part that the platform put before the student's own file name counts, and one platform's
pattern is applied to the whole archive. So a student can't pose as another by naming a file like
theirs.
"""

import hashlib
import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from autograder.grading.collect.archive import LEADS_OUT, Entry
from autograder.grading.collect.clutter import is_clutter
from autograder.grading.collect.timestamp import from_local

NUMBER = r"[0-9]{1,20}"
MOODLE_STUDENT = rf"(?P<name>[^_]+)(?:_(?P<number>{NUMBER}))?_assignsubmission_(?:file|onlinetext)"
MOODLE_FOLDER = re.compile(rf"{MOODLE_STUDENT}_?", re.DOTALL)
MOODLE = re.compile(rf"{MOODLE_STUDENT}_(?P<file>.+)", re.DOTALL)
BLACKBOARD = re.compile(
    r"(?P<head>(?:.*_)?(?P<name>[^_]+))_attempt_(?P<time>[0-9]{4}(?:-[0-9]{2}){5})"
    r"(?:_(?P<file>.+)|\.txt)",
    re.DOTALL,
)
CANVAS = re.compile(
    rf"(?:(?P<name>.+?)_)??(?P<late>LATE_)?(?P<number>{NUMBER}|anon_[A-Za-z0-9]+)"
    rf"_(?:(?P<upload>{NUMBER})_(?P<file>.+)|(?:text|link)\.html)",
    re.DOTALL,
)
PLATFORMS = (MOODLE, BLACKBOARD, CANVAS)  # the most specific pattern first

ID = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,58}[a-z0-9])?")
RESERVED = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?")  # not on Windows


@dataclass(frozen=True, order=True)
class Student:
    """id: the name of the folder in submitted/. name: as in the download."""

    id: str
    name: str


@dataclass(frozen=True)
class HandedIn:
    """A student's file.

    path: the student's name for it, with the folders around it. upload: Canvas's number of the
    upload. time: when it was handed in, in UTC, if the name contains it. doubt: about that time,
    or "". late: if the name says so.
    """

    student: Student
    entry: Entry
    path: tuple[str, ...]
    upload: int = 0
    time: datetime | None = None
    doubt: str = ""
    late: bool = False

    @property
    def file(self) -> str:
        return self.path[-1]


def attributed(entries: Sequence[Entry]) -> tuple[list[HandedIn], list[Entry]]:
    """Return the files with their students, and the entries whose name contains no student."""
    outer = len(wrapper([e for e in entries if not e.clutter and e.problem != LEADS_OUT]))
    handed_in, alone, nobodys = [], [], []
    for entry in entries:
        around, rest = entry.path[: outer + 1], entry.path[outer + 1 :]
        if rest and not is_clutter(around, others=(), is_folder=True):
            handed_in.append(HandedIn(owner(around[-1]), entry, rest))
        elif entry.clutter:
            nobodys.append(entry)
        else:
            alone.append(entry)
    platform = platform_of(alone)
    matches = [(entry, platform.fullmatch(entry.file)) for entry in alone]
    handed_in += by_file_names([(entry, match) for entry, match in matches if match])
    return handed_in, nobodys + [entry for entry, match in matches if not match]


def platform_of(entries: Sequence[Entry]) -> re.Pattern[str]:
    """Return the pattern that fits the most names."""
    return max(PLATFORMS, key=lambda pattern: sum(fits(pattern, entry) for entry in entries))


def fits(pattern: re.Pattern[str], entry: Entry) -> bool:
    return pattern.fullmatch(entry.file) is not None


def wrapper(entries: Sequence[Entry]) -> tuple[str, ...]:
    """Return the folder around a whole download, if a person or a system has added one.

    A folder that contains everything is one student's, unless its entries have students' names.
    """
    work = [entry for entry in entries if entry.file.lower().endswith((".ipynb", ".zip"))]
    if len({entry.path[0] for entry in work}) != 1 or any(len(e.path) == 1 for e in work):
        return ()
    folders = {entry.path[1] for entry in work if len(entry.path) > 2}
    files = [entry for entry in work if len(entry.path) == 2]
    of_students = (
        not MOODLE_FOLDER.fullmatch(work[0].path[0])
        and all(any(fits(pattern, entry) for pattern in PLATFORMS) for entry in files)
        and not any(re.match(r"[0-9]{2}_[a-z]", folder) for folder in folders)  # a lab's
        and (files or len(folders) > 1 or any(map(MOODLE_FOLDER.fullmatch, folders)))
    )
    return work[0].path[:1] if of_students else ()


def owner(folder: str) -> Student:
    match = MOODLE_FOLDER.fullmatch(folder)
    return student(match["name"], match["number"]) if match else student(folder)


def by_file_names(matches: Sequence[tuple[Entry, re.Match[str]]]) -> list[HandedIn]:
    heads = defaultdict(set)
    for _, match in matches:
        heads[match["name"]].add(match.groupdict().get("head"))
    handed_in = []
    for entry, match in matches:
        said = match.groupdict()
        # In Blackboard a user's name may contain an underscore, and end like another user's.
        time, doubt = from_local(said["time"]) if "time" in said else (None, "")
        whose = said["name"] if len(heads[said["name"]]) == 1 else said["head"]
        handed_in.append(
            HandedIn(
                student(whose, said.get("number")),
                entry,
                (said["file"] or entry.file,),
                upload=int(said.get("upload") or 0),
                time=time,
                doubt=doubt,
                late=bool(said.get("late")),
            )
        )
    return handed_in


# --------------------------------------------------------------------------------------- ids


def student(name: str | None, number: str | None = None) -> Student:
    """Make a student from a name and, if the platform gives one, a number.

    The number is unique; the name before it is for people to read. A name alone is the id if it is
    a valid one. Otherwise the id is the legible part of the name and a few digits of its hash, so
    that two similar names get different ids. An id is valid on every file system and in nbgrader,
    which finds students with a glob and separates them by "+".
    """
    if number and number.isdecimal():
        return Student(f"{slug(name or '')}-{number}", name or number)
    whole = unicodedata.normalize("NFC", name or number or "")
    if ID.fullmatch(whole) and not RESERVED.fullmatch(whole):
        return Student(whole, whole)
    return Student(f"{slug(whole)}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}", whole)


def slug(name: str) -> str:
    """Return the ASCII letters and digits of a name, in lower case, joined by hyphens."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return "-".join(re.findall(r"[a-z0-9]+", plain))[:40].strip("-") or "student"
