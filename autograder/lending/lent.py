"""What all lent parts of an engine have in common; exercise.py says what a service is."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from autograder.attempt.failure import TooMuchWork
from autograder.judging.exercise import Lends

ASKED = "calls of `can_append`"


class Lent:
    """A part that does no work of its own to be counted."""

    lends = Lends()

    def counts(self) -> dict[str, int]:
        return {}

    def limit(self, counts: Mapping[str, int]) -> None:
        """Limit nothing: only the model does work."""

    def untouched(self) -> bool:
        return True


class Watched:
    """Something lent that tells a driver what is about to be done with it.

    It does so on the trusted side, so there is no way around the driver: a wrapper in the process
    of the student's code would hold what it wraps.
    """

    _look: Callable[..., Any] | None = None

    def watch(self, look: Callable[..., Any]) -> None:
        """Call `look` before each use from now on. It can't be undone, and the driver comes first.

        Raises RuntimeError if it is watched already.
        """
        if self._look is not None:
            raise RuntimeError("This is watched already.")
        self._look = look

    def tell(self, *given: Any, **named: Any) -> None:
        if self._look is not None:
            self._look(*given, **named)


class LentManager(Lent):
    """A block manager that limits how often it is asked whether there is room."""

    lends = Lends(
        read={"num_blocks", "block_size", "tables", "lengths", "ref_counts"}
        | {"free_blocks", "used_blocks"},
        call={"can_append", "append", "free", "blocks_for"},
    )
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
