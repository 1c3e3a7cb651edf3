"""Comparing what was seen with what was expected, and how a difference is told."""

import math
from typing import Any

import pytest
import torch

from autograder.attempt.plain import Strange
from autograder.attempt.records import Seen
from autograder.judging.compare import Difference, no_more_work, same_ids, same_seen

ONES = torch.ones(2, 3, dtype=torch.float64)
LARGE = torch.tensor([1e6, 1.0], dtype=torch.float64)
NAN = math.nan

SAME = [
    (3, 3),
    (3.0, 3),
    (torch.tensor(3), 3),
    (torch.tensor([0.5]), 0.5),
    (0.5 + 1e-7, 0.5),
    (NAN, NAN),
    (True, True),
    (None, None),
    ("was refused", "was refused"),
    ([1, 2.0, [None]], [1, 2, [None]]),
    ({"a": [1]}, {"a": [1.0]}),
    (ONES * (1 + 1e-6), ONES),
    (ONES.int(), ONES.long()),
    (torch.tensor([NAN, 1.0]), torch.tensor([NAN, 1.0])),
    (LARGE * torch.tensor([1, 0]), LARGE),  # relative to the largest
    (Strange("a generator"), Strange("a generator")),
    ([ONES, (NAN,)], [ONES, (NAN,)]),
    ({"a": [ONES.float()]}, {"a": [ONES.float() * (1 + 1e-6)]}),
]


@pytest.mark.parametrize(("got", "expected"), SAME, ids=str)
def test_what_is_the_same(got: Any, expected: Any) -> None:
    assert same_seen([Seen("It", got)], [Seen("It", expected)]) is None


def told(difference: Difference | None) -> str:
    return difference.sentence if difference else "the same"


DIFFERENT = [
    (4, 3, "It is 4; expected 3."),
    (3.5, 3, "It is 3.5; expected 3."),
    (0.51, 0.5, "It is 0.51; expected 0.5."),
    (10**300, 0.5, "expected 0.5."),
    (None, 3, "It should be the number 3, not None. Is a `return` missing?"),
    (True, 1, "It should be the number 1, not True."),
    (torch.ones(1, 1), 1, "It should be the number 1, not a tensor of shape [1, 1]."),
    ([1], 1, "It should be the number 1, not a list."),
    (Strange("a generator"), 1, "not a generator. Take `yield` out of it"),
    (Strange("a coroutine"), 1, "not a coroutine. Take `async` away"),
    (Strange("a generator"), (1, 2), "It should be a tuple, not a generator."),
    (Strange("a generator expression"), [1], "expression. `(… for … in …)` makes a generator:"),
    (Strange("a list with more than 10 items"), [1], "more than 10 items; expected 1 item."),
    (Strange("a list that can't be read"), [1, 2], "that can't be read; expected 2 items."),
    (Strange("a set"), Strange("a deque"), "It should be a deque, not a set."),
    ([ONES], [2 * ONES], "It differs first at [0]."),
    ([ONES], ONES, "It should be a tensor of shape [2, 3], not a list."),
    (ONES, [ONES], "It should be a list, not a tensor of shape [2, 3]."),
    ("was refused", "went through", "It was refused; expected: it went through."),
    (3, "went through", "It is the number 3; expected: it went through."),
    ((1, 2), [1, 2], "It should be a list, not a tuple."),
    ([1, 2, 3], [1, 5, 3], "It differs first at [1]."),
    ([[1], [2, 3]], [[1], [2, 4]], "It differs first at [1]."),
    ([True, 1], [True, True], "It differs first at [1]."),
    ([1, 2], [1, 2, 3], "It has 2 items; expected 3."),
    ({"a": 1}, {"a": 1, "b": 2}, "It has no key 'b'."),
    ({"a": 1, "b": 2}, {"a": 1}, "It should have no key 'b'."),
    (None, ONES, "It should be a tensor of shape [2, 3], not None. Is a `return` missing?"),
    (ONES[0], ONES, "It has shape [3]; expected [2, 3]."),
    (ONES, ONES.long(), "It holds floats; expected integers."),
    (ONES.bool(), ONES.long(), "It holds True and False; expected integers."),
    (ONES * 2, ONES, "It (shape [2, 3]) differs first at [0, 0]: got 2, expected 1."),
    (ONES.float(), ONES, "right numbers in torch.float32; expected torch.float64."),
    ([ONES.half()], [ONES], "at [0], which has the right numbers in torch.float16; expected"),
    (ONES.half() / 3, ONES / 3, "It has the right numbers in torch.float16; expected"),
    (ONES.half() / 3, ONES / 2, "(shape [2, 3]) differs first at [0, 0]: got 0.333252, expected"),
    (LARGE + 20, LARGE, "differs first at [0]: got 1.00002e+06, expected 1e+06."),
]


