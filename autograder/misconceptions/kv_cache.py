"""Wrong solutions of lab 2, each with one sentence to whoever wrote it."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from autograder.exercise import Misconception
from gpt import GPTConfig
from solutions import kv_cache as right
from solutions.generate import require_prompt

Ids = Int[Tensor, "batch seq"]


class Wrong(list[Misconception]):
    """The misconceptions of one exercise: functions, or classes with one method exchanged."""

    def __init__(self, base: type | None = None, method: str = "") -> None:
        super().__init__()
        self.base, self.method = base, method

    def where(self, sentence: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Add the function below, with the sentence to whoever wrote it."""

        def add(wrong: Callable[..., Any]) -> Callable[..., Any]:
            self.append(Misconception(wrong.__name__, sentence, self.in_place(wrong)))
            return wrong

        return add

    def in_place(self, wrong: Callable[..., Any]) -> Any:
        if self.base is None:
            return wrong
        return type(self.base.__name__, (self.base,), {self.method: wrong})


CAUSAL_MASK = Wrong()
ATTENTION = Wrong(right.ThreadedAttention, "forward")
BLOCK = Wrong(right.ThreadedBlock, "forward")
MODEL = Wrong(right.ThreadedModel, "forward")
LM_HEAD = Wrong(right.ThreadedLMHead, "forward")
GENERATE = Wrong()
BYTES = Wrong()
ATTEND = Wrong(right.KVCache, "attend")
TRUNCATE = Wrong(right.KVCache, "truncate")


# ---------------------------------------------------------------------------------- causal_mask


@CAUSAL_MASK.where(
    "No token sees itself here: a key at the query's own position is visible too, so compare with "
    "<=, not with <.",
)
def own_position_hidden(query_positions: Ids, key_positions: Ids) -> Tensor:
    return (key_positions[:, None, :] < query_positions[:, :, None])[:, None]


@CAUSAL_MASK.where(
    "Every token sees the future and not the past: it is the key's position that must be at most "
    "the query's, not the other way round.",
)
def comparison_reversed(query_positions: Ids, key_positions: Ids) -> Tensor:
    return (query_positions[:, :, None] <= key_positions[:, None, :])[:, None]


@CAUSAL_MASK.where(
    "Every query sees one key too many: a key is visible up to the query's own position, and the "
    "next one is the future.",
)
def one_too_far(query_positions: Ids, key_positions: Ids) -> Tensor:
    return (key_positions[:, None, :] <= query_positions[:, :, None] + 1)[:, None]


@CAUSAL_MASK.where(
    "Queries and keys have changed places in the shape: the mask has a row for every query and a "
    "column for every key, [batch, 1, q_len, k_len].",
)
def rows_are_keys(query_positions: Ids, key_positions: Ids) -> Tensor:
    return (key_positions[:, :, None] <= query_positions[:, None, :])[:, None]


@CAUSAL_MASK.where(
    "The mask is right but for its shape: a 1 for the heads belongs at dimension 1, "
    "[batch, 1, q_len, k_len], or attention takes the batch for the heads.",
)
def no_dimension_for_heads(query_positions: Ids, key_positions: Ids) -> Tensor:
    return key_positions[:, None, :] <= query_positions[:, :, None]


@CAUSAL_MASK.where(
    "This is a triangle that starts at the first key, whatever the positions are: right in "
    "prefill, but in decode the one query would see the first key only. Compare the positions.",
)
def triangle_from_the_first_key(query_positions: Ids, key_positions: Ids) -> Tensor:
    batch, q_len = query_positions.shape
    triangle = torch.ones(q_len, key_positions.shape[1], dtype=torch.bool).tril()
    return triangle.expand(batch, 1, -1, -1)


@CAUSAL_MASK.where(
    "This is a triangle that ends at the last key, whatever the positions are: it goes wrong as "
    "soon as the queries are not the last tokens, or the rows differ. Compare the positions.",
)
def triangle_to_the_last_key(query_positions: Ids, key_positions: Ids) -> Tensor:
    (batch, q_len), k_len = query_positions.shape, key_positions.shape[1]
    triangle = torch.ones(q_len, k_len, dtype=torch.bool).tril(k_len - q_len)
    return triangle.expand(batch, 1, -1, -1)


@CAUSAL_MASK.where(
    "True and False are exchanged: here True means that the query may see the key.",
)
def true_means_hidden(query_positions: Ids, key_positions: Ids) -> Tensor:
    return (key_positions[:, None, :] > query_positions[:, :, None])[:, None]


@CAUSAL_MASK.where(
    "Every row of the batch gets the mask of the first row: each row has positions of its own.",
)
def first_row_for_all(query_positions: Ids, key_positions: Ids) -> Tensor:
    mask = right.causal_mask(query_positions[:1], key_positions[:1])
    return mask.expand(len(query_positions), -1, -1, -1)


@CAUSAL_MASK.where(
    "This is a mask to be added to the scores, 0 where a key is visible and -inf where it is not; "
    "asked for is the plain one, True where it is visible.",
)
def mask_to_be_added(query_positions: Ids, key_positions: Ids) -> Tensor:
    visible = right.causal_mask(query_positions, key_positions)
    return torch.zeros(visible.shape, dtype=torch.float64).masked_fill(~visible, -torch.inf)


# --------------------------------------------------------------------- ThreadedAttention.forward


def attention_of(layer, queries, keys, values, mask=None, is_causal=False) -> Tensor:
    attended = F.scaled_dot_product_attention(queries, keys, values, mask, is_causal=is_causal)
    return layer.c_proj(layer.merge_heads(attended))


def last_rows(queries: Tensor, keys: Tensor) -> Tensor:
    """The right mask where the queries are the last tokens of the keys."""
    positions = torch.arange(keys.shape[2]).unsqueeze(0)
    return right.causal_mask(positions[:, -queries.shape[2] :], positions)


