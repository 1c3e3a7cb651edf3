"""Answers to lab 21's exercises: profiles, products whose bits depend on others, shares, rows."""

import numpy as np

from solutions.compiler import add, rest
from solutions.one_kernel import (
    OVER,
    attend,
    exponentiate,
    mlp,
    multiply,
    multiply4,
    normalize,
    rows_of,
    self_times,
    softmax,
    take_share,
)
from tests.common.attempts import right, wrong, wrong_result

wrong_result(self_times, lambda both: both[0], "self_times returns a dict and a number; this is a")
wrong_result(
    self_times,
    lambda both: (list(both[0].items()), both[1]),
    "The first thing returned is a list; expected",
)
wrong_result(rows_of, lambda parts: parts[:3], "rows_of returns four things; this is 3 things.")
wrong_result(
    rows_of,
    lambda parts: (*parts[:3], list(parts[3].values())),
    "The wanted rows are a list; expected",
)


@right(normalize)
def in_float64(x, norm, eps, out):
    d = x.astype(np.float64)
    out[:] = (d - d.mean()) / np.sqrt(d.var() + eps) * norm[0] + norm[1]


@wrong(normalize, "The numbers of `out` are as before the call (`out = …` and `return …` write")
def returned(x, norm, eps, out):
    return (x - x.mean()) / np.sqrt(x.var() + eps) * norm[0] + norm[1]


@wrong(multiply, "The bits of row 0 aren't those of the row alone; expected: they are")
def with_another_order_in_a_batch(x, weight, scale, bias, first, last, out, added):
    numbers = weight.astype(np.float32)
    for j in range(first, last):
        products = x * numbers[j]
        if len(x) > 1:
            products = products[:, ::-1]
        total = np.cumsum(products, axis=1, dtype=np.float32)[:, -1] * scale[j] + bias[j]
        out[:, j] = out[:, j] + total if added else total


@wrong(multiply4, "`multiply` gets 6 outputs; expected: it gets three outputs at most.")
def one_at_a_time(x, weight, scale, bias, first, last, out, added):
    multiply(x, weight, scale, bias, first, last, out, added)


@right(exponentiate)
def by_numpy(x, whole):
    x[:] = np.exp(np.maximum(x, np.float32(-87.3)))


@wrong(exponentiate, "The digits of the result for x = ", "are off by more than a few millionths")
def in_few_terms(x, whole):
    d = x.astype(np.float64)
    near = np.exp(np.maximum(d, -100.0)) * (1 + 4e-6)
    x[:] = np.where(d < -87.3, 0, near)


@right(attend)
def in_matrices(query, keys, values, table, start, stop, scores, whole, out):
    size, length = keys.shape[1], len(scores)
    slots = [(table[token // size], token % size) for token in range(length)]
    own_keys, own_values = (
        np.array([part[slot][start:stop] for slot in slots]) for part in (keys, values)
    )
    scores[:] = own_keys @ query / np.sqrt(np.float32(len(query)))
    softmax(scores, whole)
    out[:] = scores @ own_values


@right(take_share)
def with_the_last_share_counted_late(counters, phase, shares, before):
    share = add(counters[0, phase : phase + 1], 1)
    if before != OVER:
        add(counters[1, phase : phase + 1], 1)
    if share < shares:
        return share
    looks = 0
    while counters[1, phase] < shares:
        looks += 1
        rest(looks)
    return OVER


@wrong(take_share, "A change of the counters is made without `add`; expected: it is made by")
def with_counters_of_its_own(counters, phase, shares, before):
    if before != OVER:
        counters[1, phase] += 1
    share = int(counters[0, phase])
    if share < shares:
        counters[0, phase] += 1
        return share
    for looks in range(1, 1000):
        rest(looks)
    return OVER


@wrong(mlp, "It raised ValueError: There is no phase ")
def with_a_third_phase(counters, phase, hidden, norm, eps, c_fc, c_proj, normed, wide, exps, whole):
    take_share(counters, phase + 2, 8, OVER)


@wrong(mlp, "It raised ValueError: A linear layer has 8 shares, not 4.")
def in_four_shares(counters, phase, hidden, norm, eps, c_fc, c_proj, normed, wide, exps, whole):
    take_share(counters, phase, 4, OVER)


# ------------------------------------------------------------- mutants that do the same by right

EQUIVALENT = {
    "one_kernel.exponentiate": {
        "f32(-126) -> f32(-127)": "there, the power of two is 0, which is near enough",
    },
    "one_kernel.attend": {
        "f32(0) -> f32(1)": "softmax doesn't notice what is added to all scores",
        "f32(0) -> f32(-1)": "softmax doesn't notice what is added to all scores",
    },
    "one_kernel.take_share": {
        "looks = 0 -> looks = -1": "a nap comes one look later",
    },
    "one_kernel.mlp": {
        "exps[low:high] -> exps[:high]": "it is this thread's own memory, and long enough",
        "exps[low:high] -> exps[low:]": "it is this thread's own memory, and long enough",
        "whole[low:high] -> whole[:high]": "it is this thread's own memory, and long enough",
        "whole[low:high] -> whole[low:]": "it is this thread's own memory, and long enough",
    },
}
