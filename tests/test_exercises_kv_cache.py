"""Lab 2's exercises: right answers in other styles pass, wrong ones of many kinds don't.

The misconceptions themselves are tested with those of all labs, in test_exercises.py. Here stand
attempts that nobody told the exercises about.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from autograder.exercise import NOT_ATTEMPTED, PASSED, WRONG
from autograder.exercises import exercises
from gpt import GPTAttention, GPTBlock, GPTLMHead, GPTModel
from solutions.generate import require_prompt
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
from tests.attempts import attempt_at, with_method

EXERCISES = {e.name: e for e in exercises().values() if e.lab == "kv_cache"}
RIGHT: list[Any] = []
WRONGS: list[Any] = []


# ---------------------------------------------------------------------------------- causal_mask


@attempt_at(RIGHT, "kv_cache.causal_mask")
def mask_by_difference(query_positions, key_positions):
    distance = query_positions.unsqueeze(-1) - key_positions.unsqueeze(-2)
    return ~(distance < 0).unsqueeze(1)


@attempt_at(RIGHT, "kv_cache.causal_mask")
def mask_in_loops(query_positions, key_positions):
    (batch, q_len), k_len = query_positions.shape, key_positions.shape[1]
    mask = torch.zeros(batch, 1, q_len, k_len, dtype=torch.bool)
    for row in range(batch):
        for i, query in enumerate(query_positions[row]):
            for j, key in enumerate(key_positions[row]):
                mask[row, 0, i, j] = bool(key <= query)
    return mask


@attempt_at(WRONGS, "kv_cache.causal_mask")
def mask_of_integers(query_positions, key_positions):
    return causal_mask(query_positions, key_positions).long()


@attempt_at(WRONGS, "kv_cache.causal_mask")
def mask_by_place_of_the_key(query_positions, key_positions):
    place = torch.arange(key_positions.shape[1]).expand_as(key_positions)
    return causal_mask(query_positions, place)


@attempt_at(WRONGS, "kv_cache.causal_mask")
def mask_with_a_window(query_positions, key_positions):
    near = causal_mask(query_positions - 3, key_positions - 1)
    return causal_mask(query_positions, key_positions) & ~near


@attempt_at(WRONGS, "kv_cache.causal_mask")
def mask_for_three_heads(query_positions, key_positions):
    return causal_mask(query_positions, key_positions).expand(-1, 3, -1, -1)


# --------------------------------------------------------------------- ThreadedAttention.forward

ATTENTION = "kv_cache.ThreadedAttention.forward"


def projected(layer, hidden):
    return layer.split_heads(layer.c_attn(hidden))


def finished(layer, attended):
    return layer.c_proj(layer.merge_heads(attended))


def longer(kv_cache, keys, values):
    if kv_cache is None:
        return keys, values
    return torch.cat((kv_cache[0], keys), -2), torch.cat((kv_cache[1], values), -2)


@attempt_at(RIGHT, ATTENTION, GPTAttention)
def attention_by_phase(self, hidden, kv_cache=None):
    queries, keys, values = projected(self, hidden)
    keys, values = longer(kv_cache, keys, values)
    q_len, k_len = queries.shape[2], keys.shape[2]
    if kv_cache is None:
        attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
    elif q_len == 1:
        attended = F.scaled_dot_product_attention(queries, keys, values)
    else:
        mask = torch.ones(q_len, k_len, dtype=torch.bool).tril(diagonal=k_len - q_len)
        attended = F.scaled_dot_product_attention(queries, keys, values, mask)
    return finished(self, attended), (keys, values)


@attempt_at(RIGHT, ATTENTION, GPTAttention)
def attention_by_hand(self, hidden, kv_cache=None):
    queries, keys, values = projected(self, hidden)
    if kv_cache is None:
        kv_cache = keys[:, :, :0], values[:, :, :0]
    keys, values = longer(kv_cache, keys, values)
    scores = torch.einsum("bhqd,bhkd->bhqk", queries, keys) / math.sqrt(self.head_dim)
    future = torch.ones(scores.shape[-2:]).triu(keys.shape[2] - queries.shape[2] + 1)
    scores = scores.masked_fill(future.bool(), -torch.inf)
    return finished(self, scores.softmax(-1) @ values), [keys, values]


@attempt_at(WRONGS, ATTENTION, GPTAttention)
def attention_is_causal_unless_decode(self, hidden, kv_cache=None):
    queries, keys, values = projected(self, hidden)
    keys, values = longer(kv_cache, keys, values)
    attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=queries.shape[2] > 1)
    return finished(self, attended), (keys, values)


@attempt_at(WRONGS, ATTENTION, ThreadedAttention)
def attention_keys_only(self, hidden, kv_cache=None):
    queries, keys, values = projected(self, hidden)
    if kv_cache is not None:
        keys = torch.cat([kv_cache[0], keys], dim=2)
    attended = F.scaled_dot_product_attention(queries, keys, values)
    return finished(self, attended), (keys, values)


@attempt_at(WRONGS, ATTENTION, ThreadedAttention)
def attention_concatenated_on_batch(self, hidden, kv_cache=None):
    queries, keys, values = projected(self, hidden)
    if kv_cache is not None:
        keys = torch.cat([kv_cache[0], keys], dim=0)
        values = torch.cat([kv_cache[1], values], dim=0)
    attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
    return finished(self, attended), (keys, values)


@attempt_at(WRONGS, ATTENTION, ThreadedAttention)
def attention_in_float32(self, hidden, kv_cache=None):
    queries, keys, values = projected(self, hidden)
    keys, values = longer(kv_cache, keys.float(), values.float())
    positions = torch.arange(keys.shape[2])[None]
    mask = causal_mask(positions[:, -queries.shape[2] :], positions)
    attended = F.scaled_dot_product_attention(queries.float(), keys, values, mask)
    return finished(self, attended.double()), (keys.double(), values.double())


@attempt_at(WRONGS, ATTENTION, ThreadedAttention)
def attention_without_scale(self, hidden, kv_cache=None):
    queries, keys, values = projected(self, hidden)
    keys, values = longer(kv_cache, keys, values)
    positions = torch.arange(keys.shape[2])[None]
    mask = causal_mask(positions[:, -queries.shape[2] :], positions)
    attended = F.scaled_dot_product_attention(queries, keys, values, mask, scale=1.0)
    return finished(self, attended), (keys, values)


@attempt_at(WRONGS, ATTENTION, ThreadedAttention)
def attention_values_behind_keys_before(self, hidden, kv_cache=None):
    output, (keys, values) = ThreadedAttention.forward(self, hidden, kv_cache)
    return output, (keys, values.flip(2))


@attempt_at(WRONGS, ATTENTION, ThreadedAttention)
def attention_returns_three(self, hidden, kv_cache=None):
    output, (keys, values) = ThreadedAttention.forward(self, hidden, kv_cache)
    return output, keys, values


@attempt_at(WRONGS, ATTENTION, ThreadedAttention)
def attention_forgets_the_oldest(self, hidden, kv_cache=None):
    output, (keys, values) = ThreadedAttention.forward(self, hidden, kv_cache)
    return output, (keys[:, :, -6:], values[:, :, -6:])


# ------------------------------------------------------------------------- ThreadedBlock.forward

BLOCK = "kv_cache.ThreadedBlock.forward"


@attempt_at(RIGHT, BLOCK, ThreadedBlock)
def block_in_place(self, hidden, kv_cache=None):
    attended, kv_cache = self.attn(self.ln_1(hidden), kv_cache=kv_cache)
    hidden += attended
    hidden += self.mlp(self.ln_2(hidden))
    return hidden, kv_cache


@attempt_at(RIGHT, BLOCK, ThreadedBlock)
def block_with_other_names(self, hidden, kv_cache=None):
    result = self.attn(self.ln_1(hidden), kv_cache)
    middle = torch.add(result[0], hidden)
    return torch.add(self.mlp(self.ln_2(middle)), middle), result[1]


@attempt_at(WRONGS, BLOCK, ThreadedBlock)
def block_that_attends_twice(self, hidden, kv_cache=None):
    attended, kv_cache = self.attn(self.ln_1(hidden), kv_cache)
    attended, kv_cache = self.attn(self.ln_1(hidden), kv_cache)
    hidden = hidden + attended
    return hidden + self.mlp(self.ln_2(hidden)), kv_cache


@attempt_at(WRONGS, BLOCK, ThreadedBlock)
def block_returns_the_wrong_way_round(self, hidden, kv_cache=None):
    hidden, kv_cache = ThreadedBlock.forward(self, hidden, kv_cache)
    return kv_cache, hidden


@attempt_at(WRONGS, BLOCK, ThreadedBlock)
def block_without_a_cache_to_return(self, hidden, kv_cache=None):
    return ThreadedBlock.forward(self, hidden, kv_cache)[0]


@attempt_at(WRONGS, BLOCK, ThreadedBlock)
def block_of_gpt_py(self, hidden, kv_cache=None):
    return GPTBlock.forward(self, hidden)


# ------------------------------------------------------------------------- ThreadedModel.forward

MODEL = "kv_cache.ThreadedModel.forward"


@attempt_at(RIGHT, MODEL, ThreadedModel)
def model_by_number(self, inputs, position_ids, kv_cache=None):
    hidden = self.embed(inputs, position_ids)
    new_cache = [None] * len(self.h)
    for i, block in enumerate(self.h):
        hidden, new_cache[i] = block(hidden, kv_cache[i] if kv_cache else None)
    return self.ln_f(hidden), new_cache


@attempt_at(RIGHT, MODEL, ThreadedModel)
def model_with_a_tuple(self, inputs, position_ids, kv_cache=None):
    hidden = self.embed(inputs, position_ids)
    new_cache: tuple = ()
    for layer in range(self.config.n_layer):
        given = () if kv_cache is None else (kv_cache[layer],)
        hidden, layer_cache = self.h[layer](hidden, *given)
        new_cache += (layer_cache,)
    return self.ln_f(hidden), new_cache


@attempt_at(RIGHT, MODEL, ThreadedModel)
def model_with_a_copied_list(self, inputs, position_ids, kv_cache=None):
    kv_cache = list(kv_cache or [None] * len(self.h))
    hidden = self.wte(inputs) + self.wpe(position_ids)
    for i, (block, layer_cache) in enumerate(zip(self.h, kv_cache, strict=True)):
        hidden, kv_cache[i] = block(hidden, kv_cache=layer_cache)
    return self.ln_f(hidden), kv_cache


@attempt_at(WRONGS, MODEL, ThreadedModel)
def model_without_its_last_layer(self, inputs, position_ids, kv_cache=None):
    kv_cache = kv_cache or [None] * len(self.h)
    hidden, new_cache = self.embed(inputs, position_ids), []
    for block, layer_cache in zip(self.h[:-1], kv_cache, strict=False):
        hidden, layer_cache = block(hidden, layer_cache)
        new_cache.append(layer_cache)
    return self.ln_f(hidden), [*new_cache, new_cache[-1] if new_cache else None]


@attempt_at(WRONGS, MODEL, ThreadedModel)
def model_with_the_last_cache_only(self, inputs, position_ids, kv_cache=None):
    kv_cache = kv_cache or [None] * len(self.h)
    hidden = self.embed(inputs, position_ids)
    for block, layer_cache in zip(self.h, kv_cache, strict=False):
        hidden, layer_cache = block(hidden, layer_cache)
    return self.ln_f(hidden), layer_cache


@attempt_at(WRONGS, MODEL, ThreadedModel)
def model_with_the_first_rows_positions(self, inputs, position_ids, kv_cache=None):
    return ThreadedModel.forward(self, inputs, position_ids[:1].expand_as(inputs), kv_cache)


@attempt_at(WRONGS, MODEL, ThreadedModel)
def model_whose_hidden_state_does_not_flow(self, inputs, position_ids, kv_cache=None):
    kv_cache = kv_cache or [None] * len(self.h)
    embedded = self.embed(inputs, position_ids)
    both = [block(embedded, old) for block, old in zip(self.h, kv_cache, strict=True)]
    return self.ln_f(both[-1][0]), [new for _, new in both]


@attempt_at(WRONGS, MODEL, ThreadedModel)
def model_without_positions(self, inputs, position_ids, kv_cache=None):
    return ThreadedModel.forward(self, inputs, torch.zeros_like(position_ids), kv_cache)


@attempt_at(WRONGS, MODEL, ThreadedModel)
def model_that_extends_the_list(self, inputs, position_ids, kv_cache=None):
    hidden, new_cache = ThreadedModel.forward(self, inputs, position_ids, kv_cache)
    return hidden, (kv_cache or []) + new_cache


@attempt_at(WRONGS, MODEL, ThreadedModel)
def model_of_gpt_py(self, inputs, position_ids, kv_cache=None):
    return GPTModel.forward(self, inputs, position_ids)


# ------------------------------------------------------------------------ ThreadedLMHead.forward

LM_HEAD = "kv_cache.ThreadedLMHead.forward"


@attempt_at(RIGHT, LM_HEAD, ThreadedLMHead)
def head_by_linear(self, inputs, position_ids, kv_cache=None):
    hidden, kv_cache = self.transformer(inputs, position_ids, kv_cache=kv_cache)
    return F.linear(hidden, self.transformer.wte.weight), kv_cache


@attempt_at(RIGHT, LM_HEAD, ThreadedLMHead)
def head_by_einsum(self, inputs, position_ids, kv_cache=None):
    found = self.transformer.forward(inputs, position_ids, kv_cache)
    return torch.einsum("bte,ve->btv", found[0], self.transformer.wte.weight), found[1]


@attempt_at(WRONGS, LM_HEAD, ThreadedLMHead)
def head_with_log_probabilities(self, inputs, position_ids, kv_cache=None):
    logits, kv_cache = ThreadedLMHead.forward(self, inputs, position_ids, kv_cache)
    return logits.log_softmax(-1), kv_cache


@attempt_at(WRONGS, LM_HEAD, ThreadedLMHead)
def head_with_tokens(self, inputs, position_ids, kv_cache=None):
    logits, kv_cache = ThreadedLMHead.forward(self, inputs, position_ids, kv_cache)
    return logits.argmax(-1), kv_cache


@attempt_at(WRONGS, LM_HEAD, ThreadedLMHead)
def head_that_exchanges_its_arguments(self, inputs, position_ids, kv_cache=None):
    return ThreadedLMHead.forward(self, position_ids, inputs, kv_cache)


@attempt_at(WRONGS, LM_HEAD, ThreadedLMHead)
def head_with_one_layers_cache(self, inputs, position_ids, kv_cache=None):
    logits, kv_cache = ThreadedLMHead.forward(self, inputs, position_ids, kv_cache)
    return logits, kv_cache[0]


@attempt_at(WRONGS, LM_HEAD, ThreadedLMHead)
def head_of_gpt_py(self, inputs, position_ids, kv_cache=None):
    return GPTLMHead.forward(self, inputs, position_ids)


# ----------------------------------------------------------------------------- generate_threaded

GENERATE = "kv_cache.generate_threaded"


@attempt_at(RIGHT, GENERATE)
def generate_in_two_phases(model, input_ids, max_new_tokens, eos_token_id=None):
    batch, seq = input_ids.shape
    end = min(seq + max_new_tokens, model.config.n_positions)
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
    rows = input_ids.tolist()
    new, kv_cache = input_ids, None
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
    return torch.tensor(rows)


@attempt_at(RIGHT, GENERATE)
def generate_by_recursion(
    model, input_ids, max_new_tokens, eos_token_id=None, kv_cache=None, computed=0
):
    seq = input_ids.shape[1]
    if max_new_tokens == 0 or seq == model.config.n_positions:
        return input_ids
    new_ids = input_ids[:, computed:]
    positions = torch.arange(computed, seq).expand_as(new_ids)
    logits, kv_cache = model(new_ids, positions, kv_cache)
    ids = torch.hstack([input_ids, logits[:, -1].argmax(1, keepdim=True)])
    left = 0 if eos_token_id is not None and ids[0, -1] == eos_token_id else max_new_tokens - 1
    return generate_by_recursion(model, ids, left, eos_token_id, kv_cache, seq)


def other_loop(
    position=lambda ids: ids.shape[1] - 1,
    choose=lambda logits: logits[:, -1:].argmax(-1),
    stop=lambda ids, eos: eos is not None and ids[0, -1] == eos,
    limit=lambda config: config.n_positions,
    result=lambda ids, prompt: ids,
):
    """generate_in_two_phases with something exchanged."""

    def generate(model, input_ids, max_new_tokens, eos_token_id=None):
        require_prompt(model, input_ids, max_new_tokens, eos_token_id)
        batch, seq = input_ids.shape
        end = min(seq + max_new_tokens, limit(model.config))
        if end <= seq:
            return result(input_ids, input_ids)
        logits, kv_cache = model(input_ids, torch.arange(seq).expand(batch, seq))
        ids = torch.cat([input_ids, choose(logits)], 1)
        while ids.shape[1] < end and not stop(ids, eos_token_id):
            position_ids = torch.full((batch, 1), position(ids))
            logits, kv_cache = model(ids[:, -1:], position_ids, kv_cache)
            ids = torch.cat([ids, choose(logits)], 1)
        return result(ids, input_ids)

    return generate


def prefill_twice(model, input_ids, max_new_tokens, eos_token_id=None):
    if max_new_tokens:
        model(input_ids, torch.arange(input_ids.shape[1]).expand_as(input_ids))
    return generate_threaded(model, input_ids, max_new_tokens, eos_token_id)


def prompt_in_two_chunks(model, input_ids, max_new_tokens, eos_token_id=None):
    ids = input_ids
    seq, kv_cache, computed = ids.shape[1], None, 0
    for _ in range(min(max_new_tokens, model.config.n_positions - seq)):
        cuts = [computed, seq // 2, ids.shape[1]] if computed == 0 else [computed, ids.shape[1]]
        for start, end in pairwise(cuts):
            if end > start:
                positions = torch.arange(start, end).expand(len(ids), -1)
                logits, kv_cache = model(ids[:, start:end], positions, kv_cache)
        computed = ids.shape[1]
        ids = torch.cat([ids, logits[:, -1:].argmax(-1)], 1)
        if eos_token_id is not None and ids[0, -1] == eos_token_id:
            break
    return ids


def eos_filled_up(model, input_ids, max_new_tokens, eos_token_id=None):
    ids = generate_threaded(model, input_ids, max_new_tokens, eos_token_id)
    end = min(input_ids.shape[1] + max_new_tokens, model.config.n_positions)
    return F.pad(ids, (0, end - ids.shape[1]), value=eos_token_id or 0)


WRONG_LOOPS = {
    "position_by_step": other_loop(position=lambda ids: ids.shape[1]),
    "position_always_the_last": other_loop(position=lambda ids: 15),
    "position_one": other_loop(position=lambda ids: 1),
    "second_best": other_loop(choose=lambda logits: logits[:, -1:].topk(2).indices[..., 1]),
    "worst": other_loop(choose=lambda logits: logits[:, -1:].argmin(-1)),
    "argmax_over_the_batch": other_loop(choose=lambda logits: logits[:, -1:].argmax(0)[..., :1]),
    "sampled": other_loop(choose=lambda logits: (logits[:, -1] / 50).softmax(-1).multinomial(1)),
    "stops_at_any_eos": other_loop(stop=lambda ids, eos: eos in ids.tolist()[0]),
    "stops_at_the_second_last": other_loop(stop=lambda ids, eos: eos in ids[0, -2:].tolist()[:-1]),
    "context_one_short": other_loop(limit=lambda config: config.n_positions - 1),
    "floats": other_loop(result=lambda ids, prompt: ids.double()),
    "a_list": other_loop(result=lambda ids, prompt: ids.tolist()),
    "first_row_only": other_loop(result=lambda ids, prompt: ids[:1]),
    "prompt_twice": other_loop(result=lambda ids, prompt: torch.cat([prompt, ids], 1)),
    "nothing": other_loop(result=lambda ids, prompt: None),
    "prefill_twice": prefill_twice,
    "prompt_in_two_chunks": prompt_in_two_chunks,
    "eos_filled_up": eos_filled_up,
}
RIGHT.append(pytest.param(GENERATE, other_loop(), id=f"{GENERATE}-other_loop"))
WRONGS += [pytest.param(GENERATE, a, id=f"{GENERATE}-{name}") for name, a in WRONG_LOOPS.items()]


# ---------------------------------------------------------------------------- kv_bytes_per_token

BYTES = "kv_cache.kv_bytes_per_token"


@attempt_at(RIGHT, BYTES)
def bytes_by_heads(config, bytes_per_number=4):
    return sum(
        2 * config.n_head * config.head_dim * bytes_per_number for _ in range(config.n_layer)
    )


@attempt_at(RIGHT, BYTES)
def bytes_as_a_float(config, bytes_per_number=4):
    return 2.0 * config.n_layer * config.n_embd * bytes_per_number


WRONG_BYTES = {
    "fable_only": lambda config, n=4: 24576,
    "in_kilobytes": lambda config, n=4: kv_bytes_per_token(config, n) / 1000,
    "in_bits": lambda config, n=4: 8 * kv_bytes_per_token(config, n),
    "two_bytes_if_not_told": lambda config, n=2: kv_bytes_per_token(config, n),
    "as_text": lambda config, n=4: str(kv_bytes_per_token(config, n)),
    "heads_left_out_twice": lambda config, n=4: 2 * config.n_layer * config.n_head * n,
}
WRONGS += [pytest.param(BYTES, a, id=f"{BYTES}-{name}") for name, a in WRONG_BYTES.items()]


# -------------------------------------------------------------------------------- KVCache.attend

ATTEND = "kv_cache.KVCache.attend"


def start_and_end(cache, queries):
    start, end = cache.length, cache.length + queries.shape[2]
    if end > cache.max_length:
        raise ValueError("The cache is full.")
    return start, end


def attended(cache, layer, queries, start, end, mask=None):
    positions = torch.arange(end)[None]
    mask = causal_mask(positions[:, start:], positions) if mask is None else mask
    stored = cache.keys[layer, :, :, :end], cache.values[layer, :, :, :end]
    return F.scaled_dot_product_attention(queries, *stored, attn_mask=mask)


@attempt_at(RIGHT, ATTEND, KVCache)
def attend_by_index_copy(self, layer, queries, keys, values):
    start, end = start_and_end(self, queries)
    new = torch.arange(start, end)
    self.keys[layer].index_copy_(2, new, keys)
    self.values[layer].index_copy_(2, new, values)
    if layer + 1 == self.keys.shape[0]:
        self.length += queries.shape[2]
    scores = queries @ self.keys[layer, ..., :end, :].mT / math.sqrt(queries.shape[-1])
    future = torch.arange(end) > new[:, None]
    weights = scores.masked_fill(future, float("-inf")).softmax(-1)
    return weights @ self.values[layer, ..., :end, :]


@attempt_at(RIGHT, ATTEND, KVCache)
def attend_over_all_memory_masked(self, layer, queries, keys, values):
    start, end = start_and_end(self, queries)
    self.keys[layer].narrow(2, start, end - start).copy_(keys)
    self.values[layer].narrow(2, start, end - start).copy_(values)
    mask = torch.arange(self.max_length) <= torch.arange(start, end)[:, None]
    output = F.scaled_dot_product_attention(queries, self.keys[layer], self.values[layer], mask)
    self.length = end if layer == self.keys.shape[0] - 1 else self.length
    return output


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
        return attended(self, layer, queries, start, end)

    def truncate(self, n):
        if n < 0 or n > self.length:
            raise ValueError("There are not as many.")
        self.length, self.lengths = n, [n] * len(self.lengths)


RIGHT += [pytest.param(name, LayerByLayer, id=f"{name}-by_layer") for name in (ATTEND,)]


@attempt_at(WRONGS, ATTEND, KVCache)
def attend_is_causal_unless_decode(self, layer, queries, keys, values):
    start, end = start_and_end(self, queries)
    output = KVCache.attend(self, layer, queries, keys, values)
    mask = torch.ones(end - start, end, dtype=torch.bool)
    return output if end - start == 1 else attended(self, layer, queries, start, end, mask.tril())


@attempt_at(WRONGS, ATTEND, KVCache)
def attend_for_two_layers(self, layer, queries, keys, values):
    start, end = start_and_end(self, queries)
    output = KVCache.attend(self, layer, queries, keys, values)
    self.length = end if layer == 1 else start
    return output


@attempt_at(WRONGS, ATTEND, KVCache)
def attend_by_concatenation(self, layer, queries, keys, values):
    """Right, but the memory grows, which was to be reserved once."""
    output = KVCache.attend(self, layer, queries, keys, values)
    if layer == 0:
        self.keys = torch.cat([self.keys, torch.zeros_like(self.keys[:, :, :, :1])], 3)
    return output


@attempt_at(WRONGS, ATTEND, KVCache)
def attend_from_lists_of_its_own(self, layer, queries, keys, values):
    """Right until rows are reordered or tokens taken back."""
    _, end = start_and_end(self, queries)
    own = self.__dict__.setdefault("own", {})
    own[layer] = longer(own.get(layer), keys, values)
    if layer == len(self.keys) - 1:
        self.length = end
    positions = torch.arange(own[layer][0].shape[2])[None]
    mask = causal_mask(positions[:, -queries.shape[2] :], positions)
    keys, values = own[layer]
    return F.scaled_dot_product_attention(queries, keys, values, mask)


@attempt_at(WRONGS, ATTEND, KVCache)
def attend_by_a_counter_of_its_own(self, layer, queries, keys, values):
    """Right until truncate sets length."""
    start_and_end(self, queries)
    own = self.__dict__.setdefault("own", [0] * len(self.keys))
    start, end = own[layer], own[layer] + queries.shape[2]
    self.keys[layer, :, :, start:end] = keys
    self.values[layer, :, :, start:end] = values
    own[layer] = end
    self.length = min(own)
    return attended(self, layer, queries, start, end)


@attempt_at(WRONGS, ATTEND, KVCache)
def attend_in_float32(self, layer, queries, keys, values):
    return KVCache.attend(self, layer, queries.float().double(), keys, values.float().double())


@attempt_at(WRONGS, ATTEND, KVCache)
def attend_refuses_the_last_place(self, layer, queries, keys, values):
    if self.length + queries.shape[2] >= self.max_length:
        raise ValueError("The cache is full.")
    return KVCache.attend(self, layer, queries, keys, values)


@attempt_at(WRONGS, ATTEND, KVCache)
def attend_drops_what_does_not_fit(self, layer, queries, keys, values):
    room = self.max_length - self.length
    output = KVCache.attend(
        self, layer, queries[:, :, :room], keys[:, :, :room], values[:, :, :room]
    )
    return F.pad(output, (0, 0, 0, queries.shape[2] - output.shape[2]))


@attempt_at(WRONGS, ATTEND, KVCache)
def attend_grows_before_it_refuses(self, layer, queries, keys, values):
    if self.length + queries.shape[2] > self.max_length:
        self.length = self.max_length
    return KVCache.attend(self, layer, queries, keys, values)


@attempt_at(WRONGS, ATTEND, KVCache)
def attend_overwrites_the_values_of_the_prefix(self, layer, queries, keys, values):
    start, _ = start_and_end(self, queries)
    output = KVCache.attend(self, layer, queries, keys, values)
    self.values[layer, :, :, :start] = values[:, :, :1]
    return output


# ------------------------------------------------------------------------------ KVCache.truncate

TRUNCATE = "kv_cache.KVCache.truncate"
RIGHT.append(pytest.param(TRUNCATE, LayerByLayer, id=f"{TRUNCATE}-by_layer"))


@attempt_at(RIGHT, TRUNCATE, KVCache)
def truncate_with_zeros(self, n):
    if n not in range(self.length + 1):
        raise ValueError(f"cannot keep {n}")
    self.keys[..., n:, :] = 0
    self.values[..., n:, :].zero_()
    self.length = n


@attempt_at(WRONGS, TRUNCATE, KVCache)
def truncate_everything(self, n):
    KVCache.truncate(self, n)
    self.length = 0


@attempt_at(WRONGS, TRUNCATE, KVCache)
def truncate_then_look(self, n):
    before, self.length = self.length, n
    if not 0 <= n <= before:
        raise ValueError(f"cannot keep {n}")


@attempt_at(WRONGS, TRUNCATE, KVCache)
def truncate_by_assertion(self, n):
    assert 0 <= n <= self.length
    self.length = n


@attempt_at(WRONGS, TRUNCATE, KVCache)
def truncate_that_prints(self, n):
    if 0 <= n <= self.length:
        self.length = n


@attempt_at(WRONGS, TRUNCATE, KVCache)
def truncate_the_reservation(self, n):
    KVCache.truncate(self, n)
    self.max_length = n


@attempt_at(WRONGS, TRUNCATE, KVCache)
def truncate_layer_0(self, n):
    kept = self.keys[1:].clone(), self.values[1:].clone()
    KVCache.truncate(self, n)
    self.keys, self.values = self.keys.clone(), self.values.clone()
    self.keys[1:], self.values[1:] = kept[0].roll(1, dims=3), kept[1].roll(1, dims=3)


@attempt_at(WRONGS, TRUNCATE, KVCache)
def truncate_zeroes_one_too_many(self, n):
    KVCache.truncate(self, n)
    self.keys[:, :, :, max(n - 1, 0) :] = 0


@attempt_at(WRONGS, TRUNCATE, KVCache)
def truncate_nothing(self, n):
    if not 0 <= n <= self.length:
        raise ValueError(f"cannot keep {n}")


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


def wrong(self: Any, *given: Any, **named: Any) -> Any:
    return None


@pytest.mark.parametrize("other", [undone, wrong])
@pytest.mark.parametrize(
    ("name", "base", "method"),
    [
        (ATTEND, KVCache, "truncate"),
        (TRUNCATE, KVCache, "attend"),
    ],
)
def test_the_caches_other_method_costs_nothing(
    name: str, base: type, method: str, other: Callable
) -> None:
    judgement = EXERCISES[name].judge(type("KVCache", (base,), {method: other}))
    assert judgement.status == PASSED, judgement.message


@pytest.mark.parametrize(
    ("name", "other"),
    [
        (name, misconception)
        for name, other in ((ATTEND, TRUNCATE), (TRUNCATE, ATTEND))
        for misconception in EXERCISES[other].misconceptions
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_mistake_in_one_method_of_the_cache_costs_that_one_only(name: str, other: Any) -> None:
    assert EXERCISES[name].judge(other.attempt).status == PASSED


@pytest.mark.parametrize("broken", [undone, wrong])
@pytest.mark.parametrize(
    ("name", "base", "inner"),
    [
        (BLOCK, ThreadedBlock, ThreadedAttention),
        (MODEL, ThreadedModel, ThreadedBlock),
        (LM_HEAD, ThreadedLMHead, ThreadedModel),
    ],
)
def test_a_layer_is_judged_without_the_layers_in_it(
    name: str, base: type, inner: type, broken: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference runs with the inner layer broken as well: neither needs it."""
    monkeypatch.setattr(inner, "forward", broken)
    assert EXERCISES[name].judge(base).status == PASSED


