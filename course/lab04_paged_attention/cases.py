"""The exercises of lab 4: the block manager, slots, the paged cache, and preemption."""

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from autograder.attempt.drivers import paged_attention as drivers
from autograder.attempt.drivers.paged_attention import Step
from autograder.judging.draws import LAYERS, draw, normal, prompt_list, steps_in, until
from autograder.judging.exercise import Case, Exercise, Service
from autograder.lending.cached import lend_cached_model
from autograder.lending.ledger import lend_model_and_ledger
from autograder.lending.lent import LentManager
from gpt import GPTConfig
from solutions import paged_attention as reference
from solutions.paged_attention import LAYOUTS

# ------------------------------------------------------------------------------ the block manager


def manager_case(
    generator: torch.Generator,
    label: str,
    block_size: int,
    free: int,
    begun: str,
    asked: str = "",
) -> Case:
    """A manager with `free` blocks more than were taken; then the steps to be judged.

    `order` is that of the free blocks before anything is built, and `state` where it leads to.
    """
    built, steps = steps_in(begun), steps_in(asked)
    roomy = after(reference.BlockManager(100, block_size), built)
    sizes = {"num_blocks": roomy.used_blocks + free, "block_size": block_size}
    order = scattered(generator, sizes["num_blocks"])
    manager = reference.BlockManager(**sizes)
    manager.free_blocks = deque(order)
    state = {
        "tables": after(manager, built).tables,
        "lengths": manager.lengths,
        "ref_counts": manager.ref_counts,
        "free_blocks": list(manager.free_blocks),
    }
    script = {"order": order, "built": built, "state": state, "steps": steps}
    return Case(label, {**sizes, **script})


def scattered(generator: torch.Generator, num_blocks: int) -> list[int]:
    """The blocks of a pool in an order in which none is followed by its neighbor."""

    def drawn() -> list[int]:
        return torch.randperm(num_blocks, generator=generator).tolist()

    return until(lambda order: all(b != a + 1 for a, b in pairwise(order)), drawn)


def after(manager: reference.BlockManager, steps: list[Step]) -> reference.BlockManager:
    for method, *given in steps:
        getattr(manager, method)(*given)
    return manager


def family(generator: torch.Generator, block_size: int, members: int, most: int) -> str:
    """Requests of up to `most` tokens, where each may share a beginning with an earlier one."""
    lengths = [draw(generator, 1, most)]
    steps = [f"allocate 0 {lengths[0]}"]
    for member in range(1, members):
        parent = draw(generator, 0, member - 1)
        if draw(generator, 0, 3):
            more = draw(generator, 0, most - lengths[parent])
            steps += [f"fork {parent} {member}", *[f"append {member}"] * more]
            lengths.append(lengths[parent] + more)
        else:
            lengths.append(draw(generator, 1, most))
            steps.append(f"allocate {member} {lengths[-1]}")
    return ", ".join(steps)


def allocate_cases(generator: torch.Generator) -> list[Case]:
    case = partial(manager_case, generator)
    some = ", ".join(f"allocate {10 + i} {draw(generator, 1, 11)}" for i in range(6))
    other = "allocate 0 7"
    return [
        case("one token, blocks of four", 4, 3, "", "allocate 0 1"),
        case("three tokens, blocks of four", 4, 3, "", "allocate 0 3"),
        case("four tokens, blocks of four", 4, 3, "", "allocate 0 4"),
        case("five tokens, blocks of four", 4, 3, "", "allocate 0 5"),
        case("three tokens, blocks of one", 1, 5, "", "allocate 0 3"),
        case("next to another request", 4, 3, other, "allocate 9 6"),
        case("after a request was freed", 4, 3, f"{other}, allocate 1 3, free 0", "allocate 9 12"),
        case("exactly as many blocks as are free", 4, 3, other, "allocate 9 12"),
        case("one block too few, then fewer tokens", 4, 2, other, "allocate 9 9|8"),
        case("more than the whole pool has room for", 4, 3, "", "allocate 0 40|12"),
        case("no block is free", 4, 0, other, "allocate 9 1"),
        case("seventeen tokens, blocks of sixteen", 16, 3, "", "allocate 0 17"),
        case("eight blocks for one request", 3, 9, "", "allocate 0 23"),
        case("six requests, until the pool is full", 3, 12, "", some),
    ]


