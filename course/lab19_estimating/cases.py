"""The exercises of lab 19: counts of a shape, times and prices on a machine, laws of the loss."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from itertools import chain
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from autograder.attempt.drivers import estimating as drivers
from autograder.judging.draws import draw, until
from autograder.judging.exercise import Case, Exercise, case_of
from solutions import estimating as reference
from solutions.estimates.shapes import MODELS, Machine, Shape

Runs = Float[Tensor, " runs"]

# ------------------------------------------------------------------------------------- of a shape

LAYERS = 3


class Between(NamedTuple):
    """A whole number to be drawn, from low to high, both included."""

    low: int
    high: int


class More(Between):
    """A number to be drawn and added."""


# Parts of a shape: the fields that aren't the default.
Part = dict[str, Any]
BIASES: Part = {"gated": False, "biases": True, "tied": True}
TWO_MATRICES: Part = {"gated": False}
TIED: Part = {"tied": True}
POSITIONS: Part = {"positions": Between(30, 60)}
GROUPED: Part = {"kv_heads": 2}
ONE_KV_HEAD: Part = {"kv_heads": 1}
WIDE: Part = {"head_dim": More(1, 3)}
VECTORS: Part = {"more_vectors": Between(5, 20)}
EXPERTS: Part = {
    "ff": 0,
    "expert_layers": LAYERS,
    "experts": Between(5, 9),
    "experts_per_token": Between(2, 4),
    "expert_ff": Between(5, 9),
}
DENSE: Part = {"ff": Between(20, 30), "expert_layers": LAYERS - 1}
SHARED: Part = {"shared_experts": Between(1, 2)}
LATENT: Part = {
    "latent_weights": Between(300, 600),
    "latent_width": Between(5, 12),
    "latent_products": Between(90, 140),
}
GPT2, LLAMA = (BIASES, POSITIONS), (GROUPED,)
DEEPSEEK = EXPERTS, DENSE, SHARED, LATENT, VECTORS


def sizes(generator: Generator, parts: Sequence[Part]) -> dict[str, Any]:
    """A small shape with these parts: the fields that aren't the default."""
    head_dim = draw(generator, 3, 5)
    shape: dict[str, Any] = {"vocab": draw(generator, 25, 40), "width": 4 * head_dim}
    shape |= {"layers": LAYERS, "heads": 4, "kv_heads": 4, "head_dim": head_dim}
    shape["ff"] = draw(generator, 35, 50)
    for name, value in chain.from_iterable(part.items() for part in parts):
        before = shape[name] if isinstance(value, More) else 0
        is_drawn = isinstance(value, Between)
        shape[name] = before + draw(generator, *value) if is_drawn else value
    return shape


def published(name: str) -> dict[str, Any]:
    """A known model's shape: the fields that aren't the default."""
    values = asdict(MODELS[name])
    return {f.name: values[f.name] for f in fields(Shape) if values[f.name] != f.default}


def parameters_terms(shape: Shape) -> dict[str, dict[str, float]]:
    """Of which terms the matrices and the vectors are the sums."""
    d, queries, keys = shape.width, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    norm, biased = d * (1 + shape.biases), int(shape.biases)
    matrices = {
        "attention": shape.layers * (shape.latent_weights or 2 * d * (queries + keys)),
        "dense MLPs": shape.dense_layers * (2 + shape.gated) * d * shape.ff,
        "experts with routers": reference.expert_matrices(shape),
    }
    vectors = {
        "two norms in each block": shape.layers * 2 * norm,
        "the last norm": norm,
        "biases of attention": biased * shape.layers * (queries + 2 * keys + d),
        "biases of MLPs": biased * shape.layers * (shape.ff + d),
        "`more_vectors`": shape.layers * shape.more_vectors,
    }
    return {"`matrices`": present(matrices), "`vectors`": present(vectors)}


def present(terms: Mapping[str, float]) -> dict[str, float]:
    """Return those that there are."""
    return {name: value for name, value in terms.items() if value}


