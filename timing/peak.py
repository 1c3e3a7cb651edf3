"""How much memory a call takes at its peak.

A process doesn't give back all that it once had, and its peak is that of everything it has done. So
each call gets a process of its own.
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

SPAWN = get_context("spawn")  # nothing of the parent goes along, on any system
MEGABYTE = 1_000_000


def peak_megabytes(run: Callable[[], object]) -> float:
    """How many MB `run()` takes at its peak, beyond what its process has when it begins.

    What `run` refers to goes along and is there when it begins; what it changes stays in its
    process. On Linux it is the peak of the call alone; elsewhere that of unpacking what goes along
    counts too, so let the call make large data itself. Raises RuntimeError where the call fails,
    with the text of its error, and where its process dies.
    """
    what = cloudpickle.dumps(run)
    ours, theirs = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=tell, args=(what, theirs), daemon=True)
    process.start()
    theirs.close()  # else the end of the process would never be heard
    try:
        found = ours.recv()
    except EOFError:
        process.join()
        raise RuntimeError(
            f"The process of this call has died, with exit code {process.exitcode}. Perhaps it "
            "needs more memory than there is: try something smaller."
        ) from None
    finally:
        process.kill()  # after an interrupt it still runs
        process.join()
        ours.close()
    if isinstance(found, str):
        raise RuntimeError(f"The call has failed in its process:\n\n{found}")
    return found / MEGABYTE


def tell(what: bytes, door: Connection) -> None:
    """The life of the process: send how many bytes the call took, or the text of its error."""
    try:
        run = cloudpickle.loads(what)
        forget_peak()
        before = psutil.Process().memory_info().rss
        run()
        door.send(peak_bytes() - before)
    except Exception:
        door.send(traceback.format_exc())


def forget_peak() -> None:
    """Let the peak begin anew, on Linux: unpacking took memory that isn't the call's.

    Source: proc_pid_clear_refs(5).
    """
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_bytes() -> int:
    """The most that this process has had at a time."""
    if sys.platform == "linux":  # where getrusage knows the peak of the parent, too
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return 1024 * int(status.partition("VmHWM:")[2].split()[0])
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset
    import resource  # Windows has none

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS
