"""Lab 10's exercises: right answers in other styles pass, and what a student is told of wrong ones.

The misconceptions are tested with those of all labs, in test_exercises.py.
"""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from autograder.drivers.quantization import bytes_in
from autograder.exercise import Exercise
from autograder.exercises.quantization import EXERCISES as ALL
from autograder.judge import PASSED, WRONG, judge
from solutions.quantization import (
    DAMPING,
    OUTLIER,
    QuantizedLinear,
    absmax,
    gptq,
    int8_matmul,
    smooth,
    split_outliers,
)
from tests.common.attempts import attempt_at
from tests.common.trials import cases_of

EXERCISES: dict[str, Exercise] = {exercise.name: exercise for exercise in ALL}
FORWARD = "quantization.QuantizedLinear.forward"
MATMUL, SPLIT = "quantization.int8_matmul", "quantization.split_outliers"
SMOOTH, GPTQ = "quantization.smooth", "quantization.gptq"
RIGHT: list[Any] = []
WRONGS: list[Any] = []  # each with something of what is said
wrong_at = partial(attempt_at, WRONGS)


# -------------------------------------------------------------------------------- weights alone


@attempt_at(RIGHT, FORWARD, QuantizedLinear)
def forward_with_weights_made_anew(self, hidden):
    weight = self.codes.type_as(hidden) * self.scale
    return torch.einsum("...i,io->...o", hidden, weight).add(self.bias)


@attempt_at(RIGHT, FORWARD, QuantizedLinear)
def forward_row_by_row(self, hidden):
    rows = [self.codes.T.to(hidden) @ row for row in hidden.reshape(-1, hidden.shape[-1])]
    product = torch.stack(rows).mul_(self.scale).add_(self.bias)
    return product.reshape(*hidden.shape[:-1], -1)


@attempt_at(RIGHT, FORWARD, QuantizedLinear)
def forward_with_the_bias_among_the_codes(self, hidden):
    return (hidden @ self.codes.to(hidden.dtype) + self.bias / self.scale[0]) * self.scale


@wrong_at(FORWARD, QuantizedLinear, "What it returned the first time should be a tensor of shape")
def forward_returns_nothing(self, hidden):
    QuantizedLinear.forward(self, hidden)


@wrong_at(FORWARD, QuantizedLinear, "The layer afterwards holds 54 bytes of tensors; expected: it ")
def forward_that_keeps_its_output(self, hidden):
    self.__dict__["last"] = {"output": [QuantizedLinear.forward(self, hidden)]}
    return self.last["output"][0].clone()


@wrong_at(FORWARD, QuantizedLinear, "The result is right, but `hidden` is no longer what it was")
def forward_and_clear(self, hidden):
    if not hasattr(self, "calls"):
        self.calls = 0
    product, self.calls = QuantizedLinear.forward(self, hidden), self.calls + 1
    if self.calls == 2:
        hidden.zero_()
    return product


def test_all_memory_of_a_layer_counts_and_each_piece_once() -> None:
    layer: Any = nn.Linear(3, 2)
    assert bytes_in(layer) == 32
    layer.extra = nn.ModuleList([nn.Linear(2, 2, bias=False)])
    layer.again = [layer.weight, layer.weight.T, layer.weight[:1]]
    assert bytes_in(layer) == 48
    layer.first = {"row": (torch.zeros(10, 2)[:1],)}
    assert bytes_in(layer) == 128


# ------------------------------------------------------------------------ weights and activations


@attempt_at(RIGHT, MATMUL)
def matmul_by_torchs_kernel(hidden, codes, scale):
    token_codes, token_scale = absmax(hidden, 8, 1)
    return torch._int_mm(token_codes, codes) * (token_scale * scale)


@attempt_at(RIGHT, MATMUL)
def matmul_in_float64(hidden, codes, scale):
    """Whole numbers up to 2^53 are exact in it."""
    token_scale = (hidden.abs().amax(1, keepdim=True) / 127).clamp(min=torch.finfo().tiny)
    token_codes = torch.round(hidden / token_scale).clamp(-127, 127)
    return token_codes.double() @ codes.double() * token_scale * scale


@attempt_at(RIGHT, MATMUL)
def matmul_of_what_codes_stand_for(hidden, codes, scale):
    token_codes, token_scale = absmax(hidden, bits=8, dim=1)
    return (token_codes * token_scale) @ (codes * scale)


