"""Symptoms: the cause of a wrong answer, read off its values, whatever the exercise.

The catalogue knows the mistakes of each exercise. Some are made in all of them, and the values
alone show them: a large negative number where -inf is expected, probabilities instead of logits,
one element too many. A rule looks at the first values that differ and returns a sentence, or None.
An extreme shows in all cases together: the same answer every time.
"""

from ast import literal_eval
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from autograder.judging.catalogue import Misconception
from autograder.judging.compare import (
    close_numbers,
    is_container,
    is_number,
    number,
    number_of,
    same_value,
)
from autograder.judging.exercise import Case, Exercise, Outcome

Rule = Callable[[Tensor, Tensor], str | None]
MOST_WORDS = 1000  # characters of a value that a driver puts into words; they need some 300
ENOUGH = 3  # values, from which on it is no chance that all are the same


def symptom(exercise: Exercise, got: Outcome, expected: Outcome) -> Misconception | None:
    """What one wrong outcome shows, in the form of a misconception; None where it shows nothing."""
    if got.failure is not None or expected.failure is not None:
        return None
    if (sentence := exchanged([*islice(differing(got, expected), 2)])) is not None:
        return Misconception(exercise.name, exchanged.__name__, sentence, ())
    for what, wrong, right in differing(got, expected):
        if only_the_first(value_of(wrong), value_of(right)):
            missing = f"{what}: only the first one is there, and the others are missing."
            return Misconception(exercise.name, only_the_first.__name__, missing, ())
        if not is_comparable(wrong, right):
            continue
        if dtypes_differ(wrong, right) and same(as_tensor(wrong), as_tensor(right)):
            floats = wrong.is_floating_point() and right.is_floating_point()
            dtypes = OTHER_DTYPE.format(wrong.dtype, right.dtype) + KEEP_DTYPE * floats
            return Misconception(exercise.name, "other_dtype", dtypes, ())
        pair = as_tensor(wrong), as_tensor(right)
        # Of places and ids a wrong choice is often a permutation, by chance.
        rules = RULES if has_fractions(pair[1]) else RULES[:-1]
        for rule in () if same(*pair) else rules:
            if (sentence := rule(*pair)) is not None:
                return Misconception(exercise.name, rule.__name__, sentence, ())
        break
    if got.changed == expected.changed:
        return None
    what = exercise.called(got.changed)
    sentence = CHANGED.format(what[0].upper() + what[1:])
    return Misconception(exercise.name, "changed", sentence, ())


def differing(got: Outcome, expected: Outcome) -> Iterator[tuple[str, Any, Any]]:
    """What was seen in both and differs: what it is, the value, and the right one."""
    values = {(record.what, record.where): record.value for record in got.seen}
    for what, right, where in expected.seen:
        wrong = values.get((what, where))
        if same_value(wrong, right, what) is not None:
            yield what, wrong, right


CHANGED = (
    "{0} is changed in place, and the caller still needs it as it was: make new tensors and lists, "
    "without `/=`, `[...] =` and methods whose names end in `_`."
)
OTHER_DTYPE = "The numbers are right, but their dtype is {}; expected {}."
KEEP_DTYPE = (
    " Give the dtype of the inputs to the tensors you make (`torch.zeros_like(x)`, "
    "`dtype=x.dtype`), and leave out `.float()` and `.double()`."
)


def value_of(seen: Any) -> Any:
    """A value itself where a driver has put it into words: "is {0: 3}"."""
    if not isinstance(seen, str) or not seen.startswith(("is {", "is [")):
        return seen
    if len(seen) > MOST_WORDS:  # an attempt's own: to parse them takes long, and much memory
        return seen
    try:
        return literal_eval(seen.removeprefix("is "))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return seen


def dtypes_differ(got: Any, expected: Any) -> bool:
    return isinstance(got, Tensor) and isinstance(expected, Tensor) and got.dtype != expected.dtype


# -------------------------------------------------------------------- what shows in all the cases


def extreme(
    exercise: Exercise,
    cases: Sequence[Case],
    got: Sequence[Outcome],
    expected: Sequence[Outcome],
) -> Misconception | None:
    """What the outcomes of all cases show together, in the form of a misconception."""
    both = list(zip(got, expected, strict=True))
    first = next((what for g, e in both for what, *_ in differing(g, e)), None)
    if first is None or any(outcome.failure for pair in both for outcome in pair):
        return None
    mine = [values_of(outcome, first) for outcome in got]
    right = [values_of(outcome, first) for outcome in expected]
    for rule in (always_the_same, always_the_length, always_empty):
        if (sentence := rule(first, cases, mine, right)) is not None:
            return Misconception(exercise.name, rule.__name__, sentence, ())
    if right_in_single_rows(got, expected):
        return Misconception(exercise.name, right_in_single_rows.__name__, SINGLE_ROWS, ())
    return None