def appended(kv_cache, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    if kv_cache is None:
        return keys, values
    return torch.cat([kv_cache[0], keys], dim=2), torch.cat([kv_cache[1], values], dim=2)


@ATTENTION.where(
    "is_causal=True lays its triangle at the first key: with a prefix in the cache (q_len < k_len) "
    "a new token sees the start of the text and not itself. Hand over causal_mask instead.",
)
def is_causal_behind_a_prefix(self: Any, hidden: Tensor, kv_cache: Any = None) -> Any:
    queries, keys, values = self.split_heads(self.c_attn(hidden))
    keys, values = appended(kv_cache, keys, values)
    return attention_of(self, queries, keys, values, is_causal=True), (keys, values)


@ATTENTION.where(
    "There is no mask once the cache is used: that is right for one new token, but in a chunk of "
    "several the first ones see those after them.",
)
def no_mask_behind_a_prefix(self: Any, hidden: Tensor, kv_cache: Any = None) -> Any:
    queries, keys, values = self.split_heads(self.c_attn(hidden))
    keys, values = appended(kv_cache, keys, values)
    output = attention_of(self, queries, keys, values, is_causal=kv_cache is None)
    return output, (keys, values)


@ATTENTION.where(
    "There is no mask: in prefill and in a chunk every token sees those after it.",
)
def no_mask(self: Any, hidden: Tensor, kv_cache: Any = None) -> Any:
    queries, keys, values = self.split_heads(self.c_attn(hidden))
    keys, values = appended(kv_cache, keys, values)
    return attention_of(self, queries, keys, values), (keys, values)


@ATTENTION.where(
    "The mask reaches one position too far: each new token also sees the one after it.",
)
def mask_one_too_far(self: Any, hidden: Tensor, kv_cache: Any = None) -> Any:
    queries, keys, values = self.split_heads(self.c_attn(hidden))
    keys, values = appended(kv_cache, keys, values)
    positions = torch.arange(keys.shape[2]).unsqueeze(0)
    mask = right.causal_mask(positions[:, -queries.shape[2] :] + 1, positions)
    return attention_of(self, queries, keys, values, mask), (keys, values)


@ATTENTION.where(
    "The cache is concatenated on dimension 1, the heads: tokens lie along dimension 2 of "
    "[batch, heads, length, head_dim].",
)
def concatenated_on_heads(self: Any, hidden: Tensor, kv_cache: Any = None) -> Any:
    queries, keys, values = self.split_heads(self.c_attn(hidden))
    if kv_cache is not None:
        keys = torch.cat([kv_cache[0], keys], dim=1)
        values = torch.cat([kv_cache[1], values], dim=1)
    return attention_of(self, queries, keys, values, last_rows(queries, keys)), (keys, values)


@ATTENTION.where(
    "The new tokens are put in front of the prefix: the cache comes first in the concatenation, "
    "for it holds what came first in the text.",
)
def new_tokens_before_the_prefix(self: Any, hidden: Tensor, kv_cache: Any = None) -> Any:
    queries, keys, values = self.split_heads(self.c_attn(hidden))
    if kv_cache is not None:
        keys = torch.cat([keys, kv_cache[0]], dim=2)
        values = torch.cat([values, kv_cache[1]], dim=2)
    return attention_of(self, queries, keys, values, last_rows(queries, keys)), (keys, values)


@ATTENTION.where(
    "The values in the cache are keys: the second of the pair must be the values, which are what "
    "attention sums up.",
)
def values_stored_as_keys(self: Any, hidden: Tensor, kv_cache: Any = None) -> Any:
    queries, keys, values = self.split_heads(self.c_attn(hidden))
    keys, values = appended(kv_cache, keys, values)
    return attention_of(self, queries, keys, values, last_rows(queries, keys)), (keys, keys)


@ATTENTION.where(
    "The pair comes back as (values, keys): the rest of the engine expects (keys, values).",
)
def pair_exchanged(self: Any, hidden: Tensor, kv_cache: Any = None) -> Any:
    queries, keys, values = self.split_heads(self.c_attn(hidden))
    exchanged = kv_cache and (kv_cache[1], kv_cache[0])
    keys, values = appended(exchanged, keys, values)
    return attention_of(self, queries, keys, values, last_rows(queries, keys)), (values, keys)


@ATTENTION.where(
    "What comes back is the new tokens' keys and values only, taken before the concatenation: the "
    "next step would know nothing of what came earlier.",
)
def returned_before_concatenation(self: Any, hidden: Tensor, kv_cache: Any = None) -> Any:
    queries, new_keys, new_values = self.split_heads(self.c_attn(hidden))
    keys, values = appended(kv_cache, new_keys, new_values)
    output = attention_of(self, queries, keys, values, last_rows(queries, keys))
    return output, (new_keys, new_values)


@ATTENTION.where(
    "The cache is handed on but not attended to: the new tokens see only themselves, although the "
    "keys and values of the prefix are there.",
)
def attends_to_new_tokens_only(self: Any, hidden: Tensor, kv_cache: Any = None) -> Any:
    queries, keys, values = self.split_heads(self.c_attn(hidden))
    output = attention_of(self, queries, keys, values, is_causal=True)
    return output, appended(kv_cache, keys, values)


@ATTENTION.where(
    "The keys and values of an earlier prompt are still there when the next one starts: keep "
    "nothing on self; what the layer needs is handed to it, and None means a new text.",
)
def state_survives(self: Any, hidden: Tensor, kv_cache: Any = None) -> Any:
    queries, keys, values = self.split_heads(self.c_attn(hidden))
    keys, values = self.kept = appended(getattr(self, "kept", None), keys, values)
    return attention_of(self, queries, keys, values, last_rows(queries, keys)), (keys, values)


@ATTENTION.where(
    "The pair that was handed in has grown as well: return a new pair, and leave the old one to "
    "whoever still needs it.",
)
def pair_changed_in_place(self: Any, hidden: Tensor, kv_cache: Any = None) -> Any:
    queries, keys, values = self.split_heads(self.c_attn(hidden))
    keys, values = appended(kv_cache, keys, values)
    if kv_cache is not None:
        kv_cache[0].data, kv_cache[1].data = keys, values
    return attention_of(self, queries, keys, values, last_rows(queries, keys)), (keys, values)


# ------------------------------------------------------------------------- ThreadedBlock.forward


@BLOCK.where(
    "Attention never gets the cache: hand it down, self.attn(self.ln_1(hidden), kv_cache).",
)
def cache_not_handed_down(self: Any, hidden: Tensor, kv_cache: Any = None) -> Any:
    attended, kv_cache = self.attn(self.ln_1(hidden))
    hidden = hidden + attended
    return hidden + self.mlp(self.ln_2(hidden)), kv_cache


@BLOCK.where(
    "The block returns the cache it was handed; the longer one is what attention gave back.",
)
def old_cache_returned(self: Any, hidden: Tensor, kv_cache: Any = None) -> Any:
    attended, longer = self.attn(self.ln_1(hidden), kv_cache)
    hidden = hidden + attended
    return hidden + self.mlp(self.ln_2(hidden)), longer if kv_cache is None else kv_cache


@BLOCK.where(
    "Attention's output replaces the hidden state: it is added to it, as in gpt.py.",
)
def attention_not_added(self: Any, hidden: Tensor, kv_cache: Any = None) -> Any:
    hidden, kv_cache = self.attn(self.ln_1(hidden), kv_cache)
    return hidden + self.mlp(self.ln_2(hidden)), kv_cache


@BLOCK.where(
    "The MLP's output replaces the hidden state: it is added to it, as in gpt.py.",
)
def mlp_not_added(self: Any, hidden: Tensor, kv_cache: Any = None) -> Any:
    attended, kv_cache = self.attn(self.ln_1(hidden), kv_cache)
    return self.mlp(self.ln_2(hidden + attended)), kv_cache


@BLOCK.where(
    "The MLP is missing: after attention the block adds self.mlp(self.ln_2(hidden)).",
)
def no_mlp(self: Any, hidden: Tensor, kv_cache: Any = None) -> Any:
    attended, kv_cache = self.attn(self.ln_1(hidden), kv_cache)
    return hidden + attended, kv_cache


@BLOCK.where(
    "The MLP reads the hidden state from before attention: add what attention found first.",
)
def mlp_reads_before_attention(self: Any, hidden: Tensor, kv_cache: Any = None) -> Any:
    attended, kv_cache = self.attn(self.ln_1(hidden), kv_cache)
    return hidden + attended + self.mlp(self.ln_2(hidden)), kv_cache


@BLOCK.where(
    "A normalisation is missing: attention reads self.ln_1(hidden), not hidden itself.",
)
def attention_reads_unnormalised(self: Any, hidden: Tensor, kv_cache: Any = None) -> Any:
    attended, kv_cache = self.attn(hidden, kv_cache)
    hidden = hidden + attended
    return hidden + self.mlp(self.ln_2(hidden)), kv_cache


@BLOCK.where(
    "The normalised copy is carried on: attention reads self.ln_1(hidden), but its output is added "
    "to hidden as it was.",
)
def added_to_the_normalised(self: Any, hidden: Tensor, kv_cache: Any = None) -> Any:
    hidden = self.ln_1(hidden)
    attended, kv_cache = self.attn(hidden, kv_cache)
    hidden = hidden + attended
    return hidden + self.mlp(self.ln_2(hidden)), kv_cache


@BLOCK.where(
    "ln_1 is used twice: what the MLP reads is normalised by ln_2.",
)
def first_normalisation_twice(self: Any, hidden: Tensor, kv_cache: Any = None) -> Any:
    attended, kv_cache = self.attn(self.ln_1(hidden), kv_cache)
    hidden = hidden + attended
    return hidden + self.mlp(self.ln_1(hidden)), kv_cache


@BLOCK.where(
    "The cache of an earlier prompt is still there when the next one starts: keep nothing on self; "
    "what the block needs is handed to it, and None means a new text.",
)
def block_state_survives(self: Any, hidden: Tensor, kv_cache: Any = None) -> Any:
    attended, self.kept = self.attn(self.ln_1(hidden), getattr(self, "kept", None))
    hidden = hidden + attended
    return hidden + self.mlp(self.ln_2(hidden)), self.kept


# ------------------------------------------------------------------------- ThreadedModel.forward


@MODEL.where(
    "The positions start again at 0 in every call: use the position_ids that were handed in, for a "
    "new token stands behind the prefix.",
)
def positions_restart(self: Any, inputs: Ids, position_ids: Ids, kv_cache: Any = None) -> Any:
    position_ids = torch.arange(inputs.shape[1]).expand_as(inputs)
    return right.ThreadedModel.forward(self, inputs, position_ids, kv_cache)


@MODEL.where(
    "A token behind a prefix gets a position one too far: position_ids already says where it "
    "stands.",
)
def position_one_too_far(self: Any, inputs: Ids, position_ids: Ids, kv_cache: Any = None) -> Any:
    return right.ThreadedModel.forward(
        self, inputs, position_ids + (0 if kv_cache is None else 1), kv_cache
    )


@MODEL.where(
    "One cache goes through all layers: every layer has keys and values of its own, so layer i "
    "gets kv_cache[i] and its longer one goes to place i of the new list.",
)
def one_cache_for_all_layers(
    self: Any, inputs: Ids, position_ids: Ids, kv_cache: Any = None
) -> Any:
    hidden = self.embed(inputs, position_ids)
    shared = None if kv_cache is None else kv_cache[0]
    for block in self.h:
        hidden, shared = block(hidden, shared)
    return self.ln_f(hidden), [shared] * len(self.h)


@MODEL.where(
    "Every layer is handed the cache of layer 0: layer i needs kv_cache[i].",
)
def first_cache_for_every_layer(
    self: Any, inputs: Ids, position_ids: Ids, kv_cache: Any = None
) -> Any:
    first = None if kv_cache is None else [kv_cache[0]] * len(self.h)
    return right.ThreadedModel.forward(self, inputs, position_ids, first)


@MODEL.where(
    "The blocks never get the cache: hand layer i its own, block(hidden, kv_cache[i]).",
)
def model_cache_not_handed_down(
    self: Any, inputs: Ids, position_ids: Ids, kv_cache: Any = None
) -> Any:
    return right.ThreadedModel.forward(self, inputs, position_ids)


@MODEL.where(
    "The list comes back as it was handed in: return a new one with what every block gave back.",
)
def old_list_returned(self: Any, inputs: Ids, position_ids: Ids, kv_cache: Any = None) -> Any:
    hidden, new_cache = right.ThreadedModel.forward(self, inputs, position_ids, kv_cache)
    return hidden, new_cache if kv_cache is None else kv_cache


@MODEL.where(
    "The list that was handed in is changed in place: fill a new list, and leave the old one to "
    "whoever still needs it.",
)
def list_changed_in_place(self: Any, inputs: Ids, position_ids: Ids, kv_cache: Any = None) -> Any:
    kv_cache = [None] * len(self.h) if kv_cache is None else kv_cache
    hidden = self.embed(inputs, position_ids)
    for i, block in enumerate(self.h):
        hidden, kv_cache[i] = block(hidden, kv_cache[i])
    return self.ln_f(hidden), kv_cache


class ListAsDefault:
    """Makes models whose forward has one list as default value, made when the class was."""

    def __init__(self) -> None:
        self.default: list[Any] = []

    def __call__(self, config: GPTConfig) -> right.ThreadedModel:
        default = self.default

        class ThreadedModel(right.ThreadedModel):
            def forward(self, inputs: Ids, position_ids: Ids, kv_cache: Any = default) -> Any:
                kv_cache = [] if kv_cache is None else kv_cache
                before = list(kv_cache) or None
                hidden, kv_cache[:] = super().forward(inputs, position_ids, before)
                return hidden, list(kv_cache)

        return ThreadedModel(config)


MODEL.append(
    Misconception(
        "list_as_default",
        "A list as default value is made once and kept between calls, so the next prompt starts "
        "with the cache of the last: take None as default and make the list inside.",
        ListAsDefault(),
    )
)


@MODEL.where(
    "The cache of an earlier prompt is still there when the next one starts: keep nothing on self; "
    "what the model needs is handed to it, and None means a new text.",
)
def model_state_survives(self: Any, inputs: Ids, position_ids: Ids, kv_cache: Any = None) -> Any:
    kept = getattr(self, "kept", None)
    hidden, self.kept = right.ThreadedModel.forward(self, inputs, position_ids, kept)
    return hidden, self.kept


@MODEL.where(
    "The caches come back in reverse order: entry i belongs to layer i.",
)
def caches_in_reverse(self: Any, inputs: Ids, position_ids: Ids, kv_cache: Any = None) -> Any:
    handed = kv_cache and kv_cache[::-1]
    hidden, new_cache = right.ThreadedModel.forward(self, inputs, position_ids, handed)
    return hidden, new_cache[::-1]


@MODEL.where(
    "The last normalisation is missing: return self.ln_f(hidden), as gpt.py does.",
)
def no_last_normalisation(self: Any, inputs: Ids, position_ids: Ids, kv_cache: Any = None) -> Any:
    hidden = self.embed(inputs, position_ids)
    new_cache = []
    for block, layer_cache in zip(self.h, kv_cache or [None] * len(self.h), strict=True):
        hidden, layer_cache = block(hidden, layer_cache)
        new_cache.append(layer_cache)
    return hidden, new_cache


# ------------------------------------------------------------------------ ThreadedLMHead.forward


@LM_HEAD.where(
    "Only the last token's logits come back: return those of every new token, and let the loop "
    "pick the last row.",
)
def last_logits_only(self: Any, inputs: Ids, position_ids: Ids, kv_cache: Any = None) -> Any:
    hidden, kv_cache = self.transformer(inputs, position_ids, kv_cache)
    return hidden[:, -1:] @ self.transformer.wte.weight.T, kv_cache


@LM_HEAD.where(
    "The model never gets the cache: hand it down, "
    "self.transformer(inputs, position_ids, kv_cache).",
)
def head_cache_not_handed_down(
    self: Any, inputs: Ids, position_ids: Ids, kv_cache: Any = None
) -> Any:
    hidden, kv_cache = self.transformer(inputs, position_ids)
    return hidden @ self.transformer.wte.weight.T, kv_cache


@LM_HEAD.where(
    "The head returns the cache it was handed; the longer one is what the model gave back.",
)
def head_old_cache_returned(self: Any, inputs: Ids, position_ids: Ids, kv_cache: Any = None) -> Any:
    hidden, longer = self.transformer(inputs, position_ids, kv_cache)
    kv_cache = longer if kv_cache is None else kv_cache
    return hidden @ self.transformer.wte.weight.T, kv_cache


@LM_HEAD.where(
    "The positions start again at 0 in every call: hand on the position_ids that came in.",
)
def head_positions_restart(self: Any, inputs: Ids, position_ids: Ids, kv_cache: Any = None) -> Any:
    position_ids = torch.arange(inputs.shape[1]).expand_as(inputs)
    hidden, kv_cache = self.transformer(inputs, position_ids, kv_cache)
    return hidden @ self.transformer.wte.weight.T, kv_cache


@LM_HEAD.where(
    "These are probabilities: logits are the scores before any softmax.",
)
def probabilities(self: Any, inputs: Ids, position_ids: Ids, kv_cache: Any = None) -> Any:
    hidden, kv_cache = self.transformer(inputs, position_ids, kv_cache)
    return (hidden @ self.transformer.wte.weight.T).softmax(dim=-1), kv_cache


@LM_HEAD.where(
    "The hidden states come back as they are: multiply them by the token embeddings, "
    "transposed, to score the vocabulary.",
)
def hidden_states_returned(self: Any, inputs: Ids, position_ids: Ids, kv_cache: Any = None) -> Any:
    return self.transformer(inputs, position_ids, kv_cache)


@LM_HEAD.where(
    "The cache of an earlier prompt is still there when the next one starts: keep nothing on self; "
    "what the model needs is handed to it, and None means a new text.",
)
def head_state_survives(self: Any, inputs: Ids, position_ids: Ids, kv_cache: Any = None) -> Any:
    kept = getattr(self, "kept", None)
    hidden, self.kept = self.transformer(inputs, position_ids, kept)
    return hidden @ self.transformer.wte.weight.T, self.kept


@LM_HEAD.where(
    "Only the logits come back: return the cache beside them, or the next step has no prefix.",
)
def logits_alone(self: Any, inputs: Ids, position_ids: Ids, kv_cache: Any = None) -> Any:
    hidden, kv_cache = self.transformer(inputs, position_ids, kv_cache)
    return hidden @ self.transformer.wte.weight.T


# ----------------------------------------------------------------------------- generate_threaded


def loop(
    model,
    input_ids,
    max_new_tokens,
    eos_token_id,
    *,
    kv_cache=None,
    from_prompt=lambda past: past,
    in_decode=lambda positions: positions,
    kept_cache=lambda old, new: new,
    choose=lambda logits: logits[:, -1].argmax(dim=-1, keepdim=True),
    is_eos=lambda next_ids, eos: eos is not None and next_ids.item() == eos,
    full=True,
):
    """The right loop, with one place to go wrong for each of the mistakes below."""
    require_prompt(model, input_ids, max_new_tokens, eos_token_id)
    ids, computed = input_ids, 0
    room = model.config.n_positions - ids.shape[1] if full else max_new_tokens
    for _ in range(min(max_new_tokens, room)):
        new_ids = ids[:, from_prompt(computed) :]
        positions = torch.arange(from_prompt(computed), ids.shape[1]).expand_as(new_ids)
        positions = in_decode(positions) if computed else positions
        logits, new_cache = model(new_ids, positions, kv_cache)
        kv_cache, computed = kept_cache(kv_cache, new_cache), ids.shape[1]
        next_ids = choose(logits)
        ids = torch.cat([ids, next_ids], dim=1)
        if is_eos(next_ids, eos_token_id):
            break
    return ids


@GENERATE.where(
    "The positions start again at 0 in decode: the new token stands behind all those computed "
    "before it, so its position is their number.",
)
def decode_positions_restart(
    model: Any, input_ids: Ids, max_new_tokens: int, eos_token_id: int | None = None
) -> Ids:
    return loop(model, input_ids, max_new_tokens, eos_token_id, in_decode=torch.zeros_like)


@GENERATE.where(
    "In decode the new token gets a position one too far: the first token stands at 0, so the one "
    "behind n others stands at n.",
)
def decode_position_one_too_far(
    model: Any, input_ids: Ids, max_new_tokens: int, eos_token_id: int | None = None
) -> Ids:
    last = model.config.n_positions - 1
    return loop(
        model,
        input_ids,
        max_new_tokens,
        eos_token_id,
        in_decode=lambda positions: (positions + 1).clamp(max=last),
    )


@GENERATE.where(
    "In decode the new token gets the position of the one before it: it stands one further.",
)
def decode_position_one_too_low(
    model: Any, input_ids: Ids, max_new_tokens: int, eos_token_id: int | None = None
) -> Ids:
    return loop(model, input_ids, max_new_tokens, eos_token_id, in_decode=lambda p: p - 1)


@GENERATE.where(
    "The prefix is computed again at every step: hand the cache back to the model, and only the "
    "newest token with it.",
)
def prefix_recomputed(
    model: Any, input_ids: Ids, max_new_tokens: int, eos_token_id: int | None = None
) -> Ids:
    return loop(
        model,
        input_ids,
        max_new_tokens,
        eos_token_id,
        from_prompt=lambda past: 0,
        kept_cache=lambda old, new: None,
    )


@GENERATE.where(
    "The whole sequence goes in although the cache holds its prefix, which is then there twice: in "
    "decode hand over the newest token only.",
)
def prefix_handed_over_twice(
    model: Any, input_ids: Ids, max_new_tokens: int, eos_token_id: int | None = None
) -> Ids:
    return loop(model, input_ids, max_new_tokens, eos_token_id, from_prompt=lambda past: 0)


@GENERATE.where(
    "Only the newest token goes in, but the cache doesn't: without it the model sees one token and "
    "has forgotten the text.",
)
def cache_not_handed_back(
    model: Any, input_ids: Ids, max_new_tokens: int, eos_token_id: int | None = None
) -> Ids:
    return loop(model, input_ids, max_new_tokens, eos_token_id, kept_cache=lambda old, new: None)


@GENERATE.where(
    "Every decode step gets the cache of the prefill: each step returns a longer one, and the next "
    "step needs that.",
)
def prefill_cache_for_ever(
    model: Any, input_ids: Ids, max_new_tokens: int, eos_token_id: int | None = None
) -> Ids:
    return loop(
        model, input_ids, max_new_tokens, eos_token_id, kept_cache=lambda old, new: old or new
    )


@GENERATE.where(
    "It generates one token too many: the prefill gives the first new token already, so only "
    "max_new_tokens - 1 decode steps follow.",
)
def one_token_too_many(
    model: Any, input_ids: Ids, max_new_tokens: int, eos_token_id: int | None = None
) -> Ids:
    return loop(model, input_ids, max_new_tokens + 1, eos_token_id)


@GENERATE.where(
    "It generates one token too few: count the one that the prefill gives, and no other twice.",
)
def one_token_too_few(
    model: Any, input_ids: Ids, max_new_tokens: int, eos_token_id: int | None = None
) -> Ids:
    return loop(model, input_ids, max(max_new_tokens - 1, 0), eos_token_id)


@GENERATE.where(
    "It goes on after the EOS token: stop as soon as the newest token is eos_token_id.",
)
def eos_ignored(
    model: Any, input_ids: Ids, max_new_tokens: int, eos_token_id: int | None = None
) -> Ids:
    return loop(model, input_ids, max_new_tokens, None)


@GENERATE.where(
    "The EOS token stands there twice: it has been appended by the time that the loop ends.",
)
def eos_appended_twice(
    model: Any, input_ids: Ids, max_new_tokens: int, eos_token_id: int | None = None
) -> Ids:
    ids = loop(model, input_ids, max_new_tokens, eos_token_id)
    ended = eos_token_id is not None and ids.shape[1] > input_ids.shape[1]
    ended = ended and ids[0, -1].item() == eos_token_id
    return torch.cat([ids, ids[:, -1:]], dim=1) if ended else ids


@GENERATE.where(
    "The EOS token is missing from the end: append it, then stop.",
)
def eos_dropped(
    model: Any, input_ids: Ids, max_new_tokens: int, eos_token_id: int | None = None
) -> Ids:
    ids = loop(model, input_ids, max_new_tokens, eos_token_id)
    ended = eos_token_id is not None and ids.shape[1] > input_ids.shape[1]
    return ids[:, :-1] if ended and ids[0, -1].item() == eos_token_id else ids


@GENERATE.where(
    "It looks for EOS only from the second new token on: the one that the prefill gives may be EOS "
    "already.",
)
def eos_of_the_prefill_missed(
    model: Any, input_ids: Ids, max_new_tokens: int, eos_token_id: int | None = None
) -> Ids:
    new = 0

    def is_eos(next_ids, eos):
        nonlocal new
        new += 1
        return eos is not None and new > 1 and next_ids.item() == eos

    return loop(model, input_ids, max_new_tokens, eos_token_id, is_eos=is_eos)


@GENERATE.where(
    "Token 0 is never taken for EOS: ask `eos_token_id is not None`, for 0 counts as false.",
)
def eos_zero_is_none(
    model: Any, input_ids: Ids, max_new_tokens: int, eos_token_id: int | None = None
) -> Ids:
    return loop(model, input_ids, max_new_tokens, eos_token_id or None)


@GENERATE.where(
    "An EOS token in the prompt ends it at once: look at the newest token only.",
)
def eos_in_the_prompt(
    model: Any, input_ids: Ids, max_new_tokens: int, eos_token_id: int | None = None
) -> Ids:
    if eos_token_id is not None and (input_ids == eos_token_id).any():
        return loop(model, input_ids, min(max_new_tokens, 1), eos_token_id)
    return loop(model, input_ids, max_new_tokens, eos_token_id)


@GENERATE.where(
    "The caller's prompt has changed: new tokens are written into input_ids itself; build a new "
    "tensor with torch.cat.",
)
def prompt_changed_in_place(
    model: Any, input_ids: Ids, max_new_tokens: int, eos_token_id: int | None = None
) -> Ids:
    ids = loop(model, input_ids, max_new_tokens, eos_token_id)
    if ids.shape[1] > input_ids.shape[1]:
        input_ids[:, -1:] = ids[:, -1:]
    return ids


class CacheSurvives:
    def __init__(self) -> None:
        self.kept: Any = None

    def __call__(
        self, model: Any, input_ids: Ids, max_new_tokens: int, eos_token_id: int | None = None
    ) -> Ids:
        def keep(old: Any, new: Any) -> Any:
            self.kept = new
            return new

        return loop(
            model, input_ids, max_new_tokens, eos_token_id, kv_cache=self.kept, kept_cache=keep
        )


GENERATE.append(
    Misconception(
        "cache_survives_into_next_prompt",
        "The cache of an earlier prompt is still there when the next one starts: begin every call "
        "with None, and keep no cache outside the function or on a default argument.",
        CacheSurvives(),
    )
)


@GENERATE.where(
    "It goes on when the context is full: the sequence can't grow beyond config.n_positions.",
)
def context_overrun(
    model: Any, input_ids: Ids, max_new_tokens: int, eos_token_id: int | None = None
) -> Ids:
    return loop(model, input_ids, max_new_tokens, eos_token_id, full=False)


@GENERATE.where(
    "The prompt is missing from the result: return it with the new tokens behind it.",
)
def new_tokens_only(
    model: Any, input_ids: Ids, max_new_tokens: int, eos_token_id: int | None = None
) -> Ids:
    ids = loop(model, input_ids, max_new_tokens, eos_token_id)
    return ids[:, input_ids.shape[1] :]


@GENERATE.where(
    "Every row gets the token of row 0: take the best token of each row, argmax(dim=-1).",
)
def first_row_for_the_batch(
    model: Any, input_ids: Ids, max_new_tokens: int, eos_token_id: int | None = None
) -> Ids:
    def choose(logits):
        return logits[:1, -1].argmax(dim=-1, keepdim=True).expand(len(logits), 1)

    return loop(model, input_ids, max_new_tokens, eos_token_id, choose=choose)


@GENERATE.where(
    "The new token is read from the first row of the logits: the last row belongs to the last "
    "token, and that is the one to continue.",
)
def first_logits(
    model: Any, input_ids: Ids, max_new_tokens: int, eos_token_id: int | None = None
) -> Ids:
    def choose(logits):
        return logits[:, 0].argmax(dim=-1, keepdim=True)

    return loop(model, input_ids, max_new_tokens, eos_token_id, choose=choose)


@GENERATE.where(
    "The tokens are right, but the last one goes through the model too, and nothing reads what "
    "comes back: n new tokens take n forward calls, the prefill among them.",
)
def last_token_computed_for_nothing(
    model: Any, input_ids: Ids, max_new_tokens: int, eos_token_id: int | None = None
) -> Ids:
    def compute(kv_cache: Any, ids: Ids) -> Any:
        computed = 0 if kv_cache is None else kv_cache[0][0].shape[2]
        positions = torch.arange(computed, ids.shape[1]).expand_as(ids[:, computed:])
        return model(ids[:, computed:], positions, kv_cache)

    ids = input_ids
    logits, kv_cache = compute(None, ids)
    for _ in range(min(max_new_tokens, model.config.n_positions - ids.shape[1])):
        next_ids = logits[:, -1].argmax(dim=-1, keepdim=True)
        ids = torch.cat([ids, next_ids], dim=1)
        if eos_token_id is not None and next_ids.item() == eos_token_id:
            break
        logits, kv_cache = compute(kv_cache, ids)
    return ids


@GENERATE.where(
    "The tokens are right, but the prompt goes through the model one token at a time: a prefill "
    "computes all of it in one forward.",
)
def prompt_one_token_at_a_time(
    model: Any, input_ids: Ids, max_new_tokens: int, eos_token_id: int | None = None
) -> Ids:
    kv_cache = None
    ids = loop(model, input_ids[:, :1], 0, None)
    for position in range(input_ids.shape[1] - 1 if max_new_tokens else 0):
        where = torch.full_like(ids[:, :1], position)
        _, kv_cache = model(input_ids[:, position : position + 1], where, kv_cache)
    past = input_ids.shape[1] - 1
    return loop(
        model,
        input_ids,
        max_new_tokens,
        eos_token_id,
        kv_cache=kv_cache,
        from_prompt=lambda computed: computed or past,
    )


# ---------------------------------------------------------------------------- kv_bytes_per_token


@BYTES.where(
    "This counts keys or values, but not both: a token leaves a key and a value in every layer.",
)
def keys_only(config: GPTConfig, bytes_per_number: int = 4) -> int:
    return config.n_layer * config.n_embd * bytes_per_number


@BYTES.where(
    "This is one layer's share: every layer keeps keys and values of its own.",
)
def one_layer(config: GPTConfig, bytes_per_number: int = 4) -> int:
    return 2 * config.n_embd * bytes_per_number


@BYTES.where(
    "This is one head's share: a layer has n_head heads of head_dim numbers, n_embd in all.",
)
def one_head(config: GPTConfig, bytes_per_number: int = 4) -> int:
    return 2 * config.n_layer * config.head_dim * bytes_per_number


@BYTES.where(
    "n_embd is counted for every head: the heads share it, n_head * head_dim = n_embd.",
)
def width_for_every_head(config: GPTConfig, bytes_per_number: int = 4) -> int:
    return 2 * config.n_layer * config.n_head * config.n_embd * bytes_per_number


@BYTES.where(
    "This is the number of numbers: each takes bytes_per_number bytes.",
)
def numbers_not_bytes(config: GPTConfig, bytes_per_number: int = 4) -> int:
    return 2 * config.n_layer * config.n_embd


@BYTES.where(
    "bytes_per_number is ignored: 4 is float32, and a model in 16 bits has 2.",
)
def always_four(config: GPTConfig, bytes_per_number: int = 4) -> int:
    return 2 * config.n_layer * config.n_embd * 4


@BYTES.where(
    "This is a whole context's worth: asked for is one token's.",
)
def whole_context(config: GPTConfig, bytes_per_number: int = 4) -> int:
    return 2 * config.n_layer * config.n_embd * bytes_per_number * config.n_positions


@BYTES.where(
    "This counts queries too: the cache keeps keys and values, for nobody asks for an old query.",
)
def queries_too(config: GPTConfig, bytes_per_number: int = 4) -> int:
    return 3 * config.n_layer * config.n_embd * bytes_per_number


# -------------------------------------------------------------------------------- KVCache.attend


def store_and_attend(
    cache,
    layer,
    queries,
    keys,
    values,
    *,
    put=lambda start: start,
    into=lambda layer: layer,
    read_from=lambda start: 0,
    read_to=lambda cache, end: end,
    mask=lambda start, end, read: right.causal_mask(
        torch.arange(start, end)[None], torch.arange(*read)[None]
    ),
    grow=lambda cache, layer, end: end if layer == len(cache.keys) - 1 else cache.length,
):
    """The right attend, with one place to go wrong for each of the mistakes below."""
    q_len = queries.shape[2]
    start, end = cache.length, cache.length + q_len
    if end > cache.max_length:
        raise ValueError("The cache has no room for these tokens.")
    at = put(start)
    cache.keys[into(layer), :, :, at : at + q_len] = keys
    cache.values[into(layer), :, :, at : at + q_len] = values
    read = read_from(start), read_to(cache, end)
    visible = mask(start, end, read)
    cache.length = grow(cache, layer, end)
    keys = cache.keys[into(layer), :, :, slice(*read)]
    values = cache.values[into(layer), :, :, slice(*read)]
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=visible)


