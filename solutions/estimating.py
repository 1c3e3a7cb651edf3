"""Lab 19: estimating. What a model costs on a machine, before anything runs.

From a model's shape and a machine's limits: parameters, FLOPs, bytes, the time of a step, the batch
that fits, the price of a million tokens, and the requests per second that a service can take. Then
scaling laws: how loss depends on the sizes of model and data, and how to spend a budget.

Sources: Kaplan et al., "Scaling laws for neural language models", 2020 (FLOPs per token); Pope et
al., "Efficiently scaling transformer inference", MLSys 2023 (the time of a step); Little, "A proof
for the queuing formula L = λW", Operations Research 1961; Hoffmann et al., "Training
compute-optimal large language models", 2022 (the law and its optimum); Besiroglu et al.,
"Chinchilla scaling: a replication attempt", 2024 (how uncertain its fit is).
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from solutions.estimates.shapes import Machine, Shape

Law = Mapping[str, float]  # of the loss: E + A / N**alpha + B / D**beta

# ----------------------------------------------------------------------------------- parameters


def parameters(shape: Shape) -> dict[str, int]:
    """Count a model's parameters.

    - embedding: of the tokens, and of the positions if they are learned
    - matrices: in all blocks. Attention has four, to queries, keys, values and back, or
      `latent_weights` numbers if these aren't 0. A dense MLP has two matrices, or three if it is
      gated. All layers with experts together have `expert_matrices(shape)` numbers.
    - vectors: gains and biases. Each block has two norms, and one norm follows the last block; a
      norm is a gain and, in a model with biases, a bias. There, every output of attention's four
      matrices and of the MLP's two has a bias, too. Each block has `more_vectors` numbers more.
    - head: vocab * width, or 0 if it is tied
    - total: the sum of these four
    - active: the total without the experts that a token isn't sent to
    """
    ### BEGIN SOLUTION
    d, biased = shape.width, int(shape.biases)
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    attention = shape.latent_weights or 2 * d * (queries + keys)
    dense = (3 if shape.gated else 2) * d * shape.ff
    norm, bias = d * (1 + biased), biased * (queries + 2 * keys + shape.ff + 2 * d)
    count = {
        "embedding": d * (shape.vocab + shape.positions),
        "matrices": shape.layers * attention + shape.dense_layers * dense + expert_matrices(shape),
        "vectors": shape.layers * (2 * norm + bias + shape.more_vectors) + norm,
        "head": 0 if shape.tied else d * shape.vocab,
    }
    total = sum(count.values())
    unused = (shape.experts - shape.experts_per_token) * expert_weights(shape)
    return {**count, "total": total, "active": total - unused}
    ### END SOLUTION


def expert_weights(shape: Shape) -> int:
    """Return the weights of one expert per layer, in all layers that have experts together."""
    per_neuron = (3 if shape.gated else 2) * shape.width
    return shape.expert_layers * per_neuron * shape.expert_ff


def expert_matrices(shape: Shape) -> int:
    """Return the weights of all experts, the shared ones included, and of their routers."""
    routers = shape.expert_layers * shape.width * shape.experts
    return (shape.experts + shape.shared_experts) * expert_weights(shape) + routers


def experts_touched(shape: Shape, tokens: int) -> float:
    """Return how many experts of a layer a step reads, if each token chooses at random (lab 17)."""
    if not shape.experts:
        return 0.0
    return shape.experts * (1 - (1 - shape.experts_per_token / shape.experts) ** tokens)


# --------------------------------------------------------------------------------- one sequence


def forward_flops(shape: Shape, new: int, context: int) -> int:
    """Count the FLOPs of a forward pass of `new` tokens, behind `context` tokens in the KV cache.

    Two for each multiplication with an addition, and nothing else is counted. Each new token is
    multiplied by the matrices that it uses, the head included, whether tied or not; an embedding is
    looked up, not multiplied. In each layer, each of its query heads is multiplied by the keys that
    it sees, and its probabilities by their values: `context` of them, those of the new tokens
    before it, and its own. With latent attention, `latent_products` multiplications in a layer
    replace those of all heads, for each pair of a new token and one that it sees.
    """
    require_tokens(new, context)
    ### BEGIN SOLUTION
    count = parameters(shape)
    unused = count["total"] - count["active"]
    weights = count["matrices"] - unused + shape.width * shape.vocab
    products = shape.latent_products or 2 * shape.heads * shape.head_dim
    pairs = new * context + new * (new + 1) // 2
    return 2 * (new * weights + shape.layers * products * pairs)
    ### END SOLUTION


def kv_bytes(shape: Shape, tokens: int, width: int) -> int:
    """Return the bytes of a KV cache that holds `tokens` tokens. width: bytes of a number.

    A layer keeps a key and a value for each KV head, or `latent_width` numbers if that isn't 0.
    """
    ### BEGIN SOLUTION
    per_layer = shape.latent_width or 2 * shape.kv_heads * shape.head_dim
    return width * shape.layers * per_layer * tokens
    ### END SOLUTION


# ------------------------------------------------------------------------------- on a machine


def step_time(
    shape: Shape, machine: Machine, batch: int, new: int, context: int, width: int
) -> float:
    """Return the least seconds of a step: `new` tokens in each of `batch` sequences.

    It takes as long as the slower of computing and reading, which overlap. Computing: the
    `forward_flops` of all sequences. Reading: the weights once for the whole batch, and the KV
    cache of `context + new` tokens for each sequence. Not all weights are read: of the embedding
    only a few rows, which are left out, but a tied head reads vocab * width numbers of it; and of
    each layer's experts only the expected number that the batch's tokens touch.

    new: 1 for a decode step, the prompt's length for a prefill with context 0. width: bytes of each
    number, in weights and cache.
    """
    require_batch(batch)
    ### BEGIN SOLUTION
    count = parameters(shape)
    untouched = (shape.experts - experts_touched(shape, batch * new)) * expert_weights(shape)
    weights = count["matrices"] - untouched + count["vectors"] + shape.width * shape.vocab
    moved = width * weights + batch * kv_bytes(shape, context + new, width)
    flops = batch * forward_flops(shape, new, context)
    return max(moved / machine.bandwidth, flops / machine.flops)
    ### END SOLUTION


MOST = 2**24  # the largest batch that is tried


def ridge_batch(shape: Shape, machine: Machine, context: int, width: int) -> float:
    """Return the smallest batch whose decode step waits for arithmetic, not for memory.

    It is infinite if there is none: each sequence reads its own KV cache, however many there are.
    """
    computing, reading = replace(machine, bandwidth=math.inf), replace(machine, flops=math.inf)

    def computes_longer(batch: int) -> bool:
        both = (step_time(shape, one, batch, 1, context, width) for one in (computing, reading))
        return next(both) >= next(both)

    if not computes_longer(MOST):
        return math.inf
    return 1 + bisect_right(range(1, MOST), False, key=computes_longer)


def plan(
    shape: Shape, machine: Machine, context: int, width: int, tpot_limit: float
) -> tuple[int, float]:
    """Return the largest batch that a machine can decode, and the price of 10**6 output tokens.

    context: tokens that each sequence has at its end, prompt and output. Memory has to hold all the
    weights, and the KV cache of `batch` sequences of that length. The step that computes the last
    of these tokens, behind context - 1 others, takes at most `tpot_limit` seconds. The price
    assumes that the machine does one such step after the other. It is in dollars, as the machine's
    price_per_hour. Returns (0, math.inf) if not even one sequence can be served.
    """
    require_tokens(context, 0)
    ### BEGIN SOLUTION
    free = machine.memory - width * parameters(shape)["total"]
    fitting = max(0, free // kv_bytes(shape, context, width))

    def seconds(batch: int) -> float:
        return step_time(shape, machine, batch, 1, context - 1, width)

    batch = bisect_right(range(1, fitting + 1), tpot_limit, key=seconds)
    if batch == 0:
        return 0, math.inf
    return batch, machine.price_per_hour / 3600 * seconds(batch) / batch * 10**6
    ### END SOLUTION


def worth(machine: Machine, tokens_per_second: float) -> dict[str, float]:
    """Return tokens per joule, which is per second and watt, and per dollar; inf if unknown."""
    per_hour = 3600 * tokens_per_second
    return {
        "joule": tokens_per_second / machine.watts if machine.watts else math.inf,
        "dollar": per_hour / machine.price_per_hour if machine.price_per_hour else math.inf,
    }


def max_rate(slots: int, ttft: float, tpot: float, new_tokens: int) -> float:
    """Return the most requests per second that a service with so many slots can take.

    By Little's law, requests in service = rate * seconds in service. A request holds its slot from
    the start of its prefill to its last token. ttft: seconds to the first token, without waiting
    for a slot. tpot: seconds for each token after it. new_tokens: tokens of an answer.
    """
    require_batch(slots)
    ### BEGIN SOLUTION
    return slots / (ttft + tpot * (new_tokens - 1))
    ### END SOLUTION


# --------------------------------------------------------------------------------- scaling laws

LAWS: dict[str, Law] = {
    # Hoffmann et al., equation 10 as printed, and the numbers in its TeX source before rounding.
    "printed": {"E": 1.69, "A": 406.4, "B": 410.7, "alpha": 0.34, "beta": 0.28},
    "unrounded": {
        "E": 1.693374,
        "A": 406.401,
        "B": 410.7228,
        "alpha": 0.33917084,
        "beta": 0.2849083,
    },
    # Besiroglu et al., section 3: the same runs, fitted again.
    "replication": {"E": 1.8172, "A": 482.01, "B": 2085.43, "alpha": 0.3478, "beta": 0.3658},
}
Runs = Float[Tensor, " runs"]


def predicted_loss(law: Law, params: Runs, tokens: Runs) -> Runs:
    """Return the loss that a law predicts, for models of `params` trained on `tokens`."""
    return law["E"] + law["A"] / params ** law["alpha"] + law["B"] / tokens ** law["beta"]


GRID = torch.linspace(-1, 1, 9, dtype=torch.float64)
ROUNDS = 100


def fit_law(params: Runs, tokens: Runs, loss: Runs) -> dict[str, float]:
    """Fit loss = E + A / params**alpha + B / tokens**beta by least squares, in float64.

    For given exponents the best E, A and B follow from linear least squares, so only alpha and beta
    are searched, between 0 and 2: on a grid around the best pair so far, which moves and becomes
    finer. The result is the same in any unit of params and tokens, except for A and B.
    """
    require_runs(params, tokens, loss)
    ### BEGIN SOLUTION
    x, y, target = params.double().log(), tokens.double().log(), loss.double()
    center, reach = torch.ones(2, dtype=torch.float64), 1.0
    for _ in range(ROUNDS):
        exponents = (center + reach * torch.cartesian_prod(GRID, GRID)).clamp(1e-3, 2)
        alpha, beta = exponents[:, :1], exponents[:, 1:]
        powers = (-alpha * (x - x.mean())).exp(), (-beta * (y - y.mean())).exp()
        columns = torch.stack([torch.ones_like(powers[0]), *powers], dim=-1)
        wanted = target.expand(len(columns), -1)[..., None]
        found = torch.linalg.lstsq(columns, wanted).solution
        best = (columns @ found - wanted).square().sum((1, 2)).argmin()
        if (exponents[best] - center).abs().max() <= reach / 2:
            reach /= 2
        center = exponents[best]
        if reach < 1e-6:
            break
    (alpha, beta), (floor, a, b) = center.tolist(), found[best, :, 0].tolist()
    scale = math.exp(alpha * float(x.mean())), math.exp(beta * float(y.mean()))
    return {"E": floor, "A": a * scale[0], "B": b * scale[1], "alpha": alpha, "beta": beta}
    ### END SOLUTION


def compute_optimal(law: Law, flops: float) -> tuple[float, float]:
    """Return the parameters and training tokens with the least loss for a budget of FLOPs.

    Training takes 6 FLOPs per parameter and token, so 6 * params * tokens = flops. The best params
    are where the derivative of the predicted loss along this curve is 0.
    """
    ### BEGIN SOLUTION
    alpha, beta = law["alpha"], law["beta"]
    product = flops / 6
    ratio = alpha * law["A"] / (beta * law["B"])
    params = (ratio * product**beta) ** (1 / (alpha + beta))
    return params, product / params
    ### END SOLUTION


def isoflop(law: Law, flops: float, params: Runs) -> Runs:
    """Return the losses of models of these sizes, each trained with the same budget of FLOPs."""
    return predicted_loss(law, params, flops / (6 * params))


def synthetic_runs(
    law: Law, budgets: Sequence[float], sizes: int, noise: float, seed: int = 0
) -> tuple[Runs, Runs, Runs]:
    """Return params, tokens and losses of made-up training runs.

    For each budget of FLOPs, `sizes` models from a fifth of the optimal size to five times it. The
    losses are the law's, times a normal number around 1 with a standard deviation of `noise`.
    """
    best = torch.tensor([compute_optimal(law, flops)[0] for flops in budgets], dtype=torch.float64)
    factors = torch.logspace(-1, 1, sizes, base=5, dtype=torch.float64)
    params = (best[:, None] * factors).flatten()
    tokens = torch.tensor(budgets, dtype=torch.float64).repeat_interleave(sizes) / (6 * params)
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(len(params), generator=generator, dtype=torch.float64)
    return params, tokens, predicted_loss(law, params, tokens) * (1 + noise * normal)


def bootstrap(
    params: Runs, tokens: Runs, loss: Runs, times: int, seed: int = 0
) -> Iterator[dict[str, float]]:
    """Yield the laws fitted to samples of the runs, each drawn with replacement."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(times):
        drawn = torch.randint(len(loss), (len(loss),), generator=generator)
        yield fit_law(params[drawn], tokens[drawn], loss[drawn])


# --------------------------------------------------------------------------------- input checks


def require_tokens(new: int, context: int) -> None:
    if new < 1 or context < 0:
        raise ValueError(
            f"A forward pass has at least one new token and a context from 0 up, not {new} new "
            f"tokens behind {context}."
        )


def require_batch(batch: int) -> None:
    if batch < 1:
        raise ValueError(f"A batch or a number of slots is a whole number from 1 up, not {batch}.")


def require_runs(params: Runs, tokens: Runs, loss: Runs) -> None:
    if not params.shape == tokens.shape == loss.shape or params.ndim != 1 or len(loss) < 5:
        raise ValueError(
            "The law has five unknowns, so it needs five runs or more, each with params, tokens "
            f"and loss, not {list(params.shape)}, {list(tokens.shape)} and {list(loss.shape)}."
        )
    if not (min(params.min(), tokens.min()) > 0 and torch.isfinite(loss).all()):
        raise ValueError("Params and tokens are numbers above 0, and losses are finite.")