@pytest.mark.parametrize(("got", "expected", "sentence"), DIFFERENT, ids=str)
def test_how_a_difference_is_told(got: Any, expected: Any, sentence: str) -> None:
    assert sentence in told(same_seen([Seen("It", got)], [Seen("It", expected)]))


def test_records_are_found_by_what_and_where() -> None:
    one, two = Seen("The length", 1, "after step 1"), Seen("The length", 2, "after step 2")
    assert told(same_seen([two, one], [one, two])) == "the same"
    assert told(same_seen([one], [one, two])) == "The length after step 2 is missing."
    assert told(same_seen([one, two], [one])) == "The length after step 2 is not expected."
    wrong = same_seen([one, two._replace(value=3)], [one, two])
    assert told(wrong) == "The length after step 2 is 3; expected 2."


def counting(kind: Any) -> Any:
    """A subclass of a plain type; asked: how often one of it was compared with another."""

    def compared(self: Any, other: object) -> bool:
        found.asked += 1
        return kind.__eq__(self, other)

    names = {"asked": 0, "__hash__": kind.__hash__, "__eq__": compared}
    found: Any = type(kind.__name__, (kind,), names)
    return found


def test_many_records_are_found_without_looking_at_all_of_them_for_each() -> None:
    Named = counting(str)  # noqa: N806
    got, expected = ([Seen(Named(f"Number {n}"), n) for n in range(300)] for _ in range(2))
    assert told(same_seen(got, expected)) == "the same"
    assert 0 < Named.asked < 3000


def test_a_difference_deep_inside_is_looked_for_once() -> None:
    Counted = counting(int)  # noqa: N806
    one, two = 1, Counted(2)
    got, expected = [two], [one]
    for _ in range(16):
        got, expected = [got], [expected]  # type: ignore[list-item]
    assert "differs first at [0]" in told(same_seen([Seen("It", got)], [Seen("It", expected)]))
    assert Counted.asked < 10


def test_ids_in_a_list_are_compared_one_by_one() -> None:
    ids = torch.tensor([[1, 2, 3]])
    assert same_ids([ids], [ids.clone()], "It") is None
    assert told(same_ids([ids], [ids + 1], "It")) == "It differs first at [0]."


def test_ids_differ_in_a_token_before_they_differ_in_length() -> None:
    got = torch.tensor([[1, 2, 3]])
    longer = told(same_ids(got, torch.tensor([[1, 2]]), "It"))
    assert longer == "It has 3 tokens a row; expected 2 (shape [1, 3] against [1, 2])."
    other = same_ids(got, torch.tensor([[1, 5]]), "It")
    assert "differs first at [0, 1]: got 2, expected 5" in told(other)
    assert other is None or other.got is got


def test_more_work_than_needed_is_told() -> None:
    needed = {"forward calls": 4, "tokens computed": 9}
    assert told(no_more_work({**needed, "forward calls": 3}, needed, *needed)) == "the same"
    more = no_more_work({**needed, "tokens computed": 10}, needed, *needed)
    assert "took 10 tokens computed; 9 suffice" in told(more)
