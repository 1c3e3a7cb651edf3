"""The time of a submission: from its name in a download to timestamp.txt beside the notebook.

Students can write that file, too. A name has a local time without its zone; this machine's is
assumed.
"""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from nbgrader.utils import parse_utc

from autograder.grading.judge.submission import read_beside
from autograder.text.lesson import Lesson

NAME = "timestamp.txt"
MOST_BYTES = 100
AHEAD = timedelta(days=1)  # that a name may be ahead of this machine, whose clock or zone differs

TWICE = "the local time comes twice, because clocks are set back; the earlier one is taken"
NEVER = "there is no such local time in this time zone, so no time is noted"
FUTURE = "the time is in the future, so no time is noted"


def handed_in_at(submitted: Path, student: str, lesson: Lesson) -> datetime | None:
    """Return when a lab was handed in, in UTC and without a time zone; None if unknown."""
    content = read_beside(submitted, student, lesson, NAME, MOST_BYTES)
    return None if content is None else read_time(content)


def read_time(content: bytes) -> datetime | None:
    try:
        return parse_utc(content.decode().strip() or None)
    except Exception:  # the parser accepts many formats, and fails in many ways
        return None


def written(time: datetime) -> str:
    """Format a time as nbgrader writes it."""
    return f"{time:%Y-%m-%d %H:%M:%S.%f} UTC"


# --------------------------------------------------------------------------------- local times


def from_local(text: str) -> tuple[datetime | None, str]:
    """Return the time in a name ("2026-11-20-10-00-00") in UTC, and a doubt about it or "".

    It is None where the doubt is that it can't be right.
    """
    try:
        local = datetime.strptime(text, "%Y-%m-%d-%H-%M-%S")
        time, later = (local.replace(fold=fold).astimezone(UTC) for fold in (0, 1))
    except (ValueError, OverflowError):
        return None, NEVER
    if time.astimezone().replace(tzinfo=None, fold=0) != local:  # clocks are set forward
        return None, NEVER
    if time > now() + AHEAD:
        return None, FUTURE
    return time, TWICE if later != time else ""


def now() -> datetime:
    return datetime.now(UTC)


def zone() -> str:
    """Return the names of this machine's time zone, in winter and in summer: "CET/CEST"."""
    return "/".join(dict.fromkeys(time.tzname))
