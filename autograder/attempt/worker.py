"""The process in the sandbox: it imports what is slow to import, then forks a child an exercise.

For each exercise the oracle sends "run" with one end of a fresh socket; the child talks over that
socket only. At the oracle's "end", or when the child has ended, every process that it left is
killed. The worker then sends the processor time, and whether the folders that a child may write are
as they were before the first one: if they aren't, the oracle throws this sandbox away.

This process never runs a student's code. As the first of its namespace it can't be killed from
within; it can't be read or traced from there either. It knows no answer, no seed and no other
student.
"""

import ctypes
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import torch

from autograder.attempt import stand_ins
from autograder.attempt.around import lending, torch_as_it_is
from autograder.attempt.failure import Failure, TookTooLong, failure_of, line_of
from autograder.attempt.notebook import NotDefined, run_for
from autograder.attempt.peer import Gone, Peer, fields_of
from autograder.attempt.plain import kind_of, plain
from autograder.attempt.records import Seen, plain_records
from autograder.attempt.shown import FarModel, ShownModel
from autograder.attempt.source import exercise_function, lost_statements
from autograder.attempt.tensors import as_in_an_engine
from autograder.attempt.wire import WireError
from gpt import GPTConfig

PR_SET_DUMPABLE = 4


def main(control: socket.socket, scratch: Path, lab: str) -> None:
    prepare()
    import_module(f"autograder.attempt.drivers.{lab}")
    gc.collect()
    gc.freeze()  # children then share the memory of what is loaded, untouched
    before = written(scratch)
    control.sendall(b"ready")
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 3, 1)
        if message != b"run" or len(descriptors) != 1:
            return
        pid = os.fork()
        if pid == 0:
            control.close()
            child(socket.socket(fileno=descriptors[0]), scratch)
        os.close(descriptors[0])
        wait_for_end(control, pid)
        told = {"seconds": clean_up(pid), "clean": written(scratch) == before}
        control.sendall(json.dumps(told).encode())


def prepare() -> None:
    torch.set_num_threads(1)
    stand_ins.put_in_place()
    tempfile.gettempdir()  # the first call tries the folder, by writing into it
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def wait_for_end(control: socket.socket, pid: int) -> None:
    """Until the oracle says "end". A child that ends by itself takes what it started along."""
    if hasattr(os, "pidfd_open"):
        ended = os.pidfd_open(pid)
        found, _, _ = select.select([control.fileno(), ended], [], [])
        os.close(ended)
        if ended in found:
            kill_all(pid)
    control.recv(3)


def kill_all(pid: int) -> None:
    """Kill the child, and every process that it left."""
    is_first = os.getpid() == 1  # of the sandbox's own namespace: then all others are the child's
    with suppress(ProcessLookupError, PermissionError):  # if no process is left
        os.kill(-1, signal.SIGKILL) if is_first else os.killpg(pid, signal.SIGKILL)


def clean_up(pid: int) -> float:
    """Kill a child and every process that it left; return their seconds of processor time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    kill_all(pid)
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            break
        kill_all(pid)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(getattr(after, n) - getattr(before, n) for n in ("ru_utime", "ru_stime"))


def written(scratch: Path) -> list[Any]:
    """Everything that a child can leave in the folders that it may write: equal, they are as new.

    The owner, the rights and the times of a folder, its attributes and its entries; of a file
    system of the sandbox's own also how much room there is, for what has no name any more.
    """
    folders = [scratch, *([Path("/dev/shm")] if os.getpid() == 1 else [])]
    return [state_of(folder) for folder in folders]


def state_of(folder: Path) -> Any:
    try:
        entries, found = os.listdir(folder), os.lstat(folder)
        times = found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns
        own = found.st_ino, found.st_uid, found.st_gid, found.st_mode, found.st_nlink
        room = os.statvfs(folder) if folder.is_mount() else None
        return entries, times, own, os.listxattr(folder), room
    except OSError as error:
        return repr(error)


# ---------------------------------------------------------------------------------- one exercise


def child(connection: socket.socket, scratch: Path) -> NoReturn:
    """Try an attempt on the cases that come, until the oracle ends it."""
    try:
        os.setsid()
        os.chdir(scratch)
        keep_only(connection.fileno())
        serve(Child(connection))
    except BaseException:
        pass  # the oracle sees that the child has gone
    os._exit(0)


def keep_only(descriptor: int) -> None:
    """Close every file but this one; what is printed goes nowhere."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    os.closerange(3, descriptor)
    os.closerange(descriptor + 1, 1024)


