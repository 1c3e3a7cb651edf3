"""The reference solution of lab 4: blocks that lie anywhere in a pool.

A block belongs to those whose tables hold it and to nobody else, after every operation; a pool that
runs empty costs work, never tokens.
"""

import random
from collections import Counter
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solutions import paged_attention as lab_4
from solutions.batching import generate_continuous
from solutions.engine.integrity import check_integrity
from solutions.kv_cache import CachedLMHead
from solutions.paged_attention import BlockManager, Family, OutOfBlocks, PagedBatcher, PagedCache
from tests.common.engines import (
    CONFIGS,
    Work,
    arrivals,
    assert_same,
    blocks_for,
    configs,
    continuations,
    model_of,
    naive,
    naive_logits,
    seeds,
    serve_over_time,
    shapes_of_forwards,
    works,
)

block_sizes = st.integers(1, 17)


# ------------------------------------------------------------------------------- the contract


def numbers(requests: Any) -> list[int]:
    return [request.number for request in requests]


def smallest_pool(work: Work, block_size: int) -> int:
    """Blocks that the largest request may need: with fewer it would be refused."""
    ends = [
        min(len(prompt) + limit, work.config.n_positions)
        for prompt, limit in zip(work.prompts, work.limits, strict=True)
    ]
    return max(1, blocks_for(max(ends) - 1, block_size))


@given(arrivals(), block_sizes, st.integers(0, 3), st.integers(1, 6))
def test_arrivals_in_a_small_pool(arrival, block_size, spare, max_running):
    """After every step each block has its holder, and those who came first are in front.

    A preemption costs what is computed again, and nothing else.
    """
    work, pauses = arrival
    num_blocks = smallest_pool(work, block_size) + spare
    batcher = PagedBatcher(work.model, num_blocks, block_size, max_running, work.eos)
    computed_again, preempt = [], batcher.preempt

    def preempt_and_count(request: Any) -> None:
        computed_again.append(len(request.ids) - 1)  # the newest token was never computed
        preempt(request)

    batcher.preempt = preempt_and_count
    with shapes_of_forwards(work.model) as shapes:
        for _ in serve_over_time(batcher, work, pauses):
            running, waiting = numbers(batcher.running), numbers(batcher.waiting)
            assert running + waiting == sorted(running + waiting)
            assert len(running) <= max_running
            assert set(running) <= set(batcher.trace[-1])  # who runs on has got a token
            assert batcher.outputs.keys().isdisjoint(running + waiting)
            lengths = {request.number: request.num_computed_tokens for request in batcher.running}
            assert batcher.manager.lengths == lengths
            assert all(len(r.ids) == r.num_computed_tokens + 1 for r in batcher.running)
            assert all(request.num_computed_tokens == 0 for request in batcher.waiting)
            check_integrity(batcher.manager)
    assert batcher.manager.used_blocks == 0
    assert [batcher.outputs[number] for number in range(len(work.prompts))] == work.expected
    expected = work.tokens_computed_alone + sum(computed_again)
    assert sum(rows * length for rows, length in shapes) == expected
    assert batcher.preemptions == len(computed_again)


@given(works(), block_sizes, st.integers(1, 6))
def test_ample_pool_works_as_slots_do(work, block_size, max_running):
    """The same forwards in the same order, each token once: blocks cost no work by themselves."""
    num_blocks = smallest_pool(work, block_size) * len(work.prompts)
    requests = work.model, work.prompts, work.limits
    batcher = PagedBatcher(work.model, num_blocks, block_size, max_running, work.eos)
    with shapes_of_forwards(work.model) as shapes:
        list(serve_over_time(batcher, work, [0] * len(work.prompts)))
    with shapes_of_forwards(work.model) as expected:
        served = generate_continuous(*requests, max_running, work.eos)
    assert shapes == expected
    slots = [[number for number in step if number is not None] for step in served.trace]
    assert batcher.trace == [sorted(step) for step in slots]  # oldest first, and no gaps
    assert sum(rows * length for rows, length in shapes) == work.tokens_computed_alone


# --------------------------------------------------------------------------------- who holds what


class WatchedManager:
    """A BlockManager beside the texts that its requests should hold, in a pool of plain tokens.

    Every operation must take as many blocks as it needs and no more, be refused where there are
    fewer, change nothing then, and leave to every request the text that is its own.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.manager = BlockManager(num_blocks, block_size)
        self.pool: list[int | None] = [None] * (num_blocks * block_size)
        self.texts: dict[int, list[int]] = {}
        self.new_tokens, self.new_ids = count(), count()  # no token twice: a mix-up shows
        self.happened: Counter[str] = Counter()

    def slot(self, request_id: int, position: int) -> int:
        block_size = self.manager.block_size
        block = self.manager.tables[request_id][position // block_size]
        return block * block_size + position % block_size

    def write(self, request_id: int, num_tokens: int) -> None:
        text = self.texts.setdefault(request_id, [])
        for position in range(len(text), len(text) + num_tokens):
            text.append(next(self.new_tokens))
            self.pool[self.slot(request_id, position)] = text[-1]

    def is_refused(self, needed: int, operation: Any, *given: int) -> bool:
        if needed <= len(self.manager.free_blocks):
            return False
        before, free = state(self.manager), len(self.manager.free_blocks)
        sentence = f"{needed} blocks are needed; {free} are free|All .* blocks are taken"
        with pytest.raises(OutOfBlocks, match=sentence):
            operation(*given)
        assert state(self.manager) == before
        self.happened["refused"] += 1
        return True

    def allocate(self, num_tokens: int) -> int | None:
        """The new request's id; None where it got no blocks."""
        request_id, free = next(self.new_ids), list(self.manager.free_blocks)
        needed = blocks_for(num_tokens, self.manager.block_size)
        if self.is_refused(needed, self.manager.allocate, request_id, num_tokens):
            return None
        self.manager.allocate(request_id, num_tokens)
        assert self.manager.tables[request_id] == free[:needed]
        assert list(self.manager.free_blocks) == free[needed:]
        self.write(request_id, num_tokens)
        self.check("allocate")
        return request_id

    def append(self, request_id: int) -> None:
        manager, free = self.manager, list(self.manager.free_blocks)
        last, block_size = manager.tables[request_id][-1], manager.block_size
        is_full = len(self.texts[request_id]) % block_size == 0
        is_shared = sum(last in table for table in manager.tables.values()) > 1
        needed = int(is_full or is_shared)
        assert manager.can_append(request_id) == (needed <= len(free))
        if self.is_refused(needed, manager.append, request_id):
            return
        copy = manager.append(request_id)
        assert list(manager.free_blocks) == free[needed:]
        if is_shared and not is_full:
            assert copy == (last, manager.tables[request_id][-1]) == (last, free[0])
            places = [block * block_size for block in copy]
            source, target = (slice(place, place + block_size) for place in places)
            self.pool[target] = self.pool[source]
            self.happened["copy"] += 1
        else:
            assert copy is None
        self.write(request_id, 1)
        self.check("append")

    def fork(self, parent_id: int) -> int:
        child_id, free = next(self.new_ids), list(self.manager.free_blocks)
        self.manager.fork(parent_id, child_id)
        assert list(self.manager.free_blocks) == free
        self.texts[child_id] = list(self.texts[parent_id])
        self.check("fork")
        return child_id

    def free(self, request_id: int) -> None:
        """Its blocks join those that are free in the order of its table."""
        before, table = list(self.manager.free_blocks), self.manager.tables[request_id]
        self.manager.free(request_id)
        free = [block for block in table if self.manager.ref_counts[block] == 0]
        assert list(self.manager.free_blocks) == before + free
        del self.texts[request_id]
        self.check("free")

    def check(self, operation: str) -> None:
        self.happened[operation] += 1
        check_integrity(self.manager)
        held = {block for table in self.manager.tables.values() for block in table}
        assert self.manager.used_blocks == len(held)
        for request_id, text in self.texts.items():
            slots = [self.slot(request_id, position) for position in range(len(text))]
            assert [self.pool[slot] for slot in slots] == text
        assert self.manager.lengths == {r: len(text) for r, text in self.texts.items()}


def state(manager: BlockManager) -> Any:
    tables = {request_id: list(table) for request_id, table in manager.tables.items()}
    return tables, dict(manager.lengths), list(manager.ref_counts), list(manager.free_blocks)


@pytest.mark.parametrize(("num_blocks", "block_size"), [(12, 1), (9, 3), (24, 4), (6, 16)])
def test_no_block_lost_in_10_000_operations(num_blocks: int, block_size: int) -> None:
    rng, watched = random.Random(0), WatchedManager(num_blocks, block_size)
    for _ in range(10_000):
        requests = list(watched.texts)
        # few requests at a time: more of them would only keep the pool full
        if not requests or (len(requests) < 6 and rng.random() < 0.15):
            watched.allocate(rng.randint(1, 3 * block_size))
        elif len(requests) < 6 and rng.random() < 0.15:
            watched.fork(rng.choice(requests))
        elif rng.random() < 0.2:
            watched.free(rng.choice(requests))
        else:
            watched.append(rng.choice(requests))
    common = ["allocate", "append", "free", "fork", "refused", *["copy"] * (block_size > 1)]
    assert all(watched.happened[operation] > 100 for operation in common), watched.happened
    for request_id in rng.sample(requests := list(watched.texts), len(requests)):
        watched.free(request_id)
    assert watched.manager.used_blocks == 0
    assert sorted(watched.manager.free_blocks) == list(range(num_blocks))


# ------------------------------------------------------------------------------------- the cache


@given(configs, seeds, block_sizes, st.data())
def test_family_branches_in_any_way(config, seed, block_size, data):
    """Rows fork and are forgotten at every step; each keeps the logits of its own text."""
    generation = st.integers(1, 4)
    length = data.draw(st.integers(1, config.n_positions - 1))
    steps = data.draw(st.integers(1, min(4, config.n_positions - length)))
    ids = st.integers(0, config.vocab_size - 1)
    texts = [data.draw(st.lists(ids, min_size=length, max_size=length))]
    pool = 4 * blocks_for(length + steps, block_size), block_size
    family = Family(model_of(CachedLMHead, config, seed), texts[0], *pool)
    assert_same(family.logits, naive_logits(config, seed, texts))
    for _ in range(steps):
        size = data.draw(generation)
        parent = st.integers(0, len(texts) - 1)
        parents = data.draw(st.lists(parent, min_size=size, max_size=size))
        tokens = data.draw(st.lists(ids, min_size=size, max_size=size))
        texts = [texts[p] + [token] for p, token in zip(parents, tokens, strict=True)]
        family.become(parents)
        family.append(tokens)
        assert_same(family.logits, naive_logits(config, seed, texts))
        check_integrity(family.manager)
        assert list(family.manager.tables) == family.members


# --------------------------------------------------------------------------------------- batcher


def batcher_of(num_blocks: int, block_size: int, max_running: int = 3) -> PagedBatcher:
    model = model_of(CachedLMHead, CONFIGS[0], 0)
    return PagedBatcher(model, num_blocks, block_size, max_running)


@pytest.mark.parametrize(
    ("lengths", "num_blocks", "running", "waiting"),
    [
        ([2, 2, 2], 6, [0, 1, 2], []),  # a block for each
        ([3, 3, 3], 6, [0, 1, 2], []),  # the pool is empty, but their last blocks have room
        ([3, 3, 2], 5, [0, 1], [2]),  # only the last one needs a block: it must go itself
        ([2, 2, 4], 4, [0, 1], [2]),  # its two blocks are enough for both
        ([2, 2, 2], 3, [0], [1, 2]),  # 0 takes the block of 2, then 1 finds nobody else
        ([3, 2, 1], 4, [0, 1], [2]),  # 2 needs none itself, but it is the newest
    ],
)
def test_room_is_made_by_the_newest(lengths, num_blocks, running, waiting):
    """Three prompts in blocks of 2, one step later, when each needs a place for its next token."""
    batcher = batcher_of(num_blocks, block_size=2)
    for length in lengths:
        batcher.submit([1] * length, 4)
    batcher.step()
    assert numbers(batcher.running) == [0, 1, 2]
    batcher.make_room()
    assert numbers(batcher.running) == running
    assert numbers(batcher.waiting) == waiting
    assert batcher.preemptions == len(waiting)
    expected = {number: lengths[number] + 1 for number in running}
    assert batcher.manager.lengths == expected
    check_integrity(batcher.manager)


# -------------------------------------------------------------------------------------- branches


@given(continuations(), st.integers(1, 4), block_sizes)
def test_branches_go_on_as_the_naive_loop(case: Any, count: int, block_size: int) -> None:
    config, seed, prompt, new = case
    model, before = model_of(CachedLMHead, config, seed), list(prompt)

    def branch(num_blocks: int) -> tuple[Family, list[list[int]]]:
        family = Family(model, prompt, num_blocks, block_size)
        return family, lab_4.branches(family, prompt, new, count)

    family, texts = branch(99)
    firsts = naive_logits(config, seed, [prompt])[0].topk(count).indices.tolist()
    assert texts == [naive(config, seed, [*prompt, first], new - 1) for first in firsts]
    assert prompt == before

    stored = blocks_for(len(prompt) + new - 1, block_size)  # by each; the last token never is
    if new == 1:  # they part behind the prompt, where nothing is stored any more
        expected_peak, expected_copies = stored, 0
    else:
        full = len(prompt) // block_size
        expected_peak = full + count * (stored - full)
        expected_copies = count - 1 if len(prompt) % block_size else 0
    assert (family.peak_blocks, family.copies) == (expected_peak, expected_copies)
    assert branch(family.peak_blocks)[1] == texts
    if family.peak_blocks > 1:
        with pytest.raises(OutOfBlocks):
            branch(family.peak_blocks - 1)


# --------------------------------------------------------------------- what is refused, and how


@pytest.mark.parametrize(
    ("operation", "given", "sentence"),
    [
        ("append", (7,), "no request 7 in this pool. It holds 0, 1"),
        ("can_append", (7,), "no request 7"),
        ("free", (7,), "no request 7"),
        ("fork", (7, 8), "no request 7"),
        ("fork", (0, 1), "Request 1 has blocks already"),
        ("fork", (0, 0), "Request 0 has blocks already"),
        ("allocate", (1, 3), "Request 1 has blocks already"),
        ("allocate", (7, 0), "num_tokens must be at least 1, not 0"),
        ("allocate", (7, -4), "num_tokens must be at least 1, not -4"),
    ],
)
def test_refused_operations_change_nothing(operation, given, sentence):
    manager = BlockManager(num_blocks=6, block_size=2)
    manager.allocate(0, 3)
    manager.fork(0, 1)
    before = state(manager)
    with pytest.raises(ValueError, match=sentence):
        getattr(manager, operation)(*given)
    assert state(manager) == before
    manager.allocate(7, 8)
    check_integrity(manager)


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 4), (4, 0), (-1, 4), (4, -1)])
def test_empty_pools_are_refused(num_blocks: int, block_size: int) -> None:
    model, sentence = model_of(CachedLMHead, CONFIGS[0], 0), "at least one block, and a block room"
    pool = num_blocks, block_size
    for make in (
        lambda: BlockManager(*pool),
        lambda: PagedBatcher(model, *pool, max_running=1),
        lambda: lab_4.generate_paged(model, [[1]], [3], *pool, max_running=1),
        lambda: Family(model, [1], *pool),
    ):
        with pytest.raises(ValueError, match=sentence):
            make()


def test_oversized_requests_are_refused() -> None:
    """4 blocks of 2 serve a text of 9, whose last token is never stored, and none of 10."""
    batcher = batcher_of(num_blocks=4, block_size=2)
    with pytest.raises(ValueError, match="grow to 10 tokens, which takes 5 blocks; the pool has 4"):
        batcher.submit([1, 2, 3], 7)
    batcher.submit([1, 2, 3], 6)
    batcher.run()
    assert batcher.outputs == {0: naive(CONFIGS[0], 0, [1, 2, 3], 6)}
    with pytest.raises(ValueError, match=r"At least one request must run.*not 0"):
        batcher_of(num_blocks=4, block_size=2, max_running=0)


def test_unknown_requests_are_refused() -> None:
    with pytest.raises(ValueError, match=r"It holds none\."):
        BlockManager(3, 2).free(0)
    manager = BlockManager(num_blocks=2, block_size=4)
    manager.allocate(3, num_tokens=2)
    kv_cache = PagedCache(CONFIGS[0], manager)
    with pytest.raises(ValueError, match="no request 8 in this pool"):
        kv_cache.select([3, 8], q_len=1)
    assert kv_cache.select([3], q_len=1).tolist() == [[1]]
