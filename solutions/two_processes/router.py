"""Lab 9, given: the router, which keeps the requests and hands out attempts at them."""

import collections.abc
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from solutions.decoding import GREEDY, SamplingParams
from solutions.engine.engine import Output
from solutions.two_processes.messages import Forget, Holds, Job, Lost, Refused


@dataclass
class Story:
    """A request that has not ended. told: the new tokens passed on to the user so far. attempt: the
    key of its newest attempt. found: how many tokens had been passed on when that began."""

    prompt: list[int]
    end: int
    eos_token_id: int | None
    params: SamplingParams
    seed: int
    told: list[int] = field(default_factory=list)
    attempt: int = -1
    found: int = 0


class Router:
    """Gets every request served to its end, even if sides die.

    An attempt continues after all tokens passed on so far: they are part of its prompt. Only the
    newest attempt's tokens are passed on, so no token is passed on twice.
    """

    def __init__(
        self,
        to_prefill: Callable[[Any], None],
        to_decode: Callable[[Any], None],
        on_output: Callable[[Output], None],
    ) -> None:
        self.to_prefill, self.to_decode, self.on_output = to_prefill, to_decode, on_output
        self.stories: dict[int, Story] = {}
        self.requests: dict[int, int] = {}  # by attempt
        self.refusals: dict[int, str] = {}
        self.numbers, self.attempts = count(), count()

    def submit(
        self,
        prompt: collections.abc.Sequence[int],
        end: int,
        eos_token_id: int | None = None,
        params: SamplingParams = GREEDY,
        seed: int = 0,
    ) -> int:
        request = next(self.numbers)
        self.stories[request] = Story(list(prompt), end, eos_token_id, params, seed)
        if len(prompt) < end:
            self.attempt(request)
        else:
            self.finish(request, [], "length")
        return request

    def abort(self, request: int) -> None:
        if request in self.stories:
            self.forget(request)
            self.finish(request, [], "abort")

    def receive(self, message: Any) -> None:
        match message:
            case Output(attempt, new_ids, reason) if attempt in self.requests:
                request = self.requests[attempt]
                self.stories[request].told += new_ids
                if reason is None:
                    self.on_output(Output(request, new_ids, None))
                else:
                    del self.requests[attempt]
                    self.finish(request, new_ids, reason)
            case Lost(attempt) if attempt in self.requests:
                self.again(self.requests[attempt])
            case Refused(attempt, why) if attempt in self.requests:
                request = self.requests.pop(attempt)
                self.refusals[request] = why
                self.finish(request, [], "error")
            case Holds(attempts):
                for attempt in self.requests.keys() - attempts:
                    self.again(self.requests[attempt])

    def decode_has_died(self) -> None:
        """Begin again with requests whose attempt has gained tokens on the decode side, for they
        were only there. The others may still be on the prefill side."""
        for request, story in list(self.stories.items()):
            if len(story.told) > story.found:
                self.again(request)

    def again(self, request: int) -> None:
        self.forget(request)
        self.attempt(request)

    def attempt(self, request: int) -> None:
        story, key = self.stories[request], next(self.attempts)
        story.attempt, story.found = key, len(story.told)
        self.requests[key] = request
        text, own = story.prompt + story.told, (story.eos_token_id, story.params, story.seed)
        self.to_prefill(Job(key, text, story.end, *own, drawn=len(story.told)))

    def forget(self, request: int) -> None:
        attempt = self.stories[request].attempt
        del self.requests[attempt]
        self.to_prefill(Forget(attempt))
        self.to_decode(Forget(attempt))

    def finish(self, request: int, new_ids: list[int], reason: str) -> None:
        del self.stories[request]
        self.on_output(Output(request, new_ids, reason))
