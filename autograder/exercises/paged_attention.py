"""The exercises of lab 4: the block manager, slots, the paged cache, and preemption."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import torch

from autograder.compare import first, same_number
from autograder.drivers import paged_attention as drivers
from autograder.drivers.paged_attention import Books, books_of
from autograder.exercise import Case, Exercise
from autograder.exercises.kv_cache import draw, normal, same_seen
from autograder.misconceptions import paged_attention as misconceptions
from gpt import GPTConfig
from solutions import paged_attention as reference

Table = tuple[list[int], int]  # the blocks of a request, and how many tokens it has

# ---------------------------------------------------------------- what a case begins with: a pool


def pool(
    generator: torch.Generator, block_size: int, requests: Mapping[int, Table], free: int
) -> dict[str, Any]:
    """The state of a manager that holds `requests`, and `free` blocks more.

    The requests number their blocks from 0. They get other numbers here, which follow no order.
    """
    num_blocks = len({block for table, _ in requests.values() for block in table}) + free
    numbers = torch.randperm(num_blocks, generator=generator).tolist()
    tables = {request: [numbers[b] for b in table] for request, (table, _) in requests.items()}
    held = [block for table in tables.values() for block in table]
    return {
        "num_blocks": num_blocks,
        "block_size": block_size,
        "tables": tables,
        "lengths": {request: length for request, (_, length) in requests.items()},
        "ref_counts": [held.count(block) for block in range(num_blocks)],
        "free_blocks": numbers[num_blocks - free :],
    }


def family(
    generator: torch.Generator, block_size: int, members: int, most: int
) -> dict[int, Table]:
    """Requests of up to `most` tokens, where each may share a beginning with an earlier one."""
    manager = reference.BlockManager(members * most, block_size)
    manager.allocate(0, draw(generator, 1, most))
    for member in range(1, members):
        if draw(generator, 0, 3):
            manager.fork(draw(generator, 0, member - 1), member)
            for _ in range(draw(generator, 0, most - manager.lengths[member])):
                manager.append(member)
        else:
            manager.allocate(member, draw(generator, 1, most))
    held = sorted({block for table in manager.tables.values() for block in table})
    return {
        request: ([held.index(block) for block in table], manager.lengths[request])
        for request, table in manager.tables.items()
    }


def manager_case(label: str, state: dict[str, Any], *steps: tuple[Any, ...]) -> Case:
    return Case(label, {**state, "steps": list(steps)})


# --------------------------------------------------------------- whether two managers did the same


Names = dict[Any, Any]  # by block; those that are held from the start are named by their number


def same_books(got: Any, expected: Any) -> str | None:
    """The first step after which the books differ, other than in which free block was taken."""
    got, expected = got["returned"], expected["returned"]
    mine, theirs = named(got), named(expected)
    for where in expected:
        if told(got[where], mine[where]) != told(expected[where], theirs[where]):
            return different(where, (got[where], mine[where]), (expected[where], theirs[where]))
    return None


def named(seen: Mapping[str, Books]) -> dict[str, Names]:
    """The names of all blocks that are held after a step or were held before it.

    Whichever free block is taken is right, so a block is named by the step that put it into a
    table, and keeps its name until it is in no table.
    """
    names: dict[str, Names] = {}
    before: Names = {}
    for step, (where, books) in enumerate(seen.items()):
        now: Names = {}
        for block, _ in held_in(books):
            fresh = f"new {step}.{len(now)}" if step else block
            now.setdefault(block, before.get(block, fresh))
        names[where] = {**before, **now}
        before = now
    return names


def held_in(books: Books) -> list[tuple[Any, Any]]:
    """Every place in a table: the block there, and the request; in the order of the requests."""
    tables = books["tables"]
    return [(b, request) for request in sorted(tables, key=str) for b in listed(tables[request])]


def listed(blocks: Any) -> tuple[Any, ...]:
    """What can't be a list of blocks holds none."""
    return blocks if isinstance(blocks, tuple) else ()


def told(books: Books, names: Names) -> list[Any]:
    """All that the books say, by the blocks' names."""
    held, free = [block for block, _ in held_in(books)], listed(books["free_blocks"])
    counts = dict(enumerate(books["ref_counts"]))
    blocks = [
        str((names[b] if b in held else "unused", counts.get(b), held.count(b), free.count(b)))
        for b in {*counts, *held, *free}
    ]
    tables = {request: renamed(table, names) for request, table in books["tables"].items()}
    returned = renamed(books["returned"], names)
    return [books["how"], returned, books["lengths"], tables, books["one_list"], sorted(blocks)]


def renamed(blocks: Any, names: Names) -> Any:
    return tuple(names.get(b, b) for b in blocks) if isinstance(blocks, tuple) else blocks


SHOULD = {
    "went through": "should have gone through",
    "raised OutOfBlocks": "should have raised OutOfBlocks",
    "raised ValueError": "should have raised ValueError",
}


def different(where: str, got: tuple[Books, Names], expected: tuple[Books, Names]) -> str:
    """One sentence about a step after which the books are told otherwise."""
    (mine, names), theirs = got, expected[0]
    call = where[0].upper() + where[1:]
    if mine["how"] != theirs["how"]:
        words = f" ({mine['words']})" if mine["how"] == "raised ValueError" else ""
        return f"{call} {mine['how']}{words}; it {SHOULD[theirs['how']]}."
    difference = (
        next(broken(mine), None)
        or other_lengths(mine["lengths"], theirs["lengths"])
        or other_tables(got, expected)
    )
    if difference is not None:
        return f"After {where.rstrip(',')}, {difference}"
    number = {name: block for block, name in names.items()}
    wanted = renamed(renamed(theirs["returned"], expected[1]), number)
    return f"{call} returned {mine['returned']}; expected {wanted}."


def broken(books: Books) -> Iterator[str]:
    """What no books may say, whatever has happened."""
    tables, lengths, free = books["tables"], books["lengths"], listed(books["free_blocks"])
    for request in sorted({*tables, *lengths}, key=str):
        if request not in lengths:
            yield f"request {request} has a block table and no length."
        elif request not in tables:
            yield f"request {request} has a length and no block table."
        elif not isinstance(tables[request], tuple):
            yield f"the block table of request {request} is {tables[request]}, not a list."
    for one, other in books["one_list"]:
        yield (
            f"requests {one} and {other} have the same list for a table: what is appended to one "
            "is appended to the other."
        )
    held = held_in(books)
    for block, request in held:
        if block not in range(len(books["ref_counts"])):
            yield f"the table of request {request} holds {block}, which is no block of the pool."
        if held.count((block, request)) > 1:
            yield f"block {block} is in the table of request {request} more than once."
        if block in free:
            yield f"block {block} is free and in the table of request {request} at once."
    for block in free:
        if block not in range(len(books["ref_counts"])):
            yield f"{block} is among the free blocks, and no block of the pool."
    for block, count in enumerate(books["ref_counts"]):
        holders = [request for other, request in held if other == block]
        if free.count(block) > 1:
            yield f"block {block} is among the free blocks {free.count(block)} times."
        if not holders and block not in free:
            yield f"block {block} is neither free nor in any table: it is lost to the pool."
        if count != len(holders):
            yield f"block {block} has a ref count of {count} and is in {tables_of(holders)}."


def tables_of(requests: list[Any]) -> str:
    if not requests:
        return "no table"
    several = "tables of requests" if len(requests) > 1 else "table of request"
    return f"the {several} {', '.join(map(str, requests))}"


def other_lengths(got: Mapping[Any, Any], expected: Mapping[Any, Any]) -> str | None:
    for request in sorted({*got, *expected}, key=str):
        if request not in got:
            return f"the manager knows no request {request}; it should hold it."
        if request not in expected:
            return f"the manager still holds request {request}; it should have forgotten it."
        if got[request] != expected[request]:
            return f"`lengths[{request}]` is {got[request]}; expected {expected[request]}."
    return None


def other_tables(got: tuple[Books, Names], expected: tuple[Books, Names]) -> str | None:
    (mine, names), (theirs, their_names) = got, expected
    for request, table in mine["tables"].items():
        wanted = listed(theirs["tables"].get(request))
        if len(table) != len(wanted):
            has = f"{counted(len(table), 'block')} for {counted(mine['lengths'][request], 'token')}"
            return f"request {request} has {has}; expected {counted(len(wanted), 'block')}."
        for i, (block, other) in enumerate(zip(table, wanted, strict=True)):
            name = their_names[other]
            if names[block] != name:
                should = "one that was free" if isinstance(name, str) else f"block {name}"
                return f"`tables[{request}][{i}]` is block {block}; expected {should}."
    return None


def counted(number: Any, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


# ------------------------------------------------------------------------- BlockManager.allocate


def allocate_cases(generator: torch.Generator) -> list[Case]:
    def case(
        label: str,
        block_size: int,
        requests: dict[int, Table],
        free: int,
        *wanted: tuple[int, int],
    ) -> Case:
        state = pool(generator, block_size, requests, free)
        return manager_case(label, state, *(("allocate", *one) for one in wanted))

    shared: dict[int, Table] = {1: ([0, 1], 5), 2: ([0, 1], 5)}
    some = [(10 + i, draw(generator, 1, 11)) for i in range(8)]
    return [
        case("one token, blocks of four", 4, {}, 3, (0, 1)),
        case("three tokens, blocks of four", 4, {}, 3, (0, 3)),
        case("four tokens, blocks of four", 4, {}, 3, (0, 4)),
        case("five tokens, blocks of four", 4, {}, 3, (0, 5)),
        case("three tokens, blocks of one", 1, {}, 5, (0, 3)),
        case("beside another request", 4, {0: ([0, 1], 7)}, 3, (9, 6)),
        case("exactly as many blocks as are free", 2, {0: ([0, 1], 3)}, 3, (9, 6)),
        case("one block too few, then fewer tokens", 2, {0: ([0, 1], 3)}, 2, (9, 5), (9, 4)),
        case("more tokens than the whole pool has room for", 4, {}, 3, (0, 40), (0, 12)),
        case("no block is free", 2, {0: ([0, 1], 4)}, 0, (9, 1)),
        case("beside two requests that share blocks", 3, shared, 3, (7, 4), (8, 3)),
        case("eight requests, until the pool is full", 3, {}, 16, *some),
    ]


ALLOCATE = Exercise(
    name="paged_attention.BlockManager.allocate",
    lab="paged_attention",
    title="Blocks for a prompt",
    points=3,
    difficulty=2,
    minutes=15,
    place="What a server does when it admits a request: it takes what the prompt needs, not what "
    "the text may grow to.",
    hints=(
        (
            "How many blocks do the tokens need, and how many are free? What must be left as it "
            "was where the second number is smaller?"
        ),
        (
            "`self.blocks_for(num_tokens)` rounds up. Compare it with the number of free blocks "
            "before you take any: a block that was taken for a request that gets no table is lost. "
            "`self.take_block()` takes one and sets its ref count. The table is a list of blocks "
            "in the order of the tokens; `lengths` counts tokens, not blocks."
        ),
        (
            "    needed = self.blocks_for(num_tokens)\n"
            "    if needed > ...:\n"
            "        raise OutOfBlocks(...)\n"
            "    self.tables[request_id] = [self.take_block() for _ in range(...)]\n"
            "    self.lengths[request_id] = ..."
        ),
    ),
    reference=reference.BlockManager,
    driver=drivers.block_manager,
    cases=allocate_cases,
    compare=same_books,
    misconceptions=tuple(misconceptions.ALLOCATE),
)


# --------------------------------------------------------------------------- BlockManager.append


def append_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, block_size: int, requests: dict[int, Table], free: int, *to: int) -> Case:
        state = pool(generator, block_size, requests, free)
        return manager_case(label, state, *(("append", request) for request in to))

    def alike(table: list[int], length: int, holders: int = 2) -> dict[int, Table]:
        return dict.fromkeys(range(holders), (table, length))

    many = family(generator, 3, members=5, most=8)
    turns = [draw(generator, 0, 4) for _ in range(16)]
    parts = {0: ([0, 1], 6), 1: ([0, 2], 6)}
    return [
        case("the last block has room", 4, {0: ([0], 2)}, 1, 0),
        case("the token fills its block", 4, {0: ([0], 3)}, 2, 0),
        case("the last block is full", 4, {0: ([0], 4)}, 2, 0),
        case("blocks of one token", 1, {0: ([0], 1)}, 3, 0, 0),
        case("a whole block, token by token", 2, {0: ([0], 1), 3: ([1], 2)}, 4, 0, 0, 0, 0, 0),
        case("a shared last block has room", 4, alike([0, 1], 6), 2, 1),
        case("a shared last block is full", 4, alike([0], 4), 2, 1),
        case("a shared beginning, and a last block of its own", 4, parts, 2, 1),
        case("after a fork both append", 4, alike([0, 1], 6), 2, 1, 0),
        case("three who share append in turn", 3, alike([0, 1, 2], 7, holders=3), 4, 2, 0, 1),
        case("two who share a full block append twice", 2, alike([0], 2), 5, 0, 1, 1, 0),
        case("no block is free, and none is needed", 4, {0: ([0], 3)}, 0, 0),
        case("no block is free for one of two", 2, {0: ([0], 2), 1: ([1], 1)}, 0, 0, 1),
        case("no block is free for a copy", 4, alike([0, 1], 6), 0, 1, 0),
        case("one block is free for two who share", 4, alike([0, 1], 5), 1, 1, 0, 1),
        case("five requests, until the pool is full", 3, many, 6, *turns),
    ]


APPEND = Exercise(
    name="paged_attention.BlockManager.append",
    lab="paged_attention",
    title="One more token, and copy-on-write",
    points=4,
    difficulty=3,
    minutes=20,
    place="What every decode step asks for, once for each request.",
    hints=(
        (
            "There are three situations: the last block is full; it has room but others hold it "
            "too; it has room and is the request's own. In which is a block needed, and where in "
            "the table does it go?"
        ),
        (
            "The last block is full where `length % self.block_size` is 0: append a new block to "
            "the table, whether the full one is shared or not, for nobody writes into a full one. "
            "Otherwise, where its ref count is above 1, the new block takes its place, and the old "
            "one loses a holder. `self.take_block()` raises OutOfBlocks by itself; call it before "
            "you change anything. The length grows in every case."
        ),
        (
            "    copy = None\n"
            "    if length % self.block_size == 0:\n"
            "        table.append(...)\n"
            "    elif self.ref_counts[...] > 1:\n"
            "        copy = table[-1], self.take_block()\n"
            "        ...                           # one holder fewer for the old block\n"
            "        table[-1] = ...\n"
            "    self.lengths[request_id] += 1\n"
            "    return copy"
        ),
    ),
    reference=reference.BlockManager,
    driver=drivers.block_manager,
    cases=append_cases,
    compare=same_books,
    misconceptions=tuple(misconceptions.APPEND),
)


# ----------------------------------------------------------------------------- BlockManager.free


def free_cases(generator: torch.Generator) -> list[Case]:
    def case(
        label: str, block_size: int, requests: dict[int, Table], free: int, *gone: int
    ) -> Case:
        state = pool(generator, block_size, requests, free)
        return manager_case(label, state, *(("free", request) for request in gone))

    both: dict[int, Table] = {0: ([0, 1], 6), 1: ([0, 1], 6)}
    three: dict[int, Table] = {request: ([0, 1], 7) for request in (0, 1, 2)}
    ends: dict[int, Table] = {0: ([0, 1, 2], 9), 1: ([0, 1, 3], 12), 2: ([0, 4], 8)}
    many = family(generator, 2, members=6, most=9)
    order = torch.randperm(6, generator=generator).tolist()
    return [
        case("the only request, one block", 4, {0: ([0], 3)}, 1, 0),
        case("one of two requests, three blocks", 4, {0: ([0, 1, 2], 9), 1: ([3], 4)}, 1, 0),
        case("three full blocks", 2, {7: ([0, 1, 2], 6), 3: ([3], 1)}, 0, 7),
        case("one of two who share all blocks", 4, both, 2, 0),
        case("both who share all blocks", 4, both, 2, 0, 1),
        case("the child before its parent", 4, both, 0, 1, 0),
        case("three who share all blocks, in turn", 4, three, 1, 1, 0, 2),
        case("three who share only their beginnings", 4, ends, 1, 1, 0, 2),
        case("blocks of one token", 1, {5: ([0, 1, 2, 3], 4), 6: ([0, 1, 4], 3)}, 1, 6, 5),
        case("six requests in any order, until all is free", 2, many, 2, *order),
    ]


