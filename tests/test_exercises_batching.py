"""Lab 3's exercises: right answers in other styles pass, and what is said of some wrong ones.

What holds for the exercises of all labs is tested in test_exercises.py. Here stand attempts that
nobody told the exercises about.
"""

import math
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from autograder.exercises import exercises
from autograder.judge import PASSED, WRONG, Judgement, judge
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
from tests.common.trials import cell, is_rejected

PAD, POSITIONS, MASK = (f"batching.{n}" for n in ("pad_left", "padded_position_ids", "padded_mask"))
GENERATE, UTILISATION = "batching.generate_padded", "batching.utilisation"
SELECT, ATTEND = "batching.SlotCache.select", "batching.SlotCache.attend"
ADMIT, STEP = "batching.ContinuousBatcher.admit", "batching.ContinuousBatcher.step"
RIGHT: list[Any] = []
WRONGS: list[Any] = []


def judged(name: str, attempt: Any, seed: int = 0) -> Judgement:
    return judge(exercises()[name], attempt, seed)


# ------------------------------------------------------------------------------- static batching


@attempt_at(RIGHT, PAD)
def pad_by_column(prompts, pad_id=0):
    columns = list(zip_longest(*(reversed(prompt) for prompt in prompts), fillvalue=pad_id))
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    mask = torch.arange(len(columns), 0, -1) <= lengths[:, None]
    return [torch.tensor(columns[::-1]).T, mask]


@attempt_at(RIGHT, POSITIONS)
def positions_as_in_transformers(attention_mask):
    position_ids = attention_mask.long().cumsum(-1) - 1
    return position_ids.masked_fill(attention_mask == 0, 1)


@attempt_at(RIGHT, MASK)
def mask_where_pads_see_everything(attention_mask, q_len):
    columns = torch.arange(attention_mask.shape[1]).expand_as(attention_mask)
    visible = causal_mask(columns[:, -q_len:], columns) & attention_mask[:, None, None]
    return visible | ~attention_mask[:, None, -q_len:, None]


@attempt_at(WRONGS, MASK)
def mask_of_the_last_ten_keys(attention_mask, q_len):
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
    lengths = mask.sum(1)
    limits = torch.tensor(max_new_tokens).minimum(model.config.n_positions - lengths)
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
    rows = zip(prompts, ids, new, strict=True)
    return [[*prompt, *row[start : start + n].tolist()] for prompt, row, n in rows]


@attempt_at(RIGHT, GENERATE)
def generate_with_numpy(model, prompts, max_new_tokens, eos_token_id=None):
    """Numbers of numpy's, and rows that have ended at position 0."""
    ids, _, kv_cache, positions = beginning(model, prompts, max_new_tokens)
    left = np.minimum(
        max_new_tokens, [model.config.n_positions - len(prompt) for prompt in prompts]
    )
    outputs = [list(prompt) for prompt in prompts]
    while left.any():
        best = model.forward(ids, positions, kv_cache)[:, -1].argmax(-1).numpy()
        for row in left.nonzero()[0]:
            outputs[row].append(best[row])
        left = np.where((left > 0) & (best != eos_token_id), left - 1, 0)
        ids = torch.from_numpy(best)[:, None]
        rows = zip(outputs, left, strict=True)
        positions = torch.tensor([[len(output) - 1 if n else 0] for output, n in rows])
    return outputs


@attempt_at(WRONGS, GENERATE)
def generate_tuples(*given, **named):
    return [tuple(output) for output in generate_padded(*given, **named)]


@attempt_at(WRONGS, GENERATE)
def generate_where_eos_is_the_same_object(model, prompts, max_new_tokens, eos_token_id=None):
    small = eos_token_id is not None and eos_token_id <= 256  # Python keeps these only once
    return generate_padded(model, prompts, max_new_tokens, eos_token_id if small else None)


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
def select_with_masks_by_shape(self, slots, q_len, known={}):  # noqa: B006
    positions = SlotCache.select(self, slots, q_len)
    self.mask = known.setdefault(self.mask.shape, self.mask)
    return positions


def only_the_last_ten_keys(cache):
    return cache.mask & (
        torch.arange(cache.mask.shape[-1]) > cache.positions[:, None, :, None] - 10
    )


@attempt_at(WRONGS, SELECT, SlotCache)
def select_with_a_window(self, slots, q_len):
    positions = SlotCache.select(self, slots, q_len)
    self.mask = only_the_last_ten_keys(self)
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
def attend_in_float32(self, layer, queries, keys, values):
    return SlotCache.attend(self, layer, queries.float().double(), keys, values.float().double())


