"""Lab 12: what moves, and what is held."""

import math
import sys
from typing import Any

import torch
from torch import Tensor

from autograder.attempt.drivers.flash_attention import Holding
from autograder.exercises import exercises
from autograder.judging.draws import model_seed
from autograder.lending.slow_memory import MOVED
from solutions.flash_attention import State, count_traffic
from tests.common.trials import trials

FLASH = exercises()["flash_attention.flash_attention"]


def test_the_numbers_moved_are_those_that_were_counted() -> None:
    (trial,) = trials(FLASH)
    for case, outcome in zip(trial.cases, trial.expected, strict=True):
        sizes = [case.data[n] for n in ("q_len", "k_len", "head_dim", "block_q", "block_k")]
        _, tiled = count_traffic(*sizes)
        assert outcome.counts["memory"][MOVED] == math.prod(case.data["heads"]) * tiled


def test_what_is_in_slow_memory_is_no_part_of_the_case() -> None:
    """In grading other numbers lie there, and who knows the case knows none of them."""
    data = dict(trials(FLASH)[0].cases[0].data)
    assert not any(isinstance(value, Tensor) for value in data.values())
    here: Any = FLASH.services(data)["memory"]
    before = model_seed.set(bytes(32))
    there: Any = FLASH.services(data)["memory"]
    model_seed.reset(before)
    assert not torch.equal(here.load("keys", 0, 1), there.load("keys", 0, 1))


def test_what_is_held_is_what_names_lead_to() -> None:
    """Tensors of ten numbers, of which 16 may be held: views count once, and what is gone not."""
    holding = Holding(test_what_is_held_is_what_names_lead_to, most=0)

    def overflows(*things: Any) -> bool:
        holding.has_overflowed = False
        holding.look(sys._getframe())
        return holding.has_overflowed

    ten, other = torch.zeros(10).double(), torch.zeros(10).double()
    assert not overflows(ten, ten[None], [ten[:3]])
    assert not overflows(ten, torch.arange(50), other > 0)
    assert overflows(ten, other)
    assert overflows({"a": [ten]}, (3, State(other, other, other)))
    endless: list[Any] = [ten]
    endless.append(endless)
    assert not overflows(endless, torch.zeros(10).double().to_sparse())
