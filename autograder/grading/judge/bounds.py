"""Limits for the grader's own time and memory that a student's code may cost.

The functions lent to an attempt run in the grader, on arguments from the attempt, and so does all
that looks at its results. Their sizes are checked first; the limits here hold whatever they are.
"""

import mmap
import resource
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autograder.attempt.failure import TooMuchWork
from autograder.judging.interrupt import interrupted

MEMORY = 1 << 30  # bytes above the start


class TooMuchHere(TooMuchWork):
    """Raised if the functions lent to an attempt have worked for too long."""

    def __init__(self) -> None:
        super().__init__(
            "It was stopped: the functions it was given had to do many times the work that is "
            "needed. Does it pass far larger sizes than the case has?"
        )


class TooMuchToJudge(BaseException):
    """Raised if an attempt's results take too long to be judged."""


@contextmanager
def bounded(seconds: float, error: type[BaseException] = TooMuchHere) -> Iterator[None]:
    """Limit this thread's processor time and the process's memory in the block.

    Raises `error` after `seconds` of processor time, and MemoryError (in PyTorch: RuntimeError) if
    the process takes MEMORY bytes more than at the start.
    """
    clock = time.pthread_getcpuclockid(threading.get_ident())
    over = time.clock_gettime(clock) + seconds
    with (
        memory_bounded(),
        interrupted(lambda: error if time.clock_gettime(clock) > over else None),
    ):
        yield


@contextmanager
def memory_bounded() -> Iterator[None]:
    if sys.platform != "linux":  # elsewhere the limit isn't enforced, and there is no sandbox
        yield
        return
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = pages * resource.getpagesize() + MEMORY
    limits = [limit for limit in (most, before) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, hard))


def is_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: PyTorch raises a RuntimeError, a system call an OSError."""
    return isinstance(error, MemoryError) or "allocate memory" in str(error)


def machine_has_room() -> bool:
    """Whether the machine gives this process as much memory as the limit here would let it take."""
    try:
        mmap.mmap(-1, MEMORY).close()
        return True
    except OSError:
        return False
