"""Instead of lab 4's BlockManager, without sharing: a ledger of which request holds which block."""

from collections import deque
from collections.abc import Mapping
from typing import Any

from autograder.judging.exercise import Service
from autograder.lending.cached import lend_cached_model
from autograder.lending.lent import LentManager


class OutOfBlocks(Exception):
    """An attempt catches it by its own class of this name."""


class Ledger(LentManager):
    """holders: the request that holds each block, None if it is free. lengths: of each request.

    The books of a BlockManager can be read, and are made up from these.
    """

    def __init__(self, num_blocks: int, block_size: int, state: Mapping[str, Any]) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.lengths: dict[int, int] = dict(state["lengths"])
        held = {block: request for request, table in state["tables"].items() for block in table}
        self.holders = [held.get(block) for block in range(num_blocks)]

    @property
    def tables(self) -> dict[int, list[int]]:
        return {request: self.blocks_of(request) for request in self.lengths}

    @property
    def ref_counts(self) -> list[int]:
        return [int(holder is not None) for holder in self.holders]

    @property
    def free_blocks(self) -> deque[int]:
        return deque(self.blocks_of(None))

    @property
    def used_blocks(self) -> int:
        return self.num_blocks - len(self.free_blocks)

    def blocks_of(self, request_id: int | None) -> list[int]:
        return [block for block, holder in enumerate(self.holders) if holder == request_id]

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def require_known(self, request_id: int) -> None:
        if request_id not in self.lengths:
            known = ", ".join(map(str, self.lengths)) or "none"
            raise ValueError(f"There is no request {request_id} in this pool. It holds {known}.")

    def is_full(self, request_id: int) -> bool:
        """Whether the next token of a request needs a block."""
        self.require_known(request_id)
        return self.blocks_for(self.lengths[request_id] + 1) > len(self.blocks_of(request_id))

    def can_append(self, request_id: int) -> bool:
        self.note_question()
        return not self.is_full(request_id) or bool(self.free_blocks)

    def append(self, request_id: int) -> None:
        if self.is_full(request_id):
            if not self.free_blocks:
                raise OutOfBlocks(f"All {self.num_blocks} blocks are taken.")
            self.holders[self.free_blocks[0]] = request_id
        self.lengths[request_id] = self.lengths[request_id] + 1

    def free(self, request_id: int) -> None:
        self.require_known(request_id)
        self.holders = [None if holder == request_id else holder for holder in self.holders]
        self.lengths.pop(request_id)


def lend_model_and_ledger(data: Mapping[str, Any]) -> dict[str, Service]:
    manager = Ledger(data["num_blocks"], data["block_size"], data["state"])
    return {**lend_cached_model(data), "manager": manager}
