"""Lab 4's exercises: right answers in other styles pass, wrong ones of many kinds don't.

The misconceptions themselves are tested with those of all labs, in test_exercises.py. Here stand
attempts that nobody told the exercises about.
"""

import math
import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from autograder.exercise import NOT_ATTEMPTED, PASSED, WRONG, Misconception
from autograder.exercises import paged_attention
from autograder.kept import reference_module
from solutions.paged_attention import (
    BlockManager,
    OutOfBlocks,
    PagedBatcher,
    PagedCache,
    slot_mapping,
)
from tests.attempts import attempt_at, with_method

EXERCISES = {exercise.name: exercise for exercise in paged_attention.EXERCISES}
RIGHT: list[Any] = []
WRONGS: list[Any] = []


# ------------------------------------------------------------------------- BlockManager.allocate

ALLOCATE = "paged_attention.BlockManager.allocate"


@attempt_at(RIGHT, ALLOCATE, BlockManager)
def allocate_with_ceil(self, request_id, num_tokens):
    needed = math.ceil(num_tokens / self.block_size)
    if len(self.free_blocks) - needed < 0:
        raise OutOfBlocks
    self.lengths[request_id], self.tables[request_id] = num_tokens, []
    while len(self.tables[request_id]) < needed:
        self.tables[request_id].append(self.take_block())


@attempt_at(RIGHT, ALLOCATE, BlockManager)
def allocate_from_the_right(self, request_id, num_tokens):
    needed = (num_tokens + self.block_size - 1) // self.block_size
    if needed > self.num_blocks - self.used_blocks:
        raise OutOfBlocks("too few")
    table = [self.free_blocks.pop() for _ in range(needed)]
    for block in table:
        self.ref_counts[block] += 1
    self.tables[request_id] = table
    self.lengths[request_id] = num_tokens


@attempt_at(RIGHT, ALLOCATE, BlockManager)
def allocate_and_roll_back(self, request_id, num_tokens):
    table = []
    try:
        for _ in range(0, num_tokens, self.block_size):
            table.append(self.take_block())
    except OutOfBlocks:
        for block in table:
            self.ref_counts[block] = 0
            self.free_blocks.append(block)
        raise
    self.tables[request_id], self.lengths[request_id] = table, num_tokens


@attempt_at(WRONGS, ALLOCATE, BlockManager)
def allocate_two_at_least(self, request_id, num_tokens):
    BlockManager.allocate(self, request_id, max(num_tokens, self.block_size + 1))


@attempt_at(WRONGS, ALLOCATE, BlockManager)
def allocate_by_index_error(self, request_id, num_tokens):
    table = [self.free_blocks.popleft() for _ in range(self.blocks_for(num_tokens))]
    for block in table:
        self.ref_counts[block] = 1
    self.tables[request_id], self.lengths[request_id] = table, num_tokens


@attempt_at(WRONGS, ALLOCATE, BlockManager)
def allocate_slots(self, request_id, num_tokens):
    BlockManager.allocate(self, request_id, num_tokens)
    self.tables[request_id] = [block * self.block_size for block in self.tables[request_id]]


@attempt_at(WRONGS, ALLOCATE, BlockManager)
def allocate_by_return(self, request_id, num_tokens):
    BlockManager.allocate(self, request_id, num_tokens)
    del self.tables[request_id], self.lengths[request_id]
    return self.free_blocks


@attempt_at(WRONGS, ALLOCATE, BlockManager)
def allocate_no_list(self, request_id, num_tokens):
    BlockManager.allocate(self, request_id, num_tokens)
    self.tables[request_id] = None


@attempt_at(WRONGS, ALLOCATE, BlockManager)
def allocate_and_forget_the_others(self, request_id, num_tokens):
    BlockManager.allocate(self, request_id, num_tokens)
    self.tables = {request_id: self.tables[request_id]}
    self.lengths = {request_id: num_tokens}


