"""The terms of a right number: they add up to it, and the missing one is named."""

import pytest

from autograder.attempt.records import Seen
from autograder.judging.exercise import Case, Exercise, Outcome
from autograder.judging.terms import in_terms
from tests.common.trials import every_exercise, trials


@every_exercise
def test_the_terms_add_up_to_the_right_number(exercise: Exercise) -> None:
    trial = trials(exercise)[0]
    for case, outcome in zip(trial.cases, trial.expected, strict=True):
        right = {record.what: record.value for record in outcome.seen}
        for what, terms in case.terms.items():
            assert sum(terms.values()) == pytest.approx(right[what], rel=1e-12)


@pytest.mark.parametrize(
    ("wrong", "end"),
    [
        (110, " As much as matrices or head is missing."),
        (155, " As much as half of matrices or head is missing."),
        (220, " As much as vectors is too much."),
        (191, ""),
    ],
)
def test_the_term_that_explains_a_difference_is_named(wrong: float, end: str) -> None:
    terms = {"matrices": 90, "head": 90, "vectors": 20}
    case = Case("a case", {}, {"It": terms})
    told = in_terms(case, Outcome((Seen("It", wrong),)), Outcome((Seen("It", 200),)))
    assert told == f" It is the sum of matrices 90, head 90, vectors 20.{end}"


def test_of_a_number_that_is_right_or_has_no_terms_nothing_is_said() -> None:
    case = Case("a case", {}, {"It": {"matrices": 90}})
    for what, wrong in (("It", 90), ("It", None), ("That", 3)):
        got, expected = (Outcome((Seen(what, value),)) for value in (wrong, 90))
        assert in_terms(case, got, expected) == ""