FREE = Exercise(
    name="paged_attention.BlockManager.free",
    lab="paged_attention",
    title="Give the blocks back",
    points=2,
    difficulty=2,
    minutes=10,
    place="What happens when a request has ended or is preempted; a block lost here is lost until "
    "the server is started again.",
    hints=(
        (
            "Which of its blocks does the request hold alone, and how would you know? What becomes "
            "of the others?"
        ),
        (
            "Go through the whole table. Every block has one holder fewer; where none is left, it "
            "goes among the free ones, once. Then the request is in neither `tables` nor `lengths`."
        ),
        (
            "    for block in self.tables.pop(request_id):\n"
            "        self.ref_counts[block] -= ...\n"
            "        if ...:\n"
            "            self.free_blocks.append(block)\n"
            "    ...                               # and its length"
        ),
    ),
    reference=reference.BlockManager,
    driver=drivers.block_manager,
    cases=free_cases,
    compare=same_books,
    misconceptions=tuple(misconceptions.FREE),
)


# ----------------------------------------------------------------------------- BlockManager.fork


def fork_cases(generator: torch.Generator) -> list[Case]:
    def case(
        label: str,
        block_size: int,
        requests: dict[int, Table],
        free: int,
        *forks: tuple[int, int],
    ) -> Case:
        state = pool(generator, block_size, requests, free)
        return manager_case(label, state, *(("fork", *fork) for fork in forks))

    many = family(generator, 3, members=4, most=8)
    forks = [(draw(generator, 0, child - 1), child) for child in range(4, 9)]
    shared: dict[int, Table] = {0: ([0, 1], 5), 1: ([0, 2], 6)}
    return [
        case("one block with one token", 4, {0: ([0], 1)}, 1, (0, 1)),
        case("three blocks, the last one with room", 4, {0: ([0, 1, 2], 10)}, 4, (0, 1)),
        case("three full blocks", 2, {0: ([0, 1, 2], 6)}, 4, (0, 1)),
        case("no block is free", 4, {0: ([0, 1], 6)}, 0, (0, 1)),
        case("one of two requests", 4, {7: ([0, 1], 6), 2: ([2], 3)}, 2, (7, 9)),
        case("two children of one request", 4, {0: ([0, 1], 6)}, 3, (0, 1), (0, 2)),
        case("a child of a child", 4, {0: ([0, 1], 7)}, 3, (0, 1), (1, 2)),
        case("a request that shares blocks already", 4, shared, 3, (1, 2)),
        case("blocks of one token", 1, {3: ([0, 1, 2], 3)}, 4, (3, 4)),
        case("several forks of several requests", 3, many, 3, *forks),
    ]


FORK = Exercise(
    name="paged_attention.BlockManager.fork",
    lab="paged_attention",
    title="Share every block",
    points=2,
    difficulty=1,
    minutes=5,
    place="How several samples of one prompt, or the beams of a search, hold it only once.",
    hints=(
        (
            "A fork takes no memory. What does the child need to know, and what must be known "
            "about every block from now on?"
        ),
        (
            "The child gets the same blocks in the same order, in a list of its own, for the two "
            "tables will soon differ; and the same length. Every one of the blocks has one holder "
            "more, the last one too."
        ),
        (
            "    self.tables[child_id] = list(...)\n"
            "    self.lengths[child_id] = ...\n"
            "    for block in ...:\n"
            "        self.ref_counts[block] += ..."
        ),
    ),
    reference=reference.BlockManager,
    driver=drivers.block_manager,
    cases=fork_cases,
    compare=same_books,
    misconceptions=tuple(misconceptions.FORK),
)


# ---------------------------------------------------------------------------------- slot_mapping


def slot_cases(generator: torch.Generator) -> list[Case]:
    def case(
        label: str, block_size: int, tables: list[list[int]], positions: list[list[int]]
    ) -> Case:
        tensors = {"block_tables": torch.tensor(tables), "positions": torch.tensor(positions)}
        return Case(label, {**tensors, "block_size": block_size})

    blocks = torch.randperm(40, generator=generator)[:15].view(3, 5).tolist()
    block_size = draw(generator, 5, 9)
    starts = [draw(generator, 0, 5 * block_size - 7) for _ in range(3)]
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
        case(
            "three rows that begin anywhere",
            block_size,
            blocks,
            [list(range(start, start + 7)) for start in starts],
        ),
    ]


