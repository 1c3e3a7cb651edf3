"""Answers to lab 19's exercises: counts of a shape, times on a machine, laws of the loss."""

import torch

from solutions.estimating import (
    compute_optimal,
    fit_law,
    forward_flops,
    kv_bytes,
    parameters,
    plan,
    step_time,
)
from tests.common.attempts import right, wrong, wrong_result


@right(parameters)
def with_more_keys(shape):
    count = parameters(shape)
    return {**count, "blocks": count["matrices"] + count["vectors"]}


wrong_result(
    parameters,
    lambda count: count["total"],
    "What it returned is the number ",
    "; expected: it is a dict.",
)
wrong_result(
    parameters,
    lambda count: {name: number for name, number in count.items() if name != "head" or number},
    "`head` is missing.",
)
wrong_result(
    plan, lambda both: both[0], "plan returns two numbers, the batch and the price; this is an int."
)
wrong_result(
    plan, lambda both: (both[0], both[1] if both[0] else 0), "The price is 0; expected inf."
)
wrong_result(
    fit_law,
    lambda law: {name: law[name] for name in law if name != "E"},
    "What it returned has no number for E; expected: it has all five numbers.",
)


@wrong(forward_flops, "What it returned is ")
def two_per_active_parameter_and_kaplans_attention(shape, new, context):
    weights = parameters(shape)["active"] - shape.width * shape.vocab
    return 2 * new * weights + 2 * shape.layers * shape.width * new * (context + new)


@wrong(kv_bytes, "What it returned is ")
def a_megabyte_a_token(shape, tokens, width):
    return 2**20 * tokens


@wrong(step_time, "What it returned is ")
def as_a_prefill(shape, machine, batch, new, context, width):
    return step_time(shape, machine, batch, new + context, 0, width)


@right(plan)
def with_a_whole_number_as_a_float(*given):
    batch, price = plan(*given)
    return [float(batch), torch.tensor(price, dtype=torch.float64)]


@wrong(fit_law, "`alpha` to two decimals is 2.3; expected 2.")
def as_the_replication_does(params, tokens, loss):
    """The sum of Huber losses of the logarithms, by L-BFGS, whatever the exponents become."""
    x, y, target = (numbers.double().log() for numbers in (params, tokens, loss))
    x, y, middle = x - x.mean(), y - y.mean(), (params.log().mean(), tokens.log().mean())
    found = torch.tensor([-0.5, -0.5, -0.5, 0.5, 0.5], dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS(
        [found], max_iter=400, tolerance_grad=1e-10, tolerance_change=1e-14,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def error():
        search.zero_grad()
        e, a, b, alpha, beta = found
        terms = torch.stack([e.expand(len(x)), a - alpha * x, b - beta * y])
        errors = torch.nn.functional.huber_loss(
            terms.logsumexp(0), target, reduction="sum", delta=1e-3
        )
        lost = 1e6 * errors
        lost.backward()
        return lost

    search.step(error)
    e, a, b, alpha, beta = found.detach()
    a, b = a + alpha * middle[0], b + beta * middle[1]
    return {"E": e.exp(), "A": a.exp(), "B": b.exp(), "alpha": alpha, "beta": beta}


wrong_result(fit_law, lambda law: tuple(law.values()), "What it returned is a tuple; expected")


@wrong(compute_optimal, "The number of params is ")
def kaplans_exponent(law, flops):
    params = compute_optimal(law, 6e20)[0] * (flops / 6e20) ** 0.73
    return params, flops / (6 * params)


ROUND = "where every size of model has every size of data, the basin is round"
EQUIVALENT = {
    "estimating.plan": {
        "max(0, free // kv_bytes(shape, context, width)) -> "
        "max(-1, free // kv_bytes(shape, context, width))": "a range up to -1 is empty, too",
    },
    "estimating.fit_law": {
        "(exponents[best] - center).abs().max() <= reach / 2 -> "
        "(exponents[best] - center).abs().max() < reach / 2": ROUND,
        "reach / 2 -> reach / 3": ROUND,
        "reach /= 2 -> reach /= 3": ROUND,
        "break -> dropped": "more rounds change nothing",
        "if reach < 1e-06: -> dropped": "more rounds change nothing",
        "reach < 1e-06 -> reach <= 1e-06": "it is a power of 2, never a millionth",
        "center + reach * torch.cartesian_prod(GRID, GRID) -> "
        "center - reach * torch.cartesian_prod(GRID, GRID)": "the grid is symmetric",
        "found[best, :, 0] -> found[best, :, -1]": "there is one column",
        "powers[0] -> powers[-1]": "only its shape counts",
        "powers[0] -> powers[1]": "only its shape counts",
        "torch.ones(2, dtype=torch.float64) -> torch.ones(1, dtype=torch.float64)": "broadcast",
        "torch.ones(2, dtype=torch.float64) -> torch.ones(2)": "1 is exact in float32",
    },
}
