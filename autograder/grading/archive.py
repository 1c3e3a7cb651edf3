"""Reading a zip archive that strangers filled.

Nothing is unpacked: what an entry holds is read into memory, and no name in an archive becomes a
name on disk. Sizes are counted while reading; what an archive says of them is not believed.
"""

import re
import stat
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

MOST_ENTRIES = 50_000
MOST_MEGABYTES = 200  # that are unpacked of one student's files
MOST_TIMES = 200  # that a file may grow when it is unpacked, beyond its first megabyte
MEGABYTE = 1_000_000
PIECE = 64 * 1024
CENTRAL_HEADER = b"PK\x01\x02"  # stands before each entry in an archive's directory

ENCRYPTED = 1  # a bit of ZipInfo.flag_bits
NO_TIME = datetime(1980, 1, 1)  # what an archive says that notes no times
# What zipfile and zlib raise on an archive that is damaged or made to harm.
DAMAGED = (BadZipFile, OSError, EOFError, ArithmeticError, RuntimeError, ValueError, zlib.error)


class Refused(Exception):
    """Something in an archive is not read. Its text says why, as it follows "because"."""


@dataclass
class Allowance:
    """How many bytes may still be unpacked."""

    left: int = MOST_MEGABYTES * MEGABYTE


@dataclass(frozen=True)
class Entry:
    """A file in an archive.

    name: as it stands there. path: its parts. time: the one that the archive gives, in UTC; it is
    taken to be in this machine's time zone. None where there is none.
    """

    name: str
    path: tuple[str, ...]
    time: datetime | None
    info: ZipInfo

    @property
    def file(self) -> str:
        return self.path[-1]


def open_archive(source: Path | bytes) -> ZipFile:
    """An archive on disk, or one that was read out of another. Raises Refused."""
    if isinstance(source, bytes) and source.count(CENTRAL_HEADER) > MOST_ENTRIES:
        raise Refused(f"it holds more than {MOST_ENTRIES} files")  # before it is taken in
    try:
        archive = ZipFile(BytesIO(source) if isinstance(source, bytes) else source)
    except DAMAGED:
        raise Refused("it is damaged, or no zip archive") from None
    if len(archive.infolist()) > MOST_ENTRIES:
        archive.close()
        raise Refused(f"it holds more than {MOST_ENTRIES} files")
    return archive


def entries(archive: ZipFile) -> Iterator[Entry]:
    """The files of an archive, but for hidden ones, which nobody handed in on purpose."""
    for info in archive.infolist():
        path = tuple(part for part in re.split(r"[/\\]", info.filename) if part not in ("", "."))
        hidden = any(part[0] == "." and part != ".." for part in path)
        if path and not info.is_dir() and not hidden:
            yield Entry(info.filename, path, time_of(info), info)


def time_of(info: ZipInfo) -> datetime | None:
    try:
        local = datetime(*info.date_time)
        return local.astimezone(UTC) if local > NO_TIME else None
    except (ValueError, OverflowError):  # a thirteenth month, say
        return None


def require_ordinary(entry: Entry) -> None:
    """Raise Refused for an entry that no honest download holds."""
    name = entry.info.orig_filename
    if ".." in entry.path or name[:1] in ("/", "\\") or re.match(r"[A-Za-z]:", name):
        raise Refused("the name leads out of the archive")
    if stat.S_IFMT(entry.info.external_attr >> 16) not in (0, stat.S_IFREG):
        raise Refused("it is a link or a device, and no file")
    if entry.info.flag_bits & ENCRYPTED:
        raise Refused("it is encrypted")
    if entry.info.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        raise Refused("it is compressed in a way that is not read here")


def read(archive: ZipFile, entry: Entry, allowance: Allowance) -> bytes:
    """What an entry holds. Raises Refused, with the reason."""
    require_ordinary(entry)
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
        raise Refused(f"more than {MOST_MEGABYTES} MB would have to be unpacked")
    if size > MEGABYTE and size > MOST_TIMES * entry.info.compress_size:
        raise Refused(f"it grows to more than {MOST_TIMES} times its size when unpacked")