SLOTS = Exercise(
    name="paged_attention.slot_mapping",
    lab="paged_attention",
    title="From a position to its slot",
    points=2,
    difficulty=2,
    minutes=10,
    place="The page table of the engine: the only place where a token's position becomes an "
    "address.",
    hints=(
        (
            "Take block_size 4 and position 6. Which entry of the block table tells where it lies, "
            "and at which place within that block?"
        ),
        (
            "`positions // block_size` is the entry to read in the row's own table, and "
            "`block_tables.gather(1, entries)` reads them for all rows at once. A block has "
            "`block_size` slots, so block b begins at slot `b * block_size`; the rest of the "
            "division, `positions % block_size`, is the place within it."
        ),
        ("    blocks = block_tables.gather(1, ...)\n    return blocks * ... + positions % ..."),
    ),
    reference=reference.slot_mapping,
    driver=drivers.slot_mapping,
    cases=slot_cases,
    compare=same_seen,
    misconceptions=tuple(misconceptions.SLOTS),
)


# ------------------------------------------------------------------------------ PagedCache.attend

# Heads, head_dim and layers differ from each other and mostly from rows and tokens, so that two
# dimensions which are taken for one another don't fit.
CONFIG = GPTConfig(vocab_size=11, n_positions=32, n_embd=10, n_layer=3, n_head=2)


def attend_cases(generator: torch.Generator) -> list[Case]:
    def case(
        label: str, block_size: int, num_blocks: int, *script: tuple[Any, ...], n_layer: int = 3
    ) -> Case:
        """The script calls a manager's methods, and runs forwards: ("forward", requests, q_len)."""
        config = GPTConfig(**asdict(CONFIG) | {"n_layer": n_layer})
        manager = reference.BlockManager(num_blocks, block_size)
        manager.free_blocks = deque(torch.randperm(num_blocks, generator=generator).tolist())
        cache = reference.PagedCache(config, manager)
        forwards: list[dict[str, Any]] = []
        copies = []
        for what, *given in script:
            if what != "forward":
                copies += [copy] if (copy := getattr(manager, what)(*given)) else []
                continue
            requests, q_len = given
            cache.select(requests, q_len)
            shape = n_layer, len(requests), config.n_head, q_len, config.head_dim
            new = {name: normal(generator, *shape) for name in ("queries", "keys", "values")}
            kept = {"new_slots": cache.new_slots, "all_slots": cache.all_slots, "mask": cache.mask}
            forwards.append({**new, **kept, "copies": copies})
            copies = []
        data = {"config": asdict(config), "num_blocks": num_blocks, "block_size": block_size}
        earlier = 2 * normal(generator, *cache.pool.shape)  # of tokens, or of nobody
        return Case(label, {**data, "pool": earlier, "forwards": forwards})

    some = [("append", draw(generator, 0, 2)) for _ in range(5)]
    return [
        case("one layer, one token", 1, 2, ("allocate", 0, 1), ("forward", [0], 1), n_layer=1),
        case(
            "a prompt of three tokens in one block", 4, 3, ("allocate", 0, 3), ("forward", [0], 3)
        ),
        case(
            "a prompt of five tokens, blocks of two", 2, 6, ("allocate", 0, 5), ("forward", [0], 5)
        ),
        case("one new token behind four", 3, 4, ("allocate", 0, 5), ("forward", [0], 1)),
        case(
            "a chunk of three behind a prefix of four",
            3,
            5,
            ("allocate", 0, 7),
            ("forward", [0], 3),
        ),
        case(
            "a prompt, then decode over a block's end",
            3,
            5,
            ("allocate", 0, 5),
            ("forward", [0], 5),
            ("append", 0),
            ("forward", [0], 1),
            ("append", 0),
            ("forward", [0], 1),
        ),
        case(
            "decode in two rows of different lengths",
            2,
            8,
            ("allocate", 0, 6),
            ("allocate", 1, 3),
            ("forward", [1, 0], 1),
        ),
        case(
            "one request out of three",
            4,
            8,
            ("allocate", 0, 6),
            ("allocate", 1, 5),
            ("allocate", 2, 4),
            ("forward", [1], 5),
        ),
        case(
            "a fork whose two rows part in the middle of a block",
            4,
            6,
            ("allocate", 0, 6),
            ("forward", [0], 6),
            ("fork", 0, 1),
            ("append", 0),
            ("append", 1),
            ("forward", [0, 1], 1),
            ("append", 0),
            ("append", 1),
            ("forward", [1, 0], 1),
        ),
        case(
            "blocks of one token, three rows",
            1,
            16,
            ("allocate", 0, 3),
            ("allocate", 1, 5),
            ("allocate", 2, 2),
            ("forward", [0, 1, 2], 2),
            ("append", 0),
            ("append", 1),
            ("append", 2),
            ("forward", [2, 0, 1], 1),
        ),
        case(
            "three rows that share a beginning, in chunks",
            3,
            16,
            ("allocate", 0, 4),
            ("forward", [0], 4),
            ("fork", 0, 1),
            ("fork", 0, 2),
            *some,
            *(("append", request) for request in (0, 1, 2)),
            *(("append", request) for request in (0, 1, 2)),
            ("forward", [2, 0, 1], 2),
        ),
    ]


