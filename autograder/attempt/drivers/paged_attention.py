"""Drivers of lab 4: a pool's books after every step, slots, a paged cache, and who gives way."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from autograder.attempt.lent import sealed
from autograder.attempt.plain import in_numbers, kind_of
from autograder.attempt.records import Attempt, Seen, one_call, tried
from autograder.attempt.tensors import float_type
from gpt import GPTConfig
from solutions.batching import ContinuousBatcher, Request

Step = tuple[Any, ...]  # the name of a method, and what it is given: ("append", 1)
Steps = list[Step]
State = dict[str, Any]
Fields = dict[str, Any]  # of a GPTConfig
Pool = Float[Tensor, "2 layers blocks block_size heads head_dim"]


# ----------------------------------------------------------------------------- the block manager


def by_hand(
    attempt: type, order: list[int], built: Steps, state: State, steps: Steps, **pool: int
) -> list[Seen]:
    """Put a new manager into a state, so that no method is needed but the one in `steps`."""
    return books_after(in_state(attempt(**pool), state), steps)


def as_built(
    attempt: type, order: list[int], built: Steps, state: State, steps: Steps, **pool: int
) -> list[Seen]:
    """Let a new manager, whose blocks lie in some order, get there by its own methods."""
    manager = with_free_blocks(attempt(**pool), order)
    for method, *given in built:
        getattr(manager, method)(*given)
    return books_after(manager, steps)


def in_state(manager: Any, state: State) -> Any:
    manager.tables.update({request: list(table) for request, table in state["tables"].items()})
    manager.lengths.update(state["lengths"])
    manager.ref_counts[:] = state["ref_counts"]
    return with_free_blocks(manager, state["free_blocks"])


def with_free_blocks(manager: Any, blocks: list[int]) -> Any:
    if not isinstance(manager.free_blocks, deque):
        raise TypeError(
            f"`free_blocks` of a new manager is {kind_of(manager.free_blocks)}; it must be a "
            "deque, from which `take_block` takes the next block with popleft()."
        )
    manager.free_blocks.clear()
    manager.free_blocks.extend(blocks)
    return manager


def books_after(manager: Any, steps: list[Step]) -> list[Seen]:
    """What became of each step, and the books after it."""
    seen = [*books(manager, "at the start")]
    for number, (method, *given) in enumerate(steps, 1):
        call = f"`{method}({', '.join(map(str, given))})`"
        where = f"(step {number})" if len(steps) > 1 else ""
        seen.append(Seen(call, done(manager, method, *given), where))
        seen += books(manager, f"after {call} {where}".strip())
    return seen


def done(manager: Any, method: str, *given: Any) -> str:
    """What became of a call."""
    try:
        returned, how = tried(getattr(manager, method), *given, error="OutOfBlocks")
    except ValueError as error:
        return f"was refused with a ValueError ({error})"
    if method != "append" or how != "went through":
        return how  # the others have nothing to return
    return f"returned {shown(tuple(returned) if isinstance(returned, (list, tuple)) else returned)}"


def books(manager: Any, where: str) -> Iterator[Seen]:
    """What the attributes of a manager say, and what that means for each block."""
    tables, free = manager.tables, blocks_in(manager.free_blocks)
    yield Seen("`tables`", f"holds {requests(tables)}", where)
    yield Seen("`lengths`", f"holds {requests(manager.lengths)}", where)
    for request, length in manager.lengths.items():
        yield Seen(f"`lengths[{request}]`", f"is {shown(length)}", where)
    earlier: dict[int, Any] = {}
    for request, table in tables.items():
        same = [f", the same list as `tables[{other}]`" for other in earlier.get(id(table), [])]
        yield Seen(f"`tables[{request}]`", f"is {shown(table)}{''.join(same)}", where)
        earlier.setdefault(id(table), []).append(request)
    told = f"has {len(manager.ref_counts)} items for {manager.num_blocks} blocks"
    yield Seen("`ref_counts`", told, where)
    for block in range(min(manager.num_blocks, len(manager.ref_counts))):
        holders = [r for r, table in tables.items() for b in blocks_in(table) if b == block]
        count = shown(manager.ref_counts[block])
        state = f"is {whose(holders, free.count(block))}, with a ref count of {count}"
        yield Seen(f"Block {block}", state, where)
    yield Seen("`free_blocks`", f"is {shown(manager.free_blocks)}", where)


def whose(holders: list[Any], times_free: int) -> str:
    """Whether a block is free, and in whose tables: one of the two, if all is well."""
    held = [f"in the table{'s' * (len(holders) > 1)} of {requests(holders)}"] if holders else []
    free = ["free" if times_free == 1 else f"free {times_free} times over"] if times_free else []
    both = " at once" if held and free else ""
    return " and ".join(free + held) + both or "neither free nor in any table"


def requests(numbers: Iterable[Any]) -> str:
    names = sorted(map(str, numbers))
    several = "s" if len(names) > 1 else ""
    return f"request{several} {' and '.join(names)}" if names else "no request"


def blocks_in(blocks: Any) -> list[Any]:
    """What can't be a list of blocks holds none."""
    return list(blocks) if isinstance(blocks, Iterable) else []