@ATTEND.where(
    "length grows at every layer, so the second layer of the same forward writes behind the first: "
    "let it grow when the last layer has been served.",
)
def length_grows_at_every_layer(
    self: Any, layer: int, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    return store_and_attend(self, layer, queries, keys, values, grow=lambda cache, layer, end: end)


@ATTEND.where(
    "length grows at layer 0, so the layers after it write one forward too far: let it grow when "
    "the last layer has been served.",
)
def length_grows_at_the_first_layer(
    self: Any, layer: int, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    def grow(cache, layer, end):
        return end if layer == 0 else cache.length

    return store_and_attend(self, layer, queries, keys, values, grow=grow)


@ATTEND.where(
    "length never grows, so every forward overwrites the first tokens: after the last layer it "
    "becomes end.",
)
def length_never_grows(
    self: Any, layer: int, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    return store_and_attend(
        self, layer, queries, keys, values, grow=lambda cache, layer, end: cache.length
    )


@ATTEND.where(
    "length grows by 1 whatever comes in: it grows by q_len, all the tokens that were stored.",
)
def length_grows_by_one(
    self: Any, layer: int, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    def grow(cache, layer, end):
        return cache.length + 1 if layer == len(cache.keys) - 1 else cache.length

    return store_and_attend(self, layer, queries, keys, values, grow=grow)


@ATTEND.where(
    "Every layer writes to layer 0, and so overwrites the one before it: layer i's keys and values "
    "belong at self.keys[i] and self.values[i].",
)
def one_layer_for_all(
    self: Any, layer: int, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    return store_and_attend(self, layer, queries, keys, values, into=lambda layer: 0)


@ATTEND.where(
    "The values in the cache are keys: self.values holds the values, which attention sums up.",
)
def values_are_keys(self: Any, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return store_and_attend(self, layer, queries, keys, keys)


@ATTEND.where(
    "New tokens are always stored at the front, over the prefix: they belong from start to end.",
)
def stored_at_the_front(
    self: Any, layer: int, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    return store_and_attend(self, layer, queries, keys, values, put=lambda start: 0)


@ATTEND.where(
    "All of the reserved memory is read: what lies beyond end is no token (zeros, or what was "
    "truncated), and yet it gets a share of the attention.",
)
def reads_reserved_memory(
    self: Any, layer: int, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    def mask(start, end, read):
        visible = right.causal_mask(torch.arange(start, end)[None], torch.arange(*read)[None])
        visible[..., end:] = True
        return visible

    return store_and_attend(
        self,
        layer,
        queries,
        keys,
        values,
        read_to=lambda cache, end: cache.max_length,
        mask=mask,
    )


@ATTEND.where(
    "There is no mask: in prefill and in a chunk every token sees those after it.",
)
def attend_without_mask(
    self: Any, layer: int, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    return store_and_attend(self, layer, queries, keys, values, mask=lambda start, end, read: None)


@ATTEND.where(
    "There is no mask once the cache holds a prefix: that is right for one new token, but in a "
    "chunk of several the first ones see those after them.",
)
def attend_without_mask_behind_a_prefix(
    self: Any, layer: int, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    def mask(start, end, read):
        return None if start else torch.ones(end, end, dtype=torch.bool).tril()

    return store_and_attend(self, layer, queries, keys, values, mask=mask)


@ATTEND.where(
    "is_causal=True lays its triangle at the first key: with a prefix in the cache (q_len < k_len) "
    "a new token sees the start of the text and not itself. Hand over causal_mask instead.",
)
def attend_with_is_causal(
    self: Any, layer: int, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    def mask(start, end, read):
        return torch.ones(end - start, end, dtype=torch.bool).tril()

    return store_and_attend(self, layer, queries, keys, values, mask=mask)


@ATTEND.where(
    "The prefix is stored but not read: attend to everything from 0 to end, not to the new tokens "
    "alone.",
)
def reads_new_tokens_only(
    self: Any, layer: int, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    return store_and_attend(self, layer, queries, keys, values, read_from=lambda start: start)


@ATTEND.where(
    "Attention comes before the new tokens are stored, so they can't see themselves: store first, "
    "then attend.",
)
def attends_before_storing(
    self: Any, layer: int, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    stored = self.keys.clone(), self.values.clone()
    output = store_and_attend(
        self, layer, queries, torch.zeros_like(keys), torch.zeros_like(values)
    )
    self.keys, self.values = stored
    end = self.length if layer == len(self.keys) - 1 else self.length + queries.shape[2]
    self.keys[layer, :, :, end - queries.shape[2] : end] = keys
    self.values[layer, :, :, end - queries.shape[2] : end] = values
    return output


@ATTEND.where(
    "Only row 0 of the batch is stored: keep the batch dimension whole, self.keys[layer, :, :, "
    "start:end].",
)
def first_row_stored(
    self: Any, layer: int, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    return store_and_attend(
        self, layer, queries, keys[:1].expand_as(keys), values[:1].expand_as(values)
    )


# ------------------------------------------------------------------------------ KVCache.truncate


def refuse(cache, n) -> None:
    if not 0 <= n <= cache.length:
        raise ValueError(f"The cache cannot keep {n} tokens.")


@TRUNCATE.where(
    "It drops n tokens: asked for is to keep n, so that length becomes n.",
)
def drops_n(self: Any, n: int) -> None:
    refuse(self, n)
    self.length = self.length - n


@TRUNCATE.where(
    "It keeps one token too few: the first n tokens are those at positions 0 to n - 1.",
)
def one_too_few(self: Any, n: int) -> None:
    refuse(self, n)
    self.length = max(n - 1, 0)


@TRUNCATE.where(
    "It keeps one token too many: the first n tokens are those at positions 0 to n - 1.",
)
def one_too_many(self: Any, n: int) -> None:
    refuse(self, n)
    self.length = min(n + 1, self.length)


@TRUNCATE.where(
    "It keeps the last n tokens: what is rolled back is the end of the text, so the first n stay.",
)
def keeps_the_last(self: Any, n: int) -> None:
    refuse(self, n)
    start = self.length - n
    self.keys[:, :, :, :n] = self.keys[:, :, :, start : self.length].clone()
    self.values[:, :, :, :n] = self.values[:, :, :, start : self.length].clone()
    self.length = n


@TRUNCATE.where(
    "The tokens are overwritten with zeros, but length stays, so the zeros still count as tokens: "
    "setting length is all it takes.",
)
def zeroes_without_length(self: Any, n: int) -> None:
    refuse(self, n)
    self.keys[:, :, :, n:], self.values[:, :, :, n:] = 0, 0


@TRUNCATE.where(
    "The reserved memory is cut off along with the tokens, so nothing can be appended afterwards: "
    "leave keys and values whole and set length.",
)
def cuts_the_memory(self: Any, n: int) -> None:
    refuse(self, n)
    self.keys, self.values = self.keys[:, :, :, :n], self.values[:, :, :, :n]
    self.length = n


@TRUNCATE.where(
    "It takes any n: more tokens than the cache holds, or fewer than none, must be refused with a "
    "ValueError.",
)
def refuses_nothing(self: Any, n: int) -> None:
    self.length = n


@TRUNCATE.where(
    "A negative n goes through: only 0 to length can be kept, so refuse it with a ValueError.",
)
def negative_accepted(self: Any, n: int) -> None:
    if n > self.length:
        raise ValueError(f"The cache cannot keep {n} tokens.")
    self.length = n


@TRUNCATE.where(
    "It compares n with the memory reserved: what the cache holds is length, and no more than that "
    "can be kept.",
)
def compares_with_reserved(self: Any, n: int) -> None:
    if not 0 <= n <= self.max_length:
        raise ValueError(f"The cache cannot keep {n} tokens.")
    self.length = n


@TRUNCATE.where(
    "An n beyond length is quietly taken for length: refuse it with a ValueError, for whoever asks "
    "has lost count.",
)
def clamped(self: Any, n: int) -> None:
    self.length = max(0, min(n, self.length))


@TRUNCATE.where(
    "It refuses to keep all tokens: n may be equal to length.",
)
def all_refused(self: Any, n: int) -> None:
    if not 0 <= n < self.length:
        raise ValueError(f"The cache cannot keep {n} tokens.")
    self.length = n


@TRUNCATE.where(
    "It refuses to keep none: n = 0 empties the cache.",
)
def none_refused(self: Any, n: int) -> None:
    if not 0 < n <= self.length:
        raise ValueError(f"The cache cannot keep {n} tokens.")
    self.length = n