ATTEND = Exercise(
    name="paged_attention.PagedCache.attend",
    lab="paged_attention",
    title="Write to the slots, gather from the slots",
    points=4,
    difficulty=3,
    minutes=20,
    place="The same seam as in lab 2, now over blocks that lie anywhere. A paged attention kernel "
    "does this without gathering: it reads the blocks where they are.",
    hints=(
        (
            "`select` has found out everything: where the new tokens go, where all tokens of a row "
            "lie, who may see whom. In which order do you write, gather and attend, and which "
            "dimension of `keys` counts the tokens?"
        ),
        (
            "`all_keys` and `all_values` are [slots, heads, head_dim] and a view of the pool, so "
            "what is written to them is in the pool. `all_keys[self.new_slots]` is [rows, q_len, "
            "heads, head_dim]; the new keys come as [rows, heads, q_len, head_dim], so transpose "
            "them. Then gather with `self.all_slots`, transpose back, and attend under `self.mask`."
        ),
        (
            "    all_keys[self.new_slots] = keys.transpose(1, 2)\n"
            "    ...                               # the values likewise\n"
            "    return F.scaled_dot_product_attention(\n"
            "        queries,\n"
            "        all_keys[...].transpose(1, 2),\n"
            "        ...,\n"
            "        attn_mask=...,\n"
            "    )"
        ),
    ),
    reference=reference.PagedCache,
    driver=drivers.attend,
    cases=attend_cases,
    compare=same_seen,
    misconceptions=tuple(misconceptions.ATTEND),
)


# ------------------------------------------------------------------------- PagedBatcher.make_room


