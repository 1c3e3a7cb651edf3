"""Drivers of lab 17: a router, experts that count their rows, a balance, a split MLP, and ranks.

Experts are made here from weights. Ranks run in turns in one thread, and what they exchange is
counted.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from autograder.drivers.seen import Attempt, Seen, form_of, one_call, snapshot, things
from solutions.ranks.group import Group, in_turns

Chosen = Int[Tensor, "tokens k"]

# ------------------------------------------------------------------------------------- the router


def route(
    attempt: Attempt, logits: Float[Tensor, "tokens experts"], k: int, renormalize: bool
) -> list[Seen]:
    """The experts come first: if they are wrong, so are the weights."""
    rule = "route returns two tensors, the weights and the numbers of the experts"
    weights, chosen = things(2, attempt(logits, k, renormalize), rule)
    return [Seen("The tensor of experts", chosen), Seen("The tensor of weights", weights)]


def dispatch(attempt: Attempt, chosen: Chosen, experts: int) -> list[Seen]:
    rule = "dispatch returns two tensors, the assignments and the counts"
    order, counts = things(2, attempt(chosen, experts), rule)
    return [Seen("The tensor of assignments", order), Seen("The tensor of counts", counts)]


# ------------------------------------------------------------------------------------ the experts


class Counted:
    """An expert that counts its calls and rows."""

    def __init__(self, w_in: Float[Tensor, "d width"], w_out: Float[Tensor, "width d"]) -> None:
        self.w_in, self.w_out = w_in, w_out
        self.calls = self.rows = 0

    def __call__(self, rows: Float[Tensor, "rows d"]) -> Float[Tensor, "rows d"]:
        if rows.ndim != 2 or rows.shape[1] != len(self.w_in):
            wanted = f"[rows, {len(self.w_in)}]"
            raise ValueError(f"An expert takes {wanted}; it was given {list(rows.shape)}.")
        self.calls += 1
        self.rows += len(rows)
        return (rows @ self.w_in).sigmoid() @ self.w_out  # which is not 0 for a row of zeros


def served(calls: int, rows: int) -> str:
    """Calls and rows in words. A call without rows is as good as none."""
    times = "once" if calls == 1 else f"{calls} times"
    return f"is called {times}, with {several(rows)}" if rows else "gets no rows"


def several(rows: int) -> str:
    return f"{rows} row{'s' * (rows != 1)}"


def moe_forward(
    attempt: Attempt,
    hidden: Float[Tensor, "tokens d"],
    weights: Float[Tensor, "tokens k"],
    chosen: Chosen,
    w_in: Float[Tensor, "experts d width"],
    w_out: Float[Tensor, "experts width d"],
) -> list[Seen]:
    """The result, then the rows of each expert."""
    experts = [Counted(*both) for both in zip(w_in, w_out, strict=True)]
    seen = [Seen("What it returned", attempt(hidden, weights, chosen, experts))]
    return seen + [Seen(f"Expert {i}", served(e.calls, e.rows)) for i, e in enumerate(experts)]


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
    seen.append(Seen("The gradient of the loss", f"{way} `probs`"))
    return [*seen, Seen("The gradient with respect to `probs`", gradient)]


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
    rule = "split_mlp returns three tensors, the experts' w_in, b_in and w_out"
    found = things(3, attempt(w_in, b_in, w_out, expert_of, experts), rule)
    names, width = ("`w_in`", "`b_in`", "`w_out`"), len(expert_of) // experts
    both = zip(names, found, strict=True)
    seen = [Seen(name, form_of(part), "of the experts") for name, part in both]
    shapes = (experts, len(w_in), width), (experts, width), (experts, width, len(w_in))
    if [getattr(part, "shape", None) for part in found] != [*shapes]:
        return seen
    whole = w_in.T, b_in[:, None], w_out  # in each, a row for a neuron
    parts = found[0].transpose(1, 2), found[1][:, :, None], found[2]
    for expert in range(experts):
        own = [origins(part[expert], rows) for part, rows in zip(parts, whole, strict=True)]
        for name, neurons in zip(names, own, strict=True):
            seen.append(Seen(name, f"holds {in_words(neurons)}", f"of expert {expert}"))
        same = "have" if own[0] == own[1] == own[2] else "don't have"
        order = f"{same} their neurons in the same order"
        seen.append(Seen(f"The parts of expert {expert}", order))
    memory = {part.untyped_storage().data_ptr() for part in (w_in, b_in, w_out)}
    shared = any(part.untyped_storage().data_ptr() in memory for part in found)
    seen.append(Seen("The results", "share memory with the MLP" if shared else "are copies"))
    dtypes = zip(names, found, strict=True)
    return [*seen, *(Seen(f"The dtype of {name}", f"is {part.dtype}") for name, part in dtypes)]


def origins(rows: Float[Tensor, "width n"], whole: Float[Tensor, "f n"]) -> list[int | None]:
    """For each row, the neuron that it is of."""
    places = [(whole == row).all(dim=1).nonzero().flatten().tolist() for row in rows]
    return [next(iter(same), None) for same in places]


def in_words(neurons: list[int | None]) -> str:
    known = [neuron for neuron in neurons if neuron is not None]
    if len(known) < len(neurons):
        return "numbers that aren't those of one neuron"
    return f"neuron{'s' * (len(known) != 1)} {', '.join(map(str, sorted(known)))}"


# ---------------------------------------------------------------------------------- several ranks


class Part:
    """What a rank computes in `exchange`: its own experts' share of rows. It counts them."""

    def __init__(self, w: Float[Tensor, "experts d d"], own: Bool[Tensor, " experts"]) -> None:
        self.w, self.own = w, own
        self.calls = self.rows = 0

    def __call__(
        self, rows: Float[Tensor, "rows d"], weights: Float[Tensor, "rows k"], chosen: Chosen
    ) -> Float[Tensor, "rows d"]:
        self.calls += 1
        self.rows += len(rows)
        outputs = torch.zeros_like(rows)
        for slot in range(chosen.shape[1]):
            mine = weights[:, slot] * self.own[chosen[:, slot]]
            made = (rows[:, None] @ self.w[chosen[:, slot]])[:, 0].sigmoid()
            outputs += mine[:, None] * made
        return outputs


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
    """Every rank's result, the rows that its share gets, and those that it sends.

    ranks: `hidden`, `weights` and `chosen` of each.
    """

    def work(group: Group) -> tuple[Any, str, int]:
        part, given = Part(w, owner == group.rank), ranks[group.rank]
        sent = rows_counted(group, w.shape[1])
        arguments = given["hidden"], given["weights"], given["chosen"], owner, part, group
        found = snapshot(attempt(*arguments))
        return found, served(part.calls, part.rows), sent()

    return list(told(in_turns(len(ranks), work)))


def told(found: list[tuple[Any, str, int]]) -> Iterator[Seen]:
    for rank, (output, _, _) in enumerate(found):
        yield Seen("What it returned", output, f"on rank {rank}")
    for rank, (_, share, _) in enumerate(found):
        yield Seen(f"`share` of rank {rank}", share)
    for rank, (_, _, sent) in enumerate(found):
        yield Seen(f"Rank {rank}", f"sends {several(sent)} to other ranks")


hops = one_call(__name__, "hops", "What it returned", "routes owner")
