"""What all parts of an engine have in common that are lent; exercise.py tells what a service is."""

import math
from collections.abc import Callable, Mapping

from autograder.failure import TooMuchWork

ASKED = "calls of `can_append`"


class Lent:
    """A part that does no work of its own to be counted."""

    lends: frozenset[str] = frozenset()

    def counts(self) -> dict[str, int]:
        return {}

    def limit(self, counts: Mapping[str, int]) -> None:
        """The model's work is limited."""

    def untouched(self) -> bool:
        return True


class LentManager(Lent):
    """A block manager, which can't be asked without end whether there is room.

    raises: the attempt's own OutOfBlocks, which it may want to catch.
    """

    raises: Callable[..., BaseException] | None = None
    _asked: int = 0
    _most: float = math.inf

    def note_question(self) -> None:
        self._asked += 1
        if self._asked > self._most:
            raise TooMuchWork(f"It was stopped after {self._most} {ASKED}. Does every loop end?")

    def counts(self) -> dict[str, int]:
        return {ASKED: self._asked}

    def limit(self, counts: Mapping[str, int]) -> None:
        self._most = counts[ASKED]
