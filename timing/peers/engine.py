"""The interface of every other engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Ids = list[int]


@dataclass(frozen=True)
class Given:
    """The arguments of an engine.

    folder: the model's folder, or its GGUF file. scratch: a folder for the converted model, which
    other processes of the same engine reuse. precision: of the weights, one of those in
    `catalogue`.
    """

    folder: Path
    scratch: Path
    precision: str
    threads: int


@dataclass(frozen=True)
class Served:
    """The result of serving requests. Times are seconds of time.perf_counter.

    start: when the engine got the requests, with all memory for them allocated. outputs: the new
    tokens of each request. token_times: when each of these tokens was available.
    """

    start: float
    outputs: list[Ids]
    token_times: list[list[float]]


class Engine(Protocol):
    """An engine with its weights loaded. Its class is called with a Given."""

    def serve(self, prompts: Sequence[Ids], new_tokens: Sequence[int], size: int) -> Served:
        """Continue each prompt greedily, with at most `size` requests at a time.

        Each request gets exactly its number of new tokens; an EOS is a token like any other and
        ends nothing.
        """
