"""The contract that holds the course together, and the metrics.

Whatever the technique, greedy output is token for token that of the naive loop. Proved in float64
on small models with large random weights, where a wrong position or mask changes the tokens.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gpt import GPTConfig, GPTLMHead
from solutions import generate as lab_1
from solutions import kv_cache as lab_2
from solutions.batching import (
    ContinuousBatcher,
    generate_continuous,
    generate_padded,
    generate_static,
)
from solutions.decoding import GREEDY, stream
from solutions.kv_cache import CachedLMHead, ThreadedLMHead
from solutions.paged_attention import PagedBatcher, generate_paged
from solutions.speculative import NgramDrafter, generate_speculative
from tests.common.engines import (
    BAD_REQUESTS,
    CONFIGS,
    Work,
    configs,
    model_of,
    naive,
    seeds,
    shapes_of_forwards,
    works,
)

CLASSES: dict[Any, Any] = {
    lab_1.generate: GPTLMHead,
    lab_2.generate_threaded: ThreadedLMHead,
    lab_2.generate: CachedLMHead,
}


@st.composite
def requests(draw: st.DrawFn) -> tuple[GPTConfig, int, Tensor, int]:
    """A config, the seed of its weights, a batch of prompts, and how many new tokens."""
    config, seed = draw(configs), draw(seeds)
    shape = draw(st.integers(1, 3)), draw(st.integers(1, config.n_positions))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    prompts = torch.randint(config.vocab_size, shape, generator=generator)
    return config, seed, prompts, draw(st.integers(0, config.n_positions))


# ------------------------------------------------------------------------------- the contract


@given(requests())
def test_loops_give_the_naive_tokens(request: Any) -> None:
    """A cached loop computes each token once, the naive one all at every step."""
    config, seed, prompts, max_new_tokens = request
    (batch, seq), before = prompts.shape, prompts.clone()
    new = min(max_new_tokens, config.n_positions - seq)
    cached = [(batch, seq), *[(batch, 1)] * (new - 1)][:new]
    forwards = [[(batch, seq + step) for step in range(new)], cached, cached]
    outputs = []
    for (loop, cls), expected in zip(CLASSES.items(), forwards, strict=True):
        model = model_of(cls, config, seed)
        with shapes_of_forwards(model) as shapes:
            outputs.append(loop(model, prompts, max_new_tokens))
        assert shapes == expected
    assert all(torch.equal(output, outputs[0]) for output in outputs)
    assert torch.equal(prompts, before)
    assert torch.equal(outputs[0][:, :seq], before)
    assert outputs[0].shape == (batch, seq + new)


@given(requests(), st.data())
def test_loops_end_at_eos(request: Any, data: st.DataObject) -> None:
    config, seed, prompts, max_new_tokens = request
    prompts = prompts[:1]
    unending = lab_1.generate(model_of(GPTLMHead, config, seed), prompts, max_new_tokens)
    some_id = st.integers(0, config.vocab_size - 1)
    eos = data.draw(st.one_of(st.sampled_from(unending[0].tolist()), some_id))

    expected, new = prompts[0].tolist(), unending[0, prompts.shape[1] :].tolist()
    expected += new[: new.index(eos) + 1] if eos in new else new
    for loop, cls in CLASSES.items():
        model = model_of(cls, config, seed)
        assert loop(model, prompts, max_new_tokens, eos).tolist() == [expected]


# ------------------------------------------------------- the contract, for requests of any lengths

# Each takes a model, prompts, limits, an EOS, and how many requests it may serve at a time.
Serve = Callable[..., list[list[int]]]
IN_BATCHES: dict[str, Serve] = {
    "padded": lambda m, texts, new, eos, _: generate_padded(m, texts, new, eos),
    "static": lambda m, texts, new, eos, most: generate_static(m, texts, new, most, eos).outputs,
    "continuous": lambda m, texts, new, eos, most: (
        generate_continuous(m, texts, new, most, eos).outputs
    ),
    "paged": lambda m, texts, new, eos, most: generate_paged(m, texts, new, 5, 4, most, eos),
}


def one_by_one(loop: Callable[..., list[int]]) -> Serve:
    def serve(model: Any, prompts: Any, limits: Any, eos: int | None, _: int) -> list[list[int]]:
        both = zip(prompts, limits, strict=True)
        return [loop(model, prompt, limit, eos) for prompt, limit in both]

    return serve


@one_by_one
def streamed(model: Any, prompt: list[int], limit: int, eos: int | None) -> list[int]:
    return [*prompt, *stream(model, prompt, limit, GREEDY, torch.Generator(), eos)]


@one_by_one
def speculated(model: Any, prompt: list[int], limit: int, eos: int | None) -> list[int]:
    drafter = NgramDrafter(model.config.vocab_size)
    return generate_speculative(model, drafter, prompt, limit, 3, eos_token_id=eos).ids


SERVERS = {"stream": streamed, "speculative": speculated, **IN_BATCHES}


@pytest.mark.parametrize("name", SERVERS)
@given(work=works(), most=st.integers(1, 6))
def test_servers_give_the_naive_tokens(name: str, work: Work, most: int) -> None:
    before = [list(prompt) for prompt in work.prompts]
    requests = work.model, work.prompts, work.limits
    assert SERVERS[name](*requests, work.eos, most) == work.expected
    assert work.prompts == before


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize(("prompt", "limit", "sentence"), BAD_REQUESTS)
def test_bad_requests_cost_no_forward(name, prompt, limit, sentence):
    requests = ([[1], prompt], [3, limit]) if name in IN_BATCHES else ([prompt], [limit])
    model = model_of(CachedLMHead, CONFIGS[0], 0)
    with shapes_of_forwards(model) as shapes, pytest.raises(ValueError, match=sentence):
        SERVERS[name](model, *requests, None, 2)
    assert shapes == []


@pytest.mark.parametrize("name", IN_BATCHES)
def test_bad_batches_are_refused(name: str) -> None:
    def is_refused(sentence: str, prompts: Any, limits: Any, most: int = 2) -> None:
        model = model_of(CachedLMHead, CONFIGS[0], 0)
        with pytest.raises(ValueError, match=sentence):
            IN_BATCHES[name](model, prompts, limits, None, most)

    is_refused("list of prompts is empty", [], [])
    is_refused("2 prompts and 1 numbers", [[1], [2]], [3])
    for most in () if name == "padded" else (0, -1):
        is_refused(f"at least one slot, not {most}", [[1]], [3], most)


def in_slots() -> ContinuousBatcher:
    return ContinuousBatcher(model_of(CachedLMHead, CONFIGS[0], 0), 2, 12)


def in_blocks() -> ContinuousBatcher:
    return PagedBatcher(model_of(CachedLMHead, CONFIGS[0], 0), 7, 2, 2)


@pytest.mark.parametrize("make", [in_slots, in_blocks])
@pytest.mark.parametrize(("prompt", "limit", "sentence"), BAD_REQUESTS)
def test_bad_requests_cost_others_nothing(make, prompt, limit, sentence):
    """Nor does a prompt that fills the context, which is served without a step."""
    batcher, full = make(), list(range(12))
    assert batcher.submit([1, 2], 6) == 0
    batcher.step()
    with pytest.raises(ValueError, match=sentence):
        batcher.submit(prompt, limit)
    assert batcher.submit([3], 6) == 1
    assert batcher.submit(full, 5) == 2
    assert batcher.outputs == {2: full}
    assert batcher.outputs[2] is not full
    batcher.run()
    assert batcher.outputs == {
        n: naive(CONFIGS[0], 0, p, 6) for n, p in enumerate([[1, 2], [3], full])
    }
    assert len(batcher.trace) == 7


# --------------------------------------------------------------------- what is refused, and how


@pytest.mark.parametrize("loop", CLASSES)
@pytest.mark.parametrize(
    ("prompts", "max_new_tokens", "eos", "sentence"),
    [
        (torch.tensor([1, 2]), 3, None, r"must be \[batch, seq\]"),
        (torch.zeros(1, 0, dtype=torch.long), 3, None, "at least one token"),
        (torch.zeros(0, 2, dtype=torch.long), 3, None, "at least one token"),
        (torch.zeros(1, 13, dtype=torch.long), 0, None, "at most 12"),
        (torch.tensor([[1]]), -1, None, "0 or more, not -1"),
        (torch.tensor([[1], [2]]), 3, 0, "one prompt at a time"),
    ],
)
def test_loops_refuse_bad_requests(loop, prompts, max_new_tokens, eos, sentence):
    model = model_of(CLASSES[loop], CONFIGS[0], 0)
    with shapes_of_forwards(model) as shapes, pytest.raises(ValueError, match=sentence):
        loop(model, prompts, max_new_tokens, eos)
    assert shapes == []


# -------------------------------------------------------------------------------------- metrics

gaps = st.lists(st.floats(1e-4, 10), min_size=1, max_size=50)


@given(st.floats(0, 1e6), gaps)
def test_metrics_add_up(start, gaps):
    times = [start + sum(gaps[: i + 1]) for i in range(len(gaps))]
    n = len(times)
    metrics = lab_1.metrics(start, times)
    assert (metrics.tpot is None) == (n == 1)
    assert metrics.latency == pytest.approx(metrics.ttft + (metrics.tpot or 0) * (n - 1))
    assert metrics.latency * metrics.throughput == pytest.approx(n)
    assert metrics.ttft == times[0] - start


def test_metrics_of_one_request() -> None:
    assert lab_1.metrics(10.0, [10.5, 10.75, 11.0]) == lab_1.Metrics(0.5, 0.25, 1.0, 3.0)
    with pytest.raises(ValueError, match="empty"):
        lab_1.metrics(0.0, [])
