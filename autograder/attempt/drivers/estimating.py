"""Drivers of lab 19: counts of a shape, times and prices on a machine, laws of the loss.

In a case, a shape and a machine are dicts of their fields.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from autograder.attempt.plain import in_numbers, kind_of
from autograder.attempt.records import Attempt, Seen, one_call, parts
from solutions.estimates.shapes import Machine, Shape

Runs = Float[Tensor, " runs"]
COUNTS = "embedding", "matrices", "vectors", "head", "total", "active"
LAW = "E", "A", "B", "alpha", "beta"

# ------------------------------------------------------------------------------------- of a shape


def parameters(attempt: Attempt, shape: dict[str, Any]) -> list[Seen]:
    """Further keys do no harm."""
    found = attempt(Shape(**shape))
    if not isinstance(found, Mapping):
        return [Seen("What it returned", found)]
    form = Seen("What it returned", "is a dict")
    return [form, *(Seen(f"`{name}`", found[name]) for name in COUNTS if name in found)]


def one_number(name: str, given: str) -> Callable[..., list[Seen]]:
    """The driver `name`: one call with the shape, the machine if there is one, and `given`."""

    def driver(attempt: Attempt, shape: dict[str, Any], **case: Any) -> list[Seen]:
        machine = [Machine(**case["machine"])] if "machine" in case else []
        found = attempt(Shape(**shape), *machine, *(case[part] for part in given.split()))
        return [Seen("What it returned", found)]

    driver.__module__, driver.__name__ = __name__, name
    return driver


forward_flops = one_number("forward_flops", "new context")
kv_bytes = one_number("kv_bytes", "tokens width")

# ----------------------------------------------------------------------------------- on a machine

step_time = one_number("step_time", "batch new context width")


def plan(
    attempt: Attempt,
    shape: dict[str, Any],
    machine: dict[str, Any],
    context: int,
    width: int,
    tpot_limit: float,
) -> list[Seen]:
    found = attempt(Shape(**shape), Machine(**machine), context, width, tpot_limit)
    rule = "plan returns two numbers, the batch and the price"
    return parts(found, rule, "The batch", "The price")


max_rate = one_call(__name__, "max_rate", "What it returned", "slots ttft tpot new_tokens")

# --------------------------------------------------------------------------------- scaling laws


def fit_law(
    attempt: Attempt,
    params: Runs,
    tokens: Runs,
    loss: Runs,
    places: Sequence[Sequence[float]],
    digits: int,
    is_exact: bool,
) -> list[Seen]:
    """Runs without noise determine the exponents; with noise, only predicted losses are looked at.

    places: sizes of model and data for which the law predicts the loss, rounded to `digits`. All
    that is looked at is rounded, so that it doesn't matter how the best law is searched for.
    """
    found = in_numbers(attempt(params, tokens, loss))
    if not isinstance(found, dict):
        return [Seen("What it returned", found)]
    missing = [name for name in LAW if not isinstance(found.get(name), (int, float))]
    told = f"has no number for {' and '.join(missing)}" if missing else "has all five numbers"
    seen = [Seen("What it returned", told)]
    if missing:
        return seen
    law = {name: float(found[name]) for name in LAW}
    if is_exact:
        seen += [Seen(f"`{n}`", round(law[n], 2), "to two decimals") for n in ("alpha", "beta")]
    for size, data in torch.tensor(places, dtype=torch.float64):
        predicted = law["E"] + law["A"] / size ** law["alpha"] + law["B"] / data ** law["beta"]
        where = f"for {size:.3g} params and {data:.3g} tokens, to {digits} decimals,"
        seen.append(Seen("The predicted loss", round(float(predicted), digits), where))
    return seen


def compute_optimal(attempt: Attempt, law: dict[str, float], flops: float) -> list[Seen]:
    rule = "compute_optimal returns two numbers, the params and the tokens"
    both = parts(attempt(law, flops), rule, "The number of params", "The number of tokens")
    return [Seen(name, number(found)) for name, found, _ in both]


def number(found: Any) -> Any:
    found = in_numbers(found)
    return found if isinstance(found, (int, float)) else kind_of(found)
