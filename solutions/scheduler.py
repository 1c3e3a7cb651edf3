"""The engine, part two: who computes how many tokens next, and in which blocks.

There is a token budget for each step, and a pool of blocks for all. Running requests come first,
each with what it has not computed yet; then those who wait, while there is room. Of a prompt that
is longer than what is left of the budget, a chunk is computed, and the rest in later steps.

Sources: Yu et al., "Orca", OSDI 2022 (iterations); Kwon et al., "PagedAttention", SOSP 2023,
section 4.5 (preemption); Agrawal et al., "Taming throughput-latency tradeoff in LLM inference with
Sarathi-Serve", OSDI 2024 (chunks under a token budget).
"""

import collections.abc
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Self

from solutions.paged_attention import BlockManager, Copy, OutOfBlocks
from solutions.sequence import Sequence

Plan = dict[int, int]  # by the number of a request: how many of its tokens to compute


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


class EngineHooks:
    """What an engine asks of a block manager beyond lab 4."""

    num_blocks: int
    free_blocks: Any  # it takes the place of a deque
    tables: dict[int, list[int]]
    lengths: dict[int, int]
    allocate: Callable[[int, int], None]
    append: Callable[[int], Copy | None]
    free: Callable[[int], None]
    blocks_for: Callable[[int], int]

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)  # type: ignore[call-arg]  # the manager's
        self.free_blocks = FreeBlocks(self.free_blocks)

    def admit(self, request: int, token_ids: collections.abc.Sequence[int]) -> int:
        """Give a new request blocks for its tokens; return how many the cache holds already.

        Raises OutOfBlocks, and changes nothing, where the pool has too few.
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


class Scheduler:
    """Whom the next forward serves.

    waiting: the one who has waited longest stands on the left. running: those who have blocks, in
    the order in which they were admitted. preemptions: how many there have been.
    """

    def __init__(self, manager: EngineHooks, token_budget: int, max_running: int) -> None:
        if token_budget < 1 or max_running < 1:
            raise ValueError(
                "A step must have room for one token of one request at least; token_budget is "
                f"{token_budget} and max_running {max_running}."
            )
        self.manager, self.token_budget, self.max_running = manager, token_budget, max_running
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0

    def require_room(self, end: int) -> None:
        """Refuse, with a ValueError, a text that would not fit into the pool if it had it alone."""
        needed = self.manager.blocks_for(end - 1)  # the last token is never stored
        if needed > self.manager.num_blocks:
            raise ValueError(
                f"This request may grow to {end} tokens, which takes {needed} blocks; the pool has "
                f"{self.manager.num_blocks}. Ask for fewer tokens, or give the pool more blocks."
            )

    def schedule(self) -> Plan:
        """How many tokens of which request the next forward computes.

        All of them together are at most `token_budget`, and each gets its `next_count` under what
        is left of it. First come those who run, in their order, if `make_room` finds blocks for
        them. Then those who wait, as long as something is left and `admit` lets one in; nobody in a
        step that has preempted somebody. A request that gets no tokens is not in the plan.
        """
        ### BEGIN SOLUTION
        plan: Plan = {}
        budget, preemptions = self.token_budget, self.preemptions
        for sequence in list(self.running):
            count = sequence.next_count(budget)
            if count > 0 and self.make_room(sequence, count):
                plan[sequence.number] = count
                budget -= count
        while budget > 0 and self.preemptions == preemptions and self.admit():
            newcomer = self.running[-1]
            plan[newcomer.number] = newcomer.next_count(budget)
            budget -= plan[newcomer.number]
        return plan
        ### END SOLUTION

    def make_room(self, sequence: Sequence, count: int) -> bool:
        """Blocks for `count` more tokens of a running request; False where it runs no more.

        Where the pool is empty, the last one that runs is preempted, and again, until there is
        room; that may be the request itself.
        """
        while sequence in self.running:
            try:
                self.manager.grow(sequence.number, sequence.num_computed_tokens + count)
                return True
            except OutOfBlocks:
                self.preempt(self.running[-1])
        return False

    def preempt(self, sequence: Sequence) -> None:
        """Take a running request's blocks away; it waits in front of all others, with its tokens.

        Once admitted again, its keys and values are computed anew (recompute).
        """
        self.running.remove(sequence)
        self.manager.free(sequence.number)
        sequence.num_computed_tokens = 0
        self.waiting.appendleft(sequence)
        self.preemptions += 1

    def admit(self) -> bool:
        """Let the one who has waited longest run, if there is room for all its tokens."""
        if not self.waiting or len(self.running) == self.max_running:
            return False
        newcomer = self.waiting[0]
        try:
            newcomer.num_computed_tokens = self.manager.admit(newcomer.number, newcomer.text)
        except OutOfBlocks:
            return False
        self.running.append(self.waiting.popleft())
        return True

    def retire(self, sequence: Sequence) -> None:
        """Forget a request, whether it runs or waits."""
        if sequence in self.running:
            self.running.remove(sequence)
            self.manager.free(sequence.number)
        else:
            self.waiting.remove(sequence)