def append_cases(generator: torch.Generator) -> list[Case]:
    case = partial(manager_case, generator)

    def alike(length: int) -> str:
        return f"allocate 0 {length}, fork 0 1"

    parted, three = f"{alike(4)}, append 0|0|1|1", f"{alike(7)}, fork 0 2"
    two = "allocate 0 1, allocate 3 2"
    many = family(generator, 3, members=5, most=8)
    turns = f"append {'|'.join(str(draw(generator, 0, 4)) for _ in range(12))}"
    return [
        case("the last block has room", 4, 1, "allocate 0 2", "append 0"),
        case("the token fills its block", 4, 2, "allocate 0 3", "append 0"),
        case("the last block is full", 4, 2, "allocate 0 4", "append 0"),
        case("blocks of one token", 1, 3, "allocate 0 1", "append 0|0"),
        case("a whole block, token by token", 2, 4, two, "append 0|0|0|0|0"),
        case("a shared last block has room", 4, 2, alike(6), "append 1"),
        case("a shared last block is full", 4, 2, alike(4), "append 1"),
        case("a shared beginning, and a last block of its own", 4, 2, parted, "append 1"),
        case("after a fork both append", 4, 2, alike(6), "append 1|0"),
        case("three requests that share append in turn", 3, 4, three, "append 2|0|1"),
        case("two requests that share a full block append twice", 2, 5, alike(2), "append 0|1|1|0"),
        case("no block is free, and none is needed", 4, 0, "allocate 0 3", "append 0"),
        case("no block is free for one of two", 2, 0, "allocate 0 2, allocate 1 1", "append 0|1"),
        case("no block is free for a copy", 4, 0, alike(6), "append 1|0"),
        case("one block is free for two requests that share", 4, 1, alike(5), "append 1|0|1"),
        case("five requests, until the pool is full", 3, 6, many, turns),
    ]


def free_cases(generator: torch.Generator) -> list[Case]:
    case = partial(manager_case, generator)
    two, full = "allocate 0 9, allocate 1 4", "allocate 7 6, allocate 3 1"
    both, three = "allocate 0 6, fork 0 1", "allocate 0 7, fork 0 1|2"
    ends = "allocate 0 4, fork 0 2, append 0|0|0|0, fork 0 1, append 0|1|2|2"
    ones = "allocate 5 2, fork 5 6, append 5|5|6"
    many = family(generator, 2, members=6, most=9)
    order = f"free {'|'.join(map(str, torch.randperm(6, generator=generator).tolist()))}"
    return [
        case("the only request, one block", 4, 1, "allocate 0 3", "free 0"),
        case("one of two requests, three blocks", 4, 1, two, "free 0"),
        case("three full blocks", 2, 0, full, "free 7"),
        case("one of two requests that share all blocks", 4, 2, both, "free 0"),
        case("both requests that share all blocks", 4, 2, both, "free 0|1"),
        case("the child before its parent", 4, 0, both, "free 1|0"),
        case("three requests that share all blocks, in turn", 4, 1, three, "free 1|0|2"),
        case("three requests that share only their beginnings", 4, 1, ends, "free 1|0|2"),
        case("blocks of one token", 1, 1, ones, "free 6|5"),
        case("six requests in any order, until all is free", 2, 2, many, order),
    ]


def fork_cases(generator: torch.Generator) -> list[Case]:
    case = partial(manager_case, generator)
    sharing = "allocate 0 4, fork 0 1, append 0|1|1"
    many = family(generator, 3, members=4, most=8)
    forks = ", ".join(f"fork {draw(generator, 0, child - 1)} {child}" for child in range(4, 8))
    return [
        case("one block with one token", 4, 1, "allocate 0 1", "fork 0 1"),
        case("three blocks, the last one with room", 4, 4, "allocate 0 10", "fork 0 1"),
        case("three full blocks", 2, 4, "allocate 0 6", "fork 0 1"),
        case("no block is free", 4, 0, "allocate 0 6", "fork 0 1"),
        case("one of two requests", 4, 2, "allocate 7 6, allocate 2 3", "fork 7 9"),
        case("two children of one request", 4, 3, "allocate 0 6", "fork 0 1|2"),
        case("a child of a child", 4, 3, "allocate 0 7", "fork 0 1, fork 1 2"),
        case("a request that shares blocks already", 4, 3, sharing, "fork 1 2"),
        case("blocks of one token", 1, 4, "allocate 3 3", "fork 3 4"),
        case("several forks of several requests", 3, 3, many, forks),
    ]


# ------------------------------------------------------------------------- slots, and the cache


