"""Quantization: what a code stands for is near the number, and nobody else's numbers change it."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn

from gpt import GPTAttention, GPTConfig, Linear
from solutions.quantization import (
    DAMPING,
    OUTLIER,
    QuantizedLinear,
    absmax,
    affine,
    awq_scales,
    calibrate,
    compressed,
    expanded,
    from_affine,
    from_groups,
    gptq,
    in_groups,
    int8_matmul,
    keep_largest,
    pack,
    smooth,
    sparse_gpt,
    split_outliers,
    two_of_four,
    unpack,
    without_heads,
)
from tests.common.engines import normal

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


# -------------------------------------------------------------------------------- codes and scales


@given(matrices(), all_bits, dims)
def test_absmax_is_off_by_half_a_step(weight: Tensor, bits: int, dim: int | None) -> None:
    """Its scale is the largest number of those who share it by the last code."""
    last = 2 ** (bits - 1) - 1
    codes, scale = absmax(weight, bits, dim)
    assert codes.dtype == torch.int8
    peak = weight.abs().amax((0, 1) if dim is None else dim, keepdim=True)
    torch.testing.assert_close(scale, torch.where(peak == 0, 1.0, peak / last), rtol=1e-12, atol=0)
    assert codes.abs().max() <= last
    assert ((weight - codes * scale).abs() <= scale / 2 * NEARLY).all()
    assert (codes[weight == 0] == 0).all()


@given(matrices(), all_bits)
def test_affine_is_off_by_half_a_step(groups: Tensor, bits: int) -> None:
    """0 comes back exactly; a scale spans its row's numbers and 0."""
    last = 2**bits - 1
    codes, scale, zero = affine(groups, bits)
    assert {codes.dtype, zero.dtype} == {torch.uint8}
    high, low = groups.amax(1, keepdim=True).clamp(min=0), groups.amin(1, keepdim=True).clamp(max=0)
    expected = torch.where(high == low, 1.0, (high - low) / last)
    torch.testing.assert_close(scale, expected, rtol=1e-12, atol=0)
    assert zero.shape == scale.shape
    assert max(codes.max(), zero.max()) <= last
    back = from_affine(codes, scale, zero)
    assert ((groups - back).abs() <= scale / 2 * NEARLY).all()
    assert (back[groups == 0] == 0).all()
    assert (zero[low == 0] == 0).all()


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_a_group_is_of_neighbors_of_one_output(size, count, n_out):
    weight = torch.arange(size * count * n_out).view(size * count, n_out)
    groups = in_groups(weight, size)
    columns = [weight[:, j] for j in range(n_out)]
    assert groups.tolist() == [part.tolist() for column in columns for part in column.split(size)]
    assert torch.equal(from_groups(groups, size * count), weight)


some_scales = st.lists(st.floats(0.01, 50), min_size=1, max_size=6)


@given(st.lists(numbers, min_size=1, max_size=8), all_bits, some_scales)
@example([1.0] * 30 + [100.0], 4, [100 / 7, 1.0])  # many small ones and one that is cut off
def test_calibrate_takes_the_scale_that_loses_least(values, bits, scales):
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
def test_two_codes_share_a_byte(half: int, n_out: int, data: st.DataObject) -> None:
    size = 2 * half * n_out
    flat = data.draw(st.lists(nibbles, min_size=size, max_size=size))
    codes = torch.tensor(flat, dtype=torch.uint8).view(2 * half, n_out)
    packed = pack(codes)
    assert packed.dtype == torch.uint8
    assert packed.tolist() == (codes[0::2].long() + 16 * codes[1::2].long()).tolist()
    assert torch.equal(unpack(packed), codes)


# ------------------------------------------------------------------------------------ weights alone


