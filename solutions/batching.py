"""Lab 3: batching, static and continuous.

A decode step reads every weight of the model, whether for one request or for sixteen. So serve many
requests at once. Static batching pads the prompts of a batch to a rectangle and runs until the last
request has ended; continuous batching gives a slot to the next request as soon as it is free.
"""

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gpt import GPTConfig
from solutions.kv_cache import CachedLMHead, KVCache, causal_mask

Trace = list[list[int | None]]  # for every step and slot: the number of the request served


@dataclass(frozen=True)
class Served:
    """The result of serving a list of requests.

    outputs: prompt and new tokens of each request, in the order of the list.
    trace: for every step, which request each slot served; None where it served none.
    """

    outputs: list[list[int]]
    trace: Trace


def require_request(config: GPTConfig, prompt: Sequence[int], max_new_tokens: int) -> None:
    """Raise ValueError for a request that no batching loop can serve."""
    if not 1 <= len(prompt) <= config.n_positions:
        raise ValueError(
            f"A prompt must have 1 to {config.n_positions} tokens, not {len(prompt)}. Start an "
            "empty text with the model's EOS token, and shorten a text that exceeds the context."
        )
    if not all(0 <= token < config.vocab_size for token in prompt):
        raise ValueError(
            f"A token id is outside the model's range, 0 to {config.vocab_size - 1}. "
            "Use the tokenizer that belongs to this model."
        )
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be 1 or more, not {max_new_tokens}.")


def require_requests(
    config: GPTConfig, prompts: Sequence[Sequence[int]], max_new_tokens: Sequence[int], slots: int
) -> None:
    """Raise ValueError for a list of requests that no batching loop can serve."""
    if not prompts:
        raise ValueError("There is nothing to generate: the list of prompts is empty.")
    if len(prompts) != len(max_new_tokens):
        raise ValueError(
            f"Give max_new_tokens for each prompt: there are {len(prompts)} prompts and "
            f"{len(max_new_tokens)} numbers."
        )
    if slots < 1:
        raise ValueError(f"A batch needs at least one slot, not {slots}.")
    for prompt, limit in zip(prompts, max_new_tokens, strict=True):
        require_request(config, prompt, limit)


# ------------------------------------------------------------------------------ static batching


