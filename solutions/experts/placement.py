"""Lab 17, given: experts that follow each other on one rank, so that fewer tokens travel.

Source: Yao et al., "Exploiting inter-layer expert affinity for accelerating mixture-of-experts
model inference" (ExFlow), IPDPS 2024. They solve an integer program; this is a greedy version.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from solutions.experts.splitting import evenly

SWEEPS = 4


def in_order(layers: int, experts: int, ranks: int) -> Int[Tensor, "layers experts"]:
    """Return owners that ignore the routes: the first experts on rank 0, the next on rank 1, …"""
    return (torch.arange(experts) * ranks // experts).repeat(layers, 1)


def by_affinity(
    routes: Int[Tensor, "tokens layers"], experts: int, ranks: int
) -> Int[Tensor, "layers experts"]:
    """Return an owner for each layer's experts: the rank where most of their tokens come from.

    Each rank gets equally many. In the first sweep an expert follows the layer before; in the later
    ones both neighbors count.
    """
    layers = routes.shape[1]
    owner = in_order(layers, experts, ranks)
    for sweep in range(SWEEPS):
        for layer in range(1, layers):
            neighbors = [layer - 1] if sweep == 0 else [layer - 1, layer + 1]
            there = sum(
                F.one_hot(owner[other][routes[:, other]], ranks)
                for other in neighbors
                if other < layers
            )
            owner[layer] = evenly(F.one_hot(routes[:, layer], experts).T @ there)
    return owner
