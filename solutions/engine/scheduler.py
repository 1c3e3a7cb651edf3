"""The engine, part three: how many tokens each request computes next, and in which blocks.

Each step has a token budget, and all requests share a pool of blocks. Running requests come first,
each with the tokens that it has not computed yet; then waiting requests, while there is room. If a
prompt is longer than the rest of the budget, a chunk is computed, and the rest in later steps.

Sources: Yu et al., "Orca", OSDI 2022 (iterations); Kwon et al., "PagedAttention", SOSP 2023,
section 4.5 (preemption); Agrawal et al., "Taming throughput-latency tradeoff in LLM inference with
Sarathi-Serve", OSDI 2024 (chunks under a token budget).
"""

from collections import deque

from solutions.engine.managers import EngineHooks
from solutions.engine.sequence import Sequence
from solutions.paged_attention import OutOfBlocks

Plan = dict[int, int]  # from a request's number to how many of its tokens to compute


class Scheduler:
    """Plans which requests the next forward pass serves.

    waiting: the request that comes next is on the left. running: the requests that have blocks, in
    the order in which they were admitted. preemptions: how many there have been so far.
    """

    def __init__(self, manager: EngineHooks, token_budget: int, max_running: int) -> None:
        if token_budget < 1 or max_running < 1:
            raise ValueError(
                "A step must have room for at least one token of one request; token_budget is "
                f"{token_budget} and max_running {max_running}."
            )
        self.manager, self.token_budget, self.max_running = manager, token_budget, max_running
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0

    def require_room(self, end: int) -> None:
        """Raise ValueError for a text of `end` tokens that wouldn't fit into the empty pool."""
        needed = self.manager.blocks_for(end - 1)  # the last token is never stored
        if needed > self.manager.num_blocks:
            raise ValueError(
                f"This request may grow to {end} tokens, which takes {needed} blocks; the pool has "
                f"{self.manager.num_blocks}. Ask for fewer tokens, or give the pool more blocks."
            )

    def schedule(self) -> Plan:
        """Return how many tokens of each request the next forward pass computes.

        All together are at most `token_budget`: each request gets its `next_count` of what is left.
        Running requests come first, in their order, if `make_room` finds blocks for their tokens.
        Then waiting requests, as long as some of the budget is left and `admit` returns True; none
        in a step that has preempted a request. Leave out requests that get no tokens.
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
        """Get blocks for `count` more tokens; return False if the request isn't running any more.

        If no block is free, the last running request is preempted, again and again until there is
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
        """Free a running request's blocks, and move it to the front of the queue with its tokens.

        When it is admitted again, its keys and values are recomputed.
        """
        self.running.remove(sequence)
        self.manager.free(sequence.number)
        sequence.num_computed_tokens = 0
        self.waiting.appendleft(sequence)
        self.preemptions += 1

    def admit(self) -> bool:
        """Move the first waiting request to the end of `running`, if all its tokens have room.

        Returns whether it did.
        """
        if not self.waiting or len(self.running) == self.max_running:
            return False
        newcomer = self.waiting[0]
        tokens = newcomer.text, len(newcomer.drafts), newcomer.salt
        try:
            newcomer.num_computed_tokens = self.manager.admit(newcomer.number, *tokens)
        except OutOfBlocks:
            return False
        self.running.append(self.waiting.popleft())
        return True

    def retire(self, sequence: Sequence) -> None:
        """Remove a request from `running`, and free its blocks, or from `waiting`."""
        if sequence in self.running:
            self.running.remove(sequence)
            self.manager.free(sequence.number)
        else:
            self.waiting.remove(sequence)
