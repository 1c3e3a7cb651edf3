"""Small models with large random weights, requests for them, and what the naive loop makes of both.

What the tests of the solutions share.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from autograder.lending.services import random_model
from gpt import GPTConfig, GPTLMHead
from solutions import generate as lab_1
from solutions.kv_cache import CachedLMHead

CONFIGS = (
    GPTConfig(vocab_size=32, n_positions=12, n_embd=16, n_layer=1, n_head=1),
    GPTConfig(vocab_size=48, n_positions=16, n_embd=32, n_layer=2, n_head=4),
    GPTConfig(vocab_size=40, n_positions=20, n_embd=24, n_layer=3, n_head=3),
)

configs, seeds = st.sampled_from(CONFIGS), st.integers(0, 3)


@cache
def model_of(cls: type, config: GPTConfig, seed: int) -> Any:
    """One of the three models, with the same weights for the same config and seed.

    Tests share it, so the first of them may not leave it without gradients for the others.
    """
    with torch.inference_mode(False):
        return random_model(cls, config, seed)


@contextmanager
def shapes_of_forwards(model: torch.nn.Module) -> Iterator[list[tuple[int, int]]]:
    """[(batch, seq), ...] of the forward calls made meanwhile."""
    shapes: list[tuple[int, int]] = []
    hook = model.register_forward_pre_hook(lambda _, given: shapes.append(tuple(given[0].shape)))
    try:
        yield shapes
    finally:
        hook.remove()


def assert_same(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-9 * expected.abs().max().item())


def naive(
    config: GPTConfig, seed: int, prompt: list[int], limit: int, eos: int | None = None
) -> list[int]:
    """What lab 1's loop makes of one request."""
    model = model_of(GPTLMHead, config, seed)
    return lab_1.generate(model, torch.tensor([prompt]), limit, eos)[0].tolist()


def naive_logits(config: GPTConfig, seed: int, rows: list[list[int]]) -> Tensor:
    """Logits behind texts of one length, each computed from its start."""
    ids = torch.tensor(rows)
    positions = torch.arange(ids.shape[1]).expand_as(ids)
    return model_of(GPTLMHead, config, seed)(ids, positions)[:, -1]


@st.composite
def continuations(draw: st.DrawFn) -> tuple[GPTConfig, int, list[int], int]:
    """A config, the seed of its weights, a prompt, and a number of new tokens that fits."""
    config, seed = draw(configs), draw(seeds)
    length = draw(st.integers(1, config.n_positions - 1))
    ids = st.integers(0, config.vocab_size - 1)
    prompt = draw(st.lists(ids, min_size=length, max_size=length))
    return config, seed, prompt, draw(st.integers(1, min(5, config.n_positions - length)))


# ---------------------------------------------------------------------------- requests for batches


@dataclass(frozen=True)
class Work:
    """Requests for one model, and what the naive loop makes of each of them alone."""

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
        """How many tokens each request gets."""
        return [len(ids) - len(p) for ids, p in zip(self.expected, self.prompts, strict=True)]

    @property
    def tokens_computed_alone(self) -> int:
        """By a cache that serves one request after the other: the last token is never handed in."""
        both = zip(self.prompts, self.new, strict=True)
        return sum(len(prompt) + new - 1 for prompt, new in both if new)


@st.composite
def prompts_of(draw: st.DrawFn, config: GPTConfig, longest: int) -> list[list[int]]:
    ids = st.integers(0, config.vocab_size - 1)
    lengths = draw(st.lists(st.integers(1, longest), min_size=1, max_size=5))
    return [draw(st.lists(ids, min_size=n, max_size=n)) for n in lengths]


@st.composite
def works(draw: st.DrawFn) -> Work:
    """Up to 5 requests; half of them have no EOS, or one that really comes."""
    config, seed = draw(configs), draw(seeds)
    prompts = draw(prompts_of(config, config.n_positions))
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
    """Requests, and how many steps pass after each of them has been submitted."""
    work = draw(works())
    return work, [draw(st.integers(0, 6)) for _ in work.prompts]


def serve_over_time(batcher: Any, work: Work, pauses: list[int]) -> Iterator[None]:
    """Submit the requests one by one, so many steps apart; yields after every step."""
    for number, (prompt, limit, pause) in enumerate(
        zip(work.prompts, work.limits, pauses, strict=True)
    ):
        assert batcher.submit(prompt, limit) == number
        for _ in range(pause):
            batcher.step()
            yield
    while batcher.waiting or any(batcher.running):
        batcher.step()
        yield


@contextmanager
def every_step_serves_somebody(cls: Any) -> Iterator[None]:
    """Where somebody waits or runs, a step of a `cls` gives a token; `run` comes to an end."""
    step = cls.step

    def watched_step(batcher: Any) -> None:
        requests = [request for request in (*batcher.waiting, *batcher.running) if request]
        before = sum(len(request.ids) for request in requests)
        step(batcher)
        assert not requests or sum(len(request.ids) for request in requests) > before

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cls, "step", watched_step)
        yield


def assert_attends_only_to_what_was_selected(
    kv_cache: Any, config: GPTConfig, names: list[int]
) -> None:
    """One select, one forward: the same rows, the same q_len, every layer once and in order."""
    rows = len(names)

    def attend(layer: int, rows: int, q_len: int) -> None:
        new = torch.zeros(rows, config.n_head, q_len, config.head_dim, dtype=torch.float64)
        kv_cache.attend(layer, new, new, new)

    def is_refused(*given: int) -> None:
        with pytest.raises(ValueError, match="Call select before every forward"):
            attend(*given)

    is_refused(0, rows, 1)
    for _ in range(2):
        kv_cache.select(names, 1)
        is_refused(0, rows + 1, 1)
        is_refused(0, rows, 2)
        is_refused(1, rows, 1)
        for layer in range(config.n_layer):
            attend(layer, rows, 1)
        is_refused(0, rows, 1)


# Prompts and numbers of new tokens that no loop over CONFIGS[0] can serve, and what it says.
BAD_REQUESTS = [
    ([], 3, "1 to 12 tokens, not 0"),
    ([1] * 13, 3, "1 to 12 tokens, not 13"),
    ([1, -1], 3, "outside the model's range, 0 to 31"),
    ([32], 3, "outside the model's range, 0 to 31"),
    ([1], 0, "1 or more, not 0"),
    ([1], -1, "1 or more, not -1"),
]
