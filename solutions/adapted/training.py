"""Lab 23, given: training an adapter, on a model whose own weights stay as they are."""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from gpt import GPTLMHead, Linear
from solutions.adapters import LowRank

WARM_UP = 20  # steps


class Adapted(nn.Module):
    """A linear layer with an adapter in training. B begins at zero, so nothing is changed yet."""

    def __init__(self, linear: Linear, rank: int, alpha: float) -> None:
        super().__init__()
        n_in, n_out = linear.weight.shape
        self.linear, self.alpha = linear, alpha
        self.a = nn.Parameter(torch.randn(n_in, rank) / math.sqrt(n_in))
        self.b = nn.Parameter(torch.zeros(rank, n_out))

    def forward(self, hidden: Float[Tensor, "*rows n_in"]) -> Float[Tensor, "*rows n_out"]:
        return self.linear(hidden) + hidden @ self.a @ self.b * (self.alpha / len(self.b))


def adapt(model: GPTLMHead, rank: int = 8, alpha: float = 16.0) -> None:
    """Put an adapter that can be trained on each matrix of a loaded model's blocks, in place."""
    for name, linear in list(model.named_modules()):
        if isinstance(linear, Linear):
            model.set_submodule(name, Adapted(linear, rank, alpha))


def matrices_of(model: GPTLMHead) -> dict[str, LowRank]:
    """Return what the adapters of a model add now, by the names of its matrices."""
    layers = {n: m for n, m in model.transformer.named_modules() if isinstance(m, Adapted)}
    return {
        n: LowRank(m.a.detach().clone(), m.b.detach().clone(), m.alpha) for n, m in layers.items()
    }


def train(
    model: GPTLMHead,
    text: Int[Tensor, " tokens"],
    steps: int,
    lr: float = 1e-3,
    window: int = 256,
    batch: int = 4,
    seed: int = 0,
) -> Iterator[float]:
    """Train a model's adapters on random windows of a text; yield each step's loss in nats."""
    draw = torch.Generator().manual_seed(seed)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=lr, weight_decay=0.0, betas=(0.9, 0.95))
    positions = torch.arange(window).expand(batch, -1)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = lr * min((step + 1) / WARM_UP, (steps - step) / steps)
        starts = torch.randint(len(text) - window, (batch,), generator=draw)
        rows = torch.stack([text[start : start + window + 1] for start in starts])
        logits = model(rows[:, :-1], positions)
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()
