"""Wrong solutions of lab 4, each with one sentence to whoever wrote it."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from autograder.misconceptions.kv_cache import Wrong
from solutions import paged_attention as right
from solutions.paged_attention import OutOfBlocks

Positions = Int[Tensor, "batch seq"]
Tables = Int[Tensor, "batch blocks"]

ALLOCATE = Wrong(right.BlockManager, "allocate")
APPEND = Wrong(right.BlockManager, "append")
FREE = Wrong(right.BlockManager, "free")
FORK = Wrong(right.BlockManager, "fork")
SLOTS = Wrong()
ATTEND = Wrong(right.PagedCache, "attend")
MAKE_ROOM = Wrong(right.PagedBatcher, "make_room")


# ------------------------------------------------------------------------- BlockManager.allocate


def allocated(
    manager: Any,
    request_id: int,
    num_tokens: int,
    *,
    count: Callable[[Any, int], int] = lambda manager, n: manager.blocks_for(n),
    refused: Callable[[Any, int, int], bool] = lambda manager, needed, n: (
        needed > len(manager.free_blocks)
    ),
    length: Callable[[Any, int], int] = lambda manager, n: n,
) -> None:
    """The right allocate, with one place to go wrong for each of the mistakes below."""
    needed = count(manager, num_tokens)
    if refused(manager, needed, num_tokens):
        raise OutOfBlocks(f"{needed} blocks are needed; {len(manager.free_blocks)} are free.")
    manager.tables[request_id] = [manager.take_block() for _ in range(needed)]
    manager.lengths[request_id] = length(manager, num_tokens)


@ALLOCATE.where(
    "One block too many where the tokens fill theirs exactly: n // block_size + 1 rounds up even "
    "then, and room for the next token is append's affair. Take blocks_for(num_tokens).",
)
def one_block_too_many(self: Any, request_id: int, num_tokens: int) -> None:
    allocated(self, request_id, num_tokens, count=lambda manager, n: n // manager.block_size + 1)


@ALLOCATE.where(
    "The number of blocks is rounded down: the tokens that are left over need a block as well.",
)
def rounded_down(self: Any, request_id: int, num_tokens: int) -> None:
    allocated(self, request_id, num_tokens, count=lambda manager, n: n // manager.block_size)


@ALLOCATE.where(
    "This takes a block for every token: a block has room for block_size of them.",
)
def a_block_for_every_token(self: Any, request_id: int, num_tokens: int) -> None:
    allocated(self, request_id, num_tokens, count=lambda manager, n: n)


@ALLOCATE.where(
    "This takes one block, however many tokens there are: a prompt may need several.",
)
def always_one_block(self: Any, request_id: int, num_tokens: int) -> None:
    allocated(self, request_id, num_tokens, count=lambda manager, n: 1)


@ALLOCATE.where(
    "Where the pool has too few blocks, OutOfBlocks comes after some of them were taken: they are "
    "in no table, so nobody ever gives them back. Count first, then take.",
)
def takes_before_it_counts(self: Any, request_id: int, num_tokens: int) -> None:
    allocated(self, request_id, num_tokens, refused=lambda manager, needed, n: False)


@ALLOCATE.where(
    "A request that was refused stays behind with the blocks it got before the pool ran empty: "
    "count first, then take.",
)
def refused_with_half_a_table(self: Any, request_id: int, num_tokens: int) -> None:
    self.tables[request_id] = []
    for _ in range(self.blocks_for(num_tokens)):
        self.tables[request_id].append(self.take_block())
    self.lengths[request_id] = num_tokens


@ALLOCATE.where(
    "The number of blocks is compared with num_blocks, the size of the whole pool: what counts is "
    "how many are free.",
)
def compares_with_the_whole_pool(self: Any, request_id: int, num_tokens: int) -> None:
    def refused(manager, needed, n):
        return needed > manager.num_blocks

    allocated(self, request_id, num_tokens, refused=refused)


@ALLOCATE.where(
    "The number of tokens is compared with the number of free blocks: compare the blocks that are "
    "needed, or requests are refused that would fit.",
)
def compares_tokens_with_blocks(self: Any, request_id: int, num_tokens: int) -> None:
    def refused(manager, needed, n):
        return n > len(manager.free_blocks)

    allocated(self, request_id, num_tokens, refused=refused)


@ALLOCATE.where(
    "A request that needs exactly as many blocks as are free is refused: the last one may be taken "
    "too.",
)
def keeps_one_block_back(self: Any, request_id: int, num_tokens: int) -> None:
    def refused(manager, needed, n):
        return needed >= len(manager.free_blocks)

    allocated(self, request_id, num_tokens, refused=refused)


@ALLOCATE.where(
    "Where the pool has too few blocks, it quietly does nothing: raise OutOfBlocks, or the caller "
    "goes on as if it had them.",
)
def quietly_nothing(self: Any, request_id: int, num_tokens: int) -> None:
    if self.blocks_for(num_tokens) <= len(self.free_blocks):
        allocated(self, request_id, num_tokens)


@ALLOCATE.where(
    "Where the pool has too few blocks, the request gets those that are left: its tokens have no "
    "place then. Raise OutOfBlocks and take none.",
)
def takes_what_there_is(self: Any, request_id: int, num_tokens: int) -> None:
    def count(manager, n):
        return min(manager.blocks_for(n), len(manager.free_blocks))

    allocated(self, request_id, num_tokens, count=count)


@ALLOCATE.where(
    "It raises ValueError where the pool has too few blocks: that one is for calls that make no "
    "sense. A full pool is an everyday event with a name of its own, OutOfBlocks.",
)
def value_error_for_a_full_pool(self: Any, request_id: int, num_tokens: int) -> None:
    if self.blocks_for(num_tokens) > len(self.free_blocks):
        raise ValueError("There are not enough blocks.")
    allocated(self, request_id, num_tokens)


@ALLOCATE.where(
    "The blocks that were taken have no ref count: it must be 1 for each of them. `take_block` "
    "sees to that.",
)
def nobody_counts(self: Any, request_id: int, num_tokens: int) -> None:
    refuse_too_many(self, num_tokens)
    self.tables[request_id] = [
        self.free_blocks.popleft() for _ in range(self.blocks_for(num_tokens))
    ]
    self.lengths[request_id] = num_tokens


@ALLOCATE.where(
    "Every block is counted twice: `take_block` has set its ref count to 1 already, and 2 means "
    "that it never becomes free again.",
)
def counted_twice(self: Any, request_id: int, num_tokens: int) -> None:
    allocated(self, request_id, num_tokens)
    for block in self.tables[request_id]:
        self.ref_counts[block] += 1


@ALLOCATE.where(
    "The blocks are still among the free ones, so the next request gets them too: take them out, "
    "as `take_block` does.",
)
def looked_at_but_not_taken(self: Any, request_id: int, num_tokens: int) -> None:
    refuse_too_many(self, num_tokens)
    self.tables[request_id] = list(self.free_blocks)[: self.blocks_for(num_tokens)]
    for block in self.tables[request_id]:
        self.ref_counts[block] = 1
    self.lengths[request_id] = num_tokens


@ALLOCATE.where(
    "The blocks are numbered from 0, whoever holds them: take them from the free ones, in whatever "
    "order they come.",
)
def numbered_from_zero(self: Any, request_id: int, num_tokens: int) -> None:
    allocated(self, request_id, num_tokens)
    self.tables[request_id] = list(range(len(self.tables[request_id])))


@ALLOCATE.where(
    "The table holds one and the same block several times: take a block for each place in it.",
)
def one_block_repeated(self: Any, request_id: int, num_tokens: int) -> None:
    refuse_too_many(self, num_tokens)
    self.tables[request_id] = [self.take_block()] * self.blocks_for(num_tokens)
    self.lengths[request_id] = num_tokens


@ALLOCATE.where(
    "The length is missing: `lengths[request_id]` says how many tokens have a place, and append "
    "goes by it.",
)
def no_length(self: Any, request_id: int, num_tokens: int) -> None:
    allocated(self, request_id, num_tokens)
    del self.lengths[request_id]


@ALLOCATE.where(
    "The length counts all the room in the blocks: it must count the tokens, or append leaves the "
    "rest of the last block empty.",
)
def length_is_the_room(self: Any, request_id: int, num_tokens: int) -> None:
    def length(manager, n):
        return manager.blocks_for(n) * manager.block_size

    allocated(self, request_id, num_tokens, length=length)


@ALLOCATE.where(
    "The length counts blocks: it must count the tokens that have a place.",
)
def length_in_blocks(self: Any, request_id: int, num_tokens: int) -> None:
    allocated(self, request_id, num_tokens, length=lambda manager, n: manager.blocks_for(n))


@ALLOCATE.where(
    "The length starts at 0, as if nothing had a place yet: the tokens that were asked for have "
    "theirs now, so it is num_tokens.",
)
def length_zero(self: Any, request_id: int, num_tokens: int) -> None:
    allocated(self, request_id, num_tokens, length=lambda manager, n: 0)


def refuse_too_many(manager, num_tokens) -> None:
    if manager.blocks_for(num_tokens) > len(manager.free_blocks):
        raise OutOfBlocks("There are too few free blocks.")


# --------------------------------------------------------------------------- BlockManager.append


def replaced(manager: Any, table: list[int]) -> tuple[int, int]:
    """Copy-on-write as it should be: a block of one's own in place of the shared last one."""
    copy = table[-1], manager.take_block()
    manager.ref_counts[table[-1]] -= 1
    table[-1] = copy[1]
    return copy


