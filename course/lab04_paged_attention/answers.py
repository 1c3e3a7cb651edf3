"""Answers to lab 4's exercises: the block manager, the paged cache, room in the pool."""

import math
from collections import Counter, deque
from typing import Any

import numpy as np
import torch

from solutions.batching import Request, require_request
from solutions.paged_attention import BlockManager, PagedBatcher, PagedCache
from tests.common.attempts import exercise_of, right, wrong


class OutOfBlocks(RuntimeError):
    """A notebook has a class of its own, and what a lent manager raises is an error of that one."""


# -------------------------------------------------------------------------------- the block manager


@right(BlockManager.allocate)
def with_ceil(self, request_id, num_tokens):
    needed = math.ceil(num_tokens / self.block_size)
    if len(self.free_blocks) - needed < 0:
        raise OutOfBlocks
    self.lengths[request_id], self.tables[request_id] = num_tokens, []
    while len(self.tables[request_id]) < needed:
        self.tables[request_id].append(self.take_block())


@right(BlockManager.allocate)
def in_numpy_integers(self, request_id, num_tokens):
    BlockManager.allocate(self, request_id, num_tokens)
    self.tables[request_id] = list(np.array(self.tables[request_id]))
    self.lengths[request_id] = torch.tensor(num_tokens)


@wrong(BlockManager.allocate)
class WithACountThatFreeForgets(BlockManager):
    """Its `allocate` counts the free blocks, and its `free` doesn't."""

    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks, block_size)
        self.free_count = num_blocks

    def allocate(self, request_id, num_tokens):
        needed = self.blocks_for(num_tokens)
        if needed > self.free_count:
            raise OutOfBlocks
        self.tables[request_id] = [self.take_block() for _ in range(needed)]
        self.lengths[request_id] = num_tokens
        self.free_count -= needed


@wrong(BlockManager.allocate, "a ValueError (too many); expected: it was refused with OutOf")
def refused_otherwise(self, request_id, num_tokens):
    if self.blocks_for(num_tokens) > len(self.free_blocks):
        raise ValueError("too many")
    BlockManager.allocate(self, request_id, num_tokens)


@right(BlockManager.append)
def by_counting_blocks(self, request_id):
    table, length = self.tables[request_id], self.lengths[request_id]
    if not self.can_append(request_id):
        raise OutOfBlocks("no block")
    if self.blocks_for(length + 1) > len(table):
        self.tables[request_id] = [*table, self.take_block()]
        answer = None
    elif self.ref_counts[table[-1]] == 1:
        answer = None
    else:
        old, new = table[-1], self.take_block()
        self.ref_counts[old] = self.ref_counts[old] - 1
        self.tables[request_id] = [*table[:-1], new]
        answer = [old, new]
    self.lengths[request_id] = length + 1
    return answer


@wrong(BlockManager.append, "`append(1)` returned (1, ")
def a_place_for_a_block(self, request_id):
    last = len(self.tables[request_id]) - 1
    copy = BlockManager.append(self, request_id)
    return copy and (last, copy[1])


@right(BlockManager.free)
def counted_anew(self, request_id):
    table = self.tables.pop(request_id)
    self.lengths.pop(request_id)
    held = Counter(block for other in self.tables.values() for block in other)
    self.ref_counts = [held[block] for block in range(self.num_blocks)]
    self.free_blocks = deque([*self.free_blocks, *(b for b in table if not held[b])])


@wrong(BlockManager.free, "`tables` after `free(0)` holds no request; expected: it holds req")
def all_freed(self, request_id):
    self.__init__(self.num_blocks, self.block_size)


@right(BlockManager.allocate, BlockManager.append, BlockManager.free, BlockManager.fork)
class WithABookOfItsOwn(BlockManager):
    """Goes by the requests that hold each block, which its own four methods keep."""

    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks, block_size)
        self.holders = [set() for _ in range(num_blocks)]

    def allocate(self, request_id, num_tokens):
        super().allocate(request_id, num_tokens)
        for block in self.tables[request_id]:
            self.holders[block].add(request_id)

    def append(self, request_id):
        copy = super().append(request_id)
        self.holders[self.tables[request_id][-1]].add(request_id)
        if copy:
            self.holders[copy[0]].remove(request_id)
        return copy

    def free(self, request_id):
        for block in self.tables[request_id]:
            self.holders[block].remove(request_id)
        super().free(request_id)

    def fork(self, parent_id, child_id):
        super().fork(parent_id, child_id)
        for block in self.tables[child_id]:
            self.holders[block].add(child_id)
            self.ref_counts[block] = len(self.holders[block])


@wrong(BlockManager.fork)
class WithABookThatIsWrong(WithABookOfItsOwn):
    def fork(self, parent_id, child_id):
        super().fork(parent_id, child_id)
        self.ref_counts[self.tables[child_id][0]] -= 1


# ---------------------------------------------------------------------------------------- the cache


@wrong(PagedCache.attend, "The pool after layer 0 of forward 1 is new memory")
def into_new_memory(self, layer, queries, keys, values):
    self.pool = self.pool.clone()
    return PagedCache.attend(self, layer, queries, keys, values)


@wrong(PagedCache.attend, "The output of layer 0 of forward 1")
def hidden_by_minus_twenty(self, layer, queries, keys, values):
    mask, self.mask = self.mask, torch.where(self.mask, 0.0, -20.0).to(queries)
    output = PagedCache.attend(self, layer, queries, keys, values)
    self.mask = mask
    return output