def make_room_cases(generator: torch.Generator) -> list[Case]:
    def case(
        label: str,
        block_size: int,
        running: dict[int, int],
        free: int,
        waiting: tuple[int, ...] = (),
        rounds: int = 1,
    ) -> Case:
        """Running: how many tokens of each are stored, the oldest first."""
        held: dict[int, Table] = {}
        first_block = 0
        for number, length in running.items():
            count = -(-length // block_size)
            held[number] = list(range(first_block, first_block + count)), length
            first_block += count
        state = pool(generator, block_size, held, free)

        def request(number: int, tokens: int) -> dict[str, Any]:
            ids = torch.randint(48, (tokens,), generator=generator).tolist()
            return {"number": number, "ids": ids, "end": tokens + 8}

        serving = [request(number, length + 1) for number, length in running.items()]
        queue = [request(number, 3) for number in waiting]
        return Case(label, {"running": serving, "waiting": queue, "rounds": rounds, **state})

    lengths = {number: draw(generator, 1, 9) for number in (3, 0, 4, 1)}
    return [
        case("nobody runs", 2, {}, 2, waiting=(0,)),
        case("one request, whose block has room", 4, {0: 2}, 1),
        case("one request, whose block is full", 4, {0: 4}, 1),
        case("three requests, enough blocks", 2, {0: 2, 1: 3, 2: 4}, 4),
        case("no block is free, and none is needed", 4, {0: 3, 1: 2}, 0),
        case("no block is free, and the oldest needs one", 4, {0: 4, 1: 6, 2: 3}, 0),
        case("no block is free, and the newest needs one", 4, {0: 3, 1: 2, 2: 4}, 0),
        case("one block is free, and two need one", 2, {0: 2, 1: 4}, 1),
        case("somebody waits already", 4, {0: 4, 1: 2}, 0, waiting=(2, 3)),
        case("two are preempted", 2, {0: 2, 1: 2, 2: 1, 3: 1}, 0, waiting=(4,)),
        case("blocks of one token, so that all need one", 1, {0: 3, 1: 2, 2: 1}, 1),
        case("the newest has a low number, for it came back", 2, {2: 4, 3: 3, 1: 3}, 0, (4, 5)),
        case("three steps, no block free at the first", 2, {0: 3, 1: 2, 2: 3}, 0, rounds=3),
        case("four requests, six steps", 3, lengths, 2, waiting=(5,), rounds=6),
    ]


class LentManager(reference.BlockManager):
    """The reference's manager, whose books are looked at when a driver has finished."""

    def counts(self) -> Books:
        return books_of(self)


def lent_manager(data: Mapping[str, Any]) -> dict[str, Any]:
    manager = LentManager(data["num_blocks"], data["block_size"])
    manager.tables = {request: list(table) for request, table in data["tables"].items()}
    manager.lengths, manager.ref_counts = dict(data["lengths"]), list(data["ref_counts"])
    manager.free_blocks = deque(data["free_blocks"])
    return {"manager": manager}


def compare_make_room(got: Any, expected: Any) -> str | None:
    seen = got["returned"]
    queues = (same_queue(seen.get(what), q, what) for what, q in expected["returned"].items())
    return first(*queues, same_end(got["manager"], expected["manager"]))


def same_queue(got: Any, expected: Any, what: str) -> str | None:
    if not isinstance(expected, tuple):
        return same_number(got, expected, what)
    return None if got == expected else f"{what} are {several(got)}; expected {several(expected)}."


def several(numbers: Any) -> str:
    return ", ".join(map(str, listed(numbers))) or "none"


def same_end(got: Books, expected: Books) -> str | None:
    """How long everybody's text is in the manager; which blocks it lies in is all the same."""
    difference = other_lengths(got["lengths"], expected["lengths"])
    if difference is None and sorted(broken(got)) != sorted(broken(expected)):
        difference = next(broken(got), "the manager's books are not the same.")
    return f"In the manager, {difference}" if difference else None


MAKE_ROOM = Exercise(
    name="paged_attention.PagedBatcher.make_room",
    lab="paged_attention",
    title="Preempt the newest",
    points=3,
    difficulty=3,
    minutes=15,
    place="The price of reserving nothing: when the pool runs empty, somebody has to give way. In "
    "vLLM, too, it is the request that was admitted last.",
    hints=(
        (
            "Go through the running requests, the oldest first. What do you do for one that finds "
            "no block, how often, and how does it end if that one is itself the newest?"
        ),
        (
            "`self.manager.can_append(request.number)` says whether `append` would find the block "
            "that it may need. While it would not, preempt `self.running[-1]`: that may be the "
            "request itself, and then it needs no place. Walk over a copy of the list, for "
            "`preempt` takes requests out of it. Those who still run get `append`, block or no "
            "block."
        ),
        (
            "    for request in list(self.running):\n"
            "        while request in self.running and not ...:\n"
            "            self.preempt(...)\n"
            "        if ...:\n"
            "            self.manager.append(request.number)"
        ),
    ),
    reference=reference.PagedBatcher,
    driver=drivers.make_room,
    cases=make_room_cases,
    compare=compare_make_room,
    misconceptions=tuple(misconceptions.MAKE_ROOM),
    services=lent_manager,
)


EXERCISES = (ALLOCATE, APPEND, FREE, FORK, SLOTS, ATTEND, MAKE_ROOM)
