"""Drivers of lab 11: bytes, grouped heads, a window and its cache, heavy rows, codes, swapping.

Caches go through forward passes of several layers, in chunks, and are looked at after each. Their
size is the memory that their tensors keep alive, so a slice of a larger tensor saves nothing. What
they are given are slices of a larger tensor, as a model's are.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from autograder.attempt.around import lending
from autograder.attempt.lent import sealed
from autograder.attempt.plain import kind_of
from autograder.attempt.records import (
    Attempt,
    Seen,
    form_of,
    one_call,
    things,
    tried,
)
from autograder.attempt.tensors import bytes_of, float_type, snapshot, tensors_in
from gpt import GPTConfig
from solutions.disaggregation import pack_kv, unpack_kv
from solutions.paged_attention import BlockManager, PagedCache

Rows = Float[Tensor, "layers batch heads q_len head_dim"]

# ------------------------------------------------------------------------- bytes, and fewer heads


def kv_bytes_per_token(
    attempt: Attempt, config: dict[str, Any], kv_heads: int, kind: dict[str, int]
) -> list[Seen]:
    """Call it once. kind: `bits` and `group`, as far as the case gives them."""
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
    """Run the steps: ("forward", queries, keys, values), ("truncate", n), ("reorder", rows)."""
    torch.set_default_dtype(float_type(steps))  # for tensors that an attempt makes without a dtype
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
    """One forward pass. most: the rows that a layer may keep after it."""
    for layer, given in enumerate(zip(queries, keys, values, strict=True)):
        where = f"layer {layer} in step {number}"
        output = cache.attend(layer, *as_projected(*given))
        yield Seen("The output", snapshot(output), f"of {where}")
        yield Seen("`length`", cache.length, f"after {where}")
    row = 2 * values[0, :, :, 0].nbytes  # a key and a value, in the whole batch
    rows = memory_of(vars(cache)) / (row * n_layer)
    limit = f"is that of {most} rows at most"
    told = f"is that of {rows:g} rows per layer" if rows > most else limit
    yield Seen("The memory of keys and values", told, f"after step {number}")
    for layer, positions in enumerate(cache.positions):
        where = f"of layer {layer} after step {number}"
        yield Seen(
            "`positions`, of the rows that the next token sees,", seen_next(cache, positions), where
        )
        yield Seen("The memory of `positions`", memory_in_rows(positions, most), where)


def as_projected(*parts: Tensor) -> Iterator[Tensor]:
    """Queries, keys and values as a model hands them over: slices of all that `c_attn` made.

    parts: of [batch, heads, tokens, head_dim], or of one number of heads each.
    """
    together = torch.cat([part.transpose(1, 2) for part in parts], dim=2)
    for part in together.split([part.shape[1] for part in parts], dim=2):
        yield part.transpose(1, 2)


def seen_next(cache: Any, positions: Any) -> Any:
    """Which of the rows' positions the next token sees, in order: more may be held, for a while."""
    if not isinstance(positions, Tensor) or positions.ndim != 2:
        return form_of(positions)
    held = positions[0].sort().values
    return held[(held >= 0) & ((held < cache.sinks) | (held > cache.length - cache.window))]


def memory_in_rows(positions: Any, most: int) -> str:
    """How many positions the memory of some has room for, where these are more than `most`."""
    rows = bytes_of(tensors_in(positions)) // 8
    return f"is that of {rows} rows" if rows > most else f"is that of {most} rows at most"


def memory_of(thing: Any) -> int:
    """Bytes of all memory that the tensors of floats in an object keep alive."""
    return bytes_of(t for t in tensors_in(thing, object, depth=6) if t.is_floating_point())


# ------------------------------------------------------------------------------------- heavy rows


def keep_heavy(attempt: Attempt, mass: Tensor, budget: int, recent: int) -> list[Seen]:
    """Of rows with equal masses either may be kept: then masses are compared instead of rows."""
    rows = attempt(mass, budget, recent)
    distinct = all(len(head.unique()) == len(head) for head in mass)
    if distinct or not is_rows_of(mass, rows):
        return [Seen("The rows that are kept", rows)]
    return [
        Seen("The masses of the rows that are kept", mass.gather(1, rows.long()).sort().values),
        Seen(
            "How often a row comes twice, or before an earlier one,", int((rows.diff() <= 0).sum())
        ),
    ]


def is_rows_of(mass: Tensor, rows: Any) -> bool:
    """Whether these can be rows of each head, however many."""
    if not isinstance(rows, Tensor) or rows.dtype not in (torch.int32, torch.int64):
        return False
    if rows.ndim != 2:
        return False
    return len(rows) == len(mass) and bool(((rows >= 0) & (rows < mass.shape[1])).all())


# ------------------------------------------------------------------------------------------ codes


def channel_keys(
    attempt: type, keys: Float[Tensor, "batch heads tokens head_dim"], sizes: list[int], **kind: int
) -> list[Seen]:
    """Hand the keys over in several calls. sizes: the number of tokens in each call."""
    kept, seen, start = attempt(kind["bits"], kind["group"], kind["recent"]), list[Seen](), 0
    for size in sizes:
        before, new = list(kept.groups), keys[:, :, start : start + size]
        _, own, _ = as_projected(new, new, new)
        kept.append(own)
        start += size
        where = f"after {start} tokens" if start > 1 else "after one token"
        seen += codes_seen(kept, before, where)
    return seen