@attempt_at(WRONGS, ALLOCATE, BlockManager)
def allocate_from_all_that_are_not_shared(self, request_id, num_tokens):
    """The free queue is left alone, and ref counts of 1 are taken for free."""
    unshared = [block for block, count in enumerate(self.ref_counts) if count <= 1]
    if self.blocks_for(num_tokens) > len(self.free_blocks):
        raise OutOfBlocks
    self.tables[request_id] = unshared[: self.blocks_for(num_tokens)]
    self.lengths[request_id] = num_tokens


# --------------------------------------------------------------------------- BlockManager.append

APPEND = "paged_attention.BlockManager.append"


@attempt_at(RIGHT, APPEND, BlockManager)
def append_by_counting_blocks(self, request_id):
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


@attempt_at(RIGHT, APPEND, BlockManager)
def append_with_early_returns(self, request_id):
    table = self.tables[request_id]
    _, place = divmod(self.lengths[request_id], self.block_size)
    if place and self.ref_counts[table[-1]] <= 1:
        self.lengths[request_id] += 1
        return None
    if not self.free_blocks:
        raise OutOfBlocks
    new = self.free_blocks.pop()
    self.ref_counts[new] += 1
    self.lengths[request_id] += 1
    if not place:
        table.append(new)
        return None
    old = table.pop()
    table.append(new)
    self.ref_counts[old] -= 1
    return old, new


@attempt_at(WRONGS, APPEND, BlockManager)
def append_copies_when_three_share(self, request_id):
    table, copy = self.tables[request_id], None
    if self.lengths[request_id] % self.block_size == 0:
        table.append(self.take_block())
    elif self.ref_counts[table[-1]] > 2:
        copy = table[-1], self.take_block()
        self.ref_counts[table[-1]] -= 1
        table[-1] = copy[1]
    self.lengths[request_id] += 1
    return copy


@attempt_at(WRONGS, APPEND, BlockManager)
def append_gives_the_copy_to_the_others(self, request_id):
    """Keeps the old block, and puts the new one into everybody else's table."""
    table, copy = self.tables[request_id], None
    if self.lengths[request_id] % self.block_size == 0:
        table.append(self.take_block())
    elif self.ref_counts[table[-1]] > 1:
        copy = table[-1], self.take_block()
        for other in self.tables.values():
            if other is not table:
                other[:] = [copy[1] if block == copy[0] else block for block in other]
        self.ref_counts[copy[1]] = self.ref_counts[copy[0]] - 1
        self.ref_counts[copy[0]] = 1
    self.lengths[request_id] += 1
    return copy


@attempt_at(WRONGS, APPEND, BlockManager)
def append_two_tokens(self, request_id):
    copy = BlockManager.append(self, request_id)
    self.lengths[request_id] += 1
    return copy


@attempt_at(WRONGS, APPEND, BlockManager)
def append_true(self, request_id):
    return BlockManager.append(self, request_id) or True


@attempt_at(WRONGS, APPEND, BlockManager)
def append_places_instead_of_blocks(self, request_id):
    last = len(self.tables[request_id]) - 1
    copy = BlockManager.append(self, request_id)
    return copy and (last, copy[1])


@attempt_at(WRONGS, APPEND, BlockManager)
def append_for_everybody(self, request_id):
    for request in self.tables:
        copy = BlockManager.append(self, request)
    return copy


@attempt_at(WRONGS, APPEND, BlockManager)
def append_takes_a_spare_block(self, request_id):
    copy = BlockManager.append(self, request_id)
    if copy is None and self.free_blocks and self.lengths[request_id] % self.block_size == 1:
        self.take_block()
    return copy


@attempt_at(WRONGS, APPEND, BlockManager)
def append_raises_a_value_error(self, request_id):
    if not self.can_append(request_id):
        raise ValueError("The pool is full.")
    return BlockManager.append(self, request_id)


# ----------------------------------------------------------------------------- BlockManager.free

FREE = "paged_attention.BlockManager.free"


