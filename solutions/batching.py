"""Lab 3: batching, static and continuous.

A decode step reads every weight of the model, whether for one request or for sixteen. So serve many
at once. Static batching pads some prompts to a rectangle and runs until the last of them has ended;
continuous batching gives a slot to the next request as soon as one has ended.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gpt import GPTConfig
from solutions.kv_cache import CachedLMHead, KVCache, causal_mask

Trace = list[list[int | None]]  # for every step, for every slot: the number of the request served


@dataclass(frozen=True)
class Served:
    """What became of a list of requests.

    outputs: prompt and new tokens of each request, in the order in which they were handed over.
    trace: for every step, which request each slot served; None where it served none.
    """

    outputs: list[list[int]]
    trace: Trace


def require_request(config: GPTConfig, prompt: Sequence[int], max_new_tokens: int) -> None:
    """What every batching loop refuses. Raises ValueError with a sentence."""
    if not 1 <= len(prompt) <= config.n_positions:
        raise ValueError(
            f"A prompt must have 1 to {config.n_positions} tokens, not {len(prompt)}. Start an "
            "empty text with the model's EOS token, and shorten one that the context can't hold."
        )
    if not all(0 <= token < config.vocab_size for token in prompt):
        raise ValueError(
            f"A token id is outside the model's range, 0 to {config.vocab_size - 1}. "
            "Is the tokenizer this model's own?"
        )
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be 1 or more, not {max_new_tokens}.")


def require_requests(
    config: GPTConfig, prompts: Sequence[Sequence[int]], max_new_tokens: Sequence[int], slots: int
) -> None:
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
    """Prompts of unequal lengths as one rectangle, and its attention mask: True where a token is.

    Every row ends with its prompt's last token and is filled up with `pad_id` on its left, so that
    the next token comes at the same column in all of them. The prompts are left as they were.
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
    """The position of every token in its own text: pads don't count.

    The pads stand before the text and have no position; they get 0, which the model accepts. The
    mask is left as it was.
    """
    ### BEGIN SOLUTION
    return (attention_mask.cumsum(dim=1) - 1).clamp(min=0)
    ### END SOLUTION


def padded_mask(
    attention_mask: Bool[Tensor, "batch k_len"], q_len: int
) -> Bool[Tensor, "batch 1 q_len k_len"]:
    """Which keys each of the last `q_len` columns may see: those at its own position or before it,
    and no pads.

    A pad may ask, but nobody reads its answer. It must see something all the same: a softmax over
    no keys at all is 0/0. The attention mask is left as it was.
    """
    ### BEGIN SOLUTION
    positions = padded_position_ids(attention_mask)
    return causal_mask(positions[:, -q_len:], positions) & attention_mask[:, None, None, :]
    ### END SOLUTION


class PaddedCache(KVCache):
    """The cache of lab 2 for prompts that were padded on the left: it knows where the pads are."""

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

    Returns for each prompt, in their order, what lab 1's `generate` returns for it alone, as a list
    of ints: a row ends after its own number of new tokens, or right after the EOS token (which is
    kept), or when it fills the model's context. A row that has ended is computed along until all
    have. The prompts are left as they were.
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
    """Static batching: `slots` requests at a time, in order; a batch ends with its longest."""
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
    """The share of slots, over all steps, that served a request. `trace` has at least one step.

    From 0 to 1; float32 is exact enough. The trace is left as it was.
    """
    if not trace:
        raise ValueError("There is nothing to count: the trace has no step.")
    ### BEGIN SOLUTION
    served = [request is not None for step in trace for request in step]
    return sum(served) / len(served)
    ### END SOLUTION


# -------------------------------------------------------------------------- continuous batching


class BatchCache(Protocol):
    """What a batcher needs of a cache that holds many requests, each under a name.

    The name is the slot in a SlotCache, the request's number in lab 4. Before every forward,
    `select` says whose rows it has and how many new tokens each brings, and returns their
    positions. Then every layer attends once, in order. At its end, `free` forgets a request.
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
    """Refuse an `attend` that `select` hasn't prepared; return what is prepared after this one.

    Raises ValueError.
    """
    rows, q_len = queries.shape[0], queries.shape[2]
    if selected != (rows, q_len, layer):
        raise ValueError(
            f"This attend has (rows, q_len, layer) = {(rows, q_len, layer)}; prepared is "
            f"{selected or 'nothing yet'}. Call select before every forward, for its rows; then "
            "attend once a layer, in order."
        )
    return rows, q_len, layer + 1


class SlotCache:
    """Keys and values of several requests, each in a slot of its own and with its own length.

    `keys` and `values` are [layers, slots, heads, max_length, head_dim]; the first `lengths[i]`
    tokens of slot i are filled. `select` says which slots the next forward serves.
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
        """Let the rows of the next forward be these slots, each with `q_len` new tokens.

        Keeps for `attend`: `slots` [rows]; `positions` [rows, q_len] of the new tokens, which
        follow those that a slot holds; `mask` [rows, 1, q_len, k_len] over as many keys as the
        longest row then has. Returns the positions, as position ids for the model. The lengths stay
        as they are.
        """
        device = self.lengths.device
        self.selected = len(slots), q_len, 0
        self.slots = torch.tensor(slots, device=device)
        # Where all slots are served, a slice reads them in place; an index would copy them.
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
        """Store the new tokens of each row after those that its slot holds; attend to all of them.

        Stores in place: `keys` and `values` of the cache stay the same memory. The lengths of the
        selected slots grow by q_len when the last layer has been served.
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
        # the keys that the rows read: [rows, heads, k_len, head_dim]; so the values
        return F.scaled_dot_product_attention(
            queries,
            all_keys[self.rows, :, :k_len],
            all_values[self.rows, :, :k_len],
            attn_mask=self.mask,
        )
        ### END SOLUTION

    def free(self, slot: int) -> None:
        """Empty a slot; what lies beyond a slot's length is never read."""
        self.lengths[slot] = 0


