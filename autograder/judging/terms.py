"""A right number as the sum of its terms, so that the one that is missing is seen."""

from collections.abc import Mapping
from math import isclose

from autograder.judging.compare import is_number, number, number_of
from autograder.judging.exercise import Case, Outcome

SHARES = {1.0: "", 0.5: "half of ", 2.0: "twice "}


def in_terms(case: Case, got: Outcome, expected: Outcome) -> str:
    """Say of which terms the first number that is wrong is the sum; "" where that isn't known."""
    values = {record.what: record.value for record in got.seen}
    for what, right, _ in expected.seen:
        wrong, terms = values.get(what), case.terms.get(what, {})
        if not (is_number(wrong) and is_number(right)):
            continue
        if number_of(wrong) != number_of(right):
            return sum_of(terms, number_of(wrong) - number_of(right)) if terms else ""
    return ""


def sum_of(terms: Mapping[str, float], off: float) -> str:
    """Name the terms, and those of which one alone explains the difference."""
    listed = ", ".join(f"{name} {number(value)}" for name, value in terms.items())
    what = "missing" if off < 0 else "too much"
    for share, words in SHARES.items():
        alike = [
            name
            for name, value in terms.items()
            if value and isclose(abs(off), share * value, rel_tol=1e-9)
        ]
        if alike:
            return f" It is the sum of {listed}. As much as {words}{' or '.join(alike)} is {what}."
    return f" It is the sum of {listed}."
