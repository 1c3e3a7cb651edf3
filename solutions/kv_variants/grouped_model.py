"""Lab 11, given: a model whose queries share fewer heads of keys and values.

Only attention's first layer is another one: it makes n_head queries, and kv_heads keys and values.
Whatever cache stands behind the seam of lab 2 then holds kv_heads.

Source: Ainslie et al., "GQA: Training generalized multi-query transformer models from multi-head
checkpoints", EMNLP 2023.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from gpt import Linear
from solutions.batching import require_selected
from solutions.kv_cache import CachedAttention, CachedLMHead
from solutions.paged_attention import PagedCache

# (weight, bias, n_head, kv_heads) of c_attn, and what comes of weight and bias
Pool = Callable[[Tensor, Tensor, int, int], tuple[Tensor, Tensor]]


class GroupedAttention(CachedAttention):
    """Attention whose cache is handed n_head queries, and kv_heads keys and values."""

    def __init__(self, attention: Any, kv_heads: int, pool_heads: Pool) -> None:
        nn.Module.__init__(self)
        self.idx, self.kv_heads = attention.idx, kv_heads
        self.n_head, self.head_dim = attention.n_head, attention.head_dim
        old = attention.c_attn
        weight, bias = pool_heads(old.weight.detach(), old.bias.detach(), self.n_head, kv_heads)
        self.c_attn, self.c_proj = Linear(*weight.shape), attention.c_proj
        trained = old.weight.requires_grad
        self.c_attn.weight = nn.Parameter(weight, trained)
        self.c_attn.bias = nn.Parameter(bias, trained)

    def split_heads(
        self, projected: Float[Tensor, "batch seq columns"]
    ) -> tuple[Float[Tensor, "batch heads_of_each seq head_dim"], ...]:
        """n_head queries, kv_heads keys and as many values."""
        heads = projected.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        return heads.split([self.n_head, self.kv_heads, self.kv_heads], dim=1)


def grouped(model: CachedLMHead, kv_heads: int, pool_heads: Pool) -> CachedLMHead:
    """A copy of a model with `kv_heads` heads of keys and values, made by `pool_heads`.

    The caches of lab 11 serve it; lab 2's own has as many heads of keys as of queries, and can't.
    """
    grouped_model = copy.deepcopy(model)
    blocks: Any = grouped_model.transformer.h
    for block in blocks:
        block.attn = GroupedAttention(block.attn, kv_heads, pool_heads)
    return grouped_model


def store_new(
    cache: PagedCache,
    layer: int,
    queries: Float[Tensor, "rows heads q_len head_dim"],
    keys: Float[Tensor, "rows kv_heads q_len head_dim"],
    values: Float[Tensor, "rows kv_heads q_len head_dim"],
) -> Float[Tensor, "2 slots kv_heads head_dim"]:
    """Write the new tokens to their slots, as lab 4's `attend` does first.

    What comes back is the pool of the layer, a view: it stays the same memory.
    """
    cache.selected = require_selected(cache.selected, layer, queries)
    stored = cache.pool[:, layer].flatten(1, 2)
    stored[0, cache.new_slots] = keys.transpose(1, 2)
    stored[1, cache.new_slots] = values.transpose(1, 2)
    return stored


def grouped_pages(kv_heads: int, attention: Callable[..., Tensor]) -> type[PagedCache]:
    """Lab 4's cache for such a model, as a part of lab 7's engine: its pool has `kv_heads` heads.

    attention: of queries, keys, values and a mask, `grouped_attention`.
    """

    class GroupedPages(PagedCache):
        def __init__(self, config: Any, *others: Any) -> None:
            n_embd = kv_heads * config.head_dim
            super().__init__(replace(config, n_head=kv_heads, n_embd=n_embd), *others)

        def attend(
            self,
            layer: int,
            queries: Float[Tensor, "rows heads q_len head_dim"],
            keys: Float[Tensor, "rows kv_heads q_len head_dim"],
            values: Float[Tensor, "rows kv_heads q_len head_dim"],
        ) -> Float[Tensor, "rows heads q_len head_dim"]:
            stored = store_new(self, layer, queries, keys, values)
            all_keys, all_values = stored[:, self.all_slots].transpose(2, 3)
            return attention(queries, all_keys, all_values, self.mask)

    return GroupedPages
