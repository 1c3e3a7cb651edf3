"""Lab 10's exercises: right answers in other styles pass, and what is said of some wrong ones.

The misconceptions are tested with those of all labs, in test_exercises.py.
"""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autograder.drivers import quantization as drivers
from autograder.exercise import Exercise
from autograder.exercises.quantization import EXERCISES as ALL
from autograder.judge import PASSED, WRONG, judge
from solutions.quantization import absmax, affine, calibrate, from_affine, pack, unpack
from tests.common.attempts import attempt_at
from tests.common.trials import cases_of

EXERCISES: dict[str, Exercise] = {exercise.name: exercise for exercise in ALL}
ABSMAX, AFFINE, CALIBRATE = (f"quantization.{name}" for name in ("absmax", "affine", "calibrate"))
PACK, UNPACK = "quantization.pack", "quantization.unpack"
RIGHT: list[Any] = []
WRONGS: list[Any] = []  # each with something of what is said
wrong_at = partial(attempt_at, WRONGS)


# -------------------------------------------------------------------------------- codes and scales


@attempt_at(RIGHT, ABSMAX)
def absmax_by_the_inverse_of_the_scale(weight, bits, dim=0):
    last = 2 ** (bits - 1) - 1
    scale = weight.abs().amax(dim=dim, keepdim=True) / last
    scale[scale == 0] = 1
    codes = torch.clamp((weight * (1 / scale)).round(), -last, last)
    return codes.to(dtype=torch.int8), scale


@attempt_at(RIGHT, ABSMAX)
def absmax_in_numpy(weight, bits, dim=0):
    numbers, last = weight.numpy(), (1 << (bits - 1)) - 1
    peak = np.abs(numbers).max(axis=dim, keepdims=True)
    scale = np.where(peak == 0, last, peak) / last
    codes = np.clip(np.rint(numbers / scale), -last, last).astype(np.int8)
    return [torch.from_numpy(codes), torch.from_numpy(scale)]


@attempt_at(RIGHT, ABSMAX)
def absmax_rounded_half_up_in_float32(weight, bits, dim=0):
    """Half up, not half to even: no number lies in the middle."""
    weight = weight.float()
    flat = weight.reshape(1, -1) if dim is None else weight.movedim(dim, -1)
    last = 2 ** (bits - 1) - 1
    peak = flat.abs().max(dim=-1).values
    scale = torch.where(peak.bool(), peak / last, torch.ones(()))
    scale = scale.view(1, 1) if dim is None else scale.unsqueeze(dim)
    return torch.floor(weight / scale + 0.5).to(torch.int8), scale


@wrong_at(
    ABSMAX, None, "What it returned is a tensor of shape [2, 3]; expected: it is 2 things, codes"
)
def absmax_without_the_scale(weight, bits, dim=0):
    return absmax(weight, bits, dim)[0]


@wrong_at(ABSMAX, None, "What it returned is 3 things; expected: it is 2 things, codes and scale.")
def absmax_with_a_zero(weight, bits, dim=0):
    return *absmax(weight, bits, dim), 0


@wrong_at(
    ABSMAX, None, "What it returned is None; expected: it is 2 things, codes and scale. Is a `ret"
)
def absmax_without_a_return(weight, bits, dim=0):
    absmax(weight, bits, dim)


@wrong_at(
    ABSMAX, None, "`scale` is a tensor of the type torch.int8, of shape [2, 3]; expected: it is a "
)
def absmax_the_other_way_round(weight, bits, dim=0):
    return absmax(weight, bits, dim)[::-1]


@wrong_at(
    ABSMAX, None, "`scale` is a tensor of floats, of shape [3]; expected: it is a tensor of floats"
)
def absmax_with_a_flat_scale(weight, bits, dim=0):
    codes, scale = absmax(weight, bits, dim)
    return codes, scale.flatten()