def shown(value: Any) -> str:
    """A number or numbers as Python writes them; the kind of any other value."""
    if isinstance(value, deque):
        return f"deque({in_numbers(list(value))})"
    if isinstance(value, set):
        return str(value)
    value = in_numbers(value)
    known = value is None or isinstance(value, (int, float, list, tuple))
    return str(value) if known else kind_of(value)


# ------------------------------------------------------------------------- slots, and the cache


slot_mapping = one_call(
    __name__, "slot_mapping", "The tensor of slots", "block_tables positions block_size"
)


@torch.no_grad()
def attend(
    attempt: type, config: Fields, num_blocks: int, block_size: int, pool: Pool, forwards: list[Any]
) -> list[Seen]:
    """Forwards: the tables and lengths that a manager would have, and the blocks to be copied
    before; the requests that are served; their queries, keys and values, one for every layer."""
    manager = SimpleNamespace(
        num_blocks=num_blocks,
        block_size=block_size,
        require_known=sealed(lambda request_id: None),
        blocks_for=sealed(lambda num_tokens: -(-num_tokens // block_size)),
    )
    cache = attempt(GPTConfig(**config), manager, dtype=float_type(pool))
    cache.pool.copy_(pool)
    memory, seen = cache.pool.data_ptr(), []
    for number, forward in enumerate(forwards, 1):
        for copy in forward["copies"]:
            cache.copy_block(*copy)
        manager.tables = {request: list(table) for request, table in forward["tables"].items()}
        manager.lengths = dict(forward["lengths"])
        new = forward["queries"], forward["keys"], forward["values"]
        cache.select(list(forward["requests"]), new[0].shape[3])
        for layer, (queries, keys, values) in enumerate(zip(*new, strict=True)):
            where = f"layer {layer} of forward {number}"
            output = cache.attend(layer, queries, keys, values)
            same = cache.pool.data_ptr() == memory
            books = manager.tables == forward["tables"] and manager.lengths == forward["lengths"]
            state = "are as they were" if books else "have been changed"
            seen += [
                Seen("The pool of keys", cache.pool[0].clone(), f"after {where}"),
                Seen("The pool of values", cache.pool[1].clone(), f"after {where}"),
                Seen("The output", output, f"of {where}"),
                Seen("The pool", f"is {'the same' if same else 'new'} memory", f"after {where}"),
                Seen("The manager's `tables` and `lengths`", state, f"after {where}"),
            ]
    return seen


# ------------------------------------------------------------------------------------- make_room


def make_room(attempt: Any, state: State, manager: Any, **case: Any) -> list[Seen]:
    """With a manager that is lent in the state of the case."""
    batcher = new_batcher(attempt, **case)
    batcher.manager = batcher.kv_cache.manager = manager
    return room_made(batcher, **case)


def make_room_as_built(attempt: Any, state: State, manager: Any, **case: Any) -> list[Seen]:
    """With the batcher's own manager, put into the state of the case."""
    batcher = new_batcher(attempt, **case)
    in_state(batcher.manager, state)
    return room_made(batcher, **case)


def new_batcher(
    attempt: Any, model: Any, num_blocks: int, block_size: int, prompts: list[list[int]], **_: int
) -> Any:
    return attempt(model, num_blocks, block_size, len(prompts) + 1)


def room_made(
    batcher: Any, prompts: list[list[int]], ended: int, running: int, rounds: int, **built: Any
) -> list[Seen]:
    """Several rounds; after each, the running requests get a token, as a forward pass gives one.

    Before these requests others came that have ended: the first request has the number `ended`. The
    first `running` of them run, the others wait. The batcher's manager holds all tokens of the
    running requests but the newest.
    """
    manager = batcher.manager
    for _ in range(ended):
        batcher.submit([0], 1)
        batcher.waiting.popleft()
    for prompt in prompts:
        batcher.submit(prompt, rounds)
    served = list(batcher.waiting)
    for request in served[:running]:
        batcher.running.append(batcher.waiting.popleft())
        request.num_computed_tokens = len(request.ids) - 1
    seen = []
    for number in range(1, rounds + 1):
        batcher.make_room()
        if not isinstance(batcher, ContinuousBatcher):  # an older notebook's doesn't count them
            for request in batcher.waiting:
                request.num_computed_tokens = 0
        where, held = f"after round {number}" if rounds > 1 else "", manager.lengths
        seen += [
            Seen("`running`, by number,", f"is {shown(numbered(batcher.running))}", where),
            Seen("`waiting`, by number,", f"is {shown(numbered(batcher.waiting))}", where),
            Seen("`preemptions`", batcher.preemptions, where),
            Seen("The manager", f"holds {requests(held)}", where),
            *(Seen(f"The manager's `lengths[{r}]`", f"is {held[r]}", where) for r in held),
            Seen("The number of free blocks", len(manager.free_blocks), where),
            Seen("The `ref_counts`", counted(manager), where),
            Seen("`max_running`", batcher.max_running, where),
        ]
        for request in served:
            whose_text, computed = f"of request {request.number}", request.num_computed_tokens
            seen.append(Seen(f"`ids` {whose_text}", list(request.ids), where))
            seen.append(Seen(f"`num_computed_tokens` {whose_text}", computed, where))
            seen.append(Seen(f"`end` {whose_text}", request.end, where))
            if request in batcher.running:
                request.ids.append(number)
                request.num_computed_tokens += 1
    return seen


def counted(manager: Any) -> str:
    """Whether the ref counts are those of the tables, in words."""
    held = Counter(block for table in manager.tables.values() for block in table)
    same = all(held[block] == refs for block, refs in enumerate(manager.ref_counts))
    return "fit the tables" if same else "don't fit the tables"


def numbered(requests: Any) -> Any:
    """The numbers of the requests, in a list or a deque as they are."""
    if not isinstance(requests, (list, deque)):
        return requests
    return type(requests)(r.number if isinstance(r, Request) else kind_of(r) for r in requests)


# ------------------------------------------------------------------------- pages instead of blocks


def committed_bytes(attempt: Attempt, config: Fields, calls: list[tuple[Any, ...]]) -> list[Seen]:
    """The same requests with several pages and layouts; the size of a number may be left out."""
    return [
        Seen("What it returned", attempt(lengths, GPTConfig(**config), *more), f"for {more}")
        for lengths, *more in calls
    ]


def grow(attempt: type, steps: Steps, **sizes: int) -> list[Seen]:
    """What became of each call, and the books of a manager after it."""
    manager, seen = attempt(**sizes), list[Seen]()
    for number, (method, *given) in enumerate(steps, 1):
        call = f"{method}({', '.join(map(str, given))})"
        row, how = tried(getattr(manager, method), *given, error="OutOfPages")
        result = f"{how}, in row {row}" if method == "admit" and row is not None else how
        seen.append(Seen(f"`{call}`", result, f"(step {number})"))
        for name in ("mapped", "tokens", "free_pages", "maps", "unmaps"):
            where = f"after `{call}` (step {number})"
            seen.append(Seen(f"`{name}`", in_numbers(getattr(manager, name)), where))
    return seen
