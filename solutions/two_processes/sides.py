"""Lab 9, given: the two sides, prefill and decode, as objects.

A side is an engine and the messages that it understands. It knows no process, no thread and no
clock: `receive` gives it a message, and `step` the time. It answers by `send`, to the other side,
and by `tell`, to the router, which has the requests. So a test can play any sequence of delays,
lost messages and crashes in one process. `processes.py` runs the sides in two.

Blocks that wait for an answer from the other side are held under a lease.
"""

import collections.abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from solutions.engine.engine import Engine, Output, Parts, new_engine
from solutions.engine.limits import Limits
from solutions.engine.runner import Chunk, PackedCache
from solutions.engine.scheduler import Scheduler
from solutions.engine.sequence import Sequence
from solutions.kv_cache import CachedLMHead
from solutions.paged_attention import BlockManager, OutOfBlocks
from solutions.two_processes.messages import (
    Ask,
    Confirmed,
    Forget,
    Granted,
    Hello,
    Holds,
    Job,
    Last,
    Lost,
    Piece,
    Prefilled,
    Refused,
    fingerprint,
    generator_after,
)

# ------------------------------------------------------------------------------- what sides share


@dataclass(frozen=True)
class Pieces:
    """The learner's own functions and classes, as the sides need them."""

    scheduler: Callable[..., Scheduler]
    pack_kv: Callable[..., Float[Tensor, "2 layers tokens heads head_dim"]]
    unpack_kv: Callable[..., None]
    adopt: Callable[[Engine, int, Prefilled], None]
    leases: Callable[[float], Any]


@dataclass(frozen=True)
class Room(Limits):
    """The limits of a side. Each side has its own, and even the block sizes may differ."""

    block_manager: type[BlockManager] = BlockManager


def reserve(engine: Engine, prompt: collections.abc.Sequence[int], end: int) -> tuple[int, int]:
    """Reserve blocks for a prompt that is computed elsewhere.

    Returns the request's number here, and how many of its tokens the cache holds already: those
    need not be sent. Raises ValueError if the text can never grow to `end` tokens here. Raises
    OutOfBlocks, and changes nothing, if the pool has too few free blocks now, or if as many
    requests hold blocks as may run.
    """
    scheduler = engine.scheduler
    scheduler.require_room(end)
    if len(scheduler.manager.tables) >= scheduler.max_running:
        raise OutOfBlocks(f"{scheduler.max_running} requests hold blocks, and no more may run.")
    number = next(engine.numbers)
    return number, scheduler.manager.admit(number, prompt)


class Side:
    """An engine, its connections, and the leases of blocks that wait for the other side.

    numbers: for each key, the request's number in this engine. seconds: how long a lease lasts.
    """

    def __init__(
        self,
        model: CachedLMHead,
        room: Room,
        pieces: Pieces,
        seconds: float,
        send: Callable[[Any], None],
        tell: Callable[[Any], None],
    ) -> None:
        self.pieces, self.send, self.tell = pieces, send, tell
        parts = Parts(block_manager=room.block_manager, scheduler=self.scheduler())
        self.engine = new_engine(model, room, self.gained, parts=parts)
        self.manager = self.engine.scheduler.manager
        self.pool = self.engine.runner.kv_cache.cache.pool
        keys_and_values, layers, _, _, heads, head_dim = self.pool.shape
        self.hello = Hello(fingerprint(model), (keys_and_values, layers, heads, head_dim))
        self.leases = pieces.leases(seconds)
        self.numbers: dict[int, int] = {}

    def scheduler(self) -> Callable[..., Scheduler]:
        return self.pieces.scheduler

    def gained(self, output: Output) -> None:
        raise NotImplementedError

    def meet(self, hello: Hello) -> None:
        """Raise ValueError, and change nothing, if the other side has another model."""
        if hello != self.hello:
            raise ValueError(
                "The two sides have different models, so one can't use the keys and values of the "
                f"other: {self.hello.fingerprint} with {list(self.hello.shape)} numbers a token "
                f"here, {hello.fingerprint} with {list(hello.shape)} there. Start both from the "
                "same checkpoint."
            )

    def step_engine(self) -> int:
        """Make one step of the engine; return the number of tokens computed, 0 if it raised.

        If a request's own functions raise, only that request ends, and the next step outputs that.
        """
        try:
            self.engine.step()
        except Exception:
            if not any(output.finish_reason == "error" for output in self.engine.outputs):
                raise
            return 0
        return sum(tokens for _, tokens, _ in self.engine.trace[-1])