def appended(
    manager: Any,
    request_id: int,
    *,
    is_full: Callable[[Any, int], bool] = lambda manager, length: length % manager.block_size == 0,
    is_shared: Callable[[Any, list[int]], bool] = lambda manager, table: (
        manager.ref_counts[table[-1]] > 1
    ),
    extend: Callable[[Any, list[int]], Any] = lambda manager, table: table.append(
        manager.take_block()
    ),
    replace: Callable[[Any, list[int]], Any] = replaced,
) -> Any:
    """The right append, with one place to go wrong for each of the mistakes below."""
    table, copy = manager.tables[request_id], None
    if is_full(manager, manager.lengths[request_id]):
        copy = extend(manager, table)
    elif is_shared(manager, table):
        copy = replace(manager, table)
    manager.lengths[request_id] += 1
    return copy


@APPEND.where(
    "The new block comes one token too late: `length` counts the tokens so far, so the last block "
    "is full where length % block_size is 0, not 1. By then a token had no place.",
)
def one_token_late(self: Any, request_id: int) -> Any:
    def is_full(manager, length):
        return length % manager.block_size == 1

    return appended(self, request_id, is_full=is_full)


@APPEND.where(
    "The new block comes one token too early, with the token that fills the last one: it would "
    "stand empty. Take it when the last block is full and one more token comes.",
)
def one_token_early(self: Any, request_id: int) -> Any:
    def is_full(manager, length):
        return (length + 1) % manager.block_size == 0

    return appended(self, request_id, is_full=is_full)


@APPEND.where(
    "A full last block is never followed by a new one: where length % block_size is 0, the next "
    "token needs one.",
)
def never_a_new_block(self: Any, request_id: int) -> Any:
    return appended(self, request_id, is_full=lambda manager, length: False)


@APPEND.where(
    "Every token gets a new block: one is needed only where the last block is full.",
)
def always_a_new_block(self: Any, request_id: int) -> Any:
    return appended(self, request_id, is_full=lambda manager, length: True)


@APPEND.where(
    "The new block takes the place of the full one in the table, whose tokens are lost: it belongs "
    "behind it.",
)
def new_block_instead_of_the_full_one(self: Any, request_id: int) -> Any:
    def extend(manager, table):
        table[-1] = manager.take_block()

    return appended(self, request_id, extend=extend)


@APPEND.where(
    "A new block has no ref count: it must be 1. `take_block` sees to that.",
)
def new_block_not_counted(self: Any, request_id: int) -> Any:
    def extend(manager, table):
        if not manager.free_blocks:
            raise OutOfBlocks("There is no free block.")
        table.append(manager.free_blocks.popleft())

    return appended(self, request_id, extend=extend)


