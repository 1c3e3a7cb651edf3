"""Lab 2's exercises: right answers in other styles pass, and what the cases must not overlook.

Misconceptions and mechanical mutants are tested for all labs at once. Here stand attempts that
nobody told the exercises about.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from autograder.exercises import exercises
from autograder.judge import PASSED, WRONG, judge
from gpt import GPTAttention
from solutions.kv_cache import (
    KVCache,
    ThreadedAttention,
    ThreadedBlock,
    ThreadedLMHead,
    ThreadedModel,
    causal_mask,
    generate_threaded,
    kv_bytes_per_token,
)
from tests.common.attempts import attempt_at, with_method
from tests.common.trials import is_rejected

EXERCISES = {e.name: e for e in exercises().values() if e.lab == "kv_cache"}
MASK, GENERATE, BYTES = (
    f"kv_cache.{name}" for name in ("causal_mask", "generate_threaded", "kv_bytes_per_token")
)
ATTENTION, BLOCK, MODEL, LM_HEAD = (
    f"kv_cache.Threaded{name}.forward" for name in ("Attention", "Block", "Model", "LMHead")
)
ATTEND, TRUNCATE = "kv_cache.KVCache.attend", "kv_cache.KVCache.truncate"
RIGHT: list[Any] = []
WRONGS: list[Any] = []


def add(kind: list[Any], exercise: str, **attempts: Callable) -> None:
    for name, attempt in attempts.items():
        kind.append(pytest.param(exercise, attempt, id=f"{exercise}-{name}"))


# -------------------------------------------------------------------------- causal_mask, the bytes


def remembering(function: Callable) -> Callable:
    """What goes by the shapes of what it is given, and takes the rest for the same."""
    known: dict[Any, Any] = {}

    def remembered(*given, **named):
        seen = [getattr(value, "shape", value) for value in (*given, *named.values())]
        return known.setdefault(str(seen), function(*given, **named))

    return remembered


add(RIGHT, MASK, by_difference=lambda q, k: ~(q.unsqueeze(-1) - k.unsqueeze(-2) < 0).unsqueeze(1))
add(
    WRONGS,
    MASK,
    remembered_by_shape=remembering(causal_mask),
    with_a_window=lambda q, k: causal_mask(q, k) & ~causal_mask(q - 30, k),
    that_changes_the_positions=lambda q, k: (k[:, None] <= q.unsqueeze_(-1))[:, None],
)
add(
    RIGHT,
    BYTES,
    by_heads=lambda c, n=4: sum(2 * c.n_head * c.head_dim * n for _ in range(c.n_layer)),
    as_a_float=lambda c, n=4: 2.0 * c.n_layer * c.n_embd * n,
    by_numpy=lambda c, n=4: np.prod([2, c.n_layer, c.n_embd, n]),
)
add(
    WRONGS,
    BYTES,
    with_another_default=lambda config, n=2: kv_bytes_per_token(config, n),
    without_a_default=lambda config, n: kv_bytes_per_token(config, n),
    as_text=lambda config, n=4: str(kv_bytes_per_token(config, n)),
)


# ------------------------------------------------------------------------- the threaded forwards


def longer(kv_cache, keys, values):
    if kv_cache is None:
        return keys, values
    return torch.cat((kv_cache[0], keys), -2), torch.cat((kv_cache[1], values), -2)


def mask_of(q_len, k_len):
    return torch.ones(q_len, k_len, dtype=torch.bool).tril(diagonal=k_len - q_len)


def attention(dtype=torch.float64, window=99, behind_a_prefix=mask_of, **scale):
    """Attention by phase, with something exchanged."""

    def forward(self, hidden, kv_cache=None):
        queries, keys, values = self.split_heads(self.c_attn(hidden)).to(dtype)
        keys, values = longer(kv_cache, keys, values)
        q_len, k_len = queries.shape[2], keys.shape[2]
        seen = queries, keys[:, :, -window:], values[:, :, -window:]
        if kv_cache is None:
            attended = F.scaled_dot_product_attention(*seen, is_causal=True, **scale)
        elif q_len == 1:
            attended = F.scaled_dot_product_attention(*seen, **scale)
        else:
            mask = behind_a_prefix(q_len, k_len)[:, -window:]
            attended = F.scaled_dot_product_attention(*seen, attn_mask=mask, **scale)
        return self.c_proj(self.merge_heads(attended.double())), (keys, values)

    return with_method(GPTAttention, ATTENTION, forward)


# As those who know the parameter from other libraries write it.
is_causal_unless_decode = attention(
    behind_a_prefix=lambda q_len, k_len: mask_of(k_len, k_len)[:q_len]
)

add(RIGHT, ATTENTION, by_phase=attention(), in_float32=attention(dtype=torch.float32))
add(WRONGS, ATTENTION, scaled_by_heads=attention(scale=1 / 2), with_a_window=attention(window=12))


@attempt_at(RIGHT, ATTENTION, GPTAttention)
def attention_by_hand(self, hidden, kv_cache=None):
    queries, keys, values = self.split_heads(self.c_attn(hidden))
    if kv_cache is None:
        kv_cache = keys[:, :, :0], values[:, :, :0]
    keys, values = longer(kv_cache, keys, values)
    scores = torch.einsum("bhqd,bhkd->bhqk", queries, keys) / math.sqrt(self.head_dim)
    scores = scores.masked_fill(~mask_of(*scores.shape[-2:]), -torch.inf)
    return self.c_proj(self.merge_heads(scores.softmax(-1) @ values)), [keys, values]


@attempt_at(WRONGS, ATTENTION, ThreadedAttention)
def attention_without_a_default(self, hidden, kv_cache):
    return ThreadedAttention.forward(self, hidden, kv_cache)


@attempt_at(RIGHT, BLOCK, ThreadedBlock)
def block_with_other_names(self, hidden, kv_cache=None):
    result = self.attn(self.ln_1(hidden), kv_cache=kv_cache)
    middle = hidden.clone()
    middle += result[0]
    return torch.add(self.mlp(self.ln_2(middle)), middle), result[1]


@attempt_at(RIGHT, MODEL, ThreadedModel)
def model_by_number(self, inputs, position_ids, kv_cache=None):
    hidden = self.embed(inputs, position_ids)
    new_cache = [None] * len(self.h)
    for i, block in enumerate(self.h):
        hidden, new_cache[i] = block(hidden, kv_cache[i] if kv_cache else None)
    return self.ln_f(hidden), new_cache


@attempt_at(RIGHT, MODEL, ThreadedModel)
def model_with_a_tuple(self, inputs, position_ids, kv_cache=None):
    hidden = self.wte(inputs) + self.wpe(position_ids)
    new_cache: tuple = ()
    for layer in range(self.config.n_layer):
        given = {} if kv_cache is None else {"kv_cache": kv_cache[layer]}
        hidden, layer_cache = self.h[layer](hidden, **given)
        new_cache += (layer_cache,)
    return self.ln_f(hidden), new_cache


@attempt_at(WRONGS, MODEL, ThreadedModel)
def model_with_positions_remembered(self, inputs, position_ids, kv_cache=None, known={}):  # noqa: B006
    known.setdefault((inputs.shape, kv_cache is None), position_ids)
    position_ids = known[inputs.shape, kv_cache is None]
    return ThreadedModel.forward(self, inputs, position_ids, kv_cache)


@attempt_at(WRONGS, MODEL, ThreadedModel)
def model_with_one_list_for_all_steps(self, inputs, position_ids, kv_cache=None, mine=[]):  # noqa: B006
    hidden, mine[:] = ThreadedModel.forward(self, inputs, position_ids, kv_cache)
    return hidden, mine


@attempt_at(WRONGS, MODEL, ThreadedModel)
def model_without_a_default(self, inputs, position_ids, kv_cache):
    return ThreadedModel.forward(self, inputs, position_ids, kv_cache)


@attempt_at(RIGHT, LM_HEAD, ThreadedLMHead)
def head_in_float32(self, inputs, position_ids, kv_cache=None):
    found = self.transformer(inputs, position_ids, kv_cache=kv_cache)
    weight = self.transformer.wte.weight.float()
    return F.linear(found[0].float(), weight), found[1]


# ----------------------------------------------------------------------------- generate_threaded


@attempt_at(RIGHT, GENERATE)
def generate_in_two_phases(model, input_ids, max_new_tokens, eos_token_id=None):
    batch, seq = input_ids.shape
    model.eval()
    end = min(seq + max_new_tokens, model.transformer.wpe.weight.shape[0])
    if end == seq:
        return input_ids
    logits, kv_cache = model(input_ids, torch.arange(seq).expand(batch, seq))
    newest = logits[:, -1:].argmax(-1)
    ids = torch.cat([input_ids, newest], 1)
    while ids.shape[1] < end and not (eos_token_id is not None and newest[0, 0] == eos_token_id):
        position_ids = torch.full((batch, 1), ids.shape[1] - 1)
        logits, kv_cache = model(newest, position_ids, kv_cache)
        newest = logits[:, -1:].argmax(-1)
        ids = torch.cat([ids, newest], 1)
    return ids


@attempt_at(RIGHT, GENERATE)
def generate_into_lists(model, input_ids, max_new_tokens, eos_token_id=None):
    device = next(model.parameters()).device
    rows, new, kv_cache = input_ids.tolist(), input_ids, None
    for _ in range(max_new_tokens):
        length = len(rows[0])
        if length >= model.config.n_positions:
            break
        positions = torch.arange(length - new.shape[1], length).repeat(len(rows), 1)
        logits, kv_cache = model(new, position_ids=positions, kv_cache=kv_cache)
        new = torch.topk(logits[:, -1], 1).indices
        rows = [[*row, int(token)] for row, token in zip(rows, new, strict=True)]
        if rows[0][-1] == eos_token_id:
            break
    return torch.tensor(rows, device=device)


def other_loop(keep=lambda kv_cache: kv_cache, is_eos=lambda new, eos: new.item() == eos, cuts=()):
    """The reference with what it keeps, when it stops, or the prefill in chunks exchanged."""

    def loop(model, input_ids, max_new_tokens, eos_token_id=None):
        ids, kv_cache, computed = input_ids, None, 0
        room = model.config.n_positions - ids.shape[1]
        for _ in range(min(max_new_tokens, room)):
            ends = [computed, *(cut for cut in cuts if computed < cut < ids.shape[1]), ids.shape[1]]
            for start, end in pairwise(ends):
                positions = torch.arange(start, end).expand(len(ids), -1)
                logits, kv_cache = model(ids[:, start:end], positions, kv_cache)
            kv_cache, computed = keep(kv_cache), ids.shape[1]
            new = logits[:, -1].argmax(dim=-1, keepdim=True)
            ids = torch.cat([ids, new], dim=1)
            if eos_token_id is not None and is_eos(new, eos_token_id):
                break
        return ids

    return loop


def in_a_window(kv_cache):
    return [tuple(tensor[:, :, -13:] for tensor in pair) for pair in kv_cache]


def prefill_twice(model, input_ids, max_new_tokens, eos_token_id=None):
    if max_new_tokens:
        model(input_ids, torch.arange(input_ids.shape[1]).expand_as(input_ids))
    return generate_threaded(model, input_ids, max_new_tokens, eos_token_id)


add(
    WRONGS,
    GENERATE,
    window=other_loop(keep=in_a_window),
    the_same_object=other_loop(is_eos=lambda new, eos: new.item() is eos),
    prefill_in_chunks=other_loop(cuts=(2,)),
    prefill_twice=prefill_twice,
    remembered_by_shape=remembering(generate_threaded),
    without_a_default=lambda model, input_ids, max_new_tokens, eos_token_id: generate_threaded(
        model, input_ids, max_new_tokens, eos_token_id
    ),
)

# -------------------------------------------------------------------------- the cache as an object


@attempt_at(RIGHT, ATTEND, KVCache)
def attend_over_all_memory_masked(self, layer, queries, keys, values):
    start, q_len = self.length, queries.shape[2]
    if start + q_len > self.max_length:
        raise ValueError("The cache is full.")
    new = torch.arange(start, start + q_len)
    self.keys[layer].index_copy_(2, new, keys)
    self.values[layer].narrow(2, start, q_len).copy_(values)
    scores = queries @ self.keys[layer].mT / math.sqrt(queries.shape[-1])
    future = torch.arange(self.max_length) > new[:, None]
    self.length = start + q_len if layer == self.keys.shape[0] - 1 else start
    return scores.masked_fill(future, float("-inf")).softmax(-1) @ self.values[layer]


class LayerByLayer(KVCache):
    """Keeps a length for every layer besides."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.lengths = [0] * len(self.keys)

    def attend(self, layer, queries, keys, values):
        start, end = self.lengths[layer], self.lengths[layer] + queries.shape[2]
        if end > self.max_length:
            raise ValueError("The cache is full.")
        self.keys[layer][:, :, start:end] = keys
        self.values[layer][:, :, start:end] = values
        self.lengths[layer] = end
        self.length = min(self.lengths)
        held = self.keys[layer, :, :, :end], self.values[layer, :, :, :end]
        return F.scaled_dot_product_attention(queries, *held, attn_mask=self.mask(start, end))

    def truncate(self, n):
        if n < 0 or n > min(self.lengths):
            raise ValueError("There are not as many.")
        self.length, self.lengths = n, [n] * len(self.lengths)