def slot_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, block_size: int, tables: Any, positions: list[list[int]]) -> Case:
        tensors = {"block_tables": torch.tensor(tables), "positions": torch.tensor(positions)}
        return Case(label, {**tensors, "block_size": block_size})

    blocks = torch.randperm(40, generator=generator)[:15].view(3, 5).tolist()
    size = draw(generator, 5, 9)
    starts = [draw(generator, 0, 5 * size - 7) for _ in range(3)]
    anywhere = [list(range(start, start + 7)) for start in starts]
    two = [blocks[0][:2], blocks[1][:2]]
    return [
        case("the first token of a text", 4, [[2]], [[0]]),
        case("one token in the middle of the second block", 4, [[3, 1]], [[6]]),
        case("two blocks of three tokens, whole", 3, [[4, 2]], [[0, 1, 2, 3, 4, 5]]),
        case("blocks of one token", 1, [[5, 0, 3, 2]], [[0, 1, 2, 3]]),
        case("around the end of a block", 4, [[6, 2, 9]], [[3, 4, 7, 8]]),
        case("two rows in decode, of different lengths", 4, [[5, 1, 7], [2, 6, 0]], [[9], [2]]),
        case("a table that was padded with 0", 4, [[3, 8], [5, 0]], [[4, 5, 6], [0, 1, 2]]),
        case("two rows that share their first block", 2, [[4, 1], [4, 3]], [[0, 1, 2]] * 2),
        case("positions in any order", 4, two, [[7, 0, 4], [3, 5, 1]]),
        case("three rows that begin anywhere", size, blocks, anywhere),
        case("block 0 at a table's end", 16, [[6001, 0], [0, 7000]], [[17, 3], [31, 0]]),
        case("the ninth block of a text", 64, [list(range(9, 0, -1))], [[8 * 64 + 63, 5]]),
    ]


def attend_cases(generator: torch.Generator) -> list[Case]:
    def case(
        label: str,
        block_size: int,
        num_blocks: int,
        script: str,
        n_layer: int = LAYERS.n_layer,
        opposed: bool = False,
    ) -> Case:
        """The script calls a manager's methods, and runs forwards: "forward 0+1 3", three
        tokens of each of the requests 0 and 1. opposed: every token's own score is far below 0."""
        config = GPTConfig(**asdict(LAYERS) | {"n_layer": n_layer})
        manager = reference.BlockManager(num_blocks, block_size)
        manager.free_blocks = deque(scattered(generator, num_blocks))
        forwards: list[dict[str, Any]] = []
        copies = []
        for what, *given in steps_in(script):
            if what != "forward":
                copies += [copy] if (copy := getattr(manager, what)(*given)) else []
                continue
            requests, q_len = [int(request) for request in str(given[0]).split("+")], given[1]
            rows = n_layer, len(requests), config.n_head, q_len, config.head_dim
            new = {name: normal(generator, *rows) for name in ("queries", "keys", "values")}
            if opposed:
                new["keys"] = -30 * new["queries"]
            tables = {request: list(manager.tables[request]) for request in requests}
            lengths = {request: manager.lengths[request] for request in requests}
            own = {"requests": requests, "tables": tables, "lengths": lengths, "copies": copies}
            forwards.append({**own, **new})
            copies = []
        sizes = {"config": asdict(config), "num_blocks": num_blocks, "block_size": block_size}
        # The pool holds tokens that were stored earlier, and others that are no longer read.
        shape = 2, n_layer, num_blocks, block_size, config.n_head, config.head_dim
        return Case(label, {**sizes, "pool": 2 * normal(generator, *shape), "forwards": forwards})

    some = ", ".join(f"append {draw(generator, 0, 2)}" for _ in range(5))
    decode = "allocate 0 5, forward 0 5, append 0, forward 0 1, append 0, forward 0 1"
    two_others = (
        "allocate 0 6, allocate 1 3, forward 1+0 1, allocate 2 2, allocate 3 6, forward 3+2 1"
    )
    two_prompts = "allocate 0 3, allocate 1 2, forward 0 3, forward 1 2"
    one_of_three = "allocate 0 6, allocate 1 5, allocate 2 4, forward 1 5"
    parting = (
        "allocate 0 6, forward 0 6, fork 0 1, append 0|1, forward 0+1 1, append 0|1, forward 1+0 1"
    )
    three_rows = (
        "allocate 0 3, allocate 1 5, allocate 2 2, forward 0+1+2 2, append 0|1|2, forward 2+0+1 1"
    )
    in_chunks = (
        f"allocate 0 4, forward 0 4, fork 0 1|2, {some}, append 0|1|2|0|1|2, forward 2+0+1 2"
    )
    return [
        case("one layer, one token", 1, 2, "allocate 0 1, forward 0 1", n_layer=1),
        case("a prompt of three tokens in one block", 4, 3, "allocate 0 3, forward 0 3"),
        case("scores far below 0", 4, 4, f"{two_prompts}, append 0|1, forward 0+1 1", opposed=True),
        case("a prompt of five tokens, blocks of two", 2, 6, "allocate 0 5, forward 0 5"),
        case("one new token after four", 3, 4, "allocate 0 5, forward 0 1"),
        case("a chunk of three after a prefix of four", 3, 5, "allocate 0 7, forward 0 3"),
        case("one new token after forty, in a full pool", 4, 11, "allocate 0 41, forward 0 1"),
        case("a prompt, then decode over a block's end", 3, 5, decode),
        case("decode in two rows of different lengths, then in two others", 2, 12, two_others),
        case("one request out of three", 4, 8, one_of_three),
        case("a fork whose two rows diverge in the middle of a block", 4, 6, parting),
        case("blocks of one token, three rows", 1, 16, three_rows),
        case("three rows that share a beginning, in chunks", 3, 16, in_chunks),
    ]


