"""Lab 2's model, multiplying in the ways that are the fastest here; the engine then does so, too.

The rows of the table use it from lab 2 on, so that they differ in their ideas alone.
"""

from pathlib import Path
from typing import Any, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

import gpt
from solutions.engine.products import PRODUCTS, Choice, Linear, Products, weights_of
from solutions.kv_cache import CachedLMHead, KVCache


class ChosenLinear(gpt.Linear):
    def __init__(self, layer: gpt.Linear, choice: Choice) -> None:
        nn.Module.__init__(self)  # gpt.Linear's own would draw random weights in vain
        self.weight, self.bias = layer.weight, layer.bias
        self.chosen = Linear(layer.weight.T, layer.bias, choice)

    def product(self) -> Linear:
        return self.chosen

    def forward(self, hidden: Float[Tensor, "*rows n_in"]) -> Float[Tensor, "*rows n_out"]:
        is_usual = hidden.dtype == torch.float32  # what the choice was made for
        return in_rows(self.chosen, hidden) if is_usual else super().forward(hidden)


class ChosenLMHead(CachedLMHead):
    lm_head: Linear

    @classmethod
    def from_pretrained(
        cls, name_or_folder: str | Path, device: Any = "cpu", products: Products = PRODUCTS
    ) -> Self:
        model = super().from_pretrained(name_or_folder, device)
        choice = products.choice_for(weights_of(model))
        for name, layer in list(model.named_modules()):
            if isinstance(layer, gpt.Linear):
                model.set_submodule(name, ChosenLinear(layer, choice))
        model.lm_head = Linear(model.transformer.wte.weight, choice=choice)
        return model

    def forward(
        self,
        inputs: Int[Tensor, "batch q_len"],
        position_ids: Int[Tensor, "batch q_len"],
        kv_cache: KVCache,
    ) -> Float[Tensor, "batch q_len vocab"]:
        if self.transformer.wte.weight.dtype != torch.float32:
            return super().forward(inputs, position_ids, kv_cache)
        return in_rows(self.lm_head, self.transformer(inputs, position_ids, kv_cache))


def in_rows(product: Linear, hidden: Float[Tensor, "*rows n_in"]) -> Float[Tensor, "*rows n_out"]:
    return product(hidden.flatten(0, -2)).view(*hidden.shape[:-1], -1)