@wrong_at(ABSMAX, None, "`scale[0, 1]` is 0; expected 1.")
def absmax_with_a_scale_of_0(weight, bits, dim=0):
    codes, scale = absmax(weight, bits, dim)
    return codes, torch.where(codes.abs().amax(dim=dim, keepdim=True) > 0, scale, 0.0)


@wrong_at(ABSMAX, None, "`codes` holds integers; expected integers of the type torch.int8.")
def absmax_with_wide_codes(weight, bits, dim=0):
    codes, scale = absmax(weight, bits, dim)
    return codes.int(), scale


@wrong_at(
    ABSMAX, None, "The result is right, but `weight` is no longer what it was before the call"
)
def absmax_and_round(weight, bits, dim=0):
    codes, scale = absmax(weight, bits, dim)
    weight.copy_(codes * scale)
    return codes, scale


@attempt_at(RIGHT, AFFINE)
def affine_by_the_inverse_of_the_scale(groups, bits):
    last = (1 << bits) - 1
    ends = torch.cat([groups, torch.zeros(len(groups), 1, dtype=groups.dtype)], dim=1)
    low, high = torch.aminmax(ends, dim=1, keepdim=True)
    scale = (high - low) / last
    scale[scale == 0] = 1.0
    zero = torch.round(low * (-1 / scale)).byte()
    codes = torch.round(groups * (1 / scale)) + zero
    return codes.byte(), scale, zero


@attempt_at(RIGHT, AFFINE)
def affine_with_the_zero_from_above(groups, bits):
    last = 2**bits - 1
    low = torch.minimum(groups.min(dim=1).values, torch.tensor(0.0))[:, None]
    high = torch.maximum(groups.max(dim=1).values, torch.tensor(0.0))[:, None]
    scale = torch.where(low == high, 1, (high - low) / last)
    is_zero = (low == high).to(torch.uint8)
    zero = (last - torch.round(high / scale)).to(torch.uint8) * (1 - is_zero)
    codes = torch.clamp(torch.round(groups / scale) + zero, min=0, max=last)
    return [codes.to(torch.uint8), scale, zero]


@wrong_at(
    AFFINE, None, "What it returned is 2 things; expected: it is 3 things, codes, scale and zero."
)
def affine_without_the_zero(groups, bits):
    return affine(groups, bits)[:2]


@wrong_at(AFFINE, None, "`zero` has shape [1]; expected [1, 1].")
def affine_with_a_flat_zero(groups, bits):
    codes, scale, zero = affine(groups, bits)
    return codes, scale, zero.flatten()


@wrong_at(AFFINE, None, "`zero` holds floats; expected integers of the type torch.uint8.")
def affine_with_a_zero_in_floats(groups, bits):
    codes, scale, zero = affine(groups, bits)
    return codes, scale, zero.to(scale.dtype)


@wrong_at(
    AFFINE, None, "The result is right, but `groups` is no longer what it was before the call"
)
def affine_in_steps(groups, bits):
    codes, scale, zero = affine(groups, bits)
    groups /= scale
    return codes, scale, zero


@attempt_at(RIGHT, CALIBRATE)
def calibrate_in_a_loop(values, bits, scales):
    last = 2 ** (bits - 1) - 1
    best, least = None, float("inf")
    for scale in scales:
        rounded = torch.clamp(torch.round(values / scale), -last, last) * scale
        if (error := torch.nn.functional.mse_loss(rounded, values)) < least:
            best, least = scale, error
    return best


@attempt_at(RIGHT, CALIBRATE)
def calibrate_by_the_sum_with_the_values_in_rows(values, bits, scales):
    """A sum is a mean of equally many, and a plain number as good as a tensor."""
    last = 2 ** (bits - 1) - 1
    ends = last * scales
    cut = torch.maximum(torch.minimum(values[:, None], ends), -ends)
    lost = ((cut / scales).round() * scales - values[:, None]).pow(2).sum(0)
    return scales[lost.argmin()].item()