SINGLE_ROWS = (
    "All cases with one row are right, and all that fail have several rows. Look at the dimension "
    "along which you compute, and at what belongs to each row alone."
)


def right_in_single_rows(got: Sequence[Outcome], expected: Sequence[Outcome]) -> bool:
    """Whether only tensors with several rows are wrong, in several cases, and none with one row."""
    by_rows: dict[bool, list[bool]] = {True: [], False: []}
    for mine, right in zip(got, expected, strict=True):
        tensors = (record.value for record in right.seen if isinstance(record.value, Tensor))
        rows = size_of(next(tensors, None))
        is_wrong = next(differing(mine, right), None) is not None
        if rows:
            by_rows[rows == 1].append(is_wrong)
        elif is_wrong:
            return False
    single, several = by_rows[True], by_rows[False]
    return not any(single) and min(len(single), sum(several)) >= ENOUGH


def values_of(outcome: Outcome, what: str) -> list[Any]:
    return [
        number_of(record.value) if is_number(record.value) else record.value
        for record in outcome.seen
        if record.what == what
    ]


def always_the_same(
    what: str, cases: Sequence[Case], got: list[list[Any]], expected: list[list[Any]]
) -> str | None:
    """One number, truth value or None every time, where several different ones are right."""
    mine, right = list(chain(*got)), list(chain(*expected))
    if not all(is_single(value) for value in mine + right) or len(mine) < ENOUGH:
        return None
    if len({repr(value) for value in mine}) > 1 or len({repr(value) for value in right}) < 2:
        return None
    shown = number(mine[0]) if is_number(mine[0]) else mine[0]
    return f"{what} is {shown} every time, in {len(cases)} cases."


def is_single(value: Any) -> bool:
    return value is None or isinstance(value, bool) or is_number(value)


def always_the_length(
    what: str, cases: Sequence[Case], got: list[list[Any]], expected: list[list[Any]]
) -> str | None:
    """A number that is how many items an argument has, whatever they are."""
    mine = [values[0] if len(values) == 1 else None for values in got]
    if not all(is_number(value) for value in mine) or len(set(mine)) < ENOUGH:
        return None
    for name in cases[0].data:
        values: list[Any] = [case.data.get(name) for case in cases]
        if [len(v) if is_container(v) or is_row(v) else None for v in values] == mine:
            return f"{what} is the length of `{name}` every time, in {len(cases)} cases."
    return None


def always_empty(
    what: str, cases: Sequence[Case], got: list[list[Any]], expected: list[list[Any]]
) -> str | None:
    """Nothing in it, in any case, where several times there should be something."""
    mine, right = ([value_of(value) for value in chain(*values)] for values in (got, expected))
    if len(mine) < len(right) or any(size_of(value) != 0 for value in mine):
        return None
    if sum(map(bool, map(size_of, right))) < ENOUGH:
        return None
    return f"{what} is empty every time, in {len(cases)} cases."


