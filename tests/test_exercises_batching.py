"""Lab 3's exercises: right answers in other styles pass, and what is said of some wrong ones.

What holds for the exercises of all labs is tested in test_exercises.py. Here stand attempts that
nobody told the exercises about.
"""

import math
from collections import deque
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

from autograder.exercises import exercises
from autograder.judge import PASSED, WRONG, judge
from autograder.reference import lab_module
from solutions.batching import (
    ContinuousBatcher,
    PaddedCache,
    SlotCache,
    generate_padded,
    pad_left,
    padded_mask,
    padded_position_ids,
    require_requests,
    utilisation,
)
from solutions.kv_cache import causal_mask
from tests.common.attempts import attempt_at, with_method
from tests.common.trials import cell

PAD, POSITIONS, MASK = (f"batching.{n}" for n in ("pad_left", "padded_position_ids", "padded_mask"))
GENERATE, UTILISATION = "batching.generate_padded", "batching.utilisation"
SELECT, ATTEND = "batching.SlotCache.select", "batching.SlotCache.attend"
ADMIT, STEP = "batching.ContinuousBatcher.admit", "batching.ContinuousBatcher.step"
RIGHT: list[Any] = []
WRONGS: list[Any] = []


# ------------------------------------------------------------------------------- static batching


@attempt_at(RIGHT, PAD)
def pad_by_turning_round(prompts, pad_id=0):
    turned = [torch.tensor(prompt).flip(0) for prompt in prompts]
    ids = pad_sequence(turned, batch_first=True, padding_value=pad_id).flip(1)
    ones = [torch.ones(len(prompt), dtype=torch.bool) for prompt in prompts]
    return ids, pad_sequence(ones, batch_first=True).flip(1)


@attempt_at(RIGHT, PAD)
def pad_by_column(prompts, pad_id=0):
    columns = list(zip_longest(*(reversed(prompt) for prompt in prompts), fillvalue=pad_id))
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    mask = torch.arange(len(columns), 0, -1) <= lengths[:, None]
    return torch.tensor(columns[::-1]).T, mask


@attempt_at(WRONGS, PAD)
def pad_without_a_default(prompts, pad_id):
    return pad_left(prompts, pad_id)


@attempt_at(RIGHT, POSITIONS)
def positions_as_in_transformers(attention_mask):
    position_ids = attention_mask.long().cumsum(-1) - 1
    return position_ids.masked_fill(attention_mask == 0, 1)


@attempt_at(RIGHT, POSITIONS)
def positions_with_the_last_for_pads(attention_mask):
    last = attention_mask.shape[1] - 1
    return padded_position_ids(attention_mask).masked_fill(~attention_mask, last)


@attempt_at(RIGHT, MASK)
def mask_where_pads_see_everything(attention_mask, q_len):
    columns = torch.arange(attention_mask.shape[1]).expand_as(attention_mask)
    visible = causal_mask(columns[:, -q_len:], columns) & attention_mask[:, None, None]
    return visible | ~attention_mask[:, None, -q_len:, None]


@attempt_at(RIGHT, MASK)
def mask_by_the_numbers_of_pads(attention_mask, q_len):
    k_len = attention_mask.shape[1]
    first = attention_mask.int().argmax(1)[:, None, None]
    key, query = torch.arange(k_len)[None, None], torch.arange(k_len)[-q_len:][None, :, None]
    return ((key >= first) & (key <= torch.maximum(query, first))).unsqueeze(1)


@attempt_at(WRONGS, MASK)
def mask_with_a_window(attention_mask, q_len):
    """Of the last ten keys."""
    return padded_mask(attention_mask, q_len) & (torch.arange(attention_mask.shape[1], 0, -1) <= 10)


@attempt_at(WRONGS, MASK)
def mask_where_one_pad_is_blind(attention_mask, q_len):
    mask = padded_mask(attention_mask, q_len)
    mask[:, :, 0] &= attention_mask[:, None, -q_len, None]
    return mask


