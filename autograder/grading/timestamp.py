"""The time of a submission, in timestamp.txt beside the notebook; students can write it too."""

from datetime import datetime
from pathlib import Path

from nbgrader.utils import parse_utc

from autograder.course.lesson import Lesson
from autograder.grading.submission import read_beside

NAME = "timestamp.txt"
MOST_BYTES = 100


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