def parameters_cases(generator: Generator) -> list[Case]:
    def made(label: str, shape: dict[str, Any]) -> Case:
        return Case(label, {"shape": shape}, parameters_terms(Shape(**shape)))

    def case(label: str, *parts: Part) -> Case:
        return made(label, sizes(generator, parts))

    return [
        case("a gated MLP, a head of its own"),
        case("the same fields, other sizes"),
        case("an MLP of two matrices", TWO_MATRICES),
        case("a tied head", TIED),
        case("learned positions", POSITIONS),
        case("two query heads share a KV head", GROUPED),
        case("heads that are wider than the hidden state together", WIDE, GROUPED),
        case("biases, learned positions, a tied head", *GPT2),
        case("biases, and two query heads share a KV head", *GPT2, GROUPED, WIDE),
        case("experts in every layer", GROUPED, EXPERTS),
        case("experts of two matrices", TWO_MATRICES, GROUPED, EXPERTS),
        case("experts, and a first layer that is dense", EXPERTS, DENSE),
        case("experts, some of them shared", EXPERTS, SHARED),
        case("latent attention", LATENT, VECTORS),
        case("latent attention, shared experts, a dense layer", *DEEPSEEK),
        *(made(name, published(name)) for name in ("fable", "Mixtral-8x7B")),
    ]


def flops_terms(shape: Shape, new: int, context: int) -> dict[str, float]:
    count = reference.parameters(shape)
    used = count["matrices"] - (count["total"] - count["active"])
    pair = shape.layers * (shape.latent_products or 2 * shape.heads * shape.head_dim)
    return {
        "the matrices that each token uses": 2 * new * used,
        "the head": 2 * new * shape.width * shape.vocab,
        "attention to the cache": 2 * new * context * pair,
        "attention to the new tokens": new * (new + 1) * pair,
    }


def flops_cases(generator: Generator) -> list[Case]:
    def made(label: str, shape: dict[str, Any], new: int, context: int) -> Case:
        terms = present(flops_terms(Shape(**shape), new, context))
        data = {"shape": shape, "new": new, "context": context}
        return Case(label, data, {"What it returned": terms})

    def case(label: str, new: int, context: int, *parts: Part) -> Case:
        return made(label, sizes(generator, parts), new, context)

    return [
        case("one token, no context", 1, 0),
        case("one token, 7 in the cache", 1, 7),
        case("one token, 7 in the cache, two query heads share a KV head", 1, 7, *LLAMA),
        case("a prefill of 9 tokens", 9, 0, *LLAMA),
        case("a prefill of 60 tokens", 60, 0),
        case("5 tokens, 8 in the cache", 5, 8, GROUPED, WIDE),
        case("learned positions, biases, a tied head", 6, 5, *GPT2),
        case("one KV head for all", 3, 6, ONE_KV_HEAD),
        case("experts, one token", 1, 3, EXPERTS),
        case("experts, 5 tokens", 5, 6, GROUPED, EXPERTS, DENSE, SHARED),
        case("latent attention, experts, a dense layer", 3, 9, *DEEPSEEK),
        made("fable, 256 tokens", published("fable"), 256, 0),
    ]


def kv_cases(generator: Generator) -> list[Case]:
    made = case_of("shape", "tokens", "width")

    def case(label: str, tokens: int, width: int, *parts: Part) -> Case:
        return made(label, sizes(generator, parts), tokens, width)

    names = "OPT-13B", "Llama-3-8B", "DeepSeek-V3"
    return [
        case("one token", 1, 1),
        case("7 tokens", 7, 4),
        case("no token", 0, 2),
        case("two query heads share a KV head", 5, 2, GROUPED),
        case("one KV head for all", 9, 2, ONE_KV_HEAD),
        case("heads that are wider than the hidden state together", 6, 2, WIDE),
        case("experts", 8, 2, EXPERTS, DENSE),
        case("latent attention", 3, 2, LATENT),
        case("latent attention, two query heads share a KV head", 11, 1, LATENT, GROUPED),
        *(made(name, published(name), 1, 2) for name in names),
    ]


# ----------------------------------------------------------------------------------- on a machine

# A toy, because a function that is lent for a grade takes no number above it
# (grading/judge/near.py).
LARGEST = 100_000


