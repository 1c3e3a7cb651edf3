"""Quantization: what a code stands for is near the number, and nobody else's numbers change it."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from gpt import Linear
from solutions.quantization import (
    DAMPING,
    OUTLIER,
    QuantizedLinear,
    absmax,
    affine,
    awq_scales,
    calibrate,
    from_affine,
    from_groups,
    gptq,
    in_groups,
    int8_matmul,
    pack,
    smooth,
    split_outliers,
    unpack,
)

NEARLY = 1 + 1e-9
numbers = st.floats(-1e3, 1e3, allow_subnormal=False) | st.sampled_from([0.0, -0.0, 1.0, -2.5])
all_bits, dims, seeds = st.integers(2, 8), st.sampled_from([0, 1, None]), st.integers(0, 99)


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@st.composite
def matrices(draw: st.DrawFn, values: Any = numbers, most: int = 6) -> Tensor:
    """Small ones, in float64; some have a column of zeros."""
    rows, columns = draw(st.integers(1, most)), draw(st.integers(1, most))
    flat = draw(st.lists(values, min_size=rows * columns, max_size=rows * columns))
    matrix = tensor(flat).view(rows, columns)
    column = draw(st.integers(0, columns - 1))
    matrix[:, column] *= draw(st.sampled_from([1, 1, 0]))
    return matrix


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


# -------------------------------------------------------------------------------- codes and scales


@given(matrices(), all_bits, dims)
def test_a_number_comes_back_within_half_a_step(weight: Tensor, bits: int, dim: int | None) -> None:
    before, last = weight.clone(), 2 ** (bits - 1) - 1
    codes, scale = absmax(weight, bits, dim)
    assert torch.equal(weight, before)
    assert codes.dtype == torch.int8
    assert codes.shape == weight.shape
    assert scale.shape == {0: (1, weight.shape[1]), 1: (len(weight), 1), None: (1, 1)}[dim]
    assert codes.abs().max() <= last
    assert ((weight - codes * scale).abs() <= scale / 2 * NEARLY).all()
    assert (codes[weight == 0] == 0).all()
    everyone = (0, 1) if dim is None else dim
    largest, peak = codes.abs().amax(everyone), weight.abs().amax(everyone)
    assert (largest[peak > 0] == last).all()
    assert (scale.flatten()[peak.flatten() == 0] == 1).all()


@given(matrices(), all_bits)
def test_a_scale_depends_on_those_alone_who_share_it(weight: Tensor, bits: int) -> None:
    by_column = [absmax(column, bits) for column in weight.split(1, dim=1)]
    by_row = [absmax(row, bits, dim=None) for row in weight.split(1)]
    in_one_row = absmax(weight.view(1, -1), bits, dim=1)
    for dim, parts, along in ((0, by_column, 1), (1, by_row, 0), (None, [in_one_row], 0)):
        codes, scale = absmax(weight, bits, dim)
        assert torch.equal(codes.flatten(), torch.cat([c for c, _ in parts], along).flatten())
        assert torch.equal(scale.flatten(), torch.cat([s for _, s in parts], along).flatten())


@given(matrices(), all_bits)
def test_affine_codes_bring_numbers_back_within_half_a_step_and_zero_exactly(groups, bits):
    """In finer steps than absmax's: from -peak to peak is the widest range, in one code more."""
    before, last = groups.clone(), 2**bits - 1
    codes, scale, zero = affine(groups, bits)
    assert torch.equal(groups, before)
    assert {codes.dtype, zero.dtype} == {torch.uint8}
    assert scale.shape == zero.shape == (len(groups), 1)
    assert max(codes.max(), zero.max()) <= last
    back = from_affine(codes, scale, zero)
    assert ((groups - back).abs() <= scale / 2 * NEARLY).all()
    assert (back[groups == 0] == 0).all()
    assert (scale[(groups == 0).all(dim=1)] == 1).all()
    assert (zero[(groups >= 0).all(dim=1)] == 0).all()
    is_zero = (groups == 0).all(dim=1, keepdim=True)
    assert (is_zero | (scale < absmax(groups, bits, dim=1)[1])).all()
    alone = [affine(row, bits) for row in groups.split(1)]
    for whole, parts in zip((codes, scale, zero), zip(*alone, strict=True), strict=True):
        assert torch.equal(whole, torch.cat(parts))


