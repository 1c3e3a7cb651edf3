"""The exercises of lab 19: counts of a shape, times and prices on a machine, laws of the loss."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

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

PARTS: dict[str, Callable[[Generator, dict[str, Any]], dict[str, Any]]] = {
    "biased": lambda g, shape: {"gated": False, "biases": True, "tied": True},
    "two": lambda g, shape: {"gated": False},  # matrices in an MLP
    "tied": lambda g, shape: {"tied": True},
    "learned": lambda g, shape: {"positions": draw(g, 30, 60)},
    "grouped": lambda g, shape: {"kv_heads": 2},
    "multi-query": lambda g, shape: {"kv_heads": 1},
    "wide": lambda g, shape: {"head_dim": shape["head_dim"] + draw(g, 1, 3)},
    "more": lambda g, shape: {"more_vectors": draw(g, 5, 20)},
    "experts": lambda g, shape: (
        {"ff": 0, "expert_layers": shape["layers"], "experts": draw(g, 5, 9)}
        | {"experts_per_token": draw(g, 2, 4), "expert_ff": draw(g, 5, 9)}
    ),
    "dense": lambda g, shape: {"ff": draw(g, 20, 30), "expert_layers": shape["layers"] - 1},
    "shared": lambda g, shape: {"shared_experts": draw(g, 1, 2)},
    "latent": lambda g, shape: (
        {"latent_weights": draw(g, 300, 600), "latent_width": draw(g, 5, 12)}
        | {"latent_products": draw(g, 90, 140)}
    ),
}
GPT2, LLAMA = "biased learned", "grouped"
DEEPSEEK = "experts dense shared latent more"


def sizes(generator: Generator, parts: str) -> dict[str, Any]:
    """A small shape with these parts: the fields that aren't the default."""
    head_dim = draw(generator, 3, 5)
    shape: dict[str, Any] = {"vocab": draw(generator, 25, 40), "width": 4 * head_dim, "layers": 3}
    shape |= {"heads": 4, "kv_heads": 4, "head_dim": head_dim, "ff": draw(generator, 35, 50)}
    for part in parts.split():
        shape |= PARTS[part](generator, shape)
    return shape


def published(name: str) -> dict[str, Any]:
    """A known model's shape: the fields that aren't the default."""
    values = asdict(MODELS[name])
    return {f.name: values[f.name] for f in fields(Shape) if values[f.name] != f.default}


def parameters_cases(generator: Generator) -> list[Case]:
    def case(label: str, parts: str = "") -> Case:
        return Case(label, {"shape": sizes(generator, parts)})

    return [
        case("a gated MLP, a head of its own"),
        case("the same fields, other sizes"),
        case("an MLP of two matrices", "two"),
        case("a tied head", "tied"),
        case("learned positions", "learned"),
        case("two query heads share a KV head", "grouped"),
        case("heads that are wider than the hidden state together", "wide grouped"),
        case("biases, learned positions, a tied head", GPT2),
        case("biases, and two query heads share a KV head", f"{GPT2} grouped wide"),
        case("experts in every layer", "grouped experts"),
        case("experts of two matrices", "two grouped experts"),
        case("experts, and a first layer that is dense", "experts dense"),
        case("experts, some of them shared", "experts shared"),
        case("latent attention", "latent more"),
        case("latent attention, shared experts, a dense layer", DEEPSEEK),
        *(Case(name, {"shape": published(name)}) for name in ("fable", "Mixtral-8x7B")),
    ]


def flops_cases(generator: Generator) -> list[Case]:
    made = case_of("shape", "new", "context")

    def case(label: str, new: int, context: int, parts: str = "") -> Case:
        return made(label, sizes(generator, parts), new, context)

    return [
        case("one token, no context", 1, 0),
        case("one token, 7 in the cache", 1, 7),
        case("one token, 7 in the cache, two query heads share a KV head", 1, 7, LLAMA),
        case("a prefill of 9 tokens", 9, 0, LLAMA),
        case("a prefill of 60 tokens", 60, 0),
        case("5 tokens, 8 in the cache", 5, 8, "grouped wide"),
        case("learned positions, biases, a tied head", 6, 5, GPT2),
        case("one KV head for all", 3, 6, "multi-query"),
        case("experts, one token", 1, 3, "experts"),
        case("experts, 5 tokens", 5, 6, "grouped experts dense shared"),
        case("latent attention, experts, a dense layer", 3, 9, DEEPSEEK),
        made("fable, 256 tokens", published("fable"), 256, 0),
    ]


def kv_cases(generator: Generator) -> list[Case]:
    made = case_of("shape", "tokens", "width")

    def case(label: str, tokens: int, width: int, parts: str = "") -> Case:
        return made(label, sizes(generator, parts), tokens, width)

    names = "OPT-13B", "Llama-3-8B", "DeepSeek-V3"
    return [
        case("one token", 1, 1),
        case("7 tokens", 7, 4),
        case("no token", 0, 2),
        case("two query heads share a KV head", 5, 2, "grouped"),
        case("one KV head for all", 9, 2, "multi-query"),
        case("heads that are wider than the hidden state together", 6, 2, "wide"),
        case("experts", 8, 2, "experts dense"),
        case("latent attention", 3, 2, "latent"),
        case("latent attention, two query heads share a KV head", 11, 1, "latent grouped"),
        *(made(name, published(name), 1, 2) for name in names),
    ]