def limits(machine: Machine, *more: str) -> dict[str, float]:
    """Those of a machine's fields that count."""
    return {name: getattr(machine, name) for name in ("flops", "bandwidth", "memory", *more)}


def waiting(generator: Generator, longer: str, step: Callable[[Machine], float]) -> Machine:
    """A machine on which one side of a step takes two to four times as long as the other."""
    one = Machine(1.0, 1.0, LARGEST)
    computing, reading = step(replace(one, bandwidth=math.inf)), step(replace(one, flops=math.inf))
    apart, seconds = draw(generator, 20, 40) / 10, draw(generator, 40, 90)
    factor = 1 / apart if longer == "computing" else apart
    return Machine(factor * computing / seconds, reading / seconds, LARGEST)


def computing(
    shape: Shape, machine: Machine, batch: int, new: int, context: int, width: int
) -> dict[str, float]:
    """The seconds of the terms of `forward_flops`."""
    terms = flops_terms(shape, new, context)
    return {name: batch * flops / machine.flops for name, flops in terms.items()}


def reading(
    shape: Shape, machine: Machine, batch: int, new: int, context: int, width: int
) -> dict[str, float]:
    """The seconds for each kind of numbers that a step reads."""
    count = reference.parameters(shape)
    untouched = shape.experts - reference.experts_touched(shape, batch * new)
    numbers = {
        "matrices": count["matrices"] - untouched * reference.expert_weights(shape),
        "vectors": count["vectors"],
        "the head": shape.width * shape.vocab,
        "keys and values": batch * reference.kv_bytes(shape, context + new, 1),
    }
    return {name: width * numbers[name] / machine.bandwidth for name in numbers}


def step_cases(generator: Generator) -> list[Case]:
    made = case_of("shape", "machine", "batch", "new", "context", "width")

    def case(
        label: str,
        longer: str,
        parts: Sequence[Part],
        batch: int,
        new: int,
        context: int,
        width: int = 2,
    ) -> Case:
        shape = sizes(generator, parts)

        def step(machine: Machine) -> float:
            given = batch, new, context, width
            return reference.step_time(Shape(**shape), machine, *given)

        machine = waiting(generator, longer, step)
        given = shape, limits(machine), batch, new, context, width
        seconds = reading if longer == "reading" else computing
        terms = present(seconds(Shape(**shape), machine, batch, new, context, width))
        found = made(f"{label}; {longer} takes longer", *given)
        return replace(found, terms={"What it returned": terms})

    read, compute = "reading", "computing"
    return [
        case("one sequence decodes, no context", read, (), 1, 1, 0),
        case("one sequence decodes, 9 in the cache", read, (), 1, 1, 9),
        case("one sequence decodes, 9 in the cache", compute, (), 1, 1, 9),
        case("three sequences decode", read, LLAMA, 3, 1, 20),
        case("three sequences decode", compute, LLAMA, 3, 1, 20),
        case("a prefill of 12 tokens", read, LLAMA, 1, 12, 0),
        case("a prefill of 12 tokens", compute, LLAMA, 1, 12, 0),
        case("a prefill of two prompts", read, (WIDE,), 2, 7, 0, 4),
        case("5 tokens each, behind 6 others", read, (ONE_KV_HEAD,), 4, 5, 6, 1),
        case("a tied head", read, (TIED,), 2, 1, 8),
        case("learned positions, biases, a tied head", read, GPT2, 3, 1, 5, 4),
        case("experts, one token", read, (EXPERTS,), 1, 1, 4),
        case("experts, one token", compute, (EXPERTS,), 1, 1, 4),
        case("experts, a prefill of 6 tokens", read, (EXPERTS,), 2, 6, 0),
        case("shared experts, a dense layer", read, (EXPERTS, DENSE, SHARED), 3, 1, 2),
        case("latent attention, experts", read, DEEPSEEK, 2, 1, 30, 1),
    ]


# FLOPs and bytes per second, so that one takes longer. Powers of two: rounding decides nothing.
READING, COMPUTING = (2.0**16, 2.0**10), (2.0**10, 2.0**16)


