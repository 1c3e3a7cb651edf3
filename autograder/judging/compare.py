"""Compare what an attempt did with what was expected.

Every function returns None where the two agree, else the first difference: one sentence and the two
values. An attempt returns plain data of any kind, so the type is looked at before the value. The
same goes for the expected side, because a diagnosis compares an attempt with wrong solutions.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autograder.attempt.plain import Strange, kind_of
from autograder.attempt.records import Seen

# Relative to the largest expected value: rounding in float32 passes, and a mistake shows in the
# first digits. Numbers of a less precise dtype are compared in that precision, so that the message
# names their dtype.
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Difference:
    """A sentence, and the values that differ, where there are two to show."""

    sentence: str
    got: Any = None
    expected: Any = None


def first(*differences: Difference | None) -> Difference | None:
    """The first difference of several comparisons, None where all agree."""
    return next((difference for difference in differences if difference is not None), None)


# --------------------------------------------------------------------------- all that a driver saw


def same_seen(got: Sequence[Seen], expected: Sequence[Seen]) -> Difference | None:
    """The first record that differs from that of the reference."""
    return same_records(got, expected, same_value)


def same_records(
    got: Sequence[Seen],
    expected: Sequence[Seen],
    same: Callable[[Any, Any, str], Difference | None],
) -> Difference | None:
    """The first record whose value differs, as `same(value, expected value, subject)` says."""
    mine = {(record.what, record.where): record.value for record in got}
    for what, value, where in expected:
        if (what, where) not in mine:
            return Difference(f"{subject(what, where)} is missing.")
        difference = same(mine[what, where], value, subject(what, where))
        if difference is not None:
            return difference
    known = {(record.what, record.where) for record in expected}
    for what, value, where in got:
        if (what, where) not in known:
            return Difference(f"{subject(what, where)} is not expected.", value)
    return None


def subject(what: str, where: str) -> str:
    """The beginning of the sentence about a record."""
    return f"{what} {where}".strip()


def same_value(got: Any, expected: Any, what: str) -> Difference | None:
    """Same value, whatever it is. A string is a state that ends the sentence: "was refused"."""
    if isinstance(expected, str):
        return same_state(got, expected, what)
    if isinstance(expected, Tensor) and isinstance(got, Tensor):
        return same_tensor(got, expected, what)
    if is_number(got) and is_number(expected) and not isinstance(expected, Tensor):
        return same_number(got, expected, what)
    if type(got) is not type(expected):
        return other_kind(got, expected, what)
    if is_container(expected):
        return same_items(got, expected, what)
    return None if got == expected else other_kind(got, expected, what)  # None, True, a Strange


PLURAL = "are ", "have ", "go "  # beginnings of a state that several things are in


def same_state(got: Any, expected: str, what: str) -> Difference | None:
    is_state = isinstance(got, str)
    if is_state and got == expected:
        return None
    state = got if is_state else f"is {kind(got)}"
    they = "they" if expected.startswith(PLURAL) else "it"
    return Difference(f"{what} {state}; expected: {they} {expected}.{missing_return(got)}")


def same_items(got: Any, expected: Any, what: str) -> Difference | None:
    """Same list, tuple or dict, whatever is in it; 3 and 3.0 are the same number."""
    if isinstance(expected, dict):
        if missing := [key for key in expected if key not in got]:
            return Difference(f"{what} has no key {missing[0]!r}.", got, expected)
        if extra := [key for key in got if key not in expected]:
            return Difference(f"{what} should have no key {extra[0]!r}.", got, expected)
        places: Iterable[Any] = expected
    else:
        places = range(min(len(got), len(expected)))
    for place in places:
        found = same_value(got[place], expected[place], what)
        if found is not None:
            inner = type(got[place]) is type(expected[place]) and is_container(expected[place])
            if inner:
                return Difference(found.sentence, got, expected)
            has_values = found.got is not None or found.expected is not None
            why = "." if has_values else f", which{found.sentence.removeprefix(what)}"
            return Difference(f"{what} differs first at [{place!r}]{why}", got, expected)
    if len(got) != len(expected):
        counts = f"{what} has {items(len(got))}; expected {len(expected)}."
        return Difference(counts, got, expected)
    return None


def other_kind(got: Any, expected: Any, what: str) -> Difference:
    """For values that can't be compared: None, a list, an object."""
    if kind(got).startswith(f"{kind(expected)} ") and is_container(expected):  # too long a list
        return Difference(f"{what} is {kind(got)}; expected {items(len(expected))}.", got, expected)
    part = what.startswith("`")  # of the result, whose `return` is there
    why = "" if part else missing_return(got)
    sentence = f"{what} should be {kind(expected)}, not {kind(got)}.{why}"
    return Difference(sentence, got, expected)


# ------------------------------------------------------------------------------------ single values


