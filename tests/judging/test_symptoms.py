"""Symptoms: what is said about wrong values, whatever the exercise."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autograder.attempt.records import Seen
from autograder.exercises import exercises
from autograder.judging.exercise import Case, Outcome
from autograder.judging.judge import WRONG, judge
from autograder.judging.symptoms import (
    MOST_WORDS,
    RULES,
    extreme,
    only_the_first,
    right_in_single_rows,
    symptom,
    value_of,
)
from solutions.decoding import apply_top_k, next_token_probs

EXERCISE = exercises()["decoding.apply_top_k"]
NEVER = float("-inf")
LOGITS = torch.tensor([[1.0, NEVER, 3.0, -2.0], [0.5, 4.0, NEVER, 2.5]], dtype=torch.float64)
PROBS = LOGITS.softmax(dim=-1)

SHOWN: dict[str, tuple[Any, Any]] = {
    "large_negative_number": (LOGITS.clamp(min=-1e9), LOGITS),
    "zero_for_never": (LOGITS.masked_fill(LOGITS.isneginf(), 0.0), LOGITS),
    "probabilities_returned": (PROBS, LOGITS),
    "logits_returned": (LOGITS, PROBS),
    "logarithms_returned": (PROBS.log(), PROBS),
    "constant_added": (LOGITS.log_softmax(dim=-1), LOGITS),
    "dimension_lost_or_gained": (PROBS.amax(dim=-1), PROBS.amax(dim=-1, keepdim=True)),
    "dimensions_exchanged": (PROBS.T, PROBS),
    "one_too_many": ([3, 1, 4, 1], [3, 1, 4]),
    "one_too_few": (PROBS[:, 1:], PROBS),
    "first_row_for_all": (PROBS[:1].expand(2, 4), PROBS),
    "sign_lost": (-3.5, 3.5),
    "in_another_order": (PROBS.sort(descending=True).values, PROBS),
    "other_dtype": (PROBS.float(), PROBS),
    "only_the_first": ("is {0: 3}", "is {0: 3, 1: 2, 4: 1}"),
}


def shown(got: Any, expected: Any, **other: Any) -> Any:
    outcomes = Outcome((Seen("It", got),), **other), Outcome((Seen("It", expected),))
    found = symptom(EXERCISE, *outcomes)
    return found and found.name


@pytest.mark.parametrize("name", SHOWN)
def test_each_rule_knows_its_symptom_and_no_other(name: str) -> None:
    assert shown(*SHOWN[name]) == name
    assert shown(SHOWN[name][1], SHOWN[name][1]) is None


def test_every_rule_has_an_example() -> None:
    rules = {rule.__name__ for rule in (only_the_first, *RULES)}
    assert set(SHOWN) == rules | {"other_dtype"}


def test_two_things_that_are_exchanged_are_named() -> None:
    right = Outcome((Seen("The gain", PROBS), Seen("The bias", PROBS[0, :1])))
    wrong = Outcome((Seen("The gain", PROBS[0, :1]), Seen("The bias", PROBS)))
    found = symptom(EXERCISE, wrong, right)
    assert found
    assert found.sentence == "The gain and the bias are exchanged."


def test_words_longer_than_any_driver_uses_are_not_read_as_a_value() -> None:
    assert value_of("is [1, 2]") == [1, 2]
    long = f"is {[0] * MOST_WORDS}"
    assert value_of(long) is long


def test_places_in_another_order_are_another_choice() -> None:
    assert shown(torch.tensor([3, 1, 2]), torch.tensor([1, 2, 3])) is None
    assert shown([3, 1, 2], [1, 2, 3]) is None


def test_nan_is_no_constant_that_was_added() -> None:
    assert shown(torch.full_like(PROBS, float("nan")), PROBS) is None


def test_places_that_are_all_off_by_one_are_told_without_a_softmax() -> None:
    places = torch.arange(6).view(2, 3)
    outcomes = Outcome((Seen("It", places + 1),)), Outcome((Seen("It", places),))
    found = symptom(EXERCISE, *outcomes)
    assert found is not None
    assert found.sentence == "Every number is too large by 1."
    assert shown(places + torch.tensor([[1], [2]]), places) is None


def test_what_is_changed_is_named() -> None:
    assert shown(PROBS, PROBS, changed="`logits`") == "changed"
    assert shown([3, 1, 2], [1, 2, 3], changed="`experts`") == "changed"
    assert shown(LOGITS, PROBS, changed="`logits`") == "logits_returned"


values = st.one_of(
    *(
        st.none(),
        st.text(max_size=2),
        st.integers(),
        st.floats(),
        st.lists(st.floats(), max_size=3),
    ),
    st.builds(
        lambda shape, dtype, seed: (torch.randn(shape, generator=seed) * 3).to(dtype),
        st.lists(st.integers(0, 3), max_size=4),
        st.sampled_from([torch.float64, torch.float32, torch.int64, torch.bool]),
        st.integers(0, 9).map(lambda seed: torch.Generator().manual_seed(seed)),
    ),
)


@given(values, values)
def test_any_two_values_can_be_looked_at(got: Any, expected: Any) -> None:
    shown(got, expected)


some = st.dictionaries(st.integers(0, 3), st.integers(0, 3), max_size=3) | st.lists(
    st.integers(0, 3), max_size=3
)


@given(some, some)
def test_what_is_said_of_lists_and_dicts_is_true(got: Any, expected: Any) -> None:
    for wrong, right in ((got, expected), (f"is {got}", f"is {expected}")):
        match shown(wrong, right):
            case "only_the_first":
                assert list(got) == list(expected)[:1]
                assert len(expected) > 1
            case "one_too_many" | "one_too_few":
                assert abs(len(got) - len(expected)) == 1


numbers = st.lists(st.integers(0, 3) | st.none() | st.booleans(), min_size=1, max_size=2)


@given(st.lists(st.tuples(numbers, numbers, st.lists(st.just(0), max_size=3)), min_size=1))
def test_what_is_said_of_all_cases_is_true_of_each(found: Any) -> None:
    def outcome(values: list[Any]) -> Outcome:
        return Outcome(tuple(Seen("It", v, f"in step {n}") for n, v in enumerate(values)))

    cases = [Case(f"case {n}", {"drafts": drafts}) for n, (*_, drafts) in enumerate(found)]
    got, expected = ([outcome(case[side]) for case in found] for side in (0, 1))
    shown = extreme(EXERCISE, cases, got, expected)
    if shown is None:
        return
    assert [g.seen for g in got] != [e.seen for e in expected]
    if shown.name == "always_the_same":
        assert shown.sentence == f"It is {found[0][0][0]} every time, in {len(cases)} cases."
        assert {repr(value) for values, *_ in found for value in values} == {repr(found[0][0][0])}
    else:
        assert shown.sentence == f"It is the length of `drafts` every time, in {len(cases)} cases."
        assert all(values == [len(drafts)] for values, _, drafts in found)


def test_what_shows_in_all_cases_together() -> None:
    def told(got: list[Any], right: Sequence[Any] = (0, 1, 1, 2)) -> Any:
        cases = [Case(f"case {n}", {"drafts": [0] * n}) for n in range(4)]
        both = ([Outcome((Seen("It", v),)) for v in side] for side in (got, right))
        found = extreme(EXERCISE, cases, *both)
        return found and found.sentence

    assert told([0, 0, 0, 0]) == "It is 0 every time, in 4 cases."
    assert told([False] * 4) == "It is False every time, in 4 cases."
    assert told([0, 1, 2, 3]) == "It is the length of `drafts` every time, in 4 cases."
    assert told([0, 0, 1, 2]) is told([0, 1, 1, 2]) is None
    lists: list[Any] = [[1], [1, 2], [], [3]]
    assert told([[]] * 4, lists) == "It is empty every time, in 4 cases."
    assert told([[], [1], [], []], lists) is None


def test_that_only_several_rows_are_wrong_is_told() -> None:
    def attempt(logits, ids, params):
        probs = next_token_probs(logits, ids, params)
        return probs / probs.sum()

    judgement = judge(exercises()["decoding.next_token_probs"], attempt)
    assert (judgement.misconception, judgement.observed) == ("right_in_single_rows", True)
    rows = [torch.arange(3.0).expand(n, 3) for n in (1, 1, 1, 2, 2, 2)]
    right = [Outcome((Seen("It", tensor),)) for tensor in rows]
    for wrong in ([0, 3, 4, 5], [3, 4]):
        got = [Outcome((Seen("It", tensor + (n in wrong)),)) for n, tensor in enumerate(rows)]
        assert not right_in_single_rows(got, right)


def test_an_author_reads_what_the_symptom_is() -> None:
    def attempt(logits, k):
        return apply_top_k(logits, k).softmax(dim=-1) * 2 / 2

    judgement = judge(EXERCISE, attempt)
    assert judgement.status == WRONG
    assert judgement.cause is not None
    assert "probabilities" in judgement.cause
    probs = exercises()["decoding.next_token_probs"]
    judgement = judge(probs, lambda *given: -next_token_probs(*given))
    assert judgement.misconception == "sign_lost"
    assert judgement.paragraphs[0] == "Every number has the wrong sign."


@pytest.mark.parametrize("name", ["apply_temperature", "apply_top_k", "apply_top_p", "apply_min_p"])
def test_what_the_catalogue_need_not_say_for_each_exercise(name: str) -> None:
    exercise = exercises()[f"decoding.{name}"]

    def clamped(*given: Any) -> Any:
        return exercise.reference(*given).clamp(min=-1e9)

    def overwritten(logits: Any, *given: Any) -> Any:
        return logits.copy_(exercise.reference(logits, *given))

    assert judge(exercise, clamped).misconception == "large_negative_number"
    assert judge(exercise, overwritten).misconception == "changed"