@attempt_at(RIGHT, FREE, BlockManager)
def free_from_the_last_to_the_front(self, request_id):
    del self.lengths[request_id]
    for block in reversed(self.tables[request_id]):
        self.ref_counts[block] -= 1
        if not self.ref_counts[block]:
            self.free_blocks.appendleft(block)
    del self.tables[request_id]


@attempt_at(RIGHT, FREE, BlockManager)
def free_by_counting_anew(self, request_id):
    table = self.tables.pop(request_id)
    self.lengths.pop(request_id)
    held = Counter(block for other in self.tables.values() for block in other)
    self.ref_counts = [held[block] for block in range(self.num_blocks)]
    self.free_blocks = deque([*self.free_blocks, *(b for b in table if not held[b])])


@attempt_at(WRONGS, FREE, BlockManager)
def free_all(self, request_id):
    self.tables, self.lengths = {}, {}
    self.ref_counts = [0] * self.num_blocks
    self.free_blocks = deque(range(self.num_blocks))


@attempt_at(WRONGS, FREE, BlockManager)
def free_all_but_the_first(self, request_id):
    first = self.tables[request_id].pop(0)
    BlockManager.free(self, request_id)
    self.ref_counts[first] -= 1


@attempt_at(WRONGS, FREE, BlockManager)
def free_nested(self, request_id):
    table = list(self.tables[request_id])
    BlockManager.free(self, request_id)
    gone = [block for block in table if block in self.free_blocks]
    self.free_blocks = deque(b for b in self.free_blocks if b not in gone)
    self.free_blocks.append(gone)


@attempt_at(WRONGS, FREE, BlockManager)
def free_below_zero(self, request_id):
    table = self.tables[request_id]
    BlockManager.free(self, request_id)
    for block in table:
        if not self.ref_counts[block]:
            self.ref_counts[block] = -1


@attempt_at(WRONGS, FREE, BlockManager)
def free_places(self, request_id):
    """Gives back 0, 1, 2, ..., the places in the table."""
    for place, block in enumerate(self.tables.pop(request_id)):
        self.ref_counts[block] -= 1
        if self.ref_counts[block] == 0:
            self.free_blocks.append(place)
    del self.lengths[request_id]


@attempt_at(WRONGS, FREE, BlockManager)
def free_in_another_table(self, request_id):
    del self.lengths[request_id]
    for block in self.tables.popitem()[1]:
        self.ref_counts[block] -= 1
        if self.ref_counts[block] == 0:
            self.free_blocks.append(block)


# ----------------------------------------------------------------------------- BlockManager.fork

FORK = "paged_attention.BlockManager.fork"


@attempt_at(RIGHT, FORK, BlockManager)
def fork_with_a_slice(self, parent_id, child_id):
    for block in self.tables[parent_id]:
        self.ref_counts[block] = self.ref_counts[block] + 1
    self.tables.update({child_id: self.tables[parent_id][:]})
    self.lengths.update({child_id: self.lengths[parent_id]})


@attempt_at(RIGHT, FORK, BlockManager)
def fork_block_by_block(self, parent_id, child_id):
    self.tables[child_id] = []
    for block in self.tables[parent_id]:
        self.tables[child_id] += [block]
        self.ref_counts[block] += 1
    self.lengths[child_id] = self.lengths[parent_id]
    return self.tables[child_id]


@attempt_at(WRONGS, FORK, BlockManager)
def fork_backwards(self, parent_id, child_id):
    BlockManager.fork(self, parent_id, child_id)
    self.tables[child_id].reverse()


@attempt_at(WRONGS, FORK, BlockManager)
def fork_from_the_child(self, parent_id, child_id):
    self.tables[parent_id] = list(self.tables[child_id])


@attempt_at(WRONGS, FORK, BlockManager)
def fork_and_give_the_parent_a_new_list(self, parent_id, child_id):
    BlockManager.fork(self, parent_id, child_id)
    self.tables[parent_id] = []


@attempt_at(WRONGS, FORK, BlockManager)
def fork_counts_places(self, parent_id, child_id):
    self.tables[child_id] = list(self.tables[parent_id])
    self.lengths[child_id] = self.lengths[parent_id]
    for place, _ in enumerate(self.tables[child_id]):
        self.ref_counts[place] += 1


