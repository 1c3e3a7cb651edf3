"""Lab 3: batching, static and continuous.

A decode step reads every weight of the model, whether for one request or for sixteen. So serve many
at once. Static batching pads some prompts to a rectangle and runs until the last of them has ended;
continuous batching gives a slot to the next request as soon as one has ended.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

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
    the next token comes at the same column in all of them.
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

    The pads stand before the text and have no position; they get 0, which the model accepts.
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
    no keys at all is 0/0.
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
        behind_the_prompt = max_length - attention_mask.shape[1]
        self.attention_mask = F.pad(attention_mask, (0, behind_the_prompt), value=True)

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

    Returns for each prompt, in their order, what lab 1's `generate` returns for it alone: a row
    ends after its own number of new tokens, or right after the EOS token (which is kept), or when
    it fills the model's context. A row that has ended is computed along until all have.
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
    """The share of slots, over all steps, that served a request. `trace` has at least one step."""
    if not trace:
        raise ValueError("There is nothing to count: the trace has no step.")
    ### BEGIN SOLUTION
    served = [request is not None for step in trace for request in step]
    return sum(served) / len(served)
    ### END SOLUTION


# -------------------------------------------------------------------------- continuous batching


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

    def select(self, slots: Sequence[int], q_len: int) -> Int[Tensor, "rows q_len"]:
        """Let the rows of the next forward be these slots, each with `q_len` new tokens.

        Keeps for `attend`: `slots` [rows]; `positions` [rows, q_len] of the new tokens, which
        follow those that a slot holds; `mask` [rows, 1, q_len, k_len] over as many keys as the
        longest row then has. Returns the positions, as position ids for the model.
        """
        device = self.lengths.device
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
        """Store the new tokens of each row behind those that its slot holds; attend to all of them.

        The lengths of the selected slots grow by q_len when the last layer has been served.
        """
        all_keys, all_values = self.keys[layer], self.values[layer]
        ### BEGIN SOLUTION
        all_keys[self.slots[:, None], :, self.positions] = keys.transpose(1, 2)
        all_values[self.slots[:, None], :, self.positions] = values.transpose(1, 2)
        if layer == len(self.keys) - 1:
            self.lengths[self.slots] += queries.shape[2]
        k_len = self.mask.shape[-1]
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
    """A request in service: its number, its tokens so far, and how many it may have in the end."""

    number: int
    ids: list[int]
    end: int


class ContinuousBatcher:
    """Iteration-level scheduling: requests join and leave the batch between any two steps.

    Every slot has memory for `max_length` tokens. Source: Yu et al., "Orca: a distributed serving
    system for transformer-based generative models", OSDI 2022, section 3.
    """

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
        """Let a request wait for a slot; return its number. They count from 0."""
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
        """Give every free slot to the request that has waited longest.

        Returns the slots that were given away. Where nobody waits, a free slot stays free.
        """
        ### BEGIN SOLUTION
        admitted = []
        for slot, request in enumerate(self.running):
            if request is None and self.waiting:
                self.running[slot] = self.waiting.popleft()
                admitted.append(slot)
        return admitted
        ### END SOLUTION

    def forward(self, slots: Sequence[int]) -> None:
        """One more token for the requests in these slots.

        Hands the model what is not in the cache yet: the whole prompt of a newcomer, the newest
        token of the others. All of them have equally many.
        """
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
        """Keep the output of a request that has ended, and free its slot."""
        request = self.running[slot]
        assert request is not None
        self.outputs[request.number] = request.ids
        self.running[slot] = None
        self.kv_cache.free(slot)

    @torch.no_grad()
    def step(self) -> None:
        """One iteration, in which every request that has a slot gets one new token.

        First `admit` the newcomers; each is prefilled by a forward of its own. Those who were
        running before share one forward. Append to the trace who was served in which slot. At last
        retire those who have ended; their slots can be given away in the next step.
        """
        ### BEGIN SOLUTION
        veterans = [slot for slot, request in enumerate(self.running) if request]
        for slot in self.admit():
            self.forward([slot])
        if veterans:
            self.forward(veterans)
        self.trace.append([request.number if request else None for request in self.running])
        for slot, request in enumerate(self.running):
            if request and self.has_ended(request):
                self.retire(slot)
        ### END SOLUTION

    def run(self) -> None:
        """Step until nobody waits and nobody runs."""
        while self.waiting or any(self.running):
            self.step()


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
