"""Symptoms: what led to a wrong answer, read off its numbers, whatever the exercise.

The catalogue knows the mistakes of each exercise. Some are made in all of them, and show by the
values alone: a large negative number where -inf is expected, probabilities for logits, one element
too many. A rule looks at the first numbers that differ and returns a sentence, or None.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from autograder.judging.catalogue import Misconception
from autograder.judging.compare import close_numbers, is_number, number_of, same_value
from autograder.judging.exercise import Exercise, Outcome

Rule = Callable[[Tensor, Tensor], str | None]


def symptom(exercise: Exercise, got: Outcome, expected: Outcome) -> Misconception | None:
    """What one wrong outcome shows, in the form of a misconception; None where it shows nothing."""
    if got.failure is not None or expected.failure is not None:
        return None
    values = {(record.what, record.where): record.value for record in got.seen}
    for what, right, where in expected.seen:
        wrong = values.get((what, where))
        differ = same_value(wrong, right, what) is not None
        if not differ or not is_comparable(wrong, right):
            continue
        pair = as_tensor(wrong), as_tensor(right)
        for rule in () if same(*pair) else RULES:
            if (sentence := rule(*pair)) is not None:
                return Misconception(exercise.name, rule.__name__, sentence, ())
        return None
    if got.changed == expected.changed:
        return None
    return Misconception(exercise.name, "changed", CHANGED.format(got.changed or "something"), ())


CHANGED = (
    "{0} is changed in place, and the caller still needs it as it was: make new tensors and lists, "
    "without `/=`, `[...] =` and methods whose names end in `_`."
)


def is_comparable(*values: Any) -> bool:
    return all(isinstance(v, Tensor) or is_number(v) or is_list_of_numbers(v) for v in values)


def is_list_of_numbers(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(is_number(item) for item in value)


def as_tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.double()
    numbers = [number_of(item) for item in value] if isinstance(value, Sequence) else value
    return torch.as_tensor(numbers, dtype=torch.float64)


def same(got: Tensor, expected: Tensor) -> bool:
    return got.shape == expected.shape and bool(close_numbers(got, expected).all())


# --------------------------------------------------------------------------------------- the rules


def large_negative_number(got: Tensor, expected: Tensor) -> str | None:
    if not differs_only_at_never(got, expected) or not (got[expected.isneginf()] < -100).all():
        return None
    return (
        "A large negative number is used instead of -inf: only -inf makes a probability exactly 0, "
        "whatever the other logits are."
    )


def zero_for_never(got: Tensor, expected: Tensor) -> str | None:
    if not differs_only_at_never(got, expected) or not (got[expected.isneginf()] == 0).all():
        return None
    return "0 is used instead of -inf, and exp(0) is 1: a token that can't be drawn has -inf."


def differs_only_at_never(got: Tensor, expected: Tensor) -> bool:
    never = expected.isneginf()
    if got.shape != expected.shape or not never.any():
        return False
    return same(got[~never], expected[~never])


def has_rows(tensor: Tensor) -> bool:
    return tensor.ndim > 0 and tensor.shape[-1] > 1


def has_many_values(expected: Tensor) -> bool:
    """Whether numbers can't be the results of another function by chance, as 0 and 1 can."""
    return len(expected[expected.isfinite()].unique()) >= 3


def probabilities_returned(got: Tensor, expected: Tensor) -> str | None:
    if not has_rows(expected) or not same(got, expected.softmax(dim=-1)):
        return None
    return "These are probabilities, and logits are expected: leave the softmax out."


def logits_returned(got: Tensor, expected: Tensor) -> str | None:
    if not has_rows(got) or not same(got.softmax(dim=-1), expected):
        return None
    return "These are logits, and probabilities are expected: a softmax over the last dimension."


def logarithms_returned(got: Tensor, expected: Tensor) -> str | None:
    if not has_many_values(expected) or not same(got.exp(), expected):
        return None
    return "These are the logarithms of what is expected: `exp` is missing, or `log` too many."


def one_too_many(got: Tensor, expected: Tensor) -> str | None:
    if got.ndim != expected.ndim:
        return None
    for dim, size in enumerate(expected.shape):
        for start, end in ((0, "end"), (1, "beginning")):
            if got.shape[dim] == size + 1 and same(got.narrow(dim, start, size), expected):
                return f"One element too many, at the {end}; all the others are right."
    return None


def one_too_few(got: Tensor, expected: Tensor) -> str | None:
    found = one_too_many(expected, got)
    return found and found.replace("One element too many", "One element is missing")


def dimension_lost_or_gained(got: Tensor, expected: Tensor) -> str | None:
    if got.shape == expected.shape or not same(got.squeeze(), expected.squeeze()):
        return None
    return (
        f"The numbers are right, but their shape is {list(got.shape)} instead of "
        f"{list(expected.shape)}: look at `keepdim`, `squeeze` and indexing with one number."
    )


def dimensions_exchanged(got: Tensor, expected: Tensor) -> str | None:
    for one in range(got.ndim):
        for other in range(one):
            if same(got.transpose(one, other), expected):
                return f"The numbers are right, but dimensions {other} and {one} are exchanged."
    return None


def first_row_for_all(got: Tensor, expected: Tensor) -> str | None:
    if got.shape != expected.shape or got.ndim < 2 or len(got) < 2:
        return None
    if not same(got, expected[:1].expand_as(got)):
        return None
    return "Row 0's result is returned for every row: each row has its own."


def sign_lost(got: Tensor, expected: Tensor) -> str | None:
    return "The sign is the wrong way round: every number has it." if same(-got, expected) else None


def in_another_order(got: Tensor, expected: Tensor) -> str | None:
    if got.shape != expected.shape or not has_many_values(expected):
        return None
    if not same(got.sort(dim=-1).values, expected.sort(dim=-1).values):
        return None
    return "The numbers are right, but in another order: they belong where the original ones were."


RULES: tuple[Rule, ...] = (
    *(large_negative_number, zero_for_never, probabilities_returned, logarithms_returned),
    *(logits_returned, dimension_lost_or_gained, dimensions_exchanged, one_too_many),
    *(one_too_few, first_row_for_all, sign_lost, in_another_order),
)
