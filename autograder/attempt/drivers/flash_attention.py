"""Drivers of lab 12: counts, a running softmax, tiles of slow memory, parts, blocks, gradients."""

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import FrameType, SimpleNamespace
from typing import Any, NamedTuple
from weakref import ref

import torch
from jaxtyping import Float
from torch import Tensor

from autograder.attempt.lent import handle, sealed
from autograder.attempt.plain import kind_of
from autograder.attempt.records import Attempt, Seen, things
from autograder.attempt.tensors import snapshot, tensors_in
from solutions.kernels.slow_memory import fast_numbers_for

# ---------------------------------------------------------------------------------- what is held

TIMES = 3  # how many times a tile of each may be held, because names keep earlier ones
SPARE = 16  # numbers, for the smallest tiles
SHOWN = "fast_numbers load store result"  # of slow memory
DEEPEST = 4  # lists in lists that are looked into


class Holding:
    """Knows how many floats an attempt holds, whenever it asks for more.

    These are the floats that the names of its functions lead to, and the tiles that it was handed,
    as long as they exist. driver: the function that called the attempt. most: how many floats it
    needs at once. has_overflowed: whether it ever held far more. moves: how often each name was
    loaded or stored.
    """

    def __init__(self, driver: Callable[..., Any], most: int) -> None:
        self.driver, self.most, self.has_overflowed = driver, TIMES * most + SPARE, False
        self.handed: list[ref[Tensor]] = []
        self.moves: Counter[str] = Counter()

    def watch(self, memory: Any) -> Any:
        """Look at each load and store, and count the tiles wherever they are kept.

        Returns what an attempt has of the memory. The memory itself reports each move, also if an
        attempt gets past that.
        """
        memory.watch(lambda: self.look(sys._getframe(1)))
        loaded, stored = memory.load, memory.store

        def load(name: str, start: int, end: int) -> Tensor:
            self.moves[str(name)] += 1
            return self.hand(loaded(name, start, end))

        def store(name: str, start: int, tile: Tensor) -> None:
            self.moves[str(name)] += 1
            stored(name, start, tile)

        own = {"load": load, "store": store, "result": memory.result}
        return handle(SimpleNamespace(**own, fast_numbers=memory.fast_numbers), SHOWN)

    def hand(self, tile: Tensor) -> Tensor:
        self.handed.append(ref(tile))
        return tile

    def look(self, frame: FrameType | None) -> None:
        """frame: of the function that loads something, for example."""
        tensors = [tile for one in self.handed if (tile := one()) is not None]
        while frame is not None and frame.f_code is not self.driver.__code__:
            tensors += floats_in(list(frame.f_locals.values()))
            frame = frame.f_back
        storages = [tensor.untyped_storage() for tensor in tensors]
        held = {storage.data_ptr(): storage.nbytes() // 8 for storage in storages}  # views share
        self.has_overflowed |= sum(held.values()) > self.most

    def seen(self, when: str) -> Seen:
        fits, grows = "stays at a few tiles", "grows to far more than a tile of each"
        return Seen("What it keeps in tensors", grows if self.has_overflowed else fits, when)


def floats_in(value: Any) -> Iterator[Tensor]:
    for tensor in tensors_in(value, depth=DEEPEST):
        if tensor.is_floating_point() and tensor.layout == torch.strided and not tensor.is_meta:
            yield tensor


# ------------------------------------------------------------------------------------------ counts


def count_traffic(attempt: Attempt, **sizes: int) -> list[Seen]:
    naive, tiled = things(2, attempt(**sizes), "count_traffic returns two numbers")
    return [Seen("The count of the naive way", naive), Seen("The count of the tiles", tiled)]


# ------------------------------------------------------------------------------ the running softmax


Queries = Float[Tensor, "... q_len head_dim"]
Keys = Float[Tensor, "... k_len head_dim"]
Lses = Float[Tensor, "... q_len"]
Pool = Float[Tensor, "2 blocks heads block_size head_dim"]
Query = Float[Tensor, "heads head_dim"]


class State(NamedTuple):
    """As the notebook's own."""

    peak: Any
    total: Any
    weighted: Any


def absorb(attempt: Attempt, state: list[Tensor], tiles: list[tuple[Tensor, Tensor]]) -> list[Seen]:
    """state: of queries that have seen some keys or none. tiles: scores and values of each."""
    current, seen = State(*state), list[Seen]()
    for number, (scores, values) in enumerate(tiles, 1):
        found = attempt(current, scores, values)
        current = State(*things(3, found, "absorb returns a State"))
        where = f"after tile {number}" if len(tiles) > 1 else ""
        is_state = all(hasattr(found, part) for part in State._fields)
        kind = "is a State" if is_state else f"is {kind_of(found)}"
        parts = [(f"`{part}`", snapshot(getattr(current, part))) for part in State._fields]
        seen += [Seen(*each, where) for each in [*parts, ("What absorb returned", kind)]]
    return seen


# ------------------------------------------------------------------------------------- tile by tile


SIZES = "q_len", "k_len", "head_dim", "block_q", "block_k"


def flash_attention(
    attempt: Attempt,
    memory: Any,
    heads: list[int],
    size: float,
    seed: int,
    **sizes: int,
) -> list[Seen]:
    """heads, size and seed are for the memory, which is lent. sizes: the other arguments."""
    q_len, k_len, head_dim, block_q, block_k = (sizes[name] for name in SIZES)
    tile = min(block_q, q_len), min(block_k, k_len)
    tiles = -(-q_len // block_q), -(-k_len // block_k)
    holding = Holding(flash_attention, math.prod(heads) * fast_numbers_for(head_dim, *tile))
    attempt(holding.watch(memory), q_len, k_len, head_dim, block_q, block_k)
    return [
        Seen("The output that is stored", memory.result("output")),
        Seen("The lse that is stored", memory.result("lse")),
        Seen("Your loop", moved_too_often(holding.moves, *tiles)),
        holding.seen("between loads"),
    ]


def moved_too_often(moves: Mapping[str, int], of_queries: int, of_keys: int) -> str:
    """The first name that was moved more often than there are tiles of it, in words."""
    most = {"queries": of_queries, "keys": of_queries * of_keys, "values": of_queries * of_keys}
    for name, enough in {**most, "output": of_queries, "lse": of_queries}.items():
        if moves[name] > enough:
            verb = "loads" if name in most else "stores"
            return f"{verb} {name!r} {moves[name]} times for {enough} tile{'s' * (enough > 1)}"
    return "moves no tile more often than it must"


# --------------------------------------------------------------------------------------- in parts


def merge(
    attempt: Attempt, outputs: Float[Tensor, "parts ... head_dim"], lses: Float[Tensor, "parts ..."]
) -> list[Seen]:
    return output_and_lse(attempt(outputs, lses), "merge")


def output_and_lse(found: Any, name: str) -> list[Seen]:
    output, lse = things(2, found, f"{name} returns output and lse")
    return [Seen("The output", output), Seen("The lse", lse)]


def split_decode(
    attempt: Attempt, query: Query, keys: Keys, values: Keys, parts: int
) -> list[Seen]:
    """The workers are right; the keys of each are looked at."""
    length, given = keys.shape[1], list[tuple[int, int]]()

    def worker(first: int, last: int) -> tuple[Tensor, Tensor]:
        if first == last:
            raise ValueError(f"worker({first}, {last}) has no keys: don't call workers without.")
        if not 0 <= first < last <= length:
            raise ValueError(f"worker({first}, {last}) is no part of {length} keys.")
        given.append((first, last))
        scores = (keys[:, first:last] @ query[..., None])[..., 0] / query.shape[-1] ** 0.5
        output = scores.softmax(dim=-1)[:, None] @ values[:, first:last]
        return output[:, 0], scores.logsumexp(dim=-1)

    found = attempt(sealed(worker), length, parts)
    times = Counter(key for first, last in given for key in range(first, last))
    wrong = [f"gives key {key} to {times[key]} workers" for key in range(length) if times[key] != 1]
    few, many = "is no more than there are", f"is {len(given)}, more than there are"
    return [
        Seen("The split", [*wrong, "gives each key to one worker"][0]),
        Seen("The number of workers", many if len(given) > parts else few),
        Seen("The longest part", max((last - first for first, last in given), default=0)),
        *output_and_lse(found, "split_decode"),
    ]


# ----------------------------------------------------------------------------------- block by block


def paged_decode(
    attempt: Attempt, query: Query, pool: Pool, block_table: list[int], length: int
) -> list[Seen]:
    """The blocks are handed out one by one; slots that hold no token of the request are noise."""
    heads, block_size, head_dim = pool.shape[2:]
    holding = Holding(paged_decode, heads * fast_numbers_for(head_dim, 1, block_size))
    read, lent = list[int](), list[tuple[Tensor, Tensor]]()

    def lend(part: Tensor) -> Tensor:
        """A copy in the layout of a pool, which is looked at again in the end."""
        strides = head_dim, heads * head_dim, 1
        tile = torch.empty_strided(part.shape, strides, dtype=part.dtype).copy_(part)
        lent.append((part, tile.data))  # shares the memory, and doesn't count as held
        return holding.hand(tile)

    def read_block(block: int) -> tuple[Tensor, ...]:
        holding.look(sys._getframe(1))
        if not 0 <= block < pool.shape[1]:
            raise ValueError(f"The pool has the blocks 0 to {pool.shape[1] - 1}, and no {block}.")
        read.append(int(block))
        return lend(pool[0, block]), lend(pool[1, block])

    output = attempt(query, sealed(read_block), block_table, block_size, length)
    same = [torch.allclose(*both, rtol=0, atol=0, equal_nan=True) for both in lent]
    return [
        Seen("The list of the blocks that were read", sorted(read)),
        Seen("The output", output),
        holding.seen("between two blocks"),
        Seen("The pool", "is as it was" if all(same) else "is changed", "afterwards"),
    ]


# ------------------------------------------------------------------------------------ the gradients


def backward_tile(
    attempt: Attempt,
    queries: Float[Tensor, "... q_len head_dim"],
    keys: Float[Tensor, "... k_len head_dim"],
    values: Float[Tensor, "... k_len head_dim"],
    block_k: int,
    **about_output: Float[Tensor, "... q_len head_dim"] | Float[Tensor, "... q_len"],
) -> list[Seen]:
    """One tile of keys after the other, with `output`, `lse` and `grad_output` over all of them."""
    q_len, k_len, seen = queries.shape[-2], keys.shape[-2], list[Seen]()
    over_all = [about_output[name] for name in ("output", "lse", "grad_output")]
    for first in range(0, k_len, block_k):
        tile = slice(first, first + block_k)
        own = keys[..., tile, :].clone(), values[..., tile, :].clone()
        found = attempt(queries, *own, *over_all, k_len - q_len - first)
        parts = things(3, found, "backward_tile returns three gradients")
        where = f"from tile {first // block_k + 1}" if k_len > block_k else ""
        for name, part in zip(("queries", "keys", "values"), parts, strict=True):
            seen.append(Seen(f"The gradient of the {name}", part, where))
    return seen


# ---------------------------------------------------------------------------------------- any mask

Positions = Callable[[Tensor, Tensor], Tensor]
MASKS: Mapping[str, Positions] = {
    "all": lambda query, key: (query >= 0) & (key >= 0),
    "causal": lambda query, key: key <= query,
    "earlier": lambda query, key: key < query,  # the first query sees nothing
    "window of 3": lambda query, key: (key <= query) & (query - key < 3),
    "prefix of 2": lambda query, key: (key <= query) | ((key < 2) & (query >= 0)),
    "after 7 tokens": lambda query, key: key <= query + 7,
    "texts of 4": lambda query, key: (query // 4 == key // 4) & (key <= query),
    "dots": lambda query, key: (query % 5 == 2) & (key % 5 == 2),  # never at the edge of a tile
}
SCORES: Mapping[str, Callable[..., Tensor]] = {
    "plain": lambda scores, query, key: scores,
    "distance": lambda scores, query, key: scores - 0.3 * (query - key),
    "soft cap": lambda scores, query, key: 2 * torch.tanh(scores / 2),
}


def table_of(found: Any, what: str) -> Seen:
    """A table of whole numbers or of truth values, whatever the type of its numbers."""
    return Seen(what, snapshot(found.long()) if isinstance(found, Tensor) else found)


def tile_kinds(attempt: Attempt, mask: str, **sizes: int) -> list[Seen]:
    return [table_of(attempt(sealed(MASKS[mask]), **sizes), "The table of kinds")]


def flex_attention(
    attempt: Attempt,
    memory: Any,
    heads: list[int],
    size: float,
    seed: int,
    kinds: Tensor,
    mask: str,
    scores: str,
    **sizes: int,
) -> list[Seen]:
    """heads, size and seed are for the memory, which is lent. mask, scores: names of functions."""
    q_len, k_len, head_dim, block_q, block_k = (sizes[name] for name in SIZES)
    tile = min(block_q, q_len), min(block_k, k_len)
    holding = Holding(flex_attention, math.prod(heads) * fast_numbers_for(head_dim, *tile))
    calls = Counter[str]()

    def mask_mod(query: Tensor, key: Tensor) -> Tensor:
        calls["mask_mod"] += 1
        return MASKS[mask](query, key)

    functions = sealed(mask_mod), sealed(SCORES[scores])
    own = (sizes[name] for name in SIZES)
    attempt(holding.watch(memory), *own, kinds, *functions)
    return [
        Seen("The output that is stored", memory.result("output")),
        Seen("The lse that is stored", memory.result("lse")),
        Seen("The number of tiles of keys that are loaded", holding.moves["keys"]),
        Seen("The number of calls of `mask_mod`", calls["mask_mod"]),
        holding.seen("between loads"),
    ]


def in_documents(attempt: Attempt, lengths: list[int], mask: str) -> list[Seen]:
    """What each query of all texts sees, and what those of a tile do."""
    found = attempt(lengths, sealed(MASKS[mask]))
    if not callable(found):
        raise TypeError(f"in_documents returns a mask_mod, a function; this is {kind_of(found)}.")
    rows, columns = torch.arange(sum(lengths))[:, None], torch.arange(sum(lengths))[None]
    whole = table_of(found(rows, columns), "The table of seen keys")
    return [whole, table_of(found(rows[2:], columns[:, 1:3]), "The table of a tile")]


def alibi(attempt: Attempt, scores: Float[Tensor, "... heads queries keys"]) -> list[Seen]:
    """The queries are the last of the tokens."""
    heads, q_len, k_len = scores.shape[-3:]
    found = attempt(heads)
    if not callable(found):
        raise TypeError(f"alibi returns a score_mod, a function; this is {kind_of(found)}.")
    query, key = torch.arange(k_len - q_len, k_len)[:, None], torch.arange(k_len)[None]
    return [Seen("The scores", found(scores, query, key))]
