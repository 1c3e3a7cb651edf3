"""Drivers of lab 11: bytes, shared heads, a window and its cache, heavy rows, codes, swapping.

Caches are driven through forwards of several layers, in chunks, and looked at after each. What they
hold is weighed by the memory that their tensors keep alive: a slice of a larger one saves nothing.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from autograder.drivers.seen import (
    Attempt,
    Seen,
    bytes_of,
    is_out_of_blocks,
    kind_of,
    lending,
    one_call,
    snapshot,
    tensors_in,
    things,
    tried,
)
from gpt import GPTConfig
from solutions.disaggregation import pack_kv, unpack_kv
from solutions.paged_attention import BlockManager, PagedCache

Rows = Float[Tensor, "layers batch heads q_len head_dim"]

# ------------------------------------------------------------------------- bytes, and fewer heads


def kv_bytes_per_token(
    attempt: Attempt, config: dict[str, Any], kv_heads: int, kind: dict[str, int]
) -> list[Seen]:
    """kind: `bits` and `group`, or what is given of them."""
    return [Seen("The number of bytes", attempt(GPTConfig(**config), kv_heads, **kind))]


grouped_attention = one_call(
    __name__, "grouped_attention", "The output", "queries keys values mask"
)


def pool_heads(
    attempt: Attempt, weight: Tensor, bias: Tensor, n_head: int, kv_heads: int
) -> list[Seen]:
    found = attempt(weight, bias, n_head, kv_heads)
    new_weight, new_bias = things(2, found, "pool_heads returns two tensors, weight and bias")
    return [Seen("The weight", new_weight), Seen("The bias", new_bias)]


# --------------------------------------------------------------------------------------- a window


window_mask = one_call(
    __name__, "window_mask", "The mask", "query_positions key_positions window sinks"
)


@torch.no_grad()
def window_cache(
    attempt: type, n_layer: int, window: int, sinks: int, steps: list[tuple[Any, ...]]
) -> list[Seen]:
    """Steps: ("forward", queries, keys, values), ("truncate", n) and ("reorder", rows)."""
    torch.set_default_dtype(torch.float64)  # for what an attempt makes without naming a dtype
    cache = attempt(n_layer, window, sinks)
    seen: list[Seen] = []
    for number, (what, *given) in enumerate(steps, 1):
        match what:
            case "forward":
                seen += forward(cache, number, n_layer, window + sinks, *given)
            case "truncate":
                _, how = tried(cache.truncate, *given)
                seen.append(Seen(f"`truncate({given[0]})`", how, f"in step {number}"))
                seen.append(Seen("`length`", cache.length, f"after step {number}"))
            case "reorder":
                cache.reorder(*given)
    return seen


def forward(
    cache: Any, number: int, n_layer: int, most: int, queries: Rows, keys: Rows, values: Rows
) -> Iterator[Seen]:
    """The caller's tensors are its own: once they have been handed over, they are overwritten."""
    for layer, given in enumerate(zip(queries, keys, values, strict=True)):
        where, own = f"layer {layer} in step {number}", [part.clone() for part in given]
        output = cache.attend(layer, *own)
        yield Seen("The output", snapshot(output), f"of {where}")
        yield Seen("`length`", cache.length, f"after {where}")
    row = 2 * values[0, :, :, 0].nbytes  # a key and a value, in the whole batch
    rows = memory_of(vars(cache)) / (row * n_layer)
    told = f"is that of {rows:g} rows a layer" if rows > most else f"is that of {most} rows at most"
    yield Seen("The memory of keys and values", told, f"after step {number}")


def memory_of(thing: Any) -> int:
    """Bytes of all memory that the tensors of floats in an object keep alive."""
    return bytes_of(t for t in tensors_in(thing, object, depth=6) if t.is_floating_point())


# ------------------------------------------------------------------------------------- heavy rows


keep_heavy = one_call(__name__, "keep_heavy", "The rows that are kept", "mass budget recent")

# ------------------------------------------------------------------------------------------ codes


def channel_keys(
    attempt: type, keys: Float[Tensor, "batch heads tokens head_dim"], sizes: list[int], **kind: int
) -> list[Seen]:
    """The keys arrive in so many calls, of so many tokens each."""
    kept, seen, start = attempt(kind["bits"], kind["group"], kind["recent"]), list[Seen](), 0
    for size in sizes:
        kept.append(keys[:, :, start : start + size].clone())
        start += size
        where = f"after {start} tokens" if start > 1 else "after one token"
        seen += codes_seen(kept, where)
    return seen


def codes_seen(kept: Any, where: str) -> Iterator[Seen]:
    yield Seen("The number of `groups`", len(kept.groups), where)
    for number, codes in enumerate(kept.groups):
        yield Seen(f"`groups[{number}].packed`", codes.packed, where)
        yield Seen(f"`groups[{number}].scale`", codes.scale, where)
        yield Seen(f"`groups[{number}].zero`", codes.zero, where)
    waiting = kept.waiting
    yield Seen("`waiting`", snapshot(waiting), where)
    if isinstance(waiting, Tensor):
        spare = waiting.untyped_storage().nbytes() > waiting.nbytes
        state = "is that of more keys than wait" if spare else "is that of the keys that wait"
        yield Seen("The memory of `waiting`", state, where)
    yield Seen("What `read` returned", read_back(kept), where)


