"""Whether a pool's books agree with each other: those of any lab's block manager."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from solutions.engine.managers import GONE


class BrokenPool(Exception):
    """Some block of the pool is lost, or will be written by two requests."""


def check_integrity(manager: Any) -> None:
    """Raise BrokenPool, with a sentence, if the books of a block manager contradict each other.

    A block is in as many tables as its ref count says, and among the free ones, once, if that is 0.
    A table has just the blocks that its request's tokens need, each once. What lab 8's manager
    knows of blocks, it knows both ways.
    """
    for contradiction in contradictions(manager):
        raise BrokenPool(contradiction)


def contradictions(manager: Any) -> Iterator[str]:
    tables, counts, num_blocks = manager.tables, manager.ref_counts, manager.num_blocks
    held = Counter(block for table in tables.values() for block in table if block != GONE)
    free = Counter(list(manager.free_blocks))  # a list, because an engine's are a dictionary
    for block in sorted({*held, *free} - set(range(num_blocks))):
        yield f"Block {block} is none of the pool's {num_blocks} blocks."
    if len(counts) != num_blocks:
        yield f"The pool has {num_blocks} blocks and {len(counts)} ref counts."
    for block, count in enumerate(counts):
        if count != held[block]:
            yield f"Block {block} has the ref count {count}, and is in {held[block]} tables."
        if free[block] != (count == 0):
            yield f"Block {block} has the ref count {count}, and is free {free[block]} times."
    if tables.keys() != manager.lengths.keys():
        yield f"Requests {list(tables)} have tables, and {list(manager.lengths)} have lengths."
    for request, table in tables.items():
        length = manager.lengths[request]
        if len(table) != manager.blocks_for(length):
            yield f"Request {request} has {length} tokens, and the blocks {table}."
        if len({*table} - {GONE}) != len(table) - table.count(GONE):
            yield f"Request {request} has a block twice: {table}."
    by_block, by_hash = getattr(manager, "block_hash", {}), getattr(manager, "cached", {})
    if {key: block for block, key in by_block.items()} != by_hash or len(by_block) != len(by_hash):
        yield "`cached` isn't `block_hash` the other way round."
