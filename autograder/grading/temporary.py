"""Temporary folders that are removed even if the process that made them is killed.

A process holds a lock on each folder that it uses. The system releases the lock when the process
ends, however it ends. So a folder without a lock is a leftover, and the next process that makes a
temporary folder removes it.
"""

import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Literal, get_args

Use = Literal["grader", "gradebook", "attempt", "whole"]
PREFIXES = tuple(f"inference-{use}-" for use in get_args(Use))


class Temporary:
    """A new folder, which `remove` or the end of the block removes.

    inside: the folder to make it in; TMPDIR if not given. Raises OSError.
    """

    def __init__(self, use: Use, inside: Path | None = None) -> None:
        inside = inside or Path(tempfile.gettempdir())
        remove_leftovers(inside)
        self.path, lock = new_folder(f"inference-{use}-", inside)
        self.remove = weakref.finalize(self, remove, self.path, lock)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *error: object) -> None:
        self.remove()


def new_folder(prefix: str, inside: Path) -> tuple[Path, int]:
    """Make a folder. Return it with the descriptor that holds its lock."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=inside))
        with suppress(FileNotFoundError):  # another process removed it before it had a lock
            return path, hold(path)


def hold(path: Path) -> int:
    """Lock a folder that other processes may use as well. Return the descriptor that holds the
    lock until it is closed or the process ends. Raises FileNotFoundError if the folder is gone."""
    descriptor = opened(path)
    lock(descriptor, alone=False)
    if not is_still(path, descriptor):
        os.close(descriptor)
        raise FileNotFoundError(path)
    return descriptor


def remove_leftovers(inside: Path) -> None:
    """Remove the temporary folders in a folder that this user owns and that have no lock."""
    with suppress(OSError):  # a folder that can't be listed may still be written to
        for name in os.listdir(inside):
            if name.startswith(PREFIXES):
                remove_leftover(inside / name)


def remove_leftover(path: Path) -> None:
    try:
        descriptor = opened(path)
    except OSError:  # a link, a file, or another user's
        return
    is_own = os.fstat(descriptor).st_uid == os.geteuid()
    if is_own and lock(descriptor, alone=True) and is_still(path, descriptor):
        remove(path, descriptor)
    else:
        os.close(descriptor)


def remove(path: Path, descriptor: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(descriptor)


def opened(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def is_still(path: Path, descriptor: int) -> bool:
    """Whether the path still leads to the folder that was opened."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    return False


def lock(descriptor: int, alone: bool) -> bool:
    """Lock a folder, either with other processes or alone. Return whether that worked.

    On a file system without locks it never works, so no leftover is removed there.
    """
    import fcntl  # not on Windows, where commands other than `grade` work

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB if alone else fcntl.LOCK_SH)
        return True
    except OSError:
        return False


# ----------------------------------------------------------------------------- a file, made whole


def write_whole(path: Path, text: str) -> None:
    """Write a file and its folder so that the file is never half there, even after a power cut.

    Raises OSError, and then the file is as it was before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with Temporary("whole", path.parent) as folder:
        part = folder / path.name
        with part.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    synchronize(path.parent)


def synchronize(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    with suppress(OSError):  # not every file system can
        os.fsync(descriptor)
    os.close(descriptor)
