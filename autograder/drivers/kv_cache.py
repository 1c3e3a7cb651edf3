"""Drivers of lab 2. Each returns what it saw, {what it is: value}, in the order it happened.

A layer is driven through several prompts one after another, each in chunks: the first chunk is the
prefill, and no chunk is ever handed over again, so only a cache can bring back what came before.
Around the layer being judged stand others that compute something simpler, so that an error in one
layer costs one exercise.
"""

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gpt import GPTConfig

Config = dict[str, Any]  # the fields of a GPTConfig
Weights = dict[str, Tensor]
Seen = dict[str, Any]


def causal_mask(
    attempt: Callable[..., Any],
    query_positions: Int[Tensor, "batch q_len"],
    key_positions: Int[Tensor, "batch k_len"],
) -> Seen:
    return {"The mask": attempt(query_positions, key_positions)}


# ------------------------------------------------------------------------ the threaded forwards


@torch.no_grad()
def threaded_attention(
    attempt: type[nn.Module],
    config: Config,
    idx: int,
    weights: Weights,
    prompts: list[list[Float[Tensor, "batch q_len n_embd"]]],
) -> Seen:
    attention = loaded(attempt(GPTConfig(**config), idx), weights)
    return through_chunks(attention, prompts)


@torch.no_grad()
def threaded_block(
    attempt: type[nn.Module],
    config: Config,
    idx: int,
    weights: Weights,
    prompts: list[list[Float[Tensor, "batch q_len n_embd"]]],
) -> Seen:
    block = attempt(GPTConfig(**config), idx)
    block.attn = StandInAttention()
    return through_chunks(loaded(block, weights), prompts)


@torch.no_grad()
def threaded_model(
    attempt: type[nn.Module],
    config: Config,
    weights: Weights,
    prompts: list[list[tuple[Int[Tensor, "batch q_len"], Int[Tensor, "batch q_len"]]]],
    start: tuple[None, ...],
) -> Seen:
    """`start` is what stands for the cache at the start of a prompt: None, or nothing at all."""
    model = attempt(GPTConfig(**config))
    model.h = nn.ModuleList(StandInBlock(idx) for idx in range(config["n_layer"]))
    loaded(model, weights)
    seen: Seen = {}
    for prompt, chunks in enumerate(prompts, 1):
        handed: tuple[Any, ...] = start
        for inputs, position_ids in chunks:
            where = place(prompt, position_ids)
            before = [list(kv_cache) for kv_cache in handed if kv_cache is not None]
            hidden, kv_cache = two_things(model(inputs, position_ids, *handed), OUTPUT_AND_CACHE)
            if not isinstance(kv_cache, (list, tuple)):
                raise TypeError(f"The cache of a model is a list, not {type(kv_cache).__name__}.")
            seen[f"`hidden` for {where}"] = hidden
            seen[f"The number of layer caches after {where}"] = len(kv_cache)
            for layer, layer_cache in enumerate(kv_cache):
                total, served = (
                    layer_cache if isinstance(layer_cache, tuple) else (layer_cache,) * 2
                )
                seen[f"The cache of layer {layer} after {where}"] = total
                seen[f"[layer, tokens] of the cache of layer {layer} after {where}"] = served
            if before:
                seen[f"The list handed in with {where}"] = unchanged(before[0], handed[0])
            handed = (kv_cache,)
    return seen


@torch.no_grad()
def threaded_lm_head(
    attempt: type[nn.Module],
    config: Config,
    weights: Weights,
    prompts: list[list[tuple[Int[Tensor, "batch q_len"], Int[Tensor, "batch q_len"]]]],
) -> Seen:
    head = attempt(GPTConfig(**config))
    head.transformer = StandInModel(GPTConfig(**config))
    loaded(head, weights)
    seen: Seen = {}
    for prompt, chunks in enumerate(prompts, 1):
        kv_cache = None
        for inputs, position_ids in chunks:
            where = place(prompt, position_ids)
            logits, kv_cache = two_things(head(inputs, position_ids, kv_cache), OUTPUT_AND_CACHE)
            seen[f"`logits` for {where}"] = logits
            seen[f"The cache after {where}"] = kv_cache[0][0]
    return seen


