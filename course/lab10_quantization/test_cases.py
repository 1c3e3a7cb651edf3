"""Lab 10: no number is on the verge of another code."""

from collections import Counter, defaultdict
from typing import Any

import torch
from torch import Tensor, nn

from autograder.attempt.drivers.quantization import bytes_in
from autograder.exercises import exercises
from solutions.quantization import (
    absmax,
    affine,
    calibrate,
    from_affine,
)
from tests.common.trials import cases_of, seeds


def off_half(steps: Tensor) -> float:
    """How far the nearest of these is from the middle between two codes."""
    return float((steps.abs() % 1 - 0.5).abs().min())


@seeds
def test_no_number_lies_between_two_codes_and_none_is_half_a_step_off(seed: int) -> None:
    for case in cases_of(exercises()["quantization.absmax"], seed):
        weight = case.data["weight"]
        codes, scale = absmax(**case.data)
        assert off_half(weight / scale) > 1e-3
        assert ((weight - codes * scale).abs() <= scale / 2).all()
    for case in cases_of(exercises()["quantization.affine"], seed):
        groups = case.data["groups"]
        codes, scale, zero = affine(**case.data)
        assert off_half(groups / scale) > 1e-3
        assert off_half(groups.amin(dim=1, keepdim=True).clamp(max=0) / scale) > 1e-3
        assert ((groups - from_affine(codes, scale, zero)).abs() <= scale / 2).all()


@seeds
def test_the_cases_reach_both_ends_of_the_codes(seed: int) -> None:
    found: dict[Any, set[int]] = defaultdict(set)
    for function in (absmax, affine):
        for case in cases_of(exercises()[f"quantization.{function.__name__}"], seed):
            codes, _, *zero = function(**case.data)
            found[function, case.data["bits"]] |= {*codes.flatten().tolist()}
            found["zero", case.data["bits"]] |= {int(z) for table in zero for z in table}
    for bits in (2, 3, 4, 8):
        first, last = 1 - 2 ** (bits - 1), 2**bits - 1
        assert {first, 0, -first} <= found[absmax, bits]
        assert {0, last} <= found[affine, bits]
        assert bits < 4 or {0, last} <= found["zero", bits]


@seeds
def test_the_best_scale_is_now_the_smallest_now_the_largest_and_often_between(seed: int) -> None:
    places: Counter[tuple[bool, bool]] = Counter()
    for case in cases_of(exercises()["quantization.calibrate"], seed):
        best, scales = calibrate(**case.data), case.data["scales"]
        places[bool((scales < best).any()), bool((scales > best).any())] += 1
    assert places[True, True] >= 5
    assert min(places[False, True], places[True, False]) >= 1


def test_all_memory_of_a_layer_counts_and_each_piece_once() -> None:
    layer: Any = nn.Linear(3, 2)
    assert bytes_in(layer) == 32
    layer.extra = nn.ModuleList([nn.Linear(2, 2, bias=False)])
    layer.again = [layer.weight, layer.weight.T, layer.weight[:1]]
    assert bytes_in(layer) == 48
    layer.first = {"row": (torch.zeros(10, 2)[:1],)}
    assert bytes_in(layer) == 128
