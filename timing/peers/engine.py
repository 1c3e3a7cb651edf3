"""What every engine is asked to do."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Ids = list[int]


@dataclass(frozen=True)
class Given:
    """What an engine is made from.

    folder: of the model. scratch: where the model may be converted to; another process of the same
    engine finds it there. precision: of the weights, one of `catalogue`.
    """

    folder: Path
    scratch: Path
    precision: str
    threads: int


@dataclass(frozen=True)
class Served:
    """What an engine did.

    start: when the requests were handed over, with all memory for them at hand. outputs: the new
    tokens of each. token_times: when each of them was there. Seconds, of time.perf_counter.
    """

    start: float
    outputs: list[Ids]
    token_times: list[list[float]]


class Engine(Protocol):
    """An engine with its weights loaded; made by calling its class with what it is Given."""

    def serve(self, prompts: Sequence[Ids], new_tokens: Sequence[int], size: int) -> Served:
        """Continue each prompt greedily, `size` requests at a time at most.

        No EOS ends a request: each gets as many new tokens as it asks for, and an EOS among them is
        a token like any other.
        """