def plan_cases(generator: Generator) -> list[Case]:
    def case(
        label: str,
        parts: Sequence[Part],
        context: int,
        memory: tuple[int, int],
        limit: tuple[int, float] | None = None,
        width: int = 2,
        rates: tuple[float, float] = READING,
    ) -> Case:
        """memory: for so many sequences, and so many bytes. limit: a step may take as long as one
        of so many sequences, times a factor; None for a limit beyond all steps."""
        shape, (fitting, spare), (at, factor) = sizes(generator, parts), memory, limit or (1, 1.0)
        free = fitting * reference.kv_bytes(Shape(**shape), context, width) + spare
        total = width * reference.parameters(Shape(**shape))["total"] + free
        machine = Machine(*rates, total, price_per_hour=draw(generator, 5, 60) / 10)
        step = reference.step_time(Shape(**shape), machine, at, 1, context - 1, width)
        data = {"shape": shape, "machine": limits(machine, "price_per_hour"), "context": context}
        return Case(label, {**data, "width": width, "tpot_limit": factor * step if limit else 1e3})

    some, most = draw(generator, 5, 9), draw(generator, 12, 16)
    return [
        case("one sequence fits exactly", (), 8, (1, 0)),
        case("memory for one lacks a byte", (), 8, (1, -1)),
        case("memory for several", LLAMA, 20, (some, 0)),
        case("memory for several, less a byte", LLAMA, 20, (some, -1)),
        case("the weights fill the memory", LLAMA, 12, (0, 0)),
        case("the weights don't fit", LLAMA, 12, (-2, 0)),
        case("the limit is what some need", (), 10, (most, 0), (some, 1.0)),
        case("the limit is a little less than some need", LLAMA, 20, (most, 0), (some, 0.9999)),
        case("the limit is what one needs", LLAMA, 9, (most, 0), (1, 1.0)),
        case("a step of one takes longer than the limit", LLAMA, 9, (most, 0), (1, 0.999)),
        case("a context of one token", (), 1, (some, 0)),
        case("computing takes longer", LLAMA, 16, (most, 0), (some, 1.0), rates=COMPUTING),
        case("experts", (GROUPED, EXPERTS), 15, (most, 0), (some, 1.0001), width=1),
        case("experts, no limit", (ONE_KV_HEAD, EXPERTS, SHARED), 4, (some, 5)),
        case("a tied head, four bytes a number", GPT2, 3, (some, 2), width=4),
        case("latent attention", DEEPSEEK, 40, (most, 0), (some, 1.0001)),
    ]


def rate_cases(generator: Generator) -> list[Case]:
    case = case_of("slots", "ttft", "tpot", "new_tokens")
    ttft, tpot = draw(generator, 20, 90) / 100, draw(generator, 11, 49) / 1000
    return [
        case("one slot, one token", 1, 0.5, 0.25, 1),
        case("one slot, two tokens", 1, 0.5, 0.25, 2),
        case("8 slots, one token", 8, ttft, tpot, 1),
        case("8 slots, two tokens", 8, tpot, ttft, 2),
        case("8 slots, an answer of 100 tokens", 8, ttft, tpot, 100),
        case("many slots", draw(generator, 100, 300), ttft, tpot, draw(generator, 50, 500)),
        case("a prefill that takes long", 4, 10 * ttft, tpot, draw(generator, 5, 20)),
    ]


# --------------------------------------------------------------------------------- scaling laws

MIDDLE = 1e8, 1e10  # params and tokens of the runs


def law(generator: Generator, alpha: int, beta: int, floor: int = 18) -> dict[str, float]:
    """A law with about these hundredths as exponents, and tenths as its floor E."""
    exponents = [e / 100 + draw(generator, -2, 2) / 1000 + 0.0005 for e in (alpha, beta)]
    shares = [draw(generator, 30, 90) / 100 for _ in MIDDLE]  # of the loss in the middle
    found = [s * m**e for s, m, e in zip(shares, MIDDLE, exponents, strict=True)]
    drawn = floor / 10, *found, *exponents
    return dict(zip(drivers.LAW, drawn, strict=True))


