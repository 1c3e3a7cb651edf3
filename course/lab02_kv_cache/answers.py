"""Answers to lab 2's exercises: the mask, the threaded model, and the cache as an object."""

import math

import torch
import torch.nn.functional as F

from solutions.kv_cache import (
    KVCache,
    ThreadedAttention,
    ThreadedBlock,
    ThreadedModel,
    causal_mask,
    generate_threaded,
    kv_bytes_per_token,
)
from tests.common.attempts import right, wrong

# -------------------------------------------------------------------------- causal_mask, the bytes


wrong(causal_mask)(lambda q, k: causal_mask(q, k) & ~causal_mask(q - 30, k))  # in a window
wrong(causal_mask, "The mask holds integers;", "as the comparison gives them")(
    lambda q, k: causal_mask(q, k).to(torch.int32)
)
wrong(kv_bytes_per_token, "What it returned is a float; expected: it is an int.")(
    lambda config, bytes_per_number=4: kv_bytes_per_token(config, 8 * bytes_per_number) / 8
)


# ------------------------------------------------------------------------- the threaded forwards


def longer(kv_cache, keys, values):
    if kv_cache is None:
        return [keys, values]
    return [torch.cat((kv_cache[0], keys), -2), torch.cat((kv_cache[1], values), -2)]


def mask_of(q_len, k_len):
    return torch.ones(q_len, k_len, dtype=torch.bool).tril(diagonal=k_len - q_len)


def attention(dtype=None, window=99, behind_a_prefix=mask_of, **scale):
    """Attention by phase, with one part replaced."""

    def forward(self, hidden, kv_cache=None):
        queries, keys, values = self.split_heads(self.c_attn(hidden)).to(dtype or hidden.dtype)
        keys, values = pair = longer(kv_cache, keys, values)
        q_len, k_len = queries.shape[2], keys.shape[2]
        seen = queries, keys[:, :, -window:], values[:, :, -window:]
        if kv_cache is None:
            attended = F.scaled_dot_product_attention(*seen, is_causal=True, **scale)
        elif q_len == 1:
            attended = F.scaled_dot_product_attention(*seen, **scale)
        else:
            mask = behind_a_prefix(q_len, k_len)[:, -window:]
            attended = F.scaled_dot_product_attention(*seen, attn_mask=mask, **scale)
        return self.c_proj(self.merge_heads(attended.to(hidden.dtype))), pair

    return forward


right(ThreadedAttention.forward)(attention())
wrong(ThreadedAttention.forward, "`keys` returned for token 0 of prompt 1 has the right numbers")(
    attention(dtype=torch.float32)
)
wrong(ThreadedAttention.forward)(attention(window=12))
wrong(ThreadedAttention.forward)(attention(scale=1 / 2))  # by the number of heads
# As the parameter is known from other libraries.
wrong(ThreadedAttention.forward, "for tokens 3 to 5 of prompt 1", "`is_causal=True` does that")(
    attention(behind_a_prefix=lambda q_len, k_len: mask_of(k_len, k_len)[:q_len])
)


@wrong(ThreadedAttention.forward)
def masked_by_minus_20(self, hidden, kv_cache=None):
    queries, keys, values = self.split_heads(self.c_attn(hidden))
    keys, values = pair = longer(kv_cache, keys, values)
    scores = queries @ keys.mT / math.sqrt(queries.shape[-1])
    seen = mask_of(queries.shape[2], keys.shape[2])
    attended = scores.masked_fill(~seen, -20.0).softmax(-1) @ values
    return self.c_proj(self.merge_heads(attended)), pair


wrong(ThreadedBlock.forward, "is None; expected: it is two", "Is a `return` missing?")(
    lambda self, *given: None
)
wrong(ThreadedBlock.forward, "is None; expected: it is a pair (keys, values).")(
    lambda self, *given: (ThreadedBlock.forward(self, *given)[0], None)
)


@right(ThreadedModel.forward)
def into_a_tuple(self, inputs, position_ids, kv_cache=None):
    hidden = self.wte(inputs) + self.wpe(position_ids)
    new_cache: tuple = ()
    for layer in range(self.config.n_layer):
        given = {} if kv_cache is None else {"kv_cache": kv_cache[layer]}
        hidden, layer_cache = self.h[layer](hidden, **given)
        new_cache += (layer_cache,)
    return self.ln_f(hidden), new_cache


@wrong(ThreadedModel.forward, "One cache goes through all layers")
def one_cache_by_number(self, inputs, position_ids, kv_cache=None):
    hidden = self.embed(inputs, position_ids)
    for i in range(len(self.h)):
        hidden, kv_cache = self.h[i](hidden, kv_cache)
    return self.ln_f(hidden), kv_cache