def test_codes_by_hand() -> None:
    weight = tensor([[1.0, -7.0], [-0.4, 0.0], [0.1, 3.6]])
    codes, scale = absmax(weight, bits=4, dim=0)
    assert codes.tolist() == [[7, -7], [-3, 0], [1, 4]]
    torch.testing.assert_close(scale, tensor([[1 / 7, 1.0]]))
    assert absmax(weight, bits=4, dim=None)[0].tolist() == [[1, -7], [0, 0], [0, 4]]
    codes, scale, zero = affine(tensor([[-1.0, 0.0, 2.0], [3.0, 4.5, 1.0]]), bits=2)
    assert (codes.tolist(), zero.tolist()) == ([[0, 1, 3], [2, 3, 1]], [[1], [0]])
    assert scale.tolist() == [[1.0], [1.5]]


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_a_group_is_of_one_output_and_of_inputs_side_by_side(size, count, n_out):
    weight = torch.arange(size * count * n_out).view(size * count, n_out)
    groups = in_groups(weight, size)
    columns = [weight[:, j] for j in range(n_out)]
    assert groups.tolist() == [part.tolist() for column in columns for part in column.split(size)]
    assert torch.equal(from_groups(groups, size * count), weight)


some_scales = st.lists(st.floats(0.01, 50), min_size=1, max_size=6)


@given(st.lists(numbers, min_size=1, max_size=8), all_bits, some_scales)
@example([1.0] * 30 + [100.0], 4, [100 / 7, 1.0])  # many small ones and one that is cut off
def test_calibration_takes_the_scale_that_loses_least(values, bits, scales):
    last = 2 ** (bits - 1) - 1

    def lost(scale: float) -> float:
        codes = [max(-last, min(last, round(value / scale))) for value in values]
        squares = [(code * scale - v) ** 2 for code, v in zip(codes, values, strict=True)]
        return sum(squares) / len(squares)

    chosen = calibrate(tensor(values), bits, tensor(scales))
    assert chosen.shape == ()
    assert chosen.item() in scales
    assert lost(chosen.item()) == pytest.approx(min(map(lost, scales)), rel=1e-9, abs=1e-12)


# ------------------------------------------------------------------------------ two codes in a byte

nibbles = st.integers(0, 15)


@given(st.integers(0, 4), st.integers(1, 4), st.data())
def test_two_codes_go_into_a_byte_and_come_back(half: int, n_out: int, data: st.DataObject) -> None:
    size = 2 * half * n_out
    flat = data.draw(st.lists(nibbles, min_size=size, max_size=size))
    codes = torch.tensor(flat, dtype=torch.uint8).view(2 * half, n_out)
    before, packed = codes.clone(), pack(codes)
    assert packed.dtype == torch.uint8
    assert packed.tolist() == (codes[0::2].long() + 16 * codes[1::2].long()).tolist()
    assert torch.equal(unpack(packed), before)
    assert torch.equal(codes, before)


# ------------------------------------------------------------------------------------ weights alone


