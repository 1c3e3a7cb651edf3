"""Lab 17, given: a layer of experts in the place of an MLP, and what can be watched of it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from gpt import GPTLMHead

Expert = Callable[[Float[Tensor, "rows d"]], Float[Tensor, "rows d"]]
# From a router's logits and k to the weights and the experts of each token
Choose = Callable[
    [Float[Tensor, "tokens experts"], int],
    tuple[Float[Tensor, "tokens k"], Int[Tensor, "tokens k"]],
]
# From rows, weights and experts of each token, and the experts, to the rows that come out
Mix = Callable[[Tensor, Tensor, Tensor, Sequence[Expert]], Float[Tensor, "tokens d"]]


class ExpertMLP(nn.Module):
    """A narrow MLP like GPT-2's, without an output bias."""

    def __init__(
        self,
        w_in: Float[Tensor, "d width"],
        b_in: Float[Tensor, " width"],
        w_out: Float[Tensor, "width d"],
    ) -> None:
        super().__init__()
        given = (w_in, b_in, w_out)
        self.w_in, self.b_in, self.w_out = (nn.Parameter(w, w.requires_grad) for w in given)

    def forward(self, rows: Float[Tensor, "rows d"]) -> Float[Tensor, "rows d"]:
        return F.gelu(rows @ self.w_in + self.b_in, approximate="tanh") @ self.w_out


class MoE(nn.Module):
    """A layer of experts that takes the place of a block's MLP, for rows of any batch.

    router: from rows to logits, [tokens, experts]. choose: a choice made with the lab's `route`.
    mix: the lab's `moe_forward`. bias: added to each row at the end. chosen: the experts of each
    token in the newest forward pass.
    """

    chosen: Int[Tensor, "tokens k"]
    bias: Float[Tensor, " d"] | None

    def __init__(
        self,
        router: nn.Module,
        experts: Sequence[nn.Module],
        k: int,
        choose: Choose,
        mix: Mix,
        bias: Float[Tensor, " d"] | None = None,
    ) -> None:
        super().__init__()
        self.router, self.experts, self.k = router, nn.ModuleList(experts), k
        self.choose, self.mix = choose, mix
        self.register_buffer("bias", bias)

    def forward(self, hidden: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        rows = hidden.flatten(0, -2)
        weights, self.chosen = self.choose(self.router(rows), self.k)
        outputs = self.mix(rows, weights, self.chosen, list(self.experts))
        if self.bias is not None:
            outputs = outputs + self.bias
        return outputs.view(hidden.shape)


def blocks_of(model: GPTLMHead) -> list[Any]:
    blocks: Any = model.transformer.h
    return list(blocks)


def layers_of(model: nn.Module) -> list[MoE]:
    return [part for part in model.modules() if isinstance(part, MoE)]


def take(model: nn.Module, k: int, choose: Choose | None = None) -> None:
    """Let each token use k experts from now on, in all layers, and choose them in another way."""
    for layer in layers_of(model):
        layer.k, layer.choose = k, choose or layer.choose


@contextmanager
def watched(model: nn.Module) -> Iterator[list[Int[Tensor, "layers tokens k"]]]:
    """Keep what every layer of experts has chosen, with one entry for each forward pass."""
    steps: list[Tensor] = []

    def note(*_: Any) -> None:
        steps.append(torch.stack([layer.chosen for layer in layers_of(model)]))

    hook = model.register_forward_hook(note)
    try:
        yield steps
    finally:
        hook.remove()


def loads(chosen: Int[Tensor, "*batch k"], experts: int) -> Float[Tensor, " experts"]:
    """Return the share of all assignments that each expert has."""
    return chosen.flatten().bincount(minlength=experts) / chosen.numel()


def touched(chosen: Int[Tensor, "layers tokens k"]) -> float:
    """Return how many different experts the tokens of one forward pass use, on average a layer."""
    return sum(len(layer.unique()) for layer in chosen) / len(chosen)


def touched_at_random(experts: int, k: int, batch: int) -> float:
    """Return how many they would use if each token chose by itself and all experts equally."""
    return experts * (1 - (1 - k / experts) ** batch)