@wrong(ThreadedModel.forward)
def one_list_for_all_steps(self, inputs, position_ids, kv_cache=None, mine=[]):  # noqa: B006
    hidden, mine[:] = ThreadedModel.forward(self, inputs, position_ids, kv_cache)
    return hidden, mine


# ----------------------------------------------------------------------------- generate_threaded


@wrong(generate_threaded)
def keeping_a_window(model, input_ids, max_new_tokens, eos_token_id=None):
    def windowed(ids, position_ids, kv_cache=None):
        logits, kv_cache = model(ids, position_ids, kv_cache)
        return logits, [tuple(part[:, :, -13:] for part in pair) for pair in kv_cache]

    windowed.config = model.config
    return generate_threaded(windowed, input_ids, max_new_tokens, eos_token_id)


@wrong(generate_threaded, "2 forward calls; 1 suffice.", "last token, so it needs no forward.")
def prefill_twice(model, input_ids, max_new_tokens, eos_token_id=None):
    if max_new_tokens:
        model(input_ids, torch.arange(input_ids.shape[1]).expand_as(input_ids))
    return generate_threaded(model, input_ids, max_new_tokens, eos_token_id)


@wrong(
    generate_threaded, "took 4 forward calls; 3 suffice.", "One prefill of the whole prompt gives"
)
def prefill_without_the_last_token(model, input_ids, max_new_tokens, eos_token_id=None):
    def in_two(ids, position_ids, kv_cache=None):
        if kv_cache is None and ids.shape[1] > 1:
            _, kv_cache = model(ids[:, :-1], position_ids[:, :-1])
            ids, position_ids = ids[:, -1:], position_ids[:, -1:]
        return model(ids, position_ids, kv_cache)

    in_two.config = model.config
    return generate_threaded(in_two, input_ids, max_new_tokens, eos_token_id)


@wrong(generate_threaded)
def identity_for_equality(model, input_ids, max_new_tokens, eos_token_id=None):
    small = eos_token_id is not None and eos_token_id <= 256  # Python keeps these only once
    return generate_threaded(model, input_ids, max_new_tokens, eos_token_id if small else None)


# -------------------------------------------------------------------------- the cache as an object


def over_all_memory_masked(masked_score):
    def attend(self, layer, queries, keys, values):
        start, q_len = self.length, queries.shape[2]
        if start + q_len > self.max_length:
            raise ValueError("The cache is full.")
        new = torch.arange(start, start + q_len)
        self.keys[layer].index_copy_(2, new, keys)
        self.values[layer].narrow(2, start, q_len).copy_(values)
        scores = queries @ self.keys[layer].mT / math.sqrt(queries.shape[-1])
        future = torch.arange(self.max_length) > new[:, None]
        self.length = start + q_len if layer == self.keys.shape[0] - 1 else start
        return scores.masked_fill(future, masked_score).softmax(-1) @ self.values[layer]

    return attend


right(KVCache.attend)(over_all_memory_masked(float("-inf")))
right(KVCache.attend)(over_all_memory_masked(-1e9))
wrong(KVCache.attend)(over_all_memory_masked(-20.0))


@right(KVCache.attend, KVCache.truncate)
class LayerByLayer(KVCache):
    """Keeps a length for every layer, too."""

    def __init__(self, *given, **named):
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


@wrong(KVCache.attend, "The memory after step 1 has been allocated again;")
def into_new_memory(self, layer, queries, keys, values):
    self.keys, self.values = self.keys.clone(), self.values.clone()
    return KVCache.attend(self, layer, queries, keys, values)


@wrong(KVCache.attend)
def from_pairs_of_its_own(self, layer, queries, keys, values):
    """Right until rows are reordered or tokens are taken back."""
    start, end = self.length, self.length + queries.shape[2]
    KVCache.attend(self, layer, queries, keys, values)
    own = self.__dict__.setdefault("own", {})
    own[layer] = longer(own.get(layer), keys, values)
    return F.scaled_dot_product_attention(queries, *own[layer], attn_mask=self.mask(start, end))


@wrong(KVCache.truncate, "The memory for values, which `truncate` must not change,")
def values_erased(self, n):
    held = self.length
    KVCache.truncate(self, n)
    self.values[:, :, :, n:held].zero_()


@wrong(KVCache.truncate, "`truncate(8)` in step 2 was refused")
def a_full_memory_is_not_kept_whole(self, n):
    if n == self.max_length:
        raise ValueError("The memory is full.")
    KVCache.truncate(self, n)


@wrong(KVCache.truncate, "`length` after step 2 is 4; expected 3.")
def refused_too_late(self, n):
    before, self.length = self.length, n
    if not 0 <= n <= before:
        raise ValueError(f"cannot keep {n}")