@given(seeds, st.sampled_from([(5,), (2, 3), (1, 1, 1)]))
def test_a_quantized_layer_is_the_layer_of_what_its_codes_stand_for(seed, rows):
    linear = Linear(6, 4).double()
    linear.weight.data, linear.bias.data = normal(6, 4, seed=seed), normal(4, seed=seed + 1)
    layer = QuantizedLinear.from_linear(linear)
    hidden = normal(*rows, 6, seed=seed + 2)
    expected = hidden @ (layer.codes * layer.scale) + linear.bias
    torch.testing.assert_close(layer(hidden), expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(layer.codes, absmax(linear.weight.detach(), 8)[0])


# -------------------------------------------------------------------------- weights and activations


@given(matrices(most=5), st.integers(1, 4), seeds)
def test_the_product_of_codes_is_exact_and_each_token_is_alone(hidden, n_out, seed):
    codes, scale = absmax(normal(hidden.shape[1], n_out, seed=seed), 8)
    before = hidden.clone()
    product = int8_matmul(hidden, codes, scale)
    assert torch.equal(hidden, before)
    for row, token in zip(product, hidden, strict=True):
        assert torch.equal(row, int8_matmul(token[None], codes, scale)[0])
        own, own_scale = absmax(token[None], 8, dim=1)
        whole = [
            sum(a * b for a, b in zip(own[0].tolist(), column, strict=True))
            for column in codes.T.tolist()
        ]
        torch.testing.assert_close(row, tensor(whole) * own_scale.item() * scale[0])
    # What is lost is at most half a step of each activation.
    _, token_scale = absmax(hidden, 8, dim=1)
    weights = codes * scale
    most = token_scale / 2 * weights.abs().sum(dim=0) * NEARLY + 1e-9
    assert ((product - hidden @ weights).abs() <= most).all()


@pytest.mark.parametrize("n_in", [3, 300, 1200])
def test_sums_that_no_smaller_number_holds(n_in: int) -> None:
    """The last one passes 2^24, where a float32 no longer counts by ones."""
    codes = torch.full((n_in, 1), 127, dtype=torch.int8)
    codes[0] = 126
    product = int8_matmul(torch.full((1, n_in), 127.0).double(), codes, torch.ones(1, 1).double())
    assert product.item() == 127 * 127 * n_in - 127


@given(
    matrices(st.floats(-12, 12, allow_subnormal=False) | st.sampled_from([6.0, -6.0])),
    seeds,
    st.sampled_from([{}, {"threshold": 0.0}, {"threshold": math.inf}]),
)
def test_columns_with_an_outlier_stay_floats_and_no_scale_knows_of_them(hidden, seed, given_it):
    codes, scale = absmax(normal(hidden.shape[1], 3, seed=seed), 8)
    before = hidden.clone()
    product = split_outliers(hidden, codes, scale, **given_it)
    assert torch.equal(hidden, before)
    columns, least = range(hidden.shape[1]), given_it.get("threshold", OUTLIER)
    outliers = [c for c in columns if max(map(abs, hidden[:, c].tolist())) >= least]
    usual = [c for c in columns if c not in outliers]
    expected = hidden[:, outliers] @ (codes[outliers] * scale)
    if usual:
        expected = expected + int8_matmul(hidden[:, usual], codes[usual], scale)
    torch.testing.assert_close(product, expected, rtol=1e-12, atol=1e-12)


alphas = st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0, 1)


@given(seeds, alphas, st.sets(st.integers(0, 4)), st.sets(st.integers(0, 4)))
def test_smoothing_leaves_the_product_as_it_was(seed, alpha, never, unread):
    hidden, weight = normal(7, 5, seed=seed), normal(5, 3, seed=seed + 1)
    gain, bias = normal(5, seed=seed + 2), normal(5, seed=seed + 3)
    weight[list(unread)] = 0
    normed = hidden * gain + bias
    peaks = normed.abs().amax(dim=0)
    peaks[list(never)] = 0
    given = gain, bias, weight, peaks
    before = [each.clone() for each in given]
    new_gain, new_bias, new_weight = smooth(*given, alpha)
    assert all(torch.equal(each, old) for each, old in zip(given, before, strict=True))
    product = (hidden * new_gain + new_bias) @ new_weight
    torch.testing.assert_close(product, normed @ weight, rtol=1e-12, atol=1e-12)
    stays = sorted(never | unread)
    assert torch.equal(new_gain[stays], gain[stays])
    assert torch.equal(new_weight[stays], weight[stays])
    moved = [channel for channel in range(5) if channel not in stays]
    new_peaks = (hidden * new_gain + new_bias).abs().amax(dim=0)[moved]
    rows, new_rows = (matrix.abs().amax(dim=1)[moved] for matrix in (weight, new_weight))
    torch.testing.assert_close(new_peaks, peaks[moved] ** (1 - alpha) * rows ** (1 - alpha))
    torch.testing.assert_close(new_rows, peaks[moved] ** alpha * rows**alpha)


