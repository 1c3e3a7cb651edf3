"""The cores: how many this process may use, and how many of them other programs keep busy.

The threads of a matrix product wait for each other at its end. If one of them has to wait for a
core, all of them wait, so the loss is much larger than the share of the processor that was taken.
"""

import math
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

CGROUPS, OWN_CGROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
QUOTAS = ("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")  # of versions 2 and 1
BUSY = "user", "nice", "system", "steal"  # steal: a virtual machine waited for the host's cores
SHORTEST = 0.1  # seconds; less can't be judged, because processor time is counted in 10 ms or more
SPARE = 0.25  # cores: more than background programs take, and than the error of 0.1 seconds


def physical_cores() -> int:
    """Return the machine's cores. Hyper-threads of a core share its arithmetic and count as one."""
    return psutil.cpu_count(logical=False) or os.cpu_count() or 1


def usable_cores() -> int:
    """Return how many cores this process may use, within its affinity and its cgroup's quota.

    A quota is rounded down, because a process that exceeds it is stopped, with all its threads, for
    the rest of each tenth of a second.
    """
    has_affinity = hasattr(os, "sched_getaffinity")  # on Linux
    affinity = len(os.sched_getaffinity(0)) if has_affinity else math.inf
    return max(1, math.floor(min(physical_cores(), affinity, quota())))


def quota() -> float:
    """Return the cores that this process's cgroup and those above it grant; infinite if they don't
    limit it, and on other systems than Linux.
    """
    granted = [math.inf]
    for folder in cgroups():
        for names in QUOTAS:
            with suppress(OSError, ValueError):  # no such file, or "max"
                text = " ".join((folder / name).read_text() for name in names)
                microseconds, period = map(int, text.split())
                granted += [microseconds / period] if microseconds > 0 else []
    return min(granted)


def cgroups() -> Iterator[Path]:
    """Yield the folders that may hold a quota. A container may see only the last of them."""
    with suppress(OSError):
        for line in OWN_CGROUPS.read_text().splitlines():  # "0::/a/b", "1:cpu:/a/b" in version 1
            own = Path(line.split(":", 2)[2].lstrip("/"))
            for path in (own, *own.parents):
                yield CGROUPS / path
                yield CGROUPS / "cpu" / path


# --------------------------------------------------------------------------------- other programs


class OtherPrograms:
    """A context manager that measures how many cores other programs keep busy meanwhile.

    cores: their processor time per second; 0 if the time was too short to judge.
    """

    cores = 0.0

    def __enter__(self) -> Self:
        self.before, self.start = others_seconds(), time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        seconds = time.perf_counter() - self.start
        if seconds >= SHORTEST:
            self.cores = max(0.0, others_seconds() - self.before) / seconds


def others_seconds() -> float:
    """Return the machine's processor time so far, without this process and its children."""
    machine = psutil.cpu_times()
    seconds = sum(getattr(machine, kind, 0.0) for kind in BUSY)
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        with suppress(psutil.Error):  # a child that has just ended: its parent counts its time
            user, system, children_user, children_system, *_ = process.cpu_times()
            seconds -= user + system + children_user + children_system
    return seconds


def disturb(others: float, threads: int) -> bool:
    """Whether other programs on this many cores leave fewer cores than threads."""
    return others > max(0, physical_cores() - threads) + SPARE


def disturbance(others: float, fewer: str) -> str:
    """Say what other programs did to times, and what to do. fewer: how to set {} threads."""
    left = max(0, math.floor(physical_cores() - others + SPARE))
    instead = f", or {fewer.format(left)}" if left else ""
    return (
        f"Other programs kept {others:.1f} cores busy (of {physical_cores()}), and a thread that "
        "waits for a core makes the others wait: these times are too long, and ratios of them mean "
        f"little. Close those programs and measure again{instead}."
    )
