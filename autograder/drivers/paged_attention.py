"""Drivers of lab 4: a pool's books after every step, and what a forward leaves in the pool.

An attempt is put into a state that the case describes, so that no method is needed but the one that
is judged. Which of the free blocks is taken is nobody's affair here; the comparison knows it.
"""

from collections import deque
from collections.abc import Callable, Iterable
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gpt import GPTConfig
from solutions.batching import Request

Books = dict[str, Any]  # who holds which blocks, as plain data
Seen = dict[str, Any]


# ----------------------------------------------------------------------------- the block manager


def block_manager(
    attempt: type,
    num_blocks: int,
    block_size: int,
    tables: dict[int, list[int]],
    lengths: dict[int, int],
    ref_counts: list[int],
    free_blocks: list[int],
    steps: list[tuple[Any, ...]],
) -> dict[str, Books]:
    """Steps: the name of a method and what it is given, ("append", 1). Brings back the books as
    they are at the start and after every step, with what became of it."""
    manager = attempt(num_blocks, block_size)
    manager.tables.update({request: list(table) for request, table in tables.items()})
    manager.lengths.update(lengths)
    for block, count in enumerate(ref_counts):
        manager.ref_counts[block] = count
    manager.free_blocks = type(manager.free_blocks)(free_blocks)
    seen = {"the start": {"how": "", "words": "", **books_of(manager), "returned": None}}
    for number, (method, *given) in enumerate(steps, 1):
        call = f"`{method}({', '.join(map(str, given))})`"
        where = f"step {number}, {call}," if len(steps) > 1 else call
        returned, how, words = tried(getattr(manager, method), *given)
        answer = plain_blocks(returned) if method == "append" else None  # the others have none
        seen[where] = {"how": how, "words": words, **books_of(manager), "returned": answer}
    return seen


def tried(method: Callable[..., Any], *given: Any) -> tuple[Any, str, str]:
    """What a method returned, whether it refused, and the words of a ValueError.

    OutOfBlocks is the learner's own class, so its name must do.
    """
    try:
        return method(*given), "went through", ""
    except ValueError as error:
        return None, "raised ValueError", str(error)
    except Exception as error:
        if type(error).__name__ != "OutOfBlocks":
            raise
        return None, "raised OutOfBlocks", ""


def books_of(manager: Any) -> Books:
    """The attributes of a manager. one_list: pairs of requests whose table is the same list."""
    tables = manager.tables.items()
    return {
        "lengths": {request: plain(length) for request, length in manager.lengths.items()},
        "tables": {request: plain_blocks(table) for request, table in tables},
        "ref_counts": tuple(plain(manager.ref_counts[b]) for b in range(manager.num_blocks)),
        "free_blocks": plain_blocks(manager.free_blocks),
        "one_list": [
            (one, other)
            for (one, table), (other, its) in combinations(tables, 2)
            if table is its and isinstance(table, (list, deque))
        ],
    }


def plain_blocks(blocks: Any) -> Any:
    return tuple(map(plain, blocks)) if isinstance(blocks, Iterable) else plain(blocks)


def plain(value: Any) -> Any:
    if value is None or isinstance(value, (int, float, str)):
        return value
    return f"a {type(value).__name__}"


# ------------------------------------------------------------------------- slots, and the cache


def slot_mapping(
    attempt: Callable[..., Any],
    block_tables: Int[Tensor, "batch blocks"],
    positions: Int[Tensor, "batch seq"],
    block_size: int,
) -> Seen:
    return {"The tensor of slots": attempt(block_tables, positions, block_size)}


@torch.no_grad()
def attend(
    attempt: type,
    config: dict[str, Any],
    num_blocks: int,
    block_size: int,
    pool: Float[Tensor, "2 layers blocks block_size heads head_dim"],
    forwards: list[dict[str, Any]],
) -> Seen:
    """Forwards: the slots and the mask that `select` would keep; queries, keys and values of all
    layers; and the blocks that were copied before."""
    manager = SimpleNamespace(num_blocks=num_blocks, block_size=block_size)
    cache = attempt(GPTConfig(**config), manager, dtype=torch.float64)
    cache.pool.copy_(pool)
    seen: Seen = {}
    for number, forward in enumerate(forwards, 1):
        for source, target in forward["copies"]:
            cache.pool[:, :, target] = cache.pool[:, :, source]
        cache.new_slots, cache.all_slots = forward["new_slots"], forward["all_slots"]
        cache.mask = forward["mask"]
        new = zip(forward["queries"], forward["keys"], forward["values"], strict=True)
        for layer, (queries, keys, values) in enumerate(new):
            where = f"forward {number}, layer {layer}"
            output = cache.attend(layer, queries, keys, values)
            seen[f"The pool of keys after {where},"] = cache.pool[0].clone()
            seen[f"The pool of values after {where},"] = cache.pool[1].clone()
            seen[f"The output of {where},"] = output
    return seen


# ------------------------------------------------------------------------------------- make_room


def make_room(
    attempt: type,
    running: list[dict[str, Any]],
    waiting: list[dict[str, Any]],
    rounds: int,
    manager: Any,
    **pool: Any,
) -> Seen:
    """Several rounds; after each, those who run get a token, as a forward gives them one.

    `pool` is the state in which the manager is lent.
    """
    batcher: Any = object.__new__(attempt)
    batcher.manager = RaisesOwn(manager, batcher.make_room)
    batcher.running = [Request(**request) for request in running]
    batcher.waiting = deque(Request(**request) for request in waiting)
    batcher.preemptions, batcher.submitted = 0, len(running) + len(waiting)
    batcher.max_running, batcher.eos_token_id, batcher.outputs = len(running) + 1, None, {}
    seen: Seen = {}
    for number in range(1, rounds + 1):
        batcher.make_room()
        after = f" after round {number}" if rounds > 1 else ""
        seen[f"The running requests{after}, the oldest first,"] = numbers_of(batcher.running)
        seen[f"The waiting requests{after}, the next one first,"] = numbers_of(batcher.waiting)
        seen[f"`preemptions`{after}"] = plain(batcher.preemptions)
        for request in [*batcher.running, *batcher.waiting]:
            seen[f"The `ids` of request {request.number}{after}"] = plain_blocks(request.ids)
        for request in batcher.running:
            request.ids.append(number)
    return seen


def numbers_of(requests: Iterable[Request]) -> tuple[Any, ...]:
    return tuple(plain(request.number) for request in requests)


class RaisesOwn:
    """A manager that raises the learner's own OutOfBlocks, which they may want to catch."""

    def __init__(self, manager: Any, method: Callable[..., Any]) -> None:
        self._manager = manager
        self._own: Any = getattr(method, "__globals__", {}).get("OutOfBlocks")

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._manager, name)
        if self._own is None or not callable(found):
            return found

        def call(*given: Any, **named: Any) -> Any:
            try:
                return found(*given, **named)
            except Exception as error:
                if type(error).__name__ != "OutOfBlocks":
                    raise
                raise self._own(*error.args) from None

        return call
