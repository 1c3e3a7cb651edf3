"""Instead of lab 2's ThreadedLMHead: a model that is called like it and has no cache."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from autograder.judging.exercise import Service
from autograder.lending.naive import lend_model
from gpt import GPTLMHead

Pair = tuple[
    Float[Tensor, "batch heads length head_dim"], Float[Tensor, "batch heads length head_dim"]
]


class RecomputingLMHead(GPTLMHead):
    """Recompute every token in every forward.

    It returns something in the form of a cache: the tokens' ids instead of keys and their positions
    instead of values, so that a loop that drops, mixes or repeats tokens gets other logits.
    """

    def forward(  # type: ignore[override]
        self,
        inputs: Int[Tensor, "batch q_len"],
        position_ids: Int[Tensor, "batch q_len"],
        kv_cache: Sequence[Pair] | None = None,
    ) -> tuple[Float[Tensor, "batch q_len vocab"], list[Pair]]:
        empty = self.written(inputs[:, :0])
        before = [(empty, empty)] * self.config.n_layer if kv_cache is None else kv_cache
        if len(before) != self.config.n_layer:
            raise ValueError(
                f"The cache has {len(before)} layers; the model {self.config.n_layer}."
            )
        ids, positions = self.written(inputs), self.written(position_ids)
        after = [(torch.cat([i, ids], 2), torch.cat([p, positions], 2)) for i, p in before]
        logits = super().forward(*(read(part) for part in zip(*after, strict=True)))
        return logits[:, -inputs.shape[1] :], after

    def written(self, numbers: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch heads seq size"]:
        """Numbers in the form of one layer's keys."""
        shape = -1, self.config.n_head, -1, self.config.head_dim
        return numbers[:, None, :, None].expand(shape).to(self.transformer.wte.weight.dtype)


def read(layers: Sequence[Float[Tensor, "batch heads seq size"]]) -> Int[Tensor, "batch seq"]:
    """The numbers that were written into all layers; if some layers differ, other numbers."""
    return torch.stack(list(layers)).mean(dim=(0, 2, 4)).round().long()


def lend_recomputing_model(data: Mapping[str, Any]) -> dict[str, Service]:
    return lend_model(RecomputingLMHead)
