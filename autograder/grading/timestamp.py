"""When something was handed in: timestamp.txt beside the notebook, which students can write too."""

from datetime import datetime
from pathlib import Path

from nbgrader.utils import parse_utc

from autograder.course.lesson import Lesson
from autograder.grading.submission import read_beside

NAME = "timestamp.txt"
MOST_BYTES = 100


def handed_in_at(submitted: Path, student: str, lesson: Lesson) -> datetime | None:
    """When a lab was handed in, in UTC and without a time zone; None where nothing tells."""
    content = read_beside(submitted, student, lesson, NAME, MOST_BYTES)
    return None if content is None else read_time(content)


def read_time(content: bytes) -> datetime | None:
    try:
        return parse_utc(content.decode().strip() or None)
    except Exception:  # a parser of so many forms stumbles in as many ways
        return None


def written(time: datetime) -> str:
    """As nbgrader writes it."""
    return f"{time:%Y-%m-%d %H:%M:%S.%f} UTC"
