"""Answers to lab 10's exercises: codes and scales, products of codes, rounding that looks ahead."""

import torch

from solutions.quantization import QuantizedLinear, absmax, calibrate, smooth
from tests.common.attempts import wrong, wrong_result

wrong_result(
    absmax,
    lambda both: both[0],
    "What it returned is a tensor of shape [2, 3]; expected: it is 2 things, codes",
)
wrong_result(
    absmax,
    lambda both: (both[0], both[1].flatten()),
    "`scale` is a tensor of floats, of shape [3]; expected: it is a tensor of floats",
)
wrong_result(calibrate, lambda best: best[None], "What it returned has shape [1]; expected [].")
wrong_result(
    smooth,
    lambda three: (three[0], three[2]),
    "What it returned is 2 things; expected: it is 3 things.",
)


@wrong(absmax, "`scale[0, ")
def small_scales_off_by_a_percent(weight, bits, dim=0):
    codes, scale = absmax(weight, bits, dim)
    return codes, torch.where(scale < scale.max() / 100, scale * 1.01, scale)


@wrong(QuantizedLinear.forward, "The layer afterwards holds 54 bytes of tensors; expected: it ")
def keeping_its_output(self, hidden):
    self.__dict__["last"] = {"output": [QuantizedLinear.forward(self, hidden)]}
    return self.last["output"][0].clone()


# ------------------------------------------------------------- mutants that do the same by right

EQUIVALENT = {
    "quantization.affine": {
        (
            "(groups / scale + zero).round().clamp(0, last) -> "
            "(groups / scale + zero).round().clamp(-1, last)"
        ): "rounding `zero` moves a number by half a step at most, and -0.5 is rounded to 0",
    },
    "quantization.two_of_four": {
        "fours.topk(2, dim=1) -> fours.topk(2)": "the last dimension is topk's own",
    },
    "quantization.pack": {
        "codes[0::2] -> codes[::2]": "a slice begins at 0 by itself",
    },
}
