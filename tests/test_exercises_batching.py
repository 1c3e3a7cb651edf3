"""Lab 3's exercises: right answers in other styles pass, wrong ones of many kinds don't.

The misconceptions themselves are tested with those of all labs, in test_exercises.py. Here stand
attempts that nobody told the exercises about.
"""

import math
from collections.abc import Callable
from itertools import zip_longest
from types import FunctionType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

from autograder.exercise import CHANGES_BY_ITSELF, NOT_ATTEMPTED, PASSED, WRONG
from autograder.exercises import batching
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
from tests.attempts import attempt_at

EXERCISES = {exercise.name: exercise for exercise in batching.EXERCISES}
RIGHT: list[Any] = []
WRONGS: list[Any] = []


# ------------------------------------------------------------------------------------- pad_left

PAD = "batching.pad_left"


@attempt_at(RIGHT, PAD)
def pad_by_turning_round(prompts, pad_id=0):
    turned = [torch.tensor(prompt).flip(0) for prompt in prompts]
    ids = pad_sequence(turned, batch_first=True, padding_value=pad_id).flip(1)
    ones = [torch.ones(len(prompt), dtype=torch.bool) for prompt in prompts]
    return ids, pad_sequence(ones, batch_first=True).flip(1)


@attempt_at(RIGHT, PAD)
def pad_with_lists(prompts, pad_id=0):
    width = len(max(prompts, key=len))
    ids = [[pad_id] * (width - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[False] * (width - len(prompt)) + [True] * len(prompt) for prompt in prompts]
    return [torch.tensor(ids), torch.tensor(mask)]


@attempt_at(RIGHT, PAD)
def pad_by_column(prompts, pad_id=0):
    columns = list(zip_longest(*(reversed(prompt) for prompt in prompts), fillvalue=pad_id))
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    mask = torch.arange(len(columns), 0, -1) <= lengths[:, None]
    return torch.tensor(columns[::-1]).T, mask


@attempt_at(WRONGS, PAD)
def pad_to_a_multiple_of_eight(prompts, pad_id=0):
    ids, mask = pad_left(prompts, pad_id)
    extra = -ids.shape[1] % 8
    return F.pad(ids, (extra, 0), value=pad_id), F.pad(mask, (extra, 0))


@attempt_at(WRONGS, PAD)
def pad_with_minus_one(prompts, pad_id=0):
    return pad_left(prompts, -1)


@attempt_at(WRONGS, PAD)
def pad_in_the_middle(prompts, pad_id=0):
    ids, mask = pad_left(prompts, pad_id)
    for row, prompt in enumerate(prompts):
        ids[row, 0], ids[row, -len(prompt)] = ids[row, -len(prompt)].item(), ids[row, 0].item()
    return ids, mask


@attempt_at(WRONGS, PAD)
def pad_returns_lists(prompts, pad_id=0):
    return tuple(tensor.tolist() for tensor in pad_left(prompts, pad_id))


@attempt_at(WRONGS, PAD)
def pad_returns_lengths(prompts, pad_id=0):
    ids, mask = pad_left(prompts, pad_id)
    return ids, mask.sum(dim=1)


# ---------------------------------------------------------------- padded_position_ids, padded_mask

POSITIONS = "batching.padded_position_ids"


@attempt_at(RIGHT, POSITIONS)
def positions_as_in_transformers(attention_mask):
    position_ids = attention_mask.long().cumsum(-1) - 1
    return position_ids.masked_fill(attention_mask == 0, 1)


@attempt_at(RIGHT, POSITIONS)
def positions_from_the_number_of_pads(attention_mask):
    pads = (~attention_mask).sum(1, keepdim=True)
    return (torch.arange(attention_mask.shape[1]) - pads).clip(0)


@attempt_at(RIGHT, POSITIONS)
def positions_of_what_came_before(attention_mask):
    return attention_mask.cumsum(1) - attention_mask.long()


@attempt_at(RIGHT, POSITIONS)
def positions_in_loops(attention_mask):
    position_ids = torch.zeros(attention_mask.shape, dtype=torch.int64)
    for row, tokens in enumerate(attention_mask.tolist()):
        position = 0
        for column, is_token in enumerate(tokens):
            position_ids[row, column] = position
            position += is_token
    return position_ids


@attempt_at(RIGHT, POSITIONS)
def positions_with_the_last_for_pads(attention_mask):
    return padded_position_ids(attention_mask).masked_fill(
        ~attention_mask, attention_mask.shape[1] - 1
    )


@attempt_at(WRONGS, POSITIONS)
def positions_that_skip_one(attention_mask):
    return 2 * padded_position_ids(attention_mask)


@attempt_at(WRONGS, POSITIONS)
def positions_with_pads_behind_the_context(attention_mask):
    return padded_position_ids(attention_mask).masked_fill(~attention_mask, 10**6)


@attempt_at(WRONGS, POSITIONS)
def positions_of_one_row(attention_mask):
    return padded_position_ids(attention_mask)[0]


@attempt_at(WRONGS, POSITIONS)
def positions_relative_to_the_end(attention_mask):
    return padded_position_ids(attention_mask) - attention_mask.sum(1, keepdim=True) + 1


@attempt_at(WRONGS, POSITIONS)
def positions_in_lists(attention_mask):
    return padded_position_ids(attention_mask).tolist()


MASK = "batching.padded_mask"


@attempt_at(RIGHT, MASK)
def mask_where_pads_see_themselves(attention_mask, q_len):
    k_len = attention_mask.shape[1]
    causal = torch.ones(q_len, k_len, dtype=torch.bool).tril(k_len - q_len)
    itself = torch.eye(k_len, dtype=torch.bool)[-q_len:]
    return (causal & attention_mask[:, None, None] | itself).view(-1, 1, q_len, k_len)


@attempt_at(RIGHT, MASK)
def mask_where_pads_see_everything(attention_mask, q_len):
    columns = torch.arange(attention_mask.shape[1]).expand_as(attention_mask)
    visible = causal_mask(columns[:, -q_len:], columns) & attention_mask[:, None, None]
    return visible | ~attention_mask[:, None, -q_len:, None]


@attempt_at(RIGHT, MASK)
def mask_in_loops(attention_mask, q_len):
    batch, k_len = attention_mask.shape
    mask = torch.zeros(batch, 1, q_len, k_len, dtype=torch.bool)
    for row in range(batch):
        for query in range(q_len):
            for key in range(k_len):
                seen = key <= k_len - q_len + query and attention_mask[row, key]
                mask[row, 0, query, key] = bool(seen)
            if not mask[row, 0, query].any():
                mask[row, 0, query] = True
    return mask


@attempt_at(RIGHT, MASK)
def mask_by_the_numbers_of_pads(attention_mask, q_len):
    k_len = attention_mask.shape[1]
    first = attention_mask.int().argmax(1)[:, None, None]
    key, query = torch.arange(k_len)[None, None], torch.arange(k_len)[-q_len:][None, :, None]
    return ((key >= first) & (key <= torch.maximum(query, first))).unsqueeze(1)


@attempt_at(WRONGS, MASK)
def mask_where_one_pad_is_seen(attention_mask, q_len):
    return padded_mask(attention_mask.roll(-1, dims=1) | attention_mask, q_len)


@attempt_at(WRONGS, MASK)
def mask_with_a_window(attention_mask, q_len):
    far = padded_mask(attention_mask, q_len).cumsum(-1) == 1
    return padded_mask(attention_mask, q_len) & ~far


@attempt_at(WRONGS, MASK)
def mask_one_too_far(attention_mask, q_len):
    positions = padded_position_ids(attention_mask)
    visible = causal_mask(positions[:, -q_len:] + 1, positions)
    return visible & attention_mask[:, None, None]


@attempt_at(WRONGS, MASK)
def mask_of_integers(attention_mask, q_len):
    return padded_mask(attention_mask, q_len).long()


@attempt_at(WRONGS, MASK)
def mask_for_two_heads(attention_mask, q_len):
    return padded_mask(attention_mask, q_len).repeat(1, 2, 1, 1)


@attempt_at(WRONGS, MASK)
def mask_where_one_pad_is_blind(attention_mask, q_len):
    mask = padded_mask(attention_mask, q_len)
    mask[:, :, 0] &= attention_mask[:, None, -q_len, None]
    return mask


# ------------------------------------------------------------------------------- generate_padded

GENERATE = "batching.generate_padded"


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
def generate_with_a_growing_mask(model, prompts, max_new_tokens, eos_token_id=None):
    """As transformers does: positions are taken from the mask, which grows by a column a step."""
    ids, mask, kv_cache, positions = beginning(model, prompts, max_new_tokens)
    full = model.config.n_positions
    outputs, active = [[*prompt] for prompt in prompts], set(range(len(prompts)))
    for row, prompt in enumerate(prompts):
        if len(prompt) == full:
            active.discard(row)
    while active:
        ids = model.forward(ids, positions, kv_cache)[:, -1:].max(-1).indices
        for row in sorted(active):
            outputs[row].append(ids[row].item())
            used = len(outputs[row]) - len(prompts[row])
            ended = eos_token_id is not None and outputs[row][-1] == eos_token_id
            if ended or used == max_new_tokens[row] or len(outputs[row]) == full:
                active.remove(row)
        mask = F.pad(mask, (0, 1), value=True)
        positions = padded_position_ids(mask)[:, -1:].clamp(max=full - 1)
    return outputs


@attempt_at(RIGHT, GENERATE)
def generate_with_finished_rows_at_zero(model, prompts, max_new_tokens, eos_token_id=None):
    """Rows that have ended are given pads at position 0."""
    ids, _, kv_cache, positions = beginning(model, prompts, max_new_tokens)
    room = [model.config.n_positions - len(prompt) for prompt in prompts]
    left = [min(n, r) for n, r in zip(max_new_tokens, room, strict=True)]
    outputs = tuple(tuple(prompt) for prompt in prompts)
    while any(left):
        best = model(ids, positions, kv_cache)[:, -1].argmax(-1).tolist()
        going = [bool(n) for n in left]
        outputs = tuple(
            (*output, token) if n else output
            for output, token, n in zip(outputs, best, left, strict=True)
        )
        left = [
            n - 1 if n and token != eos_token_id else 0 for n, token in zip(left, best, strict=True)
        ]
        ids = torch.tensor([[t if go else 0] for t, go in zip(best, going, strict=True)])
        where = [[len(o) - 1 if n else 0] for o, n in zip(outputs, left, strict=True)]
        positions = torch.tensor(where)
    return list(outputs)


def other_loop(
    choose=lambda logits: logits[:, -1].argmax(-1).tolist(),
    positions_after=lambda positions: (positions[:, -1:] + 1).clamp(max=15),
    ends=lambda output, prompt, limit: len(output) - len(prompt) >= limit or len(output) >= 16,
    is_eos=lambda output, prompt, eos: output[-1] == eos and len(output) > len(prompt),
    result=lambda outputs, prompts: outputs,
    before=lambda model, *given: None,
):
    """Another right loop, with something exchanged."""

    def generate(model, prompts, max_new_tokens, eos_token_id=None):
        ids, _, kv_cache, positions = beginning(model, prompts, max_new_tokens)
        before(model, ids, positions, kv_cache)
        outputs = [list(prompt) for prompt in prompts]

        def going():
            return [
                not ends(o, p, n) and not is_eos(o, p, eos_token_id)
                for o, p, n in zip(outputs, prompts, max_new_tokens, strict=True)
            ]

        while any(going()):
            tokens = choose(model(ids, positions, kv_cache))
            for output, token, go in zip(outputs, tokens, going(), strict=True):
                output += [token] * go
            ids, positions = torch.tensor(tokens)[:, None], positions_after(positions)
        return result(outputs, prompts)

    return generate


WRONG_LOOPS = {
    "second_best": other_loop(choose=lambda logits: logits[:, -1].topk(2).indices[:, 1].tolist()),
    "worst": other_loop(choose=lambda logits: logits[:, -1].argmin(-1).tolist()),
    "best_of_all_rows": other_loop(
        choose=lambda logits: [logits[:, -1].max(0).values.argmax().item()] * len(logits)
    ),
    "position_two_further": other_loop(positions_after=lambda p: (p[:, -1:] + 2).clamp(max=15)),
    "position_of_the_longest": other_loop(
        positions_after=lambda p: (p[:, -1:].max() + 1).clamp(max=15).expand(len(p), 1)
    ),
    "position_by_row": other_loop(positions_after=lambda p: torch.arange(len(p))[:, None]),
    "context_one_short": other_loop(
        ends=lambda output, prompt, limit: len(output) >= min(len(prompt) + limit, 15)
    ),
    "limit_of_all_tokens": other_loop(
        ends=lambda output, prompt, limit: len(output) >= max(limit, len(prompt) + 1)
    ),
    "eos_seen_a_step_late": other_loop(
        is_eos=lambda output, prompt, eos: eos in output[len(prompt) : -1]
    ),
    "eos_anywhere_in_the_output": other_loop(is_eos=lambda output, prompt, eos: eos in output),
    "in_reverse": other_loop(result=lambda outputs, prompts: outputs[::-1]),
    "longest_first": other_loop(result=lambda outputs, prompts: sorted(outputs, key=len)),
    "first_output_only": other_loop(result=lambda outputs, prompts: outputs[0]),
    "a_dict": other_loop(result=lambda outputs, prompts: dict(enumerate(outputs))),
    "nothing": other_loop(result=lambda outputs, prompts: None),
    "prompt_twice": other_loop(
        result=lambda outputs, prompts: [p + o for p, o in zip(prompts, outputs, strict=True)]
    ),
    "rows_of_one_length": other_loop(
        result=lambda outputs, prompts: [o[: min(map(len, outputs))] for o in outputs]
    ),
}
RIGHT.append(pytest.param(GENERATE, other_loop(), id=f"{GENERATE}-other_loop"))
WRONGS += [pytest.param(GENERATE, a, id=f"{GENERATE}-{name}") for name, a in WRONG_LOOPS.items()]


@attempt_at(WRONGS, GENERATE)
def generate_one_row_after_the_other(model, prompts, max_new_tokens, eos_token_id=None):
    """Right, and no batch."""
    return [
        generate_padded(model, [prompt], [limit], eos_token_id)[0]
        for prompt, limit in zip(prompts, max_new_tokens, strict=True)
    ]


# ---------------------------------------------------------------------------------- utilisation

UTILISATION = "batching.utilisation"


@attempt_at(RIGHT, UTILISATION)
def utilisation_by_counting_none(trace):
    return 1 - sum(row.count(None) for row in trace) / sum(map(len, trace))


@attempt_at(RIGHT, UTILISATION)
def utilisation_as_a_mean(trace):
    busy = torch.tensor([[request is not None for request in row] for row in trace])
    return busy.double().mean()


@attempt_at(RIGHT, UTILISATION)
def utilisation_in_loops(trace):
    busy = 0
    for step in trace:
        for request in step:
            if request is not None:
                busy += 1
    return busy / len(trace) / len(trace[0])


WRONG_UTILISATIONS = {
    "first_step": lambda trace: utilisation(trace[:1]),
    "rounded": lambda trace: round(utilisation(trace), 1),
    "of_slot_0": lambda trace: utilisation([row[:1] for row in trace]),
    "as_text": lambda trace: f"{utilisation(trace):.0%}",
    "requests_a_step": lambda trace: max(r or 0 for row in trace for r in row) / len(trace),
    "tokens": lambda trace: len(trace),
}
WRONGS += [
    pytest.param(UTILISATION, a, id=f"{UTILISATION}-{name}")
    for name, a in WRONG_UTILISATIONS.items()
]


# ------------------------------------------------------------------------------ SlotCache.select

SELECT = "batching.SlotCache.select"


def given_lines(cache, slots):
    cache.slots = torch.tensor(slots)
    cache.rows = slice(None) if list(slots) == list(range(len(cache.lengths))) else cache.slots


@attempt_at(RIGHT, SELECT, SlotCache)
def select_in_loops(self, slots, q_len):
    given_lines(self, slots)
    lengths = [int(self.lengths[slot]) for slot in slots]
    self.positions = torch.tensor([[n + i for i in range(q_len)] for n in lengths])
    k_len = max(lengths) + q_len
    self.mask = torch.zeros(len(slots), 1, q_len, k_len, dtype=torch.bool)
    for row, length in enumerate(lengths):
        for i in range(q_len):
            self.mask[row, 0, i, : length + i + 1] = True
    return self.positions.clone()


@attempt_at(RIGHT, SELECT, SlotCache)
def select_by_rows(self, slots, q_len):
    given_lines(self, slots)
    lengths = self.lengths[self.rows]
    self.positions = torch.stack([lengths + i for i in range(q_len)], dim=1)
    keys = torch.arange(lengths.max() + q_len)
    self.mask = ~(keys > self.positions[..., None])[:, None]
    return self.positions


@attempt_at(WRONGS, SELECT, SlotCache)
def select_with_float_positions(self, slots, q_len):
    self.positions = SlotCache.select(self, slots, q_len).float()
    return self.positions


@attempt_at(WRONGS, SELECT, SlotCache)
def select_returns_the_mask(self, slots, q_len):
    SlotCache.select(self, slots, q_len)
    return self.mask


@attempt_at(WRONGS, SELECT, SlotCache)
def select_in_ascending_order(self, slots, q_len):
    return SlotCache.select(self, sorted(slots), q_len)


@attempt_at(WRONGS, SELECT, SlotCache)
def select_everything(self, slots, q_len):
    return SlotCache.select(self, range(len(self.lengths)), q_len)


@attempt_at(WRONGS, SELECT, SlotCache)
def select_with_the_mask_upside_down(self, slots, q_len):
    positions = SlotCache.select(self, slots, q_len)
    self.mask = ~self.mask
    return positions


@attempt_at(WRONGS, SELECT, SlotCache)
def select_with_a_mask_for_the_first_call(self, slots, q_len):
    before = getattr(self, "mask", None)
    positions = SlotCache.select(self, slots, q_len)
    self.mask = self.mask if before is None else before
    return positions


@attempt_at(WRONGS, SELECT, SlotCache)
def select_that_frees_the_others(self, slots, q_len):
    positions = SlotCache.select(self, slots, q_len)
    for slot in set(range(len(self.lengths))) - set(slots):
        self.free(slot)
    return positions


# ------------------------------------------------------------------------------ SlotCache.attend

ATTEND = "batching.SlotCache.attend"


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


class WithBooksOfItsOwn(SlotCache):
    """Its `select` keeps what its `attend` wants to know."""

    def select(self, slots, q_len):
        self.after = self.lengths[list(slots)] + q_len
        return super().select(slots, q_len)

    def attend(self, layer, queries, keys, values):
        q_len, k_len = queries.shape[2], int(self.after.max())
        for new, memory in ((keys, self.keys[layer]), (values, self.values[layer])):
            for i in range(q_len):
                memory[self.slots, :, self.after - q_len + i] = new[:, :, i]
        if layer == len(self.keys) - 1:
            self.lengths[self.slots] = self.after
        memory = self.keys[layer, self.slots], self.values[layer, self.slots]
        keys, values = (part[:, :, :k_len] for part in memory)
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=self.mask)


RIGHT.append(pytest.param(ATTEND, WithBooksOfItsOwn, id=f"{ATTEND}-with_books_of_its_own"))


@attempt_at(WRONGS, ATTEND, SlotCache)
def attend_in_float32(self, layer, queries, keys, values):
    return SlotCache.attend(self, layer, queries.float().double(), keys, values.float().double())


@attempt_at(WRONGS, ATTEND, SlotCache)
def attend_for_two_layers(self, layer, queries, keys, values):
    lengths = self.lengths.clone()
    output = SlotCache.attend(self, layer, queries, keys, values)
    self.lengths = lengths
    if layer == 1:
        self.lengths[self.slots] += queries.shape[2]
    return output


@attempt_at(WRONGS, ATTEND, SlotCache)
def attend_without_scale(self, layer, queries, keys, values):
    return SlotCache.attend(self, layer, 2 * queries, keys, values)


@attempt_at(WRONGS, ATTEND, SlotCache)
def attend_for_one_row(self, layer, queries, keys, values):
    return SlotCache.attend(self, layer, queries, keys[:1].expand_as(keys), values)


@attempt_at(WRONGS, ATTEND, SlotCache)
def attend_that_clears_the_other_slots(self, layer, queries, keys, values):
    output = SlotCache.attend(self, layer, queries, keys, values)
    others = sorted(set(range(len(self.lengths))) - set(self.slots.tolist()))
    self.keys[layer, others] = 0
    return output


