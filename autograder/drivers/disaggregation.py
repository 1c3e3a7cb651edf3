"""Drivers of lab 9: chunks under watch, a queue, gaps, what is sent, who is adopted, leases."""

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Several
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from autograder.drivers.queues import by_number, numbered, outgoing, shown
from autograder.drivers.queues import schedule as schedule
from autograder.drivers.seen import Attempt, Seen, lending, one_call, snapshot
from gpt import GPTConfig
from solutions.decoding import GREEDY, SamplingParams
from solutions.engine.engine import Engine
from solutions.engine.managers import EngineManager
from solutions.engine.scheduler import Scheduler
from solutions.engine.sequence import Sequence
from solutions.kv_cache import KVCache
from solutions.two_processes.messages import Prefilled
from solutions.two_processes.sides import reserve

# ----------------------------------------------------------------------------- a prompt in chunks

Ids = Int[Tensor, "batch seq"]
ROOMY = 64  # tokens: a wrong answer may store more than there are


class Forwards:
    """What each forward of a model is handed, as the model itself tells it."""

    def __init__(self) -> None:
        self.number, self.seen = 0, list[Seen]()

    def note(self, inputs: Any, position_ids: Any, kv_cache: Any = None) -> None:
        self.number += 1
        forward = f"forward {self.number}"
        self.seen += [
            Seen("The tensor of its tokens", snapshot(inputs), f"in {forward}"),
            Seen("The tensor of their positions", snapshot(position_ids), f"in {forward}"),
            Seen("The cache's `length`", getattr(kv_cache, "length", None), f"before {forward}"),
        ]


def prefill_in_chunks(
    attempt: Attempt, ids: Ids, chunk: int, next_ids: Ids, model: Any
) -> list[Seen]:
    """Then one decode step, with `next_ids`, behind what the cache holds."""
    forwards = Forwards()
    model.watch(forwards.note)
    kv_cache = KVCache(model.config, len(ids), ROOMY, dtype=torch.float64)
    logits = snapshot(attempt(model, kv_cache, ids, chunk))
    number, seen, length = forwards.number, list(forwards.seen), kv_cache.length
    with torch.no_grad():
        decoded = model(next_ids, torch.full_like(next_ids, ids.shape[1]), kv_cache)
    return [
        Seen("The number of forwards", number),
        *seen,
        Seen("What it returned", logits),
        Seen("The cache's `length`", length, "in the end"),
        Seen("The logits of a decode step behind it", decoded),
    ]


# ----------------------------------------------------------------------------------------- the gaps


token_gaps = one_call(__name__, "token_gaps", "What it returned", "trace request")

# ---------------------------------------------------------------------------- keys and values sent

Pool = Float[Tensor, "2 layers blocks block_size heads head_dim"]
Sent = Float[Tensor, "2 layers tokens heads head_dim"]


def pack_kv(attempt: Attempt, pool: Pool, table: list[int], start: int, end: int) -> list[Seen]:
    """What comes back is looked at again once everything in the pool has been overwritten."""
    own = pool.clone()
    kv = attempt(own, table, start, end)
    seen = [Seen("What it returned", snapshot(kv)), Seen("The pool", own.clone(), "afterwards")]
    shape = *pool.shape[:2], end - start, *pool.shape[4:]
    if not isinstance(kv, Tensor) or kv.shape != shape or start == end:
        return seen  # and of no token it doesn't matter where it lies
    own.fill_(-1)
    stretch = "lies in one stretch" if kv.is_contiguous() else "lies in several pieces"
    room = kv.untyped_storage().nbytes() // kv.element_size()
    return [
        *seen,
        Seen("What it returned", stretch, "as memory"),
        Seen("What it returned", f"holds {room} numbers", "with all else in its memory"),
        Seen("What it returned", kv, "once the pool has been overwritten"),
    ]


def unpack_kv(attempt: Attempt, pool: Pool, table: list[int], start: int, kv: Sent) -> list[Seen]:
    own = pool.clone()
    attempt(own, table, start, kv)
    return [Seen("The pool", own, "afterwards")]


# ---------------------------------------------------------------------------------------- adopting

VOCAB = 50


class Told(EngineManager):
    """A right manager, which takes down what it is told with `publish`."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.told: dict[int, list[Any]] = {}

    def publish(self, request: int, token_ids: Several[int], computed: int) -> None:
        """Tokens beyond those that are computed say nothing."""
        self.require_known(request)
        self.told.setdefault(request, []).append(list(token_ids)[:computed])


class Serving(Scheduler):
    """A right scheduler, which names whom it doesn't know by the number."""

    def retire(self, sequence: Sequence) -> None:
        if sequence not in [*self.running, *self.waiting]:
            raise ValueError(f"Request {sequence.number} ends, and it neither runs nor waits.")
        super().retire(sequence)


