"""Instead of lab 3's SlotCache: a cache of lab 2 for every slot, served one by one."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from autograder.judging.draws import LOOP
from autograder.judging.exercise import Lends, Service
from autograder.lending.cached import lend_cached_model
from autograder.lending.lent import Lent
from solutions.kv_cache import KVCache


class CachePerSlot(Lent):
    """lengths: of the texts in the slots; max_length: of each slot. Both as in a SlotCache."""

    lends = Lends(read={"lengths", "max_length"}, call={"select", "attend", "free"})

    def __init__(self, slots: int, max_length: int) -> None:
        self.max_length = max_length
        self.caches = [KVCache(LOOP, 1, max_length, dtype=torch.float64) for _ in range(slots)]
        self.lengths = torch.zeros(slots, dtype=torch.int64)
        self.served: list[int] = []

    def select(self, slots: Sequence[int], q_len: int) -> Int[Tensor, "rows q_len"]:
        self.served = list(slots)
        for slot in self.served:
            self.caches[slot].length = int(self.lengths[slot])
        starts = [self.caches[slot].length for slot in self.served]
        return torch.tensor([list(range(start, start + q_len)) for start in starts])

    def attend(
        self, layer: int, *projected: Float[Tensor, "rows heads q_len head_dim"]
    ) -> Float[Tensor, "rows heads q_len head_dim"]:
        rows = []
        for slot, *row in zip(self.served, *(part.split(1) for part in projected), strict=True):
            rows.append(self.caches[slot].attend(layer, *row))
            self.lengths[slot] = self.caches[slot].length
        return torch.cat(rows)

    def free(self, slot: int) -> None:
        self.lengths[slot] = 0


def lend_model_and_caches(data: Mapping[str, Any]) -> dict[str, Service]:
    return {**lend_cached_model(data), "kv_cache": CachePerSlot(data["slots"], data["max_length"])}