add(RIGHT, ATTEND, by_layer=LayerByLayer)
add(RIGHT, TRUNCATE, by_layer=LayerByLayer)


@attempt_at(WRONGS, ATTEND, KVCache)
def attend_makes_memory_anew(self, layer, queries, keys, values):
    self.keys, self.values = self.keys.clone(), self.values.clone()
    return KVCache.attend(self, layer, queries, keys, values)


@attempt_at(WRONGS, ATTEND, KVCache)
def attend_from_lists_of_its_own(self, layer, queries, keys, values):
    """Right until rows are reordered or tokens taken back."""
    start, end = self.length, self.length + queries.shape[2]
    KVCache.attend(self, layer, queries, keys, values)
    own = self.__dict__.setdefault("own", {})
    own[layer] = longer(own.get(layer), keys, values)
    return F.scaled_dot_product_attention(queries, *own[layer], attn_mask=self.mask(start, end))


@attempt_at(WRONGS, TRUNCATE, KVCache)
def truncate_copies(self, n):
    KVCache.truncate(self, n)
    self.keys, self.values = self.keys.clone(), self.values.clone()


@attempt_at(WRONGS, TRUNCATE, KVCache)
def truncate_erases(self, n):
    held = self.length
    KVCache.truncate(self, n)
    self.values[:, :, :, n:held].zero_()