@wrong_at(MATMUL, None, "What it returned holds integers; expected floats.")
def matmul_without_scales(hidden, codes, scale):
    return absmax(hidden, bits=8, dim=1)[0].int() @ codes.int()


@wrong_at(MATMUL, None, "What it returned has shape [2, 1]; expected [1, 2].")
def matmul_turned_round(hidden, codes, scale):
    return int8_matmul(hidden, codes, scale).T


@attempt_at(RIGHT, SPLIT)
def split_the_columns(hidden, codes, scale, threshold=OUTLIER):
    is_large = hidden.abs().max(dim=0).values >= threshold
    large, rest = is_large.nonzero()[:, 0], (~is_large).nonzero()[:, 0]
    product = hidden.index_select(1, large) @ codes.index_select(0, large).mul(scale)
    if len(rest):
        product += int8_matmul(hidden[:, rest], codes[rest], scale)
    return product


@attempt_at(RIGHT, SPLIT)
def split_column_by_column(hidden, codes, scale, threshold=OUTLIER):
    usual, product = hidden.clone(), 0
    for column, weights in zip(usual.T, codes, strict=True):
        if column.max() >= threshold or column.min() <= -threshold:
            product = product + torch.outer(column, weights * scale[0])
            column.zero_()
    return product + int8_matmul(usual, codes, scale)


@attempt_at(RIGHT, SMOOTH)
def smooth_input_by_input(gain, bias, weight, peaks, alpha=0.5):
    factors = []
    for peak, row in zip(peaks.tolist(), weight.tolist(), strict=True):
        largest = max(map(abs, row))
        factors.append(peak**alpha / largest ** (1 - alpha) if peak and largest else 1.0)
    s = torch.tensor(factors, dtype=weight.dtype)
    return gain / s, bias / s, (weight.T * s).T


@attempt_at(RIGHT, SMOOTH)
def smooth_and_mend(gain, bias, weight, peaks, alpha=0.5):
    largest = torch.linalg.vector_norm(weight, ord=float("inf"), dim=1)
    s = (peaks.log() * alpha - largest.log() * (1 - alpha)).exp()
    s[(peaks == 0) | (largest == 0)] = 1
    return [gain / s, bias / s, weight * s.unsqueeze(1)]


@wrong_at(SMOOTH, None, "What it returned is None; expected: it is 3 things. Is a `return` missin")
def smooth_returns_nothing(gain, bias, weight, peaks, alpha=0.5):
    smooth(gain, bias, weight, peaks, alpha)


@wrong_at(SMOOTH, None, "What it returned is 2 things; expected: it is 3 things.")
def smooth_without_the_bias(gain, bias, weight, peaks, alpha=0.5):
    gain, _, weight = smooth(gain, bias, weight, peaks, alpha)
    return gain, weight


def test_a_token_alone_gets_what_it_gets_among_others() -> None:
    for case in cases_of(EXERCISES[MATMUL]):
        hidden, *given = case.data.values()
        alone = [int8_matmul(token[None], *given) for token in hidden]
        assert torch.equal(int8_matmul(hidden, *given), torch.cat(alone)), case.label


def test_sums_pass_what_fewer_bits_hold() -> None:
    passed = {}
    for case in cases_of(EXERCISES[MATMUL]):
        hidden, codes, _ = case.data.values()
        products = absmax(hidden, bits=8, dim=1)[0].long()[:, :, None] * codes.long()
        passed[case.label] = int(products.cumsum(dim=1).abs().max())
    assert 2**15 < passed["sums beyond 2^15"] < 2**24
    assert 2**24 < passed["sums that pass 2^24 on their way"] < 2**31


def test_any_number_of_columns_may_have_an_outlier() -> None:
    counts = set()
    for case in cases_of(EXERCISES[SPLIT]):
        hidden, threshold = case.data["hidden"], case.data.get("threshold", OUTLIER)
        outliers = (hidden.abs() >= threshold).any(dim=0)
        counts.add("all" if outliers.all() else int(outliers.sum()))
    assert {0, 1, 2, 3, "all"} <= counts


@pytest.mark.parametrize("exercise", [MATMUL, SPLIT])
@pytest.mark.parametrize("seed", range(5))
def test_no_activation_is_on_the_verge_of_another_code(exercise: str, seed: int) -> None:
    """Rounding errors, of float32 even, change the product by no more than themselves."""
    product: Any = int8_matmul if exercise == MATMUL else split_outliers
    for case in cases_of(EXERCISES[exercise], seed):
        given = dict(case.data)
        right = product(**given)
        nearby = product(**{**given, "hidden": given["hidden"] * (1 + 1e-7)})
        assert (nearby - right).abs().max() <= 1e-6 * right.abs().max(), case.label


