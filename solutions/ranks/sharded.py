"""Lab 18, given: a GPT-2 whose weights are cut into flat parts, one unit after the other."""

import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from gpt import GPTLMHead
from solutions.ranks.group import Group

Apply = Callable[[Sequence[Tensor], Tensor], Tensor]  # a unit with these weights, on these inputs


class Unit(NamedTuple):
    """What is gathered and freed as one: its weights, their shapes, and what it computes."""

    weights: list[Tensor]
    shapes: list[torch.Size]
    apply: Apply


class Held:
    """How many numbers of whole weights a rank holds now, and the most at a time."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def until_freed(self, weights: Sequence[Tensor]) -> None:
        numbers = sum(weight.numel() for weight in weights)
        self.add(numbers)
        weakref.finalize(weights[0], self.add, -numbers)

    def add(self, numbers: int) -> None:
        self.now += numbers
        self.most = max(self.most, self.now)


def unit_of(module: nn.Module, held: Held) -> Unit:
    """Return a module as a unit. It computes with any weights of these shapes."""
    names, weights = zip(*module.named_parameters(), strict=True)

    def apply(given: Sequence[Tensor], x: Tensor) -> Tensor:
        held.until_freed(given)
        return torch.func.functional_call(module, dict(zip(names, given, strict=True)), (x,))

    return Unit([weight.detach() for weight in weights], [w.shape for w in weights], apply)


class Functions(NamedTuple):
    """The learner's functions, or the reference's."""

    flat_shard: Callable[[Sequence[Tensor], int, int], Tensor]
    unit_forward: Callable[..., Tensor]
    unit_backward: Callable[..., tuple[Tensor, Tensor]]


def block_gradients(
    group: Group, model: GPTLMHead, ids: Int[Tensor, "batch seq"], own: Functions
) -> tuple[list[Float[Tensor, " part"]], int]:
    """Return this rank's part of the gradient of every block, for the sum of all ranks' losses.

    Also returns the most numbers of whole weights that the rank held at a time. ids: its own texts.
    For brevity embeddings and the last norm are whole on every rank, and their gradients are left
    out.
    """
    gpt, held = model.transformer, Held()
    units = [unit_of(block, held) for block in gpt.h]
    parts = [own.flat_shard(unit.weights, group.size, group.rank) for unit in units]
    positions = torch.arange(ids.shape[1] - 1).expand(len(ids), -1)
    with torch.no_grad():
        inputs = [gpt.embed(ids[:, :-1], positions)]
        for unit, part in zip(units, parts, strict=True):
            inputs.append(own.unit_forward(part, unit.shapes, unit.apply, inputs[-1], group))
    last = inputs.pop().requires_grad_()
    with torch.enable_grad():
        logits = gpt.ln_f(last) @ gpt.wte.weight.T
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
    (grad,) = torch.autograd.grad(loss, last)
    gradients = []
    for unit, part, x in reversed(list(zip(units, parts, inputs, strict=True))):
        grad, of_part = own.unit_backward(part, unit.shapes, unit.apply, x, grad, group)
        gradients.append(of_part)
    return gradients[::-1], held.most
