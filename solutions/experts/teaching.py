"""Lab 17, given: a layer of experts that learns to imitate a dense MLP, in seconds."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from gpt import Linear
from solutions.experts.layers import Choose, ExpertMLP, Mix, MoE, loads

STEPS, BATCH, RATE = 400, 256, 3e-3


def new_layer(
    d: int, experts: int, width: int, k: int, choose: Choose, mix: Mix, seed: int = 0
) -> MoE:
    """Return a layer of random experts. One expert alone is a dense MLP of that width."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        router = Linear(d, experts)
        pairs = [(Linear(d, width), Linear(width, d)) for _ in range(experts)]
    made = [ExpertMLP(w_in.weight, w_in.bias, w_out.weight) for w_in, w_out in pairs]
    return MoE(router, made, k, choose, mix, torch.zeros(d))


def unexplained(
    made: Float[Tensor, "rows d"], wanted: Float[Tensor, "rows d"]
) -> Float[Tensor, ""]:
    """Return the mean squared error as a share of the variance: 0 is perfect, 1 is the mean."""
    return (made - wanted).square().mean() / wanted.var(dim=0).mean()


def teach(
    layer: MoE,
    inputs: Float[Tensor, "rows d"],
    wanted: Float[Tensor, "rows d"],
    balance_loss: Callable[[Tensor, Tensor, Tensor], Float[Tensor, ""]],
    alpha: float,
    steps: int = STEPS,
) -> Float[Tensor, "steps experts"]:
    """Train a layer to return `wanted` for `inputs`; return its experts' loads in each step.

    The loss is what is left unexplained, plus `alpha` times the balance loss.
    """
    generator, real = torch.Generator().manual_seed(0), torch.ones(BATCH, dtype=torch.bool)
    optimizer = torch.optim.Adam(layer.parameters(), lr=RATE)
    found = []
    for _ in range(steps):
        rows = torch.randint(len(inputs), (BATCH,), generator=generator)
        loss = unexplained(layer(inputs[rows]), wanted[rows])
        probs = layer.router(inputs[rows]).softmax(dim=-1)
        loss = loss + alpha * balance_loss(probs, layer.chosen, real)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loads(layer.chosen, len(layer.experts)))
    return torch.stack(found)