@attempt_at(WRONGS, ATTEND, SlotCache)
def attend_that_forgets_the_first_token(self, layer, queries, keys, values):
    mask = self.mask
    self.mask = mask.clone()
    self.mask[..., 0] &= mask.sum(-1) == 1
    output = SlotCache.attend(self, layer, queries, keys, values)
    self.mask = mask
    return output


@attempt_at(WRONGS, ATTEND, SlotCache)
def attend_to_all_that_was_ever_stored(self, layer, queries, keys, values):
    """Right until a slot is used again."""
    before = getattr(self, "longest", self.lengths)
    self.longest = torch.maximum(before, self.lengths)
    stored = torch.arange(self.mask.shape[-1]) < self.longest[self.slots, None]
    self.mask = self.mask | stored[:, None, None]
    return SlotCache.attend(self, layer, queries, keys, values)


# ----------------------------------------------------------------------- ContinuousBatcher.admit

ADMIT = "batching.ContinuousBatcher.admit"


@attempt_at(RIGHT, ADMIT, ContinuousBatcher)
def admit_while_both_are_there(self):
    admitted = []
    while self.waiting and None in self.running:
        slot = self.running.index(None)
        self.running[slot] = self.waiting.popleft()
        admitted.append(slot)
    return admitted


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


@attempt_at(WRONGS, ADMIT, ContinuousBatcher)
def admit_two_at_most(self):
    free = [slot for slot, request in enumerate(self.running) if request is None][:2]
    for slot in list(free):
        if self.waiting:
            self.running[slot] = self.waiting.popleft()
        else:
            free.remove(slot)
    return free


