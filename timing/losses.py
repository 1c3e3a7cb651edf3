"""What rounding loses: fable's weights and activations in fewer bits, by every method in lab 10.

    python -m timing.losses [--passages 4] [--threads 1]

A loss is how many more bits per byte of held-out text the rounded model needs than fable in
float32, on the same passages, with its standard error. The next columns give the bits per rounded
weight, including its share of scales, zeros and factors (16 bits each, as kernels store them), and
the megabytes of all rounded weights together.
"""

import argparse
import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from gpt import GPTLMHead
from solutions.quality.bits_per_byte import (
    CALIBRATION,
    HELD_OUT,
    LENGTH,
    SCORED,
    Passage,
    bits_per_byte,
    logits_of,
    loss,
    passages,
)
from solutions.quantization import (
    OUTLIER,
    absmax,
    affine,
    awq_scales,
    from_affine,
    from_groups,
    gptq,
    in_groups,
    smooth,
)
from solutions.quantized_model import (
    Matrix,
    inputs_of,
    matrices,
    norms_before,
    planted_twin,
    with_activations,
    with_matrices,
)
from timing.threads import parse_with_threads

MODEL = "fable"
BITS, FEW_BITS, EMBEDDING_BITS, ACTIVATION_BITS = (8, 4, 3, 2), (4, 3), (8, 4), (8, 6)
SHARING = {"tensor": None, "row": 1, "channel": 0}  # who shares a scale: `absmax`'s dim
GROUPS = 128, 64, 32
SCALE_BITS = 16
CALIBRATION_LENGTH = 512
AWQ_EVERY = 4  # every fourth calibration token is enough to choose among twenty ratios

Inputs = Mapping[str, Float[Tensor, "tokens n_in"]]
# The matrix computed back from its codes, and how many numbers of SCALE_BITS go with the codes.
Rounding = Callable[[str, Matrix], tuple[Matrix, int]]


@dataclass(frozen=True)
class Row:
    """make: returns the rounded model and its bits per weight; some methods are slow."""

    name: str
    bits: int
    make: Callable[[], tuple[GPTLMHead, float]]


@dataclass(frozen=True)
class Losses:
    """A table. numbers: how many weights are rounded in each of its rows."""

    title: str
    numbers: int
    rows: list[Row]


# ------------------------------------------------------------------------------- weights alone


def by_absmax(bits: int, dim: int | None) -> Rounding:
    def rounding(_: str, weight: Matrix) -> tuple[Matrix, int]:
        codes, scale = absmax(weight, bits, dim)
        return codes * scale, scale.numel()

    return rounding


def by_affine(bits: int, size: int) -> Rounding:
    def rounding(_: str, weight: Matrix) -> tuple[Matrix, int]:
        codes, scale, zero = affine(in_groups(weight, size), bits)
        back = from_groups(from_affine(codes, scale, zero), len(weight))
        return back, scale.numel() + zero.numel()

    return rounding


def by_gptq(bits: int, hessians: Mapping[str, Float[Tensor, "n_in n_in"]]) -> Rounding:
    def rounding(name: str, weight: Matrix) -> tuple[Matrix, int]:
        _, scale = absmax(weight, bits)
        return gptq(weight, hessians[name], scale, bits) * scale, scale.numel()

    return rounding


def by_awq(bits: int, inputs: Inputs) -> Rounding:
    def rounding(name: str, weight: Matrix) -> tuple[Matrix, int]:
        factors = awq_scales(weight, inputs[name][::AWQ_EVERY], bits)[:, None]
        codes, scale = absmax(weight * factors, bits)
        return codes * scale / factors, scale.numel() + factors.numel()

    return rounding


def rounded(model: GPTLMHead, bits: int, rounding: Rounding) -> tuple[GPTLMHead, float]:
    """Return a copy with all matrices rounded, and its bits per weight, scales included."""
    counts: list[int] = []

    def change(name: str, weight: Matrix) -> Matrix:
        back, count = rounding(name, weight)
        counts.append(count)
        return back

    copied = with_matrices(model, change)
    return copied, bits + SCALE_BITS * sum(counts) / numbers_of(model)


def rounded_embedding(model: GPTLMHead, bits: int, dim: int | None) -> tuple[GPTLMHead, float]:
    """Return a copy whose embedding is rounded, and with it the head."""
    copied = copy.deepcopy(model)
    weight = copied.transformer.wte.weight
    codes, scale = absmax(weight.data, bits, dim)
    weight.data = codes * scale
    return copied, bits + SCALE_BITS * scale.numel() / weight.numel()


def numbers_of(model: GPTLMHead) -> int:
    return sum(linear.weight.numel() for linear in matrices(model).values())


# -------------------------------------------------------------------------- weights and activations


def rounded_products(
    model: GPTLMHead, bits: int, dim: int | None = 1, threshold: float = math.inf
) -> tuple[GPTLMHead, float]:
    """Return a copy that multiplies codes of activations by codes of weights.

    dim: 1 for a scale per token, None for one scale in all. Input columns that reach the threshold
    stay floats. With 8 bits this is `int8_matmul`, and with a threshold `split_outliers`.
    """
    codes_of = {name: absmax(part.weight.data, bits) for name, part in matrices(model).items()}

    def multiply(hidden: Float[Tensor, "tokens n_in"], name: str) -> Tensor:
        codes, scale = codes_of[name]
        outliers = (hidden.abs() >= threshold).any(dim=0)
        own_codes, own_scale = absmax(hidden.masked_fill(outliers, 0), bits, dim)
        # Sums of 1,024 products of 127 and 127 are exact in float32, too, which is faster.
        product = own_codes.to(hidden.dtype) @ codes.to(hidden.dtype)
        return product * own_scale * scale + hidden[:, outliers] @ (codes[outliers] * scale)

    scales = sum(scale.numel() for _, scale in codes_of.values())
    return with_activations(model, multiply), bits + SCALE_BITS * scales / numbers_of(model)