@attempt_at(WRONGS, FORK, BlockManager)
def fork_with_one_token_more(self, parent_id, child_id):
    BlockManager.fork(self, parent_id, child_id)
    self.lengths[child_id] += 1


@attempt_at(WRONGS, FORK, BlockManager)
def fork_takes_from_the_free_blocks(self, parent_id, child_id):
    BlockManager.fork(self, parent_id, child_id)
    if self.free_blocks:
        self.free_blocks.popleft()


# --------------------------------------------------- managers that keep their free blocks otherwise


class FromASet(BlockManager):
    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.free_blocks: Any = set(range(num_blocks))

    def take_block(self) -> int:
        if not self.free_blocks:
            raise OutOfBlocks
        block = self.free_blocks.pop()
        self.ref_counts[block] = 1
        return block

    def free(self, request_id: int) -> None:
        for block in self.tables.pop(request_id):
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                self.free_blocks.add(block)
        del self.lengths[request_id]


class FromAList(BlockManager):
    """A stack, and ref counts in a dict."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.free_blocks: Any = list(range(num_blocks))
        self.ref_counts: Any = dict.fromkeys(range(num_blocks), 0)

    def take_block(self) -> int:
        if not self.free_blocks:
            raise OutOfBlocks
        block = self.free_blocks.pop()
        self.ref_counts[block] = 1
        return block


RIGHT += [
    pytest.param(name, manager, id=f"{name}-{manager.__name__}")
    for name in (ALLOCATE, APPEND, FREE, FORK)
    for manager in (FromASet, FromAList)
]


@given(st.integers(0, 2**32))
def test_whichever_free_block_is_taken_is_right(seed: int) -> None:
    draws = random.Random(seed)

    class FromAnywhere(BlockManager):
        def take_block(self) -> int:
            draws.shuffle(self.free_blocks)
            return super().take_block()

    for name in (ALLOCATE, APPEND):
        assert EXERCISES[name].judge(FromAnywhere, seed).status == PASSED


@given(st.integers(0, 2**32))
def test_a_misconception_is_known_whichever_block_is_taken(seed: int) -> None:
    draws = random.Random(seed)
    exercise = EXERCISES[APPEND]
    wrong = next(m for m in exercise.misconceptions if m.name == "pair_reversed")

    class FromAnywhere(wrong.attempt):
        def take_block(self) -> int:
            draws.shuffle(self.free_blocks)
            return super().take_block()

    assert exercise.judge(FromAnywhere).misconception is wrong


# ---------------------------------------------------------------------------------- slot_mapping

SLOTS = "paged_attention.slot_mapping"


@attempt_at(RIGHT, SLOTS)
def slots_in_loops(block_tables, positions, block_size):
    slots = torch.empty_like(positions)
    for row, table in enumerate(block_tables.tolist()):
        for column, position in enumerate(positions[row].tolist()):
            entry, place = divmod(position, block_size)
            slots[row, column] = table[entry] * block_size + place
    return slots


@attempt_at(RIGHT, SLOTS)
def slots_by_indexing(block_tables, positions, block_size):
    rows = torch.arange(len(positions)).unsqueeze(1)
    entries = torch.div(positions, block_size, rounding_mode="floor")
    return torch.add(positions - entries * block_size, block_size * block_tables[rows, entries])


@attempt_at(RIGHT, SLOTS)
def slots_of_whole_blocks(block_tables, positions, block_size):
    """All slots of every table laid out first."""
    slots = block_tables[:, :, None] * block_size + torch.arange(block_size)
    return slots.flatten(1).take_along_dim(positions, dim=1)


WRONG_SLOTS = {
    "none": lambda tables, positions, size: None,
    "a_list": lambda tables, positions, size: slot_mapping(tables, positions, size).tolist(),
    "flat": lambda tables, positions, size: slot_mapping(tables, positions, size).flatten(),
    "floats": lambda tables, positions, size: slot_mapping(tables, positions, size).double(),
    "from_one": lambda tables, positions, size: slot_mapping(tables, positions, size) + 1,
    "always_four": lambda tables, positions, size: slot_mapping(tables, positions, 4),
    "sorted_tables": lambda tables, positions, size: slot_mapping(
        tables.sort(1)[0], positions, size
    ),
    "last_block": lambda tables, positions, size: tables[:, -1:] * size + positions % size,
    "first_position": lambda tables, positions, size: (
        slot_mapping(tables, positions[:, :1], size) + torch.arange(positions.shape[1])
    ),
    "from_zero": lambda tables, positions, size: slot_mapping(
        tables, torch.arange(positions.shape[1]).expand_as(positions), size
    ),
}
WRONGS += [pytest.param(SLOTS, a, id=f"{SLOTS}-{name}") for name, a in WRONG_SLOTS.items()]


# ------------------------------------------------------------------------------ PagedCache.attend

ATTEND = "paged_attention.PagedCache.attend"


def attended(queries, keys, values, mask):
    scores = queries @ keys.mT / math.sqrt(queries.shape[-1])
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ values


@attempt_at(RIGHT, ATTEND, PagedCache)
def attend_by_block_and_place(self, layer, queries, keys, values):
    size = self.manager.block_size
    blocks, places = self.new_slots // size, self.new_slots % size
    self.pool[0, layer, blocks, places] = keys.transpose(1, 2)
    self.pool[1, layer, blocks, places] = values.transpose(1, 2)
    found = self.pool[:, layer, self.all_slots // size, self.all_slots % size].transpose(2, 3)
    return attended(queries, *found, self.mask)


@attempt_at(RIGHT, ATTEND, PagedCache)
def attend_by_index_put_and_embedding(self, layer, queries, keys, values):
    slots = (self.new_slots.flatten(),)
    rows = []
    for half, new in zip(self.pool[:, layer], (keys, values), strict=True):
        new = new.permute(0, 2, 1, 3)
        half.flatten(0, 1).index_put_(slots, new.flatten(0, 1))
        flat = F.embedding(self.all_slots, half.flatten(0, 1).flatten(1))
        rows.append(flat.unflatten(2, new.shape[2:]).transpose(1, 2))
    return F.scaled_dot_product_attention(queries, *rows, self.mask)


@attempt_at(RIGHT, ATTEND, PagedCache)
def attend_row_by_row(self, layer, queries, keys, values):
    all_keys, all_values = self.pool[:, layer].flatten(1, 2)
    outputs = []
    for row, slots in enumerate(self.new_slots.tolist()):
        for i, slot in enumerate(slots):
            all_keys[slot], all_values[slot] = keys[row, :, i], values[row, :, i]
    for row, slots in enumerate(self.all_slots):
        k, v = all_keys.index_select(0, slots), all_values.index_select(0, slots)
        outputs.append(attended(queries[row], k.transpose(0, 1), v.transpose(0, 1), self.mask[row]))
    return torch.stack(outputs)


@attempt_at(WRONGS, ATTEND, PagedCache)
def attend_in_float32(self, layer, queries, keys, values):
    return PagedCache.attend(self, layer, queries, keys.float().double(), values.float().double())


@attempt_at(WRONGS, ATTEND, PagedCache)
def attend_without_scale(self, layer, queries, keys, values):
    return PagedCache.attend(self, layer, queries * queries.shape[-1] ** 0.5, keys, values)


@attempt_at(WRONGS, ATTEND, PagedCache)
def attend_one_slot_further(self, layer, queries, keys, values):
    self.new_slots = self.new_slots + 1
    return PagedCache.attend(self, layer, queries, keys, values)


@attempt_at(WRONGS, ATTEND, PagedCache)
def attend_over_the_whole_pool(self, layer, queries, keys, values):
    PagedCache.attend(self, layer, queries, keys, values)
    found = self.pool[:, layer].flatten(1, 2).transpose(1, 2)
    return F.scaled_dot_product_attention(queries, *found.unsqueeze(1))


@attempt_at(WRONGS, ATTEND, PagedCache)
def attend_from_tensors_of_its_own(self, layer, queries, keys, values):
    """Appends in lists by layer, as a cache without a pool would; earlier tokens are missing."""
    PagedCache.attend(self, layer, queries, keys, values)
    own = self.__dict__.setdefault("own", {})
    if layer in own and own[layer][0].shape[0] == keys.shape[0]:
        keys = torch.cat([own[layer][0], keys], 2)
        values = torch.cat([own[layer][1], values], 2)
    own[layer] = keys, values
    return F.scaled_dot_product_attention(queries, keys, values)


@attempt_at(WRONGS, ATTEND, PagedCache)
def attend_in_every_layer(self, layer, queries, keys, values):
    for other in range(self.pool.shape[1]):
        output = PagedCache.attend(self, other, queries, keys, values)
    return output


@attempt_at(WRONGS, ATTEND, PagedCache)
def attend_and_clean_up(self, layer, queries, keys, values):
    output = PagedCache.attend(self, layer, queries, keys, values)
    unused = torch.ones(self.pool.shape[2] * self.pool.shape[3], dtype=torch.bool)
    unused[self.all_slots.flatten()] = False
    self.pool[:, layer].flatten(1, 2)[:, unused] = 0
    return output


@attempt_at(WRONGS, ATTEND, PagedCache)
def attend_returns_merged_heads(self, layer, queries, keys, values):
    return PagedCache.attend(self, layer, queries, keys, values).transpose(1, 2).flatten(2)


# ------------------------------------------------------------------------- PagedBatcher.make_room

MAKE_ROOM = "paged_attention.PagedBatcher.make_room"


@attempt_at(RIGHT, MAKE_ROOM, PagedBatcher)
def make_room_by_place(self):
    place = 0
    while place < len(self.running):
        request = self.running[place]
        if self.manager.can_append(request.number):
            self.manager.append(request_id=request.number)
            place += 1
        else:
            self.preempt(self.running[-1])


@attempt_at(RIGHT, MAKE_ROOM, PagedBatcher)
def make_room_by_trying(self):
    for request in list(self.running):
        while request in self.running:
            try:
                self.manager.append(request.number)
                break
            except OutOfBlocks:
                self.preempt(self.running[-1])


@attempt_at(RIGHT, MAKE_ROOM, PagedBatcher)
def make_room_with_if(self):
    """Here no request shares its blocks, so one preemption frees at least one."""
    for request in self.running:
        if not self.manager.can_append(request.number):
            self.preempt(self.running[-1])
        if request in self.running:
            self.manager.append(request.number)


@attempt_at(RIGHT, MAKE_ROOM, PagedBatcher)
def make_room_for_all_first(self):
    def needed():
        lengths = [self.manager.lengths[request.number] for request in self.running]
        return sum(length % self.manager.block_size == 0 for length in lengths)

    while needed() > len(self.manager.free_blocks):
        self.preempt(self.running[-1])
    for request in self.running:
        self.manager.append(request.number)


@attempt_at(RIGHT, MAKE_ROOM, PagedBatcher)
def make_room_as_vllm_does(self):
    running, left = [], deque(self.running)
    while left:
        request = left.popleft()
        while not self.manager.can_append(request.number):
            newest = left.pop() if left else request
            self.running = [*running, request, *left]
            if newest is not request:
                self.running.append(newest)
            self.preempt(newest)
            if newest is request:
                break
        else:
            self.manager.append(request.number)
            running.append(request)
    self.running = running


@attempt_at(RIGHT, MAKE_ROOM, PagedBatcher)
def make_room_without_preempt(self):
    for request in self.running[:]:
        while request in self.running and not self.manager.can_append(request.number):
            newest = self.running.pop()
            self.manager.free(newest.number)
            self.waiting = deque([newest, *self.waiting])
            self.preemptions = self.preemptions + 1
        if request in self.running:
            self.manager.append(request.number)


@attempt_at(WRONGS, MAKE_ROOM, PagedBatcher)
def make_room_by_the_longest(self):
    for request in list(self.running):
        while request in self.running and not self.manager.can_append(request.number):
            self.preempt(max(self.running, key=lambda one: len(one.ids)))
        if request in self.running:
            self.manager.append(request.number)


@attempt_at(WRONGS, MAKE_ROOM, PagedBatcher)
def make_room_one_too_many(self):
    before = self.preemptions
    PagedBatcher.make_room(self)
    if self.preemptions > before and self.running:
        self.preempt(self.running[-1])


@attempt_at(WRONGS, MAKE_ROOM, PagedBatcher)
def make_room_twice(self):
    PagedBatcher.make_room(self)
    PagedBatcher.make_room(self)


@attempt_at(WRONGS, MAKE_ROOM, PagedBatcher)
def make_room_for_those_who_wait(self):
    PagedBatcher.make_room(self)
    if self.waiting and self.manager.free_blocks:
        request = self.waiting.popleft()
        self.manager.allocate(request.number, 1)
        self.running.append(request)


@attempt_at(WRONGS, MAKE_ROOM, PagedBatcher)
def make_room_and_start_again(self):
    before = list(self.running)
    PagedBatcher.make_room(self)
    for request in before:
        if request not in self.running:
            request.ids = request.ids[:1]


@attempt_at(WRONGS, MAKE_ROOM, PagedBatcher)
def make_room_with_numbers(self):
    self.running = [request.number for request in self.running]
    for number in self.running:
        self.manager.append(number)


@attempt_at(WRONGS, MAKE_ROOM, PagedBatcher)
def make_room_by_the_books(self):
    """Forgets tables without giving blocks back."""
    for request in list(self.running):
        while request in self.running and not self.manager.can_append(request.number):
            newest = self.running.pop()
            self.waiting.appendleft(newest)
            self.preemptions += 1
            table = self.manager.tables.pop(newest.number)
            del self.manager.lengths[newest.number]
            self.manager.free_blocks.append(table[0])
        if request in self.running:
            self.manager.append(request.number)


# -------------------------------------------------------------------------------------- the tests


@pytest.mark.parametrize(("name", "attempt"), RIGHT)
def test_a_right_answer_in_another_style_passes(name: str, attempt: Any) -> None:
    for seed in (0, 1):
        judgement = EXERCISES[name].judge(attempt, seed)
        assert judgement.status == PASSED, judgement.message


@pytest.mark.parametrize(("name", "attempt"), WRONGS)
def test_a_wrong_answer_is_rejected_with_a_sentence(name: str, attempt: Any) -> None:
    judgement = EXERCISES[name].judge(attempt)
    assert judgement.status == WRONG
    assert judgement.case is not None
    assert judgement.message


def test_every_exercise_met_both_kinds() -> None:
    for attempts in (RIGHT, WRONGS):
        assert {attempt.values[0] for attempt in attempts} == set(EXERCISES)


def test_a_notebooks_own_out_of_blocks_is_recognised() -> None:
    """There the exception is a class of the student's, whom it is also raised to."""
    notebook = reference_module("paged_attention")
    assert notebook.OutOfBlocks is not OutOfBlocks
    for exercise in EXERCISES.values():
        attempt = getattr(notebook, exercise.attempt_name)
        assert exercise.judge(attempt).status == PASSED
    source = "class OutOfBlocks(Exception):\n    pass\n"
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    tries = type(make_room_by_trying)(make_room_by_trying.__code__, namespace)
    attempt = with_method(PagedBatcher, MAKE_ROOM, tries)
    assert EXERCISES[MAKE_ROOM].judge(attempt).status == PASSED


