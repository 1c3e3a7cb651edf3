"""The engine, part two: the methods of a block manager that the engine needs beyond lab 4."""

import collections.abc
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Self

from solutions.paged_attention import BlockManager, OutOfBlocks

GONE = -1  # in a block table: this block has been freed, and no later token of the text sees it

if TYPE_CHECKING:
    Manager = BlockManager
else:
    Manager = object  # the hooks are mixed into any manager class, a student's too


class FreeBlocks(OrderedDict[int, None]):
    """Used instead of a deque, because it removes a block from the middle in constant time."""

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
    """The methods that the engine needs beyond lab 4, to mix into any block manager."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.free_blocks: Any = FreeBlocks(self.free_blocks)  # instead of lab 4's deque

    def admit(
        self,
        request: int,
        token_ids: collections.abc.Sequence[int],
        num_drafts: int = 0,
        salt: bytes = b"",
    ) -> int:
        """Give a new request blocks for its tokens; return how many the cache already holds.

        The last `num_drafts` of the tokens are drafts. Only requests with the same salt may share
        blocks. Raises OutOfBlocks, and changes nothing, if the pool has too few free blocks.
        """
        self.require_free(self.blocks_for(len(token_ids)))
        self.allocate(request, len(token_ids))
        return 0  # requests don't share blocks before lab 8

    def grow(self, request: int, num_tokens: int) -> None:
        """Give a request blocks for `num_tokens` tokens in total; it keeps what it has beyond.

        Raises OutOfBlocks, and changes nothing, if the pool has too few free blocks.
        """
        self.require_free(self.blocks_for(num_tokens) - len(self.tables[request]))
        for _ in range(num_tokens - self.lengths[request]):
            self.append(request)

    def require_free(self, needed: int) -> None:
        """Raise this module's OutOfBlocks; another manager may raise a class of its own."""
        if needed > len(self.free_blocks):
            raise OutOfBlocks(f"{needed} blocks are needed; {len(self.free_blocks)} are free.")

    def publish(
        self, request: int, token_ids: collections.abc.Sequence[int], computed: int
    ) -> None:
        """Tell the manager that the first `computed` of a request's tokens are in the cache now.

        Tokens after these may be drafts. Here nothing follows from it; lab 8 shares such blocks.
        """


class EngineManager(EngineHooks, BlockManager):
    """The block manager of lab 4, for an engine."""