class PlaceRunner:
    """Stands for a runner: what follows depends on the newest token and its place alone.

    asked: for the chunks of a step, by request, what it was asked to compute.
    """

    def __init__(self, pool: Tensor, manager: EngineManager, salt: int) -> None:
        self.kv_cache = SimpleNamespace(cache=SimpleNamespace(pool=pool, manager=manager))
        self.salt, self.asked = salt, dict[int, Any]()

    def forward(self, batch: Iterable[Any]) -> dict[int, Float[Tensor, "wanted vocab"]]:
        return {chunk.request: self.logits(chunk) for chunk in batch}

    def logits(self, chunk: Any) -> Float[Tensor, "wanted vocab"]:
        ids, start, wanted = list(chunk.ids), chunk.start, chunk.wanted
        self.asked[chunk.request] = {"ids": ids, "start": start, "wanted": wanted}
        rows = [logits_at(place, token, self.salt) for place, token in enumerate(ids, start)]
        return torch.stack(rows)[len(ids) - wanted :]


def logits_at(place: int, token: int, salt: int) -> Float[Tensor, " vocab"]:
    generator = torch.Generator().manual_seed(salt + 1000 * place + token)
    return torch.randn(VOCAB, generator=generator, dtype=torch.float64)


def adopt(
    attempt: Attempt,
    pool: Pool,
    requests: list[dict[str, Any]],
    steps: int,
    token_budget: int,
    max_running: int,
    salt: int,
    writer: Any = None,
) -> list[Seen]:
    """Steps of a right engine, with a runner that has no model.

    A request `comes` with a step: it is prefilled here where it has no `first_token`, and else
    adopted. `writer` is lent to stand for unpack_kv; where it isn't, the notebook's own is called.
    """
    own = pool.clone()
    manager = Told(*pool.shape[2:4])
    scheduler = Serving(manager, token_budget, max_running)
    runner: Any = PlaceRunner(own, manager, salt)
    outputs: list[Any] = []
    engine = Engine(GPTConfig(VOCAB, n_positions=32), scheduler, runner, outputs.append)
    seen: list[Seen] = []
    with lending(attempt, {} if writer is None else {"unpack_kv": unpacking(writer)}):
        for step in range(1, steps + 1):
            for request in requests:
                if request["comes"] == step:
                    seen += came(attempt, engine, request)
            if not may_go_on(engine):
                break
            runner.asked.clear()
            outputs.clear()
            engine.step()
            seen += stepped(engine, outputs, f"in step {step}", f"after step {step}")
    return seen


def unpacking(writer: Any) -> Callable[..., None]:
    """A stand-in for unpack_kv: what is to stand in the pool is worked out by whoever lends it."""

    def unpack_kv(pool: Tensor, table: Several[int], start: int, kv: Tensor) -> None:
        pool.copy_(writer.written(pool, list(table), start, kv))

    return unpack_kv


def came(attempt: Attempt, engine: Any, request: dict[str, Any]) -> Iterator[Seen]:
    """What is there once a request has been adopted."""
    if request["first_token"] is None:
        engine.submit(request["prompt"], request["end"] - len(request["prompt"]))
        return
    given = dict(request)
    del given["comes"]
    params = given.pop("params")
    message = Prefilled(**given, params=GREEDY if params is None else SamplingParams(**params))
    number, _ = reserve(engine, message.prompt, message.end)
    manager, after = engine.scheduler.manager, f"after request {number} was adopted"
    manager.told.clear()
    attempt(engine, number, message)
    yield Seen("The pool", engine.runner.kv_cache.cache.pool.clone(), after)
    yield Seen("What `publish` was told, by request,", shown(manager.told), after)
    yield from state(engine, after)


def state(engine: Any, where: str) -> Iterator[Seen]:
    yield Seen("`sequences`, by number,", shown(sorted(engine.sequences)), where)
    yield Seen("`running`, by number,", shown(numbered(engine.scheduler.running)), where)
    yield Seen("`waiting`, by number,", shown(numbered(engine.scheduler.waiting)), where)
    blocks = {request: len(table) for request, table in engine.scheduler.manager.tables.items()}
    yield Seen("The number of blocks, by request,", shown(blocks), where)
    yield from by_number(list(engine.sequences.values()), where)


def may_go_on(engine: Any) -> bool:
    """Whether the engine knows whom the scheduler serves, and the other way round."""
    scheduler = engine.scheduler
    return {*numbered(scheduler.running), *numbered(scheduler.waiting)} == {*engine.sequences}


def stepped(engine: Any, outputs: list[Any], where: str, after: str) -> Iterator[Seen]:
    yield Seen("What the runner is asked for, by request,", shown(engine.runner.asked), where)
    yield outgoing(outputs, where)
    yield from state(engine, after)


# ------------------------------------------------------------------------------------------ leases


def due(attempt: type, seconds: float, events: list[tuple[Any, ...]]) -> list[Seen]:
    """Events: ("hold", request, now) and ("due", now, the requests confirmed)."""
    leases = attempt(seconds)
    seen: list[Seen] = []
    for what, *given in events:
        if what == "hold":
            leases.hold(*given)
        else:
            call = f"of call {len(seen) + 1}, due({', '.join(map(str, given))}),"
            found = leases.due(*given)
            seen.append(Seen("What came", list(found) if isinstance(found, list) else found, call))
    return seen