def through_chunks(
    layer: nn.Module, prompts: list[list[Float[Tensor, "batch q_len n_embd"]]]
) -> Seen:
    seen: Seen = {}
    for prompt, chunks in enumerate(prompts, 1):
        kv_cache, length = None, 0
        for hidden in chunks:
            where = place(prompt, torch.arange(length, length + hidden.shape[1]).unsqueeze(0))
            before: Any = copy.deepcopy(kv_cache)
            output, longer = two_things(layer(hidden, kv_cache), OUTPUT_AND_CACHE)
            keys, values = two_things(longer, "The cache of a layer is a pair (keys, values)")
            seen[f"The output for {where}"] = output
            seen[f"`keys` returned with {where}"] = keys
            seen[f"`values` returned with {where}"] = values
            if before is not None:
                seen[f"The pair handed in with {where}"] = unchanged(before, kv_cache)
            kv_cache, length = longer, length + hidden.shape[1]
    return seen


def loaded(module: nn.Module, weights: Weights) -> nn.Module:
    module.double().load_state_dict(weights)
    return module.eval()


def place(prompt: int, position_ids: Int[Tensor, "batch q_len"]) -> str:
    first, last = position_ids[0, 0].item(), position_ids[0, -1].item()
    tokens = f"token {first}" if first == last else f"tokens {first} to {last}"
    return f"{tokens} of prompt {prompt}"


OUTPUT_AND_CACHE = "A forward returns two things, its output and the cache"


def two_things(found: Any, rule: str) -> tuple[Any, Any]:
    if isinstance(found, (tuple, list)) and len(found) == 2:
        return found[0], found[1]
    several = isinstance(found, (tuple, list))
    what = f"{len(found)} things" if several else f"one {type(found).__name__}"
    raise TypeError(f"{rule}; this is {what}.")


def unchanged(before: Any, after: Any) -> str:
    """What became of a cache that was handed in: a pair of tensors, or a list of layer caches."""
    same = len(before) == len(after) and all(
        torch.equal(b, a) if isinstance(b, Tensor) else b is a
        for b, a in zip(before, after, strict=True)
    )
    return "stayed as it was" if same else "has changed"


class StandInAttention(nn.Module):
    """Adds up all tokens so far. Its cache is the sum, and how many they were."""

    def forward(self, hidden: Tensor, kv_cache: tuple[Tensor, Tensor] | None = None) -> Any:
        total, count = (torch.zeros_like(hidden[:, :1]), torch.tensor(0))
        if kv_cache is not None:
            total, count = kv_cache
        output = total + hidden.cumsum(dim=1)
        return output, (output[:, -1:], count + hidden.shape[1])


class StandInBlock(nn.Module):
    """Another function for every layer. Its cache is a sum, and [its layer, how many tokens]."""

    def __init__(self, idx: int) -> None:
        super().__init__()
        self.idx = idx

    def forward(self, hidden: Tensor, kv_cache: tuple[Tensor, Tensor] | None = None) -> Any:
        total, count = torch.zeros_like(hidden[:, :1]), torch.tensor(0)
        if kv_cache is not None:
            total, count = kv_cache[0], kv_cache[1][1]
        output = torch.sin(hidden + self.idx) + total + hidden.cumsum(dim=1)
        total = total + hidden.sum(dim=1, keepdim=True)
        return output, (total, torch.stack([torch.tensor(self.idx), count + hidden.shape[1]]))


