"""The engine, part one: a request as the engine sees it.

One idea covers prefill, chunked prefill, decode, preemption and speculation: a sequence has tokens,
and the first `num_computed_tokens` of them have their keys and values in the cache. In each step
some sequences compute some of the others; a sequence with none left to compute gains a token.
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

StopCondition = Callable[[list[int]], bool]  # called with all new tokens after each of them


@dataclass(eq=False)
class Sequence(Request):
    """Lab 3's request, with its own sampling parameters, stop condition and drafts.

    salt: only requests with the same salt share blocks. adapter: whose weights are added to the
    model's (lab 23). drafts: guessed tokens that are still to be
    verified; draft_probs: the distribution that each was drawn from. finish_reason: "stop" or
    "length"; None while it goes on.
    """

    params: SamplingParams = GREEDY
    generator: torch.Generator = field(default_factory=torch.Generator)
    stop: StopCondition | None = None
    new_drafter: Callable[[], Drafter] | None = None
    salt: bytes = b""
    adapter: Any = None
    drafts: list[int] = field(default_factory=list)
    draft_probs: Float[Tensor, "drafts vocab"] | None = None
    finish_reason: str | None = None

    def __post_init__(self) -> None:
        self.prompt_length = len(self.ids)
        self.drafter: Drafter | None = None

    @property
    def text(self) -> list[int]:
        """The tokens and the drafts: everything that the model has to compute."""
        return self.ids + self.drafts

    @property
    def has_caught_up(self) -> bool:
        """Whether all tokens are computed, so that the request can gain a new one."""
        return self.num_computed_tokens >= len(self.ids)

    def next_count(self, budget: int) -> int:
        """Return how many of its tokens the next step can compute, at most `budget`.

        The last token and all its drafts are verified together. If they don't fit the budget, they
        wait for a later step. So the tokens that a request draws don't depend on other requests.
        """
        count = len(self.text) - self.num_computed_tokens
        before_the_last = len(self.ids) - 1 - self.num_computed_tokens
        return count if count <= budget else min(budget, before_the_last)

    def extend(self, tokens: list[int]) -> list[int]:
        """Add new tokens, up to one that ends the request; return those. Drop the drafts.

        After that, all tokens but the newest are computed.
        """
        before = len(self.ids)
        for token in tokens:
            if not self.has_ended:
                self.append(token)
        self.num_computed_tokens = len(self.ids) - 1
        self.drafts, self.draft_probs = [], None
        return self.ids[before:]

    def append(self, token: int) -> None:
        """Add one new token, and note whether it ends the request and why."""
        super().append(token)
        if self.has_ended:
            self.finish_reason = "stop" if token == self.eos_token_id else "length"
        if self.stop is not None and self.stop(self.ids[self.prompt_length :]):
            self.has_ended, self.finish_reason = True, "stop"

    def draft(self, k: int) -> None:
        """Let the request's own drafter, if it has one, guess up to k next tokens."""
        if self.new_drafter is not None:
            if self.drafter is None:  # made late: it may hold a cache, and many requests may wait
                self.drafter = self.new_drafter()
            room = self.end - len(self.ids) - 1  # the last place is for the target's own token
            self.drafter.truncate(len(self.ids) - 1)
            self.drafts, self.draft_probs = self.drafter.propose(
                self.ids, min(k, room), self.params, self.generator
            )


def stop_at_text(tokenizer: Any, stops: collections.abc.Sequence[str]) -> StopCondition:
    """Return a stop condition: whether the new text contains one of these strings.

    Called after each token, so it only looks at the end. Raises ValueError for an empty string,
    which is in every text.
    """
    require_stops(stops)
    longest = max(len(stop.encode()) for stop in stops)  # a token is a byte or more

    def has_stop(new_ids: list[int]) -> bool:
        ending = tokenizer.decode(new_ids[-longest:], clean_up_tokenization_spaces=False)
        return any(stop in ending for stop in stops)

    return has_stop
