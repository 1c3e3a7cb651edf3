"""Lab 11, given: a cache that keeps all rows and hides some of them by a rule.

It saves no memory. It serves to test an eviction rule before you build a cache for it, and to check
such a cache: under the same rule, both must compute the same numbers.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

# From the positions of queries and keys to a mask: True where a query sees a key.
Rule = Callable[[Int[Tensor, "1 q_len"], Int[Tensor, "1 k_len"]], Bool[Tensor, "1 1 q_len k_len"]]


class MaskedCache:
    """A cache that keeps all rows. rule: which keys a query sees; its own must be one of them.

    Several query heads may share one KV head.
    """

    def __init__(self, n_layer: int, rule: Rule) -> None:
        self.rule, self.length = rule, 0
        self.held: list[Any] = [None] * n_layer  # [2, batch, kv_heads, rows, head_dim]

    def attend(
        self,
        layer: int,
        queries: Float[Tensor, "batch heads q_len head_dim"],
        keys: Float[Tensor, "batch kv_heads q_len head_dim"],
        values: Float[Tensor, "batch kv_heads q_len head_dim"],
    ) -> Float[Tensor, "batch heads q_len head_dim"]:
        new, held = torch.stack([keys, values]), self.held[layer]
        self.held[layer] = new if held is None else torch.cat([held, new], dim=3)
        end = self.length + queries.shape[2]
        positions = torch.arange(end, device=queries.device).unsqueeze(0)
        mask = self.rule(positions[:, self.length :], positions)
        if layer == len(self.held) - 1:
            self.length = end
        all_keys, all_values = self.held[layer]
        return F.scaled_dot_product_attention(
            queries, all_keys, all_values, attn_mask=mask, enable_gqa=True
        )


def last_and(window: int, *chosen: int) -> Rule:
    """Return a rule: a query sees the last `window` keys, its own included, and the chosen ones.

    chosen: positions in the text; a query sees those that don't come after it.
    """

    def rule(queries: Tensor, keys: Tensor) -> Tensor:
        distance = queries[:, None, :, None] - keys[:, None, None, :]
        is_chosen = torch.isin(keys, torch.tensor(chosen, device=keys.device))[:, None, None, :]
        return (distance >= 0) & ((distance < window) | is_chosen)

    return rule