@APPEND.where(
    "The length stays as it was: it grows by 1, for one more token has a place now.",
)
def length_stays(self: Any, request_id: int) -> Any:
    copy = appended(self, request_id)
    self.lengths[request_id] -= 1
    return copy


@APPEND.where(
    "Copy-on-write is missing: a last block with a ref count above 1 belongs to others too, and "
    "the new token would be written into their text.",
)
def writes_into_a_shared_block(self: Any, request_id: int) -> Any:
    return appended(self, request_id, is_shared=lambda manager, table: False)


@APPEND.where(
    "A last block is copied even where the request alone holds it: only a ref count above 1 calls "
    "for a copy.",
)
def copies_its_own_block(self: Any, request_id: int) -> Any:
    return appended(self, request_id, is_shared=lambda manager, table: True)


@APPEND.where(
    "It looks at the ref count of the first block: the token goes into the last one, table[-1].",
)
def looks_at_the_first_block(self: Any, request_id: int) -> Any:
    def is_shared(manager, table):
        return manager.ref_counts[table[0]] > 1

    return appended(self, request_id, is_shared=is_shared)


@APPEND.where(
    "A shared block that is full is copied, and the new token still has no place: nobody writes "
    "into a full block. Ask first whether it is full; then a new block is all it takes.",
)
def copies_a_full_block(self: Any, request_id: int) -> Any:
    def is_full(manager, length):
        shared = manager.ref_counts[manager.tables[request_id][-1]] > 1
        return length % manager.block_size == 0 and not shared

    return appended(self, request_id, is_full=is_full)


@APPEND.where(
    "A shared block that is full is copied, and then followed by a new one: nobody writes into a "
    "full block, so it can stay shared.",
)
def copies_a_full_block_and_takes_another(self: Any, request_id: int) -> Any:
    def extend(manager, table):
        copy = replaced(manager, table) if manager.ref_counts[table[-1]] > 1 else None
        table.append(manager.take_block())
        return copy

    return appended(self, request_id, extend=extend)


@APPEND.where(
    "The old block keeps its ref count when the request leaves it: lower it by 1, or the last "
    "holder copies too, and the block never becomes free.",
)
def old_ref_count_stays(self: Any, request_id: int) -> Any:
    def replace(manager, table):
        copy = table[-1], manager.take_block()
        table[-1] = copy[1]
        return copy

    return appended(self, request_id, replace=replace)


@APPEND.where(
    "The table still holds the shared block: the new one takes its place there, or the tokens are "
    "copied for nobody.",
)
def table_not_changed(self: Any, request_id: int) -> Any:
    def replace(manager, table):
        manager.ref_counts[table[-1]] -= 1
        return table[-1], manager.take_block()

    return appended(self, request_id, replace=replace)


@APPEND.where(
    "The copy is put behind the shared block: it takes its place, for it holds the same tokens.",
)
def copy_put_behind(self: Any, request_id: int) -> Any:
    def replace(manager, table):
        copy = table[-1], manager.take_block()
        manager.ref_counts[table[-1]] -= 1
        table.append(copy[1])
        return copy

    return appended(self, request_id, replace=replace)


@APPEND.where(
    "The block that was left is put among the free ones although others still hold it: only its "
    "ref count goes down.",
)
def shared_block_given_back(self: Any, request_id: int) -> Any:
    def replace(manager, table):
        copy = replaced(manager, table)
        manager.free_blocks.append(copy[0])
        return copy

    return appended(self, request_id, replace=replace)


@APPEND.where(
    "The pair is the wrong way round: (old block, new block), or the cache copies the empty one "
    "over the tokens.",
)
def pair_reversed(self: Any, request_id: int) -> Any:
    return appended(self, request_id, replace=lambda manager, table: replaced(manager, table)[::-1])


@APPEND.where(
    "The books are right, but nobody is told of the copy: return (old block, new block), for the "
    "cache to copy the tokens.",
)
def copy_not_told(self: Any, request_id: int) -> Any:
    appended(self, request_id)


@APPEND.where(
    "Only the new block is returned: the cache must know both, (old block, new block).",
)
def only_the_new_block_told(self: Any, request_id: int) -> Any:
    return appended(self, request_id, replace=lambda manager, table: replaced(manager, table)[1])


@APPEND.where(
    "A copy is announced where a full block got a successor: that one starts empty, so return None "
    "there.",
)
def copy_told_for_a_new_block(self: Any, request_id: int) -> Any:
    def extend(manager, table):
        table.append(manager.take_block())
        return table[-2], table[-1]

    return appended(self, request_id, extend=extend)


@APPEND.where(
    "Every shared block of the table is replaced: only the last one is written, and the others can "
    "stay shared.",
)
def replaces_the_whole_table(self: Any, request_id: int) -> Any:
    def replace(manager, table):
        copy = replaced(manager, table)
        for i, block in enumerate(table[:-1]):
            if manager.ref_counts[block] > 1:
                table[i] = manager.take_block()
                manager.ref_counts[block] -= 1
        return copy

    return appended(self, request_id, replace=replace)


@APPEND.where(
    "The length grows although the pool was empty: after OutOfBlocks everything must be as it was, "
    "so take the block first.",
)
def length_grows_before_the_block_is_there(self: Any, request_id: int) -> Any:
    try:
        return appended(self, request_id)
    except OutOfBlocks:
        self.lengths[request_id] += 1
        raise


@APPEND.where(
    "The old block's ref count goes down although there was no block to replace it: after "
    "OutOfBlocks everything must be as it was, so take the new block first.",
)
def ref_count_lowered_before_the_block_is_there(self: Any, request_id: int) -> Any:
    def replace(manager, table):
        old = table[-1]
        manager.ref_counts[old] -= 1
        table[-1] = manager.take_block()
        return old, table[-1]

    return appended(self, request_id, replace=replace)


@APPEND.where(
    "An empty pool is refused even where no block is needed: a last block that has room, and that "
    "nobody shares, takes the token.",
)
def refused_though_none_is_needed(self: Any, request_id: int) -> Any:
    if not self.free_blocks:
        raise OutOfBlocks("There is no free block.")
    return appended(self, request_id)


