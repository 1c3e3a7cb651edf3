"""How long an attempt may go on: by its work and its waiting, and only at last by the clock.

On a busy machine, minutes pass while a right attempt works for tenths of a second. So processor
time is what counts. An attempt that sleeps uses none; it is told from one that gets no processor
by its threads, which don't ask for one.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from autograder.attempt.failure import Starved, TookTooLong, Waited
from autograder.judging.interrupt import LOOK

LONGEST = 30  # seconds in all for each second of work or of waiting that is allowed
WORKS = 0.01  # share of the time in which it works, if it isn't known whether it could


class Patience:
    """Says when an attempt must be stopped. Look at it every LOOK seconds.

    work, wait: most seconds of processor time, and of waiting for something else than a processor.
    used: the seconds of processor time so far. can_run: whether the attempt works, or would if it
    had a processor; None if that isn't known. is_asked: whether it has asked a question that isn't
    answered yet, so that it is right to wait. waited: seconds so far.

    A late look counts no more than one in time: meanwhile the one who looks may have been stopped
    (by Ctrl-Z, with its virtual machine), or had no processor either.
    """

    def __init__(
        self,
        work: float,
        wait: float,
        used: Callable[[], float],
        can_run: Callable[[], bool | None],
        is_asked: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.work, self.wait = work, wait
        self.used, self.can_run, self.is_asked, self.clock = used, can_run, is_asked, clock
        self.looked, self.start = clock(), used()
        self.worked, self.waited, self.lasted = 0.0, 0.0, 0.0

    def look(self) -> type[TookTooLong] | None:
        """Return why it must be stopped, or None."""
        now, worked = self.clock(), self.used() - self.start
        passed, work = min(now - self.looked, LOOK), max(worked - self.worked, 0.0)
        self.looked, self.worked = now, worked
        if not self.is_asked():
            self.lasted += passed
            can_run = self.can_run()
            if not (work > WORKS * passed if can_run is None else can_run):
                self.waited += max(passed - work, 0.0)
        if worked > self.work:
            return TookTooLong
        if self.waited > self.wait:
            return Waited
        return Starved if self.lasted > LONGEST * max(self.work, self.wait) else None


def can_run(processes: Iterable[int], states: str = "R") -> bool | None:
    """Return whether a thread of these processes, except the one that calls, is in these states.

    R means that it works or waits for a processor, and D that it waits for a disk. None if this
    system doesn't say.
    """
    if not Path("/proc/self/task").is_dir():
        return None
    this = threading.get_native_id()
    for process in processes:
        with suppress(OSError):  # it has ended
            for thread in os.listdir(f"/proc/{process}/task"):
                if int(thread) != this and state_of(process, thread) in states:
                    return True
    return False


def state_of(process: int, thread: str) -> str:
    """Return the letter for a thread's state; X, which means dead, if it has ended."""
    try:
        told = Path(f"/proc/{process}/task/{thread}/stat").read_text(errors="replace")
    except OSError:
        return "X"
    return told.rpartition(")")[2].split()[0]