def pad_left(
    prompts: Sequence[Sequence[int]], pad_id: int = 0
) -> tuple[Int[Tensor, "batch seq"], Bool[Tensor, "batch seq"]]:
    """Pad prompts of different lengths to one rectangle; return it with its attention mask.

    The mask is True where there is a token and False where there is a pad. Every row ends with the
    last token of its prompt and is filled up with `pad_id` on its left, so that the next token goes
    into the same column in all rows. Don't change the prompts.
    """
    ### BEGIN SOLUTION
    longest = max(len(prompt) for prompt in prompts)
    input_ids = torch.full((len(prompts), longest), pad_id)
    attention_mask = torch.zeros(input_ids.shape, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        input_ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        attention_mask[row, longest - len(prompt) :] = True
    return input_ids, attention_mask
    ### END SOLUTION


def padded_position_ids(attention_mask: Bool[Tensor, "batch seq"]) -> Int[Tensor, "batch seq"]:
    """Return the position of every token in its own text: pads don't count.

    The pads come before the text and have no position: give them one that the model accepts, such
    as 0. Don't change the mask.
    """
    ### BEGIN SOLUTION
    return (attention_mask.cumsum(dim=1) - 1).clamp(min=0)
    ### END SOLUTION


def padded_mask(
    attention_mask: Bool[Tensor, "batch k_len"], q_len: int
) -> Bool[Tensor, "batch 1 q_len k_len"]:
    """Return which keys each of the last `q_len` columns may see: those at its own position or
    before it, and no pads.

    Pads are queries too. Nothing reads their outputs, so it doesn't matter which keys they see, but
    each must see one: a softmax over no keys is 0/0. Don't change the attention mask.
    """
    ### BEGIN SOLUTION
    positions = padded_position_ids(attention_mask)
    return causal_mask(positions[:, -q_len:], positions) & attention_mask[:, None, None, :]
    ### END SOLUTION


class PaddedCache(KVCache):
    """The cache of lab 2 for prompts padded on the left: it knows which columns are pads."""

    def __init__(
        self,
        config: GPTConfig,
        attention_mask: Bool[Tensor, "batch seq"],
        max_length: int,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(config, len(attention_mask), max_length, device, dtype)
        after_the_prompt = max_length - attention_mask.shape[1]
        self.attention_mask = F.pad(attention_mask, (0, after_the_prompt), value=True)

    def mask(self, start: int, end: int) -> Bool[Tensor, "batch 1 q_len k_len"]:
        return padded_mask(self.attention_mask[:, :end], end - start)


@torch.no_grad()
def generate_padded(
    model: CachedLMHead,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: Sequence[int],
    eos_token_id: int | None = None,
) -> list[list[int]]:
    """Continue several prompts in one batch, greedily, until the last of them has ended.

    Return for each prompt, in their order, what lab 1's `generate` returns for it alone, as a list
    of ints: a row ends after its own number of new tokens, or right after the EOS token (which is
    kept), or when it fills the model's context. A row that has ended is still computed until all
    rows have ended. Don't change the prompts.
    """
    config, weight = model.config, model.transformer.wte.weight
    require_requests(config, prompts, max_new_tokens, slots=len(prompts) or 1)
    input_ids, attention_mask = (padded.to(weight.device) for padded in pad_left(prompts))
    columns = input_ids.shape[1] + max(max_new_tokens)
    kv_cache = PaddedCache(config, attention_mask, columns, weight.device, weight.dtype)
    position_ids = padded_position_ids(attention_mask)
    ### BEGIN SOLUTION
    outputs = [list(prompt) for prompt in prompts]
    ends = [
        min(len(prompt) + limit, config.n_positions)
        for prompt, limit in zip(prompts, max_new_tokens, strict=True)
    ]
    ended = [len(output) == end for output, end in zip(outputs, ends, strict=True)]
    while not all(ended):
        logits = model(input_ids, position_ids, kv_cache)
        next_ids = logits[:, -1].argmax(dim=-1)
        for row, token in enumerate(next_ids.tolist()):
            if not ended[row]:
                outputs[row].append(token)
                ended[row] = token == eos_token_id or len(outputs[row]) == ends[row]
        input_ids = next_ids[:, None]
        position_ids = (position_ids[:, -1:] + 1).clamp(max=config.n_positions - 1)
    return outputs
    ### END SOLUTION


def generate_static(
    model: CachedLMHead,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: Sequence[int],
    slots: int,
    eos_token_id: int | None = None,
) -> Served:
    """Serve `slots` requests at a time, in order; a batch ends when its longest request ends."""
    require_requests(model.config, prompts, max_new_tokens, slots)
    outputs: list[list[int]] = []
    trace: Trace = []
    for first in range(0, len(prompts), slots):
        numbers = range(first, min(first + slots, len(prompts)))
        batch = [prompts[number] for number in numbers]
        limits = [max_new_tokens[number] for number in numbers]
        outputs += generate_padded(model, batch, limits, eos_token_id)
        steps = [len(outputs[number]) - len(prompts[number]) for number in numbers]
        for step in range(max(steps)):
            row: list[int | None] = [None] * slots
            for slot, number in enumerate(numbers):
                row[slot] = number if step < steps[slot] else None
            trace.append(row)
    return Served(outputs, trace)


def utilisation(trace: Trace) -> float:
    """Return the share of slots, over all steps, that served a request: from 0 to 1.

    Float32 is exact enough. Raises ValueError for a trace without a step. Don't change the trace.
    """
    if not trace:
        raise ValueError("There is nothing to count: the trace has no step.")
    ### BEGIN SOLUTION
    served = [request is not None for step in trace for request in step]
    return sum(served) / len(served)
    ### END SOLUTION


def dynamic_batches(
    arrivals: Sequence[float], limit: int, delay: float, seconds: Callable[[int], float]
) -> list[tuple[float, int, int]]:
    """Return when each batch starts, its first request, and its number of requests.

    `arrivals` are the times at which requests 0, 1, 2, … arrive, in this order; the first is 0 or
    later. A batch of n requests keeps the server busy for `seconds(n)`. A free server starts a
    batch as soon as `limit` requests wait, or when the oldest one has waited for `delay`. It takes
    the oldest requests, at most `limit`, among them those that arrive at the moment of the start.

    Source: NVIDIA, Triton Inference Server, "Batchers", dynamic batcher (2026).
    """
    if limit < 1 or delay < 0:
        raise ValueError(
            "A batch has at least one request, and a delay is not negative; "
            f"limit is {limit} and delay {delay}."
        )
    ### BEGIN SOLUTION
    batches, first, free = [], 0, 0.0
    while first < len(arrivals):
        full = arrivals[first + limit - 1] if first + limit <= len(arrivals) else math.inf
        start = max(free, min(full, arrivals[first] + delay))
        count = sum(time <= start for time in arrivals[first : first + limit])
        batches.append((start, first, count))
        first, free = first + count, start + seconds(count)
    return batches
    ### END SOLUTION


# -------------------------------------------------------------------------- continuous batching


class BatchCache(Protocol):
    """The interface that a batcher needs of a cache for many requests, each under a name.

    The name is the slot in a SlotCache, and the request's number in lab 4. Before every forward
    pass, `select` says which requests are its rows and how many new tokens each row has, and
    returns their positions. Then every layer attends once, in order. `free` forgets a request when
    it has ended.
    """

    def select(self, names: Sequence[int], q_len: int, /) -> Int[Tensor, "rows q_len"]: ...

    def attend(
        self,
        layer: int,
        queries: Float[Tensor, "rows heads q_len head_dim"],
        keys: Float[Tensor, "rows heads q_len head_dim"],
        values: Float[Tensor, "rows heads q_len head_dim"],
    ) -> Float[Tensor, "rows heads q_len head_dim"]: ...

    def free(self, name: int, /) -> None: ...


Selected = tuple[int, int, int]  # rows, q_len, and the layer that attends next


def require_selected(
    selected: Selected | None, layer: int, queries: Float[Tensor, "rows heads q_len head_dim"]
) -> Selected:
    """Check that `select` has prepared this `attend`; return what is prepared for the next layer.

    Raises ValueError if it hasn't.
    """
    rows, q_len = queries.shape[0], queries.shape[2]
    if selected != (rows, q_len, layer):
        raise ValueError(
            f"This attend has (rows, q_len, layer) = {(rows, q_len, layer)}; prepared is "
            f"{selected or 'nothing yet'}. Call select before every forward pass, for its rows; "
            "then attend once for each layer, in order."
        )
    return rows, q_len, layer + 1


class SlotCache:
    """Keys and values of several requests, each in its own slot and with its own length.

    `keys` and `values` are [layers, slots, heads, max_length, head_dim]; the first `lengths[i]`
    positions of slot i are filled. `select` says which slots the next forward pass serves.
    """

    def __init__(
        self,
        config: GPTConfig,
        slots: int,
        max_length: int,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if slots < 1 or max_length < 1:
            raise ValueError(
                "A cache needs at least one slot and room for one token in it; "
                f"slots is {slots} and max_length {max_length}."
            )
        shape = (config.n_layer, slots, config.n_head, max_length, config.head_dim)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)
        self.lengths = torch.zeros(slots, dtype=torch.int64, device=device)
        self.max_length = max_length
        self.selected: Selected | None = None

    def select(self, slots: Sequence[int], q_len: int) -> Int[Tensor, "rows q_len"]:
        """Prepare the next forward pass: its rows are these slots, each with `q_len` new tokens.

        Set for `attend`: `slots` [rows]; `positions` [rows, q_len] of the new tokens, which follow
        the tokens that a slot holds; `mask` [rows, 1, q_len, k_len], where k_len is the number of
        keys that the longest row then has. Return the positions, as position ids for the model.
        Don't change the lengths; the positions stay as they are when the lengths grow later.
        """
        device = self.lengths.device
        self.selected = len(slots), q_len, 0
        self.slots = torch.tensor(slots, device=device)
        # If all slots are served, a slice reads them in place; an index would copy them.
        self.rows = slice(None) if list(slots) == list(range(len(self.lengths))) else self.slots
        ### BEGIN SOLUTION
        self.positions = self.lengths[self.slots, None] + torch.arange(q_len, device=device)
        k_len = int(self.positions.max()) + 1
        key_positions = torch.arange(k_len, device=device).unsqueeze(0)
        self.mask = causal_mask(self.positions, key_positions)
        return self.positions
        ### END SOLUTION

    def attend(
        self,
        layer: int,
        queries: Float[Tensor, "rows heads q_len head_dim"],
        keys: Float[Tensor, "rows heads q_len head_dim"],
        values: Float[Tensor, "rows heads q_len head_dim"],
    ) -> Float[Tensor, "rows heads q_len head_dim"]:
        """Store each row's new keys and values in its slot; attend to all tokens of the slot.

        Write in place: `keys` and `values` of the cache stay the same memory. After the last layer,
        the lengths of the selected slots grow by q_len.
        """
        self.selected = require_selected(self.selected, layer, queries)
        # a view of one layer, [slots, heads, max_length, head_dim] each
        all_keys, all_values = self.keys[layer], self.values[layer]
        ### BEGIN SOLUTION
        # slots [rows, 1] and positions [rows, q_len] index [rows, q_len, heads, head_dim]
        all_keys[self.slots[:, None], :, self.positions] = keys.transpose(1, 2)
        all_values[self.slots[:, None], :, self.positions] = values.transpose(1, 2)
        if layer == len(self.keys) - 1:
            self.lengths[self.slots] += queries.shape[2]
        k_len = self.mask.shape[-1]
        # the rows read keys and values of shape [rows, heads, k_len, head_dim]
        return F.scaled_dot_product_attention(
            queries,
            all_keys[self.rows, :, :k_len],
            all_values[self.rows, :, :k_len],
            attn_mask=self.mask,
        )
        ### END SOLUTION

    def free(self, slot: int) -> None:
        """Empty a slot. Keys and values beyond a slot's length are never read."""
        self.lengths[slot] = 0


@dataclass
class Request:
    """A request and its progress.

    ids: its tokens so far, the prompt first. end: the number of tokens at which it ends.
    num_computed_tokens: how many of its tokens have their keys and values in the cache.
    """

    number: int
    ids: list[int]
    end: int
    eos_token_id: int | None = None
    num_computed_tokens: int = 0
    has_ended: bool = False

    def append(self, token: int) -> None:
        """Add a new token; the request ends if it is EOS, or the last one that it may have."""
        self.ids.append(token)
        self.has_ended = token == self.eos_token_id or len(self.ids) >= self.end


class Batcher(ABC):
    """The parts that all batchers share: a model, a cache, and requests that wait, run and end.

    waiting: a queue; the request that has waited longest is on the left. running: the request in
    each slot, None where the slot is free. outputs: prompt and new tokens of requests that have
    ended, by number. trace: for each step, the request that each slot served. submitted: the number
    of requests so far.
    """

    def __init__(
        self,
        model: CachedLMHead,
        kv_cache: BatchCache,
        running: list[Request | None],
        eos_token_id: int | None = None,
    ) -> None:
        self.model, self.kv_cache, self.eos_token_id = model, kv_cache, eos_token_id
        self.waiting: deque[Request] = deque()
        self.running = running
        self.outputs: dict[int, list[int]] = {}
        self.trace: Trace = []
        self.submitted = 0

    def submit(self, prompt: Sequence[int], max_new_tokens: int) -> int:
        """Add a request to the waiting queue; return its number. Numbers start at 0.

        Raises ValueError for a request that can't be served. Doesn't change `prompt`.
        """
        config = self.model.config
        require_request(config, prompt, max_new_tokens)
        end = min(len(prompt) + max_new_tokens, config.n_positions)
        self.require_room(end)
        request = Request(self.submitted, list(prompt), end, self.eos_token_id)
        self.submitted += 1
        if len(prompt) == end:
            self.outputs[request.number] = request.ids
        else:
            self.waiting.append(request)
        return request.number

    @abstractmethod
    def require_room(self, end: int) -> None:
        """Raise ValueError for a text of `end` tokens if this cache can never hold it."""

    def request_in(self, slot: int) -> Request:
        """Return the request that runs in this slot. Raises ValueError if the slot is free."""
        request = self.running[slot]
        if request is None:
            raise ValueError(f"Slot {slot} is free: no request runs there.")
        return request

    def name_of(self, slot: int) -> int:
        """Return the cache's name for the request in this slot: the slot itself by default."""
        return slot

    def forward(self, slots: Sequence[int]) -> None:
        """Give the requests in these slots one new token each, with one forward pass.

        The forward pass receives the tokens that aren't computed yet: all tokens of a new request,
        the newest token of the others. The rows form a rectangle, so all requests must have the
        same number of tokens to compute. Raises ValueError if they don't.
        """
        requests = [self.request_in(slot) for slot in slots]
        new_ids = [request.ids[request.num_computed_tokens :] for request in requests]
        q_lens = [len(ids) for ids in new_ids]
        if len(set(q_lens)) != 1:
            raise ValueError(
                "A forward pass takes one or more slots whose requests have the same number of "
                f"tokens to compute. Slots {list(slots)} have {q_lens}."
            )
        position_ids = self.kv_cache.select([self.name_of(slot) for slot in slots], q_lens[0])
        input_ids = torch.tensor(new_ids, device=position_ids.device)
        logits = self.model(input_ids, position_ids, self.kv_cache)
        for request, token in zip(requests, logits[:, -1].argmax(dim=-1).tolist(), strict=True):
            request.num_computed_tokens = len(request.ids)
            request.append(token)

    @abstractmethod
    def step(self) -> None:
        """Run one iteration: schedule, forward pass, postprocess."""

    def run(self) -> None:
        """Run steps until no request waits and none runs."""
        while self.waiting or any(self.running):
            self.step()


class ContinuousBatcher(Batcher):
    """Iteration-level scheduling: requests may join and leave the batch between any two steps.

    Every slot has memory for `max_length` tokens. Source: Yu et al., "Orca: a distributed serving
    system for transformer-based generative models", OSDI 2022, section 3.
    """

    def __init__(
        self, model: CachedLMHead, slots: int, max_length: int, eos_token_id: int | None = None
    ) -> None:
        weight = model.transformer.wte.weight
        kv_cache = SlotCache(model.config, slots, max_length, weight.device, weight.dtype)
        super().__init__(model, kv_cache, [None] * slots, eos_token_id)
        self.max_length = max_length

    def require_room(self, end: int) -> None:
        if end - 1 > self.max_length:  # the last token is never stored
            raise ValueError(
                f"This request may grow to {end} tokens; a slot has room for {self.max_length}, "
                "and the last token needs no room. Ask for fewer tokens, or reserve longer slots."
            )

    def admit(self) -> list[int]:
        """Give every free slot to the request that has waited longest, whatever its size.

        Return the list of slots that were given away. Running requests stay in their slots. A free
        slot stays free if no request waits.
        """
        ### BEGIN SOLUTION
        admitted = []
        for slot, request in enumerate(self.running):
            if request is None and self.waiting:
                self.running[slot] = self.waiting.popleft()
                admitted.append(slot)
        return admitted
        ### END SOLUTION

    def retire(self, slot: int) -> None:
        """Keep the output of a request that has ended, and free its slot."""
        request = self.request_in(slot)
        self.outputs[request.number] = request.ids
        self.kv_cache.free(self.name_of(slot))
        self.running[slot] = None

    @torch.no_grad()
    def step(self) -> None:
        """Run one iteration, in which every request that has a slot gets one new token.

        First `admit` new requests; each is prefilled in its own forward pass. The requests that
        were running before share one forward pass. Append to the trace, in every step, which
        request each slot served: a new list of numbers, None for an idle slot. Last, retire the
        requests that have ended; their slots can be given away in the next step.
        """
        ### BEGIN SOLUTION
        veterans = [slot for slot, request in enumerate(self.running) if request]
        for slot in self.admit():
            self.forward([slot])
        if veterans:
            self.forward(veterans)
        self.trace.append([request.number if request else None for request in self.running])
        for slot, request in enumerate(self.running):
            if request and request.has_ended:
                self.retire(slot)
        ### END SOLUTION


def generate_continuous(
    model: CachedLMHead,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: Sequence[int],
    slots: int,
    eos_token_id: int | None = None,
) -> Served:
    """Serve requests that are all there from the start with continuous batching."""
    require_requests(model.config, prompts, max_new_tokens, slots)
    both = list(zip(prompts, max_new_tokens, strict=True))
    longest = max(len(prompt) + limit for prompt, limit in both)
    batcher = ContinuousBatcher(model, slots, min(longest, model.config.n_positions), eos_token_id)
    numbers = [batcher.submit(prompt, limit) for prompt, limit in both]
    batcher.run()
    return Served([batcher.outputs[number] for number in numbers], batcher.trace)
