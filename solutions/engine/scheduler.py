"""The engine, part three: who computes how many tokens next, and in which blocks.

There is a token budget for each step, and a pool of blocks for all. Running requests come first,
each with what it has not computed yet; then those who wait, while there is room. Of a prompt that
is longer than what is left of the budget, a chunk is computed, and the rest in later steps.

Sources: Yu et al., "Orca", OSDI 2022 (iterations); Kwon et al., "PagedAttention", SOSP 2023,
section 4.5 (preemption); Agrawal et al., "Taming throughput-latency tradeoff in LLM inference with
Sarathi-Serve", OSDI 2024 (chunks under a token budget).
"""

from collections import deque

from solutions.engine.managers import EngineHooks
from solutions.engine.sequence import Sequence
from solutions.paged_attention import OutOfBlocks

Plan = dict[int, int]  # by the number of a request: how many of its tokens to compute


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
        tokens = newcomer.text, len(newcomer.drafts), newcomer.salt
        try:
            newcomer.num_computed_tokens = self.manager.admit(newcomer.number, *tokens)
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