# ------------------------------------------------------------------------------------ the prefill


Batch = collections.abc.Sequence[Chunk]


class LayerByLayer:
    """A runner's cache that calls `before` a forward pass, and `after` each layer of it.

    By then, the layer's keys and values are in the cache.
    """

    def __init__(
        self,
        kv_cache: PackedCache,
        before: Callable[[Batch], None],
        after: Callable[[int, Batch], None],
    ) -> None:
        self.kv_cache, self.cache, self.before, self.after = kv_cache, kv_cache.cache, before, after

    def select(self, batch: Batch) -> Tensor:
        self.batch = batch
        self.before(batch)
        return self.kv_cache.select(batch)

    def attend(self, layer: int, *packed: Tensor) -> Tensor:
        attended = self.kv_cache.attend(layer, *packed)
        self.after(layer, self.batch)
        return attended


@dataclass
class Outgoing:
    """A job on the prefill side. sent: how many of its tokens the other side has; None before the
    other side has granted room."""

    job: Job
    sent: int | None = None
    first_token: int | None = None


def keeping(scheduler: Any) -> Callable[..., Scheduler]:
    """Derive a scheduler that lets a request keep its blocks after it has ended normally."""

    class Keeping(scheduler):
        def retire(self, sequence: Sequence) -> None:
            if sequence.finish_reason is None:  # aborted, or failed
                super().retire(sequence)
            else:
                self.running.remove(sequence)

    return Keeping


