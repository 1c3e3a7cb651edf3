"""Drivers of lab 10: codes and scales, bytes, a layer and what it holds, products, smoothing."""

from collections.abc import Iterator
from itertools import starmap
from typing import Any

import torch
from jaxtyping import Float, Int8, UInt8
from torch import Tensor, nn

from autograder.attempt.lent import sealed
from autograder.attempt.records import Attempt, Seen, form_of, one_call, parts
from autograder.attempt.tensors import bytes_of, snapshot, tensors_in

Weight = Float[Tensor, "n_in n_out"]
Codes = Int8[Tensor, "n_in n_out"]
Scale = Float[Tensor, "1 n_out"]
Row = Float[Tensor, " numbers"]

# -------------------------------------------------------------------------------- codes and scales


def absmax(attempt: Attempt, weight: Weight, bits: int, dim: int | None) -> list[Seen]:
    """The scale comes first: if it is wrong, so are the codes."""
    found = attempt(weight, bits, dim)
    seen = [Seen("What it returned", told_of(found, "codes", "scale"))]
    if not is_several(found, 2):
        return seen
    codes, scale = found
    return [*seen, *each_of(scale), Seen("`codes`", codes)]


def affine(attempt: Attempt, groups: Float[Tensor, "groups size"], bits: int) -> list[Seen]:
    found = attempt(groups, bits)
    seen = [Seen("What it returned", told_of(found, "codes", "scale", "zero"))]
    if not is_several(found, 3):
        return seen
    codes, scale, zero = found
    seen += [*each_of(scale), Seen("`zero`", zero), Seen("`codes`", codes)]
    both = torch.cat([groups, -groups], dim=1)
    where = "for these numbers and their negatives in one group"
    return [*seen, Seen("The codes", ends_of(attempt(both, bits), both, bits), where)]


def ends_of(found: Any, groups: Float[Tensor, "groups size"], bits: int) -> str:
    """Whether codes are in range and stand for their numbers, in words.

    In a range that is symmetric about 0, 0 is in the middle between two codes. Either one is right.
    """
    shapes = [part.shape for part in found if isinstance(part, Tensor)]
    if shapes != [groups.shape, (len(groups), 1), (len(groups), 1)]:
        return "don't have these shapes"
    codes, scale, zero = (part.double() for part in found)
    if codes.max() > 2**bits - 1:
        return f"go up to {int(codes.max())}"
    steps = float((((codes - zero) * scale - groups) / scale).abs().max())
    if not steps <= 0.51:
        return f"are up to {steps:.1f} steps away from their numbers"
    return f"go up to {2**bits - 1} at most, within half a step of their numbers"


def told_of(found: Any, *names: str) -> Any:
    """How many things were returned, in words. A single thing stays what it is."""
    if not isinstance(found, (tuple, list)):
        return found
    which = f", {', '.join(names[:-1])} and {names[-1]}" if is_several(found, len(names)) else ""
    return f"is {len(found)} things{which}"


def is_several(found: Any, count: int) -> bool:
    return isinstance(found, (tuple, list)) and len(found) == count


MOST_SCALES = 1_000  # that are looked at: a wrong answer may have one per number


def each_of(scale: Any) -> Iterator[Seen]:
    """The form of a table of scales, then each by itself, so that small ones count as well."""
    yield Seen("`scale`", form_of(scale))
    if isinstance(scale, Tensor) and scale.ndim == 2 and scale.numel() <= MOST_SCALES:
        for row, values in enumerate(scale.tolist()):
            for column, value in enumerate(values):
                yield Seen(f"`scale[{row}, {column}]`", value)
        yield Seen("The dtype of `scale`", f"is {scale.dtype}")


def calibrate(
    attempt: Attempt, values: Float[Tensor, " values"], bits: int, scales: Float[Tensor, " scales"]
) -> list[Seen]:
    return [Seen("What it returned", attempt(values, bits, scales))]


# ---------------------------------------------------------------------------- two codes in a byte


def pack(attempt: Attempt, codes: UInt8[Tensor, "n_in n_out"]) -> list[Seen]:
    return [Seen("What it returned", attempt(codes))]


def unpack(attempt: Attempt, packed: UInt8[Tensor, "rows n_out"]) -> list[Seen]:
    return [Seen("What it returned", attempt(packed))]


