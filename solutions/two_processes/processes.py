"""Lab 9, given: prefill in one process, decode in another.

`serve` is what each of the two processes does, and `Apart` starts them and looks after them.

Every process has a clock of its own, and two clocks are never subtracted from one another. What a
side records begins when it was ready; the parent remembers, by its own clock, when it heard of
that. So lanes of two sides can be drawn together, as exactly as a message is fast.
"""

import collections.abc
import signal
import traceback
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.shared_memory import SharedMemory
from operator import index
from pathlib import Path
from time import perf_counter
from typing import Any, Self

import cloudpickle
import torch

from gpt import find_checkpoint, read_config
from solutions.batching import require_request
from solutions.decoding import GREEDY, SamplingParams
from solutions.engine.engine import Output
from solutions.kv_cache import CachedLMHead
from solutions.two_processes.messages import Forget, Job
from solutions.two_processes.router import Router
from solutions.two_processes.sides import DecodeSide, Pieces, PrefillSide, Room
from solutions.two_processes.transport import SLOT_BYTES, SLOTS, Statistics, Wire

SPAWN = get_context("spawn")  # nothing of the parent goes along, on any system
IDLE = 0.01  # seconds until a side without work looks at its leases
PREFILL, DECODE = "prefill", "decode"
DEATHS = 3  # of a side, with no token between them; then it is not started again
GRACE = 5.0  # seconds that a side has to end by itself

# ---------------------------------------------------------------------------------- the processes


@dataclass(frozen=True)
class Ready:
    """The model is loaded, and the clock begins."""


@dataclass(frozen=True)
class Report:
    """Asks for a side's statistics."""


@dataclass(frozen=True)
class Failed:
    """What a side has raised."""

    text: str


@dataclass(frozen=True)
class Setting:
    """What a process is told when it starts. what: its pieces and its room, pickled by value."""

    model: str
    what: bytes
    seconds: float
    threads: int
    arena: str | None


