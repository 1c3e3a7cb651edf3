"""Drivers of lab 3. What an attempt needs of other exercises is lent, or set by hand."""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from autograder.attempt.lent import sealed
from autograder.attempt.plain import kind_of, kind_of_list
from autograder.attempt.records import Attempt, Seen, one_call, parts
from autograder.attempt.tensors import float_type, place_of, snapshot
from gpt import GPTConfig

Config = dict[str, Any]  # the fields of a GPTConfig

# ------------------------------------------------------------------------------ static batching


def pad_left(attempt: Attempt, prompts: list[list[int]], **pad_id: int) -> list[Seen]:
    """`pad_id` is handed on where the case has one."""
    rule = "pad_left returns two things, the ids and the attention mask"
    return parts(attempt(prompts, **pad_id), rule, "`input_ids`", "`attention_mask`")


def padded_position_ids(attempt: Attempt, attention_mask: Bool[Tensor, "batch seq"]) -> list[Seen]:
    """The positions of tokens, with 0 for the pads; a pad may have any that the model accepts."""
    is_pad, seq = ~attention_mask, attention_mask.shape[1]
    position_ids = attempt(attention_mask)
    if not isinstance(position_ids, Tensor) or position_ids.shape != is_pad.shape:
        return [Seen("`position_ids`", position_ids)]
    outside = [p for p in position_ids[is_pad].tolist() if not 0 <= p < seq]
    pads = f"is {outside[0]}, which the model refuses" if outside else "is one that it accepts"
    return [
        Seen("`position_ids`", position_ids.masked_fill(is_pad, 0)),
        Seen("The position of every pad", pads),
    ]


def padded_mask(
    attempt: Attempt, attention_mask: Bool[Tensor, "batch k_len"], q_len: int
) -> list[Seen]:
    """What tokens see, with nothing for the pads; a pad may see any keys, but at least one."""
    is_pad = ~attention_mask[:, -q_len:]
    batch, k_len = attention_mask.shape
    mask = attempt(attention_mask, q_len)
    if not isinstance(mask, Tensor) or mask.shape != (batch, 1, q_len, k_len):
        return [Seen("The mask", mask)]
    blind = (is_pad & ~mask.bool().any(dim=-1)[:, 0]).nonzero().tolist()
    pads = "sees a key or more"
    if blind:
        row, query = blind[0]
        pads = f"sees no key at all (query {query} of row {row}), and its softmax is 0/0"
    return [
        Seen("The mask", mask.masked_fill(is_pad[:, None, :, None], 0)),
        Seen("A query that is a pad", pads),
    ]


def generate_padded(attempt: Attempt, batches: list[dict[str, Any]], model: Any) -> list[Seen]:
    """Serve the batches one after the other with one model."""
    seen: list[Seen] = []
    for number, batch in enumerate(batches, 1):
        where = f"of batch {number}" if len(batches) > 1 else ""
        outputs = attempt(model, **batch)
        if not isinstance(outputs, (list, tuple)):
            return [*seen, Seen("What it returned", outputs, where)]
        seen.append(Seen("What it returned", f"is a list of {len(outputs)}", where))
        for row, output in enumerate(outputs[: len(batch["prompts"])]):
            seen.append(Seen(f"What came back for prompts[{row}]", kind_of_list(output), where))
            seen.append(Seen(f"The output for prompts[{row}]", copied(output), where))
    return seen


def copied(value: Any) -> Any:
    return list(value) if isinstance(value, (list, tuple)) else value


utilisation = one_call(__name__, "utilisation", "The utilisation", "trace")


def dynamic_batches(
    attempt: Attempt, arrivals: list[int], limit: int, delay: int, fixed: int, each: int
) -> list[Seen]:
    """A batch of n runs for fixed + each * n. All times are integers."""
    found = attempt(arrivals, limit, delay, sealed(lambda count: fixed + each * count))
    if not isinstance(found, (list, tuple)):
        return [Seen("What it returned", found)]
    batches = [Seen(f"Batch {number}", copied(batch)) for number, batch in enumerate(found)]
    return [*batches, Seen("The number of batches", len(found))]


