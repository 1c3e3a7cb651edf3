"""Drivers of lab 17: a router, experts that count their rows, a balance, a split MLP, and ranks.

Experts are made here from weights. Ranks run in turns in one thread, and what they exchange is
counted.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from autograder.attempt.lent import handle, sealed
from autograder.attempt.records import Attempt, Seen, as_it_was, form_of, one_call, parts, things
from autograder.attempt.tensors import snapshot
from solutions.ranks.group import SHOWN, Group, in_turns

Rows = Float[Tensor, "rows d"]
Weights = Float[Tensor, "rows k"]
Chosen = Int[Tensor, "rows k"]


def gradients(result: Any, **given: Tensor) -> list[Seen]:
    """Whether a result has a gradient with respect to each of these."""
    found: Sequence[Tensor | None] = [None] * len(given)
    if isinstance(result, Tensor) and result.requires_grad:
        found = torch.autograd.grad(result.sum(), [*given.values()], allow_unused=True)
    return [
        Seen(f"The gradient with respect to `{name}`", "is missing" if one is None else "is there")
        for name, one in zip(given, found, strict=True)
    ]


# ------------------------------------------------------------------------------------- the router


@torch.enable_grad()
def route(
    attempt: Attempt, logits: Float[Tensor, "tokens experts"], k: int, renormalize: bool
) -> list[Seen]:
    """The experts come first: if they are wrong, so are the weights. Then once more in training.

    The only weight of a token is 1 if it is renormalized, and has no gradient.
    """
    rule = "route returns two tensors, the weights and the numbers of the experts"
    weights, chosen = things(2, attempt(logits, k, renormalize), rule)
    seen = [Seen("The tensor of experts", chosen), Seen("The tensor of weights", weights)]
    if not len(logits) or (k == 1 and renormalize):
        return seen
    trained = logits.detach().clone().requires_grad_()
    weights, _ = things(2, attempt(trained, k, renormalize), rule)
    return [*seen, *gradients(weights, logits=trained)]


def dispatch(attempt: Attempt, chosen: Chosen, experts: int) -> list[Seen]:
    rule = "dispatch returns two tensors, the assignments and the counts"
    names = "The tensor of assignments", "The tensor of counts"
    return parts(attempt(chosen, experts), rule, *names)


# ------------------------------------------------------------------------------------ the experts


class Counted:
    """A function of rows that counts its calls and rows."""

    def __init__(self, function: Callable[..., Tensor], *weights: Tensor) -> None:
        self.function, self.weights = function, weights
        self.calls = self.rows = 0

    def __call__(self, rows: Rows, *more: Tensor) -> Rows:
        self.calls += 1
        self.rows += len(rows)
        return self.function(*self.weights, rows, *more)

    def told(self) -> str:
        """Calls and rows in words. A call without rows is as good as none."""
        times = "once" if self.calls == 1 else f"{self.calls} times"
        return f"is called {times}, with {several(self.rows)}" if self.rows else "gets no rows"


def several(rows: int) -> str:
    return f"{rows} row{'s' * (rows != 1)}"


def expert(w_in: Float[Tensor, "d width"], w_out: Float[Tensor, "width d"], rows: Rows) -> Rows:
    if rows.ndim != 2 or rows.shape[1] != len(w_in):
        wanted = f"[rows, {len(w_in)}]"
        raise ValueError(f"An expert takes {wanted}; it was given {list(rows.shape)}.")
    return (rows @ w_in).sigmoid() @ w_out  # which is not 0 for a row of zeros


@torch.enable_grad()
def moe_forward(
    attempt: Attempt,
    hidden: Rows,
    weights: Weights,
    chosen: Chosen,
    w_in: Float[Tensor, "experts d width"],
    w_out: Float[Tensor, "experts width d"],
) -> list[Seen]:
    """The result, then the rows of each expert; then once more in training."""
    experts = [Counted(expert, *both) for both in zip(w_in, w_out, strict=True)]
    lent = [*map(sealed, experts)]
    before = lent.copy()
    seen = [Seen("What it returned", attempt(hidden, weights, chosen, lent))]
    seen.append(as_it_was("`experts`", lent, before))
    seen += [Seen(f"Expert {i}", e.told()) for i, e in enumerate(experts)]
    if not len(hidden):
        return seen
    trained = [part.detach().clone().requires_grad_() for part in (hidden, weights)]
    result = attempt(*trained, chosen, [sealed(Counted(e.function, *e.weights)) for e in experts])
    return [*seen, *gradients(result, hidden=trained[0], weights=trained[1])]


# -------------------------------------------------------------------------- balance and capacity


@torch.enable_grad()
def balance_loss(
    attempt: Attempt,
    probs: Float[Tensor, "tokens experts"],
    chosen: Chosen,
    real: Bool[Tensor, " tokens"],
) -> list[Seen]:
    """The loss, and its gradient."""
    given = probs.detach().requires_grad_()
    loss = attempt(given, chosen, real)
    seen = [Seen("What it returned", form_of(loss))]
    if not isinstance(loss, Tensor) or loss.shape != ():
        return seen
    seen += [Seen("The loss", loss.item()), Seen("The dtype of the loss", f"is {loss.dtype}")]
    gradient = None
    if loss.requires_grad:
        (gradient,) = torch.autograd.grad(loss, given, allow_unused=True)
    way = "doesn't reach" if gradient is None else "reaches"
    name = "The gradient with respect to `probs`"
    return [*seen, Seen("The gradient of the loss", f"{way} `probs`"), Seen(name, gradient)]


keep = one_call(__name__, "keep", "The mask", "chosen experts capacity")

# ------------------------------------------------------------------------------------ a split MLP


def split_mlp(
    attempt: Attempt,
    w_in: Float[Tensor, "d f"],
    b_in: Float[Tensor, " f"],
    w_out: Float[Tensor, "f d"],
    expert_of: Int[Tensor, " f"],
    experts: int,
) -> list[Seen]:
    """Which neurons are in each expert, in any order, and that their three parts match."""
    whole = w_in.T.clone(), b_in[:, None].clone(), w_out.clone()  # in each, a row for a neuron
    rule = "split_mlp returns three tensors, the experts' w_in, b_in and w_out"
    found = things(3, attempt(w_in, b_in, w_out, expert_of, experts), rule)
    names, width = ("`w_in`", "`b_in`", "`w_out`"), len(expert_of) // experts
    both = [*zip(names, found, strict=True)]
    seen = [Seen(name, form_of(part), "of the experts") for name, part in both]
    shapes = (experts, len(w_in), width), (experts, width), (experts, width, len(w_in))
    if [getattr(part, "shape", None) for part in found] != [*shapes]:
        return seen
    parts = found[0].transpose(1, 2), found[1][:, :, None], found[2]
    for number in range(experts):
        own = [origins(part[number], rows) for part, rows in zip(parts, whole, strict=True)]
        for name, neurons in zip(names, own, strict=True):
            known = sorted(neuron for neuron in neurons if neuron)
            told = f"neurons {', '.join(known)}" if known == sorted(neurons) else "other numbers"
            seen.append(Seen(name, f"holds {told}", f"of expert {number}"))
        have = "have" if own[0] == own[1] == own[2] else "don't have"
        what, order = f"The parts of expert {number}", "their neurons in the same order"
        seen.append(Seen(what, f"{have} {order}"))
    memory = {part.untyped_storage().data_ptr() for part in (w_in, b_in, w_out)}
    shared = any(part.untyped_storage().data_ptr() in memory for part in found)
    seen.append(Seen("The results", "share memory with the MLP" if shared else "are copies"))
    return [*seen, *(Seen(f"The dtype of {name}", f"is {part.dtype}") for name, part in both)]


def origins(rows: Float[Tensor, "width n"], whole: Float[Tensor, "f n"]) -> list[str]:
    """For each row, the number of the neuron that it is of; "" if it is of none."""
    places = [(whole == row).all(dim=1).nonzero().flatten().tolist() for row in rows]
    return [str(same[0]) if same else "" for same in places]


# ---------------------------------------------------------------------------------- several ranks


def local(
    w: Float[Tensor, "experts d d"],
    own: Bool[Tensor, " experts"],
    rows: Rows,
    weights: Weights,
    chosen: Chosen,
) -> Rows:
    """What a rank computes: the weighted sum over its own experts."""
    made = (rows[:, None, None] @ w[chosen])[:, :, 0].sigmoid()
    return (made * (weights * own[chosen])[..., None]).sum(dim=1)


def rows_counted(group: Group, d: int) -> Callable[[], int]:
    """From now on count the rows of d numbers or more that a rank hands in for others."""
    make, counts = group.make, list[int]()

    def counted(kind: str, given: Sequence[Tensor], *more: Any, **named: Any) -> list[Tensor]:
        found = make(kind, given, *more, **named)
        to_all = kind in ("all_reduce", "all_gather")
        for number, part in enumerate(given if kind != "recv" else []):
            if part.ndim > 1 and part.shape[-1] >= d:
                times = group.size - 1 if to_all else kind == "send" or number != group.rank
                counts.append(times * part.shape[:-1].numel())
        return found

    group.make = counted  # type: ignore[method-assign]
    return lambda: sum(counts)


def exchange(
    attempt: Attempt,
    ranks: list[dict[str, Tensor]],
    owner: Int[Tensor, " experts"],
    w: Float[Tensor, "experts d d"],
) -> list[Seen]:
    """Every rank's result, the rows that its `local` gets, and those that it sends.

    ranks: `hidden`, `weights` and `chosen` of each.
    """

    def work(group: Group) -> tuple[Any, str, str]:
        given, own = ranks[group.rank], Counted(local, w, owner == group.rank)
        sent = rows_counted(group, w.shape[1])
        parts = given["hidden"], given["weights"], given["chosen"]
        found = attempt(*parts, owner, sealed(own), handle(group, SHOWN))
        return snapshot(found), own.told(), f"sends {several(sent())} to other ranks"

    outputs, rows, sent = zip(*in_turns(len(ranks), work), strict=True)
    return [
        *(Seen("What it returned", output, f"on rank {i}") for i, output in enumerate(outputs)),
        *(Seen(f"`local` of rank {i}", told) for i, told in enumerate(rows)),
        *(Seen(f"Rank {i}", told) for i, told in enumerate(sent)),
    ]


def hops(
    attempt: Attempt, routes: Int[Tensor, "tokens layers"], owner: Int[Tensor, "layers experts"]
) -> list[Seen]:
    found = attempt(routes, owner)
    kind = "is a tensor" if isinstance(found, Tensor) else "is no tensor"
    return [Seen("What it returned", found), Seen("The number", kind)]
