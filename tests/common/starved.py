"""Starve processes of the processor, whatever else the machine does."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from autograder.text.reference import ROOT

CPU = Path("/sys/fs/cgroup/cpu")  # version 1
UNIFIED = Path("/sys/fs/cgroup")  # version 2
PERIOD, SHARE = 0.1, 0.03  # seconds, and the part of them in which a starved process works


def family(pid: int) -> list[int]:
    """Return a process and all that it has started."""
    process = psutil.Process(pid)
    return [process.pid, *(child.pid for child in process.children(recursive=True))]


@contextmanager
def by_quota(pid: int) -> Iterator[None]:
    """Give a process, and all that it has started, a share of one core."""
    with new_group() as group:
        move(pid, group)
        try:
            yield
        finally:
            with suppress(psutil.NoSuchProcess):
                move(pid, group.parent)


@contextmanager
def new_group() -> Iterator[Path]:
    """Make a cgroup with a share of one core. Raises OSError if none can be had."""
    top, file, quota = CPU, "cpu.cfs_quota_us", str(int(1e6 * PERIOD * SHARE))
    if not CPU.is_dir():
        top, file, quota = UNIFIED, "cpu.max", f"{quota} {int(1e6 * PERIOD)}"
    group = top / f"starved-{os.getpid()}"
    group.mkdir()
    try:
        (group / file).write_text(quota)
        yield group
    finally:
        group.rmdir()


def move(pid: int, group: Path) -> None:
    for each in family(pid):
        with suppress(ProcessLookupError):  # it has ended
            (group / "cgroup.procs").write_text(str(each))


@contextmanager
def by_stops(pid: int) -> Iterator[None]:
    """Stop a process, not those that it has started, most of the time."""
    done = threading.Event()

    def stop_and_continue() -> None:
        with suppress(ProcessLookupError):
            while not done.wait(PERIOD * SHARE):
                os.kill(pid, signal.SIGSTOP)
                done.wait(PERIOD * (1 - SHARE))
                os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=stop_and_continue)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def answered(
    script: str, starve: Callable[[int], AbstractContextManager[None]]
) -> tuple[str, float]:
    """Run a script that prints "ready", and then for each line that it reads a line, or ends.

    Return its first answer, for which it is starved, and the seconds until then.
    """
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        began = time.monotonic()
        with starve(process.pid):
            print(file=process.stdin, flush=True)
            answer = process.stdout.readline()
        seconds = time.monotonic() - began
        print(file=process.stdin, flush=True)
    assert process.returncode == 0
    return answer, seconds


either_way = pytest.mark.parametrize(
    "starve",
    [
        pytest.param(by_quota, id="a quota", marks=pytest.mark.needs("quota")),
        pytest.param(by_stops, id="stopped"),
    ],
)