@attempt_at(WRONGS, TRUNCATE, KVCache)
def truncate_then_look(self, n):
    before, self.length = self.length, n
    if not 0 <= n <= before:
        raise ValueError(f"cannot keep {n}")


@attempt_at(WRONGS, TRUNCATE, KVCache)
def truncate_the_reservation(self, n):
    KVCache.truncate(self, n)
    self.max_length = n


# -------------------------------------------------------------------------------------- the tests


@pytest.mark.parametrize(("name", "attempt"), RIGHT)
def test_a_right_answer_in_another_style_passes(name: str, attempt: Any) -> None:
    for seed in (0, 1):
        judgement = judge(EXERCISES[name], attempt, seed)
        assert judgement.status == PASSED, judgement.message


@pytest.mark.parametrize(("name", "attempt"), WRONGS)
def test_a_wrong_answer_is_rejected_whatever_the_seed(name: str, attempt: Any) -> None:
    assert all(is_rejected(EXERCISES[name], attempt, seed) for seed in range(3))


def one_cache_by_number(self, inputs, position_ids, kv_cache=None):
    hidden = self.embed(inputs, position_ids)
    for i in range(len(self.h)):
        hidden, kv_cache = self.h[i](hidden, kv_cache)
    return self.ln_f(hidden), kv_cache