def is_row(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 1


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


# ------------------------------------------------------------- things that lack or are exchanged


def exchanged(differing: Sequence[tuple[str, Any, Any]]) -> str | None:
    """Two things, each of which is what the other one should be."""
    if len(differing) < 2:
        return None
    (one, got, expected), (other, got_too, expected_too) = differing
    crossed = (got, expected_too), (got_too, expected)
    if one == other or not all(is_comparable(*pair) for pair in [*crossed, (got, expected)]):
        return None
    pairs = [(as_tensor(wrong), as_tensor(right)) for wrong, right in crossed]
    if not any(has_many_values(right) for _, right in pairs):
        return None
    if not all(same(*pair) for pair in pairs):
        return None
    return f"{one} and {other[0].lower()}{other[1:]} are exchanged."


def only_the_first(got: Any, expected: Any) -> bool:
    if (size_of(expected) or 0) < 2 or type(got) is not type(expected):
        return False
    if isinstance(expected, Tensor):
        alone = expected.ndim > 1 and same(as_tensor(got), as_tensor(expected[0]))
        return alone or same(as_tensor(got), as_tensor(expected[:1]))
    start = dict([*expected.items()][:1]) if isinstance(expected, dict) else expected[:1]
    return same_value(got, start, "") is None


def size_of(value: Any) -> int | None:
    """How many items or rows a value has; None where it has none."""
    if isinstance(value, Tensor):
        return len(value) if value.ndim else None
    return len(value) if is_container(value) else None


# --------------------------------------------------------------------------------------- the rules


def large_negative_number(got: Tensor, expected: Tensor) -> str | None:
    if not differs_only_at_never(got, expected) or not (got[expected.isneginf()] < -100).all():
        return None
    return (
        "A large negative number is used instead of -inf. Only exp(-inf) is exactly 0, whatever "
        "the other numbers are."
    )


def zero_for_never(got: Tensor, expected: Tensor) -> str | None:
    if not differs_only_at_never(got, expected) or not (got[expected.isneginf()] == 0).all():
        return None
    return "0 is used instead of -inf. exp(0) is 1; only exp(-inf) is 0."


def differs_only_at_never(got: Tensor, expected: Tensor) -> bool:
    never = expected.isneginf()
    if got.shape != expected.shape or not never.any():
        return False
    return same(got[~never], expected[~never])


def has_rows(tensor: Tensor) -> bool:
    return tensor.ndim > 0 and tensor.shape[-1] > 1


def has_fractions(tensor: Tensor) -> bool:
    return bool((tensor.frac() != 0).any())


def has_many_values(expected: Tensor) -> bool:
    """Whether numbers can't be the results of another function by chance, as 0 and 1 can."""
    return len(expected[expected.isfinite()].unique()) >= 3


def probabilities_returned(got: Tensor, expected: Tensor) -> str | None:
    if not has_rows(expected) or not same(got, expected.softmax(dim=-1)):
        return None
    return "You return probabilities where logits are expected: leave out the softmax."


def logits_returned(got: Tensor, expected: Tensor) -> str | None:
    if not has_rows(got) or not same(got.softmax(dim=-1), expected):
        return None
    return (
        "You return logits where probabilities are expected: take softmax over the last dimension."
    )


def logarithms_returned(got: Tensor, expected: Tensor) -> str | None:
    if not has_many_values(expected) or not same(got.exp(), expected):
        return None
    return (
        "You return the logarithm of the right numbers: an `exp` is missing, or a `log` too much."
    )


def one_too_many(got: Tensor, expected: Tensor) -> str | None:
    if got.ndim != expected.ndim:
        return None
    for dim, size in enumerate(expected.shape):
        if got.shape[dim] != size + 1:
            continue
        ends = ((0, ", at the end"), (1, ", at the beginning"))
        found = [end for start, end in ends if same(got.narrow(dim, start, size), expected)]
        if found:
            where = found[0] if len(found) == 1 else ""
            return f"There is one element too many{where}; the others are right."
    return None


def one_too_few(got: Tensor, expected: Tensor) -> str | None:
    found = one_too_many(expected, got)
    return found and found.replace("There is one element too many", "One element is missing")


def constant_added(got: Tensor, expected: Tensor) -> str | None:
    never = expected.isneginf()
    if got.shape != expected.shape or not has_rows(expected) or not has_many_values(expected):
        return None
    off = (got - expected).masked_fill(never, 0)
    constant = off.sum(dim=-1, keepdim=True) / (~never).sum(dim=-1, keepdim=True)
    if not constant.isfinite().all() or not same(got, expected + constant):
        return None
    if has_fractions(expected):
        return (
            "Each row is right but for a constant added to all of its numbers, which no softmax "
            "shows: leave out the `log_softmax`, or the subtraction."
        )
    first = float(constant.flatten()[0])
    side = "large" if first > 0 else "small"
    alike = same(constant, torch.full_like(constant, first))
    return f"Every number is too {side} by {number(abs(first))}." if alike else None


def dimension_lost_or_gained(got: Tensor, expected: Tensor) -> str | None:
    if got.shape == expected.shape or not same(got.squeeze(), expected.squeeze()):
        return None
    return (
        f"The numbers are right, but their shape is {list(got.shape)} instead of "
        f"{list(expected.shape)}. Look at `keepdim`, `squeeze` and indexing with a single number."
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
    if not has_many_values(expected) or not same(got, expected[:1].expand_as(got)):
        return None
    return "You return row 0's result for every row, but each row has its own."


def sign_lost(got: Tensor, expected: Tensor) -> str | None:
    return "Every number has the wrong sign." if same(-got, expected) else None


def in_another_order(got: Tensor, expected: Tensor) -> str | None:
    if got.shape != expected.shape or not has_many_values(expected):
        return None
    if not same(got.sort(dim=-1).values, expected.sort(dim=-1).values):
        return None
    return "The numbers are right, but in another order: each belongs where its input was."


RULES: tuple[Rule, ...] = (
    *(large_negative_number, zero_for_never, probabilities_returned, logarithms_returned),
    *(logits_returned, constant_added, dimension_lost_or_gained, dimensions_exchanged),
    *(one_too_many, one_too_few, first_row_for_all, sign_lost),
    in_another_order,  # stays the last
)
