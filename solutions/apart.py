"""Lab 9, given: prefill in one process, decode in another.

`Router` has the requests: it hands out attempts at them, and passes on what comes of the attempt
that counts. `Wire` carries messages from one process to the other, keys and values as raw bytes.
`serve` is what each of the two processes does, and `Apart` starts them and looks after them.

Every process has a clock of its own, and two clocks are never subtracted from one another. What a
side records begins when it was ready; the parent remembers, by its own clock, when it heard of
that. So lanes of two sides can be drawn together, as exactly as a message is fast.
"""

import collections.abc
import pickle
import signal
import traceback
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from math import prod
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.shared_memory import SharedMemory
from operator import index
from pathlib import Path
from time import perf_counter
from typing import Any, Self

import cloudpickle
import torch
from torch import Tensor

from gpt import find_checkpoint, read_config
from solutions.batching import require_request
from solutions.decoding import GREEDY, SamplingParams
from solutions.engine import Output
from solutions.kv_cache import CachedLMHead
from solutions.sides import (
    DecodeSide,
    Forget,
    Holds,
    Job,
    Lost,
    Piece,
    Pieces,
    PrefillSide,
    Refused,
    Room,
)

SPAWN = get_context("spawn")  # nothing of the parent goes along, on any system
SLOTS, SLOT_BYTES = 16, 2**20  # of the memory that two sides share
IDLE = 0.01  # seconds until a side without work looks at its leases
PREFILL, DECODE = "prefill", "decode"
DEATHS = 3  # of a side, with no token between them; then it is not started again
GRACE = 5.0  # seconds that a side has to end by itself

# ----------------------------------------------------------------------------------- the requests


@dataclass
class Story:
    """A request that has not ended. told: its new tokens; last: how many the attempt found."""

    prompt: list[int]
    end: int
    eos_token_id: int | None
    params: SamplingParams
    seed: int
    told: list[int] = field(default_factory=list)
    attempt: int = -1
    found: int = 0


class Router:
    """Has every request served to its end, whatever becomes of the sides.

    An attempt goes on from all that has been told: its prompt is the text so far. Of any but the
    newest attempt nothing is passed on, so no token is told twice.
    """

    def __init__(
        self,
        to_prefill: Callable[[Any], None],
        to_decode: Callable[[Any], None],
        on_output: Callable[[Output], None],
    ) -> None:
        self.to_prefill, self.to_decode, self.on_output = to_prefill, to_decode, on_output
        self.stories: dict[int, Story] = {}
        self.requests: dict[int, int] = {}  # by attempt
        self.refusals: dict[int, str] = {}
        self.numbers, self.attempts = count(), count()

    def submit(
        self,
        prompt: collections.abc.Sequence[int],
        end: int,
        eos_token_id: int | None = None,
        params: SamplingParams = GREEDY,
        seed: int = 0,
    ) -> int:
        request = next(self.numbers)
        self.stories[request] = Story(list(prompt), end, eos_token_id, params, seed)
        if len(prompt) < end:
            self.attempt(request)
        else:
            self.finish(request, [], "length")
        return request

    def abort(self, request: int) -> None:
        if request in self.stories:
            self.forget(request)
            self.finish(request, [], "abort")

    def receive(self, message: Any) -> None:
        match message:
            case Output(attempt, new_ids, reason) if attempt in self.requests:
                request = self.requests[attempt]
                self.stories[request].told += new_ids
                if reason is None:
                    self.on_output(Output(request, new_ids, None))
                else:
                    del self.requests[attempt]
                    self.finish(request, new_ids, reason)
            case Lost(attempt) if attempt in self.requests:
                self.again(self.requests[attempt])
            case Refused(attempt, why) if attempt in self.requests:
                request = self.requests.pop(attempt)
                self.refusals[request] = why
                self.finish(request, [], "error")
            case Holds(attempts):
                for attempt in self.requests.keys() - attempts:
                    self.again(self.requests[attempt])

    def decode_has_died(self) -> None:
        """Whom it has told something was nowhere else; the others may still be at the prefill."""
        for request, story in list(self.stories.items()):
            if len(story.told) > story.found:
                self.again(request)

    def again(self, request: int) -> None:
        self.forget(request)
        self.attempt(request)

    def attempt(self, request: int) -> None:
        story, key = self.stories[request], next(self.attempts)
        story.attempt, story.found = key, len(story.told)
        self.requests[key] = request
        text, own = story.prompt + story.told, (story.eos_token_id, story.params, story.seed)
        self.to_prefill(Job(key, text, story.end, *own, drawn=len(story.told)))

    def forget(self, request: int) -> None:
        attempt = self.stories[request].attempt
        del self.requests[attempt]
        self.to_prefill(Forget(attempt))
        self.to_decode(Forget(attempt))

    def finish(self, request: int, new_ids: list[int], reason: str) -> None:
        del self.stories[request]
        self.on_output(Output(request, new_ids, reason))


