"""Slow memory on the trusted side: its numbers must be loaded, and every load is counted."""

import math
from collections.abc import Mapping
from operator import index
from typing import Any

from torch import Tensor

from autograder.attempt.failure import TooMuchWork
from autograder.attempt.plain import kind_of
from autograder.judging.draws import hidden_normals
from autograder.judging.exercise import MOVED, Lends, Service
from autograder.lending.lent import Lent, Watched
from solutions.kernels.slow_memory import Memory, fast_numbers_for


class LentMemory(Lent, Watched, Memory):
    """Slow memory that counts and limits moved numbers, and tells a driver before each move."""

    lends = Lends(read={"fast_numbers"}, call={"load", "store", "result", "watch"})
    _most: float = math.inf

    def load(self, name: str, start: int, end: int) -> Tensor:
        self.tell()
        return super().load(name, index(start), index(end))

    def store(self, name: str, start: int, tile: Tensor) -> None:
        self.tell()
        if not isinstance(tile, Tensor):
            raise TypeError(f"A tile is a tensor; this is {kind_of(tile)}.")
        super().store(name, index(start), tile)

    def result(self, name: str) -> Tensor:
        """What the attempt has stored. The inputs must be loaded, which is counted."""
        if name in ("queries", "keys", "values"):
            raise ValueError(f"{name!r} is no result: load it, tile by tile.")
        return super().result(name)

    def counts(self) -> dict[str, int]:
        return {MOVED: self.moved}

    def limit(self, counts: Mapping[str, int]) -> None:
        self._most = counts[MOVED]

    def note(self, name: str, start: int, tile: Tensor) -> None:
        super().note(name, start, tile)
        if self.moved > self._most:
            raise TooMuchWork(
                f"It was stopped after {self._most:,} numbers moved, several times what is needed. "
                "Does every loop end?"
            )


def lend_memory(data: Mapping[str, Any]) -> dict[str, Service]:
    """With room for one tile of each, and scores up to some times `size`.

    In grading its numbers can't be known before they are loaded, as with the weights of a model.
    """
    normal, lengths = hidden_normals(data["seed"]), (data["q_len"], data["k_len"], data["k_len"])
    queries, keys, values = (
        normal((*data["heads"], length, data["head_dim"])) for length in lengths
    )
    tile = min(data["block_q"], data["q_len"]), min(data["block_k"], data["k_len"])
    room = fast_numbers_for(data["head_dim"], *tile)
    return {"memory": LentMemory(data["size"] * queries, keys, values, room)}
