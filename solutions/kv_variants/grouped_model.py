"""Lab 11, given: a model with fewer KV heads than query heads.

Only `c_attn` differs: it computes n_head heads of queries, but only kv_heads of keys and of values.
Any cache with the interface of lab 2 that accepts this then holds kv_heads heads.

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

# From (weight, bias, n_head, kv_heads) of c_attn to the new weight and bias
Pool = Callable[[Tensor, Tensor, int, int], tuple[Tensor, Tensor]]


class GroupedAttention(CachedAttention):
    """Attention that gives its cache n_head heads of queries and kv_heads of keys and values."""

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
        """Split into n_head heads of queries, kv_heads of keys and kv_heads of values."""
        heads = projected.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        return heads.split([self.n_head, self.kv_heads, self.kv_heads], dim=1)


def grouped(model: CachedLMHead, kv_heads: int, pool_heads: Pool) -> CachedLMHead:
    """Return a copy of a model with `kv_heads` KV heads, converted by `pool_heads`.

    The caches of lab 11 work with it. Lab 2's own cache doesn't: it has one KV head per query head.
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
    """Write the new tokens to their slots, as the first step of lab 4's `attend` does.

    Return the pool of this layer, as a view of the same memory.
    """
    cache.selected = require_selected(cache.selected, layer, queries)
    stored = cache.pool[:, layer].flatten(1, 2)
    stored[0, cache.new_slots] = keys.transpose(1, 2)
    stored[1, cache.new_slots] = values.transpose(1, 2)
    return stored


def grouped_pages(kv_heads: int, attention: Callable[..., Tensor]) -> type[PagedCache]:
    """Return lab 4's cache for a grouped model in lab 7's engine: its pool has `kv_heads` heads.

    attention: `grouped_attention`, called with queries, keys, values and a mask.
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
