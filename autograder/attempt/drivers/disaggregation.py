"""Drivers of lab 9: chunks one by one, a queue, gaps, keys and values sent, adoption, leases."""

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from jaxtyping import Float, Int
from torch import Tensor

from autograder.attempt.around import lending
from autograder.attempt.drivers.queues import by_number, numbered, outgoing, shown
from autograder.attempt.drivers.queues import schedule as schedule
from autograder.attempt.lent import sealed
from autograder.attempt.records import Attempt, Seen, one_call
from autograder.attempt.tensors import snapshot
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
ROOMY = 64  # tokens: a wrong answer may store more tokens than the prompt has


class Forwards:
    """Records what each forward of a model receives."""

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
    """Prefill, then one decode step with `next_ids` after it."""
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
        Seen("The cache's `length`", length, "at the end"),
        Seen("The logits of the next decode step", decoded),
    ]


# ----------------------------------------------------------------------------------------- the gaps


token_gaps = one_call(__name__, "token_gaps", "What it returned", "trace request")

# ---------------------------------------------------------------------------- keys and values sent

Pool = Float[Tensor, "2 layers blocks block_size heads head_dim"]
Sent = Float[Tensor, "2 layers tokens heads head_dim"]


def pack_kv(attempt: Attempt, pool: Pool, table: list[int], start: int, end: int) -> list[Seen]:
    """The result is looked at again after everything in the pool has been overwritten."""
    own = pool.clone()
    kv = attempt(own, table, start, end)
    seen = [Seen("What it returned", snapshot(kv)), Seen("The pool", own.clone(), "afterwards")]
    shape = *pool.shape[:2], end - start, *pool.shape[4:]
    if not isinstance(kv, Tensor) or kv.shape != shape or start == end:
        return seen  # and with no token its memory doesn't matter
    own.fill_(-1)
    stretch = "lies in one stretch" if kv.is_contiguous() else "lies in several pieces"
    room = kv.untyped_storage().nbytes() // kv.element_size()
    return [
        *seen,
        Seen("What it returned", stretch, "as memory"),
        Seen("What it returned", f"holds {room} numbers", "with everything else in its memory"),
        Seen("What it returned", kv, "after the pool has been overwritten"),
    ]


def unpack_kv(attempt: Attempt, pool: Pool, table: list[int], start: int, kv: Sent) -> list[Seen]:
    own = pool.clone()
    attempt(own, table, start, kv)
    return [Seen("The pool", own, "afterwards")]


# ---------------------------------------------------------------------------------------- adopting

VOCAB = 50


@dataclass
class Noted:
    """What an engine is seen to do. told: by request, the tokens given to `publish`. asked: by
    request, the chunks of a step that the runner was asked to compute."""

    told: dict[int, list[Any]] = field(default_factory=dict)
    asked: dict[int, Any] = field(default_factory=dict)


def right_manager(noted: Noted, num_blocks: int, block_size: int) -> EngineManager:
    """Return a right manager that notes the tokens given to `publish`."""
    manager: Any = EngineManager(num_blocks, block_size)

    def publish(request: int, token_ids: Several[int], computed: int) -> None:
        """Tokens after the computed ones don't matter."""
        manager.require_known(request)
        noted.told.setdefault(request, []).append(list(token_ids)[:computed])

    manager.publish = sealed(publish)
    return manager


def right_scheduler(manager: EngineManager, token_budget: int, max_running: int) -> Scheduler:
    """Return a right scheduler whose error names a request that it doesn't know."""
    scheduler: Any = Scheduler(manager, token_budget, max_running)
    own = scheduler.retire

    def retire(sequence: Sequence) -> None:
        if sequence not in [*scheduler.running, *scheduler.waiting]:
            raise ValueError(f"Request {sequence.number} ends, and it neither runs nor waits.")
        own(sequence)

    scheduler.retire = sealed(retire)
    return scheduler


def place_runner(pool: Tensor, manager: EngineManager, salt: int, noted: Noted) -> Any:
    """Return a runner whose logits depend only on the newest token and its place."""

    def forward(batch: Iterable[Any]) -> dict[int, Float[Tensor, "wanted vocab"]]:
        return {chunk.request: logits(chunk) for chunk in batch}

    def logits(chunk: Any) -> Float[Tensor, "wanted vocab"]:
        ids, start, wanted = list(chunk.ids), chunk.start, chunk.wanted
        noted.asked[chunk.request] = {"ids": ids, "start": start, "wanted": wanted}
        rows = [logits_at(place, token, salt) for place, token in enumerate(ids, start)]
        return torch.stack(rows)[len(ids) - wanted :]

    cache = SimpleNamespace(cache=SimpleNamespace(pool=pool, manager=manager))
    return SimpleNamespace(kv_cache=cache, forward=sealed(forward))


def logits_at(place: int, token: int, salt: int) -> Float[Tensor, " vocab"]:
    generator = torch.Generator().manual_seed(salt + 1000 * place + token)
    return torch.randn(VOCAB, generator=generator, dtype=torch.float64)