# ------------------------------------------------------------------------ rounding that looks ahead


def correlated(n_in: int, tokens: int = 64, seed: int = 0) -> Tensor:
    """Inputs of which each goes along with the one before, as those of a model do."""
    inputs = normal(tokens, n_in, seed=seed)
    for i in range(1, n_in):
        inputs[:, i] = 0.9 * inputs[:, i - 1] + 0.5 * inputs[:, i]
    return inputs


def one_row_after_the_other(weight: Tensor, hessian: Tensor, scale: Tensor, bits: int) -> Tensor:
    """What `gptq` does, without a Cholesky factor.

    Each row is rounded from where it would be if all rows from it on were chosen freely, so that
    the outputs lose least with the rows before as they are.
    """
    hessian = hessian + DAMPING * hessian.diagonal().mean() * torch.eye(len(hessian)).double()
    errors, codes = torch.zeros_like(weight), torch.zeros_like(weight)
    last, scale = 2 ** (bits - 1) - 1, scale.expand_as(weight)
    for i in range(len(weight)):
        pull = hessian[i:, :i] @ errors[:i]
        best = weight[i] + torch.linalg.solve(hessian[i:, i:], pull)[0]
        codes[i] = (best / scale[i]).round().clamp(-last, last)
        errors[i] = weight[i] - codes[i] * scale[i]
    return codes.to(torch.int8)


@given(
    seeds,
    st.integers(2, 4),
    st.sampled_from([1, 2, 5, 12]),
    st.sampled_from([0.01, 1.0, 100.0]),
    st.sets(st.integers(1, 11)),
    st.booleans(),
)
def test_later_rows_make_up_for_an_error_as_well_as_they_can(
    seed: int, bits: int, n_in: int, times: float, dead: set[int], is_by_row: bool
) -> None:
    """However large the inputs are; with some that are always 0; with a scale for each row too."""
    weight, inputs = normal(n_in, 40, seed=seed), correlated(n_in, seed=seed + 1)
    inputs[:, [i for i in dead if i < n_in]] = 0
    hessian, (_, scale) = times * inputs.T @ inputs, absmax(weight, bits)
    if is_by_row:
        scale = scale * torch.linspace(0.6, 1.1, n_in).double()[:, None]
    before = [each.clone() for each in (weight, hessian, scale)]
    codes = gptq(weight, hessian, scale, bits)
    for each, old in zip((weight, hessian, scale), before, strict=True):
        assert torch.equal(each, old)
    assert codes.dtype == torch.int8
    assert torch.equal(codes, one_row_after_the_other(weight, hessian, scale, bits))


def test_weights_in_float32_are_rounded_in_the_hessian_s_precision() -> None:
    weight, inputs = normal(8, 6).float(), correlated(8)
    _, scale = absmax(weight, 4)
    codes = gptq(weight, inputs.T @ inputs, scale, 4)
    assert torch.equal(codes, gptq(weight.double(), inputs.T @ inputs, scale.double(), 4))