@given(seeds, st.sampled_from([(5,), (2, 3), (1, 1, 1)]))
def test_a_quantized_layer_multiplies_by_its_codes(seed, rows):
    linear = Linear(6, 4).double()
    linear.weight.data, linear.bias.data = normal(seed, 6, 4), normal(seed + 1, 4)
    layer = QuantizedLinear.from_linear(linear)
    hidden = normal(seed + 2, *rows, 6)
    expected = hidden @ (layer.codes * layer.scale) + linear.bias
    torch.testing.assert_close(layer(hidden), expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(layer.codes, absmax(linear.weight.detach(), 8)[0])


# -------------------------------------------------------------------------- weights and activations


@given(matrices(most=5), st.integers(1, 4), seeds)
def test_int8_matmul_is_exact_and_token_by_token(hidden, n_out, seed):
    codes, scale = absmax(normal(seed, hidden.shape[1], n_out), 8)
    product = int8_matmul(hidden, codes, scale)
    for row, token in zip(product, hidden, strict=True):
        own, own_scale = absmax(token[None], 8, dim=1)
        whole = own[0].double() @ codes.double()  # exact, as long as sums stay below 2^53
        torch.testing.assert_close(row, whole * own_scale.item() * scale[0])


@pytest.mark.parametrize("n_in", [3, 300, 1200])
def test_int8_matmul_holds_large_sums(n_in: int) -> None:
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
def test_outlier_columns_stay_floats(hidden, seed, given_it):
    codes, scale = absmax(normal(seed, hidden.shape[1], 3), 8)
    product = split_outliers(hidden, codes, scale, **given_it)
    columns, least = range(hidden.shape[1]), given_it.get("threshold", OUTLIER)
    outliers = [c for c in columns if max(map(abs, hidden[:, c].tolist())) >= least]
    usual = [c for c in columns if c not in outliers]
    expected = hidden[:, outliers] @ (codes[outliers] * scale)
    if usual:
        expected = expected + int8_matmul(hidden[:, usual], codes[usual], scale)
    torch.testing.assert_close(product, expected, rtol=1e-12, atol=1e-12)


alphas = st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0, 1)


@given(seeds, alphas, st.sets(st.integers(0, 4)), st.sets(st.integers(0, 4)))
def test_smoothing_keeps_the_product(seed, alpha, never, unread):
    hidden, weight = normal(seed, 7, 5), normal(seed + 1, 5, 3)
    gain, bias = normal(seed + 2, 5), normal(seed + 3, 5)
    weight[list(unread)] = 0
    normed = hidden * gain + bias
    peaks = normed.abs().amax(dim=0)
    peaks[list(never)] = 0
    new_gain, new_bias, new_weight = smooth(gain, bias, weight, peaks, alpha)
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
    inputs = normal(seed, tokens, n_in)
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
def test_gptq_rows_make_up_for_earlier_errors(seed, bits, n_in, times, dead, is_by_row):
    """However large the inputs are; with some that are always 0; with a scale for each row too."""
    weight, inputs = normal(seed, n_in, 40), correlated(n_in, seed=seed + 1)
    inputs[:, [i for i in dead if i < n_in]] = 0
    hessian, (_, scale) = times * inputs.T @ inputs, absmax(weight, bits)
    if is_by_row:
        scale = scale * torch.linspace(0.6, 1.1, n_in).double()[:, None]
    codes = gptq(weight, hessian, scale, bits)
    assert codes.dtype == torch.int8
    assert torch.equal(codes, one_row_after_the_other(weight, hessian, scale, bits))


def test_gptq_rounds_float32_in_float64() -> None:
    weight, inputs = normal(0, 8, 6).float(), correlated(8)
    _, scale = absmax(weight, 4)
    codes = gptq(weight, inputs.T @ inputs, scale, 4)
    assert torch.equal(codes, gptq(weight.double(), inputs.T @ inputs, scale.double(), 4))


@given(seeds, st.integers(2, 4))
def test_awq_never_loses_more_than_rounding(seed: int, bits: int) -> None:
    weight, inputs = normal(seed, 8, 6), correlated(8, seed=seed)
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