class StandInModel(nn.Module):
    """Embeds tokens and positions, and adds up all tokens so far; the sum is its cache."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)

    def forward(
        self, inputs: Tensor, position_ids: Tensor, kv_cache: list[Any] | None = None
    ) -> Any:
        hidden = self.wte(inputs) + torch.sin(position_ids.double()).unsqueeze(-1)
        total = torch.zeros_like(hidden[:, :1]) if kv_cache is None else kv_cache[0][0]
        output = total + hidden.cumsum(dim=1)
        return output, [(output[:, -1:], output[:, -1:])]


# -------------------------------------------------------------------------------- the loop, bytes


def generate_threaded(
    attempt: Callable[..., Any], model: Any, requests: list[dict[str, Any]]
) -> Seen:
    """Serve the requests one after the other with one model."""
    returned = [
        attempt(model, r["input_ids"], r["max_new_tokens"], eos_token_id=r["eos_token_id"])
        for r in requests
    ]
    seen: Seen = {}
    for number, (ids, request) in enumerate(zip(returned, requests, strict=True), 1):
        which = f" of prompt {number}" if len(requests) > 1 else ""
        seen[f"What it returned{which}"] = ids
        seen[f"`input_ids`{which}, afterwards,"] = request["input_ids"]
    return seen


def kv_bytes_per_token(
    attempt: Callable[..., Any], config: Config, bytes_per_number: list[int]
) -> Seen:
    return {"The number of bytes": attempt(GPTConfig(**config), *bytes_per_number)}


# -------------------------------------------------------------------------- the cache as an object


@torch.no_grad()
def attend(
    attempt: type,
    config: Config,
    batch: int,
    max_length: int,
    steps: list[tuple[str, Any]],
) -> Seen:
    """Steps: ("forward", queries, keys, values, of all layers), ("truncate", n), ("reorder", i)."""
    cache = attempt(GPTConfig(**config), batch, max_length, dtype=torch.float64)
    seen: Seen = {}
    for number, (what, *given) in enumerate(steps, 1):
        if what == "truncate":
            roll_back(cache, *given)
        elif what == "reorder":
            cache.reorder(*given)
        else:
            for layer, (queries, keys, values) in enumerate(zip(*given, strict=True)):
                where = f"step {number}, layer {layer}"
                output, how = tried(cache.attend, layer, queries, keys, values)
                seen[f"What was asked in {where},"] = how
                seen[f"The output of {where},"] = output
                seen[f"`length` after {where},"] = cache.length
    seen["The memory reserved, in bytes,"] = cache.bytes_reserved
    return seen


def roll_back(cache: Any, n: int) -> None:
    """By the learner's own truncate, which may keep more books than `length`; then by hand.

    Whatever is wrong with it or missing is its own exercise's affair.
    """
    keys, values = cache.keys.clone(), cache.values.clone()
    with contextlib.suppress(Exception):
        cache.truncate(n)
    cache.keys, cache.values, cache.length = keys, values, n


@torch.no_grad()
def truncate(
    attempt: type, config: Config, batch: int, max_length: int, steps: list[tuple[str, Any]]
) -> Seen:
    """Steps: ("append", keys and values of every layer), written by hand, and ("truncate", n)."""
    cache = attempt(GPTConfig(**config), batch, max_length, dtype=torch.float64)
    seen: Seen = {}
    for number, (what, *given) in enumerate(steps, 1):
        if what == "append":
            keys, values = given
            start, end = cache.length, cache.length + keys.shape[3]
            cache.keys[:, :, :, start:end], cache.values[:, :, :, start:end] = keys, values
            cache.length = end
        else:
            _, how = tried(cache.truncate, *given)
            seen[f"Step {number}, truncate({given[0]}),"] = how
        held = cache.length
        seen[f"`length` after step {number}"] = held
        seen[f"`max_length` after step {number}"] = cache.max_length
        seen[f"`keys` held after step {number}"] = cache.keys[:, :, :, :held].clone()
        seen[f"`values` held after step {number}"] = cache.values[:, :, :, :held].clone()
    seen["The memory reserved, in bytes,"] = cache.bytes_reserved
    return seen


def tried(method: Callable[..., Any], *given: Any) -> tuple[Any, str]:
    """What a method returned, and whether it refused what it was given."""
    try:
        return method(*given), "went through"
    except ValueError:
        return None, "was refused with a ValueError"