def same_tensor(got: Tensor, expected: Tensor, what: str) -> Difference | None:
    """Same shape, same values, same kind of numbers; floats up to the tolerance, of one dtype."""
    if got.shape != expected.shape:
        shapes = f"{what} has shape {list(got.shape)}; expected {list(expected.shape)}."
        return Difference(shapes, got, expected)
    if number_kind(got) != number_kind(expected):
        kinds = f"{what} holds {number_kind(got)}; expected {number_kind(expected)}."
        return Difference(kinds, got, expected)
    if expected.is_floating_point():
        precision = max(TOLERANCE, 8 * torch.finfo(got.dtype).eps)
        close = close_numbers(got.double(), expected.double(), precision)
    else:
        close = got == expected
    if close.all():
        return same_dtype(got, expected, what)
    index = tuple((~close).nonzero()[0].tolist())
    return Difference(
        f"{what} (shape {list(expected.shape)}) differs first at {list(index)}: "
        f"{got_and_expected(got[index].item(), expected[index].item())}.",
        got,
        expected,
    )


def close_numbers(got: Tensor, expected: Tensor, tolerance: float = TOLERANCE) -> Tensor:
    finite = expected[expected.isfinite()]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    return torch.isclose(got, expected, 0.0, tolerance * largest, equal_nan=True)


def same_dtype(got: Tensor, expected: Tensor, what: str) -> Difference | None:
    """Same dtype, where they are floats: int32 indexes as int64 does."""
    if got.dtype == expected.dtype or not expected.is_floating_point():
        return None
    dtypes = f"{what} has the right numbers in {got.dtype}; expected {expected.dtype}."
    return Difference(dtypes)


def same_ids(got: Any, expected: Any, what: str) -> Difference | None:
    """Same token ids. A different token comes before a different length, which counts tokens."""
    tensors = isinstance(got, Tensor) and isinstance(expected, Tensor)
    if not tensors or got.ndim != 2 or expected.ndim != 2 or len(got) != len(expected):
        return same_value(got, expected, what)
    shared = min(got.shape[1], expected.shape[1])
    difference = same_tensor(got[:, :shared], expected[:, :shared], what)
    if difference is not None:
        return Difference(difference.sentence, got, expected)
    if got.shape[1] == expected.shape[1]:
        return None
    return Difference(
        f"{what} has {got.shape[1]} tokens a row; expected {expected.shape[1]} "
        f"(shape {list(got.shape)} against {list(expected.shape)}).",
        got,
        expected,
    )


def same_number(got: Any, expected: Any, what: str) -> Difference | None:
    """Same number. Whole numbers must be equal."""
    mine, theirs = number_of(got), number_of(expected)
    tolerance = TOLERANCE if isinstance(theirs, float) else 0.0
    if mine == theirs or math.isclose(mine, theirs, rel_tol=tolerance):
        return None
    if isinstance(mine, float) and isinstance(theirs, float) and mine != mine and theirs != theirs:
        return None  # both are not a number
    return Difference(f"{what} is {number(mine)}; expected {number(theirs)}.", got, expected)


def missing_return(got: Any) -> str:
    """What to do where a function returned nothing, or only a promise of it."""
    match got:
        case None:
            return " Is a `return` missing?"
        case Strange("a generator" | "an async_generator"):
            return " Take `yield` out of it: a function with `yield` makes a generator."
        case Strange("a generator expression"):
            return " `(… for … in …)` makes a generator: write `[… for … in …]` to get a list."
        case Strange("a coroutine"):
            return " Take `async` away: the function must do its work when it is called."
    return ""


# ----------------------------------------------------------------------------------------- work

Work = Mapping[str, int]


def no_more_work(got: Work, expected: Work, *names: str) -> Difference | None:
    """No more work than the reference needed, in what `names` counts ("forward calls")."""
    for name in names:
        if got[name] > expected[name]:
            return Difference(
                f"The result is right, but it took {got[name]} {name}; {expected[name]} suffice."
            )
    return None


# ------------------------------------------------------------------------ values, in few words


def is_container(value: Any) -> bool:
    return isinstance(value, (list, tuple, dict)) and not isinstance(value, Strange)


def is_number(value: Any) -> bool:
    """A number, or a tensor that is one: [] or [1], but no table with one number in it."""
    if isinstance(value, Tensor):
        return value.numel() == 1 and value.ndim <= 1 and value.dtype != torch.bool
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def number_of(value: Any) -> int | float:
    return value.item() if isinstance(value, Tensor) else value


def items(count: int) -> str:
    return f"{count} item{'s' * (count != 1)}"


def kind(value: Any) -> str:
    """What a value is: "None", "the number 0.5", "a list", "a tensor of shape [2, 3]"."""
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, Strange):
        return value.kind
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)}"
    if is_number(value):
        return f"the number {number(value)}"
    return kind_of(value)


def number_kind(tensor: Tensor) -> str:
    if tensor.dtype == torch.bool:
        return "True and False"
    if tensor.dtype in (torch.int8, torch.int16, torch.uint8):  # which the model refuses
        return f"integers of the type {tensor.dtype}"
    return "floats" if tensor.is_floating_point() else "integers"


def got_and_expected(got: float, expected: float) -> str:
    """Both numbers, with enough digits to tell them apart."""
    if number(got) == number(expected):
        return f"got {got!r}, expected {expected!r}"
    return f"got {number(got)}, expected {number(expected)}"


def number(value: Any) -> str:
    value = number_of(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)
