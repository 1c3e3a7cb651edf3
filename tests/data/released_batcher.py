"""Lab 3's batcher as it was first released, without its docstrings. Learners' copies have it."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from solutions.batching import SlotCache, Trace, require_request
from solutions.kv_cache import CachedLMHead


@dataclass
class Request:
    number: int
    ids: list[int]
    end: int


class ContinuousBatcher:
    def __init__(
        self, model: CachedLMHead, slots: int, max_length: int, eos_token_id: int | None = None
    ) -> None:
        weight = model.transformer.wte.weight
        self.model, self.eos_token_id = model, eos_token_id
        self.kv_cache = SlotCache(model.config, slots, max_length, weight.device, weight.dtype)
        self.waiting: deque[Request] = deque()
        self.running: list[Request | None] = [None] * slots  # by slot
        self.outputs: dict[int, list[int]] = {}  # of the requests that have ended, by number
        self.trace: Trace = []
        self.submitted = 0

    def submit(self, prompt: Sequence[int], max_new_tokens: int) -> int:
        config, room = self.model.config, self.kv_cache.max_length
        require_request(config, prompt, max_new_tokens)
        end = min(len(prompt) + max_new_tokens, config.n_positions)
        if end - 1 > room:  # the last token is never stored
            raise ValueError(
                f"This request may grow to {end} tokens; a slot has room for {room}, and for one "
                "more that is not stored. Ask for fewer tokens, or reserve longer slots."
            )
        request = Request(self.submitted, list(prompt), end)
        self.submitted += 1
        if len(prompt) == end:
            self.outputs[request.number] = request.ids
        else:
            self.waiting.append(request)
        return request.number

    def admit(self) -> list[int]:
        admitted = []
        for slot, request in enumerate(self.running):
            if request is None and self.waiting:
                self.running[slot] = self.waiting.popleft()
                admitted.append(slot)
        return admitted

    def forward(self, slots: Sequence[int]) -> None:
        requests = [request for slot in slots if (request := self.running[slot])]
        lengths = self.kv_cache.lengths.tolist()
        new_ids = [r.ids[lengths[slot] :] for r, slot in zip(requests, slots, strict=True)]
        input_ids = torch.tensor(new_ids, device=self.kv_cache.lengths.device)
        position_ids = self.kv_cache.select(slots, input_ids.shape[1])
        logits = self.model(input_ids, position_ids, self.kv_cache)
        for request, token in zip(requests, logits[:, -1].argmax(dim=-1).tolist(), strict=True):
            request.ids.append(token)

    def has_ended(self, request: Request) -> bool:
        return len(request.ids) == request.end or request.ids[-1] == self.eos_token_id

    def retire(self, slot: int) -> None:
        request = self.running[slot]
        assert request is not None
        self.outputs[request.number] = request.ids
        self.running[slot] = None
        self.kv_cache.free(slot)

    @torch.no_grad()
    def step(self) -> None:
        veterans = [slot for slot, request in enumerate(self.running) if request]
        for slot in self.admit():
            self.forward([slot])
        if veterans:
            self.forward(veterans)
        self.trace.append([request.number if request else None for request in self.running])
        for slot, request in enumerate(self.running):
            if request and self.has_ended(request):
                self.retire(slot)

    def run(self) -> None:
        while self.waiting or any(self.running):
            self.step()