class Child(Peer):
    """The wire as the attempt's process has it. names: those of the notebook."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self.names: dict[str, Any] = {}

    def made(self, name: str, fields: dict[str, Any]) -> Any:
        """Of the notebook's own class where it has one."""
        cls = self.names.get(name)
        return cls(**fields) if isinstance(cls, type) else types.SimpleNamespace(**fields)

    def foreign(self, value: Any) -> dict[str, Any]:
        return {"mine": self.share(value)}

    def error(self, name: str, args: list[Any], number: int | None) -> BaseException:
        """One of its own that comes back, or of the notebook's own class where it has one."""
        if number is not None:
            return self.shared[number]
        cls = self.names.get(name)
        if isinstance(cls, type) and issubclass(cls, Exception):
            return cls(*args)
        return super().error(name, args, number)

    def told(self, error: Exception) -> list[Any]:
        """With the number by which it comes back as itself."""
        return [*super().told(error)[:2], self.share(error)]


def serve(peer: Child) -> None:
    kind, order = peer.receive()
    limit(order["limits"])
    driver = getattr(import_module(f"autograder.attempt.drivers.{order['lab']}"), order["driver"])
    hide_this()
    peer.send("begun", None)  # what fails before this is no fault of the attempt's
    try:
        with processor_time(order["seconds"]):
            attempt = loaded(peer, order)
    except NotDefined as error:
        peer.send("failed", fields_of(Failure(str(error))))
        return
    except TookTooLong as error:
        peer.send(*failed(error, order, None))
        return
    functions = {name: peer.far(number) for name, number in order["lent"].items()}
    peer.send("ready", lost(attempt, order))
    with processor_time(order["seconds"]):
        while kind != "end":
            kind, case = peer.receive()
            if kind == "case":
                answer(peer, *tried(peer, driver, attempt, case, functions, order))


def lost(attempt: Any, order: dict[str, Any]) -> list[str]:
    """The given statements that an attempt lacks; none where its own methods get in the way."""
    try:
        function = exercise_function(order["path"], attempt)
        return lost_statements(order["given"], function) if function else []
    except Exception:
        return []


def hide_this() -> None:
    """Hide these modules: a later import gets a fresh copy, and can only change that."""
    for name in [name for name in sys.modules if f"{name}.".startswith("autograder.")]:
        del sys.modules[name]


def answer(peer: Peer, kind: str, content: Any) -> None:
    try:
        peer.send(kind, content)
    except WireError as error:
        peer.send("failed", fields_of(Failure(f"The result can't be looked at. {error}")))


def loaded(peer: Child, order: dict[str, Any]) -> Any:
    """What the notebook defines under the exercise's name."""
    notebook = types.ModuleType("__main__")
    sys.modules["__main__"] = notebook
    peer.names = vars(notebook)
    run_for(order["attempt"], order["cells"], peer.names)
    attempt = peer.names[order["attempt"]]
    if isinstance(attempt, type) is not order["is_class"] or not callable(attempt):
        kind = "a class" if order["is_class"] else "a function"
        raise NotDefined(f"`{order['attempt']}` should be {kind}; it is {kind_of(attempt)}.")
    return attempt


def tried(
    peer: Child,
    driver: Callable[..., list[Seen]],
    attempt: Any,
    case: dict[str, Any],
    functions: dict[str, Any],
    order: dict[str, Any],
) -> tuple[str, Any]:
    """The outcome of one case, as a message."""
    data = as_in_an_engine(case["data"], order["whole"])
    lent = {name: service(peer, **told) for name, told in case["services"].items()}
    try:
        with torch_as_it_is(), lending(attempt, functions):
            seen = driver(attempt, **data, **lent)
            records = [list(record) for record in plain_records(seen)]
    except Gone:
        raise
    except BaseException as error:
        return failed(error, order, attempt)
    shown = {n: s.embeddings() for n, s in lent.items() if isinstance(s, ShownModel)}
    return "done", {"seen": records, "data": plain(data), "shown": plain(shown)}


def failed(error: BaseException, order: dict[str, Any], attempt: Any) -> tuple[str, Any]:
    """What stopped an attempt, as a message."""
    found = failure_of(error, order["path"], attempt, order["seconds"])
    line = line_of(found, order["path"], attempt) if attempt is not None else None
    return "failed", fields_of(replace(found, line=line, error=None))


# ------------------------------------------------------------------------------ what is lent to it


def service(peer: Peer, number: int, model: dict[str, Any] | None) -> Any:
    far = peer.far(number)
    if model is None:
        return far
    return FarModel(far, GPTConfig(**model["config"]), model["embeddings"])


# -------------------------------------------------------------------------------------- its limits


def limit(limits: dict[str, int]) -> None:
    """What one process may use at most, by the names of `resource`."""
    for name, most in limits.items():
        kind = getattr(resource, name)
        if name == "RLIMIT_AS":  # besides what PyTorch itself has mapped: with CUDA, much more
            most += int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(kind)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))


@contextmanager
def processor_time(seconds: float) -> Iterator[None]:
    """Raise TookTooLong in the block when the processor has worked so long, and until it ends."""

    def stop(*_: object) -> None:
        raise TookTooLong

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds, 0.5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