@APPEND.where(
    "Where a block is needed and none is free, it quietly returns: raise OutOfBlocks, or the "
    "caller takes it that the token has a place.",
)
def quietly_no_room(self: Any, request_id: int) -> Any:
    try:
        return appended(self, request_id)
    except OutOfBlocks:
        return None


# ----------------------------------------------------------------------------- BlockManager.free


@FREE.where(
    "A block is given back by the first one who leaves it, while others still hold it: it becomes "
    "free only when its ref count has come down to 0.",
)
def given_back_by_the_first(self: Any, request_id: int) -> None:
    for block in self.tables.pop(request_id):
        self.ref_counts[block] -= 1
        self.free_blocks.append(block)
    del self.lengths[request_id]


@FREE.where(
    "The ref counts are set to 0 whoever else holds the blocks: each goes down by 1, and a block "
    "becomes free only at 0.",
)
def ref_counts_set_to_zero(self: Any, request_id: int) -> None:
    for block in self.tables.pop(request_id):
        self.ref_counts[block] = 0
        self.free_blocks.append(block)
    del self.lengths[request_id]


@FREE.where(
    "The ref counts are ignored: each block has one holder fewer now, and becomes free only when "
    "none is left.",
)
def ref_counts_ignored(self: Any, request_id: int) -> None:
    self.free_blocks.extend(self.tables.pop(request_id))
    del self.lengths[request_id]


@FREE.where(
    "A block is given back while one other request still holds it: it becomes free at a ref count "
    "of 0, not of 1.",
)
def given_back_by_the_last_but_one(self: Any, request_id: int) -> None:
    for block in self.tables.pop(request_id):
        self.ref_counts[block] -= 1
        if self.ref_counts[block] <= 1:
            self.free_blocks.append(block)
    del self.lengths[request_id]


@FREE.where(
    "The request is forgotten and its blocks are not given back: they are lost to the pool. Lower "
    "their ref counts, and put those that nobody holds among the free ones.",
)
def blocks_leaked(self: Any, request_id: int) -> None:
    del self.tables[request_id], self.lengths[request_id]


@FREE.where(
    "The ref counts go down, but no block ever gets back among the free ones: one that has come to "
    "0 belongs there.",
)
def counted_down_and_leaked(self: Any, request_id: int) -> None:
    for block in self.tables.pop(request_id):
        self.ref_counts[block] -= 1
    del self.lengths[request_id]


@FREE.where(
    "Only the last block is given back: go through the whole table.",
)
def last_block_only(self: Any, request_id: int) -> None:
    give_back(self, self.tables.pop(request_id)[-1:])
    del self.lengths[request_id]


@FREE.where(
    "Only the full blocks are given back: the last one, which is filled in part, is lost to the "
    "pool. Go through the whole table.",
)
def full_blocks_only(self: Any, request_id: int) -> None:
    full = self.lengths.pop(request_id) // self.block_size
    give_back(self, self.tables.pop(request_id)[:full])


@FREE.where(
    "Every other block is left out: a list that loses elements while a loop walks it skips the "
    "next ones. Walk the table first, and drop it whole.",
)
def list_changed_while_walked(self: Any, request_id: int) -> None:
    table = self.tables[request_id]
    for block in table:
        give_back(self, [block])
        table.remove(block)
    del self.tables[request_id], self.lengths[request_id]


@FREE.where(
    "A block is put among the free ones twice, so that two requests will get it: append it once, "
    "when its ref count comes to 0.",
)
def given_back_twice(self: Any, request_id: int) -> None:
    for block in self.tables.pop(request_id):
        if self.ref_counts[block] == 1:
            self.free_blocks.append(block)
        give_back(self, [block])
    del self.lengths[request_id]


@FREE.where(
    "The ref count of a shared block never goes down, so it is lost when the last holder leaves: "
    "lower it by 1 each time, shared or not.",
)
def shared_count_never_lowered(self: Any, request_id: int) -> None:
    for block in self.tables.pop(request_id):
        if self.ref_counts[block] == 1:
            give_back(self, [block])
    del self.lengths[request_id]


@FREE.where(
    "The length of a request that is gone is still there: drop it with the table.",
)
def length_kept(self: Any, request_id: int) -> None:
    give_back(self, self.tables.pop(request_id))


@FREE.where(
    "The block table is still there, with blocks that others will soon hold: drop it with the "
    "length.",
)
def table_kept(self: Any, request_id: int) -> None:
    give_back(self, self.tables[request_id])
    del self.lengths[request_id]


@FREE.where(
    "The table is emptied and the request stays, with no block: drop it from `tables` and "
    "`lengths`, or its number can never be used again.",
)
def emptied_and_kept(self: Any, request_id: int) -> None:
    give_back(self, self.tables[request_id])
    self.tables[request_id], self.lengths[request_id] = [], 0


@FREE.where(
    "Everybody who shares a block with this request loses it: only this request leaves, and the "
    "tables of the others stay as they are.",
)
def taken_from_the_others_too(self: Any, request_id: int) -> None:
    table = self.tables.pop(request_id)
    give_back(self, table)
    for request, other in self.tables.items():
        self.tables[request] = [block for block in other if block not in table]
    del self.lengths[request_id]


def give_back(manager, blocks) -> None:
    for block in blocks:
        manager.ref_counts[block] -= 1
        if manager.ref_counts[block] == 0:
            manager.free_blocks.append(block)


# ----------------------------------------------------------------------------- BlockManager.fork


def forked(
    manager: Any,
    parent_id: int,
    child_id: int,
    *,
    counted: Callable[[list[int]], list[int]] = lambda table: table,
    length: Callable[[Any, int], int] = lambda manager, n: n,
) -> None:
    """The right fork, with one place to go wrong for some of the mistakes below."""
    manager.tables[child_id] = list(manager.tables[parent_id])
    manager.lengths[child_id] = length(manager, manager.lengths[parent_id])
    for block in counted(manager.tables[child_id]):
        manager.ref_counts[block] += 1