# ----------------------------------------------------------------- one bug costs one exercise


def undone(*given: Any, **named: Any) -> Any:
    raise NotImplementedError


def wrong(self: Any, *given: Any, **named: Any) -> Any:
    return None


METHODS = {
    ALLOCATE: (BlockManager, "allocate"),
    APPEND: (BlockManager, "append"),
    FREE: (BlockManager, "free"),
    FORK: (BlockManager, "fork"),
    ATTEND: (PagedCache, "attend"),
    MAKE_ROOM: (PagedBatcher, "make_room"),
}
OTHER_METHODS = [
    *((name, BlockManager, other) for name in METHODS for other in ("allocate", "append")),
    *((name, BlockManager, other) for name in METHODS for other in ("free", "fork")),
    (ATTEND, PagedCache, "select"),
    (ATTEND, PagedCache, "copy_block"),
    *((MAKE_ROOM, PagedBatcher, other) for other in ("submit", "admit", "forward", "step", "run")),
]


@pytest.mark.parametrize("other", [undone, wrong])
@pytest.mark.parametrize(
    ("name", "base", "method"),
    [(n, b, m) for n, b, m in OTHER_METHODS if METHODS[n] != (b, m) and METHODS[n][0] is b],
)
def test_another_method_of_the_class_costs_nothing(
    name: str, base: type, method: str, other: Callable
) -> None:
    judgement = EXERCISES[name].judge(type(base.__name__, (base,), {method: other}))
    assert judgement.status == PASSED, judgement.message


