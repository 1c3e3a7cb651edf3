"""Lab 9, given: prefill in one process, decode in another.

Each of the two processes runs `serve`. `Apart` starts them and replaces one that dies.

Every process has its own clock, and times of two clocks are never subtracted. A side records times
since it was ready, and the parent notes, by its own clock, when the message about that arrived. So
the lanes of both sides can be drawn together, with an error of one message's travel time.
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

SPAWN = get_context("spawn")  # the processes inherit nothing from the parent, on any system
IDLE = 0.01  # seconds until a side without work looks at its leases
PREFILL, DECODE = "prefill", "decode"
DEATHS = 3  # of one side, with no new token in between; then it is not started again
GRACE = 5.0  # seconds that a side has to end by itself

# ---------------------------------------------------------------------------------- the processes


@dataclass(frozen=True)
class Ready:
    """The model is loaded, and the side's clock starts."""


@dataclass(frozen=True)
class Report:
    """Asks for a side's statistics."""


@dataclass(frozen=True)
class Failed:
    """A side has raised an exception. text: its traceback."""

    text: str


@dataclass(frozen=True)
class Setting:
    """The settings a process starts with. what: its pieces and its room, pickled by value."""

    model: str
    what: bytes
    seconds: float
    threads: int
    arena: str | None


def serve(name: str, setting: Setting, router: Connection, data: Connection) -> None:
    """Run one side, until the router sends None or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # interrupting a cell doesn't end the sides
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
        case connection:  # to a new process, which replaces one that has died
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


# --------------------------------------------------------------------------------------- both sides


class Apart:
    """An engine of two processes: one computes prompts, the other continues the requests.

    model: a name or a folder; each process loads it. Keys and values go through shared memory, or
    `by_pipe`. threads: for each process, prefill first. A process that dies is replaced, and its
    requests continue. Call `close` at the end; a `with` block does it.

    new_ids: for each request, its tokens so far, without the prompt. reasons: why it has ended.
    refusals: the sentence of a side that refused it. came, times: when it was submitted, and when
    each of its tokens arrived, by the clock of this process.
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
        """Submit a request; return its number. Raises ValueError if it can never be served."""
        require_request(self.config, prompt, max_new_tokens)
        end = min(len(prompt) + max_new_tokens, self.config.n_positions)
        for name, room in self.rooms.items():
            if end - 1 > room.num_blocks * room.block_size:  # a text may have to be recomputed
                raise ValueError(
                    f"This request may grow to {end} tokens; the {name} side has room for "
                    f"{room.num_blocks * room.block_size}. Ask for fewer, or give it more blocks."
                )
        self.listen(0)  # otherwise both ends might wait for each other with full pipes
        now, ids = perf_counter(), list(map(index, prompt))
        request = self.router.submit(ids, end, eos_token_id, params, seed)
        self.came[request] = now
        return request

    def abort(self, request: int) -> None:
        """End a request now. For one that has ended already, nothing happens."""
        self.router.abort(request)

    def poll(self, seconds: float = 0) -> list[Output]:
        """Return the outputs since the last call; wait at most `seconds` if there are none."""
        self.listen(0 if self.outputs else seconds)
        outputs = list(self.outputs)
        self.outputs.clear()
        return outputs

    def __iter__(self) -> Iterator[Output]:
        """Yield every output, until all requests have ended."""
        while self.router.stories or self.outputs:
            yield from self.poll(1.0)

    def run(self) -> None:
        """Serve until all requests have ended."""
        for _ in self:
            pass

    def statistics(self) -> dict[str, Statistics]:
        """Ask both sides what they have done since they were started."""
        self.reports.clear()
        for name in self.rooms:
            self.put(name, Report())
        while len(self.reports) < len(self.rooms):
            self.listen(None)
        return dict(self.reports)

    def lanes(self) -> list[tuple[str, str, float, float]]:
        """Return (side, what, start, seconds) of everything the sides recorded, for a picture.

        Starts are by the clock of this process. Those of one side are exact relative to each other;
        between the sides they are off by the time that the message "ready" took.
        """
        return [
            (name, what, self.began[name] + start, seconds)
            for name, statistics in self.statistics().items()
            for what, start, seconds in statistics.spans
        ]

    def close(self) -> None:
        """End both processes, and free the shared memory. Requests that have not ended are lost."""
        for name in self.processes:
            self.put(name, None)
        for name, process in self.processes.items():
            process.join(GRACE)
            process.kill()  # if it is still there, for example because it was stopped
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
        """Start a side, with this end of the connection to the other side."""
        self.doors[name], door = SPAWN.Pipe()
        process = SPAWN.Process(
            target=serve, args=(name, self.settings[name], door, data), daemon=True
        )
        process.start()
        self.processes[name] = process
        for given in (door, data):  # if an end stayed open here, its closing would go unnoticed
            given.close()

    def put(self, name: str, message: Any) -> None:
        with suppress(OSError):  # the side has died; `listen` will notice
            self.doors[name].send(message)

    def listen(self, seconds: float | None) -> None:
        """Receive the sides' messages; wait at most `seconds` for the first, None for any time."""
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
        """Start a side that has died again, and connect it with the other one."""
        process = self.processes[name]
        process.join()
        self.doors[name].close()
        self.deaths[name] += 1
        if self.deaths[name] == DEATHS:
            raise RuntimeError(
                f"The {name} side has died {DEATHS} times, and no request got a token in between; "
                f"its exit code was {process.exitcode}. Is there memory for two copies of the "
                "model?"
            )
        if name == DECODE:
            self.router.decode_has_died()
        [other] = self.rooms.keys() - {name}
        here, there = SPAWN.Pipe()
        self.start(name, here)
        self.put(other, there)
        there.close()
        self.put(name, Report())  # `statistics` may be waiting for one
