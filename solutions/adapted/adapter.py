"""Lab 23, given: an adapter of a whole model."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from solutions.adapters import LowRank, merged
from solutions.gguf.names import LINEAR


@dataclass(frozen=True, eq=False)
class Adapter:
    """What is added to a model's matrices, by their names ("h.0.attn.c_attn").

    version: counts what was loaded under this name. Two adapters are never equal, so one that was
    replaced keeps its slot until its last request has ended.
    """

    name: str
    version: int
    matrices: Mapping[str, LowRank] = field(repr=False)


def shapes_of(config: Any) -> dict[str, tuple[int, int]]:
    """Return [n_in, n_out] of each matrix that an adapter may add to, for GPT-2 and Llama."""
    width, kv_width = config.n_embd, config.n_head * config.head_dim
    group, inner = getattr(config, "group", 1), getattr(config, "n_inner", 4 * width)
    gates = 1 + hasattr(config, "group")  # Llama's c_fc computes a gate for each neuron, too
    block = [
        (width, (group + 2) * kv_width),
        (group * kv_width, width),
        (width, gates * inner),
        (inner, width),
    ]
    return {
        f"h.{layer}.{name}": shape
        for layer in range(config.n_layer)
        for name, shape in zip(LINEAR, block, strict=True)
    }


def as_numbers_of(like: Tensor, added: LowRank) -> LowRank:
    """Return what an adapter adds in the dtype and on the device of a model's tensor."""
    return added._replace(a=added.a.to(like), b=added.b.to(like))


def merged_model(model: Any, matrices: Mapping[str, LowRank]) -> Any:
    """Return a copy of a model with an adapter in its weights, and with the model's embedding."""
    embedding = model.transformer.wte
    whole = copy.deepcopy(model, {id(embedding): embedding})
    for name, added in matrices.items():
        weight = whole.transformer.get_submodule(name).weight
        weight.data = merged(weight.data, as_numbers_of(weight, added))
    return whole
