"""The figures of lab 4: what becomes of a memory that is reserved ahead, and of one in blocks."""

import random
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solutions.memory import (
    CONTEXT,
    ContiguousManager,
    Lengths,
    MemoryUse,
    chat_lengths,
    count_contiguous,
    count_paged,
    reserve_exactly,
    reserve_longest,
    reserve_power_of_two,
)
from solutions.paged_attention import BlockManager

MEMORY = 16_384  # slots, room for eight texts of the longest kind

# --------------------------------------------------------------------------------- chat lengths


def test_chats_are_as_long_as_those_of_sharegpt_and_fit_into_the_context():
    lengths = chat_lengths(10_000)
    prompts, outputs = zip(*lengths, strict=True)
    assert len(lengths) == 10_000
    assert mean(prompts) == pytest.approx(161, rel=0.1)
    assert mean(outputs) == pytest.approx(338, rel=0.1)
    assert max(outputs) > 4 * mean(outputs)  # a long tail
    assert min(prompts + outputs) >= 1
    assert max(map(sum, lengths)) == CONTEXT


def test_chats_follow_their_seed():
    assert chat_lengths(50) == chat_lengths(50, 0) != chat_lengths(50, 1)
    assert chat_lengths(0) == []


# ------------------------------------------------------------------------------ reserving ahead


@given(st.integers(1, 24), st.randoms(use_true_random=False))
def test_a_stretch_is_the_first_gap_that_is_long_enough(num_slots: int, rng: random.Random):
    manager = ContiguousManager(num_slots)
    owners: list[int | None] = [None] * num_slots
    for request_id in range(30):
        if manager.stretches and rng.random() < 0.4:
            gone = rng.choice(list(manager.stretches))
            manager.free(gone)
            owners = [None if owner == gone else owner for owner in owners]
        wanted = rng.randint(1, 8)
        starts = range(num_slots - wanted + 1)
        gaps = [s for s in starts if set(owners[s : s + wanted]) == {None}]
        assert manager.allocate(request_id, wanted) == bool(gaps)
        if gaps:
            assert manager.stretches[request_id] == (gaps[0], wanted)
            owners[gaps[0] : gaps[0] + wanted] = [request_id] * wanted
        assert manager.stretches.keys() == {owner for owner in owners if owner is not None}


@given(st.integers(1, CONTEXT - 1), st.data())
def test_every_way_of_reserving_is_enough_and_a_good_guess_the_next_power_of_two(prompt, data):
    output = data.draw(st.integers(1, CONTEXT - prompt))
    guesses = [2**n for n in range(12) if 2**n >= output]
    assert reserve_exactly(prompt, output) == prompt + output
    assert reserve_power_of_two(prompt, output) == min(prompt + guesses[0], CONTEXT)
    assert reserve_longest(prompt, output) == CONTEXT


# ------------------------------------------------------------------------------ counted by hand

THREE = [(2, 2), (1, 2), (1, 1)]  # prompt and output of three requests


def whole(prompt: int, output: int) -> int:
    return 4


@pytest.mark.parametrize(
    ("lengths", "num_slots", "reserve", "use"),
    [
        # In 4 slots each is served alone. Request 0 holds 2, 3 tokens; request 1 holds 1, 2. Then
        # request 2 is admitted, no request waits any more, and the counting ends.
        (THREE, 4, reserve_exactly, MemoryUse(8 / 16, 6 / 16, 0, 2 / 16, running=1)),
        (THREE, 4, whole, MemoryUse(8 / 16, 6 / 16, 2 / 16, 0, running=1)),
        # Beside request 0, request 1 finds 3 of 8 slots and needs 4.
        ([(3, 2), (2, 2), (1, 1)], 8, reserve_exactly, MemoryUse(7 / 16, 3 / 16, 0, 6 / 16, 1)),
    ],
)
def test_stretches_counted_by_hand(lengths, num_slots, reserve, use):
    assert count_contiguous(lengths, num_slots, reserve) == use


@pytest.mark.parametrize(
    ("lengths", "block_size", "use"),
    [
        # Two blocks of 2, for requests 0 and 1; request 2 waits. Step 1: request 0 holds 1 token of
        # 2 that it will need there, request 1 both of its own; it is preempted for want of a third
        # block, and at once admitted again. Step 2: both blocks are full; request 0 takes the other
        # one's for its last token and ends. Then all are admitted.
        ([(1, 2), (2, 2), (1, 1)], 2, MemoryUse(7 / 8, 1 / 8, 0, 0, running=2)),
        # One block of 4 is in use: it holds 1 and then 2 of the 3 tokens that come. One is too few
        # for request 1, which needs two.
        ([(1, 2), (5, 1)], 4, MemoryUse(3 / 16, 3 / 16, 2 / 16, 8 / 16, running=1)),
    ],
)
def test_blocks_counted_by_hand(lengths, block_size, use):
    assert count_paged(lengths, BlockManager(num_blocks=2, block_size=block_size)) == use


# ---------------------------------------------------------------------------- for any requests

some_lengths = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=2, max_size=12)


def assert_shares(use: MemoryUse, requests: int) -> None:
    shares = [use.tokens, use.later, use.never, use.unreserved]
    assert sum(shares) == pytest.approx(1)
    assert all(-1e-9 <= share <= 1 for share in shares)
    assert use.filled == pytest.approx(use.tokens / (1 - use.unreserved))
    assert 1 <= use.running < requests


@given(some_lengths, st.sampled_from([reserve_exactly, lambda p, o: 18, lambda p, o: p + 9]))
def test_shares_of_stretches_are_shares(lengths, reserve):
    num_slots = sum(reserve(*request) for request in lengths) - 1  # not quite enough for all
    num_slots = max(18, num_slots // 2)
    if sum(reserve(*request) for request in lengths) <= num_slots:
        with pytest.raises(ValueError, match="All requests fit at once"):
            count_contiguous(lengths, num_slots, reserve)
    else:
        use = count_contiguous(lengths, num_slots, reserve)
        assert_shares(use, len(lengths))
        assert reserve is not reserve_exactly or use.never == 0


@given(some_lengths, st.integers(1, 20))
def test_shares_of_blocks_are_shares(lengths: list[Lengths], block_size: int) -> None:
    """In a pool for one. In blocks of a single token none is reserved ahead."""
    manager = BlockManager(-(-18 // block_size), block_size)
    if sum(manager.blocks_for(prompt) for prompt, _ in lengths) <= manager.num_blocks:
        with pytest.raises(ValueError, match="All requests fit at once"):
            count_paged(lengths, manager)
    else:
        use = count_paged(lengths, manager)
        assert_shares(use, len(lengths))
        assert use.filled > 1 / block_size - 1e-9  # one token in each block, at the least
        assert block_size > 1 or (use.filled == 1 and use.never == 0)


# ----------------------------------------------------------------------------------- the figures


def test_blocks_of_16_waste_less_than_four_percent():
    """And twice as many requests fit into the same memory as where the longest text is reserved."""
    lengths = chat_lengths(500)
    paged = count_paged(lengths, BlockManager(MEMORY // 16, 16))
    reserves = reserve_longest, reserve_power_of_two, reserve_exactly
    uses = [*(count_contiguous(lengths, MEMORY, reserve) for reserve in reserves), paged]
    longest = uses[0]
    assert paged.filled >= 0.96
    assert longest.running == MEMORY / CONTEXT
    assert paged.running >= 2 * longest.running
    for pick in (lambda use: use.running, lambda use: use.filled):
        assert uses == sorted(uses, key=pick)


# --------------------------------------------------------------------- what is refused, and how


class Impatient(BlockManager):
    """One that is asked for blocks again and again gives up, so that a test ends."""

    asked = 0

    def allocate(self, request_id: int, num_tokens: int) -> None:
        self.asked += 1
        assert self.asked < 100, "the same request is admitted and preempted for ever"
        super().allocate(request_id, num_tokens)


def test_a_request_that_never_fits_is_refused():
    with pytest.raises(ValueError, match="Request 1 never fits into a memory of 8 slots"):
        count_contiguous([(1, 1), (5, 4), (1, 1)], 8, reserve_exactly)
    for outgrowing in (9, 1), (4, 5):  # its prompt, or the whole of it
        with pytest.raises(ValueError, match="Request 1 never fits into a memory of 8 slots"):
            count_paged([(1, 1), outgrowing, (1, 1)], Impatient(num_blocks=2, block_size=4))


def test_without_a_queue_there_is_nothing_to_count():
    for lengths in ([], [(1, 1)], [(2, 2), (1, 2)]):
        with pytest.raises(ValueError, match="give more of them, or less memory"):
            count_contiguous(lengths, 7, reserve_exactly)
        with pytest.raises(ValueError, match="give more of them, or less memory"):
            count_paged(lengths, BlockManager(num_blocks=3, block_size=2))
