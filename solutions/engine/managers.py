"""The engine, part two: what it asks of a block manager beyond lab 4."""

import collections.abc
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Self

from solutions.paged_attention import BlockManager, OutOfBlocks

if TYPE_CHECKING:
    Manager = BlockManager
else:
    Manager = object  # the hooks stand before whosever class it is


class FreeBlocks(OrderedDict[int, None]):
    """In the place of a deque: one that can lose a block from its middle at once."""

    def __init__(self, blocks: collections.abc.Iterable[int]) -> None:
        super().__init__(dict.fromkeys(blocks))

    def popleft(self) -> int:
        return self.popitem(last=False)[0]

    def append(self, block: int) -> None:
        self[block] = None

    def extend(self, blocks: collections.abc.Iterable[int]) -> None:
        self.update(dict.fromkeys(blocks))

    def __iadd__(self, blocks: collections.abc.Iterable[int]) -> Self:
        self.extend(blocks)
        return self

    def remove(self, block: int) -> None:
        del self[block]


class EngineHooks(Manager):
    """What an engine asks of a block manager beyond lab 4, whosever manager it is."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.free_blocks: Any = FreeBlocks(self.free_blocks)  # it takes the place of a deque

    def admit(
        self,
        request: int,
        token_ids: collections.abc.Sequence[int],
        num_drafts: int = 0,
        salt: bytes = b"",
    ) -> int:
        """Give a new request blocks for its tokens; return how many the cache holds already.

        The last `num_drafts` of them are drafts. Only requests of one salt may share blocks. Raises
        OutOfBlocks, and changes nothing, where the pool has too few.
        """
        self.require_free(self.blocks_for(len(token_ids)))
        self.allocate(request, len(token_ids))
        return 0  # nobody shares anything yet

    def grow(self, request: int, num_tokens: int) -> None:
        """Make room for so many tokens of a request in all; what it has beyond stays.

        Raises OutOfBlocks, and changes nothing, where the pool has too few.
        """
        self.require_free(self.blocks_for(num_tokens) - len(self.tables[request]))
        for _ in range(num_tokens - self.lengths[request]):
            self.append(request)

    def require_free(self, needed: int) -> None:
        """Asked here, because a manager of another lab raises an OutOfBlocks of its own."""
        if needed > len(self.free_blocks):
            raise OutOfBlocks(f"{needed} blocks are needed; {len(self.free_blocks)} are free.")

    def publish(
        self, request: int, token_ids: collections.abc.Sequence[int], computed: int
    ) -> None:
        """Of these tokens the first `computed` are in the cache now; beyond them may be drafts."""


class EngineManager(EngineHooks, BlockManager):
    """The block manager of lab 4, for an engine."""
