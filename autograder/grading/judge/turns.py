"""When an attempt runs alone on a machine: no other grader of this user runs one meanwhile.

Whatever was stopped by a clock, or ended before it began, may have met a busy machine or too little
memory, for which the other graders are the likeliest cause. So its second try runs alone.

Every try holds the lock `room`, together with others or alone. Before it waits for that, it takes
the lock `door`; one that will run alone keeps it, so that no others go on entering while it waits.
The system releases the locks of a process that is killed.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

FOLDER = Path("/tmp")  # on this machine, and the same for all graders, unlike TMPDIR
LONGEST = 60.0  # seconds to wait for a lock: its holder may have been stopped by Ctrl-Z
AGAIN = 0.02  # seconds until it is tried again


@contextmanager
def turn(alone: bool) -> Iterator[None]:
    """Hold a turn in the block: together with others, or alone.

    After LONGEST seconds, and where no lock can be had, the block runs without.
    """
    with ExitStack() as stack:
        with suppress(OSError):
            door, room = (stack.enter_context(opened(name)) for name in ("door", "room"))
            take(door, fcntl.LOCK_EX)
            take(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            if not alone:
                fcntl.flock(door, fcntl.LOCK_UN)
        yield


@contextmanager
def opened(name: str) -> Iterator[int]:
    """Open a file for a lock. Raises OSError, also if another user owns it and could keep it."""
    user = os.geteuid()
    path = FOLDER / f"inference-grader-{user}.{name}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        if os.fstat(descriptor).st_uid != user:
            raise PermissionError(path)
        yield descriptor
    finally:
        os.close(descriptor)


def take(descriptor: int, kind: int) -> None:
    """Wait for a lock. Raises BlockingIOError after LONGEST seconds."""
    over = time.monotonic() + LONGEST
    while True:
        try:
            return fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > over:
                raise
        time.sleep(AGAIN)