# -------------------------------------------------------------------------------- weights alone


def forward(
    attempt: type, codes: Codes, scale: Scale, bias: Row, hidden: Float[Tensor, "*rows n_in"]
) -> list[Seen]:
    """Two calls, then a look at what the layer holds, and a call with codes that are new in it.

    A matrix of floats that is kept anywhere, not in the layer alone, belongs to the old codes.
    """
    layer = attempt(codes.clone(), scale.clone(), bias.clone())
    seen = [
        Seen("What it returned", snapshot(layer(hidden)), "the first time"),
        Seen("What it returned", snapshot(layer(hidden)), "the second time"),
        *[Seen(f"`{name}`", snapshot(getattr(layer, name)), "afterwards") for name in LAYER],
        Seen("The layer", f"holds {bytes_in(layer)} bytes of tensors", "afterwards"),
    ]
    layer.codes.neg_()
    new = snapshot(layer(hidden))
    return [*seen, Seen("What it returned", new, "after its codes were replaced in place")]


LAYER = "codes", "scale", "bias"


def bytes_in(layer: Any) -> int:
    return bytes_of(tensors_in(vars(layer), nn.Module))


# ------------------------------------------------------------------------ weights and activations


int8_matmul = one_call(__name__, "int8_matmul", "What it returned", "hidden codes scale")


def split_outliers(
    attempt: Attempt, hidden: Weight, codes: Codes, scale: Scale, **threshold: float
) -> list[Seen]:
    """A case without a threshold needs the attempt's default."""
    return [Seen("What it returned", attempt(hidden, codes, scale, **threshold))]


def smooth(
    attempt: Attempt, gain: Row, bias: Row, weight: Weight, peaks: Row, **alpha: float
) -> list[Seen]:
    """A case without an alpha needs the attempt's default."""
    found = attempt(gain, bias, weight, peaks, **alpha)
    if not isinstance(found, (tuple, list)):
        return [Seen("What it returned", found)]
    names = ("The gain", "The bias", "The weight")
    values = zip(names, found, strict=False)
    return [Seen("What it returned", f"is {len(found)} things"), *starmap(Seen, values)]


# --------------------------------------------------------------------- rounding that looks ahead


gptq = one_call(__name__, "gptq", "The tensor of codes", "weight hessian scale bits")


# ------------------------------------------------------------------------------ weights left out


def keep_largest(attempt: Attempt, scores: Weight, share: float) -> list[Seen]:
    return stays(attempt(scores, share), scores, scores.numel())


def two_of_four(attempt: Attempt, scores: Weight) -> list[Seen]:
    return stays(attempt(scores), scores, 4)


def stays(kept: Any, scores: Weight, group: int) -> list[Seen]:
    """Which weights stay; if all scores are equal, how many of each `group` inputs of an output."""
    if (scores != scores[0, 0]).any() or form_of(kept) != form_of(scores.bool()):
        return [Seen("Which weights stay", kept)]
    return [Seen("How many weights stay", kept.T.reshape(-1, group).sum(dim=1).tolist())]


def compressed(attempt: Attempt, weight: Weight, kept: Tensor) -> list[Seen]:
    rule = "compressed returns values and places"
    return parts(attempt(weight, kept), rule, "`values`", "`places`")


def sparse_gpt(
    attempt: Attempt, weight: Weight, hessian: Weight, least: float, **block: int
) -> list[Seen]:
    """Weights with a score of `least` or more stay."""
    seen = list[Seen]()

    def choose(scores: Weight) -> Tensor:
        if len(seen) < MOST_BLOCKS:
            seen.append(Seen("The scores", snapshot(scores), f"of block {len(seen)}"))
        return scores >= least

    found = attempt(weight, hessian, sealed(choose), **block)
    return [*seen, Seen("What it returned", found)]


MOST_BLOCKS = 20  # whose scores are looked at


def without_heads(
    attempt: Attempt, weight: Weight, bias: Row, out: Weight, n_head: int, kept: list[int]
) -> list[Seen]:
    rule = "without_heads returns a weight, a bias and the weight behind attention"
    return parts(attempt(weight, bias, out, n_head, kept), rule, "`weight`", "`bias`", "`out`")
