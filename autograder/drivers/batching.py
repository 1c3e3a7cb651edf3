"""Drivers of lab 3. Each returns what it saw, {what it is: value}, in the order it happened.

What an attempt needs of other exercises is lent by the trusted side, computed there and set by
hand, or stood in for, so that an error in one exercise costs one exercise.
"""

import contextlib
import inspect
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from gpt import GPTConfig

Config = dict[str, Any]  # the fields of a GPTConfig
Seen = dict[str, Any]


@contextlib.contextmanager
def lending(attempt: Callable[..., Any], lent: dict[str, Any]) -> Iterator[None]:
    """Let a function find `lent` under the names by which it calls earlier exercises.

    For a while they stand in its notebook in place of the learner's own.
    """
    notebook: dict[str, Any] = getattr(inspect.unwrap(attempt), "__globals__", {})
    own = {name: notebook[name] for name in lent if name in notebook}
    notebook.update(lent)
    try:
        yield
    finally:
        for name in lent:
            del notebook[name]
        notebook.update(own)


# ------------------------------------------------------------------------------ static batching


def pad_left(attempt: Callable[..., Any], prompts: list[list[int]], **pad_id: int) -> Seen:
    """`pad_id` is handed on where the case has one."""
    rule = "pad_left returns two things, the ids and the attention mask"
    input_ids, attention_mask = two_things(attempt(prompts, **pad_id), rule)
    return {
        "`input_ids`": input_ids,
        "`attention_mask`": attention_mask,
        "`prompts`, afterwards": prompts,
    }


def two_things(found: Any, rule: str) -> tuple[Any, Any]:
    if isinstance(found, (tuple, list)) and len(found) == 2:
        return found[0], found[1]
    several = isinstance(found, (tuple, list))
    what = f"{len(found)} things" if several else f"one {type(found).__name__}"
    raise TypeError(f"{rule}; this is {what}.")


def padded_position_ids(
    attempt: Callable[..., Any], attention_mask: Bool[Tensor, "batch seq"]
) -> Seen:
    """The positions of tokens, with 0 for the pads; a pad may have any that the model accepts."""
    is_token, seq = attention_mask.clone(), attention_mask.shape[1]
    position_ids = attempt(attention_mask)
    if not isinstance(position_ids, Tensor) or position_ids.shape != is_token.shape:
        return {"`position_ids`": position_ids}
    outside = [p for p in position_ids[~is_token].tolist() if not 0 <= p < seq]
    pads = f"is {outside[0]}, which the model refuses" if outside else "is one that it accepts"
    return {
        "`position_ids`": position_ids.masked_fill(~is_token, 0),
        "The position of a pad": pads,
    }


def padded_mask(
    attempt: Callable[..., Any],
    attention_mask: Bool[Tensor, "batch k_len"],
    q_len: int,
    lent: dict[str, Any],
) -> Seen:
    """What tokens see, with nothing for the pads; a pad may see what it likes, but not nothing."""
    is_token = attention_mask[:, -q_len:].clone()
    batch, k_len = attention_mask.shape
    with lending(attempt, lent):
        mask = attempt(attention_mask, q_len)
    if not isinstance(mask, Tensor) or mask.shape != (batch, 1, q_len, k_len):
        return {"The mask": mask}
    blind = (~mask.bool().any(dim=-1)[:, 0] & ~is_token).nonzero().tolist()
    nothing = "sees no key at all, and its softmax is 0/0: {} of row {}"
    pads = nothing.format(f"query {blind[0][1]}", blind[0][0]) if blind else "sees something"
    return {
        "The mask": mask.masked_fill(~is_token[:, None, :, None], 0),
        "A pad that asks": pads,
    }


def generate_padded(
    attempt: Callable[..., Any], batches: list[dict[str, Any]], model: Any, lent: dict[str, Any]
) -> Seen:
    """Serve the batches one after the other with one model."""
    with lending(attempt, lent):
        returned = [
            attempt(model, b["prompts"], b["max_new_tokens"], eos_token_id=b["eos_token_id"])
            for b in batches
        ]
    seen: Seen = {}
    for number, (outputs, batch) in enumerate(zip(returned, batches, strict=True), 1):
        which = f" of batch {number}" if len(batches) > 1 else ""
        if isinstance(outputs, (list, tuple)):
            seen[f"What it returned{which}"] = f"is a list of {len(outputs)}"
            for row, output in enumerate(outputs):
                seen[f"The output for prompts[{row}]{which}"] = [int(token) for token in output]
        else:
            seen[f"What it returned{which}"] = f"is of type {type(outputs).__name__}"
        seen[f"`prompts`{which}, afterwards"] = batch["prompts"]
    return seen