@attempt_at(WRONGS, ADMIT, ContinuousBatcher)
def admit_by_number(self):
    """The highest number first."""
    admitted = []
    for slot, request in enumerate(self.running):
        if request is None and self.waiting:
            self.running[slot] = max(self.waiting, key=lambda request: request.number)
            self.waiting.remove(self.running[slot])
            admitted.append(slot)
    return admitted


@attempt_at(WRONGS, ADMIT, ContinuousBatcher)
def admit_one_to_all_slots(self):
    request = self.waiting.popleft() if self.waiting and None in self.running else None
    free = [slot for slot, running in enumerate(self.running) if running is None]
    for slot in free if request else []:
        self.running[slot] = request
    return free if request else []


@attempt_at(WRONGS, ADMIT, ContinuousBatcher)
def admit_and_forget_who_waits(self):
    admitted = ContinuousBatcher.admit(self)
    self.waiting.clear()
    return admitted


@attempt_at(WRONGS, ADMIT, ContinuousBatcher)
def admit_and_count(self):
    return len(ContinuousBatcher.admit(self))


@attempt_at(WRONGS, ADMIT, ContinuousBatcher)
def admit_numbers_into_slots(self):
    admitted = ContinuousBatcher.admit(self)
    for slot in admitted:
        self.running[slot] = self.running[slot].number
    return admitted