# --------------------------------------------------------------------- rounding that looks ahead


@attempt_at(RIGHT, GPTQ)
def gptq_by_a_new_inverse_for_each_row(weight, hessian, scale, bits):
    """As Optimal Brain Quantization has it: no factor, the inverse of what is left."""
    damped = hessian + torch.eye(len(weight)) * hessian.diag().mean() * DAMPING
    left, last = weight.double().clone(), 2 ** (bits - 1) - 1
    codes = torch.empty(weight.shape, dtype=torch.int8)
    for i, step in enumerate(scale.expand(weight.shape)):
        codes[i] = left[i].div(step).round().clip(-last, last)
        inverse = torch.linalg.inv(damped[i:, i:])
        left[i:] -= inverse[:, :1] / inverse[0, 0] * (left[i] - codes[i] * step)
    return codes


@attempt_at(RIGHT, GPTQ)
def gptq_by_solving_for_what_is_left(weight, hessian, scale, bits):
    """Given the errors so far, the row that loses least, with all rows behind it."""
    damped = hessian + torch.eye(len(weight)) * hessian.diag().mean() * DAMPING
    scale, last = scale.expand_as(weight), 2 ** (bits - 1) - 1
    codes = torch.zeros_like(weight)
    for i, row in enumerate(weight):
        errors = (weight - codes * scale)[:i].to(hessian.dtype)
        taken_over = torch.linalg.solve(damped[i:, i:], damped[i:, :i] @ errors)[0]
        codes[i] = ((row + taken_over) / scale[i]).round().clamp(-last, last)
    return codes.char()


@attempt_at(RIGHT, GPTQ)
def gptq_output_by_output(weight, hessian, scale, bits):
    mean = sum(hessian.diagonal().tolist()) / len(hessian)
    inverse = torch.cholesky_inverse(
        torch.linalg.cholesky(hessian + mean / 100 * torch.eye(len(hessian)))
    )
    upper = torch.linalg.cholesky(inverse).T
    parts = upper / upper.diagonal()[:, None]
    outputs = []
    for column, steps in zip(weight.T, scale.expand_as(weight).T, strict=True):
        left, codes = column.to(parts.dtype).clone(), []
        for i in range(len(left)):
            code = min(
                max(round(float(left[i] / steps[i])), 1 - 2 ** (bits - 1)), 2 ** (bits - 1) - 1
            )
            codes.append(code)
            left -= parts[i] * (left[i] - code * steps[i])
        outputs.append(codes)
    return torch.tensor(outputs, dtype=torch.int8).T


@wrong_at(GPTQ, None, "The tensor of codes holds floats; expected integers of the type torch.int8")
def gptq_in_floats(weight, hessian, scale, bits):
    return gptq(weight, hessian, scale, bits).float()


@wrong_at(GPTQ, None, "The result is right, but `hessian` is no longer what it was before the call")
def gptq_and_damp_in_place(weight, hessian, scale, bits):
    codes = gptq(weight, hessian, scale, bits)
    hessian.diagonal().add_(DAMPING * hessian.diagonal().mean())
    return codes


@pytest.mark.parametrize("seed", range(5))
def test_no_weight_is_on_the_verge_of_another_code(seed: int) -> None:
    """Neither those that are rounded first nor those that have taken over errors."""
    for case in cases_of(EXERCISES[GPTQ], seed):
        weight, *given = case.data.values()
        noise = 1 + 1e-6 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
        assert torch.equal(gptq(weight * noise, *given), gptq(weight, *given)), case.label


def test_each_case_needs_to_look_ahead_and_loses_less_by_it() -> None:
    """Summed over the cases; in one of them, what is added to the diagonal may cost a little."""
    lost = {"nearest": 0.0, "ahead": 0.0}
    for case in cases_of(EXERCISES[GPTQ]):
        weight, hessian, scale, bits = case.data.values()
        last = 2 ** (bits - 1) - 1
        nearest, ahead = (weight / scale).round().clamp(-last, last), gptq(**case.data)
        assert not torch.equal(nearest, ahead.to(nearest.dtype)), case.label
        for name, codes in {"nearest": nearest, "ahead": ahead}.items():
            errors = (weight - codes * scale).double()
            lost[name] += float((errors * (hessian @ errors)).sum() / hessian.trace())
    assert lost["ahead"] < lost["nearest"]


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
