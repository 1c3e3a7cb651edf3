"""Slow memory, whose numbers are here: who wants them must load them, and that is counted."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from autograder.draws import model_seed, normal
from autograder.exercise import Service
from autograder.failure import TooMuchWork
from autograder.lending.lent import Lent
from autograder.services import MOVED
from solutions.slow_memory import Memory, fast_numbers_for


class LentMemory(Lent, Memory):
    lends = frozenset({"load", "store", "result", "fast_numbers"})
    _most: float = math.inf

    def counts(self) -> dict[str, int]:
        return {MOVED: self.moved}

    def limit(self, counts: Mapping[str, int]) -> None:
        self._most = counts[MOVED]

    def note(self, name: str, start: int, tile: Tensor) -> None:
        super().note(name, start, tile)
        if self.moved > self._most:
            raise TooMuchWork(
                f"It was stopped after {self._most:,} numbers moved, several times what is needed. "
                "Does every loop come to its end?"
            )


def lend_memory(data: Mapping[str, Any]) -> dict[str, Service]:
    """With room for one tile of each, and scores up to some times `size`.

    In grading nobody knows what is in it before it is loaded, as with the weights of a model.
    """
    generator = torch.Generator().manual_seed((data["seed"] + model_seed.get()) % 2**63)
    lengths = data["q_len"], data["k_len"], data["k_len"]
    queries, keys, values = (
        normal(generator, *data["heads"], length, data["head_dim"]) for length in lengths
    )
    tile = min(data["block_q"], data["q_len"]), min(data["block_k"], data["k_len"])
    room = fast_numbers_for(data["head_dim"], *tile)
    return {"memory": LentMemory(data["size"] * queries, keys, values, room)}
