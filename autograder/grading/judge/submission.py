"""A student's submission for a lab: finding it in submitted/ and reading it, without trusting it.

    submitted/ada/02_kv_cache/kv_cache.ipynb

Below submitted/ no link is followed, and only ordinary files of ordinary size are read.
"""

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autograder.grading.judge.foreign import listed, shown
from autograder.text.lesson import Lesson

MOST_BYTES = 32 * 2**20  # of a notebook
MOST_PARTS = 500_000  # lists and objects in a notebook: each takes the memory of many characters
PICTURES = {"image/png", "image/jpeg", "image/gif", "image/webp"}
BASE64 = re.compile(r"[A-Za-z0-9+/=\s]+")
SURROGATES = re.compile("[\ud800-\udfff]")


class Unreadable(Exception):
    """Why something can't be read, and what to do, in a sentence to the student."""


@dataclass(frozen=True)
class Submission:
    """lab: "kv_cache". content: of the notebook, or None; then problem tells the student why."""

    student: str
    lab: str
    content: bytes | None
    problem: str | None = None

    @property
    def sha256(self) -> str:
        """The hash of the content, or of the problem if there is no content."""
        content = (self.problem or "").encode() if self.content is None else self.content
        return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True)
class Cell:
    """One cell of a submitted notebook.

    code: whether it is a code cell. id, grade_id: as in the notebook, not trusted. pictures: those
    pasted into prose, as Jupyter keeps them, by name and then by type.
    """

    code: bool
    source: str
    id: str | None = None
    grade_id: str | None = None
    pictures: dict[str, dict[str, str]] = field(default_factory=dict)


# ------------------------------------------------------------------------------- in submitted/


def students(submitted: Path, lesson: Lesson) -> list[str]:
    """Return the students who handed in something for a lab, readable or not, sorted."""
    return sorted(
        entry.name
        for entry in os.scandir(submitted)
        if not entry.name.startswith(".") and os.path.lexists(Path(entry.path, lesson.name))
    )


def read_submission(submitted: Path, student: str, lesson: Lesson) -> Submission:
    """Read a student's submission for a lab. Never raises, whatever is there."""
    try:
        with lab_folder(submitted, student, lesson) as folder:
            name = f"{lesson.lab}.ipynb"
            content = read_file(folder, notebook_in(folder, name, lesson), MOST_BYTES)
    except Unreadable as error:
        return Submission(student, lesson.lab, None, str(error))
    return Submission(student, lesson.lab, content)


def read_beside(
    submitted: Path, student: str, lesson: Lesson, name: str, most_bytes: int
) -> bytes | None:
    """Read a file in the folder of a student's notebook; None if it can't be read."""
    try:
        with lab_folder(submitted, student, lesson) as folder:
            return read_file(folder, name, most_bytes)
    except Unreadable:
        return None


@contextmanager
def lab_folder(submitted: Path, student: str, lesson: Lesson) -> Iterator[int]:
    """Open the folder of a student's lab as a descriptor. Raises Unreadable."""
    if "/" in student or student in (".", ".."):
        raise Unreadable(f"There is no folder {shown(student)} in submitted/.")
    with (
        open_folder(submitted) as course,
        open_folder(student, course) as labs,
        open_folder(lesson.name, labs) as folder,
    ):
        yield folder