@pytest.mark.parametrize(
    ("name", "other"),
    [
        (name, misconception)
        for name, (base, _) in METHODS.items()
        for other, (same, _) in METHODS.items()
        if other != name and same is base
        for misconception in EXERCISES[other].misconceptions
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_mistake_in_one_method_of_the_manager_costs_that_one_only(
    name: str, other: Misconception
) -> None:
    assert EXERCISES[name].judge(other.attempt).status == PASSED


@pytest.mark.parametrize(("name", "method"), METHODS.items())
def test_an_undone_method_is_not_attempted_and_not_wrong(
    name: str, method: tuple[type, str]
) -> None:
    base, own = method
    attempt = type(base.__name__, (base,), {own: undone})
    assert EXERCISES[name].judge(attempt).status == NOT_ATTEMPTED


# ------------------------------------------------------------------------- what a student is told


def told(name: str, misconception: str) -> str:
    exercise = EXERCISES[name]
    attempt = next(m.attempt for m in exercise.misconceptions if m.name == misconception)
    return exercise.judge(attempt).message


def test_broken_books_are_told_by_what_is_broken() -> None:
    assert "is free and in the table of request 1 at once." in told(FREE, "given_back_by_the_first")
    assert "is neither free nor in any table" in told(FREE, "blocks_leaked")
    assert "is among the free blocks 2 times." in told(FREE, "given_back_twice")
    assert "have the same list for a table" in told(FORK, "same_list")
    assert "has a ref count of 1 and is in the tables of requests 0, 1." in told(
        FORK, "nobody_counted"
    )
    assert "request 0 has 1 block for 5 tokens; expected 2 blocks." in told(
        APPEND, "one_token_late"
    )


def test_an_answer_is_told_by_the_students_own_blocks() -> None:
    judgement = EXERCISES[APPEND].judge(
        type("FromASet", (FromASet,), {"append": lambda self, r: FromASet.append(self, r) and 7})
    )
    assert judgement.got is not None
    books = judgement.got.returned["returned"]["`append(1)`"]
    assert judgement.message.endswith(f", {books['tables'][1][-1]}).")


def test_what_should_have_been_raised_is_told() -> None:
    message = told(ALLOCATE, "quietly_nothing")
    assert message == "Step 1, `allocate(9, 5)`, went through; it should have raised OutOfBlocks."


def test_a_value_error_is_told_with_its_words() -> None:
    message = (
        EXERCISES[APPEND]
        .judge(with_method(BlockManager, APPEND, append_raises_a_value_error))
        .message
    )
    assert "raised ValueError (The pool is full.); it should have raised OutOfBlocks." in message


def test_who_waits_in_which_order_is_told() -> None:
    message = told(MAKE_ROOM, "preempted_to_the_back")
    assert message == "The waiting requests, the next one first, are 2, 3, 1; expected 1, 2, 3."