# --------------------------------------------------------------------------------------- the wire


@dataclass(frozen=True)
class Raw:
    """Stands for a Piece whose numbers follow, or lie in a slot of the shared memory."""

    key: int
    layer: int
    start: int
    tokens: int
    slot: int | None


@dataclass(frozen=True)
class Returned:
    """A slot that has been read."""

    slot: int


@dataclass
class Statistics:
    """What a side has done since it was started, as it tells on demand.

    steps and tokens: of its engine, where somebody was served. bytes: keys and values that went or
    came; messages and control: all other messages, and their bytes. seconds: that it took to send
    or receive keys and values. held: blocks that are not free. spans: (what, start, seconds),
    counted from when it was ready; a span "send" may lie within a "compute".
    """

    steps: int = 0
    tokens: int = 0
    bytes: int = 0
    messages: int = 0
    control: int = 0
    seconds: float = 0.0
    held: int = 0
    spans: list[tuple[str, float, float]] = field(default_factory=list)


class Wire:
    """Between the two sides. What is sent while nobody is at the other end is lost.

    arena: memory that both share, in slots; without it keys and values go by the connection, too.
    """

    def __init__(
        self, pool: Tensor, arena: SharedMemory | None, clock: Callable[[], float]
    ) -> None:
        self.row, self.dtype = pool.shape[-2:], pool.dtype  # heads and head_dim
        self.memory: Any = None if arena is None else arena.buf
        self.clock = clock
        self.statistics = Statistics()
        self.inbox: deque[Any] = deque()
        self.connection: Connection | None = None

    def connect(self, connection: Connection) -> None:
        """To whoever is on the other side now. All slots are free then: nobody reads any more."""
        self.disconnect()
        self.connection, self.slots = connection, deque(range(SLOTS))
        self.inbox.clear()

    def disconnect(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection = None

    def send(self, message: Any) -> None:
        if not isinstance(message, Piece):
            self.put(message)
            return
        start, tokens = self.clock(), message.kv.shape[2]
        at_once = tokens if self.memory is None else SLOT_BYTES // message.kv[:, :, 0].nbytes
        for first in range(0, tokens, at_once):
            kv = message.kv[:, :, first : first + at_once]
            self.send_raw(replace(message, start=message.start + first, kv=kv))
        self.note("send", start, message.kv.nbytes)

    def send_raw(self, piece: Piece) -> None:
        array: Any = piece.kv.cpu().contiguous().numpy()
        numbers = memoryview(array).cast("B")
        slot = None if self.memory is None else self.write(numbers)
        self.put(Raw(piece.key, piece.layer, piece.start, piece.kv.shape[2], slot))
        if self.memory is None:
            self.put_bytes(numbers)

    def write(self, numbers: memoryview) -> int | None:
        """Into the next slot, which is waited for; None where the other side is gone."""
        while self.connection is not None and not self.slots:
            self.take()
        if self.connection is None:
            return None
        slot = self.slots.popleft()
        self.memory[slot * SLOT_BYTES :][: len(numbers)] = numbers
        return slot

    def put(self, message: Any) -> None:
        written = pickle.dumps(message)
        if not isinstance(message, Raw | Returned):
            self.statistics.messages += 1
            self.statistics.control += len(written)
        self.put_bytes(written)

    def put_bytes(self, written: Any) -> None:
        try:
            if self.connection is not None:
                self.connection.send_bytes(written)
        except OSError:
            self.disconnect()

    def receive(self) -> Iterator[Any]:
        """All that has come, without waiting."""
        while self.connection is not None and self.connection.poll():
            self.take()
        while self.inbox:
            yield self.inbox.popleft()

    def take(self) -> None:
        """Wait for the next message; what is not for the wire goes into the inbox."""
        assert self.connection is not None
        try:
            message = pickle.loads(self.connection.recv_bytes())
            if isinstance(message, Raw):
                message = self.read(message, self.connection)
        except (EOFError, OSError):
            self.disconnect()
            return
        if isinstance(message, Returned):
            self.slots.append(message.slot)
        else:
            self.inbox.append(message)

    def read(self, raw: Raw, connection: Connection) -> Piece:
        start, shape = self.clock(), (2, 1, raw.tokens, *self.row)
        if raw.slot is None:
            numbers = bytearray(connection.recv_bytes())
        else:
            size = prod(shape) * self.dtype.itemsize
            numbers = bytearray(self.memory[raw.slot * SLOT_BYTES :][:size])
            self.put(Returned(raw.slot))
        self.note("receive", start, len(numbers))
        kv = torch.frombuffer(numbers, dtype=self.dtype).view(shape)
        return Piece(raw.key, raw.layer, raw.start, kv)

    def note(self, what: str, start: float, size: int) -> None:
        seconds, statistics = self.clock() - start, self.statistics
        statistics.bytes += size
        statistics.seconds += seconds
        statistics.spans.append((what, start, seconds))


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