@dataclass
class Request:
    """A request, which knows how far it has come.

    ids: its tokens so far, the prompt first. end: how many they may become. num_computed_tokens:
    how many of them have their keys and values in the cache.
    """

    number: int
    ids: list[int]
    end: int
    eos_token_id: int | None = None
    num_computed_tokens: int = 0
    has_ended: bool = False

    def append(self, token: int) -> None:
        """Add a new token; it ends the request if it is EOS, or the last that it may have."""
        self.ids.append(token)
        self.has_ended = token == self.eos_token_id or len(self.ids) >= self.end


class Batcher(ABC):
    """What every batcher has: a model, a cache, and requests that wait, run and end.

    waiting: the one who has waited longest stands on the left. running: the request in each slot,
    None where it is free. outputs: prompt and new tokens of those who have ended, by number.
    trace: for each step, whom each slot served. submitted: how many have come.
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
        """Let a request wait; return its number. They count from 0.

        Raises ValueError for one that can't be served. `prompt` is left as it was.
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
        """Refuse, with a ValueError, a text of `end` tokens that this cache can never hold."""

    def request_in(self, slot: int) -> Request:
        """Who runs in this slot. Raises ValueError where nobody does."""
        request = self.running[slot]
        if request is None:
            raise ValueError(f"Slot {slot} is free: nobody runs there.")
        return request

    def name_of(self, slot: int) -> int:
        """What the cache calls the request in this slot: by the slot itself, unless overridden."""
        return slot

    def forward(self, slots: Sequence[int]) -> None:
        """One more token for the requests in these slots, from one forward of the model.

        Hands it what isn't computed yet: all tokens of a newcomer, the newest one of the others.
        The rows are a rectangle, so these must be equally many; else it is a ValueError.
        """
        requests = [self.request_in(slot) for slot in slots]
        new_ids = [request.ids[request.num_computed_tokens :] for request in requests]
        q_lens = [len(ids) for ids in new_ids]
        if len(set(q_lens)) != 1:
            raise ValueError(
                "A forward takes one slot or more, whose requests have equally many tokens to "
                f"compute. Slots {list(slots)} have {q_lens}."
            )
        position_ids = self.kv_cache.select([self.name_of(slot) for slot in slots], q_lens[0])
        input_ids = torch.tensor(new_ids, device=position_ids.device)
        logits = self.model(input_ids, position_ids, self.kv_cache)
        for request, token in zip(requests, logits[:, -1].argmax(dim=-1).tolist(), strict=True):
            request.num_computed_tokens = len(request.ids)
            request.append(token)

    @abstractmethod
    def step(self) -> None:
        """One iteration: schedule, forward, postprocess."""

    def run(self) -> None:
        """Step until nobody waits and nobody runs."""
        while self.waiting or any(self.running):
            self.step()


class ContinuousBatcher(Batcher):
    """Iteration-level scheduling: requests join and leave the batch between any two steps.

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
                "and for one more that is not stored. Ask for fewer tokens, or reserve longer "
                "slots."
            )

    def admit(self) -> list[int]:
        """Give every free slot to the request that has waited longest, whatever it asks for.

        Returns the list of slots that were given away. Whoever runs stays in its slot. Where nobody
        waits, a free slot stays free.
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
        """One iteration, in which every request that has a slot gets one new token.

        First `admit` the newcomers; each is prefilled by a forward of its own. Those who were
        running before share one forward. Append to the trace who was served in which slot: a new
        list of numbers, None for an idle slot. At last retire those who have ended; their slots can
        be given away in the next step.
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
    """Continuous batching of requests that are all there from the start."""
    require_requests(model.config, prompts, max_new_tokens, slots)
    both = list(zip(prompts, max_new_tokens, strict=True))
    longest = max(len(prompt) + limit for prompt, limit in both)
    batcher = ContinuousBatcher(model, slots, min(longest, model.config.n_positions), eos_token_id)
    numbers = [batcher.submit(prompt, limit) for prompt, limit in both]
    batcher.run()
    return Served([batcher.outputs[number] for number in numbers], batcher.trace)
