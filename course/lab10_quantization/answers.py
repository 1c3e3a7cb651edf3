"""Answers to lab 10's exercises: codes and scales, products of codes, rounding that looks ahead."""

import torch

from solutions.quantization import (
    QuantizedLinear,
    absmax,
    affine,
    calibrate,
    int8_matmul,
    smooth,
)
from tests.common.attempts import right, wrong

# -------------------------------------------------------------------------------- codes and scales


@right(absmax)
def half_up_in_float32(weight, bits, dim=0):
    """Half up, not half to even: no number lies in the middle."""
    dtype, weight = weight.dtype, weight.float()
    flat = weight.reshape(1, -1) if dim is None else weight.movedim(dim, -1)
    last = 2 ** (bits - 1) - 1
    peak = flat.abs().max(dim=-1).values
    scale = torch.where(peak.bool(), peak / last, torch.ones(()))
    scale = scale.view(1, 1) if dim is None else scale.unsqueeze(dim)
    return torch.floor(weight / scale + 0.5).to(torch.int8), scale.to(dtype)


@wrong(absmax, "What it returned is a tensor of shape [2, 3]; expected: it is 2 things, codes")
def without_the_scale(weight, bits, dim=0):
    return absmax(weight, bits, dim)[0]


@wrong(absmax, "`scale` is a tensor of floats, of shape [3]; expected: it is a tensor of floats")
def with_a_flat_scale(weight, bits, dim=0):
    codes, scale = absmax(weight, bits, dim)
    return codes, scale.flatten()


@wrong(absmax, "`scale[0, ")
def small_scales_off_by_a_percent(weight, bits, dim=0):
    codes, scale = absmax(weight, bits, dim)
    return codes, torch.where(scale < scale.max() / 100, scale * 1.01, scale)


@right(affine)
def with_the_zero_from_above(groups, bits):
    last = 2**bits - 1
    low = torch.minimum(groups.min(dim=1).values, torch.tensor(0.0))[:, None]
    high = torch.maximum(groups.max(dim=1).values, torch.tensor(0.0))[:, None]
    scale = torch.where(low == high, 1, (high - low) / last)
    is_zero = (low == high).to(torch.uint8)
    zero = (last - torch.round(high / scale)).to(torch.uint8) * (1 - is_zero)
    codes = torch.clamp(torch.round(groups / scale) + zero, min=0, max=last)
    return [codes.to(torch.uint8), scale, zero]


@wrong(affine, "The codes", "go up to 16", "aren't limited")
def without_a_limit(groups, bits):
    _, scale, zero = affine(groups, bits)
    return (groups / scale + zero).round().to(torch.uint8), scale, zero


@wrong(calibrate, "What it returned has shape [1]; expected [].")
def in_a_list_of_one(values, bits, scales):
    return calibrate(values, bits, scales)[None]


# ---------------------------------------------------------------------- weights, then activations


@right(QuantizedLinear.forward)
def with_the_bias_among_the_codes(self, hidden):
    return (hidden @ self.codes.to(hidden.dtype) + self.bias / self.scale[0]) * self.scale


@wrong(QuantizedLinear.forward, "The layer afterwards holds 54 bytes of tensors; expected: it ")
def keeping_its_output(self, hidden):
    self.__dict__["last"] = {"output": [QuantizedLinear.forward(self, hidden)]}
    return self.last["output"][0].clone()


@right(int8_matmul)
def by_torchs_kernel(hidden, codes, scale):
    token_codes, token_scale = absmax(hidden, 8, 1)
    return torch._int_mm(token_codes, codes) * (token_scale * scale)


@right(int8_matmul)
def exact_in_float64(hidden, codes, scale):
    token_codes, token_scale = absmax(hidden, 8, 1)
    return (token_codes.double() @ codes.double()).to(hidden.dtype) * token_scale * scale


@wrong(smooth, "What it returned is 2 things; expected: it is 3 things.")
def without_the_bias(gain, bias, weight, peaks, alpha=0.5):
    gain, _, weight = smooth(gain, bias, weight, peaks, alpha)
    return gain, weight


# --------------------------------------------------------------------- rounding that looks ahead


# ------------------------------------------------------------- mutants that do the same by right

EQUIVALENT = {
    "quantization.affine": {
        (
            "(groups / scale + zero).round().clamp(0, last) -> "
            "(groups / scale + zero).round().clamp(-1, last)"
        ): "rounding `zero` moves a number by half a step at most, and -0.5 is rounded to 0",
    },
    "quantization.pack": {
        "codes[0::2] -> codes[::2]": "a slice begins at 0 by itself",
    },
}