# ------------------------------------------------------------------------------------- make_room


class ReferenceManager(LentManager, reference.BlockManager):
    """The reference's manager in a given state, lent to an attempt that needs one."""

    def __init__(self, num_blocks: int, block_size: int, state: Mapping[str, Any]) -> None:
        super().__init__(num_blocks, block_size)
        self.tables = {request: list(table) for request, table in state["tables"].items()}
        self.lengths, self.ref_counts = dict(state["lengths"]), list(state["ref_counts"])
        self.free_blocks = deque(state["free_blocks"])

    def can_append(self, request_id: int) -> bool:
        self.note_question()
        return super().can_append(request_id)


def lend_model_and_manager(data: Mapping[str, Any]) -> dict[str, Service]:
    manager = ReferenceManager(data["num_blocks"], data["block_size"], data["state"])
    return {**lend_cached_model(data), "manager": manager}


def make_room_cases(generator: torch.Generator) -> list[Case]:
    def case(
        label: str,
        block_size: int,
        running: list[int],
        free: int,
        waiting: int = 0,
        others: int = 0,
        **counts: int,
    ) -> Case:
        """running: how many tokens of each are stored, the oldest first. waiting: how many wait.

        others: how many blocks another request holds. counts: `ended`, how many requests came and
        ended before these, and `rounds`. Requests are numbered as they come.
        """
        counts = {"ended": 0, "running": len(running), "rounds": 1, **counts}
        built = [
            f"allocate {number} {length}" for number, length in enumerate(running, counts["ended"])
        ]
        built += [f"allocate 99 {others * block_size}"] if others else []
        lengths = [length + 1 for length in running] + [3] * waiting
        found = manager_case(generator, label, block_size, free, ", ".join(built)).data
        pool = {name: found[name] for name in ("num_blocks", "block_size", "state")}
        prompts = [prompt_list(generator, length) for length in lengths]
        return Case(label, {"prompts": prompts, **counts, **pool})

    lengths = [draw(generator, 1, 9) for _ in range(4)]
    return [
        case("no request runs", 2, [], 4, waiting=1),
        case("one request, whose block has room", 4, [2], 1),
        case("one request, whose block is full", 4, [4], 1),
        case("three requests, enough blocks", 2, [2, 3, 4], 4),
        case("two requests, after three that have ended", 2, [2, 3], 4, ended=3),
        case("no block is free, and none is needed", 4, [3, 2], 0),
        case("no block is free, and the oldest needs one", 4, [4, 6, 3], 0),
        case("no block is free, and the newest needs one", 4, [3, 2, 4], 0),
        case("one block is free, and two need one", 2, [2, 4], 1),
        case("two requests wait already", 4, [4, 2], 0, waiting=2),
        case("two are preempted", 2, [2, 2, 1, 1], 0, waiting=1),
        case("blocks of one token, so that all need one", 1, [3, 2, 1], 1),
        case("the only running request finds no block", 4, [4], 0, waiting=1, others=1),
        case("three steps, no block free at the first", 2, [3, 2, 3], 0, rounds=3),
        case("four requests, six steps", 3, lengths, 2, waiting=1, rounds=6),
    ]


