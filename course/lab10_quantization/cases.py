"""The exercises of lab 10: codes and scales, bytes, layers of codes, and looking ahead."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int8, UInt8
from torch import Tensor

from autograder.attempt.drivers import quantization as drivers
from autograder.judging.draws import draw, normal, until
from autograder.judging.exercise import Case, Exercise, in_float32
from solutions import quantization as reference
from solutions.quantization import DAMPING, OUTLIER, absmax, gptq

Change = Callable[[Tensor], Tensor]
Codes = Int8[Tensor, "n_in n_out"]
Weight = Float[Tensor, "n_in n_out"]
Hidden = Float[Tensor, "tokens n_in"]
Hessian = Float[Tensor, "n_in n_in"]

# -------------------------------------------------------------------------------- codes and scales

# No number is this near the middle between two codes: x / scale and x * (1 / scale) differ in the
# last digit, and either may be rounded.
MARGIN = 1e-3


def settled(steps: Tensor) -> bool:
    """Whether it is clear for all of these, in units of their scale, which code is the nearest."""
    return bool(((steps.abs() % 1 - 0.5).abs() > MARGIN).all())


def drawn(
    generator: torch.Generator, shape: tuple[int, ...], change: Change, steps: Change
) -> Float[Tensor, "rows columns"]:
    """A random matrix of two decimals, changed, whose steps(matrix) are settled."""
    return until(
        lambda matrix: settled(steps(matrix)),
        lambda: change(normal(generator, *shape).round(decimals=2)),
    )


def setting(*place: Any, to: float = 0.0) -> Change:
    """Changes a part of a matrix."""

    def change(matrix: Tensor) -> Tensor:
        matrix[place] = to
        return matrix

    return change


with_zero_row, with_zero_column = setting(1), setting(slice(None), 1)
with_huge_entry = setting(2, 1, to=-50)


def above_0(matrix: Tensor) -> Tensor:
    return matrix.abs() + 0.25


def below_0(matrix: Tensor) -> Tensor:
    return -above_0(matrix)


def small(matrix: Tensor) -> Tensor:
    return matrix * 1e-3


def absmax_cases(generator: torch.Generator) -> list[Case]:
    def case(
        label: str, bits: int, dim: int | None, *shape: int, change: Change = torch.clone
    ) -> Case:
        def steps(weight: Tensor) -> Tensor:
            return weight / reference.absmax(weight, bits, dim)[1]

        weight = drawn(generator, shape or (6, 4), change, steps)
        return Case(f"{label}, {bits} bits", {"weight": weight, "bits": bits, "dim": dim})

    return [
        case("two rows, a scale per column", 8, 0, 2, 3),
        case("two rows, a scale per row", 8, 1, 2, 3),
        case("two rows, one scale", 8, None, 2, 3),
        case("a scale per column", 4, 0),
        case("a scale per row", 4, 1),
        case("one scale", 4, None),
        case("a scale per column", 3, 0),
        case("a scale per row", 2, 1),
        case("one scale", 2, None),
        case("as many rows as columns, a scale per row", 8, 1, 5, 5),
        case("as many rows as columns, a scale per column", 4, 0, 5, 5),
        case("a column of zeros", 8, 0, change=with_zero_column),
        case("a row of zeros", 8, 1, change=with_zero_row),
        case("a column of zeros, a scale per row", 8, 1, change=with_zero_column),
        case("only zeros, one scale", 8, None, change=torch.zeros_like),
        case("only zeros, a scale per column", 4, 0, change=torch.zeros_like),
        case("a huge entry, a scale per column", 8, 0, change=with_huge_entry),
        case("a huge entry, a scale per row", 4, 1, change=with_huge_entry),
        case("a huge entry, one scale", 8, None, change=with_huge_entry),
        case("only positive numbers", 8, 0, change=above_0),
        case("only negative numbers", 8, 0, change=below_0),
        case("only negative numbers, one scale", 4, None, change=below_0),
        case("small numbers", 8, 0, change=small),
        case("a single row, a scale per column", 8, 0, 1, 4),
        case("a single column, a scale per row", 3, 1, 4, 1),
        case("64 rows, a scale for each of ten columns", 8, 0, 64, 10),
        case("64 rows, a scale per row", 3, 1, 64, 10),
        case("64 rows, one scale", 4, None, 64, 10),
    ]


def affine_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, bits: int, *shape: int, change: Change = torch.clone) -> Case:
        def steps(groups: Tensor) -> Tensor:
            return groups / reference.affine(groups, bits)[1]

        numbers = drawn(generator, shape or (4, 6), change, steps)
        return Case(f"{label}, {bits} bits", {"groups": numbers, "bits": bits})

    def on_both_sides(groups: Tensor) -> Tensor:
        """All of the first row above 0, all of the second below it."""
        groups[0], groups[1] = above_0(groups[0]), below_0(groups[1])
        return groups

    def constant(groups: Tensor) -> Tensor:
        groups[0], groups[1] = 0.75, -1.5
        return groups

    def far_from_0(groups: Tensor) -> Tensor:
        return groups + 20

    return [
        case("a group of three", 8, 1, 3),
        case("two groups of three", 4, 2, 3),
        case("four groups of six", 8),
        case("four groups of six", 4),
        case("four groups of six", 3),
        case("four groups of six", 2),
        case("as many groups as numbers in each", 4, 5, 5),
        case("only positive numbers", 4, change=above_0),
        case("only negative numbers", 4, change=below_0),
        case("a positive group, a negative one, two with both", 8, change=on_both_sides),
        case("numbers far from 0", 8, change=far_from_0),
        case("two groups of equal numbers, two of others", 4, change=constant),
        case("a group of zeros", 8, change=with_zero_row),
        case("only zeros", 4, 2, 6, change=torch.zeros_like),
        case("a zero in every group", 4, change=with_zero_column),
        case("a huge entry", 4, change=with_huge_entry),
        case("small numbers", 8, change=small),
        case("groups of one number", 4, 5, 1),
        case("ten groups of 32", 4, 10, 32),
        case("twenty groups of 32", 3, 20, 32),
    ]


APART = 1e-3  # by how much more the values lose with the second best scale, relatively


def calibrate_cases(generator: torch.Generator) -> list[Case]:
    def case(
        label: str, bits: int, count: int, scales: int, outliers: int = 0, shares: Any = (0.1, 1.1)
    ) -> Case:
        """Outliers are six times as large. Scales are shares of the one that `absmax` takes,
        in any order."""
        last, (low, high) = 2 ** (bits - 1) - 1, shares

        def drawn() -> dict[str, Any]:
            values = normal(generator, count).round(decimals=2)
            values[:outliers] *= 6
            parts = low + (high - low) * torch.rand(scales, generator=generator).double()
            return {"values": values, "bits": bits, "scales": parts * values.abs().max() / last}

        return Case(f"{label}, {bits} bits", until(lambda data: is_clear(**data), drawn))

    return [
        case("a single scale", 4, 3, 1),
        case("three values, two scales", 4, 3, 2),
        case("eight values, three scales", 4, 8, 3),
        case("as many values as scales", 4, 8, 8),
        case("a single value", 4, 1, 6),
        case("only scales that are too large", 4, 20, 6, shares=(1.0, 3.0)),
        case("only scales that are too small", 4, 20, 6, shares=(0.1, 0.3)),
        case("eight values, scales close together", 3, 8, 20, shares=(0.4, 0.6)),
        case("four values, scales close together", 4, 4, 20, shares=(0.5, 0.6)),
        case("twenty values, scales close together", 2, 20, 20, shares=(0.4, 0.7)),
        case("twenty values, scales close together", 3, 20, 20, shares=(0.5, 0.8)),
        case("twenty values, scales of half the range", 8, 20, 10, shares=(0.4, 0.6)),
        case("forty values with outliers", 8, 40, 12, outliers=4),
        case("forty values with outliers", 4, 40, 12, outliers=4),
        case("forty values with outliers", 3, 40, 12, outliers=4),
        case("forty values with outliers", 2, 40, 12, outliers=4),
        case("forty values with outliers, thirty scales", 4, 40, 30, outliers=4),
        case("forty values with outliers, sixty scales", 3, 40, 60, outliers=4),
        case("many values with outliers", 3, 500, 30, outliers=50),
    ]


def is_clear(values: Float[Tensor, " values"], bits: int, scales: Float[Tensor, " scales"]) -> bool:
    """Whether one scale loses clearly less than all others."""
    last = 2 ** (bits - 1) - 1
    codes = (values / scales[:, None]).round().clamp(-last, last)
    best, *others = (codes * scales[:, None] - values).square().mean(dim=1).sort().values.tolist()
    return not others or best * (1 + APART) < others[0]


# ---------------------------------------------------------------------------- two codes in a byte


def whole(
    generator: torch.Generator, below: int, rows: int, columns: int
) -> UInt8[Tensor, "rows columns"]:
    return torch.randint(below, (rows, columns), generator=generator, dtype=torch.uint8)


def pack_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, n_in: int, n_out: int, below: int = 16) -> Case:
        return Case(label, {"codes": whole(generator, below, n_in, n_out)})

    every = torch.cartesian_prod(torch.arange(16), torch.arange(16)).T.to(torch.uint8)
    last = torch.full((4, 3), 15, dtype=torch.uint8)
    return [
        case("two codes below 8", 2, 1, below=8),
        case("two rows of three codes below 8", 2, 3, below=8),
        case("two rows of three codes", 2, 3),
        case("four rows of three codes", 4, 3),
        case("as many rows as columns", 4, 4),
        case("six rows of four codes", 6, 4),
        case("a single column", 8, 1),
        Case("only the last code", {"codes": last}),
        Case("only zeros", {"codes": torch.zeros_like(last)}),
        Case("every pair of codes", {"codes": every.contiguous()}),
        case("64 rows of ten codes", 64, 10),
    ]


def unpack_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, rows: int, n_out: int, below: int = 256) -> Case:
        return Case(label, {"packed": whole(generator, below, rows, n_out)})

    return [
        Case("a byte, both codes below 8", {"packed": torch.tensor([[0x52]], dtype=torch.uint8)}),
        case("a row of three bytes, the high half empty", 1, 3, below=16),
        case("a row of three bytes", 1, 3),
        case("two rows of three bytes", 2, 3),
        case("as many rows as columns", 4, 4),
        case("an odd number of rows", 3, 4),
        case("a single column", 5, 1),
        Case("every byte", {"packed": torch.arange(256).to(torch.uint8)[None]}),
        case("32 rows of ten bytes", 32, 10),
    ]


# -------------------------------------------------------------------------------- weights alone


def positive(generator: torch.Generator, *shape: int) -> Float[Tensor, "..."]:
    return 0.2 + torch.rand(shape, generator=generator, dtype=torch.float64)


def codes_within(generator: torch.Generator, last: int, *shape: int) -> Codes:
    """Codes other than those of `absmax`, which gives each column a 127 or -127."""
    return torch.randint(-last, last + 1, shape, generator=generator).to(torch.int8)


def coded(generator: torch.Generator, last: int, n_in: int, n_out: int) -> dict[str, Tensor]:
    codes = codes_within(generator, last, n_in, n_out)
    return {"codes": codes, "scale": positive(generator, 1, n_out) / 100}


def forward_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, *rows: int, n_in: int, n_out: int, last: int = 90) -> Case:
        layer = {**coded(generator, last, n_in, n_out), "bias": normal(generator, n_out)}
        return Case(label, {**layer, "hidden": normal(generator, *rows, n_in)})

    apart = case("scales that are far apart", 3, n_in=5, n_out=3)
    apart.data["scale"][0] = torch.tensor([0.002, 1.0, 0.03])
    large = case("hidden states far beyond 127", 2, 2, n_in=4, n_out=3)
    large.data["hidden"].mul_(400)
    cancels = case("sums that cancel", 2, n_in=83, n_out=3)
    cancels.data["hidden"][:, 40:80] = cancels.data["hidden"][:, :40].mul_(400)
    cancels.data["codes"][40:80] = -cancels.data["codes"][:40]
    return [
        case("one token, three inputs, two outputs", 1, n_in=3, n_out=2, last=9),
        case("three tokens", 3, n_in=4, n_out=6),
        case("as many outputs as inputs", 3, n_in=4, n_out=4),
        case("two texts of three tokens", 2, 3, n_in=5, n_out=4),
        case("four texts of one token", 4, 1, n_in=3, n_out=5),
        case("codes up to 127", 3, n_in=16, n_out=7, last=127),
        apart,
        large,
        cancels,
        case("some more", draw(generator, 2, 4), 3, n_in=16, n_out=draw(generator, 8, 12)),
    ]


# ------------------------------------------------------------------------ weights and activations

Large = dict[tuple[int, int], float]  # by token and input


def hidden_states(
    generator: torch.Generator,
    tokens: int,
    n_in: int,
    times: Sequence[float] = (1.0,),
    large: Large | None = None,
    threshold: float = math.inf,
) -> Hidden:
    """Numbers from -3 to 3, times a factor for each token, with some of them replaced by `large`.

    Without the outlier columns, no number is near the middle between two codes.
    """

    def drawn() -> Hidden:
        hidden = 6 * torch.rand(tokens, n_in, generator=generator, dtype=torch.float64) - 3
        hidden *= torch.tensor(times)[:, None]
        for place, value in (large or {}).items():
            hidden[place] = value
        return hidden

    def has_settled_codes(hidden: Hidden) -> bool:
        usual = hidden.masked_fill((hidden.abs() >= threshold).any(dim=0), 0)
        return settled(usual / absmax(usual, bits=8, dim=1)[1])

    return until(has_settled_codes, drawn)


def matmul_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, hidden: Hidden, n_out: int, last: int = 90) -> Case:
        return Case(label, {"hidden": hidden, **coded(generator, last, hidden.shape[1], n_out)})

    def states(tokens: int, n_in: int, *times: float, large: Large | None = None) -> Hidden:
        return hidden_states(generator, tokens, n_in, times or (1.0,), large)

    some = draw(generator, 3, 5)
    return [
        case("one token, three inputs, two outputs", states(1, 3), 2, last=9),
        case("three tokens", states(3, 4), 6),
        case("as many outputs as inputs", states(3, 5), 5),
        case("one token far larger than the others", states(3, 4, 1.0, 40.0, 0.5), 3),
        case("one token far smaller than the others", states(3, 4, 1.0, 0.02, 2.0), 3),
        case("the largest is below 0", states(2, 6, large={(0, 2): -5.0, (1, 4): -4.0}), 4),
        case("a token of zeros", states(3, 5, 1.0, 0.0, 1.0), 4),
        case("codes of activations at both ends", states(2, 3, large={(0, 0): 3, (0, 1): -3}), 5),
        Case("sums beyond 2^15", large_sums(generator, 8)),
        Case("sums that pass 2^24 on their way", sums_that_cancel(generator, 1900)),
        in_float32(Case("sums that pass 2^24 on their way", sums_that_cancel(generator, 1900))),
        case("some more", states(some, 24), draw(generator, 7, 12), last=127),
    ]


def large_codes(generator: torch.Generator, *shape: int) -> Int8[Tensor, "..."]:
    """Large codes, all of them above 0."""
    return torch.randint(101, 128, shape, generator=generator).to(torch.int8)


def large_sums(generator: torch.Generator, n_in: int) -> dict[str, Any]:
    hidden, codes = large_codes(generator, 2, n_in), large_codes(generator, n_in, 3)
    hidden[:, 1] = 127
    return {"hidden": 0.02 * hidden.double(), "codes": codes, "scale": positive(generator, 1, 3)}


def sums_that_cancel(generator: torch.Generator, half: int) -> dict[str, Any]:
    """All numbers are their own codes. The products of one half of the inputs cancel those of the
    other half, in another order; three more inputs remain. One token and one output, because the
    grader refuses to lend `int8_matmul` for much more."""
    hidden, codes = large_codes(generator, 1, half).double(), large_codes(generator, half, 1)
    order = torch.randperm(half, generator=generator)
    rest = torch.tensor([[127.0, 3.0, 5.0]], dtype=torch.float64)
    small = 10 + codes_within(generator, 9, 3, 1)
    return {
        "hidden": torch.cat([hidden, hidden[:, order], rest], dim=1),
        "codes": torch.cat([codes, -codes[order], small]),
        "scale": positive(generator, 1, 1),
    }


def split_cases(generator: torch.Generator) -> list[Case]:
    def case(
        label: str, tokens: int, n_in: int, n_out: int, large: Large, **threshold: float
    ) -> Case:
        least = threshold.get("threshold", OUTLIER)
        hidden = hidden_states(generator, tokens, n_in, large=large, threshold=least)
        return Case(label, {"hidden": hidden, **coded(generator, 90, n_in, n_out), **threshold})

    exact = sums_that_cancel(generator, 1900)
    exact["hidden"][0, -1] = 2000  # an outlier; all others are below a threshold of 1,000
    some: Large = {(draw(generator, 0, 3), n): 10.0 * draw(generator, 1, 9) for n in (3, 8, 17)}
    every: Large = {(n % 2, n): 9.0 + n for n in range(4)}
    return [
        case("no outlier", 2, 3, 2, {}),
        case("one token, one outlier", 1, 4, 3, {(0, 1): 20.0}),
        case("an outlier in one of three tokens", 3, 5, 4, {(1, 2): 40.0}),
        case("an outlier below 0", 3, 5, 4, {(2, 3): -40.0}),
        case("two outliers in one column", 3, 4, 5, {(0, 3): 30.0, (2, 3): -25.0}),
        case("two columns with outliers", 3, 6, 4, {(0, 1): 30.0, (2, 4): -25.0}),
        case("several outliers of one token", 2, 6, 3, {(1, 0): 8.0, (1, 2): -60.0, (1, 5): 15.0}),
        case("a number at the threshold, 6.0", 2, 4, 3, {(1, 1): 6.0}),
        case("a number at the threshold below 0, -6.0", 2, 4, 3, {(0, 2): -6.0}),
        case("a number just within the threshold", 2, 4, 3, {(1, 1): 5.9, (0, 3): -5.9}),
        case("an outlier, and a number just within", 2, 5, 3, {(0, 0): 90.0, (1, 1): 5.9}),
        case("a threshold of 3.5", 3, 5, 4, {(0, 1): 4.0, (2, 2): -3.75}, threshold=3.5),
        case("a threshold of 20", 3, 5, 4, {(0, 1): 9.0, (2, 2): -33.0}, threshold=20.0),
        case("all columns but one have an outlier", 2, 3, 4, {(0, 0): 12.0, (1, 2): -15.0}),
        case("a token of zeros and one outlier", 2, 3, 4, {(0, 0): 0, (0, 1): 12, (0, 2): 0}),
        case("some more", 4, 24, 8, some),
        case("every column has an outlier", 2, 4, 3, every),
        in_float32(Case("sums that pass 2^24 on their way", {**exact, "threshold": 1000.0})),
    ]


def smooth_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, n_in: int, n_out: int, *zeros: tuple[str, int], **alpha: float) -> Case:
        """zeros: inputs whose peak or whose row of weights is 0."""
        data = {
            "gain": normal(generator, n_in),
            "bias": normal(generator, n_in),
            "weight": normal(generator, n_in, n_out),
            "peaks": 4 * positive(generator, n_in),
        }
        for name, j in zeros:
            data[name][j] = 0
        return Case(label, {**data, **alpha})

    outlier = case("an outlier among the peaks", 5, 3)
    outlier.data["peaks"][2] = 80.0
    small = case("peaks and weights below 1", 4, 3)
    small.data["peaks"].mul_(0.1)
    small.data["weight"].mul_(0.05)
    both = [("peaks", 1), ("weight", 1), ("peaks", 3), ("weight", 4)]
    return [
        case("two inputs, three outputs", 2, 3),
        case("four inputs, two outputs", 4, 2),
        outlier,
        small,
        case("alpha of 0", 4, 3, alpha=0.0),
        case("alpha of 1", 4, 3, alpha=1.0),
        case("alpha of 0.85", 4, 3, alpha=0.85),
        case("alpha of 0.25", 3, 5, alpha=0.25),
        case("an input whose peak is 0", 4, 3, ("peaks", 2)),
        case("a row of zeros", 4, 3, ("weight", 1)),
        case("peaks and rows of zeros", 6, 4, *both),
        case("a peak of 0, alpha of 0", 4, 3, ("peaks", 0), alpha=0.0),
        case("a row of zeros, alpha of 1", 4, 3, ("weight", 3), alpha=1.0),
        case("some more", draw(generator, 7, 12), draw(generator, 13, 16), alpha=0.7),
    ]


# --------------------------------------------------------------------- rounding that looks ahead


def gptq_cases(generator: torch.Generator) -> list[Case]:
    def case(
        label: str,
        n_in: int,
        n_out: int,
        bits: int = 3,
        tokens: int | None = None,
        dead: int | None = None,
        **about: Any,
    ) -> Case:
        """A matrix for which some codes differ from rounding to nearest.

        dead: an input that is 0 for all tokens. about: the weights and their scales.
        """

        def drawn() -> tuple[Weight, Hessian, Tensor, int]:
            inputs = correlated(generator, tokens or 3 * n_in, n_in)
            if dead is not None:
                inputs[:, dead] = 0
            weight, scale = scaled(generator, (n_in, n_out), bits, **about)
            return weight, inputs.T @ inputs, scale, bits

        given = until(looks_ahead, drawn)
        return Case(label, dict(zip(("weight", "hessian", "scale", "bits"), given, strict=True)))

    return [
        case("two inputs, one output", 2, 1),
        case("two inputs, three outputs", 2, 3),
        case("four inputs, two outputs", 4, 2),
        case("2 bits", 5, 4, bits=2),
        case("4 bits", 6, 4, bits=4),
        case("8 bits", 6, 4, bits=8),
        case("a scale for each number", 6, 3, bits=4, own_scales=True),
        case("a scale that cuts off the largest", 6, 5, times=0.5),
        case("an input that is always 0", 5, 4, dead=2),
        case("the first input is always 0", 5, 4, bits=4, dead=0),
        case("fewer tokens than inputs", 8, 4, bits=4, tokens=3),
        case("one token", 6, 4, tokens=1),
        case("weights in float32, the Hessian in float64", 6, 5, dtype=torch.float32),
        case("some more", 16, draw(generator, 7, 10)),
        case("as many outputs as inputs, a scale for each number", 5, 5, own_scales=True),
    ]


def scaled(
    generator: torch.Generator,
    shape: tuple[int, int],
    bits: int,
    own_scales: bool = False,
    times: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> tuple[Weight, Tensor]:
    """Weights, and the scales of their codes.

    own_scales: each number has its own scale. times: a factor on the scale with which the largest
    number gets the last code.
    """
    weight = normal(generator, *shape).to(dtype)
    scale = times * absmax(weight, bits)[1]
    return weight, scale * (0.6 + torch.rand(shape, generator=generator)) if own_scales else scale


def looks_ahead(given: tuple[Weight, Hessian, Tensor, int]) -> bool:
    """Whether codes differ from rounding to nearest, and none is on the verge of another."""
    weight, _, scale, _ = given
    is_unlike = bool((gptq(*given) - (weight / scale).round()).any())
    return is_unlike and settled(before_rounding(*given) / scale)


def correlated(generator: torch.Generator, tokens: int, n_in: int) -> Hidden:
    """Inputs that are nearly mixtures of two random directions."""
    few = normal(generator, tokens, 2) @ normal(generator, 2, n_in)
    return few + 0.3 * normal(generator, tokens, n_in)


def before_rounding(weight: Weight, hessian: Hessian, scale: Tensor, bits: int) -> Weight:
    """The corrected rows of the matrix, as they were when they were rounded.

    The difference between the weights and the numbers that their codes stand for is U.T @ errors:
    the corrections by all earlier rows, and the row's own error.
    """
    damping = DAMPING * hessian.diagonal().mean() * torch.eye(len(hessian))
    upper = torch.linalg.cholesky(torch.linalg.inv(hessian + damping), upper=True)
    rounded = gptq(weight, hessian, scale, bits) * scale
    errors = torch.linalg.solve_triangular(upper.T, (weight - rounded).double(), upper=False)
    return rounded + upper.diagonal()[:, None] * errors


# ------------------------------------------------------------------------------ weights left out


def keep_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, n_in: int, n_out: int, share: float, change: Change = torch.abs) -> Case:
        return Case(label, {"scores": change(normal(generator, n_in, n_out)), "share": share})

    rows = draw(generator, 7, 12)
    return [
        case("half of two", 2, 1, 0.5),
        case("half of each", 2, 4, 0.5),
        case("a third", 3, 3, 1 / 3),
        case("none", 3, 2, 0.0),
        case("all", 3, 2, 1.0),
        case("nine of ten", 5, 4, 0.9),
        case("a tenth", 6, 7, 0.1),
        case("one output", 9, 1, 0.65),
        case("one input", 1, 9, 0.3),
        case("the same shape again", 6, 7, 0.1),
        case("negative scores", 4, 3, 0.4, lambda scores: -scores.abs()),
        case("equal scores", 4, 3, 0.4, torch.ones_like),
        case("a larger one", rows, 30, 0.3),
    ]


def pattern_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, n_in: int, n_out: int, change: Change = torch.abs) -> Case:
        return Case(label, {"scores": change(normal(generator, n_in, n_out))})

    return [
        case("four inputs, one output", 4, 1),
        case("four inputs, three outputs", 4, 3),
        case("eight inputs, one output", 8, 1),
        case("eight inputs, three outputs", 8, 3),
        case("as many inputs as outputs", 4, 4),
        case("more inputs than outputs", 16, 4),
        case("the same shape again", 16, 4),
        case("negative scores", 12, 5, lambda scores: -scores.abs()),
        case("equal scores", 8, 3, torch.ones_like),
        case("some more", 20, draw(generator, 6, 9)),
    ]


def compressed_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, n_in: int, n_out: int, change: Change = torch.clone) -> Case:
        weight = normal(generator, n_in, n_out)
        kept = reference.two_of_four(change(weight.abs()))
        return Case(label, {"weight": weight, "kept": kept})

    dead = case("an output whose weights are all 0", 8, 2)
    dead.data["weight"][:, 0] = 0
    return [
        case("eight inputs, one output", 8, 1),
        case("eight inputs, three outputs", 8, 3),
        case("sixteen inputs, two outputs", 16, 2),
        case("as many inputs as outputs", 8, 8),
        case("kept weights that aren't the largest", 8, 2, lambda scores: -scores),
        dead,
        case("the same shape again", 16, 2),
        case("some more", 24, draw(generator, 5, 9)),
    ]


def sparse_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, n_in: int, n_out: int, share: float = 0.5, **block: int) -> Case:
        """share: roughly, of the weights that are set to 0."""
        inputs = correlated(generator, 3 * n_in, n_in)
        weight, hessian = normal(generator, n_in, n_out), inputs.T @ inputs
        # a quantile may be one of the scores, and rounding would decide whether that one stays
        least = 0.999 * float(reference_scores(weight, hessian).quantile(share))
        return Case(label, {"weight": weight, "hessian": hessian, "least": least, **block})

    return [
        case("two inputs, one output", 2, 1),
        case("two inputs, three outputs", 2, 3),
        case("five inputs, two outputs", 5, 2),
        case("a block of one row", 5, 3, block=1),
        case("blocks of two rows", 6, 3, block=2),
        case("the last block is shorter", 7, 4, block=3),
        case("few weights go", 8, 5, 0.2, block=4),
        case("most weights go", 8, 5, 0.8, block=4),
        case("none goes", 4, 3, 0.0, block=2),
        case("the same shape again", 8, 5, 0.2, block=4),
        case("more rows than a block has", 70, draw(generator, 2, 4)),
    ]


def reference_scores(weight: Weight, hessian: Hessian) -> Tensor:
    """All scores of a matrix of which no weight is set to 0."""
    found = list[Tensor]()

    def choose(scores: Tensor) -> Tensor:
        found.append(scores)
        return torch.ones_like(scores, dtype=torch.bool)

    reference.sparse_gpt(weight, hessian, choose)
    return torch.cat(found).flatten()


def heads_cases(generator: torch.Generator) -> list[Case]:
    def case(label: str, n_head: int, head_dim: int, *kept: int) -> Case:
        n_embd = n_head * head_dim
        weight, bias = normal(generator, n_embd, 3 * n_embd), normal(generator, 3 * n_embd)
        about = {"out": normal(generator, n_embd, n_embd), "n_head": n_head, "kept": list(kept)}
        return Case(label, {"weight": weight, "bias": bias, **about})

    return [
        case("one of two heads", 2, 1, 0),
        case("the other one", 2, 1, 1),
        case("one of two heads, of size 3", 2, 3, 1),
        case("two of three heads", 3, 2, 0, 2),
        case("all heads", 3, 2, 0, 1, 2),
        case("in another order", 3, 2, 2, 0),
        case("heads as many as numbers in each", 4, 4, 1, 2),
        case("one of five", 5, 3, draw(generator, 1, 4)),
    ]


EXERCISES = (
    Exercise("quantization.absmax", drivers.absmax, absmax_cases),
    Exercise("quantization.affine", drivers.affine, affine_cases),
    Exercise("quantization.calibrate", drivers.calibrate, calibrate_cases),
    Exercise("quantization.pack", drivers.pack, pack_cases),
    Exercise("quantization.unpack", drivers.unpack, unpack_cases),
    Exercise("quantization.QuantizedLinear.forward", drivers.forward, forward_cases),
    Exercise("quantization.int8_matmul", drivers.int8_matmul, matmul_cases),
    Exercise("quantization.split_outliers", drivers.split_outliers, split_cases),
    Exercise("quantization.smooth", drivers.smooth, smooth_cases),
    Exercise("quantization.gptq", drivers.gptq, gptq_cases),
    Exercise("quantization.keep_largest", drivers.keep_largest, keep_cases),
    Exercise("quantization.two_of_four", drivers.two_of_four, pattern_cases),
    Exercise("quantization.compressed", drivers.compressed, compressed_cases),
    Exercise("quantization.sparse_gpt", drivers.sparse_gpt, sparse_cases),
    Exercise("quantization.without_heads", drivers.without_heads, heads_cases),
)
