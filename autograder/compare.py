"""Comparing what an attempt returned with what was expected.

Every function returns None where the two agree, else one sentence about the first difference. What
an attempt returned can be anything at all, so the type is looked at before the value. The same goes
for the expected side: to diagnose an attempt, it is compared with wrong solutions.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def first(*sentences: str | None) -> str | None:
    """The first difference of several comparisons, None where all agree."""
    return next((sentence for sentence in sentences if sentence is not None), None)


def same_tensor(
    got: Any, expected: Tensor, what: str, tolerance: float | None = None
) -> str | None:
    """Same shape, same kind of numbers, same values.

    `tolerance` is relative to the largest expected value; None asks for exactly the same values.
    """
    if not isinstance(got, Tensor) or not isinstance(expected, Tensor):
        return same_kind(got, expected, what)
    if got.shape != expected.shape:
        return f"{what} has shape {list(got.shape)}; expected {list(expected.shape)}."
    if number_kind(got) != number_kind(expected):
        return f"{what} holds {number_kind(got)}; expected {number_kind(expected)}."
    got, expected = got.detach().cpu(), expected.detach().cpu()
    if expected.is_floating_point():
        got, expected = got.double(), expected.double()
        largest = expected[expected.isfinite()].abs().max() if expected.isfinite().any() else 0.0
        close = torch.isclose(got, expected, 0.0, float((tolerance or 0.0) * largest), True)
    else:
        close = got == expected
    if close.all():
        return None
    index = tuple((~close).nonzero()[0].tolist())
    return (
        f"{what} (shape {list(expected.shape)}) differs first at {list(index)}: "
        f"{got_and_expected(got[index].item(), expected[index].item())}."
    )


def same_ids(got: Any, expected: Tensor, what: str) -> str | None:
    """Same token ids. A different length is told in tokens, and only after a different token."""
    tensors = isinstance(got, Tensor) and isinstance(expected, Tensor)
    if not tensors or got.ndim != 2 or expected.ndim != 2 or len(got) != len(expected):
        return same_tensor(got, expected, what)
    shared = min(got.shape[1], expected.shape[1])
    difference = same_tensor(got[:, :shared], expected[:, :shared], what)
    if difference is None and got.shape[1] != expected.shape[1]:
        return (
            f"{what} has {got.shape[1]} tokens a row; expected {expected.shape[1]} "
            f"(shape {list(got.shape)} against {list(expected.shape)})."
        )
    return difference


def same_number(got: Any, expected: Any, what: str, tolerance: float = 1e-9) -> str | None:
    """Same number, up to a relative tolerance; None only where None is expected."""
    if not is_number(got) or not is_number(expected):
        return same_kind(got, expected, what)
    if math.isclose(float(got), float(expected), rel_tol=tolerance):
        return None
    return f"{what} is {number(got)}; expected {number(expected)}."


def same_kind(got: Any, expected: Any, what: str) -> str | None:
    """For what can't be compared by value: None, a list, a string."""
    if repr(got) == repr(expected):
        return None
    missing = " Is a `return` missing?" if got is None else ""
    return f"{what} should be {kind(expected)}, not {kind(got)}.{missing}"


def same_counts(got: Mapping[str, int], expected: Mapping[str, int], *names: str) -> str | None:
    """No more work than the reference needed, in what `names` counts ("forward calls")."""
    for name in names:
        if got[name] > expected[name]:
            return f"The result is right, but it took {got[name]} {name}; {expected[name]} suffice."
    return None


# ------------------------------------------------------------------------ values, in few words


def is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1
    return hasattr(value, "__float__") and not isinstance(value, bool)


def kind(value: Any) -> str:
    """What a value is: "None", "the number 0.5", "a list", "a tensor of shape [2, 3]"."""
    if value is None:
        return "None"
    if is_number(value):
        return f"the number {number(value)}"
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def number_kind(tensor: Tensor) -> str:
    if tensor.dtype == torch.bool:
        return "True and False"
    return "floats" if tensor.is_floating_point() else "integers"


def got_and_expected(got: float, expected: float) -> str:
    """Both numbers, in as many digits as it takes to tell them apart."""
    if number(got) == number(expected):
        return f"got {got!r}, expected {expected!r}"
    return f"got {number(got)}, expected {number(expected)}"


def number(value: Any) -> str:
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    return f"{value:.6g}" if isinstance(value, float) else str(value)
