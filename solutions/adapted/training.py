"""Lab 23, given: training an adapter, on a model whose own weights stay as they are."""

import math
from collections.abc import Iterable, Iterator
from itertools import islice

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from gpt import GPTLMHead, Linear
from solutions.adapters import LowRank

WARM_UP = 20  # steps
IGNORED = -100  # a target that isn't one, for `cross_entropy`

# Inputs, and for each the token that should follow: both [batch, length].
Batch = tuple[Int[Tensor, "batch length"], Int[Tensor, "batch length"]]
Turn = tuple[list[int], list[int]]  # the ids that are read, and those of the answer


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


def windows(
    text: Int[Tensor, " tokens"], window: int = 256, batch: int = 4, seed: int = 0
) -> Iterator[Batch]:
    """Yield random windows of a text, without end."""
    draw = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(text) - window, (batch,), generator=draw)
        rows = torch.stack([text[start : start + window + 1] for start in starts])
        yield rows[:, :-1], rows[:, 1:]


def answers(turns: Iterable[Turn], eos: int, batch: int = 16) -> Iterator[Batch]:
    """Yield turns of dialogues, of which only the answer and its end are to be learned.

    What is read is no target, and neither is the padding behind a short turn.
    """
    rest = iter(turns)
    while some := list(islice(rest, batch)):
        inputs = [torch.tensor(read + answer) for read, answer in some]
        targets = [
            torch.tensor([IGNORED] * (len(read) - 1) + answer + [eos]) for read, answer in some
        ]
        yield pad_sequence(inputs, True), pad_sequence(targets, True, padding_value=IGNORED)


def train(
    model: GPTLMHead, batches: Iterable[Batch], steps: int, lr: float = 1e-3
) -> Iterator[float]:
    """Train a model's adapters, a batch per step; yield each step's loss in nats."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=lr, weight_decay=0.0, betas=(0.9, 0.95))
    for step, (inputs, targets) in enumerate(islice(batches, steps)):
        optimizer.param_groups[0]["lr"] = lr * min((step + 1) / WARM_UP, (steps - step) / steps)
        logits = model(inputs, torch.arange(inputs.shape[1]).expand_as(inputs))
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()