@attempt_at(WRONGS, ATTEND, SlotCache)
def attend_with_a_window(self, layer, queries, keys, values):
    self.mask = only_the_last_ten_keys(self)
    return SlotCache.attend(self, layer, queries, keys, values)


@attempt_at(WRONGS, ATTEND, SlotCache)
def attend_into_new_memory(self, layer, queries, keys, values):
    self.keys, self.values = self.keys.clone(), self.values.clone()
    return SlotCache.attend(self, layer, queries, keys, values)


class WithLengthsOfItsOwn(SlotCache):
    """Its `select` and its `attend` keep what the other wants to know."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.book = [0] * len(self.lengths)

    def select(self, slots, q_len):
        self.served, self.lengths = torch.tensor(slots), torch.tensor(self.book)
        return super().select(slots, q_len)

    def attend(self, layer, queries, keys, values):
        self.slots = self.served
        output = super().attend(layer, queries, keys, values)
        if layer == len(self.keys) - 1:
            self.book = self.lengths.tolist()
        return output

    def free(self, slot):
        super().free(slot)
        self.book[slot] = 0


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
    self.trace.append(tuple(getattr(request, "number", None) for request in self.running))
    for slot in old + list(newcomers):
        if self.running[slot].has_ended:
            self.retire(slot)


@attempt_at(WRONGS, STEP, ContinuousBatcher)
def step_that_writes_one_row_again_and_again(self):
    ContinuousBatcher.step(self)
    self.row = getattr(self, "row", [])
    self.row[:] = self.trace[-1]
    self.trace[-1] = self.row


class WithNewcomersOfItsOwn(ContinuousBatcher):
    """Its `admit` notes for `step` who came."""

    def admit(self):
        self.newcomers = super().admit()
        return self.newcomers

    def step(self):
        self.admit()
        busy = [slot for slot, request in enumerate(self.running) if request]
        veterans = [slot for slot in busy if slot not in self.newcomers]
        for slots in [*([slot] for slot in self.newcomers), *([veterans] if veterans else [])]:
            self.forward(slots)
        self.trace.append([request.number if request else None for request in self.running])
        for slot in busy:
            if self.running[slot].has_ended:
                self.retire(slot)


# -------------------------------------------------------------------------------------- the tests


@pytest.mark.parametrize(("name", "attempt"), RIGHT)
def test_a_right_answer_in_another_style_passes(name, attempt):
    for seed in (0, 1):
        judgement = judged(name, attempt, seed)
        assert judgement.status == PASSED, judgement.message


@pytest.mark.parametrize(
    ("name", "attempt"),
    [(SELECT, WithLengthsOfItsOwn), (ATTEND, WithLengthsOfItsOwn), (STEP, WithNewcomersOfItsOwn)],
)
def test_who_keeps_books_of_its_own_passes(name, attempt):
    assert judged(name, attempt).status == PASSED


@pytest.mark.parametrize(("name", "attempt"), WRONGS)
def test_a_wrong_answer_is_rejected_on_every_seed(name, attempt):
    assert all(is_rejected(exercises()[name], attempt, seed) for seed in range(3))


def test_a_default_that_was_lost_is_missed():
    message = judged(PAD, lambda prompts, pad_id: pad_left(prompts, pad_id)).message
    assert "missing 1 required positional argument: 'pad_id'" in message


def after(function: Callable, change: Callable) -> Callable:
    """The right function, which then changes something that it was handed."""

    def attempt(*given, **named):
        result = function(*given, **named)
        change(*given, *named.values())
        return result

    return attempt


@pytest.mark.parametrize(
    ("name", "attempt"),
    [
        (PAD, after(pad_left, lambda prompts, pad_id=0: prompts[0].insert(0, 0))),
        (POSITIONS, after(padded_position_ids, lambda mask: mask.logical_not_())),
        (MASK, after(padded_mask, lambda mask, q_len: mask.logical_not_())),
        (GENERATE, after(generate_padded, lambda model, prompts, limits, eos=0: limits.pop())),
        (UTILISATION, after(utilisation, lambda trace: trace[0].clear())),
    ],
)
def test_what_is_handed_in_must_stay_as_it_was(name, attempt):
    assert "is no longer what it was before the call" in judged(name, attempt).message


def remembering(function: Callable, key: Callable) -> Callable:
    """The right function, which gives the same answer to whatever looks alike."""
    known: dict[Any, Any] = {}

    def attempt(*given, **named):
        alike = key(*given, *named.values())
        if alike not in known:
            known[alike] = function(*given, **named)
        return known[alike]

    return attempt


def lengths(lists: list[list[int]]) -> tuple[int, ...]:
    return tuple(map(len, lists))


@pytest.mark.parametrize(
    ("name", "attempt"),
    [
        (PAD, remembering(pad_left, lambda prompts, pad_id=0: (lengths(prompts), pad_id))),
        (POSITIONS, remembering(padded_position_ids, lambda mask: mask.shape)),
        (MASK, remembering(padded_mask, lambda mask, q_len: (mask.shape, q_len))),
        (GENERATE, remembering(generate_padded, lambda m, ids, n, *eos: (lengths(ids), *n))),
        (UTILISATION, remembering(utilisation, lengths)),
    ],
)
def test_what_is_remembered_by_its_shape_is_wrong(name, attempt):
    assert judged(name, attempt).status == WRONG


# ------------------------------------------------------------------------ copies handed out earlier

MODULE = lab_module("batching")
RELEASED = (Path(__file__).parent / "data" / "released_batcher.py").read_text()


def test_a_batcher_as_it_was_first_released_passes():
    batcher = cell(RELEASED)["ContinuousBatcher"]
    for name in (ADMIT, STEP):
        assert judged(name, batcher).status == PASSED


@pytest.mark.parametrize(
    ("name", "right", "wrong", "told"),
    [
        (ADMIT, "popleft()", "pop()", "The request that came last is served first."),
        (STEP, "self.has_ended(request)", "self.waiting", "keeps its slot"),
    ],
)
def test_a_mistake_in_a_released_batcher_has_its_cause(name, right, wrong, told):
    batcher = cell(RELEASED.replace(right, wrong))["ContinuousBatcher"]
    assert told in judged(name, batcher).cause


def test_a_cache_that_does_not_ask_for_select_passes():
    released = "\n".join(line for line in MODULE.lines if "self.selected" not in line)
    for name in (SELECT, ATTEND):
        assert judged(name, cell(released)["SlotCache"]).status == PASSED


# --------------------------------------------------------------------------- what is said about it


@pytest.mark.parametrize(
    ("name", "attempt", "sentence"),
    [
        (MASK, mask_where_one_pad_is_blind, "A query that is a pad sees no key at all (query 0"),
        (GENERATE, generate_tuples, "What came back for prompts[0] is a tuple; expected: it is a"),
        (GENERATE, generate_one_row_after_the_other, "took 6 forward calls; 3 suffice."),
        (ATTEND, attend_into_new_memory, "The memory after step 1 for slots [0] has been made"),
        (STEP, step_that_writes_one_row_again_and_again, "The whole trace at the end differs"),
    ],
)
def test_the_difference_is_told(name, attempt, sentence):
    if "." in exercises()[name].path:
        attempt = with_method(exercises()[name].reference, name, attempt)
    assert sentence in judged(name, attempt).message


@pytest.mark.parametrize(
    ("misconception", "line"),
    [
        ("request_handed_to_retire", "self.retire(request)"),
        ("forward_of_nobody", "self.forward(veterans)"),
        ("a_slot_instead_of_a_list", "self.forward(slot)"),
    ],
)
def test_the_line_shown_stands_in_the_step_and_not_in_a_given_method(misconception, line):
    (known,) = (m for m in exercises()[STEP].misconceptions if m.name == misconception)
    names = cell(known.sources()[0], cell("\n".join(MODULE.lines)))
    assert judged(STEP, names["ContinuousBatcher"]).line.endswith(line)


@pytest.mark.parametrize(
    ("name", "missing"), [(GENERATE, "PaddedCache"), (GENERATE, "pad_left"), (MASK, "causal_mask")]
)
def test_a_cell_that_was_not_run_is_told(name, missing):
    names = cell("\n".join(MODULE.lines))
    del names[missing]
    message = judged(name, names[exercises()[name].attempt_name]).message
    assert message.endswith(f"`{missing}` comes from a cell above: run the cells above.")


def test_a_slip_of_the_pen_is_not_taken_for_a_cell_that_was_not_run():
    attempt = cell("def pad_left(prompts, pad_id=0): return pad_lift(prompts)")["pad_left"]
    assert judged(PAD, attempt).message == "It raised NameError: name 'pad_lift' is not defined"
