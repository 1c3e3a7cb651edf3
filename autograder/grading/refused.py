"""The messages of a command that refuses to run or can't continue."""

import errno
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
GOES_ON = "The results so far are kept: run the same command again to continue from there."


class Refused(Exception):
    """Why a command refuses to run or can't continue, and what to do."""


@contextmanager
def writing(place: object, kind: type[Exception] = Refused, or_else: str = "") -> Iterator[None]:
    """Raise `kind` with a sentence if the block can't write its files to the folder `place`.

    or_else: what the reader can do instead.
    """
    try:
        yield
    except OSError as error:
        raise kind(f"{not_written(place, error, or_else)} {GOES_ON}") from None


def writing_temporary(kind: type[Exception] = Refused) -> AbstractContextManager[None]:
    """Raise `kind` with a sentence if the block can't write its temporary files."""
    return writing(os.environ.get("TMPDIR", "/tmp"), kind, ", or set TMPDIR to another folder")


def not_written(place: object, error: OSError, or_else: str = "") -> str:
    """Return a sentence that says why a folder can't be written to, and what to do."""
    todo = "Free space on its disk" if error.errno in NO_ROOM else "Check that you may write there"
    return f"{place} can't be written to: {error.strerror or error}. {todo}{or_else}."