def adopt(
    attempt: Attempt,
    pool: Pool,
    requests: list[dict[str, Any]],
    steps: int,
    salt: int,
    writer: Any = None,
    **limits: int,
) -> list[Seen]:
    """Steps of a right engine, with a runner that has no model.

    A request `comes` with a step. Without a `first_token` it is prefilled here; otherwise it is
    adopted. `writer` is lent to stand for unpack_kv; without it, the notebook's own is called.
    limits: of right_scheduler.
    """
    own, noted = pool.clone(), Noted()
    manager = right_manager(noted, *pool.shape[2:4])
    scheduler = right_scheduler(manager, **limits)
    runner = place_runner(own, manager, salt, noted)
    outputs: list[Any] = []
    engine = Engine(GPTConfig(VOCAB, n_positions=32), scheduler, runner, outputs.append)
    seen: list[Seen] = []
    with lending(attempt, {} if writer is None else {"unpack_kv": unpacking(writer)}):
        for step in range(1, steps + 1):
            for request in requests:
                if request["comes"] == step:
                    seen += came(attempt, engine, own, request, noted)
            if not may_go_on(engine):
                break
            noted.asked.clear()
            outputs.clear()
            engine.step()
            seen += stepped(engine, noted, outputs, f"in step {step}", f"after step {step}")
    return seen


def unpacking(writer: Any) -> Callable[..., None]:
    """A stand-in for unpack_kv: the lender works out what the pool should hold afterwards."""

    def unpack_kv(pool: Tensor, table: Several[int], start: int, kv: Tensor) -> None:
        pool.copy_(writer.written(pool, list(table), start, kv))

    return sealed(unpack_kv)


def came(
    attempt: Attempt, engine: Any, pool: Pool, request: dict[str, Any], noted: Noted
) -> Iterator[Seen]:
    """The state of everything after a request has been adopted, and when it gained its token.

    `gain` sets the count of computed tokens itself, and may free the blocks. So both are looked at
    at the moment when it begins.
    """
    if request["first_token"] is None:
        engine.submit(request["prompt"], request["end"] - len(request["prompt"]))
        return
    given = dict(request)
    del given["comes"]
    params = given.pop("params")
    message = Prefilled(**given, params=GREEDY if params is None else SamplingParams(**params))
    number, _ = reserve(engine, message.prompt, message.end)
    after = f"after request {number} was adopted"
    noted.told.clear()
    gaining: list[Seen] = []
    when = f"when request {number} gains its first new token"

    def note(sequence: Sequence) -> None:
        count = Seen("`num_computed_tokens`", sequence.num_computed_tokens, when)
        gaining.extend([] if gaining else [count, Seen("The pool", pool.clone(), when)])

    with patch.object(Sequence, "extend", noting(Sequence.extend, note)):
        attempt(engine, number, message)
    yield Seen("The pool", pool.clone(), after)
    yield Seen("The tokens given to `publish`, by request,", shown(noted.told), after)
    yield from state(engine, after)
    yield from gaining


def noting(
    extend: Callable[[Sequence, list[int]], list[int]], note: Callable[[Sequence], None]
) -> Callable[[Sequence, list[int]], list[int]]:
    """Notes a sequence before it is extended."""

    def extended(sequence: Sequence, tokens: list[int]) -> list[int]:
        note(sequence)
        return extend(sequence, tokens)

    return sealed(extended)


def state(engine: Any, where: str) -> Iterator[Seen]:
    yield Seen("`sequences`, by number,", shown(sorted(engine.sequences)), where)
    yield Seen("`running`, by number,", shown(numbered(engine.scheduler.running)), where)
    yield Seen("`waiting`, by number,", shown(numbered(engine.scheduler.waiting)), where)
    blocks = {request: len(table) for request, table in engine.scheduler.manager.tables.items()}
    yield Seen("The number of blocks, by request,", shown(blocks), where)
    yield from by_number(list(engine.sequences.values()), where)


def may_go_on(engine: Any) -> bool:
    """Whether the engine and the scheduler know the same requests."""
    scheduler = engine.scheduler
    return {*numbered(scheduler.running), *numbered(scheduler.waiting)} == {*engine.sequences}


def stepped(
    engine: Any, noted: Noted, outputs: list[Any], where: str, after: str
) -> Iterator[Seen]:
    yield Seen("What the runner is asked for, by request,", shown(noted.asked), where)
    yield outgoing(outputs, where)
    yield from state(engine, after)


# ------------------------------------------------------------------------------------------ leases


def due(attempt: type, seconds: float, events: list[tuple[Any, ...]]) -> list[Seen]:
    """Hold leases, ask which are due. Events: ("hold", request, now), ("due", now, confirmed)."""
    leases = attempt(seconds)
    seen: list[Seen] = []
    for what, *given in events:
        if what == "hold":
            leases.hold(*given)
        else:
            call = f"of call {len(seen) + 1}, due({', '.join(map(str, given))}),"
            found = leases.due(*given)
            seen.append(Seen("The result", list(found) if isinstance(found, list) else found, call))
    return seen