@contextmanager
def open_folder(name: str | Path, inside: int | None = None) -> Iterator[int]:
    """Open a folder. Inside another folder, links are refused. Raises Unreadable."""
    flags = os.O_RDONLY | os.O_DIRECTORY | (os.O_NOFOLLOW if inside is not None else 0)
    try:
        descriptor = os.open(name, flags, dir_fd=inside)
    except OSError as error:
        raise Unreadable(no_folder(shown(os.path.basename(name)), error)) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def no_folder(name: str, error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return f"Nothing was handed in: there is no folder {name}."
    if error.errno in (errno.ENOTDIR, errno.ELOOP):
        return (
            f"{name} is a link or a file. Hand in a folder with this name and the notebook in it."
        )
    return f"The folder {name} can't be opened ({error.strerror}). Hand it in again."


def notebook_in(folder: int, name: str, lesson: Lesson) -> str:
    """Find the notebook in a folder, by its name or as the only one. Raises Unreadable."""
    entries = list(os.scandir(folder))
    if name in [entry.name for entry in entries]:
        return name
    others = sorted(
        entry.name
        for entry in entries
        if entry.name.lower().endswith(".ipynb")
        and not entry.name.startswith(".")
        and entry.is_file(follow_symlinks=False)
    )
    if len(others) == 1:
        return others[0]
    if not others:
        raise Unreadable(f"There is no notebook in {lesson.name}. Hand in {name}.")
    raise Unreadable(
        f"There are {len(others)} notebooks in {lesson.name}, but none is named {name} "
        f"({listed(others)}). Hand in one notebook named {name}."
    )


def read_file(folder: int, name: str, most_bytes: int) -> bytes:
    """Read an ordinary file. Raises Unreadable for anything else, or if it is larger."""
    try:
        # Without blocking: a named pipe would never open.
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError as error:
        raise Unreadable(no_file(shown(name), error)) from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Unreadable(f"{shown(name)} is not an ordinary file. Hand in the notebook itself.")
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(most_bytes + 1)
    except OSError as error:
        raise Unreadable(no_file(shown(name), error)) from None
    finally:
        os.close(descriptor)
    if len(content) > most_bytes:
        raise Unreadable(
            f"{shown(name)} is larger than {most_bytes / 2**20:.0f} MB. "
            "Clear its outputs, save it, and hand it in again."
        )
    return content


def no_file(name: str, error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return f"There is no {name}. Hand it in."
    if error.errno == errno.ELOOP:
        return f"{name} is a link to a file elsewhere. Hand in the notebook itself."
    return f"{name} can't be opened ({error.strerror}). Hand it in again."


# ------------------------------------------------------------------------------ in a notebook


def read_cells(content: bytes) -> list[Cell]:
    """Return the cells of a notebook, as far as they can be read. Raises Unreadable for none.

    Accepts every notebook format that has cells, whatever is wrong with the rest of the file.
    """
    notebook = read_json(content)
    if not isinstance(notebook, dict):
        raise Unreadable("The file is not a notebook. Hand in one that opens in JupyterLab.")
    sheets = notebook.get("worksheets")  # of the format before 2014
    holders = [notebook, *(sheets if isinstance(sheets, list) else [])]
    lists = [
        holder["cells"]
        for holder in holders
        if isinstance(holder, dict) and isinstance(holder.get("cells"), list)
    ]
    if not lists:
        raise Unreadable("The notebook has no cells. Hand in one that opens in JupyterLab.")
    return [cell_from(cell) for cells in lists for cell in cells if isinstance(cell, dict)]


def read_json(content: bytes) -> Any:
    text = decoded(content)
    if text.count("[") + text.count("{") > MOST_PARTS:
        raise Unreadable("The notebook has too many parts. Clear its outputs and hand it in again.")
    try:
        return json.loads(text, strict=False, parse_int=no_number, parse_float=no_number)
    except RecursionError:
        reason = "its parts are nested too deeply"
    except ValueError as error:
        reason = str(error)
    raise Unreadable(
        f"The file can't be read as a notebook ({reason}). Hand in one that opens in JupyterLab."
    )


def decoded(content: bytes) -> str:
    try:
        return content.decode(json.detect_encoding(content))
    except UnicodeDecodeError:
        return content.decode("latin-1")


def no_number(digits: str) -> int:
    """Return 0: no number in a notebook is needed, and a very long one takes very long to read."""
    return 0


def cell_from(cell: dict) -> Cell:
    code = cell.get("cell_type") == "code"
    metadata = cell.get("metadata")
    nbgrader = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    grade_id = nbgrader.get("grade_id") if isinstance(nbgrader, dict) else None
    source = cell.get("source", cell.get("input"))
    return Cell(
        code,
        text_of(source),
        text_or_none(cell.get("id")),
        text_or_none(grade_id),
        {} if code else pictures_of(cell.get("attachments")),
    )


def text_of(source: Any) -> str:
    """Return a source, which is one text or a list of lines, as one text."""
    parts = source if isinstance(source, list) else [source]
    return whole("".join(part for part in parts if isinstance(part, str)).replace("\r\n", "\n"))


def whole(text: str) -> str:
    """Replace halves of surrogate pairs, so that the text can be written."""
    return SURROGATES.sub("\ufffd", text)


def text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def pictures_of(attachments: Any) -> dict[str, dict[str, str]]:
    """Return the attachments that are pictures."""
    if not isinstance(attachments, dict):
        return {}
    pictures = {
        whole(name): {type: data for type, data in kinds.items() if is_picture(type, data)}
        for name, kinds in attachments.items()
        if isinstance(kinds, dict)
    }
    return {name: kinds for name, kinds in pictures.items() if kinds}


def is_picture(type: str, data: Any) -> bool:
    return type in PICTURES and isinstance(data, str) and bool(BASE64.fullmatch(data))
