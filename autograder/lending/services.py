"""A model that is lent, and counts its work."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from autograder.attempt.failure import TooMuchWork
from autograder.attempt.shown import ShownModel
from autograder.judging.exercise import FORWARDS, TOKENS, Lends
from autograder.lending.lent import Watched

MOST_TOKENS = 1024  # of one forward; the cases have some hundred


class CountedModel(Watched, ShownModel):
    """A model whose work is counted on this side, where an attempt can't change the counts.

    A driver that watches it sees the arguments of each forward.
    """

    lends = Lends(call={"", "hidden", "watch"})

    def __init__(self, model: Any) -> None:
        own = model.transformer
        super().__init__(model.config, own.wte.weight, own.wpe.weight)
        self._model = model
        self._forwards = self._tokens = 0
        self._most: Mapping[str, int] = {}

    def __call__(self, inputs: Any, position_ids: Any, *cache: Any, **named_cache: Any) -> Any:
        return self._counted(self._model, inputs, position_ids, *cache, **named_cache)

    def hidden(self, inputs: Any, position_ids: Any, *cache: Any, **named_cache: Any) -> Any:
        return self._counted(self._model.transformer, inputs, position_ids, *cache, **named_cache)

    def _counted(
        self,
        part: Callable[..., Any],
        inputs: Int[Tensor, "batch seq"],
        position_ids: Int[Tensor, "batch seq"],
        *cache: Any,
        **named_cache: Any,
    ) -> Any:
        tokens = inputs.numel() if isinstance(inputs, Tensor) else 0
        if tokens > MOST_TOKENS:
            raise TooMuchWork(f"It was stopped at a forward over {tokens:,} tokens.")
        self._forwards += 1
        self._tokens += tokens
        for what, most in self._most.items():
            if self.counts()[what] > most:
                raise TooMuchWork(
                    f"It was stopped after {most} {what}, several times what is needed. "
                    "Does the loop end?"
                )
        self.tell(inputs, position_ids, *cache, **named_cache)
        with torch.no_grad():
            return part(inputs, position_ids, *cache, **named_cache)

    def counts(self) -> dict[str, int]:
        return {FORWARDS: self._forwards, TOKENS: self._tokens}

    def limit(self, counts: Mapping[str, int]) -> None:
        self._most = counts

    def untouched(self) -> bool:
        own = self._model.transformer
        pairs = zip(self.embeddings(), [own.wte.weight, own.wpe.weight], strict=True)
        return all(torch.equal(shown, real) for shown, real in pairs)