# ----------------------------------------------------------------------------------- on a machine

# A toy, because a function that is lent for a grade takes no number above it: see grading/near.py.
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


def step_cases(generator: Generator) -> list[Case]:
    made = case_of("shape", "machine", "batch", "new", "context", "width")

    def case(
        label: str, longer: str, parts: str, batch: int, new: int, context: int, width: int = 2
    ) -> Case:
        shape = sizes(generator, parts)

        def step(machine: Machine) -> float:
            given = batch, new, context, width
            return reference.step_time(Shape(**shape), machine, *given)

        machine = limits(waiting(generator, longer, step))
        return made(f"{label}; {longer} takes longer", shape, machine, batch, new, context, width)

    read, compute = "reading", "computing"
    return [
        case("one sequence decodes, no context", read, "", 1, 1, 0),
        case("one sequence decodes, 9 in the cache", read, "", 1, 1, 9),
        case("one sequence decodes, 9 in the cache", compute, "", 1, 1, 9),
        case("three sequences decode", read, LLAMA, 3, 1, 20),
        case("three sequences decode", compute, LLAMA, 3, 1, 20),
        case("a prefill of 12 tokens", read, LLAMA, 1, 12, 0),
        case("a prefill of 12 tokens", compute, LLAMA, 1, 12, 0),
        case("a prefill of two prompts", read, "wide", 2, 7, 0, 4),
        case("5 tokens each, behind 6 others", read, "multi-query", 4, 5, 6, 1),
        case("a tied head", read, "tied", 2, 1, 8),
        case("learned positions, biases, a tied head", read, GPT2, 3, 1, 5, 4),
        case("experts, one token", read, "experts", 1, 1, 4),
        case("experts, one token", compute, "experts", 1, 1, 4),
        case("experts, a prefill of 6 tokens", read, "experts", 2, 6, 0),
        case("shared experts, a dense layer", read, "experts dense shared", 3, 1, 2),
        case("latent attention, experts", read, DEEPSEEK, 2, 1, 30, 1),
    ]


# FLOPs and bytes per second, so that one takes longer. Powers of two: rounding decides nothing.
READING, COMPUTING = (2.0**16, 2.0**10), (2.0**10, 2.0**16)


def plan_cases(generator: Generator) -> list[Case]:
    def case(
        label: str,
        parts: str,
        context: int,
        fitting: int,
        spare: int = 0,
        at: int = 0,
        limit: float = 1.0,
        width: int = 2,
        rates: tuple[float, float] = READING,
    ) -> Case:
        """Memory holds `fitting` sequences and `spare` bytes. A step may take as long as one of
        `at` sequences, times `limit`; at = 0 is a limit beyond all steps."""
        shape = sizes(generator, parts)
        free = fitting * reference.kv_bytes(Shape(**shape), context, width) + spare
        memory = width * reference.parameters(Shape(**shape))["total"] + free
        machine = Machine(*rates, memory, price_per_hour=draw(generator, 5, 60) / 10)
        step = reference.step_time(Shape(**shape), machine, at or 1, 1, context - 1, width)
        data = {"shape": shape, "machine": limits(machine, "price_per_hour"), "context": context}
        return Case(label, {**data, "width": width, "tpot_limit": limit * step if at else 1000.0})

    some, most = draw(generator, 5, 9), draw(generator, 12, 16)
    return [
        case("one sequence fits exactly", "", 8, 1),
        case("memory for one lacks a byte", "", 8, 1, -1),
        case("memory for several", LLAMA, 20, some),
        case("memory for several, less a byte", LLAMA, 20, some, -1),
        case("the weights fill the memory", LLAMA, 12, 0),
        case("the weights don't fit", LLAMA, 12, -2),
        case("the limit is what some need", "", 10, most, at=some),
        case("the limit is a little less than some need", LLAMA, 20, most, at=some, limit=0.9999),
        case("the limit is what one needs", LLAMA, 9, most, at=1),
        case("a step of one takes longer than the limit", LLAMA, 9, most, at=1, limit=0.999),
        case("a context of one token", "", 1, some),
        case("computing takes longer", LLAMA, 16, most, at=some, rates=COMPUTING),
        case("experts", "grouped experts", 15, most, at=some, limit=1.0001, width=1),
        case("experts, no limit", "multi-query experts shared", 4, some, 5),
        case("a tied head, four bytes a number", GPT2, 3, some, 2, width=4),
        case("latent attention", DEEPSEEK, 40, most, at=some, limit=1.0001),
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
        label: str, about: Sequence[int], models: int = 3, noise: float = 0.0, unit: float = 1.0
    ) -> Case:
        """Runs of so many models, each with so many sizes of data, in any order."""
        true = law(generator, *about)
        each = torch.linspace(-1, 1, models, dtype=torch.float64)
        factors = 10.0 ** torch.cartesian_prod(each, each)
        order = torch.randperm(len(factors), generator=generator)
        params, tokens = (factors[order] * torch.tensor(MIDDLE)).unbind(dim=1)
        loss = reference.predicted_loss(true, params, tokens)
        loss = loss * (1 + noise * torch.randn(len(loss), generator=generator).double())
        runs = {"params": params / unit, "tokens": tokens / unit, "loss": loss}
        digits, fitted = (2 if noise else 3), reference.fit_law(**runs)

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
        case("100 runs with noise", (35, 37), 10, 0.001),
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