def smoothed(model: GPTLMHead, peaks: Mapping[str, Float[Tensor, " n_in"]]) -> GPTLMHead:
    """Return a copy in which the matrices after a LayerNorm absorb its outliers."""
    copied = copy.deepcopy(model)
    for name, norm in norms_before(copied).items():
        gain, bias, weight = norm.weight, norm.bias, matrices(copied)[name].weight
        gain.data, bias.data, weight.data = smooth(gain.data, bias.data, weight.data, peaks[name])
    return copied


def peaks_of(inputs: Inputs) -> dict[str, Float[Tensor, " n_in"]]:
    return {name: values.abs().amax(dim=0) for name, values in inputs.items()}


# ---------------------------------------------------------------------------------- the tables


def scales_and_groups(model: GPTLMHead) -> Iterator[Row]:
    for bits in BITS:
        for name, dim in SHARING.items():
            how = by_absmax(bits, dim)
            yield Row(f"absmax, a scale per {name}", bits, partial(rounded, model, bits, how))
        for size in GROUPS:
            how = by_affine(bits, size)
            yield Row(f"affine, groups of {size}", bits, partial(rounded, model, bits, how))


def looking_at_inputs(model: GPTLMHead, inputs: Inputs) -> Iterator[Row]:
    """Yield methods with one scale per channel that choose codes by the matrix's inputs."""
    exact = {name: values.double() for name, values in inputs.items()}
    hessians = {name: values.T @ values for name, values in exact.items()}
    for bits in FEW_BITS:
        ways = {
            "rounding": by_absmax(bits, dim=0),
            "GPTQ": by_gptq(bits, hessians),
            "AWQ": by_awq(bits, inputs),
        }
        for name, how in ways.items():
            yield Row(name, bits, partial(rounded, model, bits, how))


def embedding_and_head(model: GPTLMHead) -> Iterator[Row]:
    for bits in EMBEDDING_BITS:
        for name in ("row", "tensor"):
            made = partial(rounded_embedding, model, bits, SHARING[name])
            yield Row(f"absmax, a scale per {name}", bits, made)


def with_activations_too(
    model: GPTLMHead, peaks: Mapping[str, Float[Tensor, " n_in"]]
) -> Iterator[Row]:
    even = smoothed(model, peaks)
    for bits in ACTIVATION_BITS:
        ways = {
            "a scale per token": partial(rounded_products, model, bits),
            "a scale for all tokens": partial(rounded_products, model, bits, dim=None),
            "LLM.int8()": partial(rounded_products, model, bits, threshold=OUTLIER),
            "smooth, a scale per token": partial(rounded_products, even, bits),
        }
        yield from (Row(name, bits, made) for name, made in ways.items())


def tables(model: GPTLMHead, calibration: Sequence[Passage]) -> Iterator[Losses]:
    """Yield the tables one by one, because the inputs that some of them need take much memory."""
    numbers = numbers_of(model)
    inputs = inputs_of(model, calibration)
    peaks = peaks_of(inputs)
    yield Losses("matrices", numbers, [*scales_and_groups(model)])
    yield Losses("matrices, by their inputs", numbers, [*looking_at_inputs(model, inputs)])
    embedding = model.transformer.wte.weight.numel()
    yield Losses("embedding and head", embedding, [*embedding_and_head(model)])
    yield Losses("matrices and activations", numbers, [*with_activations_too(model, peaks)])
    twin = planted_twin(model)
    peaks = peaks_of(inputs_of(twin, calibration))
    title = "matrices and activations of the twin with planted outliers"
    yield Losses(title, numbers, [*with_activations_too(twin, peaks)])


def lines(table: Losses, texts: Sequence[Passage], compared: Tensor) -> Iterator[str]:
    yield f"| {table.title} | bits | loss, bits per byte | bits per weight | MB |"
    yield "|---|---:|---:|---:|---:|"
    for row in tqdm(table.rows, table.title, leave=False, disable=None):
        made, bits = row.make()
        lost = loss(bits_per_byte(logits_of(made), texts, MODEL, SCORED), compared)
        size = bits * table.numbers / 8e6
        yield f"| {row.name} | {row.bits} | {lost} | {bits:.2f} | {size:.2f} |"


def number_of_passages(text: str) -> int:
    """Read a number of passages; a single one would have no standard error."""
    most = len(passages(HELD_OUT, MODEL))
    if not text.isdecimal() or not 2 <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of passages from 2 to {most}.")
    return int(text)


def main() -> None:
    parser = argparse.ArgumentParser(prog="timing.losses", description=__doc__)
    parser.add_argument("--passages", type=number_of_passages, default=4)
    given = parse_with_threads(parser)
    model = GPTLMHead.from_pretrained(MODEL)
    texts = passages(HELD_OUT, MODEL, LENGTH)[: given.passages]
    calibration = passages(CALIBRATION, MODEL, CALIBRATION_LENGTH)
    compared = bits_per_byte(logits_of(model), texts, MODEL, SCORED)
    print(
        f"{MODEL} in float32: {compared.mean():.4f} bits per byte, on the last {SCORED} of {LENGTH}"
        f" tokens of {len(texts)} passages.\nTorch {torch.__version__}."
    )
    for table in tables(model, calibration):
        print()
        for line in lines(table, texts, compared):
            tqdm.write(line)


if __name__ == "__main__":
    main()