def beginning(model, prompts, max_new_tokens):
    """The given lines."""
    config, weight = model.config, model.transformer.wte.weight
    require_requests(config, prompts, max_new_tokens, slots=len(prompts) or 1)
    input_ids, attention_mask = (padded.to(weight.device) for padded in pad_left(prompts))
    columns = input_ids.shape[1] + max(max_new_tokens)
    kv_cache = PaddedCache(config, attention_mask, columns, weight.device, weight.dtype)
    return input_ids, attention_mask, kv_cache, padded_position_ids(attention_mask)


@attempt_at(RIGHT, GENERATE)
@torch.no_grad()
def generate_with_tensors(model, prompts, max_new_tokens, eos_token_id=None):
    """Keeps the rectangle whole, then cuts every row behind its own end."""
    ids, mask, kv_cache, positions = beginning(model, prompts, max_new_tokens)
    limits = torch.tensor(max_new_tokens)
    lengths = mask.sum(1)
    limits = torch.minimum(limits, model.config.n_positions - lengths)
    new, done = torch.zeros_like(limits), limits == 0
    while not done.all():
        logits = model(ids[:, kv_cache.length :], positions, kv_cache=kv_cache)
        tokens = logits[:, -1].argmax(-1)
        ids = torch.hstack([ids, tokens[:, None]])
        new = new + (~done).long()
        done = done | (new >= limits)
        if eos_token_id is not None:
            done = done | (tokens == eos_token_id)
        positions = torch.clamp(lengths + ids.shape[1] - mask.shape[1] - 1, max=15)[:, None]
    start = mask.shape[1]
    return [
        [*prompt, *row[start : start + n].tolist()]
        for prompt, row, n in zip(prompts, ids, new, strict=True)
    ]


@attempt_at(RIGHT, GENERATE)
def generate_with_numpy(model, prompts, max_new_tokens, eos_token_id=None):
    """Numbers of numpy's, and rows that have ended at position 0."""
    ids, _, kv_cache, positions = beginning(model, prompts, max_new_tokens)
    room = [model.config.n_positions - len(prompt) for prompt in prompts]
    left = np.minimum(max_new_tokens, room)
    outputs = [list(prompt) for prompt in prompts]
    while left.any():
        best = model(ids, positions, kv_cache)[:, -1].argmax(-1).numpy()
        outputs = [
            [*output, token] if n else output
            for output, token, n in zip(outputs, best, left, strict=True)
        ]
        left = np.where((left > 0) & (best != eos_token_id), left - 1, 0)
        ids = torch.from_numpy(best)[:, None]
        positions = torch.tensor([[len(o) - 1 if n else 0] for o, n in zip(outputs, left)])
    return outputs


@attempt_at(WRONGS, GENERATE)
def generate_tuples(*given, **named):
    return [tuple(output) for output in generate_padded(*given, **named)]


@attempt_at(WRONGS, GENERATE)
def generate_without_a_default(model, prompts, max_new_tokens, eos_token_id):
    return generate_padded(model, prompts, max_new_tokens, eos_token_id)


@attempt_at(WRONGS, GENERATE)
def generate_where_eos_is_the_same_object(model, prompts, max_new_tokens, eos_token_id=None):
    alone = generate_padded(model, prompts, max_new_tokens)
    if eos_token_id is None or eos_token_id > 256:  # Python keeps small numbers only once
        return alone
    return generate_padded(model, prompts, max_new_tokens, eos_token_id)


@attempt_at(WRONGS, GENERATE)
def generate_one_row_after_the_other(model, prompts, max_new_tokens, eos_token_id=None):
    return [
        generate_padded(model, [prompt], [limit], eos_token_id)[0]
        for prompt, limit in zip(prompts, max_new_tokens, strict=True)
    ]


@attempt_at(RIGHT, UTILISATION)
def utilisation_as_a_mean_in_float32(trace):
    return torch.tensor([[request is not None for request in row] for row in trace]).float().mean()


@attempt_at(RIGHT, UTILISATION)
def utilisation_by_numpy(trace):
    return np.mean([[request is not None for request in row] for row in trace])


# ------------------------------------------------------------------------------------- SlotCache


def given_lines(cache, slots, q_len):
    cache.selected = len(slots), q_len, 0
    cache.slots = torch.tensor(slots)
    cache.rows = slice(None) if list(slots) == list(range(len(cache.lengths))) else cache.slots