def serve(name: str, setting: Setting, router: Connection, data: Connection) -> None:
    """The life of a process: one side, until the router says None or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupted notebook still has its sides
    torch.set_num_threads(setting.threads)
    try:
        live(name, setting, router, data)
    except (EOFError, BrokenPipeError):
        return
    except Exception:
        router.send(Failed(traceback.format_exc()))


def live(name: str, setting: Setting, router: Connection, data: Connection) -> None:
    model = CachedLMHead.from_pretrained(setting.model)
    pieces, room = cloudpickle.loads(setting.what)
    arena = None if setting.arena is None else SharedMemory(setting.arena)
    began = perf_counter()

    def clock() -> float:
        return perf_counter() - began

    def send(message: Any) -> None:
        wire.send(message)

    kind = PrefillSide if name == PREFILL else DecodeSide
    side = kind(model, room, pieces, setting.seconds, send, router.send)
    wire = Wire(side.pool, arena, clock)
    router.send(Ready())
    wire.connect(data)
    wire.send(side.hello)
    while True:
        is_busy = side.engine.has_work or wire.inbox
        doors = [router] if wire.connection is None else [router, wire.connection]
        wait(doors, 0 if is_busy else IDLE)
        while router.poll():
            message = router.recv()
            if message is None:
                return
            obey(message, side, wire, router)
        for message in wire.receive():
            side.receive(message)
        compute(side, wire.statistics, clock)


def obey(message: Any, side: PrefillSide | DecodeSide, wire: Wire, router: Connection) -> None:
    match message:
        case Job() | Forget():
            side.receive(message)
        case Report():
            wire.statistics.held = side.manager.used_blocks
            router.send(wire.statistics)
        case connection:  # to another process in the place of one that has died
            wire.connect(connection)
            wire.send(side.hello)
            side.reconnected()


def compute(
    side: PrefillSide | DecodeSide, statistics: Statistics, clock: Callable[[], float]
) -> None:
    start = clock()
    tokens = side.step(start)
    if tokens:
        statistics.steps += 1
        statistics.tokens += tokens
        statistics.spans.append(("compute", start, clock() - start))


# --------------------------------------------------------------------------------------- the whole


class Apart:
    """An engine of two processes: one computes prompts, the other goes on with them.

    model: a name or a folder; each process loads it. Keys and values go through memory that both
    share, or `by_pipe`. threads: of each process, prefill first. A process that dies is replaced,
    and its requests go on. In the end comes `close`, which a `with` calls by itself.

    new_ids: by request, its tokens so far, without the prompt. reasons: why it has ended; refusals:
    the sentence of a side that refused it. came and times: when it was submitted, and when each of
    its tokens arrived, by the clock of this process.
    """

    def __init__(
        self,
        model: str | Path,
        pieces: Pieces,
        prefill: Room,
        decode: Room,
        by_pipe: bool = False,
        lease_seconds: float = 10.0,
        threads: tuple[int, int] = (1, 1),
    ) -> None:
        self.config = read_config(find_checkpoint(model))
        self.rooms = {PREFILL: prefill, DECODE: decode}
        self.arena = None if by_pipe else SharedMemory(create=True, size=SLOTS * SLOT_BYTES)
        self.settings = {
            name: Setting(
                str(model),
                cloudpickle.dumps((pieces, room)),
                lease_seconds,
                thread_count,
                self.arena.name if self.arena else None,
            )
            for (name, room), thread_count in zip(self.rooms.items(), threads, strict=True)
        }
        self.router = Router(partial(self.put, PREFILL), partial(self.put, DECODE), self.gained)
        self.refusals = self.router.refusals
        self.outputs: deque[Output] = deque()
        self.new_ids: dict[int, list[int]] = defaultdict(list)
        self.reasons: dict[int, str] = {}
        self.came: dict[int, float] = {}
        self.times: dict[int, list[float]] = defaultdict(list)
        self.deaths = Counter[str]()
        self.processes: dict[str, Any] = {}
        self.doors: dict[str, Any] = {}
        self.began: dict[str, float] = {}
        self.reports: dict[str, Statistics] = {}
        try:
            for name, data in zip(self.rooms, SPAWN.Pipe(), strict=True):
                self.start(name, data)
            while len(self.began) < len(self.rooms):
                self.listen(None)
        except BaseException:
            self.close()
            raise

    def submit(
        self,
        prompt: collections.abc.Sequence[int],
        max_new_tokens: int,
        eos_token_id: int | None = None,
        params: SamplingParams = GREEDY,
        seed: int = 0,
    ) -> int:
        """Let a request come; return its number. Raises ValueError for one that can't be served."""
        require_request(self.config, prompt, max_new_tokens)
        end = min(len(prompt) + max_new_tokens, self.config.n_positions)
        for name, room in self.rooms.items():
            if end - 1 > room.num_blocks * room.block_size:  # a text may have to begin again
                raise ValueError(
                    f"This request may grow to {end} tokens; the {name} side has room for "
                    f"{room.num_blocks * room.block_size}. Ask for fewer, or give it more blocks."
                )
        self.listen(0)  # else both might wait for one another, their pipes full
        now, ids = perf_counter(), list(map(index, prompt))
        request = self.router.submit(ids, end, eos_token_id, params, seed)
        self.came[request] = now
        return request

    def abort(self, request: int) -> None:
        """End a request now. Of one that has ended already, nothing comes."""
        self.router.abort(request)

    def poll(self, seconds: float = 0) -> list[Output]:
        """What has come since the last time; waits so long at most for anything to come."""
        self.listen(0 if self.outputs else seconds)
        outputs = list(self.outputs)
        self.outputs.clear()
        return outputs

    def __iter__(self) -> Iterator[Output]:
        """Everything that comes, until all requests have ended."""
        while self.router.stories or self.outputs:
            yield from self.poll(1.0)

    def run(self) -> None:
        """Until all requests have ended."""
        for _ in self:
            pass

    def statistics(self) -> dict[str, Statistics]:
        """What each side has done since it was started; asks both."""
        self.reports.clear()
        for name in self.rooms:
            self.put(name, Report())
        while len(self.reports) < len(self.rooms):
            self.listen(None)
        return dict(self.reports)

    def lanes(self) -> list[tuple[str, str, float, float]]:
        """(side, what, start, seconds) of all that the sides noted, for a picture.

        Starts of one side are exact among themselves; those of two are as far off as the message
        took that the side was ready. Both are by the clock of this process.
        """
        return [
            (name, what, self.began[name] + start, seconds)
            for name, statistics in self.statistics().items()
            for what, start, seconds in statistics.spans
        ]

    def close(self) -> None:
        """End both processes, and give the memory back. Whatever has not ended is lost."""
        for name in self.processes:
            self.put(name, None)
        for name, process in self.processes.items():
            process.join(GRACE)
            process.kill()  # if it is still there: stopped, perhaps
            process.join()
            self.doors[name].close()
        self.processes.clear()
        if self.arena is not None:
            self.arena.close()
            self.arena.unlink()
            self.arena = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------- the two processes

    def start(self, name: str, data: Any) -> None:
        """Start a side, which takes this end of the wire along."""
        self.doors[name], door = SPAWN.Pipe()
        process = SPAWN.Process(
            target=serve, args=(name, self.settings[name], door, data), daemon=True
        )
        process.start()
        self.processes[name] = process
        for given in (door, data):  # an end that is open here too would never be seen to close
            given.close()

    def put(self, name: str, message: Any) -> None:
        with suppress(OSError):  # it has died, which is heard when it is listened to
            self.doors[name].send(message)

    def listen(self, seconds: float | None) -> None:
        """Hear what the sides have to say; waits so long for the first word, None for ever."""
        ready = wait(list(self.doors.values()), seconds)
        for name, door in list(self.doors.items()):
            try:
                while door in ready and door.poll():
                    self.hear(name, door.recv())
            except (EOFError, OSError):
                self.restart(name)

    def hear(self, name: str, message: Any) -> None:
        match message:
            case Ready():
                self.began[name] = perf_counter()
            case Statistics():
                self.reports[name] = message
            case Failed(text):
                raise RuntimeError(f"The {name} side has failed, and ends here:\n\n{text}")
            case _:
                self.router.receive(message)

    def gained(self, output: Output) -> None:
        self.outputs.append(output)
        self.new_ids[output.request] += output.new_ids
        self.times[output.request] += [perf_counter()] * len(output.new_ids)
        if output.new_ids:
            self.deaths.clear()
        if output.finish_reason is not None:
            self.reasons[output.request] = output.finish_reason

    def restart(self, name: str) -> None:
        """Start a side again that has died, and connect the other one with it."""
        process = self.processes[name]
        process.join()
        self.doors[name].close()
        self.deaths[name] += 1
        if self.deaths[name] == DEATHS:
            raise RuntimeError(
                f"The {name} side has died {DEATHS} times, and nobody got a token in between; its "
                f"exit code was {process.exitcode}. Is there memory for two copies of the model?"
            )
        if name == DECODE:
            self.router.decode_has_died()
        [other] = self.rooms.keys() - {name}
        here, there = SPAWN.Pipe()
        self.start(name, here)
        self.put(other, there)
        there.close()
        self.put(name, Report())  # somebody may be waiting for one
