"""How a server's KV memory is used, counted by its memory managers alone, without a model.

Lab 4 compares reserving a contiguous stretch for each request with handing out blocks.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

Lengths = tuple[int, int]  # tokens of a request's prompt, and of its output

CONTEXT = 2048  # of the OPT models, which the vLLM paper measured


def chat_lengths(requests: int, seed: int = 0) -> list[Lengths]:
    """Draw lengths like those of real chats: hundreds of tokens, with a long tail, up to CONTEXT.

    They are log-normal, with the means that Kwon et al. (2023, section 6.1, figure 11) report for
    ShareGPT: 161 tokens in a prompt, 338 in an output.
    """
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(requests, 2, generator=generator)
    spread = 1.0  # of the logarithm; the mean of a log-normal is exp(mu + spread**2 / 2)
    drawn = torch.tensor([161.0, 338.0]) * torch.exp(spread * normal - spread**2 / 2)
    prompts = drawn[:, 0].round().long().clamp(1, CONTEXT - 1)
    outputs = torch.minimum(drawn[:, 1].round().long().clamp(min=1), CONTEXT - prompts)
    return list(zip(prompts.tolist(), outputs.tolist(), strict=True))


# ------------------------------------------------------------------------------ reserving ahead


class ContiguousManager:
    """Reserves one contiguous stretch of slots for each request, in the first gap that fits.

    `stretches` maps a request to (first slot, number of slots).
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.stretches: dict[int, tuple[int, int]] = {}

    def allocate(self, request_id: int, slots: int) -> bool:
        """Reserve `slots` contiguous slots; return False if no gap is that long."""
        start = 0
        for taken, length in sorted(self.stretches.values()):
            if taken - start >= slots:
                break
            start = taken + length
        if start + slots > self.num_slots:
            return False
        self.stretches[request_id] = start, slots
        return True

    def free(self, request_id: int) -> None:
        del self.stretches[request_id]


def reserve_longest(prompt: int, output: int) -> int:
    """Return the length of the longest text that the model can write."""
    return CONTEXT


def reserve_power_of_two(prompt: int, output: int) -> int:
    """Return a good guess: the output's length is known up to a factor of two."""
    return min(prompt + 2 ** (output - 1).bit_length(), CONTEXT)


def reserve_exactly(prompt: int, output: int) -> int:
    """Return the length that the request will turn out to need; no real server knows it."""
    return prompt + output


# ------------------------------------------------------------------------------------- counting


@dataclass(frozen=True)
class MemoryUse:
    """Shares of the slots, averaged over the steps in which a request was waiting.

    tokens: slots that hold a token. later: reserved, and filled before the request ends. never:
    reserved, and never filled (internal fragmentation). unreserved: held by no request, because no
    gap is long enough (external fragmentation). running: how many requests run at a time.
    """

    tokens: float
    later: float
    never: float
    unreserved: float
    running: float

    @property
    def filled(self) -> float:
        """The share of the reserved slots that hold a token."""
        return self.tokens / (self.tokens + self.later + self.never)


class Blocks(Protocol):
    """The part of lab 4's block manager that the counting needs."""

    num_blocks: int
    block_size: int
    lengths: dict[int, int]
    tables: dict[int, list[int]]
    free_blocks: deque[int]

    def blocks_for(self, num_tokens: int) -> int: ...
    def allocate(self, request_id: int, num_tokens: int) -> None: ...
    def append(self, request_id: int) -> object: ...
    def can_append(self, request_id: int) -> bool: ...
    def free(self, request_id: int) -> None: ...


Step = tuple[int, int, int, int]  # tokens, later, never, running


def count_contiguous(
    lengths: Sequence[Lengths], num_slots: int, reserve: Callable[[int, int], int]
) -> MemoryUse:
    """Serve requests from a memory in which each has a stretch of `reserve(prompt, output)` slots.

    Every running request gains a token in each step. The next request waits until there is a gap
    for it. Raises ValueError if a request can never fit, or if none ever waits.
    """
    require_room(num_slots, [reserve(*both) for both in lengths])
    manager = ContiguousManager(num_slots)
    waiting, held = deque(range(len(lengths))), {}
    steps: list[Step] = []
    while True:
        while waiting and manager.allocate(waiting[0], reserve(*lengths[waiting[0]])):
            held[waiting[0]] = lengths[waiting[0]][0]
            waiting.popleft()
        if not waiting:
            return averaged(steps, num_slots)
        needed = sum(sum(lengths[number]) for number in held)
        reserved = sum(slots for _, slots in manager.stretches.values())
        tokens = sum(held.values())
        steps.append((tokens, needed - tokens, reserved - needed, len(held)))
        for number in list(held):
            held[number] += 1
            if held[number] == sum(lengths[number]):
                manager.free(number)
                del held[number]


def count_paged(lengths: Sequence[Lengths], manager: Blocks) -> MemoryUse:
    """Serve requests from a pool of blocks; if it runs empty, preempt the newest request.

    Raises ValueError if a request can never fit, or if none ever waits.
    """
    num_slots = manager.num_blocks * manager.block_size
    require_room(num_slots, [prompt + output for prompt, output in lengths])
    waiting, held = deque(range(len(lengths))), {number: p for number, (p, _) in enumerate(lengths)}
    running: list[int] = []
    steps: list[Step] = []
    while True:
        while waiting and manager.blocks_for(held[waiting[0]]) <= len(manager.free_blocks):
            manager.allocate(waiting[0], held[waiting[0]])
            running.append(waiting.popleft())
        if not waiting:
            return averaged(steps, num_slots)
        tokens = sum(manager.lengths[number] for number in running)
        places = [len(manager.tables[number]) * manager.block_size for number in running]
        needed = [sum(lengths[number]) for number in running]
        used = sum(min(place, need) for place, need in zip(places, needed, strict=True))
        steps.append((tokens, used - tokens, sum(places) - used, len(running)))
        for number in list(running):
            while number in running and not manager.can_append(number):
                preempted = running.pop()
                manager.free(preempted)
                waiting.appendleft(preempted)
            if number in running:
                manager.append(number)
                held[number] += 1
                if held[number] == sum(lengths[number]):
                    manager.free(number)
                    running.remove(number)


def require_room(num_slots: int, needed: Sequence[int]) -> None:
    """Raise ValueError for a request that needs more slots than there are."""
    for number, slots in enumerate(needed):
        if slots > num_slots:
            raise ValueError(f"Request {number} never fits into a memory of {num_slots} slots.")


def averaged(steps: Sequence[Step], num_slots: int) -> MemoryUse:
    """Return the averages over all steps, as shares. Raises ValueError if there is no step."""
    if not steps:
        raise ValueError("All requests fit at once: give more of them, or less memory.")
    means = [sum(column) / len(steps) for column in zip(*steps, strict=True)]
    tokens, later, never = (mean / num_slots for mean in means[:3])
    return MemoryUse(tokens, later, never, 1 - tokens - later - never, running=means[3])