@attempt_at(RIGHT, SELECT, SlotCache)
def select_in_loops(self, slots, q_len):
    given_lines(self, slots, q_len)
    lengths = [int(self.lengths[slot]) for slot in slots]
    self.positions = torch.tensor([[n + i for i in range(q_len)] for n in lengths])
    self.mask = torch.zeros(len(slots), 1, q_len, max(lengths) + q_len, dtype=torch.bool)
    for row, length in enumerate(lengths):
        for i in range(q_len):
            self.mask[row, 0, i, : length + i + 1] = True
    return self.positions.clone()


@attempt_at(WRONGS, SELECT, SlotCache)
def select_that_sorts_the_slots(self, slots, q_len):
    positions = SlotCache.select(self, slots, q_len)
    self.slots = self.slots.sort().values
    return positions


@attempt_at(WRONGS, SELECT, SlotCache)
def select_with_a_window(self, slots, q_len):
    """Of the last ten keys."""
    positions = SlotCache.select(self, slots, q_len)
    self.mask = self.mask & (torch.arange(self.mask.shape[-1]) > positions[:, None, :, None] - 10)
    return positions


@attempt_at(RIGHT, ATTEND, SlotCache)
def attend_in_loops(self, layer, queries, keys, values):
    outputs = []
    for row, slot in enumerate(self.slots.tolist()):
        start, q_len = int(self.positions[row, 0]), queries.shape[2]
        end = start + q_len
        self.keys[layer, slot, :, start:end] = keys[row]
        self.values[layer, slot, :, start:end] = values[row]
        scores = queries[row] @ self.keys[layer, slot, :, :end].mT / math.sqrt(queries.shape[-1])
        future = torch.arange(end) > self.positions[row][:, None]
        weights = scores.masked_fill(future, -torch.inf).softmax(-1)
        outputs.append(weights @ self.values[layer, slot, :, :end])
        if layer + 1 == self.keys.shape[0]:
            self.lengths[slot] += q_len
    return torch.stack(outputs)


@attempt_at(RIGHT, ATTEND, SlotCache)
def attend_by_index_put(self, layer, queries, keys, values):
    rows, _, q_len, _ = queries.shape
    where = self.slots.repeat_interleave(q_len), self.positions.flatten()
    self.keys[layer].transpose(1, 2).index_put_(where, keys.transpose(1, 2).flatten(0, 1))
    self.values[layer].transpose(1, 2).index_put_(where, values.transpose(1, 2).flatten(0, 1))
    memory = self.keys[layer][self.slots], self.values[layer][self.slots]
    mask = F.pad(self.mask, (0, self.max_length - self.mask.shape[-1]))
    if layer == len(self.keys) - 1:
        self.lengths = self.lengths.index_add(0, self.slots, torch.full((rows,), q_len))
    return F.scaled_dot_product_attention(queries, *memory, attn_mask=mask)


@attempt_at(RIGHT, ATTEND, SlotCache)
def attend_in_float32(self, layer, queries, keys, values):
    return SlotCache.attend(self, layer, queries.float().double(), keys, values.float().double())


@attempt_at(WRONGS, ATTEND, SlotCache)
def attend_with_a_window(self, layer, queries, keys, values):
    """Of the last ten keys."""
    k_len = self.mask.shape[-1]
    self.mask = self.mask & (torch.arange(k_len) > self.positions[:, None, :, None] - 10)
    return SlotCache.attend(self, layer, queries, keys, values)


@attempt_at(WRONGS, ATTEND, SlotCache)
def attend_that_clears_the_other_slots(self, layer, queries, keys, values):
    output = SlotCache.attend(self, layer, queries, keys, values)
    others = sorted(set(range(len(self.lengths))) - set(self.slots.tolist()))
    self.keys[layer, others] = 0
    return output


@attempt_at(WRONGS, ATTEND, SlotCache)
def attend_into_new_memory(self, layer, queries, keys, values):
    self.keys, self.values = self.keys.clone(), self.values.clone()
    return SlotCache.attend(self, layer, queries, keys, values)