@given(seeds, st.integers(2, 4))
def test_scales_by_activations_never_lose_more_than_rounding(seed: int, bits: int) -> None:
    weight, inputs = normal(8, 6, seed=seed), correlated(8, seed=seed)
    inputs[:, 3] *= 20  # a channel that matters
    inputs[:, 5] = 0  # and one that doesn't
    before = weight.clone(), inputs.clone()
    factors = awq_scales(weight, inputs, bits)
    assert torch.equal(weight, before[0])
    assert torch.equal(inputs, before[1])
    assert factors.shape == (8,)
    assert (factors > 0).all()

    def error(factors: Tensor) -> float:
        codes, scale = absmax(weight * factors[:, None], bits)
        return F.mse_loss(inputs @ (codes * scale / factors[:, None]), inputs @ weight).item()

    assert error(factors) <= error(torch.ones(8).double()) * NEARLY


# ---------------------------------------------------------------------------------- what is refused

WEIGHT, NAN = normal(4, 3), tensor([[1.0, math.nan], [0.0, 2.0]])
HESSIAN, SCALE = correlated(4).T @ correlated(4), absmax(WEIGHT, 4)[1]
NIBBLES = torch.tensor([[1], [2]], dtype=torch.uint8)

Refusal = tuple[Callable[..., Any], tuple[Any, ...], str]
REFUSED: list[Refusal] = [
    *((absmax, (WEIGHT, bits), f"Codes have 2 to 8 bits, not {bits}") for bits in (0, 1, 9, 17)),
    *((affine, (WEIGHT, bits), f"Codes have 2 to 8 bits, not {bits}") for bits in (0, 17)),
    (calibrate, (WEIGHT[0], 0, SCALE[0]), "Codes have 2 to 8 bits, not 0"),
    (gptq, (WEIGHT, HESSIAN, SCALE, 17), "Codes have 2 to 8 bits, not 17"),
    *((f, (NAN, 4), "these hold a NaN") for f in (absmax, affine)),
    *((f, (NAN / 0, 4), "or an infinity") for f in (absmax, affine)),
    *(
        (f, (WEIGHT.to(dtype), 4), f"from float32 or float64, not from {dtype}")
        for f in (absmax, affine)  # in bfloat16, 0.664 / 127 is rounded down, and its code is 128
        for dtype in (torch.bfloat16, torch.float16)
    ),
    (absmax, (WEIGHT[:0], 4), r"or there are none \(shape \[0, 3\]\)"),
    (calibrate, (NAN[0], 4, SCALE[0]), "these hold a NaN"),
    (gptq, (NAN, HESSIAN[:2, :2], SCALE[:, :2], 4), "these hold a NaN"),
    (int8_matmul, (NAN, torch.ones(2, 1).char(), tensor([[1.0]])), "these hold a NaN"),
    (in_groups, (WEIGHT, 3), "Groups of 3 don't divide the 4 inputs of this matrix"),
    (in_groups, (WEIGHT, 8), "Groups of 8 don't divide the 4 inputs"),
    (in_groups, (WEIGHT, 0), "Groups of 0 don't divide the 4 inputs"),
    (pack, (NIBBLES[:1],), "even in number, not 1,"),
    (pack, (NIBBLES * 8,), "at most 15, not 16"),
    (gptq, (WEIGHT, HESSIAN * 0, SCALE, 4), "has something on its diagonal"),
    (gptq, (WEIGHT, HESSIAN[:3, :3], SCALE, 4), r"is \[4, 4\].* this one is \[3, 3\]"),
    (gptq, (WEIGHT, HESSIAN[0], SCALE, 4), r"this one is \[4\]"),
]


@pytest.mark.parametrize(("function", "given", "sentence"), REFUSED)
def test_what_cannot_be_quantized_is_refused_with_a_sentence(function, given, sentence):
    before = [each.clone() if isinstance(each, Tensor) else each for each in given]
    with pytest.raises(ValueError, match=sentence):
        function(*given)
    for each, old in zip(given, before, strict=True):
        if isinstance(each, Tensor):
            torch.testing.assert_close(each, old, rtol=0, atol=0, equal_nan=True)
