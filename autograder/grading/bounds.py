"""How much of the grader's own time and memory the code of a stranger may cost.

What is lent to an attempt runs out here, on what the attempt hands over. Sizes are looked at first
(near.py), and this holds whatever they come to.
"""

import resource
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autograder.judging.failure import TooMuchWork
from autograder.judging.interrupt import interrupted

MEMORY = 1 << 30  # bytes above the start


class TooMuchHere(TooMuchWork):
    """Raised where an attempt has what it was lent work for too long."""

    def __init__(self) -> None:
        super().__init__(
            "It was stopped: what it was lent had to do many times the work that is needed. Does "
            "it hand over far larger sizes than the case has?"
        )


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Raise TooMuchHere in the block when this thread's processor time in it is used up, and
    MemoryError (in PyTorch: RuntimeError) when the process takes MEMORY more than at its start."""
    clock = time.pthread_getcpuclockid(threading.get_ident())
    over = time.clock_gettime(clock) + seconds
    with (
        memory_bounded(),
        interrupted(TooMuchHere, lambda: time.clock_gettime(clock) > over),
    ):
        yield


@contextmanager
def memory_bounded() -> Iterator[None]:
    if sys.platform != "linux":  # there is no sandbox elsewhere either, and it isn't obeyed
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