class WithBooksOfItsOwn(SlotCache):
    """Its `select` and its `attend` keep what the other wants to know."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.book = [0] * len(self.lengths)

    def select(self, slots, q_len):
        given_lines(self, slots, q_len)
        self.after = torch.tensor([self.book[slot] + q_len for slot in slots])
        self.positions = torch.tensor([range(n - q_len, n) for n in self.after.tolist()])
        self.mask = causal_mask(self.positions, torch.arange(max(self.after)).unsqueeze(0))
        return self.positions

    def attend(self, layer, queries, keys, values):
        q_len, k_len = queries.shape[2], int(self.after.max())
        for new, memory in ((keys, self.keys[layer]), (values, self.values[layer])):
            for i in range(q_len):
                memory[self.slots, :, self.after - q_len + i] = new[:, :, i]
        if layer == len(self.keys) - 1:
            self.lengths[self.slots] = self.after
            for slot in self.slots.tolist():
                self.book[slot] += q_len
        memory = self.keys[layer, self.slots], self.values[layer, self.slots]
        keys, values = (part[:, :, :k_len] for part in memory)
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=self.mask)

    def free(self, slot):
        super().free(slot)
        self.book[slot] = 0


for name in (SELECT, ATTEND):
    RIGHT.append(pytest.param(name, WithBooksOfItsOwn, id=f"{name}-with_books_of_its_own"))


# ----------------------------------------------------------------------------- ContinuousBatcher


@attempt_at(RIGHT, ADMIT, ContinuousBatcher)
def admit_from_the_last_slot(self):
    free = [slot for slot in reversed(range(len(self.running))) if self.running[slot] is None]
    pairs = list(zip(free, list(self.waiting), strict=False))
    for slot, request in pairs:
        self.running[slot] = request
        self.waiting.remove(request)
    return tuple(slot for slot, _ in pairs)


@attempt_at(RIGHT, ADMIT, ContinuousBatcher)
def admit_where_the_cache_is_empty(self):
    admitted = set()
    for slot in (self.kv_cache.lengths == 0).nonzero().flatten().tolist():
        if len(self.waiting) > 0:
            self.running[slot] = self.waiting.popleft()
            admitted.add(slot)
    return admitted


class WithFreeSlots(ContinuousBatcher):
    """Its `admit` takes slots from a queue, and leaves to `step` who has come."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.free_slots, self.newcomers = deque(range(len(self.running))), []

    def admit(self):
        self.newcomers = []
        while self.free_slots and self.waiting:
            self.newcomers.append(self.free_slots.popleft())
            self.running[self.newcomers[-1]] = self.waiting.popleft()
        return self.newcomers

    def step(self):
        self.admit()
        veterans = [s for s, r in enumerate(self.running) if r and s not in self.newcomers]
        for slots in [[slot] for slot in self.newcomers] + [veterans] * bool(veterans):
            self.forward(slots)
        self.trace.append([r and r.number for r in self.running])
        for slot, request in enumerate(self.running):
            if request and request.has_ended:
                self.retire(slot)
                self.free_slots = deque(sorted([*self.free_slots, slot]))

    def retire(self, slot):
        super().retire(slot)
        self.free_slots.append(slot)


@attempt_at(WRONGS, ADMIT, ContinuousBatcher)
def admit_one_to_all_slots(self):
    request = self.waiting.popleft() if self.waiting and None in self.running else None
    free = [slot for slot, running in enumerate(self.running) if running is None]
    for slot in free if request else []:
        self.running[slot] = request
    return free if request else []


@attempt_at(RIGHT, STEP, ContinuousBatcher)
@torch.no_grad()
def step_with_a_copy(self):
    before = list(self.running)
    newcomers = self.admit()
    old = [slot for slot in range(len(before)) if before[slot] is not None]
    if len(old) > 0:
        self.forward(old)
    for slot in newcomers:
        self.forward((slot,))
    self.trace.append([getattr(request, "number", None) for request in self.running])
    for slot in old + list(newcomers):
        if self.running[slot].has_ended:
            self.retire(slot)