def test_an_undone_method_is_not_attempted_and_not_wrong() -> None:
    for name, method in ((ATTEND, "attend"), (TRUNCATE, "truncate")):
        attempt = type("KVCache", (KVCache,), {method: undone})
        assert EXERCISES[name].judge(attempt).status == NOT_ATTEMPTED


def test_what_a_chunk_needs_is_told_where_it_is_missing() -> None:
    judgement = EXERCISES[ATTENTION].judge(
        with_method(GPTAttention, ATTENTION, attention_is_causal_unless_decode)
    )
    assert judgement.case is not None
    assert judgement.case.label == "three tokens, then a chunk of three"
    assert "tokens 3 to 5 of prompt 1" in judgement.message


def test_a_prefix_computed_again_is_told_by_its_count() -> None:
    judgement = EXERCISES[GENERATE].judge(prefill_twice)
    assert judgement.misconception is None
    assert "The tokens are right, but it took 2 tokens computed" in judgement.message


def test_two_mistakes_that_raise_the_same_error_are_told_apart() -> None:
    """Concatenating on the batch, like on the heads, ends in a RuntimeError about sizes."""
    judgement = EXERCISES[ATTENTION].judge(
        with_method(GPTAttention, ATTENTION, attention_concatenated_on_batch)
    )
    assert judgement.status == WRONG
    assert judgement.misconception is None