def utilisation(attempt: Callable[..., Any], trace: list[list[int | None]]) -> Seen:
    return {"The utilisation": attempt(trace)}


# ------------------------------------------------------------------------------------- SlotCache


def select(
    attempt: type,
    config: Config,
    slots: int,
    max_length: int,
    steps: list[tuple[Int[Tensor, " slots"], list[int], int]],
) -> Seen:
    """Steps: the length of every slot, written by hand, and what is asked of `select`."""
    cache = attempt(GPTConfig(**config), slots, max_length, dtype=torch.float64)
    seen: Seen = {}
    for number, (lengths, served, q_len) in enumerate(steps, 1):
        cache.lengths = lengths.clone()
        returned = cache.select(served, q_len)
        where = f"call {number}, select({served}, {q_len})"
        seen[f"What came back from {where},"] = snapshot(returned)
        for name in ("positions", "mask"):
            seen[f"`self.{name}` after {where},"] = snapshot(kept(cache, name))
        seen[f"`lengths` after {where},"] = snapshot(cache.lengths)
    return seen


def kept(cache: Any, name: str) -> Any:
    if not hasattr(cache, name):
        raise AttributeError(f"`select` keeps no self.{name}, and `attend` will look for it there.")
    return getattr(cache, name)


def snapshot(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


@torch.no_grad()
def attend(
    attempt: type, config: Config, slots: int, max_length: int, steps: list[tuple[str, Any]]
) -> Seen:
    """Steps: ("forward", slots, positions, mask, queries, keys, values), the last three of all
    layers, and ("free", slot).
    """
    cache = attempt(GPTConfig(**config), slots, max_length, dtype=torch.float64)
    seen: Seen = {}
    for number, (what, *given) in enumerate(steps, 1):
        if what == "free":
            cache.free(*given)
            continue
        served, positions, mask, *projected = given
        select_by_hand(cache, served, positions, mask)
        for layer, (queries, keys, values) in enumerate(zip(*projected, strict=True)):
            where = f"step {number} for slots {served}, layer {layer}"
            seen[f"The output of {where},"] = cache.attend(layer, queries, keys, values)
            seen[f"`lengths` after {where},"] = snapshot(cache.lengths)
    return seen


def select_by_hand(
    cache: Any,
    slots: list[int],
    positions: Int[Tensor, "rows q_len"],
    mask: Bool[Tensor, "rows 1 q_len k_len"],
) -> None:
    """By the learner's own select, which may keep more books than it must; then by hand.

    Whatever is wrong with it or missing is its own exercise's affair.
    """
    lengths = cache.lengths.clone()
    with contextlib.suppress(Exception):
        cache.select(slots, positions.shape[1])
    cache.lengths, cache.slots = lengths, torch.tensor(slots)
    cache.rows = slice(None) if slots == list(range(len(lengths))) else cache.slots
    cache.positions, cache.mask = positions, mask


# ----------------------------------------------------------------------------- ContinuousBatcher


@dataclass
class Request:
    """Stands for the learner's own."""

    number: int
    ids: list[int]
    end: int


class StandInModel:
    """What a batcher asks a model for when it is made. It computes nothing."""

    def __init__(self) -> None:
        self.config = GPTConfig(vocab_size=8, n_positions=16, n_embd=4, n_layer=1, n_head=1)
        self.transformer = SimpleNamespace(wte=SimpleNamespace(weight=torch.empty(0)))


def admit(
    attempt: type,
    prompt_lengths: list[int],
    running: list[int | None],
    waiting: list[int],
    steps: list[tuple[str, Any]],
) -> Seen:
    """Steps: ("admit",), ("end", number of a request) and ("submit", number of a request).

    Requests go by their numbers. Which of several free slots one gets is the attempt's own choice.
    """
    requests = [Request(number, [0] * n, n + 4) for number, n in enumerate(prompt_lengths)]
    batcher = attempt(StandInModel(), len(running), 16)
    batcher.running = [None if number is None else requests[number] for number in running]
    batcher.waiting = deque(requests[number] for number in waiting)
    seen: Seen = {}
    calls = 0
    for what, *given in steps:
        if what == "admit":
            calls += 1
            seen |= one_admission(batcher, f"call {calls}")
        elif what == "end":
            slots = [numbered(request) for request in batcher.running]
            batcher.running = [
                None if number in given else request
                for number, request in zip(slots, batcher.running, strict=True)
            ]
        else:
            batcher.waiting.extend(requests[number] for number in given)
    return seen


def one_admission(batcher: Any, where: str) -> Seen:
    before = list(batcher.running)
    batcher.kv_cache.lengths = torch.tensor([len(r.ids) if r else 0 for r in before])
    returned = batcher.admit()
    if returned is None:
        raise TypeError("admit returns the list of slots that it gave away, not None.")
    given = sorted(returned, key=str)
    stayed = all(b is None or a is b for b, a in zip(before, batcher.running, strict=False))
    filled = [
        slot
        for slot, (b, a) in enumerate(zip(before, batcher.running, strict=False))
        if b is None and a is not None
    ]
    right = "are those that it gave away"
    return {
        f"The requests that run after {where}": sorted(
            [numbered(r) for r in batcher.running if r is not None], key=str
        ),
        f"The requests that wait after {where}": [numbered(r) for r in batcher.waiting],
        f"Those who ran before {where}": "keep their slots" if stayed else "lose their slots",
        f"The number of slots after {where}": len(batcher.running),
        f"The slots that {where} returned": (
            right if given == filled else f"are {given}, and those that it gave away {filled}"
        ),
    }


def numbered(request: Any) -> Any:
    """A request by its number."""
    return getattr(request, "number", number_or_type(request))


def number_or_type(value: Any) -> Any:
    return value if value is None or isinstance(value, int) else f"a {type(value).__name__}"


def step(
    attempt: type,
    slots: int,
    max_length: int,
    eos_token_id: int | None,
    arrivals: list[list[tuple[int, list[int], int]]],
    admissions: list[list[tuple[int, int]]],
    model: Any,
    kv_cache: Any,
) -> Seen:
    """As many steps as there are `arrivals`: the requests (number, ids, end) that come before each.

    `admissions` are the (slot, number) that a right `admit` gives away in each step.
    """
    batcher = attempt(model, slots, max_length, eos_token_id)
    batcher.kv_cache, batcher.admit = kv_cache, Admissions(batcher, admissions)
    requests: list[Request] = []
    seen: Seen = {}
    for number, arriving in enumerate(arrivals, 1):
        new = [Request(which, list(ids), end) for which, ids, end in arriving]
        requests += new
        batcher.waiting.extend(new)
        steps_before = len(batcher.trace)
        batcher.step()
        added = [[number_or_type(served) for served in row] for row in batcher.trace[steps_before:]]
        for request in requests:
            seen[f"The tokens of request {request.number} after step {number}"] = list(request.ids)
        seen[f"What step {number} added to the trace"] = added
        seen[f"The slots after step {number}"] = [numbered(r) for r in batcher.running]
        for request in requests:
            output = list(batcher.outputs.get(request.number, []))
            seen[f"The output kept of request {request.number} after step {number}"] = output
    return seen


class Admissions:
    """Stands for `admit`: gives the slots away as a right one would, once they are free."""

    def __init__(self, batcher: Any, script: list[list[tuple[int, int]]]) -> None:
        self.batcher, self.script = batcher, iter(script)
        self.due: list[tuple[int, int]] = []

    def __call__(self) -> list[int]:
        self.due += next(self.script, [])
        given = []
        for slot, number in list(self.due):
            request = next((r for r in self.batcher.waiting if r.number == number), None)
            if request is not None and self.batcher.running[slot] is None:
                self.batcher.waiting.remove(request)
                self.batcher.running[slot] = request
                self.due.remove((slot, number))
                given.append(slot)
        return given