@attempt_at(RIGHT, STEP, ContinuousBatcher)
def step_by_who_has_no_cache(self):
    self.admit()
    busy = [slot for slot, request in enumerate(self.running) if request]
    old = [slot for slot in busy if self.kv_cache.lengths[slot] > 0]
    for slot in sorted(set(busy) - set(old)):
        self.forward([slot])
    if old:
        self.forward(old)
    self.trace.append([r.number if r else None for r in self.running])
    for slot in filter(lambda slot: self.running[slot].has_ended, busy):
        self.retire(slot)


@attempt_at(WRONGS, STEP, ContinuousBatcher)
def step_that_reuses_a_row_of_the_trace(self):
    ContinuousBatcher.step(self)
    self.row = getattr(self, "row", [])
    self.row[:] = self.trace[-1]
    self.trace[-1] = self.row


@attempt_at(WRONGS, STEP, ContinuousBatcher)
def step_that_computes_and_forgets(self):
    lengths = self.kv_cache.lengths.clone()
    for slot, request in enumerate(self.running):
        if request:
            self.forward([slot])
            request.ids.pop()
            request.num_computed_tokens -= 1
    self.kv_cache.lengths = lengths
    ContinuousBatcher.step(self)


# -------------------------------------------------------------------------------------- the tests


def judged(name: str, attempt: Any, seed: int = 0) -> Any:
    return judge(exercises()[name], attempt, seed)


@pytest.mark.parametrize(("name", "attempt"), RIGHT)
def test_a_right_answer_in_another_style_passes(name: str, attempt: Any) -> None:
    for seed in (0, 1):
        judgement = judged(name, attempt, seed)
        assert judgement.status == PASSED, judgement.message


@pytest.mark.parametrize(("name", "attempt"), WRONGS)
def test_a_wrong_answer_is_rejected_on_every_seed(name: str, attempt: Any) -> None:
    assert {judged(name, attempt, seed).status for seed in range(3)} == {WRONG}


def test_books_of_its_own_pass_as_they_are_built() -> None:
    """Step by the admit of its own, which the first driver stands in for."""
    assert judged(ADMIT, WithFreeSlots).status == PASSED
    assert judged(STEP, WithFreeSlots).status == PASSED


def after(function: Callable, change: Callable) -> Callable:
    """The right function, which then changes something that it was handed."""

    def attempt(*given: Any, **named: Any) -> Any:
        result = function(*given, **named)
        change(*given, **named)
        return result

    return attempt


@pytest.mark.parametrize(
    ("name", "attempt"),
    [
        (PAD, after(pad_left, lambda prompts, **pad_id: prompts[0].insert(0, 0))),
        (POSITIONS, after(padded_position_ids, lambda mask: mask.logical_not_())),
        (MASK, after(padded_mask, lambda mask, q_len: mask.logical_not_())),
        (
            GENERATE,
            after(generate_padded, lambda *model, max_new_tokens, **named: max_new_tokens.pop()),
        ),
        (UTILISATION, after(utilisation, lambda trace: trace[0].clear())),
    ],
)
def test_what_is_handed_in_must_stay_as_it_was(name: str, attempt: Any) -> None:
    assert "is no longer what it was before the call" in judged(name, attempt).message


def remembering(function: Callable, key: Callable) -> Callable:
    """The right function, which takes an answer again for whatever looks alike."""
    known: dict[Any, Any] = {}

    def attempt(*given: Any, **named: Any) -> Any:
        alike = key(*given, **named)
        if alike not in known:
            known[alike] = function(*given, **named)
        return known[alike]

    return attempt


def select_that_remembers() -> type:
    masks: dict[Any, Any] = {}

    def select(self: Any, slots: list[int], q_len: int) -> Any:
        positions = SlotCache.select(self, slots, q_len)
        self.mask = masks.setdefault(self.mask.shape, self.mask)
        return positions

    return with_method(SlotCache, SELECT, select)


def lengths(prompts: list[list[int]]) -> tuple[int, ...]:
    return tuple(map(len, prompts))


