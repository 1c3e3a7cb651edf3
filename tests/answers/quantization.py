"""Answers to lab 10's exercises: codes and scales, products of codes, rounding that looks ahead."""

import numpy as np
import torch

from solutions.quantization import (
    DAMPING,
    OUTLIER,
    QuantizedLinear,
    absmax,
    int8_matmul,
    smooth,
)
from tests.common.attempts import right, wrong

ABSMAX, AFFINE, CALIBRATE = (f"quantization.{name}" for name in ("absmax", "affine", "calibrate"))
PACK, UNPACK = "quantization.pack", "quantization.unpack"
FORWARD, MATMUL = "quantization.QuantizedLinear.forward", "quantization.int8_matmul"
SPLIT, SMOOTH, GPTQ = (f"quantization.{name}" for name in ("split_outliers", "smooth", "gptq"))


# -------------------------------------------------------------------------------- codes and scales


@right(ABSMAX)
def in_numpy(weight, bits, dim=0):
    numbers, last = weight.numpy(), (1 << (bits - 1)) - 1
    peak = np.abs(numbers).max(axis=dim, keepdims=True)
    scale = np.where(peak == 0, last, peak) / last
    codes = np.clip(np.rint(numbers / scale), -last, last).astype(np.int8)
    return [torch.from_numpy(codes), torch.from_numpy(scale)]


@right(ABSMAX)
def half_up_in_float32(weight, bits, dim=0):
    """Half up, not half to even: no number lies in the middle."""
    weight = weight.float()
    flat = weight.reshape(1, -1) if dim is None else weight.movedim(dim, -1)
    last = 2 ** (bits - 1) - 1
    peak = flat.abs().max(dim=-1).values
    scale = torch.where(peak.bool(), peak / last, torch.ones(()))
    scale = scale.view(1, 1) if dim is None else scale.unsqueeze(dim)
    return torch.floor(weight / scale + 0.5).to(torch.int8), scale


@wrong(ABSMAX, "What it returned is a tensor of shape [2, 3]; expected: it is 2 things, codes")
def without_the_scale(weight, bits, dim=0):
    return absmax(weight, bits, dim)[0]


@wrong(ABSMAX, "`scale` is a tensor of floats, of shape [3]; expected: it is a tensor of floats")
def with_a_flat_scale(weight, bits, dim=0):
    codes, scale = absmax(weight, bits, dim)
    return codes, scale.flatten()


@wrong(ABSMAX, "`scale[0, ")
def small_scales_off_by_a_percent(weight, bits, dim=0):
    codes, scale = absmax(weight, bits, dim)
    return codes, torch.where(scale < scale.max() / 100, scale * 1.01, scale)


@right(AFFINE)
def with_the_zero_from_above(groups, bits):
    last = 2**bits - 1
    low = torch.minimum(groups.min(dim=1).values, torch.tensor(0.0))[:, None]
    high = torch.maximum(groups.max(dim=1).values, torch.tensor(0.0))[:, None]
    scale = torch.where(low == high, 1, (high - low) / last)
    is_zero = (low == high).to(torch.uint8)
    zero = (last - torch.round(high / scale)).to(torch.uint8) * (1 - is_zero)
    codes = torch.clamp(torch.round(groups / scale) + zero, min=0, max=last)
    return [codes.to(torch.uint8), scale, zero]


@right(CALIBRATE)
def by_the_sum_with_the_values_in_rows(values, bits, scales):
    """A sum is a mean of equally many, and a plain number as good as a tensor."""
    last = 2 ** (bits - 1) - 1
    ends = last * scales
    cut = torch.maximum(torch.minimum(values[:, None], ends), -ends)
    lost = ((cut / scales).round() * scales - values[:, None]).pow(2).sum(0)
    return scales[lost.argmin()].item()


# ---------------------------------------------------------------------------- two codes in a byte


@right(PACK)
def pair_by_pair(codes):
    packed = torch.zeros(len(codes) // 2, codes.shape[1], dtype=torch.uint8)
    for row in range(len(packed)):
        packed[row] = codes[2 * row + 1] << 4 | codes[2 * row]
    return packed


@right(UNPACK)
def by_shifting_to_and_fro(packed):
    """What is shifted out of a uint8 is gone."""
    return torch.hstack([packed << 4 >> 4, packed // 16]).view(-1, packed.shape[1])


# ---------------------------------------------------------------------- weights, then activations


@right(FORWARD, base=QuantizedLinear)
def output_row_by_row(self, hidden):
    rows = [self.codes.T.to(hidden) @ row for row in hidden.reshape(-1, hidden.shape[-1])]
    product = torch.stack(rows).mul_(self.scale).add_(self.bias)
    return product.reshape(*hidden.shape[:-1], -1)


@right(FORWARD, base=QuantizedLinear)
def with_the_bias_among_the_codes(self, hidden):
    return (hidden @ self.codes.to(hidden.dtype) + self.bias / self.scale[0]) * self.scale


@wrong(
    FORWARD, "The layer afterwards holds 54 bytes of tensors; expected: it ", base=QuantizedLinear
)
def keeping_its_output(self, hidden):
    self.__dict__["last"] = {"output": [QuantizedLinear.forward(self, hidden)]}
    return self.last["output"][0].clone()


@right(MATMUL)
def by_torchs_kernel(hidden, codes, scale):
    token_codes, token_scale = absmax(hidden, 8, 1)
    return torch._int_mm(token_codes, codes) * (token_scale * scale)


@right(MATMUL)
def of_what_codes_stand_for(hidden, codes, scale):
    token_codes, token_scale = absmax(hidden, bits=8, dim=1)
    return (token_codes * token_scale) @ (codes * scale)


@right(SPLIT)
def column_by_column(hidden, codes, scale, threshold=OUTLIER):
    usual, product = hidden.clone(), 0
    for column, weights in zip(usual.T, codes, strict=True):
        if column.max() >= threshold or column.min() <= -threshold:
            product = product + torch.outer(column, weights * scale[0])
            column.zero_()
    return product + int8_matmul(usual, codes, scale)


@right(SMOOTH)
def by_logarithms_then_mended(gain, bias, weight, peaks, alpha=0.5):
    largest = torch.linalg.vector_norm(weight, ord=float("inf"), dim=1)
    s = (peaks.log() * alpha - largest.log() * (1 - alpha)).exp()
    s[(peaks == 0) | (largest == 0)] = 1
    return [gain / s, bias / s, weight * s.unsqueeze(1)]


@wrong(SMOOTH, "What it returned is 2 things; expected: it is 3 things.")
def without_the_bias(gain, bias, weight, peaks, alpha=0.5):
    gain, _, weight = smooth(gain, bias, weight, peaks, alpha)
    return gain, weight


# --------------------------------------------------------------------- rounding that looks ahead


@right(GPTQ)
def by_solving_for_what_is_left(weight, hessian, scale, bits):
    """Given the errors so far, the row that loses least, with all rows behind it."""
    damped = hessian + torch.eye(len(weight)) * hessian.diag().mean() * DAMPING
    scale, last = scale.expand_as(weight), 2 ** (bits - 1) - 1
    codes = torch.zeros_like(weight)
    for i, row in enumerate(weight):
        errors = (weight - codes * scale)[:i].to(hessian.dtype)
        taken_over = torch.linalg.solve(damped[i:, i:], damped[i:, :i] @ errors)[0]
        codes[i] = ((row + taken_over) / scale[i]).round().clamp(-last, last)
    return codes.char()