class PrefillSide(Side):
    """Computes prompts, each with one new token, and sends the results.

    Keys and values are sent as soon as the other side has room for them: those of a chunk layer by
    layer, while the next layers are computed. outgoing: the jobs, by number. A request that has
    ended keeps its blocks under a lease, until everything has arrived.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.outgoing: dict[int, Outgoing] = {}
        self.arrived: list[int] = []
        runner: Any = self.engine.runner
        runner.kv_cache = LayerByLayer(runner.kv_cache, self.before, self.after)

    def scheduler(self) -> Callable[..., Scheduler]:
        return keeping(self.pieces.scheduler)

    def receive(self, message: Any) -> None:
        match message:
            case Hello():
                self.meet(message)
            case Job():
                self.take(message)
            case Granted(key, start) if key in self.numbers:
                self.outgoing[self.numbers[key]].sent = start
                self.send_computed(self.numbers[key])
            case Granted(key):
                self.send(Forget(key))
            case Confirmed(key):
                self.arrived += [self.numbers[key]] if key in self.numbers else []
            case Refused(key):
                self.drop(key)
                self.tell(message)
            case Forget(key):
                self.drop(key)
                self.tell(Lost(key))

    def take(self, job: Job) -> None:
        """Submit a new job to the engine, and ask the other side for room meanwhile."""
        given = job.params, job.seed, job.eos_token_id
        try:
            number = self.engine.submit(job.prompt, 1, *given)
        except ValueError as error:
            self.tell(Refused(job.key, str(error)))
            return
        sequence: Any = self.engine.inbox[-1]
        sequence.generator = generator_after(job.seed, job.drawn, job.params)
        self.numbers[job.key], self.outgoing[number] = number, Outgoing(job)
        self.send(Ask(job.key, job.prompt, job.end))

    def step(self, now: float) -> int:
        """Free the blocks that have arrived or waited too long, then step the engine.

        Returns the number of tokens computed.
        """
        self.now, arrived, self.arrived = now, self.arrived, []
        for number in self.leases.due(now, arrived):
            if number in self.outgoing:
                key = self.outgoing[number].job.key
                self.drop(key)
                if number not in arrived:
                    self.send(Forget(key))
                    self.tell(Lost(key))
        return self.step_engine()

    def gained(self, output: Output) -> None:
        """A request with its first token has ended on this side: send it to the other one."""
        number = output.request
        if number not in self.outgoing:
            return  # it has been dropped meanwhile
        if output.finish_reason == "error":
            key = self.outgoing[number].job.key
            self.drop(key)
            self.send(Forget(key))
            self.tell(Output(key, [], "error"))
        else:
            [self.outgoing[number].first_token] = output.new_ids
            self.leases.hold(number, self.now)
            self.send_computed(number)

    def drop(self, key: int) -> None:
        """Forget a job, whatever its state. If a lease is left, there is nothing to free later."""
        if key in self.numbers:
            number = self.numbers.pop(key)
            if self.outgoing.pop(number).first_token is None:
                self.engine.abort(number)
            else:
                self.manager.free(number)

    def reconnected(self) -> None:
        """There is a new decode side: ask for room again, for every job."""
        self.arrived.clear()
        for outgoing in self.outgoing.values():
            outgoing.sent = None
            self.send(Ask(outgoing.job.key, outgoing.job.prompt, outgoing.job.end))
        self.tell(Holds(list(self.numbers)))

    # ------------------------------------------------------------------- keys and values are sent

    def before(self, batch: Batch) -> None:
        """First send the tokens that were computed before the other side had room."""
        for chunk in batch:
            self.send_computed(chunk.request)

    def after(self, layer: int, batch: Batch) -> None:
        """This layer is computed: send it for each chunk."""
        for chunk in batch:
            self.send_layer(chunk.request, layer, chunk.start + len(chunk.ids))

    def send_computed(self, number: int) -> None:
        """Send the computed tokens that have not been sent; after the last one, `Last`."""
        outgoing, sequence = self.outgoing[number], self.engine.sequences.get(number)
        job, is_done = outgoing.job, outgoing.first_token is not None
        computed = sequence.num_computed_tokens if sequence else len(job.prompt) * is_done
        for layer in range(self.pool.shape[1]):
            self.send_layer(number, layer, computed)
        if is_done and outgoing.sent is not None:
            self.send(Last(job.key, self.prefilled(outgoing)))

    def send_layer(self, number: int, layer: int, end: int) -> None:
        """Send one layer of the tokens before `end` that the other side lacks.

        They count as sent when the last layer is.
        """
        outgoing = self.outgoing[number]
        if outgoing.sent is not None and outgoing.sent < end:
            pool, table = self.pool[:, layer : layer + 1], self.manager.tables[number]
            kv = self.pieces.pack_kv(pool, table, outgoing.sent, end)
            self.send(Piece(outgoing.job.key, layer, outgoing.sent, kv))
            if layer == self.pool.shape[1] - 1:
                outgoing.sent = end

    def prefilled(self, outgoing: Outgoing) -> Prefilled:
        job, first_token = outgoing.job, outgoing.first_token
        assert first_token is not None
        return Prefilled(
            job.prompt,
            first_token,
            job.end,
            len(job.prompt),
            self.pool[:, :, 0, :0].clone(),  # no tokens: all have been sent in pieces
            job.eos_token_id,
            job.params,
            job.seed,
            job.drawn + 1,
        )


# ------------------------------------------------------------------------------------- the decode


@dataclass
class Incoming:
    """A reservation. ends: for each layer, the token up to which it has arrived without a gap."""

    key: int
    ends: list[int]


class DecodeSide(Side):
    """Continues requests whose prompts were computed elsewhere.

    asking: the requests that wait for room, by key; the first to ask gets it first. incoming: the
    requests that have room, by number, each under a lease that is renewed whenever a piece arrives.
    adopted: the keys of the requests that run here, by number.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.asking: dict[int, Ask] = {}
        self.incoming: dict[int, Incoming] = {}
        self.adopted: dict[int, int] = {}
        self.heard: list[int] = []

    def receive(self, message: Any) -> None:
        match message:
            case Hello():
                self.meet(message)
            case Ask(key) if self.numbers.get(key) in self.adopted:
                self.send(Confirmed(key))  # it runs here, but the confirmation was lost
            case Ask(key) if key not in self.numbers:  # otherwise its pieces are arriving
                self.asking[key] = message
            case Piece(key) if self.numbers.get(key) in self.incoming:
                self.unpack(self.numbers[key], message)
            case Last(key) if self.numbers.get(key) in self.incoming:
                self.adopt(self.numbers[key], message)
            case Piece(key) | Last(key):
                self.send(Forget(key))
            case Forget(key):
                self.drop(key)

    def step(self, now: float) -> int:
        """End the leases that are over, grant room if there is some, then step the engine.

        Returns the number of tokens computed.
        """
        heard, self.heard = self.heard, []
        for number in self.leases.due(now, heard):
            if number in self.incoming and number in heard:
                self.leases.hold(number, now)
            elif number in self.incoming:
                self.give_up(number)
        self.grant(now)
        return self.step_engine()

    def grant(self, now: float) -> None:
        """Grant room to the requests that ask, in order; requests preempted here come first."""
        while self.asking and not self.engine.scheduler.waiting:
            ask = next(iter(self.asking.values()))
            try:
                number, start = reserve(self.engine, ask.prompt, ask.end)
            except OutOfBlocks:
                return
            except ValueError as error:
                self.send(Refused(ask.key, str(error)))
            else:
                self.numbers[ask.key] = number
                self.incoming[number] = Incoming(ask.key, [start] * self.pool.shape[1])
                self.leases.hold(number, now)
                self.send(Granted(ask.key, start))
            del self.asking[ask.key]

    def unpack(self, number: int, piece: Piece) -> None:
        pool, table = self.pool[:, piece.layer : piece.layer + 1], self.manager.tables[number]
        self.pieces.unpack_kv(pool, table, piece.start, piece.kv)
        self.heard.append(number)
        ends = self.incoming[number].ends
        if ends[piece.layer] == piece.start:
            ends[piece.layer] += piece.kv.shape[2]

    def adopt(self, number: int, last: Last) -> None:
        """Let the request run here, unless a piece of it was lost."""
        if min(self.incoming[number].ends) < last.prefilled.start:
            self.give_up(number)
            return
        self.adopted[number] = self.incoming.pop(number).key
        self.pieces.adopt(self.engine, number, last.prefilled)
        self.send(Confirmed(last.key))

    def gained(self, output: Output) -> None:
        if output.request in self.adopted:  # otherwise it has been forgotten meanwhile
            key = self.adopted[output.request]
            self.tell(Output(key, output.new_ids, output.finish_reason))
            if output.finish_reason is not None:
                del self.adopted[output.request], self.numbers[key]

    def give_up(self, number: int) -> None:
        key = self.incoming[number].key
        self.drop(key)
        self.send(Forget(key))

    def drop(self, key: int) -> None:
        """Forget a request, whatever its state. If a lease is left, it finds nothing to free."""
        self.asking.pop(key, None)
        number = self.numbers.pop(key, None)
        if number in self.incoming:
            del self.incoming[number]
            self.manager.free(number)
        elif number is not None:
            del self.adopted[number]
            self.engine.abort(number)

    def reconnected(self) -> None:
        """There is a new prefill side, which doesn't know the requests that were arriving."""
        self.asking.clear()
        for incoming in list(self.incoming.values()):
            self.drop(incoming.key)
        self.tell(Holds(list(self.numbers)))
