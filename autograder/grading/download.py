r"""Whose a file is, by its name in what a learning platform lets one download.

Moodle    "Ada Lovelace_123456_assignsubmission_file_/kv_cache.ipynb", a folder for each student
          (newer versions leave the last underscore out), or, where folders are switched off, the
          same in one name. A group stands in place of its students; the default group has no
          number. Source: mod/assign/classes/downloader.php, get_student_prefix and
          load_submissionplugin_filelist. Every assignment numbers its participants anew, so from
          Moodle a student has another id in each lab; the number is the one in Moodle's grading
          worksheet, "Participant 123456".
Canvas    "lovelaceada_12345_67890_kv_cache.ipynb": sortable name, user, upload; LATE behind the
          name where it was; "anon_x7Rt2" for name and user where marking is anonymous; a text or a
          link is "lovelaceada_12345_text.html". A file that is handed in again under the same name
          is called kv_cache-1.ipynb. Source: lib/content_zipper.rb of canvas-lms, get_filename and
          add_upload_submission, and make_unique_filename in app/models/attachment.rb.
Blackboard "Lab 2_ada_attempt_2026-11-20-10-00-00_kv_cache.ipynb", and for each attempt a receipt in
          .txt without a file's name. Source: nbgrader's documentation of zip_collect, which gives
          (?P<student_id>\w+)_attempt_(?P<timestamp>[0-9\-]+)_(?P<file_id>.*).
Folders   "ada/kv_cache.ipynb": the first folder is the student.

Only what the platform put in front of a student's own file name counts, and one platform's pattern
is applied to all of an archive: whoever calls a file like somebody else's stays who they are.
"""

import hashlib
import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from autograder.grading.archive import LEADS_OUT, Entry
from autograder.grading.clutter import is_clutter

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
PLATFORMS = (MOODLE, BLACKBOARD, CANVAS)  # the most telling pattern first

ID = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,58}[a-z0-9])?")
RESERVED = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?")  # no names on Windows


@dataclass(frozen=True, order=True)
class Student:
    """id: the name of a folder in submitted/. name: as in the download."""

    id: str
    name: str


@dataclass(frozen=True)
class HandedIn:
    """A file of a student's.

    path: what the student called it, with the folders around it. upload: Canvas counts them. time:
    when it was handed in, in UTC, where the name tells. late: where the name says so.
    """

    student: Student
    entry: Entry
    path: tuple[str, ...]
    upload: int = 0
    time: datetime | None = None
    late: bool = False

    @property
    def file(self) -> str:
        return self.path[-1]


def attributed(found: Sequence[Entry]) -> tuple[list[HandedIn], list[Entry]]:
    """What an archive holds with its students, and the rest, whose name tells of none."""
    outer = len(wrapper([e for e in found if not e.clutter and e.problem != LEADS_OUT]))
    handed_in, alone, nobodys = [], [], []
    for entry in found:
        around, own = entry.path[: outer + 1], entry.path[outer + 1 :]
        if own and not is_clutter(around, others=(), is_folder=True):
            handed_in.append(HandedIn(owner(around[-1]), entry, own))
        elif entry.clutter:
            nobodys.append(entry)
        else:
            alone.append(entry)
    platform = platform_of(alone)
    matches = [(entry, platform.fullmatch(entry.file)) for entry in alone]
    handed_in += by_file_names([(entry, match) for entry, match in matches if match])
    return handed_in, nobodys + [entry for entry, match in matches if not match]


def platform_of(entries: Sequence[Entry]) -> re.Pattern[str]:
    """The pattern that fits most of the names."""
    return max(PLATFORMS, key=lambda pattern: sum(fits(pattern, entry) for entry in entries))


def fits(pattern: re.Pattern[str], entry: Entry) -> bool:
    return pattern.fullmatch(entry.file) is not None


def wrapper(found: Sequence[Entry]) -> tuple[str, ...]:
    """The folder around a whole download, which a person or a system may have added.

    A folder that holds everything is one student's, unless what is in it has students' names.
    """
    work = [entry for entry in found if entry.file.lower().endswith((".ipynb", ".zip"))]
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
        # In Blackboard a user's name may hold an underscore, and end like another's.
        whose = said["name"] if len(heads[said["name"]]) == 1 else said["head"]
        handed_in.append(
            HandedIn(
                student(whose, said.get("number")),
                entry,
                (said["file"] or entry.file,),
                upload=int(said.get("upload") or 0),
                time=local_time(said["time"]) if "time" in said else None,
                late=bool(said.get("late")),
            )
        )
    return handed_in


def local_time(text: str) -> datetime | None:
    """The time in UTC of a Blackboard name, taken to be in this machine's time zone."""
    try:
        return datetime.strptime(text, "%Y-%m-%d-%H-%M-%S").astimezone(UTC)
    except (ValueError, OverflowError):
        return None


# --------------------------------------------------------------------------------------- ids


def student(name: str | None, number: str | None = None) -> Student:
    """A student known by a name and, where the platform gives one, by a number.

    A number is unique, and the name before it for people to read. A name alone is the id if it is
    fit to be one; else the id is what is legible of it and a few digits of its hash, so that two
    names that look alike stay two. An id is fit for every file system and for nbgrader, which looks
    for students with a glob and separates them by "+".
    """
    if number and number.isdecimal():
        return Student(f"{slug(name or '')}-{number}", name or number)
    whole = unicodedata.normalize("NFC", name or number or "")
    if ID.fullmatch(whole) and not RESERVED.fullmatch(whole):
        return Student(whole, whole)
    return Student(f"{slug(whole)}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}", whole)


def slug(name: str) -> str:
    """The letters and digits of a name that ASCII has, in small letters, joined by hyphens."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return "-".join(re.findall(r"[a-z0-9]+", plain))[:40].strip("-") or "student"
