"""Lab 5: rounding decides nothing."""

from inspect import signature
from itertools import chain

import pytest
from torch import Tensor

from autograder.drivers.seen import Seen
from autograder.judging.compare import same_seen
from autograder.judging.exercise import Exercise
from tests.common.trials import EXERCISES, cases_of

OF_LOGITS = [
    e for e in EXERCISES if e.lab == "decoding" and "logits" in signature(e.driver).parameters
]


@pytest.mark.parametrize("exercise", OF_LOGITS, ids=lambda e: e.name)
def test_a_case_is_the_same_in_float32_and_in_float64(exercise: Exercise) -> None:
    for case in chain.from_iterable(cases_of(exercise, seed) for seed in range(5)):
        single, double = (
            exercise.driver(exercise.reference, **{**case.data, "logits": logits})
            for logits in (case.data["logits"].float(), case.data["logits"].double())
        )
        assert same_seen(in_float64(single), in_float64(double)) is None, case.label


def in_float64(seen: list[Seen]) -> list[Seen]:
    """So that numbers alone are compared."""
    return [
        s._replace(value=s.value.double() if isinstance(s.value, Tensor) else s.value) for s in seen
    ]