@wrong(PagedCache.attend, "The output of layer 0 of forward 2")
def under_a_mask_remembered_by_its_shape(self, layer, queries, keys, values):
    known = self.__dict__.setdefault("known", {})
    self.mask = known.setdefault(self.mask.shape, self.mask)
    return PagedCache.attend(self, layer, queries, keys, values)


@wrong(PagedCache.attend, "The output of layer 0 of forward 1")
def in_a_window(self, layer, queries, keys, values):
    self.mask = self.mask & (torch.arange(self.mask.shape[-1]) >= self.mask.shape[-1] - 32)
    return PagedCache.attend(self, layer, queries, keys, values)


# --------------------------------------------------------------------------------------- make_room


@right(PagedBatcher.make_room)
def by_trying(self):
    for request in list(self.running):
        while request in self.running:
            try:
                self.kv_cache.manager.append(request.number)
                break
            except OutOfBlocks:  # admitted last, came last
                self.preempt(max(self.running, key=lambda one: one.number))


@right(PagedBatcher.make_room)
def without_preempt(self):
    for request in self.running[:]:
        while request in self.running and not self.manager.can_append(request.number):
            newest = self.running.pop()
            self.manager.free(newest.number)
            newest.num_computed_tokens = 0
            self.waiting = deque([newest, *self.waiting])
            self.preemptions = self.preemptions + 1
        if request in self.running:
            self.manager.append(request.number)


class Asking(BlockManager):
    def is_short_of_a_block_for(self, request):
        return not self.can_append(request.number)


@right(PagedBatcher.make_room)
class WithAMethodOnItsManager(PagedBatcher):
    def __init__(self, model, num_blocks, block_size, *given):
        super().__init__(model, num_blocks, block_size, *given)
        self.manager = self.kv_cache.manager = Asking(num_blocks, block_size)

    def make_room(self):
        for request in list(self.running):
            while request in self.running and self.manager.is_short_of_a_block_for(request):
                self.preempt(self.running[-1])
            if request in self.running:
                self.manager.append(request.number)


@right(PagedBatcher.make_room)
class BatcherOfAnOlderNotebook:
    """As the lab's first release had it: it stands alone, and counts no computed tokens."""

    def __init__(self, model, num_blocks, block_size, max_running, eos_token_id=None):
        weight = model.transformer.wte.weight
        self.model, self.eos_token_id, self.max_running = model, eos_token_id, max_running
        self.manager = BlockManager(num_blocks, block_size)
        self.kv_cache = PagedCache(model.config, self.manager, weight.device, weight.dtype)
        self.waiting, self.running, self.outputs = deque(), [], {}
        self.preemptions = self.submitted = 0

    def submit(self, prompt, max_new_tokens):
        require_request(self.model.config, prompt, max_new_tokens)
        end = min(len(prompt) + max_new_tokens, self.model.config.n_positions)
        if self.manager.blocks_for(end - 1) > self.manager.num_blocks:
            raise ValueError("too long")
        self.waiting.append(Request(self.submitted, list(prompt), end))
        self.submitted += 1

    make_room = PagedBatcher.make_room

    def preempt(self, request):
        self.running.remove(request)
        self.manager.free(request.number)
        self.waiting.appendleft(request)
        self.preemptions += 1


@wrong(PagedBatcher.make_room, " calls of `can_append`. Does every loop end?")
def without_an_end(self):
    for request in self.running:
        while not self.manager.can_append(request.number):
            pass
        self.manager.append(request.number)


@wrong(PagedBatcher.make_room, "`running`, by number, is []; expected")
def by_the_books(self):
    """Edits what it reads of the manager, which is a copy, as in grading: no block gets free."""
    for request in list(self.running):
        while request in self.running and not self.manager.can_append(request.number):
            newest = self.running.pop()
            newest.num_computed_tokens = 0
            self.waiting.appendleft(newest)
            self.preemptions += 1
            del self.manager.lengths[newest.number]
            self.manager.free_blocks.extend(self.manager.tables.pop(newest.number))
        if request in self.running:
            self.manager.append(request.number)


# ------------------------------------------------------------------- what is told of known mistakes

TOLD: dict[Any, dict[str, str]] = {
    BlockManager.allocate: {
        "quietly_nothing": " went through; expected: it was refused with OutOfBlocks.",
        "entered_before_the_count": " holds requests 0 and 9; expected: it holds request 0.",
    },
    BlockManager.free: {
        "given_back_by_the_first": " is free and in the table of request 1 at once, with a",
        "blocks_leaked": " is neither free nor in any table, with a ref count of 1; expected: ",
        "free_blocks_no_deque": "]; expected: it is deque([",
    },
    BlockManager.fork: {
        "same_list": ", the same list as `tables[0]`; expected: it is [",
        "nobody_counted": " is in the tables of requests 0 and 1, with a ref count of 1; ",
    },
    PagedBatcher.make_room: {"oldest_preempted": "is [1, 2]; expected: it is [0, 1]."},
}
for solution, mistakes in TOLD.items():
    known = {m.name: m for m in exercise_of(solution).misconceptions}
    for name, told in mistakes.items():
        wrong(solution, told, known[name].sentence)(next(known[name].attempts()))