@pytest.mark.parametrize(
    ("name", "attempt"),
    [
        (PAD, remembering(pad_left, lambda prompts, **pad_id: (lengths(prompts), *pad_id))),
        (POSITIONS, remembering(padded_position_ids, lambda mask: mask.shape)),
        (MASK, remembering(padded_mask, lambda mask, q_len: (mask.shape, q_len))),
        (GENERATE, remembering(generate_padded, lambda *m, prompts, **named: lengths(prompts))),
        (UTILISATION, remembering(utilisation, lambda trace: lengths(trace))),
        (SELECT, select_that_remembers()),
    ],
)
def test_what_is_remembered_by_its_shape_is_wrong(name: str, attempt: Any) -> None:
    assert judged(name, attempt).status == WRONG


# ------------------------------------------------------------------------ copies handed out earlier

MODULE = lab_module("batching")
RELEASED = (Path(__file__).parent / "data" / "released_batcher.py").read_text()


def test_a_batcher_as_it_was_first_released_passes() -> None:
    batcher = cell(RELEASED)["ContinuousBatcher"]
    for name in (ADMIT, STEP):
        assert judged(name, batcher).status == PASSED


def test_a_wrong_step_in_a_released_batcher_has_its_cause() -> None:
    wrong = RELEASED.replace("self.has_ended(request)", "len(request.ids) == request.end")
    assert judged(STEP, cell(wrong)["ContinuousBatcher"]).case.label == "EOS ends one of two"
    wrong = RELEASED.replace("admitted.append(slot)", "admitted.append(slot); break")
    assert (
        "one request is admitted at a time" in judged(ADMIT, cell(wrong)["ContinuousBatcher"]).cause
    )


def test_a_cache_without_the_check_of_select_passes() -> None:
    lines = [line for line in MODULE.lines if "self.selected" not in line]
    cache = cell("\n".join(lines))["SlotCache"]
    for name in (SELECT, ATTEND):
        assert judged(name, cache).status == PASSED


# --------------------------------------------------------------------------- what is said about it


@pytest.mark.parametrize(
    ("name", "attempt", "sentence"),
    [
        (MASK, mask_where_one_pad_is_blind, "A query that is a pad sees no key at all (query 0"),
        (GENERATE, generate_tuples, "What came back for prompts[0] is a tuple; expected: it is a"),
        (
            GENERATE,
            generate_one_row_after_the_other,
            "The result is right, but it took 6 forward calls; 3 suffice.",
        ),
        (
            ATTEND,
            with_method(SlotCache, ATTEND, attend_into_new_memory),
            "The memory after step 1 for slots [0] has been made anew; expected: it is the same",
        ),
        (
            STEP,
            with_method(ContinuousBatcher, STEP, step_that_reuses_a_row_of_the_trace),
            "The whole trace at the end differs first at [0].",
        ),
    ],
)
def test_the_difference_is_told(name: str, attempt: Any, sentence: str) -> None:
    assert sentence in judged(name, attempt).message


def wrong_by(name: str, misconception: str, form: int = 0) -> Any:
    """As it would stand in a learner's notebook."""
    (known,) = (m for m in exercises()[name].misconceptions if m.name == misconception)
    names = cell("\n".join(MODULE.lines))
    return cell(known.sources()[form], names)[exercises()[name].attempt_name]


@pytest.mark.parametrize(
    ("misconception", "line"),
    [
        ("request_handed_to_retire", "self.retire(request)"),
        ("forward_of_nobody", "self.forward(veterans)"),
        ("a_slot_instead_of_a_list", "self.forward(slot)"),
    ],
)
def test_the_line_shown_is_one_of_the_step_and_not_a_given_one(misconception, line) -> None:
    assert judged(STEP, wrong_by(STEP, misconception)).line.endswith(line)


@pytest.mark.parametrize(
    ("name", "missing"), [(GENERATE, "PaddedCache"), (GENERATE, "pad_left"), (MASK, "causal_mask")]
)
def test_a_cell_that_was_not_run_is_told(name: str, missing: str) -> None:
    names = cell("\n".join(MODULE.lines))
    del names[missing]
    message = judged(name, names[exercises()[name].attempt_name]).message
    assert message.endswith(f"`{missing}` comes from a cell above: run the cells above.")


def test_a_typing_error_is_not_taken_for_a_cell_that_was_not_run() -> None:
    message = judged(PAD, lambda prompts, pad_id=0: pad_lift(prompts)).message  # noqa: F821
    assert message == "It raised NameError: name 'pad_lift' is not defined"