def read_back(kept: Any) -> Any:
    """All keys; where groups have shapes that `read` can't put together, that in words."""
    try:
        return kept.read()
    except (RuntimeError, IndexError):
        return "is nothing: the groups and what waits have shapes that don't fit together"


# ---------------------------------------------------------------------------------------- swapping


# Lab 9's own, here: what is lent from the other side would write to a copy of the pool.
COPIERS = {"pack_kv": pack_kv, "unpack_kv": unpack_kv}


class Reused(BlockManager):
    """A right manager in a busy pool: what becomes free is another request's at once.

    That one has written to it before `free` returns.
    """

    pool: Tensor

    def free(self, request_id: int) -> None:
        super().free(request_id)
        for block in self.free_blocks:
            self.pool[:, :, block] = -1.0


def a_cache(
    config: dict[str, Any],
    pool: Float[Tensor, "2 layers blocks block_size heads head_dim"],
    order: list[int],
    requests: dict[int, Any],
) -> PagedCache:
    """A cache whose free blocks come in an order. Requests: so many tokens, or whose fork it is."""
    manager = Reused(*pool.shape[2:4])
    cache = PagedCache(GPTConfig(**config), manager, dtype=pool.dtype)
    cache.pool.copy_(pool)
    manager.pool = cache.pool
    manager.free_blocks.clear()
    manager.free_blocks.extend(order)
    for request, tokens in requests.items():
        if isinstance(tokens, str):
            manager.fork(int(tokens), request)
        else:
            manager.allocate(request, tokens)
    return cache


def swap_out(attempt: type, out: list[int], **about: Any) -> list[Seen]:
    """The requests of `out` are swapped out, one after the other, of a cache that is told about."""
    cache, store, seen = a_cache(**about), dict[int, Any](), list[Seen]()
    host = attempt(store)
    for request in out:
        where = f"after request {request} was swapped out"
        with lending(attempt, COPIERS):
            host.swap_out(cache, request)
        seen.append(Seen("What is in the store", in_store(store), where))
        for other, kv in store.items():
            seen.append(Seen(f"`store[{other}]`", snapshot(kv), where))
            if isinstance(kv, Tensor):
                numbers = kv.untyped_storage().nbytes() // kv.element_size()
                told = f"holds {numbers} numbers"
                seen.append(Seen(f"The memory of `store[{other}]`", told, where))
        seen += books(cache, where)
    return seen


def swap_in(
    attempt: type, steps: list[tuple[str, int]], store: dict[int, Tensor], **about: Any
) -> list[Seen]:
    """Steps: ("swap_in", request), and ("free", request) of one that has ended meanwhile."""
    cache, seen = a_cache(**about), list[Seen]()
    kept = {request: kv.clone() for request, kv in store.items()}
    host = attempt(kept)
    for number, (what, request) in enumerate(steps, 1):
        if what == "free":
            cache.free(request)
            continue
        where = f"after step {number}"
        with lending(attempt, COPIERS):
            found = done(host.swap_in, cache, request)
        seen += [
            Seen(f"`swap_in` of request {request}", found, where),
            Seen("What is in the store", in_store(kept), where),
            *books(cache, where),
        ]
    return seen


def done(method: Callable[..., Any], *given: Any) -> str:
    """What became of a call."""
    try:
        method(*given)
    except Exception as error:
        if is_out_of_blocks(error):
            return "was refused with OutOfBlocks"
        raise
    return "went through"


def in_store(store: dict[int, Any]) -> str:
    names = " and ".join(str(request) for request in sorted(store))
    return f"is request {names}" if names else "is nothing"


def books(cache: PagedCache, where: str) -> Iterator[Seen]:
    """Who has how many blocks and tokens, and which keys and values lie in them."""
    manager: Any = cache.manager
    blocks = {request: len(table) for request, table in manager.tables.items()}
    yield Seen("The number of blocks, by request,", dict(sorted(blocks.items())), where)
    yield Seen("`lengths`, by request,", dict(sorted(manager.lengths.items())), where)
    yield Seen("The number of free blocks", len(manager.free_blocks), where)
    yield Seen("The state of all blocks", state_of(manager), where)
    for request, table in sorted(manager.tables.items()):
        length = manager.lengths.get(request, 0)
        rows = cache.pool[:, :, list(table)].flatten(2, 3)[:, :, :length]
        yield Seen(f"What lies in the blocks of request {request}", rows, where)


def state_of(manager: Any) -> str:
    """Whether each block is free, or in as many tables as its ref count says."""
    held = [block for table in manager.tables.values() for block in blocks_in(table)]
    counts = [held.count(block) for block in range(manager.num_blocks)]
    free = sorted(blocks_in(manager.free_blocks))
    if list(manager.ref_counts) != counts:
        return "is wrong: their ref counts are not those of the tables"
    if free != [block for block, count in enumerate(counts) if count == 0]:
        return "is wrong: some are neither free nor in a table, or both"
    return "is in order"


def blocks_in(blocks: Any) -> list[Any]:
    return list(blocks) if isinstance(blocks, Iterable) else [kind_of(blocks)]