def nothing_returned(self, hidden, kv_cache=None):
    ThreadedBlock.forward(self, hidden, kv_cache)


def output_alone(self, hidden, kv_cache=None):
    return ThreadedBlock.forward(self, hidden, kv_cache)[0]


def none_for_a_cache(self, hidden, kv_cache=None):
    return ThreadedBlock.forward(self, hidden, kv_cache)[0], None


TOLD = [
    (BLOCK, ThreadedBlock, nothing_returned, "is None; expected: it is two things, the output"),
    (BLOCK, ThreadedBlock, nothing_returned, "Is a `return` missing?"),
    (BLOCK, ThreadedBlock, output_alone, "is a tensor of shape [1, 1, 10]; expected: it is two"),
    (BLOCK, ThreadedBlock, none_for_a_cache, "is None; expected: it is a pair (keys, values)."),
    (ATTENTION, None, is_causal_unless_decode, "The output for tokens 3 to 5 of prompt 1"),
    (ATTENTION, None, is_causal_unless_decode, "`is_causal=True` does that"),
    (MODEL, ThreadedModel, one_cache_by_number, "One cache goes through all layers"),
    (GENERATE, None, prefill_twice, "it took 2 forward calls; 1 suffice."),
    (GENERATE, None, prefill_twice, "nothing follows the last token, so it needs no forward."),
    (ATTEND, KVCache, attend_makes_memory_anew, "The memory after step 1 has been made anew;"),
    (TRUNCATE, KVCache, truncate_erases, "The memory for values, which `truncate` leaves alone,"),
    (TRUNCATE, KVCache, truncate_then_look, "`length` after step 2 is 4; expected 3."),
]


@pytest.mark.parametrize(("name", "base", "function", "words"), TOLD)
def test_what_is_wrong_is_told(name: str, base: Any, function: Any, words: str) -> None:
    judgement = judge(EXERCISES[name], with_method(base, name, function) if base else function)
    assert judgement.status == WRONG
    assert words in f"{judgement.cause} {judgement.message}"
