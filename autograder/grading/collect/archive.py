"""Reading a zip archive whose content is not trusted.

Nothing is unpacked to disk: an entry is read into memory, and no name in an archive becomes a name
on disk. Sizes are counted while reading; the sizes that an archive gives are not trusted.
"""

import re
import stat
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO
from itertools import takewhile
from pathlib import Path
from unicodedata import normalize
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from autograder.grading.collect.clutter import is_clutter

MOST_ENTRIES = 50_000
MOST_MEGABYTES = 200  # unpacked of one student's files
MOST_TIMES = 200  # the factor by which a file may grow beyond its first megabyte when unpacked
MEGABYTE = 1_000_000
PIECE = 64 * 1024
CENTRAL_HEADER = b"PK\x01\x02"  # precedes each entry in an archive's directory

MOST_FOLDERS = 100  # nested
SEPARATOR = re.compile(r"[/\\]")
ABSOLUTE = re.compile(r"[/\\]|[A-Za-z]:")
UPWARD = re.compile(r"(?:^|[/\\])\.\.(?:[/\\]|$)")
LEADS_OUT = "the name leads out of the archive"
ENCRYPTED = 1  # a bit of ZipInfo.flag_bits
NO_TIME = datetime(1980, 1, 1)  # the time in an archive that stores no times
# What zipfile and zlib raise for a damaged or malicious archive.
DAMAGED = (BadZipFile, OSError, EOFError, ArithmeticError, RuntimeError, ValueError, zlib.error)


class Refused(Exception):
    """Why something in an archive is not read, in words that can follow "because"."""


@dataclass
class Allowance:
    """How many bytes may still be unpacked."""

    left: int = MOST_MEGABYTES * MEGABYTE


@dataclass(frozen=True)
class Entry:
    """A file in an archive, or an empty folder.

    name: as in the archive. path: its parts, with every accented letter as one character (NFC),
    however a system wrote it; the last part is empty for a folder. For a name that leads out of the
    archive, path has only the file and the folders before the first "..". time: from the archive,
    in UTC, where this machine's time zone is assumed; None if there is none. problem: why it is not
    read, if no honest download has such an entry. clutter: whether an operating system or a tool
    left it there.
    """

    name: str
    path: tuple[str, ...]
    time: datetime | None
    info: ZipInfo
    problem: str | None
    clutter: bool

    @property
    def file(self) -> str:
        return self.path[-1]


def open_archive(source: Path | bytes) -> ZipFile:
    """Open an archive on disk, or one that was read from another archive. Raises Refused."""
    if isinstance(source, bytes) and source.count(CENTRAL_HEADER) > MOST_ENTRIES:
        raise Refused(f"it holds more than {MOST_ENTRIES} files")  # before zipfile reads them
    try:
        archive = ZipFile(BytesIO(source) if isinstance(source, bytes) else source)
    except DAMAGED:
        raise Refused("it is damaged, or not a zip archive") from None
    if len(archive.infolist()) > MOST_ENTRIES:
        archive.close()
        raise Refused(f"it holds more than {MOST_ENTRIES} files")
    return archive


def entries(archive: ZipFile) -> Iterator[Entry]:
    """Yield everything in an archive except the folders that contain files."""
    paths = [path_of(info) for info in archive.infolist()]
    ordered, known = sorted(paths), set(paths)
    for info, path in zip(archive.infolist(), paths, strict=True):
        if not info.filename.endswith(("/", "\\")):
            path = path or ("",)
            clutter = is_clutter(path, known)
            yield Entry(info.filename, path, time_of(info), info, problem_of(info), clutter)
        elif not has_inside(path, ordered):
            problem = LEADS_OUT if leads_out(info) else "it is an empty folder"
            clutter = is_clutter(path, known, is_folder=True)
            yield Entry(info.filename, (*path, ""), None, info, problem, clutter)


def path_of(info: ZipInfo) -> tuple[str, ...]:
    parts = SEPARATOR.split(normalize("NFC", info.filename), maxsplit=MOST_FOLDERS)
    parts = [part for part in parts if part not in ("", ".")]
    if not leads_out(info):
        return tuple(parts)
    inside = [] if ABSOLUTE.match(info.orig_filename) else parts[:-1]
    return (*takewhile(lambda part: part != "..", inside), *parts[-1:])


def leads_out(info: ZipInfo) -> bool:
    return bool(ABSOLUTE.match(info.orig_filename) or UPWARD.search(info.filename))


def has_inside(folder: tuple[str, ...], ordered: list[tuple[str, ...]]) -> bool:
    """Whether one of the sorted paths is inside a folder."""
    after = bisect_right(ordered, folder)
    return after < len(ordered) and ordered[after][: len(folder)] == folder


def time_of(info: ZipInfo) -> datetime | None:
    try:
        local = datetime(*info.date_time)
        return local.astimezone(UTC) if local > NO_TIME else None
    except (ValueError, OverflowError):  # for example a thirteenth month
        return None


def problem_of(info: ZipInfo) -> str | None:
    """Return why an entry must not be read, or None if nothing is wrong with it."""
    if leads_out(info):
        return LEADS_OUT
    if len(SEPARATOR.findall(info.filename)) > MOST_FOLDERS:
        return f"it is nested in more than {MOST_FOLDERS} folders"
    if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG):
        return "it is a link or a device, not a file"
    if info.flag_bits & ENCRYPTED:
        return "it is encrypted"
    if info.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        return "its compression method is not supported here"
    return None


def read(archive: ZipFile, entry: Entry, allowance: Allowance) -> bytes:
    """Return the content of an entry. Raises Refused, with the reason."""
    if entry.problem:
        raise Refused(entry.problem)
    pieces, size = [], 0
    try:
        with archive.open(entry.info) as file:
            while piece := file.read(PIECE):
                size += len(piece)
                allowance.left -= len(piece)
                require_small(size, entry, allowance)
                pieces.append(piece)
    except DAMAGED:
        raise Refused("it is damaged") from None
    return b"".join(pieces)


def require_small(size: int, entry: Entry, allowance: Allowance) -> None:
    if allowance.left < 0:
        raise Refused(f"unpacking it would take more than {MOST_MEGABYTES} MB in total")
    if size > MEGABYTE and size > MOST_TIMES * entry.info.compress_size:
        raise Refused(f"it grows to more than {MOST_TIMES} times its size when unpacked")