@FORK.where(
    "Parent and child have one and the same list for a table, so a block that is appended to one "
    "is appended to the other: give the child a list of its own.",
)
def same_list(self: Any, parent_id: int, child_id: int) -> None:
    forked(self, parent_id, child_id)
    self.tables[child_id] = self.tables[parent_id]


@FORK.where(
    "The ref counts stay as they were: every block of the table has one holder more now, or the "
    "first one who leaves takes the blocks away from the other.",
)
def nobody_counted(self: Any, parent_id: int, child_id: int) -> None:
    forked(self, parent_id, child_id, counted=lambda table: [])


@FORK.where(
    "Only the last block's ref count goes up: the others are shared just as well.",
)
def last_block_counted(self: Any, parent_id: int, child_id: int) -> None:
    forked(self, parent_id, child_id, counted=lambda table: table[-1:])


@FORK.where(
    "Only the full blocks' ref counts go up: the last one, filled in part, is shared too, and its "
    "ref count is what tells append to copy it.",
)
def full_blocks_counted(self: Any, parent_id: int, child_id: int) -> None:
    full = self.lengths[parent_id] // self.block_size
    forked(self, parent_id, child_id, counted=lambda table: table[:full])


@FORK.where(
    "The ref counts are set to 2: a block may have had several holders already, so add 1 to what "
    "is there.",
)
def ref_counts_set_to_two(self: Any, parent_id: int, child_id: int) -> None:
    forked(self, parent_id, child_id, counted=lambda table: [])
    for block in self.tables[child_id]:
        self.ref_counts[block] = 2


@FORK.where(
    "Every ref count goes up by 2: the parent's hold was counted when it got the block; only the "
    "child's is new.",
)
def both_counted(self: Any, parent_id: int, child_id: int) -> None:
    forked(self, parent_id, child_id, counted=lambda table: table * 2)


@FORK.where(
    "The child gets blocks of its own at once: a fork costs no memory. It shares every block, and "
    "append copies the one that is written, if it ever is.",
)
def copies_at_once(self: Any, parent_id: int, child_id: int) -> None:
    self.tables[child_id] = [self.take_block() for _ in self.tables[parent_id]]
    self.lengths[child_id] = self.lengths[parent_id]


@FORK.where(
    "The last block is copied at once: share it too. Append copies it when one of the two writes, "
    "and then only the first of them.",
)
def copies_the_last_block_at_once(self: Any, parent_id: int, child_id: int) -> None:
    forked(self, parent_id, child_id, counted=lambda table: table[:-1])
    self.tables[child_id][-1] = self.take_block()


@FORK.where(
    "The child gets the full blocks only: it begins with all the tokens, those in the last block "
    "too.",
)
def full_blocks_only_shared(self: Any, parent_id: int, child_id: int) -> None:
    forked(self, parent_id, child_id, counted=lambda table: [])
    full = self.lengths[parent_id] // self.block_size
    self.tables[child_id] = self.tables[child_id][:full]
    for block in self.tables[child_id]:
        self.ref_counts[block] += 1


@FORK.where(
    "The child has no length: it has as many tokens as its parent.",
)
def child_without_length(self: Any, parent_id: int, child_id: int) -> None:
    forked(self, parent_id, child_id)
    del self.lengths[child_id]


@FORK.where(
    "The child's length is 0: it begins with all the tokens of its parent.",
)
def child_with_length_zero(self: Any, parent_id: int, child_id: int) -> None:
    forked(self, parent_id, child_id, length=lambda manager, n: 0)


@FORK.where(
    "The child's length is all the room in its blocks: it has as many tokens as its parent.",
)
def child_with_full_blocks(self: Any, parent_id: int, child_id: int) -> None:
    def length(manager, n):
        return manager.blocks_for(n) * manager.block_size

    forked(self, parent_id, child_id, length=length)


@FORK.where(
    "The parent has lost its table to the child: both go on from here.",
)
def parent_loses_its_table(self: Any, parent_id: int, child_id: int) -> None:
    self.tables[child_id] = self.tables.pop(parent_id)
    self.lengths[child_id] = self.lengths.pop(parent_id)


# ---------------------------------------------------------------------------------- slot_mapping


@SLOTS.where(
    "% and // are exchanged: position // block_size is the place in the block table, and position "
    "% block_size the place within the block.",
)
def exchanged(block_tables: Tables, positions: Positions, block_size: int) -> Tensor:
    blocks = block_tables.gather(1, positions % block_size)
    return blocks * block_size + positions // block_size


