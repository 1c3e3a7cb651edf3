"""Lab 22, given: a decode step whose operations have the same shapes and memory each time.

Lab 7's runner cuts keys and values to the longest text of a step, so shapes grow with the texts. A
graph can't: this step attends to all slots of the tables, and hides those after each row's token.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from solutions.engine.runner import Runner


class FixedCache:
    """Serves a row per request, whose blocks are read from the tables while the step runs."""

    def __init__(self, pool: Float[Tensor, "2 layers blocks block_size heads head_dim"]) -> None:
        self.pool, self.block_size = pool, pool.shape[3]

    def select(self, positions: Int[Tensor, " rows"], tables: Int[Tensor, "rows width"]) -> None:
        """Prepare a pass: where each row's token goes, and where the tokens that it sees are."""
        block = tables.gather(1, positions[:, None] // self.block_size)[:, 0]
        self.new_slots = block * self.block_size + positions % self.block_size
        places = torch.arange(self.block_size, device=tables.device)
        self.slots = (tables[:, :, None] * self.block_size + places).flatten()
        every = torch.arange(self.slots.numel() // len(tables), device=tables.device)
        hidden = torch.zeros(len(tables), 1, 1, len(every), device=tables.device)
        self.mask = hidden.masked_fill(every > positions[:, None, None, None], -torch.inf)

    def attend(
        self, layer: int, *packed: Float[Tensor, "1 heads rows head_dim"]
    ) -> Float[Tensor, "1 heads rows head_dim"]:
        queries, *new = (part[0].transpose(0, 1) for part in packed)  # [rows, heads, head_dim]
        seen = []
        for stored, part in zip(self.pool[:, layer].flatten(1, 2), new, strict=True):
            stored.index_copy_(0, self.new_slots, part)
            slots = stored.index_select(0, self.slots).unflatten(0, (len(queries), -1))
            seen.append(slots.transpose(1, 2))
        keys, values = seen
        mask = self.mask.to(queries.dtype)
        found = F.scaled_dot_product_attention(
            queries[:, :, None], keys, values, mask, enable_gqa=True
        )
        return found.transpose(0, 2)


def step_of(runner: Runner) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return a runner's step: from ids, positions and tables to the last hidden states."""
    cache: Any = FixedCache(runner.kv_cache.cache.pool)

    @torch.inference_mode()
    def step(
        ids: Int[Tensor, " rows"],
        positions: Int[Tensor, " rows"],
        tables: Int[Tensor, "rows width"],
    ) -> Float[Tensor, "rows n_embd"]:
        cache.select(positions, tables)
        return runner.transformer(ids[None], positions[None], cache)[0]

    return step
