"""The reference solution of lab 4: the naive tokens, from blocks that lie anywhere in a pool.

A block belongs to those whose tables hold it and to nobody else, after every operation; a pool that
runs empty costs work, never tokens.
"""

import random
from collections import Counter, deque
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, multiple, rule
from torch import Tensor

from gpt import GPTConfig
from solutions import paged_attention as lab_4
from solutions.batching import generate_continuous
from solutions.kv_cache import CachedLMHead, KVCache
from solutions.paged_attention import BlockManager, Family, OutOfBlocks, PagedBatcher, PagedCache
from tests.common.engines import (
    BAD_REQUESTS,
    CONFIGS,
    Work,
    arrivals,
    assert_attends_only_to_what_was_selected,
    assert_same,
    configs,
    continuations,
    every_step_serves_somebody,
    model_of,
    naive,
    naive_logits,
    seeds,
    serve_over_time,
    shapes_of_forwards,
    works,
)

block_sizes = st.integers(1, 17)


@pytest.fixture(autouse=True, scope="module")
def _watched() -> Iterator[None]:
    with every_step_serves_somebody(PagedBatcher):
        yield


def blocks(num_tokens: int, block_size: int) -> int:
    return (num_tokens + block_size - 1) // block_size


def assert_sound(manager: BlockManager) -> None:
    """Every block is free or held by as many tables as its ref count says; nothing is wasted."""
    held = Counter(block for table in manager.tables.values() for block in table)
    numbers = range(manager.num_blocks)
    assert manager.ref_counts == [held[block] for block in numbers]
    assert sorted(manager.free_blocks) == [block for block in numbers if not held[block]]
    assert len(manager.free_blocks) + manager.used_blocks == manager.num_blocks
    assert manager.used_blocks == len(held)
    assert manager.tables.keys() == manager.lengths.keys()
    for request_id, table in manager.tables.items():
        assert len(set(table)) == len(table)
        waste = len(table) * manager.block_size - manager.lengths[request_id]
        assert 0 <= waste < manager.block_size


# ------------------------------------------------------------------------------- the contract


def smallest_pool(work: Work, block_size: int) -> int:
    """Blocks that the largest request may need: with fewer it would be refused."""
    ends = [
        min(len(prompt) + limit, work.config.n_positions)
        for prompt, limit in zip(work.prompts, work.limits, strict=True)
    ]
    return max(1, blocks(max(ends) - 1, block_size))


@given(works(), block_sizes, st.integers(0, 8), st.integers(1, 6))
def test_paged_blocks_give_the_tokens_of_the_naive_loop(
    work: Work, block_size: int, spare: int, max_running: int
) -> None:
    before = [list(prompt) for prompt in work.prompts]
    pool = smallest_pool(work, block_size) + spare, block_size, max_running
    outputs = lab_4.generate_paged(work.model, work.prompts, work.limits, *pool, work.eos)
    assert outputs == work.expected
    assert work.prompts == before


@given(arrivals(), block_sizes, st.integers(0, 3), st.integers(1, 6))
def test_requests_may_come_at_any_time_to_a_small_pool(
    arrival: tuple[Work, list[int]], block_size: int, spare: int, max_running: int
) -> None:
    """After every step each block has its holder, and those who came first are in front."""
    work, pauses = arrival
    num_blocks = smallest_pool(work, block_size) + spare
    batcher = PagedBatcher(work.model, num_blocks, block_size, max_running, work.eos)
    for _ in serve_over_time(batcher, work, pauses):
        running = [request.number for request in batcher.running]
        waiting = [request.number for request in batcher.waiting]
        assert running + waiting == sorted(running + waiting)
        assert len(running) <= max_running
        assert set(running) <= set(batcher.trace[-1])  # who runs on has got a token
        assert batcher.outputs.keys().isdisjoint(running + waiting)
        lengths = {request.number: request.num_computed_tokens for request in batcher.running}
        assert batcher.manager.lengths == lengths
        assert all(len(r.ids) == r.num_computed_tokens + 1 for r in batcher.running)
        assert all(request.num_computed_tokens == 0 for request in batcher.waiting)
        assert_sound(batcher.manager)
    assert batcher.manager.used_blocks == 0
    assert [batcher.outputs[number] for number in range(len(work.prompts))] == work.expected


@given(works(), block_sizes, st.integers(1, 6))
def test_an_ample_pool_does_the_work_of_continuous_batching(
    work: Work, block_size: int, max_running: int
) -> None:
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


@given(works(), block_sizes, st.integers(1, 6))
def test_preemption_costs_what_is_computed_again(
    work: Work, block_size: int, max_running: int
) -> None:
    num_blocks = smallest_pool(work, block_size)
    batcher = PagedBatcher(work.model, num_blocks, block_size, max_running, work.eos)
    computed_again, preempt = [], batcher.preempt

    def preempt_and_count(request: Any) -> None:
        computed_again.append(len(request.ids) - 1)  # the newest token was never computed
        preempt(request)

    batcher.preempt = preempt_and_count  # type: ignore[method-assign]
    with shapes_of_forwards(work.model) as shapes:
        list(serve_over_time(batcher, work, [0] * len(work.prompts)))
    expected = work.tokens_computed_alone + sum(computed_again)
    assert sum(rows * length for rows, length in shapes) == expected
    assert batcher.preemptions == len(computed_again)


@pytest.mark.parametrize(("block_size", "num_blocks"), [(1, 10), (2, 5), (3, 4), (5, 2), (4, 3)])
def test_a_pool_for_one_serves_four_by_preemption(block_size: int, num_blocks: int) -> None:
    """Each grows to 11 tokens, 10 of them stored, in a pool that holds 10 to 12."""
    config, prompts = CONFIGS[1], [[3, 14, 15], [9, 2, 6], [5, 35, 8], [9, 7, 9]]
    model = model_of(CachedLMHead, config, 0)
    batcher = PagedBatcher(model, num_blocks, block_size, max_running=4)
    for prompt in prompts:
        batcher.submit(prompt, 8)
    batcher.run()
    assert batcher.preemptions > 0
    assert batcher.manager.used_blocks == 0
    expected = {number: naive(config, 0, prompt, 8) for number, prompt in enumerate(prompts)}
    assert batcher.outputs == expected


# --------------------------------------------------------------------------------- who holds what


def test_a_fork_by_hand() -> None:
    manager = BlockManager(num_blocks=5, block_size=4)
    manager.allocate(0, 5)
    assert manager.tables == {0: [0, 1]}
    manager.fork(0, 1)
    assert manager.tables == {0: [0, 1], 1: [0, 1]}
    assert manager.lengths == {0: 5, 1: 5}
    assert manager.ref_counts == [2, 2, 0, 0, 0]
    assert manager.append(1) == (1, 2)  # block 1 is request 0's too
    assert manager.tables == {0: [0, 1], 1: [0, 2]}
    assert manager.ref_counts == [2, 1, 1, 0, 0]
    assert manager.append(0) is None  # by now its own
    assert manager.append(0) is manager.append(0) is None
    assert manager.tables[0] == [0, 1]
    assert manager.lengths == {0: 8, 1: 6}
    manager.fork(0, 2)
    assert manager.append(2) is None  # a full block stays shared
    assert manager.tables == {0: [0, 1], 1: [0, 2], 2: [0, 1, 3]}
    manager.free(0)
    assert manager.ref_counts == [2, 1, 1, 1, 0]
    manager.free(1)
    manager.free(2)
    assert manager.ref_counts == [0] * 5
    assert manager.free_blocks == deque([4, 2, 0, 1, 3])  # as they became free, table by table
    assert manager.tables == manager.lengths == {}


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
        before = state(self.manager)
        with pytest.raises(OutOfBlocks):
            operation(*given)
        assert state(self.manager) == before
        self.happened["refused"] += 1
        return True

    def allocate(self, num_tokens: int) -> int | None:
        """The new request's id; None where it got no blocks."""
        request_id, free = next(self.new_ids), len(self.manager.free_blocks)
        needed = blocks(num_tokens, self.manager.block_size)
        if self.is_refused(needed, self.manager.allocate, request_id, num_tokens):
            return None
        self.manager.allocate(request_id, num_tokens)
        assert len(self.manager.free_blocks) == free - needed
        self.write(request_id, num_tokens)
        self.check("allocate")
        return request_id

    def append(self, request_id: int) -> None:
        manager, free = self.manager, len(self.manager.free_blocks)
        last, block_size = manager.tables[request_id][-1], manager.block_size
        is_full = len(self.texts[request_id]) % block_size == 0
        is_shared = sum(last in table for table in manager.tables.values()) > 1
        needed = int(is_full or is_shared)
        assert manager.can_append(request_id) == (needed <= free)
        if self.is_refused(needed, manager.append, request_id):
            return
        copy = manager.append(request_id)
        assert len(manager.free_blocks) == free - needed
        if is_shared and not is_full:
            assert copy == (last, manager.tables[request_id][-1])
            places = [block * block_size for block in copy]
            source, target = (slice(place, place + block_size) for place in places)
            self.pool[target] = self.pool[source]
            self.happened["copy"] += 1
        else:
            assert copy is None
        self.write(request_id, 1)
        self.check("append")

    def fork(self, parent_id: int) -> int:
        child_id, free = next(self.new_ids), len(self.manager.free_blocks)
        self.manager.fork(parent_id, child_id)
        assert len(self.manager.free_blocks) == free
        self.texts[child_id] = list(self.texts[parent_id])
        self.check("fork")
        return child_id

    def free(self, request_id: int) -> None:
        self.manager.free(request_id)
        del self.texts[request_id]
        self.check("free")

    def check(self, operation: str) -> None:
        self.happened[operation] += 1
        assert_sound(self.manager)
        for request_id, text in self.texts.items():
            slots = [self.slot(request_id, position) for position in range(len(text))]
            assert [self.pool[slot] for slot in slots] == text
        assert self.manager.lengths == {r: len(text) for r, text in self.texts.items()}


def state(manager: BlockManager) -> Any:
    tables = {request_id: list(table) for request_id, table in manager.tables.items()}
    return tables, dict(manager.lengths), list(manager.ref_counts), list(manager.free_blocks)


@pytest.mark.parametrize(("num_blocks", "block_size"), [(12, 1), (9, 3), (24, 4), (6, 16)])
def test_nothing_is_lost_in_10_000_operations(num_blocks: int, block_size: int) -> None:
    rng, watched = random.Random(0), WatchedManager(num_blocks, block_size)
    for _ in range(10_000):
        held = list(watched.texts)
        # few requests at a time: more of them would only keep the pool full
        if not held or (len(held) < 6 and rng.random() < 0.15):
            watched.allocate(rng.randint(1, 3 * block_size))
        elif len(held) < 6 and rng.random() < 0.15:
            watched.fork(rng.choice(held))
        elif rng.random() < 0.2:
            watched.free(rng.choice(held))
        else:
            watched.append(rng.choice(held))
    common = ["allocate", "append", "free", "fork", "refused", *["copy"] * (block_size > 1)]
    assert all(watched.happened[operation] > 100 for operation in common), watched.happened
    for request_id in rng.sample(held := list(watched.texts), len(held)):
        watched.free(request_id)
    assert watched.manager.used_blocks == 0
    assert sorted(watched.manager.free_blocks) == list(range(num_blocks))


class AnyOperations(RuleBasedStateMachine):
    """The same, found and shortened by hypothesis."""

    ids = Bundle("ids")

    @initialize(num_blocks=st.integers(1, 8), block_size=st.integers(1, 5))
    def start(self, num_blocks: int, block_size: int) -> None:
        self.watched = WatchedManager(num_blocks, block_size)

    @rule(target=ids, num_tokens=st.integers(1, 12))
    def allocate(self, num_tokens: int) -> Any:
        request_id = self.watched.allocate(num_tokens)
        return multiple() if request_id is None else request_id

    @rule(request_id=ids)
    def append(self, request_id: int) -> None:
        self.watched.append(request_id)

    @rule(target=ids, parent_id=ids)
    def fork(self, parent_id: int) -> int:
        return self.watched.fork(parent_id)

    @rule(request_id=consumes(ids))
    def free(self, request_id: int) -> None:
        self.watched.free(request_id)


test_any_operations_leave_each_request_its_text = AnyOperations.TestCase


# ------------------------------------------------------------------------------------- the cache


@given(st.integers(1, 3), block_sizes, st.data())
def test_a_slot_is_a_place_in_a_block(batch: int, block_size: int, data: st.DataObject) -> None:
    table_length, seq = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 9))

    def drawn(highest: int, length: int) -> list[list[int]]:
        row = st.lists(st.integers(0, highest), min_size=length, max_size=length)
        return data.draw(st.lists(row, min_size=batch, max_size=batch))

    tables, positions = drawn(99, table_length), drawn(table_length * block_size - 1, seq)
    slots = lab_4.slot_mapping(torch.tensor(tables), torch.tensor(positions), block_size)
    for table, asked, found in zip(tables, positions, slots.tolist(), strict=True):
        in_order = [block * block_size + i for block in table for i in range(block_size)]
        assert found == [in_order[position] for position in asked]


def shuffled(manager: BlockManager, seed: int) -> BlockManager:
    """The same manager, whose free blocks come in any order."""
    numbers = list(manager.free_blocks)
    random.Random(seed).shuffle(numbers)
    manager.free_blocks = deque(numbers)
    return manager


@given(configs, seeds, block_sizes, st.data())
def test_logits_from_blocks_are_those_from_one_stretch(
    config: GPTConfig, seed: int, block_size: int, data: st.DataObject
) -> None:
    """Prompts of any lengths, then two chunks for all at once, from a pool that isn't empty."""
    sizes = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    longest = config.n_positions - sum(sizes)
    lengths = data.draw(st.lists(st.integers(1, longest), min_size=1, max_size=4))
    order = data.draw(st.permutations(range(len(lengths))))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    model, rows = model_of(CachedLMHead, config, seed), range(len(lengths))

    def random_ids(n: int) -> Tensor:
        return torch.randint(config.vocab_size, (1, n), generator=generator)

    pool_size = sum(blocks(n + sum(sizes), block_size) for n in lengths) + 2
    manager = shuffled(BlockManager(pool_size, block_size), seed)
    kv_cache = PagedCache(config, manager, dtype=torch.float64)
    kv_cache.pool.fill_(1e3)
    alone = [KVCache(config, 1, config.n_positions, dtype=torch.float64) for _ in rows]

    def from_one_stretch(row: int, ids: Tensor) -> Tensor:
        start = alone[row].length
        return model(ids, torch.arange(start, start + ids.shape[1])[None], alone[row])

    for row, length in enumerate(lengths):
        manager.allocate(row, length)
        prompt = random_ids(length)
        positions = kv_cache.select([row], length)
        assert_same(model(prompt, positions, kv_cache), from_one_stretch(row, prompt))
    for size in sizes:
        for row in rows:
            for _ in range(size):
                manager.append(row)
        ids = [random_ids(size) for _ in rows]
        expected = [from_one_stretch(row, ids[row]) for row in rows]
        positions = kv_cache.select(order, size)
        assert positions[:, -1].tolist() == [alone[row].length - 1 for row in order]
        got = model(torch.cat([ids[row] for row in order]), positions, kv_cache)
        assert_same(got, torch.cat([expected[row] for row in order]))


def test_a_paged_cache_attends_only_to_what_was_selected() -> None:
    manager = BlockManager(num_blocks=4, block_size=2)
    for request_id in (0, 2):
        manager.allocate(request_id, num_tokens=3)
    kv_cache = PagedCache(CONFIGS[1], manager, dtype=torch.float64)
    assert_attends_only_to_what_was_selected(kv_cache, CONFIGS[1], [2, 0])


@pytest.mark.parametrize("length", [3, 4, 5])
def test_forks_do_not_see_each_others_tokens(length: int) -> None:
    """Two continuations of one prompt, which ends before, at and behind the end of a block."""
    config, prompt = CONFIGS[1], [3, 14, 15, 9, 2][:length]
    model, manager = model_of(CachedLMHead, config, 0), BlockManager(num_blocks=6, block_size=4)
    kv_cache = PagedCache(config, manager, dtype=torch.float64)
    manager.allocate(0, length)
    model(torch.tensor([prompt]), kv_cache.select([0], length), kv_cache)
    manager.fork(0, 1)
    texts = [list(prompt), list(prompt)]
    for tokens in ([6, 35], [8, 9], [7, 7], [1, 2]):
        for request_id, token in enumerate(tokens):
            texts[request_id].append(token)
            if copy := manager.append(request_id):
                kv_cache.copy_block(*copy)
        got = model(torch.tensor(tokens)[:, None], kv_cache.select([0, 1], 1), kv_cache)
        assert_same(got[:, 0], naive_logits(config, 0, texts))


@given(configs, seeds, block_sizes, st.data())
def test_a_family_may_branch_in_any_way(
    config: GPTConfig, seed: int, block_size: int, data: st.DataObject
) -> None:
    """Rows fork and are forgotten at every step; each keeps the logits of its own text."""
    generation = st.integers(1, 4)
    length = data.draw(st.integers(1, config.n_positions - 1))
    steps = data.draw(st.integers(1, min(4, config.n_positions - length)))
    ids = st.integers(0, config.vocab_size - 1)
    texts = [data.draw(st.lists(ids, min_size=length, max_size=length))]
    pool = 4 * blocks(length + steps, block_size), block_size
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
        assert_sound(family.manager)
        assert list(family.manager.tables) == family.members


# --------------------------------------------------------------------------------------- batcher


def batcher_of(num_blocks: int, block_size: int, max_running: int = 3) -> PagedBatcher:
    model = model_of(CachedLMHead, CONFIGS[0], 0)
    return PagedBatcher(model, num_blocks, block_size, max_running)


def numbers(requests: Any) -> list[int]:
    return [request.number for request in requests]


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
def test_room_is_made_by_the_newest(
    lengths: list[int], num_blocks: int, running: list[int], waiting: list[int]
) -> None:
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
    assert_sound(batcher.manager)


def test_those_who_were_preempted_come_back_first() -> None:
    batcher = batcher_of(num_blocks=5, block_size=2)
    for number in range(4):
        assert batcher.submit([number, number], 6) == number
    batcher.step()
    assert numbers(batcher.running) == [0, 1, 2]
    batcher.step()
    assert numbers(batcher.running) == [0, 1]
    assert numbers(batcher.waiting) == [2, 3]
    assert batcher.waiting[0].ids == naive(CONFIGS[0], 0, [2, 2], 1)  # it keeps its tokens
    batcher.run()
    assert list(batcher.outputs) == [0, 1, 2, 3]  # they end in the order in which they came


def test_nobody_overtakes_the_one_who_waits_for_blocks() -> None:
    batcher = batcher_of(num_blocks=4, block_size=2)
    for length in (5, 4, 1):
        batcher.submit([1] * length, 2)
    assert batcher.admit() == [0]
    assert numbers(batcher.waiting) == [1, 2]  # one block is free: enough for 2, not for 1
    assert batcher.manager.used_blocks == 3
    batcher.kv_cache.free(batcher.running.pop().number)
    assert batcher.admit() == [0, 1]
    assert numbers(batcher.running) == [1, 2]


def test_a_prompt_that_fills_the_context_needs_no_step() -> None:
    batcher, prompt = batcher_of(num_blocks=6, block_size=2), list(range(12))
    assert batcher.submit(prompt, 5) == 0
    assert batcher.outputs == {0: prompt}
    assert batcher.outputs[0] is not prompt
    batcher.run()
    assert batcher.manager.used_blocks == 0


# -------------------------------------------------------------------------------------- branches


@given(continuations(), st.integers(1, 4), block_sizes)
def test_a_branch_goes_on_as_the_naive_loop_does(case: Any, count: int, block_size: int) -> None:
    config, seed, prompt, new = case
    model, before = model_of(CachedLMHead, config, seed), list(prompt)

    def branch(num_blocks: int) -> tuple[Family, list[list[int]]]:
        family = Family(model, prompt, num_blocks, block_size)
        return family, lab_4.branches(family, prompt, new, count)

    family, texts = branch(99)
    firsts = naive_logits(config, seed, [prompt])[0].topk(count).indices.tolist()
    assert texts == [naive(config, seed, [*prompt, first], new - 1) for first in firsts]
    assert prompt == before

    stored = blocks(len(prompt) + new - 1, block_size)  # by each; the last token never is
    if new == 1:  # they part behind the prompt, where nothing is stored any more
        expected_peak, expected_copies = stored, 0
    else:
        full = len(prompt) // block_size
        expected_peak = full + count * (stored - full)
        expected_copies = count - 1 if len(prompt) % block_size else 0
        if full and count > 1:
            assert family.peak_blocks < count * stored
    assert (family.peak_blocks, family.copies) == (expected_peak, expected_copies)
    assert branch(family.peak_blocks)[1] == texts
    if family.peak_blocks > 1:
        with pytest.raises(OutOfBlocks):
            branch(family.peak_blocks - 1)


@pytest.mark.parametrize(
    ("length", "new", "copies", "peak_blocks"),
    [
        (5, 1, 0, 2),  # only the prompt: two blocks
        (5, 4, 2, 4),  # one block shared; the other copied for two of the three, filled by each
        (5, 5, 2, 7),  # and one more for each
        (4, 2, 0, 4),  # a full block is shared for good
        (3, 2, 2, 3),  # nothing is left to share
    ],
)
def test_three_branches_by_hand(length: int, new: int, copies: int, peak_blocks: int) -> None:
    """In blocks of 4. The last token of each is never stored."""
    model, prompt = model_of(CachedLMHead, CONFIGS[0], 0), list(range(length))
    family = Family(model, prompt, num_blocks=9, block_size=4)
    lab_4.branches(family, prompt, new, count=3)
    assert (family.copies, family.peak_blocks) == (copies, peak_blocks)


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
        ("allocate", (7, 0), "at least one token must be asked for, not 0"),
        ("allocate", (7, -4), "at least one token must be asked for, not -4"),
    ],
)
def test_an_operation_that_cannot_be_changes_nothing(
    operation: str, given: tuple[int, ...], sentence: str
) -> None:
    manager = BlockManager(num_blocks=6, block_size=2)
    manager.allocate(0, 3)
    manager.fork(0, 1)
    before = state(manager)
    with pytest.raises(ValueError, match=sentence):
        getattr(manager, operation)(*given)
    assert state(manager) == before
    manager.allocate(7, 8)
    assert_sound(manager)


def test_an_empty_pool_holds_none() -> None:
    with pytest.raises(ValueError, match=r"It holds none\."):
        BlockManager(3, 2).free(0)


def test_too_few_blocks_change_nothing() -> None:
    manager = BlockManager(num_blocks=3, block_size=2)
    manager.allocate(0, 3)
    manager.fork(0, 1)
    before = state(manager)
    with pytest.raises(OutOfBlocks, match="2 blocks are needed; 1 are free"):
        manager.allocate(2, 3)
    assert state(manager) == before
    assert manager.append(0) == (1, 2)
    assert manager.append(1) is None
    before = state(manager)
    for request_id in (0, 1):
        with pytest.raises(OutOfBlocks, match="All 3 blocks are taken"):
            manager.append(request_id)
    assert state(manager) == before
    manager.free(0)
    assert manager.append(1) is None
    assert_sound(manager)


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 4), (4, 0), (-1, 4), (4, -1)])
def test_a_pool_that_cannot_be_is_refused(num_blocks: int, block_size: int) -> None:
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


def test_a_forward_for_an_unknown_request_is_refused() -> None:
    manager = BlockManager(num_blocks=2, block_size=4)
    manager.allocate(3, num_tokens=2)
    kv_cache = PagedCache(CONFIGS[0], manager)
    with pytest.raises(ValueError, match="no request 8 in this pool"):
        kv_cache.select([3, 8], q_len=1)
    assert kv_cache.select([3], q_len=1).tolist() == [[1]]


@pytest.mark.parametrize("max_running", [0, -1])
def test_a_batcher_that_may_run_nothing_is_refused(max_running: int) -> None:
    with pytest.raises(ValueError, match=f"At least one request must run.*not {max_running}"):
        batcher_of(4, 4, max_running)


@pytest.mark.parametrize(
    ("prompts", "limits", "sentence"),
    [
        ([], [], "list of prompts is empty"),
        ([[1], [2]], [3], "2 prompts and 1 numbers"),
        ([[1], [1] * 9], [3, 2], "may grow to 11 tokens, which takes 5 blocks; the pool has 4"),
        *[([[1], prompt], [3, limit], sentence) for prompt, limit, sentence in BAD_REQUESTS],
    ],
)
def test_requests_that_no_pool_can_serve_are_refused(
    prompts: Any, limits: Any, sentence: str
) -> None:
    model = model_of(CachedLMHead, CONFIGS[0], 0)
    with shapes_of_forwards(model) as shapes, pytest.raises(ValueError, match=sentence):
        lab_4.generate_paged(model, prompts, limits, 4, 2, max_running=2)
    assert shapes == []


@pytest.mark.parametrize(
    ("prompt", "limit", "sentence"),
    [*BAD_REQUESTS, ([1] * 9, 1, "takes 5 blocks"), ([1] * 5, 5, "takes 5 blocks; the pool has 4")],
)
def test_a_bad_request_costs_nobody_else_anything(
    prompt: list[int], limit: int, sentence: str
) -> None:
    batcher = batcher_of(num_blocks=4, block_size=2)
    assert batcher.submit([1, 2], 6) == 0
    batcher.step()
    with pytest.raises(ValueError, match=sentence):
        batcher.submit(prompt, limit)
    assert batcher.submit([3], 6) == 1
    batcher.run()
    assert batcher.outputs == {n: naive(CONFIGS[0], 0, p, 6) for n, p in enumerate([[1, 2], [3]])}
    assert batcher.manager.used_blocks == 0


def test_a_pool_holds_all_but_the_last_token() -> None:
    """4 blocks of 2 serve a text of 9: its last token is never stored."""
    batcher = batcher_of(num_blocks=4, block_size=2)
    batcher.submit([1, 2, 3], 6)
    batcher.run()
    assert batcher.outputs == {0: naive(CONFIGS[0], 0, [1, 2, 3], 6)}


def test_a_prompt_longer_than_the_pool_is_refused() -> None:
    with pytest.raises(OutOfBlocks, match="3 blocks are needed; 2 are free"):
        Family(model_of(CachedLMHead, CONFIGS[0], 0), [1] * 9, num_blocks=2, block_size=4)
