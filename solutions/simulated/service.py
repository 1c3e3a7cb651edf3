"""An engine in virtual time, and requests for it: a service without a model.

As in labs 7 and 9, a step computes one token of each request that decodes and chunks of new
prompts. It takes 2.2 ms, and 0.22 ms more for each token. Nothing is computed, only the tokens are
counted, so an hour of load takes moments, and two runs are equal. Run it in the clock of clock.py.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

STEP, TOKEN = 0.0022, 0.00022  # seconds: for any step, and for each token that it computes
SLOTS, BUDGET = 16, 256  # requests that run at once, and tokens in a step, at most
BLOCK = 16  # tokens of a prompt that one hash is for


@dataclass(eq=False)
class Request:
    """A request, and what becomes of it.

    prompt, answer: how many tokens it brings, and how many it gets. hashes: of the prompt's full
    blocks, if a prefix cache may know them. computed: tokens in the KV cache. found: those of them
    that were there already. tokens: of its answer, so far. In seconds, and None if it never
    happened: started, when its first tokens were scheduled; first and last, when those tokens of
    the answer came; ended. outcome: "whole", "refused", "aborted" or "failed"; None until then.
    """

    id: str
    prompt: int
    answer: int
    hashes: tuple[bytes, ...] = ()
    due: float = 0.0
    started: float | None = None
    first: float | None = None
    last: float | None = None
    ended: float | None = None
    computed: int = 0
    found: int = 0
    tokens: int = 0
    outcome: str | None = None

    def end(self, outcome: str) -> None:
        self.ended, self.outcome = asyncio.get_running_loop().time(), outcome


@dataclass(frozen=True)
class Output:
    """New tokens of a request. finish_reason: None while it goes on."""

    request: str
    new_ids: list[int]
    finish_reason: str | None


class SimulatedEngine:
    """A ServedEngine. deliver: called with each output, or with the fault that ends a request.

    slowdown: how many times as long each step takes. stall: seconds that its next step takes
    longer. cached: hashes of the blocks in its prefix cache. computed: how many tokens its steps
    have computed, those of aborted requests included.
    """

    def __init__(self, slowdown: float = 1.0) -> None:
        self.slowdown, self.stall = slowdown, 0.0
        self.deliver: Callable[[str, Any], None] = lambda request_id, output: None
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.cached: set[bytes] = set()
        self.computed = 0
        self.fault: Exception | None = None
        self.steps: asyncio.Task[None] | None = None

    def submit(self, request: Request) -> None:
        self.waiting.append(request)
        if self.fault is not None:
            self.fail(self.fault)
        elif self.steps is None or self.steps.done():
            self.steps = asyncio.ensure_future(self.run())

    def abort(self, request_id: str) -> None:
        for request in [*self.running, *self.waiting]:
            if request.id == request_id:
                self.remove(request)
                request.end("aborted")

    def fail(self, fault: Exception) -> None:
        """End all requests with a fault, and every request that comes later."""
        self.fault = fault
        for request in [*self.running, *self.waiting]:
            self.remove(request)
            request.end("failed")
            self.deliver(request.id, fault)

    def remove(self, request: Request) -> None:
        (self.running if request in self.running else self.waiting).remove(request)

    async def run(self) -> None:
        while self.running or self.waiting:
            plan = self.schedule()
            count = sum(plan.values())
            stall, self.stall = self.stall, 0.0
            await asyncio.sleep(self.slowdown * (STEP + TOKEN * count) + stall)
            self.computed += count
            for request, tokens in plan.items():
                if request.outcome is None:
                    self.advance(request, tokens)

    def schedule(self) -> dict[Request, int]:
        """Return how many tokens the next step computes of each request: decodes come first."""
        budget, plan = BUDGET, {}
        for request in sorted(self.running, key=lambda request: request.tokens == 0):
            plan[request] = min(budget, 1 if request.tokens else request.prompt - request.computed)
            budget -= plan[request]
        while budget and self.waiting and len(self.running) < SLOTS:
            request = self.waiting.popleft()
            self.start(request)
            plan[request] = min(budget, request.prompt - request.computed)
            budget -= plan[request]
        return plan

    def start(self, request: Request) -> None:
        self.running.append(request)
        request.started = asyncio.get_running_loop().time()
        new = (n for n, block in enumerate(request.hashes) if block not in self.cached)
        known = next(new, len(request.hashes))
        request.found = request.computed = min(BLOCK * known, request.prompt - 1)

    def advance(self, request: Request, tokens: int) -> None:
        """Count a step's tokens; a request that has caught up gains one, as in lab 7."""
        request.computed += tokens
        if request.computed < request.prompt:
            return
        request.last = asyncio.get_running_loop().time()
        if request.first is None:
            request.first = request.last
            self.cached.update(request.hashes)
        request.tokens += 1
        is_whole = request.tokens == request.answer
        if is_whole:
            self.running.remove(request)
            request.end("whole")
        self.deliver(request.id, Output(request.id, [0], "length" if is_whole else None))


# ---------------------------------------------------------------------------------------- traffic


def log_uniform(low: int, high: int, dice: random.Random) -> int:
    """Draw a number of tokens: as often between 16 and 32 as between 128 and 256."""
    return round(low * (high / low) ** dice.random())


def new_requests(count: int, seed: int = 0) -> list[Request]:
    """Return requests with prompts of 16 to 256 tokens and answers of 8 to 64, log-uniform."""
    dice = random.Random(seed)
    return [
        Request(f"request-{i}", log_uniform(16, 256, dice), log_uniform(8, 64, dice))
        for i in range(count)
    ]


def new_chats(
    chats: int = 32, turns: int = 6, instructions: int = 0, seed: int = 0
) -> list[list[Request]]:
    """Return the turns of each chat: a prompt is the chat so far, and a new message.

    instructions: how many tokens all chats begin with, in blocks of 16.
    """
    dice = random.Random(seed)
    return [new_chat(f"chat-{chat}", turns, instructions, dice) for chat in range(chats)]


def new_chat(name: str, turns: int, instructions: int, dice: random.Random) -> list[Request]:
    requests, prompt, shared = [], instructions, instructions // BLOCK
    for turn in range(turns):
        prompt += log_uniform(16, 64, dice)
        answer = log_uniform(8, 64, dice)
        owners = ["instructions"] * shared + [name] * (prompt // BLOCK - shared)
        hashes = tuple(f"{owner}/{n}".encode() for n, owner in enumerate(owners))
        requests.append(Request(f"{name}-{turn}", prompt, answer, hashes))
        prompt += answer
    return requests