@attempt_at(RIGHT, CALIBRATE)
def calibrate_by_the_root(values, bits, scales):
    last = 2 ** (bits - 1) - 1
    codes = (values[None] / scales[:, None]).round().clamp(-last, last)
    lost = torch.linalg.vector_norm(codes * scales[:, None] - values, dim=1)
    return scales[lost.argsort()[0]]


@wrong_at(CALIBRATE, None, "What it returned should be the number ")
def calibrate_with_all_errors(values, bits, scales):
    return scales, scales


@wrong_at(CALIBRATE, None, "What it returned is ")
def calibrate_one_bit_less(values, bits, scales):
    return calibrate(values, max(bits - 1, 2), scales)


@wrong_at(
    CALIBRATE, None, "The result is right, but `scales` is no longer what it was before the call"
)
def calibrate_and_sort(values, bits, scales):
    best = calibrate(values, bits, scales).clone()
    scales.copy_(scales.sort().values)
    return best


# ---------------------------------------------------------------------------- two codes in a byte


@attempt_at(RIGHT, PACK)
def pack_with_arithmetic(codes):
    return codes[::2] + codes[1::2] * 16


@attempt_at(RIGHT, PACK)
def pack_pair_by_pair(codes):
    packed = torch.zeros(len(codes) // 2, codes.shape[1], dtype=torch.uint8)
    for row in range(len(packed)):
        packed[row] = codes[2 * row + 1] << 4 | codes[2 * row]
    return packed


@attempt_at(RIGHT, PACK)
def pack_in_wide_numbers_first(codes):
    low, high = codes.long().view(-1, 2, codes.shape[1]).unbind(1)
    return (low ^ (high << 4)).to(torch.uint8)


@wrong_at(PACK, None, "What it returned (shape [1, 1]) differs first at [0, 0]: got ")
def pack_upside_down(codes):
    return pack(codes.flip(0))


@wrong_at(PACK, None, "What it returned has shape [3, 3]; expected [2, 3].")
def pack_with_a_row_too_many(codes):
    packed = pack(codes)
    return packed if len(packed) < 2 else torch.cat([packed, packed[:1]])


@wrong_at(PACK, None, "The result is right, but `codes` is no longer what it was before the call")
def pack_and_clear(codes):
    packed = pack(codes)
    codes.zero_()
    return packed


@attempt_at(RIGHT, UNPACK)
def unpack_into_an_empty_matrix(packed):
    codes = packed.new_empty(2 * packed.shape[0], packed.shape[1])
    codes[0::2] = packed & 0x0F
    codes[1::2] = packed >> 4
    return codes


@attempt_at(RIGHT, UNPACK)
def unpack_by_shifting_to_and_fro(packed):
    """What is shifted out of a uint8 is gone."""
    return torch.hstack([packed << 4 >> 4, packed // 16]).view(-1, packed.shape[1])


@attempt_at(RIGHT, UNPACK)
def unpack_row_by_row(packed):
    rows = []
    for row in packed:
        rows += [row.remainder(16), row.div(16, rounding_mode="floor")]
    return torch.stack(rows)


@wrong_at(UNPACK, None, "What it returned holds floats; expected integers of the type torch.uint8.")
def unpack_to_floats(packed):
    return unpack(packed).float()


@wrong_at(
    UNPACK, None, "What it returned (shape [2, 1]) differs first at [0, 0]: got 18, expected 2."
)
def unpack_with_one_bit_too_many(packed):
    codes = unpack(packed)
    codes[0::2] = packed & 31
    return codes


@wrong_at(
    UNPACK, None, "The result is right, but `packed` is no longer what it was before the call"
)
def unpack_and_clear(packed):
    codes = unpack(packed)
    packed.zero_()
    return codes


# -------------------------------------------------------------------------------------- verdicts


@pytest.mark.parametrize(("exercise", "attempt"), RIGHT)
def test_a_right_answer_in_another_style_passes(exercise: str, attempt: Any) -> None:
    for seed in range(3):
        judgement = judge(EXERCISES[exercise], attempt, seed)
        assert judgement.status == PASSED, (judgement.case, judgement.message)


@pytest.mark.parametrize(("exercise", "attempt", "said"), WRONGS)
def test_what_is_said_of_a_wrong_one(exercise: str, attempt: Any, said: str) -> None:
    judgement = judge(EXERCISES[exercise], attempt)
    assert judgement.status == WRONG
    assert said in judgement.message


def test_of_a_small_scale_beside_a_large_one_a_percent_counts() -> None:
    def small_scale_changed(weight, bits, dim=0):
        codes, scale = absmax(weight, bits, dim)
        return codes, torch.where(scale < scale.max() / 100, scale * 1.01, scale)

    judgement = judge(EXERCISES[ABSMAX], small_scale_changed)
    assert judgement.status == WRONG
    assert judgement.message.startswith("`scale[0, ")


# ------------------------------------------------------------------------------ what cases hold

seeds = pytest.mark.parametrize("seed", range(3))


def off_half(steps: torch.Tensor) -> float:
    """How far the nearest of these is from the middle between two codes."""
    return float((steps.abs() % 1 - 0.5).abs().min())


@seeds
def test_no_number_lies_between_two_codes_and_none_is_half_a_step_off(seed: int) -> None:
    for case in cases_of(EXERCISES[ABSMAX], seed):
        weight = case.data["weight"]
        codes, scale = absmax(**case.data)
        assert off_half(weight / scale) > 1e-3
        assert ((weight - codes * scale).abs() <= scale / 2).all()
    for case in cases_of(EXERCISES[AFFINE], seed):
        groups = case.data["groups"]
        codes, scale, zero = affine(**case.data)
        assert off_half(groups / scale) > 1e-3
        assert off_half(groups.amin(dim=1, keepdim=True).clamp(max=0) / scale) > 1e-3
        assert ((groups - from_affine(codes, scale, zero)).abs() <= scale / 2).all()


@seeds
def test_the_cases_reach_both_ends_of_the_codes(seed: int) -> None:
    reached = set()
    for case in cases_of(EXERCISES[ABSMAX], seed):
        last = 2 ** (case.data["bits"] - 1) - 1
        codes, _ = absmax(**case.data)
        reached |= {(case.data["bits"], code / last) for code in codes.unique().tolist()}
    assert {(bits, end) for bits in (2, 3, 4, 8) for end in (-1, 0, 1)} <= reached
    found = set()
    for case in cases_of(EXERCISES[AFFINE], seed):
        codes, _, zero = affine(**case.data)
        last = 2 ** case.data["bits"] - 1
        found |= {(case.data["bits"], "codes", code / last) for code in codes.unique().tolist()}
        found |= {(case.data["bits"], "zero", code / last) for code in zero.unique().tolist()}
    for bits in (2, 3, 4, 8):
        assert {(bits, "codes", 0), (bits, "codes", 1)} <= found
    for bits in (4, 8):
        assert {(bits, "zero", 0), (bits, "zero", 1)} <= found


@seeds
def test_the_best_scale_is_now_the_smallest_now_the_largest_and_often_between(seed: int) -> None:
    places = []
    for case in cases_of(EXERCISES[CALIBRATE], seed):
        best, scales = calibrate(**case.data), case.data["scales"]
        places.append((int((scales < best).sum()), int((scales > best).sum())))
    assert sum(smaller > 0 and larger > 0 for smaller, larger in places) >= 5
    assert any(smaller == 0 < larger for smaller, larger in places)
    assert any(larger == 0 < smaller for smaller, larger in places)


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 10**6))
def test_the_drivers_see_the_same_codes_packed_and_unpacked(rows, n_out, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(16, (2 * rows, n_out), generator=generator, dtype=torch.uint8)
    (packed,) = drivers.pack(pack, codes)
    (unpacked,) = drivers.unpack(unpack, packed.value)
    assert torch.equal(unpacked.value, codes)
