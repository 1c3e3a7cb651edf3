"""A model that multiplies in the ways that are the fastest here; the engine then does so, too.

The rows of the table use it from lab 2 on, so that they differ in their ideas alone.
"""

import copy
from pathlib import Path
from typing import Any, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

import gpt
from solutions.engine.products import PRODUCTS, Choice, Linear, Products, head_of, weights_of
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
    """Lab 2's model, or one of another family (lab 20), on the same weights."""

    def __init__(self, model: Any, products: Products = PRODUCTS) -> None:
        nn.Module.__init__(self)
        choice = products.choice_for(weights_of(model))
        layers = [layer for layer in model.modules() if isinstance(layer, gpt.Linear)]
        shared: dict[int, Any] = {id(weight): weight for weight in model.parameters()}
        shared |= {id(layer): ChosenLinear(layer, choice) for layer in layers}
        self.config, self.head_weight = model.config, head_of(model)
        self.transformer = copy.deepcopy(model.transformer, shared)
        self.lm_head = Linear(self.head_weight, choice=choice)

    @classmethod
    def from_pretrained(
        cls, name_or_folder: str | Path, device: Any = "cpu", products: Products = PRODUCTS
    ) -> Self:
        return cls(CachedLMHead.from_pretrained(name_or_folder, device), products).eval()

    def forward(
        self,
        inputs: Int[Tensor, "batch q_len"],
        position_ids: Int[Tensor, "batch q_len"],
        kv_cache: KVCache | None = None,
    ) -> Float[Tensor, "batch q_len vocab"]:
        hidden = self.transformer(inputs, position_ids, kv_cache)
        if hidden.dtype != torch.float32:
            return hidden @ self.head_weight.T
        return in_rows(self.lm_head, hidden)


def in_rows(product: Linear, hidden: Float[Tensor, "*rows n_in"]) -> Float[Tensor, "*rows n_out"]:
    return product(hidden.flatten(0, -2)).view(*hidden.shape[:-1], -1)