@attempt_at(WRONGS, ADMIT, ContinuousBatcher)
def admit_nobody(self):
    return []


# ------------------------------------------------------------------------ ContinuousBatcher.step

STEP = "batching.ContinuousBatcher.step"


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
        if self.has_ended(self.running[slot]):
            self.retire(slot)


@attempt_at(RIGHT, STEP, ContinuousBatcher)
@torch.no_grad()
def step_that_admits_by_itself(self):
    veterans = [slot for slot, request in enumerate(self.running) if request is not None]
    for slot in range(len(self.running)):
        if self.running[slot] is None and self.waiting:
            self.running[slot] = self.waiting.popleft()
            self.forward([slot])
    if veterans:
        self.forward(veterans)
    row = [None] * len(self.running)
    for slot, request in enumerate(self.running):
        if request is not None:
            row[slot] = request.number
    self.trace += [row]
    for slot in [s for s, request in enumerate(self.running) if request]:
        if self.has_ended(self.running[slot]):
            self.retire(slot)


@attempt_at(RIGHT, STEP, ContinuousBatcher)
@torch.no_grad()
def step_by_who_has_no_cache(self):
    self.admit()
    busy = [slot for slot, request in enumerate(self.running) if request]
    old = [slot for slot in busy if self.kv_cache.lengths[slot] > 0]
    for slot in sorted(set(busy) - set(old)):
        self.forward([slot])
    if old:
        self.forward(old)
    self.trace.append(tuple(r.number if r else None for r in self.running))
    for slot in filter(lambda slot: self.has_ended(self.running[slot]), busy):
        self.retire(slot)