def fit_cases(generator: Generator) -> list[Case]:
    def case(
        label: str,
        about: Sequence[int],
        models: int = 3,
        noise: float = 0.0,
        unit: float = 1.0,
        is_line: bool = False,
        digits: int = 3,
    ) -> Case:
        """Runs of so many models, each with so many sizes of data, in any order.

        is_line: each with one size, nearly proportional to the model's, over four decades.
        """
        true = law(generator, *about)
        each = torch.linspace(-1, 1, models, dtype=torch.float64)
        powers = torch.cartesian_prod(each, each)
        if is_line:
            aside = 0.05 * (-1.0) ** torch.arange(models)
            powers = torch.stack([2 * each, 2 * each + aside], dim=1)
        factors = 10.0**powers
        order = torch.randperm(len(factors), generator=generator)
        params, tokens = (factors[order] * torch.tensor(MIDDLE)).unbind(dim=1)
        loss = reference.predicted_loss(true, params, tokens)
        loss = loss * (1 + noise * torch.randn(len(loss), generator=generator).double())
        runs = {"params": params / unit, "tokens": tokens / unit, "loss": loss}
        fitted = reference.fit_law(**runs)

        def place(factor: float) -> list[float]:
            """Sizes around this many times the middle, where the loss is clearly rounded."""

            def drawn() -> list[float]:
                shifted = (factor * m * draw(generator, 50, 200) / 100 / unit for m in MIDDLE)
                return [float(f"{size:.3g}") for size in shifted]

            def is_settled(place: list[float]) -> bool:
                sizes = torch.tensor(place, dtype=torch.float64)
                steps = 10**digits * float(reference.predicted_loss(fitted, *sizes))
                return abs(steps - round(steps)) < 0.2

            return until(is_settled, drawn)

        places = [place(factor) for factor in (1, 0.2, 20, 100)]
        return Case(label, {**runs, "places": places, "digits": digits, "is_exact": not noise})

    return [
        case("nine runs", (34, 28)),
        case("nine other runs", (31, 42)),
        case("a law without a floor", (22, 37, 0)),
        case("a small floor, and 16 runs", (47, 29, 4), 4),
        case("25 runs, exponents far apart", (113, 18), 5),
        case("params and tokens in billions", (36, 25), 4, unit=1e9),
        case("tokens nearly proportional to params", (120, 40), 12, is_line=True),
        case("large exponents", (197, 180)),
        case("the best exponent of params would be 2.3", (230, 60)),
        case("a loss that grows with params", (-30, 40), digits=2),
        case("36 runs with noise", (35, 37), 6, 0.05, digits=2),
    ]


def optimal_cases(generator: Generator) -> list[Case]:
    def case(label: str, flops: float, alpha: int, beta: int) -> Case:
        return Case(label, {"law": law(generator, alpha, beta), "flops": flops})

    equal = {"E": 1.5, "A": 300.0, "B": 300.0, "alpha": 0.5, "beta": 0.5}
    printed = dict(reference.LAWS["printed"])
    return [
        Case("A = B, alpha = beta", {"law": equal, "flops": 6e20}),
        Case("A = B, alpha = beta, a budget 100 times as large", {"law": equal, "flops": 6e22}),
        case("alpha above beta", 1e19, 38, 27),
        case("alpha below beta", 1e21, 29, 41),
        case("exponents far apart", 3e22, 71, 22),
        case("the law of Chinchilla's size", 5.76e23, 34, 28),
        Case("the printed law of Chinchilla", {"law": printed, "flops": 5.76e23}),
        case("a small budget", 1e10, 33, 36),
    ]


EXERCISES = (
    Exercise("estimating.parameters", drivers.parameters, parameters_cases),
    Exercise("estimating.forward_flops", drivers.forward_flops, flops_cases),
    Exercise("estimating.kv_bytes", drivers.kv_bytes, kv_cases),
    Exercise("estimating.step_time", drivers.step_time, step_cases),
    Exercise("estimating.plan", drivers.plan, plan_cases),
    Exercise("estimating.max_rate", drivers.max_rate, rate_cases),
    Exercise("estimating.compute_optimal", drivers.compute_optimal, optimal_cases),
    Exercise("estimating.fit_law", drivers.fit_law, fit_cases),
)
