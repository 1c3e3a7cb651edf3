"""The engine, part one: a request as the engine sees it.

One notion carries prefill, chunks of it, decode, preemption and speculation alike: a sequence has
tokens, and the first `num_computed_tokens` of them have their keys and values in the cache. A step
lets some sequences catch up; whoever has caught up gains a token.
"""

import collections.abc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from solutions.batching import Request
from solutions.decoding import GREEDY, SamplingParams, require_stops
from solutions.speculative import Drafter

StopCondition = Callable[[list[int]], bool]  # is asked with the new tokens so far


@dataclass(eq=False)
class Sequence(Request):
    """Lab 3's request, with all that is its own: how its tokens are chosen and when it stops.

    salt: only requests of one salt share blocks. drafts: tokens that were guessed, and are still to
    be verified; draft_probs: what each was drawn from. finish_reason: "stop", "length" or "abort";
    None while it goes on.
    """

    params: SamplingParams = GREEDY
    generator: torch.Generator = field(default_factory=torch.Generator)
    stop: StopCondition | None = None
    new_drafter: Callable[[], Drafter] | None = None
    salt: bytes = b""
    drafts: list[int] = field(default_factory=list)
    draft_probs: Float[Tensor, "drafts vocab"] | None = None
    finish_reason: str | None = None

    def __post_init__(self) -> None:
        self.prompt_length = len(self.ids)
        self.drafter: Drafter | None = None

    @property
    def text(self) -> list[int]:
        """All that the model has to compute: the tokens, then the drafts."""
        return self.ids + self.drafts

    @property
    def has_caught_up(self) -> bool:
        return self.num_computed_tokens >= len(self.ids)

    def next_count(self, budget: int) -> int:
        """How many of its tokens the next step can compute, `budget` at most.

        The drafts are verified all together, with the token before them; where the budget has no
        room for that, in a later step. So what a request draws doesn't depend on the others.
        """
        count = len(self.text) - self.num_computed_tokens
        before_the_last = len(self.ids) - 1 - self.num_computed_tokens
        return count if count <= budget else min(budget, before_the_last)

    def extend(self, tokens: list[int]) -> list[int]:
        """Gain new tokens, up to the one that ends it; return those. The drafts are judged then.

        The newest token is not computed yet, and all before it are.
        """
        before = len(self.ids)
        for token in tokens:
            if not self.has_ended:
                self.append(token)
        self.num_computed_tokens = len(self.ids) - 1
        self.drafts, self.draft_probs = [], None
        return self.ids[before:]

    def append(self, token: int) -> None:
        super().append(token)
        if self.has_ended:
            self.finish_reason = "stop" if token == self.eos_token_id else "length"
        if self.stop is not None and self.stop(self.ids[self.prompt_length :]):
            self.has_ended, self.finish_reason = True, "stop"

    def draft(self, k: int) -> None:
        """Let a drafter of its own, if it may have one, guess up to k tokens that may follow."""
        if self.new_drafter is not None:
            if self.drafter is None:  # not before: it may hold a cache, and many may wait
                self.drafter = self.new_drafter()
            room = self.end - len(self.ids) - 1  # the last token is the target's own
            self.drafter.truncate(len(self.ids) - 1)
            self.drafts, self.draft_probs = self.drafter.propose(
                self.ids, min(k, room), self.params, self.generator
            )


def stop_at_text(tokenizer: Any, stops: collections.abc.Sequence[str]) -> StopCondition:
    """Whether the new text holds one of these strings, which it does with its newest token first.

    Raises ValueError for an empty string, which stands everywhere.
    """
    require_stops(stops)
    longest = max(len(stop.encode()) for stop in stops)  # a token is a byte or more

    def has_stop(new_ids: list[int]) -> bool:
        ending = tokenizer.decode(new_ids[-longest:], clean_up_tokenization_spaces=False)
        return any(stop in ending for stop in stops)

    return has_stop