# ------------------------------------------------------------------------------------- SlotCache


Fill = Callable[[Any, Int[Tensor, " slots"]], None]


def select(attempt: type, **case: Any) -> list[Seen]:
    """The lengths are set by hand, so that nothing need be stored."""

    def fill(cache: Any, lengths: Int[Tensor, " slots"]) -> None:
        cache.lengths = lengths.clone()

    return selected(attempt, fill, **case)


def select_as_built(attempt: type, **case: Any) -> list[Seen]:
    """As an engine would: where all slots have grown alike, by one forward for all of them."""

    def forward(cache: Any, slots: list[int], q_len: int) -> None:
        layers, _, heads, _, head_dim = cache.keys.shape
        new = torch.zeros(len(slots), heads, q_len, head_dim, dtype=cache.keys.dtype)
        cache.select(slots, q_len)
        for layer in range(layers):
            cache.attend(layer, new, new, new)

    def fill(cache: Any, lengths: Int[Tensor, " slots"]) -> None:
        grown = set((lengths - cache.lengths).tolist())
        if len(grown) == 1 and min(grown) > 0:
            forward(cache, list(range(len(lengths))), *grown)
            return
        for slot, length in enumerate(lengths.tolist()):
            cache.free(slot)
            if length:
                forward(cache, [slot], length)

    return selected(attempt, fill, **case)


def selected(
    attempt: type, fill: Fill, config: Config, slots: int, max_length: int, steps: list[Any]
) -> list[Seen]:
    """Steps: the length of every slot, and what is asked of `select`: slots and q_len."""
    cache = attempt(GPTConfig(**config), slots, max_length, dtype=torch.float64)
    seen: list[Seen] = []
    for number, (lengths, served, q_len) in enumerate(steps, 1):
        fill(cache, lengths)
        returned = cache.select(served, q_len)
        where = f"call {number}, select({served}, {q_len})"
        seen.append(Seen("What came back", snapshot(returned), f"from {where},"))
        for name in ("positions", "mask", "slots"):
            seen.append(Seen(f"`self.{name}`", kept(cache, name), f"after {where},"))
        seen.append(Seen("`lengths`", snapshot(cache.lengths), f"after {where},"))
        cache.lengths += 1
        grown = f"after {where}, once the lengths have grown,"
        seen.append(Seen("`self.positions`", kept(cache, "positions"), grown))
        cache.lengths -= 1
    return seen


def kept(cache: Any, name: str) -> Any:
    if not hasattr(cache, name):
        raise AttributeError(f"`select` doesn't set self.{name}, which `attend` needs.")
    return snapshot(getattr(cache, name))


Select = Callable[[Any, list[int], Tensor, Tensor], Any]


def attend(attempt: type, **case: Any) -> list[Seen]:
    """What `select` keeps is set by hand, so that it isn't needed."""

    def select(cache: Any, slots: list[int], positions: Tensor, mask: Tensor) -> None:
        cache.selected = *positions.shape, 0
        cache.slots = torch.tensor(slots)
        cache.rows = slice(None) if slots == list(range(len(cache.lengths))) else cache.slots
        cache.positions, cache.mask = positions.clone(), mask.clone()

    return attended(attempt, select, **case)


def attend_as_built(attempt: type, **case: Any) -> list[Seen]:
    def select(cache: Any, slots: list[int], positions: Tensor, mask: Tensor) -> None:
        cache.select(slots, positions.shape[1])

    return attended(attempt, select, **case)