@attempt_at(WRONGS, STEP, ContinuousBatcher)
def step_twice(self):
    ContinuousBatcher.step(self)
    ContinuousBatcher.step(self)


@attempt_at(WRONGS, STEP, ContinuousBatcher)
def step_until_all_have_ended(self):
    while self.waiting or any(self.running):
        ContinuousBatcher.step(self)


@attempt_at(WRONGS, STEP, ContinuousBatcher)
def step_with_one_forward_too_many(self):
    lengths = self.kv_cache.lengths.clone()
    for slot, request in enumerate(self.running):
        if request:
            self.forward([slot])
            request.ids.pop()
    self.kv_cache.lengths = lengths
    ContinuousBatcher.step(self)


@attempt_at(WRONGS, STEP, ContinuousBatcher)
def step_that_traces_twice(self):
    ContinuousBatcher.step(self)
    self.trace.append(list(self.trace[-1]))


@attempt_at(WRONGS, STEP, ContinuousBatcher)
def step_that_counts_in_the_trace(self):
    ContinuousBatcher.step(self)
    self.trace[-1] = [len(self.trace) if n is not None else None for n in self.trace[-1]]


@attempt_at(WRONGS, STEP, ContinuousBatcher)
def step_that_stops_one_token_early(self):
    ContinuousBatcher.step(self)
    for slot, request in enumerate(self.running):
        if request and len(request.ids) == request.end - 1:
            self.retire(slot)


