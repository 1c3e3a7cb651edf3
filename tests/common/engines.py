"""Small models with large random weights, requests for them, and the naive loop's outputs.

Shared by the tests of the solutions.
"""

import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from autograder.judging.random_models import random_model
from gpt import GPTConfig, GPTLMHead
from solutions import generate as lab_1
from solutions.kv_cache import CachedLMHead
from solutions.paged_attention import BlockManager

CONFIGS = (
    GPTConfig(vocab_size=32, n_positions=12, n_embd=16, n_layer=1, n_head=1),
    GPTConfig(vocab_size=48, n_positions=16, n_embd=32, n_layer=2, n_head=4),
    GPTConfig(vocab_size=40, n_positions=20, n_embd=24, n_layer=3, n_head=3),
)

configs, seeds = st.sampled_from(CONFIGS), st.integers(0, 3)


@cache
def model_of(cls: type, config: GPTConfig, seed: int) -> Any:
    """Return a model, with the same weights for the same config and seed.

    Tests share it. Created in inference mode by the first test, it would have no gradients in later
    ones, so it is created outside of it.
    """
    with torch.inference_mode(False):
        return random_model(cls, config, seed)


@contextmanager
def shapes_of_forwards(model: torch.nn.Module) -> Iterator[list[tuple[int, int]]]:
    """Record the shapes of the forward calls inside the block: [(batch, seq), ...]."""
    shapes: list[tuple[int, int]] = []
    hook = model.register_forward_pre_hook(lambda _, given: shapes.append(tuple(given[0].shape)))
    try:
        yield shapes
    finally:
        hook.remove()


def normal(seed: int, *shape: int) -> Tensor:
    """Draw numbers around 0, in float64; the same ones for the same seed and shape."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assert_same(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-9 * expected.abs().max().item())


def naive(
    config: GPTConfig, seed: int, prompt: list[int], limit: int, eos: int | None = None
) -> list[int]:
    """Return the output of lab 1's loop for one request."""
    model = model_of(GPTLMHead, config, seed)
    return lab_1.generate(model, torch.tensor([prompt]), limit, eos)[0].tolist()


def naive_logits(config: GPTConfig, seed: int, rows: list[list[int]]) -> Tensor:
    """Return the logits after texts of equal length, each computed from its start."""
    ids = torch.tensor(rows)
    positions = torch.arange(ids.shape[1]).expand_as(ids)
    return model_of(GPTLMHead, config, seed)(ids, positions)[:, -1]


@st.composite
def continuations(draw: st.DrawFn) -> tuple[GPTConfig, int, list[int], int]:
    """Draw a config, the seed of its weights, a prompt, and a number of new tokens that fits."""
    config, seed = draw(configs), draw(seeds)
    length = draw(st.integers(1, config.n_positions - 1))
    ids = st.integers(0, config.vocab_size - 1)
    prompt = draw(st.lists(ids, min_size=length, max_size=length))
    return config, seed, prompt, draw(st.integers(1, min(5, config.n_positions - length)))


# ---------------------------------------------------------------------------- requests for batches


@dataclass(frozen=True)
class Work:
    """Requests for one model, and the naive loop's output for each of them alone."""

    config: GPTConfig
    seed: int
    prompts: list[list[int]]
    limits: list[int]
    eos: int | None
    expected: list[list[int]]

    @property
    def model(self) -> Any:
        return model_of(CachedLMHead, self.config, self.seed)

    @property
    def new(self) -> list[int]:
        """The number of new tokens of each request."""
        return [len(ids) - len(p) for ids, p in zip(self.expected, self.prompts, strict=True)]

    @property
    def tokens_computed_alone(self) -> int:
        """Tokens computed with a cache, one request at a time; the last token is never computed."""
        both = zip(self.prompts, self.new, strict=True)
        return sum(len(prompt) + new - 1 for prompt, new in both if new)


@st.composite
def prompts_of(draw: st.DrawFn, config: GPTConfig, longest: int, most: int = 5) -> list[list[int]]:
    ids = st.integers(0, config.vocab_size - 1)
    lengths = draw(st.lists(st.integers(1, longest), min_size=1, max_size=most))
    return [draw(st.lists(ids, min_size=n, max_size=n)) for n in lengths]


@st.composite
def works(draw: st.DrawFn, most: int = 5) -> Work:
    """Draw up to `most` requests. Half of the works have no EOS, the others one that occurs."""
    config, seed = draw(configs), draw(seeds)
    prompts = draw(prompts_of(config, config.n_positions, most))
    limits = [draw(st.integers(1, config.n_positions)) for _ in prompts]
    both = list(zip(prompts, limits, strict=True))
    expected = [naive(config, seed, *request) for request in both]
    real_ids = sorted({token for ids in expected for token in ids})
    eos = draw(st.none() | st.sampled_from(real_ids))
    if eos is not None:
        expected = [naive(config, seed, *request, eos) for request in both]
    return Work(config, seed, prompts, limits, eos, expected)


@st.composite
def arrivals(draw: st.DrawFn) -> tuple[Work, list[int]]:
    """Draw requests, and the number of steps after the submission of each."""
    work = draw(works())
    return work, [draw(st.integers(0, 6)) for _ in work.prompts]


def serve_over_time(batcher: Any, work: Work, pauses: list[int]) -> Iterator[None]:
    """Submit the requests one by one, pausing for some steps after each. Yield after every step.

    Asserts that every step with a waiting or running request produces a token, so serving ends.
    """

    def step() -> None:
        requests = [request for request in (*batcher.waiting, *batcher.running) if request]
        before = sum(len(request.ids) for request in requests)
        batcher.step()
        assert not requests or sum(len(request.ids) for request in requests) > before

    for number, (prompt, limit, pause) in enumerate(
        zip(work.prompts, work.limits, pauses, strict=True)
    ):
        assert batcher.submit(prompt, limit) == number
        for _ in range(pause):
            step()
            yield
    while batcher.waiting or any(batcher.running):
        step()
        yield


# ----------------------------------------------------------------------------- blocks of a pool


def blocks_for(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


def shuffled(manager: BlockManager, seed: int) -> BlockManager:
    """Shuffle the manager's free blocks. Return the manager."""
    numbers = list(manager.free_blocks)
    random.Random(seed).shuffle(numbers)
    manager.free_blocks = deque(numbers)
    return manager


# ------------------------------------------------------------------------------ refused requests

# Prompts and numbers of new tokens that no loop can serve with CONFIGS[0], and the message.
BAD_REQUESTS = [
    ([], 3, "1 to 12 tokens, not 0"),
    ([1] * 13, 3, "1 to 12 tokens, not 13"),
    ([1, -1], 3, "outside the model's range, 0 to 31"),
    ([32], 3, "outside the model's range, 0 to 31"),
    ([1], 0, "1 or more, not 0"),
    ([1], -1, "1 or more, not -1"),
]