@SLOTS.where(
    "The block is right, the place within it is not: that is position % block_size, not //.",
)
def place_by_division(block_tables: Tables, positions: Positions, block_size: int) -> Tensor:
    return block_tables.gather(1, positions // block_size) * block_size + positions // block_size


@SLOTS.where(
    "position // block_size is taken for the block itself: it only says which entry of the block "
    "table to read, and the entry is the block.",
)
def without_the_table(block_tables: Tables, positions: Positions, block_size: int) -> Tensor:
    return positions // block_size * block_size + positions % block_size


@SLOTS.where(
    "The block's number is not multiplied by block_size: block b begins at slot b * block_size.",
)
def block_size_forgotten(block_tables: Tables, positions: Positions, block_size: int) -> Tensor:
    return block_tables.gather(1, positions // block_size) + positions % block_size


@SLOTS.where(
    "Every token of a block gets the block's first slot: add its place within the block, position "
    "% block_size.",
)
def place_forgotten(block_tables: Tables, positions: Positions, block_size: int) -> Tensor:
    return block_tables.gather(1, positions // block_size) * block_size


@SLOTS.where(
    "The whole position is added to the block's first slot: only its place within the block, "
    "position % block_size, counts there.",
)
def whole_position_added(block_tables: Tables, positions: Positions, block_size: int) -> Tensor:
    return block_tables.gather(1, positions // block_size) * block_size + positions


@SLOTS.where(
    "All is counted on from the first block of the table, as if the others followed it: they lie "
    "anywhere in the pool, so look each one up.",
)
def on_from_the_first_block(block_tables: Tables, positions: Positions, block_size: int) -> Tensor:
    return block_tables[:, :1] * block_size + positions


@SLOTS.where(
    "Every row is looked up in the first row's table: each request has a table of its own.",
)
def first_rows_table(block_tables: Tables, positions: Positions, block_size: int) -> Tensor:
    return block_tables[0][positions // block_size] * block_size + positions % block_size


@SLOTS.where(
    "Every position is looked up in the tables of all rows, so the result has a dimension too "
    "many: row i belongs to table i, which is what gather(1, ...) does.",
)
def all_rows_tables(block_tables: Tables, positions: Positions, block_size: int) -> Tensor:
    return block_tables[:, positions // block_size] * block_size + positions % block_size


@SLOTS.where(
    "It gathers along dimension 0, over the rows: the blocks of a row lie along dimension 1.",
)
def gathered_over_the_rows(block_tables: Tables, positions: Positions, block_size: int) -> Tensor:
    blocks = block_tables.gather(0, positions // block_size)
    return blocks * block_size + positions % block_size


@SLOTS.where(
    "The table is read at the position itself: it has an entry for every block, not for every "
    "token. Read it at position // block_size.",
)
def table_by_token(block_tables: Tables, positions: Positions, block_size: int) -> Tensor:
    return block_tables.gather(1, positions) * block_size + positions % block_size


@SLOTS.where(
    "/ makes floats, and the table can't be read at 0.75: // is the division that rounds down.",
)
def true_division(block_tables: Tables, positions: Positions, block_size: int) -> Tensor:
    return block_tables.gather(1, positions / block_size) * block_size + positions % block_size


@SLOTS.where(
    "Positions are counted from 1: here they count from 0, and position block_size is the first of "
    "the second block.",
)
def counted_from_one(block_tables: Tables, positions: Positions, block_size: int) -> Tensor:
    before = (positions - 1).clamp(min=0)
    return block_tables.gather(1, before // block_size) * block_size + before % block_size


@SLOTS.where(
    "The block's number is multiplied by the length of the table: what counts is how many tokens a "
    "block has, block_size.",
)
def times_the_length_of_the_table(
    block_tables: Tables, positions: Positions, block_size: int
) -> Tensor:
    blocks = block_tables.gather(1, positions // block_size)
    return blocks * block_tables.shape[1] + positions % block_size


# ------------------------------------------------------------------------------ PagedCache.attend


def paged(
    cache: Any,
    layer: int,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    write: Callable[..., None] | None = None,
    read: Callable[[Any, Tensor], Tensor] = lambda cache, lying: lying[cache.all_slots].transpose(
        1, 2
    ),
    mask: Callable[[Any], Tensor | None] = lambda cache: cache.mask,
) -> Tensor:
    """The right attend, with one place to go wrong for each of the mistakes below."""
    all_keys, all_values = cache.pool[:, layer].flatten(1, 2)
    (write or written)(cache, all_keys, all_values, keys, values)
    return F.scaled_dot_product_attention(
        queries, read(cache, all_keys), read(cache, all_values), attn_mask=mask(cache)
    )


def written(cache, all_keys, all_values, keys, values, slots=None) -> None:
    slots = cache.new_slots if slots is None else slots
    all_keys[slots], all_values[slots] = keys.transpose(1, 2), values.transpose(1, 2)


@ATTEND.where(
    "The row's tokens are gathered before the new ones are written, so these can't see themselves: "
    "write first, then gather.",
)
def gathered_before_writing(
    self: Any, layer: int, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    all_keys, all_values = self.pool[:, layer].flatten(1, 2)
    row_keys = all_keys[self.all_slots].transpose(1, 2)
    row_values = all_values[self.all_slots].transpose(1, 2)
    written(self, all_keys, all_values, keys, values)
    return F.scaled_dot_product_attention(queries, row_keys, row_values, attn_mask=self.mask)


@ATTEND.where(
    "The values are written over the keys: they have a half of the pool to themselves, all_values.",
)
def values_over_the_keys(
    self: Any, layer: int, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    def write(cache, all_keys, all_values, keys, values):
        written(cache, all_keys, all_keys, keys, values)

    return paged(self, layer, queries, keys, values, write=write)


@ATTEND.where(
    "The keys are written into both halves of the pool: all_values holds the values, which "
    "attention sums up.",
)
def keys_in_both_halves(
    self: Any, layer: int, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    return paged(self, layer, queries, keys, keys)


@ATTEND.where(
    "The new keys and values get into a copy and never into the pool: the next forward won't find "
    "them. Write in place, all_keys[self.new_slots] = ...",
)
def written_into_a_copy(
    self: Any, layer: int, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    kept = self.pool.clone()
    output = paged(self, layer, queries, keys, values)
    self.pool.copy_(kept)
    return output


@ATTEND.where(
    "The new tokens are written to the front of the row's first block, over the first tokens: "
    "`new_slots` says where they go.",
)
def written_to_the_first_block(
    self: Any, layer: int, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    def write(cache, all_keys, all_values, keys, values):
        slots = cache.all_slots[:, : queries.shape[2]]
        written(cache, all_keys, all_values, keys, values, slots)

    return paged(self, layer, queries, keys, values, write=write)


@ATTEND.where(
    "The new tokens are written to the last columns of `all_slots`: those are the last tokens of "
    "the longest row only. `new_slots` says where each row's go.",
)
def written_to_the_last_columns(
    self: Any, layer: int, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    def write(cache, all_keys, all_values, keys, values):
        slots = cache.all_slots[:, -queries.shape[2] :]
        written(cache, all_keys, all_values, keys, values, slots)

    return paged(self, layer, queries, keys, values, write=write)


@ATTEND.where(
    "The tensors are reshaped where they should be transposed: the shape fits, but the numbers of "
    "different heads and tokens get mixed. Exchange the dimensions with transpose(1, 2).",
)
def reshaped_instead_of_transposed(
    self: Any, layer: int, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    def write(cache, all_keys, all_values, keys, values):
        rows, heads, q_len, head_dim = keys.shape
        all_keys[cache.new_slots] = keys.reshape(rows, q_len, heads, head_dim)
        all_values[cache.new_slots] = values.reshape(rows, q_len, heads, head_dim)

    return paged(self, layer, queries, keys, values, write=write)


@ATTEND.where(
    "The slots count tokens, [rows, q_len], and the new keys come as [rows, heads, q_len, "
    "head_dim]: transpose(1, 2) puts the tokens in front of the heads before they are written.",
)
def not_transposed_for_writing(
    self: Any, layer: int, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    def write(cache, all_keys, all_values, keys, values):
        all_keys[cache.new_slots], all_values[cache.new_slots] = keys, values

    return paged(self, layer, queries, keys, values, write=write)


@ATTEND.where(
    "What was gathered is [rows, k_len, heads, head_dim], and attention wants the heads in front "
    "of the tokens: transpose(1, 2) once more.",
)
def not_transposed_for_reading(
    self: Any, layer: int, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    def read(cache, lying):
        return lying[cache.all_slots]

    return paged(self, layer, queries, keys, values, read=read)


@ATTEND.where(
    "Only the newest token of each row is written: in prefill there are q_len of them, and "
    "`new_slots` has a slot for each.",
)
def only_the_newest_written(
    self: Any, layer: int, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    def write(cache, all_keys, all_values, keys, values):
        slots = cache.new_slots[:, -1:]
        written(cache, all_keys, all_values, keys[:, :, -1:], values[:, :, -1:], slots)

    return paged(self, layer, queries, keys, values, write=write)


@ATTEND.where(
    "Only the first row's tokens are written: every row has slots of its own in `new_slots`.",
)
def only_the_first_row_written(
    self: Any, layer: int, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    def write(cache, all_keys, all_values, keys, values):
        written(cache, all_keys, all_values, keys[:1], values[:1], cache.new_slots[:1])

    return paged(self, layer, queries, keys, values, write=write)


@ATTEND.where(
    "The row's tokens are read from the front of the pool, by position: they lie in its blocks, at "
    "`all_slots`.",
)
def gathered_by_position(
    self: Any, layer: int, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    def read(cache, lying):
        slots = torch.arange(cache.all_slots.shape[1]).expand_as(cache.all_slots)
        return lying[slots].transpose(1, 2)

    return paged(self, layer, queries, keys, values, read=read)


@ATTEND.where(
    "All rows read the first row's tokens: each has its own slots in `all_slots`.",
)
def first_rows_tokens_for_all(
    self: Any, layer: int, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    def read(cache, lying):
        slots = cache.all_slots[:1].expand_as(cache.all_slots)
        return lying[slots].transpose(1, 2)

    return paged(self, layer, queries, keys, values, read=read)


@ATTEND.where(
    "The tokens are written to the pool but not read from it: the queries meet only the new keys, "
    "without those of the prefix.",
)
def new_tokens_only(self: Any, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    paged(self, layer, queries, keys, values)
    return F.scaled_dot_product_attention(queries, keys, values, is_causal=True)


@ATTEND.where(
    "The mask is left out: a token sees those after it, and a row that is shorter than the longest "
    "sees whatever lies in slots that are not its own.",
)
def no_mask(self: Any, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return paged(self, layer, queries, keys, values, mask=lambda cache: None)


@ATTEND.where(
    "There is no mask in decode: one new token sees all of its own row, but a row that is shorter "
    "than the longest also reads slots that are not its own.",
)
def no_mask_in_decode(
    self: Any, layer: int, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    def mask(cache):
        return cache.mask if queries.shape[2] > 1 else None

    return paged(self, layer, queries, keys, values, mask=mask)


@ATTEND.where(
    "is_causal=True lays its triangle at the first key: behind a prefix a new token would see the "
    "start of the text and not itself. Hand over self.mask.",
)
def is_causal(self: Any, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    def mask(cache):
        return torch.ones(cache.mask.shape[-2:], dtype=torch.bool).tril()

    return paged(self, layer, queries, keys, values, mask=mask)


@ATTEND.where(
    "The mask is inverted: True means that the query may see the key.",
)
def mask_inverted(self: Any, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return paged(self, layer, queries, keys, values, mask=lambda cache: ~cache.mask)


@ATTEND.where(
    "Every layer writes into the memory of layer 0, and so overwrites the one before it: each has "
    "its own, self.pool[:, layer].",
)
def one_layer_for_all(
    self: Any, layer: int, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    return paged(self, 0, queries, keys, values)


# ------------------------------------------------------------------------- PagedBatcher.make_room


def room(
    batcher: Any,
    *,
    lacks: Callable[[Any, Any], bool] = lambda manager, request: (
        not manager.can_append(request.number)
    ),
    victim: Callable[[list[Any], Any], Any] = lambda running, request: running[-1],
    preempt: Callable[[Any, Any], None] = lambda batcher, request: batcher.preempt(request),
    serve: Callable[[Any, Any], Any] = lambda manager, request: manager.append(request.number),
) -> None:
    """The right make_room, with one place to go wrong for each of the mistakes below."""
    for request in list(batcher.running):
        while request in batcher.running and lacks(batcher.manager, request):
            preempt(batcher, victim(batcher.running, request))
        if request in batcher.running:
            serve(batcher.manager, request)


@MAKE_ROOM.where(
    "The oldest request is preempted: it has the most work behind it, and all of that would be "
    "computed again. The newest one goes, self.running[-1].",
)
def oldest_preempted(self: Any) -> None:
    room(self, victim=lambda running, request: running[0])


@MAKE_ROOM.where(
    "The request with the highest number is preempted: the newest is the one that was admitted "
    "last, self.running[-1]. One that was preempted before comes back with its old number.",
)
def highest_number_preempted(self: Any) -> None:
    room(self, victim=lambda running, request: max(running, key=lambda one: one.number))


@MAKE_ROOM.where(
    "Whoever needs a block preempts itself, even an old one: it is the newest request that makes "
    "room, so that the oldest always gets on.",
)
def the_needy_preempted(self: Any) -> None:
    room(self, victim=lambda running, request: request)


@MAKE_ROOM.where(
    "The newest request takes the blocks of an older one rather than its own: where it is itself "
    "the newest, it is the one that goes.",
)
def the_newest_spares_itself(self: Any) -> None:
    def victim(running, request):
        others = [one for one in running if one is not request]
        return others[-1] if others else request

    room(self, victim=victim)


@MAKE_ROOM.where(
    "All of the running requests are preempted at once: one at a time, the newest first, and only "
    "until there is a block.",
)
def all_preempted(self: Any) -> None:
    for request in list(self.running):
        if request in self.running and not self.manager.can_append(request.number):
            while self.running:
                self.preempt(self.running[-1])
        if request in self.running:
            self.manager.append(request.number)


@MAKE_ROOM.where(
    "A request is preempted as soon as the pool is empty, though nobody needs a block: one whose "
    "last block has room can go on. Ask can_append.",
)
def preempts_though_none_is_needed(self: Any) -> None:
    room(self, lacks=lambda manager, request: not manager.free_blocks)


@MAKE_ROOM.where(
    "A request is preempted though a block is free: a full last block is no reason by itself. Ask "
    "can_append.",
)
def preempts_though_a_block_is_free(self: Any) -> None:
    def lacks(manager, request):
        return manager.lengths[request.number] % manager.block_size == 0

    room(self, lacks=lacks)


@MAKE_ROOM.where(
    "A free block is kept ready for every running request: most have room in their last block. "
    "Preempt only for one that needs a block.",
)
def a_block_for_each(self: Any) -> None:
    while len(self.running) > len(self.manager.free_blocks):
        self.preempt(self.running[-1])
    for request in self.running:
        self.manager.append(request.number)


@MAKE_ROOM.where(
    "Only the first request is asked whether it finds a block: what it takes, the next one lacks. "
    "Ask before every append.",
)
def only_the_first_asked(self: Any) -> None:
    while self.running and not self.manager.can_append(self.running[0].number):
        self.preempt(self.running[-1])
    for request in self.running:
        self.manager.append(request.number)


@MAKE_ROOM.where(
    "All are asked before anybody gets a block: two who each find the last free one can't both "
    "have it. Ask, then append, one after the other.",
)
def all_asked_beforehand(self: Any) -> None:
    for request in list(self.running):
        while request in self.running and not self.manager.can_append(request.number):
            self.preempt(self.running[-1])
    for request in self.running:
        self.manager.append(request.number)


@MAKE_ROOM.where(
    "Nobody is ever preempted: where the pool is empty, append raises OutOfBlocks. Ask can_append "
    "first.",
)
def never_preempts(self: Any) -> None:
    for request in self.running:
        self.manager.append(request.number)


@MAKE_ROOM.where(
    "A request that has just been preempted is given a place as well: it has no blocks any more. "
    "Append only for those who still run.",
)
def the_preempted_served_too(self: Any) -> None:
    for request in list(self.running):
        while request in self.running and not self.manager.can_append(request.number):
            self.preempt(self.running[-1])
        self.manager.append(request.number)


@MAKE_ROOM.where(
    "Nobody gets a place: where there is a block, self.manager.append(request.number) takes it and "
    "lets the length grow.",
)
def nobody_served(self: Any) -> None:
    room(self, serve=lambda manager, request: None)


@MAKE_ROOM.where(
    "Only requests with a full last block get a place: the next token of the others needs one too, "
    "in the block they have, so append for all of them.",
)
def only_the_full_served(self: Any) -> None:
    def serve(manager, request):
        if manager.lengths[request.number] % manager.block_size == 0:
            manager.append(request.number)

    room(self, serve=serve)


@MAKE_ROOM.where(
    "It stops at the first preemption: the requests that still run get no place in this step.",
)
def stops_at_the_first_preemption(self: Any) -> None:
    for request in list(self.running):
        if not self.manager.can_append(request.number):
            self.preempt(self.running[-1])
            return
        self.manager.append(request.number)


@MAKE_ROOM.where(
    "It preempts for a request and then passes it over: once a block is free, the request gets it "
    "in the same step.",
)
def preempts_and_passes_over(self: Any) -> None:
    for request in list(self.running):
        if request in self.running:
            if self.manager.can_append(request.number):
                self.manager.append(request.number)
            else:
                self.preempt(self.running[-1])


def by_hand(batcher, request) -> None:
    """What `preempt` does, but for the queue."""
    batcher.running.remove(request)
    batcher.manager.free(request.number)
    batcher.preemptions += 1


@MAKE_ROOM.where(
    "The preempted request waits behind all others: it has come before them, and half its work is "
    "done. It waits in front, as `preempt` sees to.",
)
def preempted_to_the_back(self: Any) -> None:
    def preempt(batcher, request):
        by_hand(batcher, request)
        batcher.waiting.append(request)

    room(self, preempt=preempt)


@MAKE_ROOM.where(
    "Of two preempted requests the newer one waits in front: the older goes first, which comes by "
    "itself when each is put in front as it is preempted.",
)
def the_newer_waits_in_front(self: Any) -> None:
    preempted: list[Any] = []

    def preempt(batcher, request):
        by_hand(batcher, request)
        preempted.append(request)

    room(self, preempt=preempt)
    self.waiting.extendleft(reversed(preempted))


@MAKE_ROOM.where(
    "The preempted request waits, but keeps its blocks, so that no block becomes free: `preempt` "
    "gives them back.",
)
def preempted_with_its_blocks(self: Any) -> None:
    def preempt(batcher, request):
        batcher.running.remove(request)
        batcher.waiting.appendleft(request)
        batcher.preemptions += 1

    room(self, preempt=preempt)


@MAKE_ROOM.where(
    "The preempted request is dropped: it has to wait, in front of all others, or nobody ever "
    "finishes it.",
)
def preempted_and_forgotten(self: Any) -> None:
    room(self, preempt=by_hand)


@MAKE_ROOM.where(
    "The preemptions are not counted: `preempt` does everything that goes with one.",
)
def not_counted(self: Any) -> None:
    def preempt(batcher, request):
        batcher.preempt(request)
        batcher.preemptions -= 1

    room(self, preempt=preempt)
