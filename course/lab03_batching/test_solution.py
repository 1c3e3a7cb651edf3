"""The reference solution of lab 3: no token twice, no slot idle while somebody waits.

That each request gets its naive tokens is shown in lab 1's tests.
"""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt import GPTConfig, GPTLMHead
from solutions import batching as lab_3
from solutions.batching import (
    ContinuousBatcher,
    PaddedCache,
    SlotCache,
    Trace,
    dynamic_batches,
)
from solutions.kv_cache import CachedLMHead
from tests.common.engines import (
    CONFIGS,
    Work,
    arrivals,
    assert_same,
    configs,
    model_of,
    naive,
    prompts_of,
    seeds,
    serve_over_time,
    shapes_of_forwards,
    works,
)

slots_of_a_batch = st.integers(1, 6)


@given(arrivals(), slots_of_a_batch)
def test_arrivals_at_any_time(arrival: tuple[Work, list[int]], slots: int) -> None:
    work, pauses = arrival
    batcher = ContinuousBatcher(work.model, slots, work.config.n_positions, work.eos)
    slot_cache: Any = batcher.kv_cache
    for _ in serve_over_time(batcher, work, pauses):
        served = batcher.trace[-1]
        assert None not in served or not batcher.waiting  # nobody waits beside a free slot
        lengths = slot_cache.lengths.tolist()
        assert lengths == [r.num_computed_tokens if r else 0 for r in batcher.running]
        assert all(len(r.ids) == r.num_computed_tokens + 1 for r in batcher.running if r)
    assert [batcher.outputs[number] for number in range(len(work.prompts))] == work.expected
    assert_well_served(batcher.trace, slots, work.new)


# ------------------------------------------------------------------------ the work, and the trace


def assert_well_served(trace: Trace, slots: int, new: list[int]) -> None:
    """Each request in one slot, in consecutive steps, as many as it got tokens; in order."""
    assert all(len(step) == slots for step in trace)
    starts = []
    for number, tokens in enumerate(new):
        places = [(t, step.index(number)) for t, step in enumerate(trace) if number in step]
        assert sum(step.count(number) for step in trace) == tokens == len(places)
        if places:
            start, slot = places[0]
            assert places == [(start + i, slot) for i in range(tokens)]
            starts.append(start)
    assert starts == sorted(starts)


@given(works(), slots_of_a_batch)
def test_continuous_computes_each_token_once(work, slots):
    with shapes_of_forwards(work.model) as shapes:
        served = lab_3.generate_continuous(work.model, work.prompts, work.limits, slots, work.eos)
    assert sum(rows * length for rows, length in shapes) == work.tokens_computed_alone

    expected = []  # a prefill for each newcomer, and one forward for all who ran before
    for before, now in zip([[], *served.trace], served.trace, strict=False):
        newcomers = [number for number in now if number is not None and number not in before]
        veterans = [number for number in now if number is not None and number in before]
        expected += [(1, len(work.prompts[number])) for number in newcomers]
        expected += [(len(veterans), 1)] if veterans else []
    assert sorted(shapes) == sorted(expected)
    assert_well_served(served.trace, slots, work.new)


@given(works(), slots_of_a_batch)
def test_static_computes_whole_rectangles(work, slots):
    expected = []
    for first in range(0, len(work.prompts), slots):
        prompts, new = work.prompts[first : first + slots], work.new[first : first + slots]
        if max(new):
            expected.append((len(prompts), max(map(len, prompts))))
            expected += [(len(prompts), 1)] * (max(new) - 1)
    with shapes_of_forwards(work.model) as shapes:
        served = lab_3.generate_static(work.model, work.prompts, work.limits, slots, work.eos)
    assert shapes == expected
    assert len(served.trace) == len(shapes)
    assert_well_served(served.trace, slots, work.new)


OUTPUTS = [4, 8, 3, 5, 5, 3, 3]  # tokens that each of seven requests gets, for 4 slots


def test_utilisation_of_seven_requests_in_four_slots() -> None:
    model, prompts = model_of(CachedLMHead, CONFIGS[2], 1), [[n, n + 1] for n in range(7)]
    static, continuous = (
        generate(model, prompts, OUTPUTS, slots=4)
        for generate in (lab_3.generate_static, lab_3.generate_continuous)
    )
    assert lab_3.utilisation(static.trace) == 31 / 52  # 8 + 5 steps
    assert lab_3.utilisation(continuous.trace) == 31 / 32
    assert lab_3.utilisation([[None]]) == 0  # a server without requests
    with pytest.raises(ValueError, match="trace has no step"):
        lab_3.utilisation([])


# ------------------------------------------------------------------------------------------ pads

ragged = configs.flatmap(lambda config: prompts_of(config, config.n_positions))


@given(ragged, st.integers(0, 9))
def test_rows_end_with_their_prompts(prompts: list[list[int]], pad_id: int) -> None:
    input_ids, attention_mask = lab_3.pad_left(prompts, pad_id)
    assert input_ids.dtype == torch.int64
    assert attention_mask.dtype == torch.bool
    pads = [max(map(len, prompts)) - len(prompt) for prompt in prompts]
    rows = list(zip(pads, prompts, strict=True))
    assert input_ids.tolist() == [[pad_id] * n + prompt for n, prompt in rows]
    assert attention_mask.tolist() == [[False] * n + [True] * len(prompt) for n, prompt in rows]
    positions = lab_3.padded_position_ids(attention_mask)
    assert positions.tolist() == [[0] * n + list(range(len(prompt))) for n, prompt in rows]


@given(configs, seeds, st.data())
def test_pads_change_nothing(config: GPTConfig, seed: int, data: st.DataObject) -> None:
    """Logits of prompts in a batch, and of some tokens behind them, are those of each text alone.

    The tokens behind come in two chunks, so that one chunk may be longer than a decode step.
    """
    first, second = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    new = first + second
    prompts = data.draw(prompts_of(config, config.n_positions - new))
    model = model_of(CachedLMHead, config, seed)
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    texts_end = torch.randint(config.vocab_size, (len(prompts), new), generator=generator)

    input_ids, attention_mask = lab_3.pad_left(prompts, data.draw(st.integers(0, 9)))
    columns = input_ids.shape[1]
    kv_cache = PaddedCache(config, attention_mask, columns + new, dtype=torch.float64)
    position_ids = lab_3.padded_position_ids(attention_mask)
    behind = position_ids[:, -1:] + 1 + torch.arange(new)
    ids, positions = torch.cat([input_ids, texts_end], 1), torch.cat([position_ids, behind], 1)
    sizes = [columns, first, second]
    chunks = zip(ids.split(sizes, 1), positions.split(sizes, 1), strict=True)
    logits = torch.cat([model(*chunk, kv_cache) for chunk in chunks], dim=1)
    assert logits.isfinite().all()
    for row, prompt in enumerate(prompts):
        text = torch.cat([torch.tensor(prompt), texts_end[row]])[None]
        alone = model_of(GPTLMHead, config, seed)(text, torch.arange(text.shape[1])[None])
        assert_same(logits[row, -text.shape[1] :], alone[0])


# --------------------------------------------------------------------------------------- batcher


def batcher_of(slots: int, max_length: int = 12) -> ContinuousBatcher:
    return ContinuousBatcher(model_of(CachedLMHead, CONFIGS[0], 0), slots, max_length)


# --------------------------------------------------------------------- what is refused, and how


def test_slot_holds_all_but_the_last_token() -> None:
    """The last token is never stored: a slot for 5 serves a text of 6, and none of 7."""
    batcher = batcher_of(slots=1, max_length=5)
    with pytest.raises(ValueError, match="may grow to 7 tokens; a slot has room for 5"):
        batcher.submit([1, 2, 3], 4)
    batcher.submit([1, 2, 3], 3)
    batcher.run()
    assert batcher.outputs == {0: naive(CONFIGS[0], 0, [1, 2, 3], 3)}


def test_forward_takes_equal_lengths_only() -> None:
    batcher = batcher_of(slots=4)
    for prompt in ([1, 2], [3, 4], [5, 6, 7]):
        batcher.submit(prompt, 6)
    batcher.admit()
    before = [list(request.ids) for request in batcher.running if request]
    for refused, sentence in [
        (lambda: batcher.forward([]), r"Slots \[\] have \[\]"),
        (lambda: batcher.forward([0, 2]), r"Slots \[0, 2\] have \[2, 3\]"),
        (lambda: batcher.forward([0, 3]), "Slot 3 is free"),
        (lambda: batcher.retire(3), "Slot 3 is free"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            refused()
    assert [request.ids for request in batcher.running if request] == before
    batcher.forward([1, 0])
    new = [request.ids for request in batcher.running[:2] if request]
    assert new == [naive(CONFIGS[0], 0, prompt, 1) for prompt in ([1, 2], [3, 4])]


@pytest.mark.parametrize(("slots", "max_length"), [(0, 4), (2, 0)])
def test_empty_slots_are_refused(slots: int, max_length: int) -> None:
    with pytest.raises(ValueError, match="at least one slot and room for one token"):
        SlotCache(CONFIGS[0], slots, max_length)
    with pytest.raises(ValueError, match=f"slots is {slots} and max_length {max_length}"):
        batcher_of(slots, max_length)


@given(st.lists(st.integers(0, 5)), st.integers(1, 4), st.integers(0, 6), st.integers(1, 9))
def test_a_batch_starts_neither_too_early_nor_too_late(gaps, limit, delay, seconds):
    arrivals = [sum(gaps[: n + 1]) for n in range(len(gaps))]
    free = served = 0
    for start, first, count in dynamic_batches(arrivals, limit, delay, lambda n: seconds + n):
        assert first == served
        here = sum(arrival <= start for arrival in arrivals[first:])
        waited = start - arrivals[first]
        assert start >= free
        assert count == min(here, limit)
        assert count == limit or waited >= delay
        assert start == free or waited <= delay
        free, served = start + seconds + count, first + count
    assert served == len(arrivals)
