"""Lab 18, given: ranks in real processes, with the calls of `group.py` over torch.distributed.

`in_processes` runs the same functions as `in_turns`. Starting processes takes seconds; `Processes`
keeps them for several runs. `from_environment` is for programs started by torchrun.

A backend such as gloo doesn't compare the calls of the ranks. If they don't match, ranks wait
forever, or one writes beyond the other's memory. So here a rank asks the parent process before each
call. The parent sees all calls, lets those go on that match, and raises Stuck if no rank can go on.
"""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, Self, TypeVar

import cloudpickle
import torch
import torch.distributed as dist
from torch import Tensor

from solutions.ranks.group import Call, Group, Stuck, is_collective, pairs, why_stuck

Result = TypeVar("Result")
SPAWN = get_context("spawn")  # the processes inherit nothing from the parent, on any system
OPS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}
MOST_DIMS = 8  # of a part in an all_to_all
START = 60.0  # seconds that the processes wait for the last one to start
GRACE = 5.0  # seconds that a process has to end by itself

# ------------------------------------------------------------------------------------ the calls


class Connected(Group):
    """The group as a process sees it. ask: called before each call; returns once it may be made.

    Without `ask`, nothing compares the calls, and a `send` may return before it has been received.
    """

    def __init__(self, rank: int, size: int, ask: Callable[[Call], None] | None = None) -> None:
        super().__init__(rank, size)
        self.ask = ask

    def answer(self, call: Call) -> list[Tensor]:
        if self.ask is not None:
            self.ask(call)
        try:
            return carried(call, [part.contiguous() for part in call.parts], self.size)
        except RuntimeError as error:
            raise ConnectionError(f"{call} has failed: {error}") from error


def carried(call: Call, parts: Sequence[Tensor], size: int) -> list[Tensor]:
    """Make a call with torch.distributed, and return its answer."""
    if call.kind in ("reduce_scatter", "all_to_all"):
        # Not every version of gloo has a reduce_scatter. This one sends as many bytes.
        received = exchange(parts)
        return received if call.kind == "all_to_all" else [torch.stack(received).sum(0)]
    if call.kind == "all_gather":
        gathered = [torch.empty_like(parts[0]) for _ in range(size)]
        dist.all_gather(gathered, parts[0])
        return gathered
    result = parts[0].clone()
    if call.kind == "all_reduce":
        dist.all_reduce(result, OPS[call.op])
    elif call.kind == "send":
        dist.send(result, call.other)
    else:
        dist.recv(result, call.other)
    return [result]


def exchange(parts: Sequence[Tensor]) -> list[Tensor]:
    """Send part r to rank r; return what came from each rank. Shapes go ahead of the numbers."""
    shapes = [[*part.shape] + [-1] * (MOST_DIMS - part.ndim) for part in parts]
    ahead = torch.tensor(shapes, device=parts[0].device)
    coming = torch.empty_like(ahead)
    dist.all_to_all_single(coming, ahead)
    expected = [torch.Size(n for n in shape if n >= 0) for shape in coming.tolist()]
    counts = [shape.numel() for shape in expected]
    received = parts[0].new_empty(sum(counts))
    given = torch.cat([part.flatten() for part in parts])
    dist.all_to_all_single(received, given, counts, [part.numel() for part in parts])
    split = zip(received.split(counts), expected, strict=True)
    return [part.view(shape) for part, shape in split]


@contextmanager
def connected(backend: str, seconds: float, **how: Any) -> Iterator[None]:
    """Connect this process with the other ranks, and disconnect it at the end."""
    dist.init_process_group(backend, timeout=timedelta(seconds=seconds), **how)
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def from_environment(backend: str | None = None, seconds: float = 60.0) -> Iterator[Group]:
    """Give the group of a process that torchrun has started: `with from_environment() as group:`.

        torchrun --nproc-per-node 2 program.py

    The backend is nccl if this machine has a GPU for each of its ranks, otherwise gloo. With nccl,
    tensors must be on "cuda", which is this rank's own GPU. A call that takes longer than `seconds`
    fails. Calls aren't compared; PyTorch does so with TORCH_DISTRIBUTED_DEBUG=DETAIL. Raises
    RuntimeError if torchrun hasn't started this process.
    """
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        raise RuntimeError(
            "The environment names no rank. Start this program with "
            "`torchrun --nproc-per-node 2 program.py`."
        )
    local, here = (int(os.environ.get(f"LOCAL_{name}", 0)) for name in ("RANK", "WORLD_SIZE"))
    if backend is None:
        backend = "nccl" if 0 < here <= torch.cuda.device_count() else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(local)
    with connected(backend, seconds):
        yield Connected(dist.get_rank(), dist.get_world_size())


# ------------------------------------------------------------------------------- in the processes


@dataclass(frozen=True)
class Returned:
    result: Any


@dataclass(frozen=True)
class Failed:
    error: Exception
    text: str  # its traceback


@dataclass(frozen=True)
class Setting:
    rank: int
    size: int
    folder: str  # where the ranks find each other
    seconds: float
    is_checked: bool