@torch.no_grad()
def attended(
    attempt: type, select: Select, config: Config, slots: int, max_length: int, steps: list[Any]
) -> list[Seen]:
    """Steps: ("forward", slots, positions, mask, queries, keys, values), the last three of all
    layers, and ("free", slot).
    """
    cache = attempt(GPTConfig(**config), slots, max_length, dtype=float_type(steps))
    memory = cache.keys, cache.values
    seen: list[Seen] = []
    for number, (what, *given) in enumerate(steps, 1):
        if what == "free":
            cache.free(*given)
            continue
        served, positions, mask, *projected = given
        select(cache, served, positions, mask)
        for layer, (queries, keys, values) in enumerate(zip(*projected, strict=True)):
            where = f"step {number} for slots {served}, layer {layer},"
            output = cache.attend(layer, queries, keys, values)
            seen.append(Seen("The output", snapshot(output), f"of {where}"))
            seen.append(Seen("`lengths`", snapshot(cache.lengths), f"after {where}"))
        seen += stored(cache, memory, f"after step {number} for slots {served}")
    return seen


def stored(cache: Any, memory: tuple[Tensor, Tensor], where: str) -> Iterator[Seen]:
    """The tokens that the slots hold, with 0 beyond; and whether the memory is the one reserved."""
    state = place_of(memory, cache)
    yield Seen("The memory", state, where)
    if state == "is the same as before":
        filled = torch.arange(cache.max_length) < cache.lengths[:, None]
        yield Seen("`keys`", cache.keys * filled[:, None, :, None], where)
        yield Seen("`values`", cache.values * filled[:, None, :, None], where)


# ----------------------------------------------------------------------------- ContinuousBatcher


def admit(attempt: type, slots: int, steps: list[tuple[Any, ...]], model: Any) -> list[Seen]:
    """Steps: ("submit", prompt, max_new_tokens), ("admit",) and ("end", numbers of requests).

    Requests go by their numbers. Which of several free slots one gets is the attempt's own choice.
    """
    batcher = attempt(model, slots, model.config.n_positions)
    seen: list[Seen] = []
    calls = 0
    for what, *given in steps:
        if what == "submit":
            batcher.submit(*given)
        elif what == "admit":
            calls += 1
            seen += admission(batcher, batcher.admit, f"call {calls}")[1]
            # As if `step` had prefilled the new requests.
            lengths = [len(getattr(request, "ids", ())) for request in batcher.running]
            batcher.kv_cache.lengths = torch.tensor(lengths)
        else:
            for slot, request in enumerate(batcher.running):
                if numbered(request) in given:
                    batcher.retire(slot)
    return seen


def admit_as_built(
    attempt: type, slots: int, steps: list[tuple[Any, ...]], model: Any
) -> list[Seen]:
    """Called by the attempt's own `step`, in which the requests end that are told to."""
    batcher = attempt(model, slots, model.config.n_positions)
    admit = batcher.admit
    seen: list[Seen] = []
    calls = count(1)

    def watched() -> Any:
        returned, records = admission(batcher, admit, f"call {next(calls)}")
        seen.extend(records)
        return returned

    batcher.admit = sealed(watched)
    for what, *given in steps:
        if what == "submit":
            batcher.submit(*given)
            continue
        for request in filter(None, batcher.running):
            if request.number in given:
                request.end = len(request.ids) + 1
        batcher.step()
    return seen


def admission(batcher: Any, admit: Callable[[], Any], call: str) -> tuple[Any, list[Seen]]:
    """What a call of `admit` returns, and what was seen of it."""
    before, rest = list(batcher.running), rest_of(batcher)
    returned = admit()
    seen = admitted(batcher, before, returned, rest_of(batcher) == rest, call)
    return returned, list(seen)


def admitted(
    batcher: Any, before: list[Any], returned: Any, same: bool, call: str
) -> Iterator[Seen]:
    after = list(batcher.running)
    if not isinstance(returned, (list, tuple, set)):
        yield Seen("What `admit` returned", returned, f"from {call}")
    both = list(zip(before, after, strict=False))
    filled = [slot for slot, (was, now) in enumerate(both) if was is None and now is not None]
    stayed = all(was is None or was is now for was, now in both)
    if isinstance(returned, (list, tuple, set)):
        right = sorted(returned, key=str) == filled
        told = "is the list of slots that it gave away"
        returned = told if right else f"is {list(returned)}, and it gave away slots {filled}"
    runs = [numbered(request) for request in after if request is not None]
    waits = [numbered(request) for request in batcher.waiting]
    idle = [slot for slot, request in enumerate(after) if request is None] if waits else []
    yield Seen("The list of slots left free while requests wait", f"is {idle}", f"after {call}")
    yield Seen("The list of running requests", sorted(runs, key=str), f"after {call}")
    yield Seen("The list of waiting requests", waits, f"after {call}")
    told = "stayed in their slots" if stayed else "lost their slots"
    yield Seen("The requests running before", told, f"in {call}")
    yield Seen("The number of slots", len(after), f"after {call}")
    yield Seen("What `admit` returned", returned, f"from {call}")
    told = "is as it was" if same else "has been changed"
    yield Seen(
        "The state of the trace, the outputs, the cache and the requests", told, f"by {call}"
    )