WEIGHT, NAN = normal(0, 4, 3), tensor([[1.0, math.nan], [0.0, 2.0]])
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


@pytest.mark.parametrize(
    ("function", "given", "sentence"), REFUSED, ids=[row[0].__name__ for row in REFUSED]
)
def test_refusals(function, given, sentence):
    before = [each.clone() if isinstance(each, Tensor) else each for each in given]
    with pytest.raises(ValueError, match=sentence):
        function(*given)
    for each, old in zip(given, before, strict=True):
        if isinstance(each, Tensor):
            torch.testing.assert_close(each, old, rtol=0, atol=0, equal_nan=True)


# ------------------------------------------------------------------------------ weights left out


@given(seeds, st.integers(1, 4), st.integers(1, 6), st.floats(0, 1))
def test_the_smallest_scores_go(seed, n_in, n_out, share):
    scores = normal(seed, n_in, n_out)
    kept = keep_largest(scores, share)
    assert (~kept).sum() == round(share * scores.numel())
    if kept.any() and not kept.all():
        assert scores[kept].min() >= scores[~kept].max()


@given(seeds, st.integers(1, 4), st.integers(1, 5))
def test_two_of_each_four_inputs_stay_and_come_back_from_their_places(seed, eights, n_out):
    weight = normal(seed, 8 * eights, n_out)
    kept = two_of_four(weight.abs())
    fours = (weight.abs() * kept).view(-1, 4, n_out)
    assert ((fours > 0).sum(dim=1) == 2).all()
    best_two = weight.abs().view(-1, 4, n_out).topk(2, dim=1).values.sum(dim=1)
    assert torch.allclose(fours.sum(dim=1), best_two)
    values, places = compressed(weight, kept)
    assert values.numel() + 4 * places.numel() == weight.numel()
    assert torch.equal(expanded(values, places), weight * kept)


@given(seeds, st.integers(1, 12), st.integers(1, 8))
def test_sparse_gpt_gives_each_row_what_is_best_with_the_later_rows_still_free(seed, n_in, block):
    weight, inputs = normal(seed, n_in, 5), correlated(n_in, seed=seed + 1)
    hessian, chosen = inputs.T @ inputs, list[Tensor]()

    def half(scores: Tensor) -> Tensor:
        chosen.append(keep_largest(scores, 0.5))
        return chosen[-1]

    found, damped = sparse_gpt(weight, hessian, half, block), hessian.clone()
    damped += DAMPING * hessian.diagonal().mean() * torch.eye(n_in).double()
    errors = torch.zeros_like(weight)
    for i, kept in enumerate(torch.cat(chosen)):
        pull = damped[i:, :i] @ errors[:i]
        best = weight[i] + torch.linalg.solve(damped[i:, i:], pull)[0]
        errors[i] = weight[i] - best * kept
    assert torch.allclose(found, weight - errors)


@pytest.mark.parametrize("kept", [[0], [2, 1], [0, 1, 2]])
def test_a_layer_without_heads_is_the_layer_whose_other_heads_add_nothing(kept):
    torch.manual_seed(0)
    config = GPTConfig(vocab_size=11, n_positions=8, n_embd=6, n_layer=1, n_head=3)
    whole, smaller = GPTAttention(config, 0).double(), GPTAttention(config, 0).double()
    for parameter in whole.parameters():
        torch.nn.init.normal_(parameter)
    mixed, behind = whole.c_attn, whole.c_proj
    three = without_heads(mixed.weight, mixed.bias, behind.weight, 3, kept)
    smaller.c_attn.weight, smaller.c_attn.bias, smaller.c_proj.weight = map(nn.Parameter, three)
    smaller.c_proj.bias, smaller.n_head = behind.bias, len(kept)
    gone = [head for head in range(3) if head not in kept]
    with torch.no_grad():
        behind.weight.view(3, 2, 6)[gone] = 0
        hidden = normal(1, 2, 5, 6)
        assert torch.allclose(smaller(hidden), whole(hidden))