def serve(setting: Setting, door: Connection) -> None:
    """Run what the parent sends, until it closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # interrupting a cell reaches only the parent
    torch.set_num_threads(1)
    loopback = {"linux": "lo", "darwin": "lo0"}.get(sys.platform)
    if loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    meeting = Path(setting.folder, "ranks").as_uri()
    ranks = {"rank": setting.rank, "world_size": setting.size}
    try:
        with connected("gloo", max(setting.seconds, START), init_method=meeting, **ranks):
            door.send_bytes(cloudpickle.dumps(Returned(None)))
            while True:
                door.send_bytes(outcome(door.recv_bytes(), setting, door))
    except (EOFError, OSError):
        return
    except RuntimeError as error:
        text = "The processes can't reach each other; they need this machine's loopback interface."
        with suppress(OSError):
            door.send_bytes(cloudpickle.dumps(Failed(RuntimeError(text), str(error))))


def outcome(message: bytes, setting: Setting, door: Connection) -> bytes:
    """Run the work in a message; return its result or its exception, pickled by value."""

    def ask(call: Call) -> None:
        door.send_bytes(cloudpickle.dumps(replace(call, parts=[])))
        door.recv_bytes()

    group = Connected(setting.rank, setting.size, ask if setting.is_checked else None)
    try:
        work, args = cloudpickle.loads(message)
        return cloudpickle.dumps(Returned(work(group, *args)))
    except Exception as error:
        failed = cloudpickle.dumps(Failed(RuntimeError(repr(error)), traceback.format_exc()))
        with suppress(Exception):  # not every exception can be pickled, and read again
            own = cloudpickle.dumps(Failed(error, traceback.format_exc()))
            cloudpickle.loads(own)
            return own
        return failed


# --------------------------------------------------------------------------------- in the parent


class Processes:
    """`size` processes, one per rank. They start with the first `run` and end with `close`, which
    a `with` block calls. After a failure they are ended at once; the next `run` starts new ones.

    seconds: the time that a run may take. is_checked: whether the parent compares the ranks' calls,
    which takes some 0.1 ms per call. Without it, for timing, wrong calls have no clear error.
    """

    def __init__(self, size: int, seconds: float = 60.0, is_checked: bool = True) -> None:
        if size < 1:
            raise ValueError(f"There must be at least one rank; size is {size}.")
        self.size, self.seconds, self.is_checked = size, seconds, is_checked
        self.processes: list[Any] = []
        self.doors: list[Any] = []
        self.folder: TemporaryDirectory[str] | None = None

    def run(self, work: Callable[..., Result], *args: object) -> list[Result]:
        """Do what `in_turns` does; `work` and `args` are copied to the processes.

        Raises Stuck if no rank can go on, TimeoutError if it takes longer than `seconds`, and
        RuntimeError if a process dies. An exception of `work` is raised here, with a note.
        """
        try:
            message = cloudpickle.dumps((work, args))
            if not self.processes:
                self.start()
            for door in self.doors:
                with suppress(OSError):
                    door.send_bytes(message)
            return self.listen(monotonic() + self.seconds)
        except BaseException:
            self.close(0)
            raise

    def start(self) -> None:
        self.folder = TemporaryDirectory(prefix="ranks-", ignore_cleanup_errors=True)
        for rank in range(self.size):
            here, there = SPAWN.Pipe()
            setting = Setting(rank, self.size, self.folder.name, self.seconds, self.is_checked)
            process = SPAWN.Process(
                target=serve, name=f"rank {rank}", args=(setting, there), daemon=True
            )
            self.doors.append(here)
            process.start()
            self.processes.append(process)
            there.close()  # if this end stayed open, a death would go unnoticed
        self.listen(None)

    def listen(self, end: float | None) -> list[Any]:
        """Answer the ranks' calls until all have returned; return the results, by rank."""
        calls: list[Call | None] = [None] * self.size
        results: dict[int, Any] = {}
        while len(results) < self.size:
            busy = [r for r, call in enumerate(calls) if call is None and r not in results]
            if not busy:
                raise Stuck(why_stuck(calls))
            ready = wait(self.doors, None if end is None else max(0, end - monotonic()))
            if not ready:
                waiting = [f"rank {r} waits in {call}" for r, call in enumerate(calls) if call]
                states = [f"rank {r} computes" for r in busy] + waiting
                raise TimeoutError(f"After {self.seconds:g} seconds {', and '.join(states)}.")
            for rank in (rank for rank, door in enumerate(self.doors) if door in ready):
                message = self.hear(rank)
                if isinstance(message, Call):
                    calls[rank] = message
                else:
                    results[rank] = message.result
            matched = [rank for sender, receiver, _ in pairs(calls) for rank in (sender, receiver)]
            for rank in range(self.size) if is_collective(calls) else matched:
                calls[rank] = None
                with suppress(OSError):  # it has died, which the next round will notice
                    self.doors[rank].send_bytes(b"")
        return [results[rank] for rank in range(self.size)]

    def hear(self, rank: int) -> Call | Returned:
        """Receive a rank's message. Raises what it has raised, or that a process has died."""
        try:
            message = cloudpickle.loads(self.doors[rank].recv_bytes())
        except (EOFError, OSError):
            message = Failed(ConnectionError(f"Rank {rank} has closed its connection."), "")
        if isinstance(message, Call | Returned):
            return message
        if isinstance(message.error, ConnectionError):
            sentinels = [process.sentinel for process in self.processes]
            for ended in wait(sentinels, GRACE):
                other = sentinels.index(ended)
                self.processes[other].join()
                code = self.processes[other].exitcode
                raise RuntimeError(f"Rank {other}'s process has died; its exit code is {code}.")
        message.error.add_note(f"On rank {rank}, in a process of its own:\n\n{message.text}")
        raise message.error

    def close(self, grace: float = GRACE) -> None:
        """End the processes. grace: the seconds they have to do so by themselves."""
        for door in self.doors:
            door.close()
        end = monotonic() + grace
        for process in self.processes:
            process.join(max(0, end - monotonic()))
            process.kill()
            process.join()
        self.doors, self.processes = [], []
        if self.folder is not None:
            self.folder.cleanup()
            self.folder = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def in_processes(
    size: int, work: Callable[..., Result], *args: object, seconds: float = 60.0
) -> list[Result]:
    """Run `work(group, *args)` once for each rank, in processes; return the results, by rank."""
    with Processes(size, seconds) as ranks:
        return ranks.run(work, *args)
