"""Lab 9, given: sends messages from one process to the other, keys and values as raw bytes."""

import pickle
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import torch
from torch import Tensor

from solutions.two_processes.messages import Piece

SLOTS, SLOT_BYTES = 16, 2**20  # of the memory that the two sides share
SPANS = 100_000  # kept for the picture


@dataclass(frozen=True)
class Raw:
    """A Piece without its numbers, which follow as raw bytes or are in a slot of shared memory."""

    key: int
    layer: int
    start: int
    tokens: int
    slot: int | None


@dataclass(frozen=True)
class Returned:
    """A slot has been read and is free again."""

    slot: int


@dataclass
class Statistics:
    """What a side has done since it was started.

    steps, tokens: the engine's steps that computed something, and their tokens. bytes: of keys and
    values, sent or received. messages, control: the number of other messages, and their bytes.
    seconds: the time for sending or receiving keys and values. held: blocks that are not free.
    spans: (what, start, seconds), since the side was ready; a "send" may be inside a "compute".
    """

    steps: int = 0
    tokens: int = 0
    bytes: int = 0
    messages: int = 0
    control: int = 0
    seconds: float = 0.0
    held: int = 0
    spans: deque[tuple[str, float, float]] = field(default_factory=partial(deque, maxlen=SPANS))


class Wire:
    """The connection between the two sides. Messages sent while the other end is gone are lost.

    arena: shared memory, in slots; without it, keys and values go through the connection too.
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
        """Connect to the present other side. All slots are free then, since no one reads them."""
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
        """Write into the next slot, and wait for one if needed; None if the other side is gone."""
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
        """Yield all messages that have come, without waiting."""
        while self.connection is not None and self.connection.poll():
            self.take()
        while self.inbox:
            yield self.inbox.popleft()

    def take(self) -> None:
        """Wait for the next message; all but returned slots go into the inbox."""
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