def rest_of(batcher: Any) -> list[Any]:
    """All that `admit` must not change."""
    requests = sorted([*filter(None, batcher.running), *batcher.waiting], key=id)
    texts = [(id(r), list(getattr(r, "ids", ())), getattr(r, "end", None)) for r in requests]
    lengths = batcher.kv_cache.lengths.tolist()
    computed = [getattr(request, "num_computed_tokens", 0) for request in requests]
    return [list(batcher.trace), dict(batcher.outputs), lengths, texts, computed]


def numbered(request: Any) -> Any:
    """The number of a request."""
    return None if request is None else getattr(request, "number", kind_of(request))


def step(
    attempt: type, admissions: list[tuple[int, int]], kv_cache: Any, **case: Any
) -> list[Seen]:
    """With a cache that is lent and with `admit` replaced, so that neither is needed."""

    def prepare(batcher: Any) -> None:
        batcher.kv_cache, batcher.admit = kv_cache, sealed(Admissions(batcher, admissions))

    return stepped(attempt, prepare, **case)


def step_as_built(
    attempt: type, admissions: list[tuple[int, int]], kv_cache: Any, **case: Any
) -> list[Seen]:
    return stepped(attempt, lambda batcher: None, **case)


def stepped(
    attempt: type,
    prepare: Callable[[Any], None],
    slots: int,
    max_length: int,
    eos_token_id: int | None,
    arrivals: list[list[tuple[list[int], int]]],
    model: Any,
) -> list[Seen]:
    """Run a step for each of the `arrivals`: (prompt, max_new_tokens) of requests that come before
    it."""
    batcher = attempt(model, slots, max_length, eos_token_id)
    prepare(batcher)
    requests: list[Any] = []
    seen: list[Seen] = []
    for number, arriving in enumerate(arrivals, 1):
        for prompt, max_new_tokens in arriving:
            batcher.submit(prompt, max_new_tokens)
            requests.append(batcher.waiting[-1])
        steps_before = len(batcher.trace)
        batcher.step()
        where = f"after step {number}"
        for request in requests:
            seen.append(Seen(f"The text of request {request.number}", list(request.ids), where))
        added = [copied(row) for row in batcher.trace[steps_before:]]
        seen.append(Seen("What was added to the trace", added, f"in step {number}"))
        in_slots = [numbered(request) for request in batcher.running]
        seen.append(Seen("The list of requests in the slots", in_slots, where))
        waits = [numbered(request) for request in batcher.waiting]
        seen.append(Seen("The list of waiting requests", waits, where))
        outputs = {number: copied(output) for number, output in batcher.outputs.items()}
        seen.append(Seen("`outputs`", outputs, where))
    return [*seen, Seen("The whole trace", [copied(row) for row in batcher.trace], "at the end")]


class Admissions:
    """Replaces `admit`: gives the slots away as a right one did, (slot, number) after another."""

    def __init__(self, batcher: Any, admissions: list[tuple[int, int]]) -> None:
        self.batcher, self.due = batcher, list(admissions)

    def __call__(self) -> list[int]:
        waiting, running = self.batcher.waiting, self.batcher.running
        given = []
        for slot, number in list(self.due):
            request = next((r for r in waiting if r.number == number), None)
            if request is not None and running[slot] is None:
                waiting.remove(request)
                running[slot] = request
                self.due.remove((slot, number))
                given.append(slot)
        return given
