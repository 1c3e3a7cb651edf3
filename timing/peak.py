"""Measure the peak memory of a call.

A process doesn't return all its memory to the system, and its peak covers everything it has done.
So each call is measured in a process of its own.
"""

import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import cloudpickle
import psutil

SPAWN = get_context("spawn")  # a process that inherits no memory, on any system
MEGABYTE = 1_000_000


def peak_megabytes(run: Callable[[], object]) -> float:
    """Return the peak memory of `run()` in MB, beyond the memory its process has at the start.

    Everything that `run` refers to is copied to the process before the start; changes to it stay
    there. On Linux, only the call counts. On other systems, unpacking the copies counts too, so let
    the call create large data itself. Raises RuntimeError if the call fails, with the text of its
    error, or if its process dies.
    """
    what = cloudpickle.dumps(run)
    ours, theirs = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=tell, args=(what, theirs), daemon=True)
    process.start()
    theirs.close()  # otherwise the end of the process would go unnoticed
    try:
        found = ours.recv()
    except EOFError:
        process.join()
        raise RuntimeError(
            f"The process of this call died with exit code {process.exitcode}. It may have needed "
            "more memory than this machine has: try a smaller input."
        ) from None
    finally:
        process.kill()  # after an interrupt it is still running
        process.join()
        ours.close()
    if isinstance(found, str):
        raise RuntimeError(f"The call failed in its process:\n\n{found}")
    return found / MEGABYTE


def tell(what: bytes, door: Connection) -> None:
    """Run the call in the new process, and send its peak in bytes or the text of its error."""
    try:
        run = cloudpickle.loads(what)
        forget_peak()
        before = psutil.Process().memory_info().rss
        run()
        door.send(peak_bytes() - before)
    except Exception:
        door.send(traceback.format_exc())


def forget_peak() -> None:
    """Reset the peak on Linux, because unpacking took memory that doesn't belong to the call.

    Source: proc_pid_clear_refs(5).
    """
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_bytes() -> int:
    """Return the peak memory of this process."""
    if sys.platform == "linux":  # where getrusage includes the parent's peak
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset
    import resource  # Windows has none

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS
