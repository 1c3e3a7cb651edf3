"""The reference solution of lab 3: whatever the batch, each request gets its naive tokens.

And the work is what it should be: no token twice, no slot idle while somebody waits.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gpt import GPTConfig, GPTLMHead
from solutions import batching as lab_3
from solutions.batching import ContinuousBatcher, PaddedCache, Request, SlotCache, Trace
from solutions.kv_cache import CachedLMHead, KVCache
from tests.common.engines import (
    BAD_REQUESTS,
    CONFIGS,
    Work,
    arrivals,
    assert_attends_only_to_what_was_selected,
    assert_same,
    configs,
    every_step_serves_somebody,
    model_of,
    naive,
    prompts_of,
    seeds,
    serve_over_time,
    shapes_of_forwards,
    works,
)

slots_of_a_batch = st.integers(1, 6)


@pytest.fixture(autouse=True, scope="module")
def _watched() -> Iterator[None]:
    with every_step_serves_somebody(ContinuousBatcher):
        yield


# ------------------------------------------------------------------------------- the contract


@given(works(), slots_of_a_batch)
def test_every_way_of_batching_gives_the_tokens_of_the_naive_loop(work: Work, slots: int) -> None:
    requests = work.model, work.prompts, work.limits
    before = [list(prompt) for prompt in work.prompts]
    assert lab_3.generate_padded(*requests, work.eos) == work.expected
    assert lab_3.generate_static(*requests, slots, work.eos).outputs == work.expected
    assert lab_3.generate_continuous(*requests, slots, work.eos).outputs == work.expected
    assert work.prompts == before


@given(arrivals(), slots_of_a_batch)
def test_requests_may_come_at_any_time(arrival: tuple[Work, list[int]], slots: int) -> None:
    work, pauses = arrival
    batcher = ContinuousBatcher(work.model, slots, work.config.n_positions, work.eos)
    slot_cache: Any = batcher.kv_cache
    for _ in serve_over_time(batcher, work, pauses):
        served = batcher.trace[-1]
        assert None not in served or not batcher.waiting  # nobody waits beside a free slot
        held = slot_cache.lengths.tolist()
        expected = [request.num_computed_tokens if request else 0 for request in batcher.running]
        assert held == expected
        assert all(len(r.ids) == r.num_computed_tokens + 1 for r in batcher.running if r)
    assert [batcher.outputs[number] for number in range(len(work.prompts))] == work.expected
    assert_well_served(batcher.trace, slots, work.new)


def test_a_batcher_serves_on_after_it_has_run() -> None:
    config = CONFIGS[1]
    batcher = ContinuousBatcher(model_of(CachedLMHead, config, 0), 2, 16)
    for number, prompt in enumerate(([3, 14, 15], [9], [2, 6, 5, 35], [8, 9])):
        assert batcher.submit(prompt, 5) == number
        batcher.run()
        assert batcher.outputs[number] == naive(config, 0, prompt, 5)
    batcher.run()
    assert len(batcher.trace) == 4 * 5


# ------------------------------------------------------------------------ the work, and the trace


@given(works(), slots_of_a_batch)
def test_continuous_batching_computes_every_token_once_and_pads_nothing(
    work: Work, slots: int
) -> None:
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


@given(works(), slots_of_a_batch)
def test_static_batching_computes_rectangles_until_the_longest_has_ended(
    work: Work, slots: int
) -> None:
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


def assert_well_served(trace: Trace, slots: int, new: list[int]) -> None:
    """Each request in one slot, in consecutive steps, as many as it got tokens; in order."""
    assert all(len(step) == slots for step in trace)
    starts = []
    for number, tokens in enumerate(new):
        found = [(t, step.index(number)) for t, step in enumerate(trace) if number in step]
        assert sum(step.count(number) for step in trace) == tokens == len(found)
        if found:
            start, slot = found[0]
            assert found == [(start + i, slot) for i in range(tokens)]
            starts.append(start)
    assert starts == sorted(starts)


@given(works(), slots_of_a_batch)
def test_a_trace_shows_every_request_in_its_slot(work: Work, slots: int) -> None:
    requests = work.model, work.prompts, work.limits, slots, work.eos
    static, continuous = lab_3.generate_static(*requests), lab_3.generate_continuous(*requests)
    for served in (static, continuous):
        assert_well_served(served.trace, slots, work.new)
    assert len(continuous.trace) <= len(static.trace)
    started: set[int] = set()
    someone = {number for number, new in enumerate(work.new) if new}
    for step in continuous.trace:
        started.update(number for number in step if number is not None)
        assert None not in step or started == someone


OUTPUTS = [4, 8, 3, 5, 5, 3, 3]  # tokens that each of seven requests gets, for 4 slots


def trace_of(*slots: str) -> Trace:
    """A trace drawn as a timeline: a line for each slot, a digit for each step, a dot for idle."""
    rows = [[None if cell == "." else int(cell) for cell in slot] for slot in slots]
    return [list(step) for step in zip(*rows, strict=True)]


def test_seven_requests_in_four_slots() -> None:
    config = CONFIGS[2]
    model, prompts = model_of(CachedLMHead, config, 1), [[n, n + 1] for n in range(len(OUTPUTS))]
    static = lab_3.generate_static(model, prompts, OUTPUTS, slots=4)
    assert static.trace == trace_of(
        "0000....44444",
        "11111111555..",
        "222.....666..",
        "33333........",
    )
    assert lab_3.utilisation(static.trace) == 31 / 52
    continuous = lab_3.generate_continuous(model, prompts, OUTPUTS, slots=4)
    assert continuous.trace == trace_of(
        "0000555.",
        "11111111",
        "22244444",
        "33333666",
    )
    assert lab_3.utilisation(continuous.trace) == 31 / 32
    assert static.outputs == continuous.outputs


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        (trace_of("0"), 1),
        (trace_of("."), 0),  # a server to which nobody came
        (trace_of("00", ".."), 1 / 2),  # request 0 is a request too
        (trace_of("0.11", "2222", "...."), 7 / 12),
    ],
)
def test_utilisation_is_the_share_of_slots_that_serve(trace: Trace, expected: float) -> None:
    assert lab_3.utilisation(trace) == expected


def test_no_step_has_no_utilisation() -> None:
    with pytest.raises(ValueError, match="trace has no step"):
        lab_3.utilisation([])


# ------------------------------------------------------------------------------------------ pads

ragged = configs.flatmap(lambda config: prompts_of(config, config.n_positions))


@given(ragged, st.integers(0, 9))
def test_every_row_ends_with_its_prompt(prompts: list[list[int]], pad_id: int) -> None:
    input_ids, attention_mask = lab_3.pad_left(prompts, pad_id)
    assert input_ids.dtype == torch.int64
    assert attention_mask.dtype == torch.bool
    pads = [max(map(len, prompts)) - len(prompt) for prompt in prompts]
    rows = list(zip(pads, prompts, strict=True))
    assert input_ids.tolist() == [[pad_id] * n + prompt for n, prompt in rows]
    assert attention_mask.tolist() == [[False] * n + [True] * len(prompt) for n, prompt in rows]
    positions = lab_3.padded_position_ids(attention_mask)
    assert positions.tolist() == [[0] * n + list(range(len(prompt))) for n, prompt in rows]


@given(ragged, st.data())
def test_a_token_sees_its_own_text_and_no_pads(
    prompts: list[list[int]], data: st.DataObject
) -> None:
    attention_mask = lab_3.pad_left(prompts)[1]
    batch, k_len = attention_mask.shape
    q_len = data.draw(st.integers(1, k_len))
    mask = lab_3.padded_mask(attention_mask, q_len)
    assert mask.shape == (batch, 1, q_len, k_len)
    assert mask.dtype == torch.bool
    assert mask.any(dim=-1).all()  # a pad too sees something: a softmax over nothing is NaN
    not_later = torch.ones(k_len, k_len).tril().bool()[-q_len:]
    for row, is_token in enumerate(attention_mask):
        assert not mask[row, 0, :, ~is_token].any()
        asked_by_tokens = is_token[-q_len:]
        expected = (not_later & is_token)[asked_by_tokens]
        assert torch.equal(mask[row, 0, asked_by_tokens], expected)


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


# ----------------------------------------------------------------------------------------- slots


@given(configs, st.integers(1, 4), st.data())
def test_every_slot_is_a_cache_of_its_own(
    config: GPTConfig, slots: int, data: st.DataObject
) -> None:
    """Some slots or all, in any order, freed and filled again: as if each were a KVCache."""
    max_length = data.draw(st.integers(1, config.n_positions))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))

    def empty() -> KVCache:
        return KVCache(config, 1, max_length, dtype=torch.float64)

    slot_cache = SlotCache(config, slots, max_length, dtype=torch.float64)
    alone = [empty() for _ in range(slots)]
    some_slots = st.permutations(range(slots)).flatmap(
        lambda order: st.integers(1, slots).map(lambda n: order[:n])
    )
    for _ in range(data.draw(st.integers(1, 8))):
        chosen = data.draw(some_slots)
        room = max_length - max(alone[slot].length for slot in chosen)
        if room == 0 or data.draw(st.sampled_from(["attend", "attend", "free"])) == "free":
            for slot in chosen:
                slot_cache.free(slot)
                alone[slot] = empty()
        else:
            q_len = data.draw(st.integers(1, min(room, 4)))
            starts = torch.tensor([alone[slot].length for slot in chosen])
            expected = starts[:, None] + torch.arange(q_len)
            assert torch.equal(slot_cache.select(chosen, q_len), expected)
            shape = config.n_layer, 3, len(chosen), config.n_head, q_len, config.head_dim
            for layer, new in enumerate(
                torch.randn(shape, generator=generator, dtype=torch.float64)
            ):
                assert slot_cache.lengths[list(chosen)].tolist() == starts.tolist()
                rows = [alone[s].attend(layer, *new[:, [i]]) for i, s in enumerate(chosen)]
                assert_same(slot_cache.attend(layer, *new), torch.cat(rows))
        assert slot_cache.lengths.tolist() == [kv_cache.length for kv_cache in alone]


def test_a_freed_slot_hides_what_it_held() -> None:
    """The last request's keys are still there, and louder than those of the next one."""
    config = CONFIGS[1]
    slot_cache = SlotCache(config, slots=2, max_length=6, dtype=torch.float64)
    slot_cache.keys.fill_(1e3)
    slot_cache.values.fill_(1e3)
    slot_cache.lengths[:] = torch.tensor([6, 3])
    slot_cache.free(0)
    assert slot_cache.lengths.tolist() == [0, 3]
    prompt, positions = torch.tensor([[3, 14, 15]]), torch.arange(3)[None]
    got = model_of(CachedLMHead, config, 0)(prompt, slot_cache.select([0], 3), slot_cache)
    assert_same(got, model_of(GPTLMHead, config, 0)(prompt, positions))


def test_a_slot_cache_attends_only_to_what_was_selected() -> None:
    slot_cache = SlotCache(CONFIGS[1], slots=4, max_length=6, dtype=torch.float64)
    assert_attends_only_to_what_was_selected(slot_cache, CONFIGS[1], [2, 0])


# --------------------------------------------------------------------------------------- batcher


@pytest.mark.parametrize(
    ("end", "eos", "tokens"), [(4, None, [7, 0]), (4, 9, [7, 8]), (9, 9, [7, 5, 9]), (9, 0, [0])]
)
def test_a_request_ends_with_its_last_token_or_with_eos(
    end: int, eos: int | None, tokens: list[int]
) -> None:
    request = Request(3, [0, 9], end, eos)  # an EOS in the prompt ends nothing
    for token in tokens:
        assert not request.has_ended
        request.append(token)
    assert request.has_ended
    assert request.ids == [0, 9, *tokens]


def batcher_of(slots: int, max_length: int = 12) -> ContinuousBatcher:
    return ContinuousBatcher(model_of(CachedLMHead, CONFIGS[0], 0), slots, max_length)


def test_free_slots_go_to_those_who_have_waited_longest() -> None:
    batcher = batcher_of(slots=3)
    for _ in range(5):
        batcher.submit([1], 3)
    first, second, third, fourth, fifth = batcher.waiting
    assert batcher.admit() == [0, 1, 2]
    assert batcher.running == [first, second, third]
    assert batcher.admit() == []
    batcher.running[1] = None
    assert batcher.admit() == [1]
    assert batcher.running == [first, fourth, third]
    batcher.running[0] = batcher.running[2] = None
    assert batcher.admit() == [0]
    assert batcher.running == [fifth, fourth, None]
    assert not batcher.waiting
    assert batcher.admit() == []


def test_a_prompt_that_fills_the_context_is_served_at_once() -> None:
    batcher = batcher_of(slots=1)
    prompt = list(range(12))
    assert batcher.submit(prompt, 5) == 0
    assert batcher.outputs == {0: prompt}
    assert batcher.outputs[0] is not prompt
    batcher.run()
    assert batcher.trace == []


# --------------------------------------------------------------------- what is refused, and how


def generate_padded(model: Any, prompts: Any, limits: Any, slots: int) -> Any:
    return lab_3.generate_padded(model, prompts, limits)


@pytest.mark.parametrize(
    "loop", [generate_padded, lab_3.generate_static, lab_3.generate_continuous]
)
@pytest.mark.parametrize(
    ("prompts", "limits", "sentence"),
    [
        ([], [], "list of prompts is empty"),
        ([[1], [2]], [3], "2 prompts and 1 numbers"),
        *[([[1], prompt], [3, limit], sentence) for prompt, limit, sentence in BAD_REQUESTS],
    ],
)
def test_requests_that_no_batch_can_serve_are_refused(
    loop: Any, prompts: Any, limits: Any, sentence: str
) -> None:
    model = model_of(CachedLMHead, CONFIGS[0], 0)
    with shapes_of_forwards(model) as shapes, pytest.raises(ValueError, match=sentence):
        loop(model, prompts, limits, 2)
    assert shapes == []


@pytest.mark.parametrize("loop", [lab_3.generate_static, lab_3.generate_continuous])
@pytest.mark.parametrize("slots", [0, -1])
def test_a_batch_without_slots_is_refused(loop: Any, slots: int) -> None:
    with pytest.raises(ValueError, match=f"at least one slot, not {slots}"):
        loop(model_of(CachedLMHead, CONFIGS[0], 0), [[1]], [3], slots)


@pytest.mark.parametrize(("prompt", "limit", "sentence"), BAD_REQUESTS)
def test_a_bad_request_costs_nobody_else_anything(
    prompt: list[int], limit: int, sentence: str
) -> None:
    batcher = batcher_of(slots=2)
    assert batcher.submit([1, 2], 6) == 0
    batcher.step()
    with pytest.raises(ValueError, match=sentence):
        batcher.submit(prompt, limit)
    assert batcher.submit([3], 6) == 1
    batcher.run()
    assert batcher.outputs == {n: naive(CONFIGS[0], 0, p, 6) for n, p in enumerate([[1, 2], [3]])}


def test_a_slot_holds_all_but_the_last_token() -> None:
    """The last token is never stored: a slot for 5 serves a text of 6, and none of 7."""
    batcher = batcher_of(slots=1, max_length=5)
    with pytest.raises(ValueError, match="may grow to 7 tokens; a slot has room for 5"):
        batcher.submit([1, 2, 3], 4)
    batcher.submit([1, 2, 3], 3)
    batcher.run()
    assert batcher.outputs == {0: naive(CONFIGS[0], 0, [1, 2, 3], 3)}


def test_a_forward_is_for_requests_with_equally_many_new_tokens() -> None:
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
def test_slots_that_cannot_be_are_refused(slots: int, max_length: int) -> None:
    with pytest.raises(ValueError, match="at least one slot and room for one token"):
        SlotCache(CONFIGS[0], slots, max_length)
    with pytest.raises(ValueError, match=f"slots is {slots} and max_length {max_length}"):
        batcher_of(slots, max_length)


def test_a_padded_row_can_be_all_context() -> None:
    """Beside a full prompt, short ones are served to their own end, past the row that has none."""
    config, model = CONFIGS[0], model_of(CachedLMHead, CONFIGS[0], 0)
    prompts = [list(range(12)), [1], list(range(11))]
    outputs = lab_3.generate_padded(model, prompts, [9, 20, 9])
    assert outputs == [naive(config, 0, prompt, 20) for prompt in prompts]
    assert [len(ids) for ids in outputs] == [12, 12, 12]


def test_no_logits_are_nan() -> None:
    """No row of logits is ever NaN, not even one that nobody reads."""
    config = CONFIGS[1]
    model = model_of(CachedLMHead, config, 2)
    seen: list[Tensor] = []
    hook = model.register_forward_hook(lambda _, given, logits: seen.append(logits))
    try:
        for loop in (generate_padded, lab_3.generate_static, lab_3.generate_continuous):
            loop(model, [[1], list(range(16)), [5, 6, 7], list(range(9))], [9, 1, 4, 7], 3)
    finally:
        hook.remove()
    assert seen
    assert all(logits.isfinite().all() for logits in seen)
