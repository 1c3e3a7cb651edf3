"""Labs 5 and 10: rounding decides nothing."""

from inspect import signature
from itertools import chain
from typing import Any

import pytest
from torch import Tensor

from autograder.attempt.records import Seen
from autograder.judging.compare import same_seen
from autograder.judging.exercise import Exercise, to_float32
from tests.common.trials import EXERCISES, cases_of

ROUNDED = "int8_matmul", "split_outliers", "gptq", "calibrate"  # of lab 10: to codes
VERGES = [
    *(e for e in EXERCISES if e.lab == "decoding" and "logits" in signature(e.driver).parameters),
    *(e for e in EXERCISES if e.lab == "quantization" and e.path in ROUNDED),
]


@pytest.mark.parametrize("exercise", VERGES, ids=lambda e: e.name)
def test_a_case_is_the_same_in_float32_and_in_float64(exercise: Exercise) -> None:
    for case in chain.from_iterable(cases_of(exercise, seed) for seed in range(5)):
        data = in_float64(dict(case.data))
        single, double = (
            exercise.driver(exercise.reference, **d) for d in (to_float32(data), data)
        )
        assert same_seen(in_float64(single), in_float64(double)) is None, case.label


def in_float64(value: Any) -> Any:
    """So that numbers alone are compared."""
    match value:
        case Tensor() if value.is_floating_point():
            return value.double()
        case dict():
            return {key: in_float64(item) for key, item in value.items()}
        case Seen():
            return value._replace(value=in_float64(value.value))
        case list():
            return [in_float64(item) for item in value]
    return value
