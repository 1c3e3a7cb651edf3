"""A full disk for tests: a real one if this user may mount a file system."""

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

NO_ROOM = "No space left on device"


@contextmanager
def full_disk(
    folder: Path,
    writer: tuple[object, str] = (os, "fsync"),
    before: Callable[[], None] = lambda: None,
) -> Iterator[Callable[[], None]]:
    """Keep a folder full inside the block. Yield a function that frees the space.

    before: fills the folder with files that exist beforehand. writer: an object and the name of its
    function that writes to the folder; if no disk can be mounted, this function raises the error.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if mounted(folder):
        try:
            before()
            yield filled(folder).unlink
        finally:
            subprocess.run(["umount", str(folder)], check=True)
    else:
        before()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(*writer, no_room)
            yield patch.undo


def mounted(folder: Path) -> bool:
    options = "-o", "size=1m,mode=755", "-t", "tmpfs", "small"
    try:
        return not subprocess.run(["mount", *options, folder], capture_output=True).returncode
    except OSError:
        return False


def filled(folder: Path) -> Path:
    """Fill a disk to the last byte. Return the file."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1024))
        except OSError:
            return path


def no_room(*_: Any, **__: Any) -> NoReturn:
    raise OSError(errno.ENOSPC, NO_ROOM)