@attempt_at(WRONGS, STEP, ContinuousBatcher)
def step_that_drops_eos(self):
    ContinuousBatcher.step(self)
    for ids in self.outputs.values():
        if ids[-1] == self.eos_token_id:
            ids.pop()


@attempt_at(WRONGS, STEP, ContinuousBatcher)
def step_without_the_second_slot(self):
    second, self.running[1:2] = self.running[1:2], [None] * len(self.running[1:2])
    ContinuousBatcher.step(self)
    self.running[1:2] = second


@attempt_at(WRONGS, STEP, ContinuousBatcher)
def step_that_does_nothing(self):
    return


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


# ----------------------------------------------------------------- one bug costs one exercise


def undone(*given: Any, **named: Any) -> Any:
    raise NotImplementedError


def wrong(*given: Any, **named: Any) -> Any:
    return None


METHODS = {
    SELECT: (SlotCache, "select"),
    ATTEND: (SlotCache, "attend"),
    ADMIT: (ContinuousBatcher, "admit"),
    STEP: (ContinuousBatcher, "step"),
}
OTHER = {SELECT: ATTEND, ATTEND: SELECT, ADMIT: STEP, STEP: ADMIT}


@pytest.mark.parametrize("name", METHODS)
def test_an_undone_method_is_not_attempted_and_not_wrong(name: str) -> None:
    base, method = METHODS[name]
    assert EXERCISES[name].judge(type("Attempt", (base,), {method: undone})).status == NOT_ATTEMPTED