def of_the_manager(method: str, cases: Callable[[torch.Generator], list[Case]]) -> Exercise:
    name = f"paged_attention.BlockManager.{method}"
    return Exercise(name, drivers.by_hand, cases, as_built=drivers.as_built)


with_manager = partial(Exercise, services=lend_model_and_manager, in_bundle=lend_model_and_ledger)

# ------------------------------------------------------------------------- pages instead of blocks


def committed_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, *lengths: int, **fields: int) -> Case:
        """With pages of a few tokens and of many, in all layouts; once with numbers of 2 bytes."""
        calls = [(list(lengths), page, layout) for page in (64, 1024) for layout in LAYOUTS]
        halves = [(list(lengths), 128, layout, 2) for layout in LAYOUTS]
        config = asdict(LAYERS) | fields
        return Case(label, {"config": config, "calls": [*calls, *halves]})

    some = [draw(generator, 1, 300) for _ in range(5)]
    return [
        case("one token", 1),
        case("pages that are exactly full", 16),
        case("one token more", 17),
        case("two short requests", 3, 5),
        case("five requests, three layers", *some),
        case("five requests, two layers", *some, n_layer=2),
    ]


def grow_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, rows: int, page_tokens: int, num_pages: int, steps: str) -> Case:
        sizes = {"rows": rows, "page_tokens": page_tokens, "num_pages": num_pages}
        return Case(label, {"steps": steps_in(steps), "max_tokens": 40, **sizes})

    def some(label: str, rows: int, page_tokens: int, num_pages: int) -> Case:
        """Thirty calls such as an engine makes; some of them find too few pages."""
        manager = reference.VirtualManager(rows, 40, page_tokens, num_pages)
        steps: list[str] = []
        while len(steps) < 30:
            running = [row for row, tokens in enumerate(manager.tokens) if tokens]
            row = running[draw(generator, 0, len(running) - 1)] if running else 0
            more = min(manager.tokens[row] + (1, 1, 9)[draw(generator, 0, 2)], 40)
            kind = draw(generator, 0, 9) if running else 0
            fresh = f"admit {draw(generator, 1, 30)}"
            steps.append(fresh if kind < 4 else f"grow {row} {more}" if kind < 8 else f"end {row}")
            method, *given = steps_in(steps[-1])[0]
            with suppress(reference.OutOfPages):
                getattr(manager, method)(*given)
        return case(label, rows, page_tokens, num_pages, ", ".join(steps))

    return [
        case("one token", 1, 4, 3, "admit 1"),
        case("a row grows over the end of a page", 1, 4, 3, "admit 3, grow 0 4|5"),
        case("a row grows by several pages", 2, 2, 9, "admit 3, admit 1, grow 0 11"),
        case("one page too few", 1, 4, 2, "admit 5, grow 0 9|8"),
        case("a new request finds pages in its row", 2, 4, 6, "admit 9, end 0, admit 6, grow 0 12"),
        case("an ended row has spare pages", 3, 4, 4, "admit 9, admit 3, end 0, grow 1 9"),
        case("two ended rows, the last one first", 3, 4, 6, "admit 8|8|8, end 0|1, grow 2 13"),
        case("a running row has spare pages", 2, 4, 4, "admit 16, end 0, admit 1, admit 5"),
        case("too few, even with spare pages", 2, 4, 3, "admit 8, end 0, admit 5, admit 9|4"),
        case("a request for fewer tokens", 2, 4, 3, "admit 12, grow 0 3, admit 5, grow 0 5"),
        some("three rows, thirty calls", 3, 4, 9),
        some("three rows, thirty other calls", 3, 4, 9),
        some("five rows, pages of one token", 5, 1, 60),
    ]


EXERCISES = (
    of_the_manager("allocate", allocate_cases),
    of_the_manager("append", append_cases),
    of_the_manager("free", free_cases),
    of_the_manager("fork", fork_cases),
    Exercise("paged_attention.slot_mapping", drivers.slot_mapping, slot_cases),
    Exercise("paged_attention.PagedCache.attend", drivers.attend, attend_cases, whole=("pool",)),
    with_manager(
        "paged_attention.PagedBatcher.make_room",
        *(drivers.make_room, make_room_cases),
        as_built=drivers.make_room_as_built,
    ),
    Exercise("paged_attention.committed_bytes", drivers.committed_bytes, committed_cases),
    Exercise("paged_attention.VirtualManager.grow", drivers.grow, grow_cases),
)
