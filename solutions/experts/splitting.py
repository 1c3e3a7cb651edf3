"""Lab 17, given: how an MLP's neurons are grouped into experts, and a router for these.

Source: Zhang et al., "MoEfication: Transformer feed-forward layers are mixtures of experts", ACL
Findings 2022. There, neurons of a ReLU are grouped; here, those of GELU.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from gpt import GPTLMHead, Linear
from solutions.experts.layers import blocks_of
from solutions.quality.bits_per_byte import Passage

ROUNDS = 5  # of k-means
SAMPLE = 512  # tokens by whose activations neurons are compared


@torch.no_grad()
def mlp_inputs(model: GPTLMHead, texts: Sequence[Passage]) -> list[Float[Tensor, "tokens d"]]:
    """Return what the MLP of each layer reads while the model reads texts, one row for a token."""
    found: list[list[Tensor]] = [[] for _ in blocks_of(model)]

    def watch(rows: list[Tensor]) -> Any:
        return lambda _, inputs: rows.append(inputs[0].flatten(0, -2))

    both = zip(blocks_of(model), found, strict=True)
    hooks = [block.mlp.register_forward_pre_hook(watch(rows)) for block, rows in both]
    try:
        for text in texts:
            ids = text[None].to(model.transformer.wte.weight.device)
            model(ids, torch.arange(ids.shape[1], device=ids.device)[None])
    finally:
        for hook in hooks:
            hook.remove()
    return [torch.cat(rows) for rows in found]


@torch.no_grad()
def activations(mlp: Any, rows: Float[Tensor, "tokens d"]) -> Float[Tensor, "tokens f"]:
    """Return the output of every neuron of a dense MLP."""
    return F.gelu(mlp.c_fc(rows), approximate="tanh")


def cluster(active: Float[Tensor, "tokens f"], experts: int) -> Int[Tensor, " f"]:
    """Return an expert for each neuron, equally many for each: those active together, together.

    Balanced k-means: each center begins as the activations of some neuron. In a round, each neuron
    gets the most similar center that has room, and each center becomes the mean of its neurons.
    """
    step = max(1, len(active) // SAMPLE)
    neurons = F.normalize(active[::step].T, dim=1)
    centers = neurons[:: len(neurons) // experts][:experts]
    for _ in range(ROUNDS):
        expert_of = evenly(neurons @ F.normalize(centers, dim=1).T)
        centers = torch.stack([neurons[expert_of == i].mean(dim=0) for i in range(experts)])
    return expert_of


def evenly(scores: Float[Tensor, "items places"]) -> Int[Tensor, " items"]:
    """Return a place for each item, equally many for each place, the best scores first."""
    items, places = scores.shape
    room = [items // places] * places
    found = [-1] * items
    for number in scores.flatten().argsort(descending=True).tolist():
        item, place = divmod(number, places)
        if found[item] < 0 and room[place]:
            found[item] = place
            room[place] -= 1
    return torch.tensor(found, device=scores.device)


class Oracle(nn.Module):
    """A router that computes all experts first. The score of one is how large its output is.

    It saves nothing. It shows what a better router could reach.
    """

    def __init__(self, experts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.experts = nn.ModuleList(experts)

    def forward(self, rows: Float[Tensor, "tokens d"]) -> Float[Tensor, "tokens experts"]:
        return torch.stack([expert(rows).norm(dim=1) for expert in self.experts], dim=1)


@torch.no_grad()
def linear_router(experts: Sequence[nn.Module], rows: Float[Tensor, "tokens d"]) -> Linear:
    """Return the linear layer that predicts the oracle's scores best, by least squares."""
    ones = torch.cat([rows, torch.ones_like(rows[:, :1])], dim=1)
    weight = torch.linalg.lstsq(ones, Oracle(experts)(rows)).solution
    router = Linear(rows.shape[1], len(experts)).to(rows).requires_grad_(False)
    router.weight.data, router.bias.data = weight[:-1], weight[-1]
    return router