@pytest.mark.parametrize("other", [undone, wrong])
@pytest.mark.parametrize("name", METHODS)
def test_the_classes_other_method_costs_nothing(name: str, other: Callable) -> None:
    base, method = METHODS[OTHER[name]]
    judgement = EXERCISES[name].judge(type("Attempt", (base,), {method: other}))
    assert judgement.status == PASSED, judgement.message


@pytest.mark.parametrize(
    ("name", "other"),
    [(name, other) for name in METHODS for other in EXERCISES[OTHER[name]].misconceptions],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_mistake_in_one_method_costs_that_one_only(name: str, other: Any) -> None:
    assert EXERCISES[name].judge(other.attempt).status == PASSED


@pytest.mark.parametrize("broken", [undone, wrong])
@pytest.mark.parametrize(
    ("name", "attempt", "earlier"),
    [
        (MASK, padded_mask, ("padded_position_ids",)),
        (
            GENERATE,
            generate_with_a_growing_mask,
            ("pad_left", "padded_position_ids", "PaddedCache"),
        ),
    ],
)
def test_a_function_is_judged_with_right_ones_before_it(
    name: str, attempt: FunctionType, earlier: tuple[str, ...], broken: Callable
) -> None:
    """Whatever stands under their names in the learner's notebook; it stands there afterwards."""
    notebook = {**attempt.__globals__, **dict.fromkeys(earlier, broken)}
    own = FunctionType(attempt.__code__, notebook, argdefs=attempt.__defaults__)
    judgement = EXERCISES[name].judge(own)
    assert judgement.status == PASSED, judgement.message
    assert all(notebook[function] is broken for function in earlier)


def test_a_function_under_no_grad_is_judged_with_right_ones_before_it(monkeypatch) -> None:
    monkeypatch.setitem(globals(), "pad_left", wrong)
    monkeypatch.setitem(globals(), "PaddedCache", undone)
    assert EXERCISES[GENERATE].judge(generate_with_tensors).status == PASSED
    assert globals()["pad_left"] is wrong


@pytest.mark.parametrize("broken", [undone, wrong])
def test_a_broken_slot_cache_costs_the_step_nothing(broken: Callable) -> None:
    class OwnCache(SlotCache):
        select = attend = broken

    class OwnBatcher(ContinuousBatcher):
        def __init__(self, model, slots, max_length, eos_token_id=None):
            super().__init__(model, slots, max_length, eos_token_id)
            self.kv_cache = OwnCache(model.config, slots, max_length)

    assert EXERCISES[STEP].judge(OwnBatcher).status == PASSED


# --------------------------------------------------------------------------- what is said about it


def test_a_pad_that_sees_nothing_is_told_of_its_softmax() -> None:
    def columns_and_mask(attention_mask, q_len):
        columns = torch.arange(attention_mask.shape[1]).expand_as(attention_mask)
        return causal_mask(columns[:, -q_len:], columns) & attention_mask[:, None, None]

    judgement = EXERCISES[MASK].judge(columns_and_mask)
    assert judgement.misconception is not None
    assert "0/0" in judgement.misconception.sentence
    assert "0/0" in judgement.message


def test_rows_served_one_by_one_are_told_by_their_forwards() -> None:
    judgement = EXERCISES[GENERATE].judge(generate_one_row_after_the_other)
    assert judgement.misconception is None
    assert "The result is right, but it took 6 forward calls; 3 suffice." in judgement.message


def test_outputs_that_survive_into_the_next_batch_are_told_as_such() -> None:
    def remembering(model, prompts, limits, eos_token_id=None, outputs=[]):  # noqa: B006
        outputs += generate_padded(model, prompts, limits, eos_token_id)
        return outputs

    judgement = EXERCISES[GENERATE].judge(remembering)
    assert judgement.misconception is not None
    assert judgement.misconception.name == "outputs_survive_into_next_batch"


def test_a_method_that_changes_by_itself_is_told_as_such() -> None:
    draws = torch.Generator().manual_seed(0)

    class Noisy(SlotCache):
        def attend(self, layer, queries, keys, values):
            return super().attend(layer, queries, keys, values) + torch.rand((), generator=draws)

    assert EXERCISES[ATTEND].judge(Noisy).misconception is CHANGES_BY_ITSELF