def codes_seen(kept: Any, before: list[Any], where: str) -> Iterator[Seen]:
    """before: the groups that there were before the last call."""
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
    same = all(was is now for was, now in zip(before, kept.groups, strict=False))
    yield Seen("The earlier groups", "are untouched" if same else "have been made again", where)
    most = bytes_of(tensors_in([kept.groups, kept.waiting], object))
    more = bytes_of(tensors_in(vars(kept), object)) > most
    state = "is more than that of `groups` and `waiting`" if more else "is that of both"
    yield Seen("The memory of all that is held", state, where)


def read_back(kept: Any) -> Any:
    """All keys, or a sentence if `read` can't put the shapes of the groups together."""
    try:
        return kept.read()
    except (RuntimeError, IndexError):
        return "is nothing: the shapes of `groups` and `waiting` don't fit together"


# ---------------------------------------------------------------------------------------- swapping


# Lab 9's own, in this process: lent from the other side they would write to a copy of the pool.
COPIERS = {"pack_kv": pack_kv, "unpack_kv": unpack_kv}


def overwriting(manager: BlockManager, pool: Tensor) -> Callable[[int], None]:
    """Return the `free` of a busy pool: before it returns, others overwrite the freed blocks."""
    free = manager.free

    def freed(request_id: int) -> None:
        free(request_id)
        for block in manager.free_blocks:
            pool[:, :, block] = -1.0

    return sealed(freed)


def a_cache(
    config: dict[str, Any],
    pool: Float[Tensor, "2 layers blocks block_size heads head_dim"],
    order: list[int],
    requests: dict[int, Any],
) -> PagedCache:
    """A cache whose free blocks come in the given order.

    requests: for each, its number of tokens, or as text the request whose fork it is.
    """
    manager: Any = BlockManager(*pool.shape[2:4])
    cache = PagedCache(GPTConfig(**config), manager, dtype=pool.dtype)
    cache.pool.copy_(pool)
    manager.free = overwriting(manager, cache.pool)
    manager.free_blocks.clear()
    manager.free_blocks.extend(order)
    for request, tokens in requests.items():
        if isinstance(tokens, str):
            manager.fork(int(tokens), request)
        else:
            manager.allocate(request, tokens)
    return cache


def swap_out(attempt: type, out: list[int], older: dict[int, Tensor], **about: Any) -> list[Seen]:
    """Swap out the requests of `out` one after the other.

    older: copies that are in the store already. about: what `a_cache` takes.
    """
    cache, seen = a_cache(**about), list[Seen]()
    store: dict[int, Any] = {request: kv.clone() for request, kv in older.items()}
    host = attempt(store)
    for request in out:
        where = f"after request {request} was swapped out"
        with lending(attempt, COPIERS):
            host.swap_out(cache, request)
        seen.append(Seen("`self.store`", same_store(host, store), where))
        seen.append(Seen("What is in the store", in_store(store), where))
        for other, kv in store.items():
            seen.append(Seen(f"`store[{other!r}]`", snapshot(kv), where))
            if isinstance(kv, Tensor):
                numbers = kv.untyped_storage().nbytes() // kv.element_size()
                told = f"holds {numbers} numbers"
                seen.append(Seen(f"The memory of `store[{other!r}]`", told, where))
        seen += books(cache, where)
    return seen


def swap_in(
    attempt: type, steps: list[tuple[str, int]], store: dict[int, Tensor], **about: Any
) -> list[Seen]:
    """Run the steps: ("swap_in", request), or ("free", request) for one that has ended."""
    cache, seen = a_cache(**about), list[Seen]()
    kept = {request: kv.clone() for request, kv in store.items()}
    host = attempt(kept)
    for number, (what, request) in enumerate(steps, 1):
        if what == "free":
            cache.free(request)
            continue
        where = f"after step {number}"
        with lending(attempt, COPIERS):
            _, how = tried(host.swap_in, cache, request, error="OutOfBlocks")
        seen += [
            Seen(f"`swap_in` of request {request}", how, where),
            Seen("`self.store`", same_store(host, kept), where),
            Seen("What is in the store", in_store(kept), where),
            *books(cache, where),
        ]
    return seen


def same_store(host: Any, store: dict[int, Any]) -> str:
    return "is the one that was given" if host.store is store else "has been replaced by another"


def in_store(store: dict[int, Any]) -> str:
    names = " and ".join(sorted(map(repr, store)))
    return f"is request {names}" if names else "is nothing"


def books(cache: PagedCache, where: str) -> Iterator[Seen]:
    """Each request's number of blocks and tokens, and the keys and values in its blocks."""
    manager: Any = cache.manager
    blocks = {request: len(table) for request, table in manager.tables.items()}
    yield Seen("The number of blocks, by request,", dict(sorted(blocks.items())), where)
    yield Seen("`lengths`, by request,", dict(sorted(manager.lengths.items())), where)
    yield Seen("The number of free blocks", len(manager.free_blocks), where)
    yield Seen("The state of all blocks", state_of(manager), where)
    for request, table in sorted(manager.tables.items()):
        length = manager.lengths.get(request, 0)
        rows = cache.pool[:, :, list(table)].flatten(2, 3)[:, :, :length]
        yield Seen(f"The content of the blocks of request {request}", rows, where)


def state_of(manager: Any) -> str:
    """Whether each block is either free, or in as many tables as its ref count says."""
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
