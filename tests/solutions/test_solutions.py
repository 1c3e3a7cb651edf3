"""The reference solutions of labs 1 and 2, and the contract that holds the course together:

whatever the technique, greedy output is token for token that of the naive loop. Proved in float64
on small models with large random weights, where a wrong position or mask changes the tokens.
"""

from importlib import import_module
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from gpt import GPTConfig, GPTLMHead
from solutions import generate as lab_1
from solutions import kv_cache as lab_2
from solutions.kv_cache import CachedLMHead, KVCache, ThreadedLMHead, causal_mask
from tests.common.engines import (
    CONFIGS,
    assert_same,
    configs,
    model_of,
    seeds,
    shapes_of_forwards,
)

CLASSES: dict[Any, Any] = {
    lab_1.generate: GPTLMHead,
    lab_2.generate_threaded: ThreadedLMHead,
    lab_2.generate: CachedLMHead,
}
LOOPS = list(CLASSES)
CACHED_LOOPS = LOOPS[1:]


@st.composite
def requests(draw: st.DrawFn) -> tuple[GPTConfig, int, Tensor, int]:
    """A config, the seed of its weights, a batch of prompts, and how many new tokens."""
    config, seed = draw(configs), draw(seeds)
    batch, seq = draw(st.integers(1, 3)), draw(st.integers(1, config.n_positions))
    ids = st.integers(0, config.vocab_size - 1)
    prompts = draw(st.lists(ids, min_size=batch * seq, max_size=batch * seq))
    max_new_tokens = draw(st.integers(0, config.n_positions))
    return config, seed, torch.tensor(prompts).view(batch, seq), max_new_tokens


def outputs(
    config: GPTConfig, seed: int, prompts: Tensor, max_new_tokens: int, eos: int | None = None
) -> list[list[list[int]]]:
    """What each loop returns, as lists."""
    return [
        loop(model_of(cls, config, seed), prompts, max_new_tokens, eos).tolist()
        for loop, cls in CLASSES.items()
    ]


# ------------------------------------------------------------------------------- the contract


@given(requests())
def test_every_loop_gives_the_tokens_of_the_naive_one(request: Any) -> None:
    naive, *cached = outputs(*request)
    assert cached == [naive, naive]


@given(requests(), st.data())
def test_every_loop_ends_at_the_same_eos(request: Any, data: st.DataObject) -> None:
    config, seed, prompts, max_new_tokens = request
    prompts = prompts[:1]
    unending = lab_1.generate(model_of(GPTLMHead, config, seed), prompts, max_new_tokens)
    some_id = st.integers(0, config.vocab_size - 1)
    eos = data.draw(st.one_of(st.sampled_from(unending[0].tolist()), some_id))

    expected, new = prompts[0].tolist(), unending[0, prompts.shape[1] :].tolist()
    expected += new[: new.index(eos) + 1] if eos in new else new
    assert outputs(config, seed, prompts, max_new_tokens, eos) == [[expected]] * 3


@given(requests())
def test_a_prompt_stays_as_it_was_and_only_grows_to_the_context(request: Any) -> None:
    config, _, prompts, max_new_tokens = request
    before = prompts.clone()
    for ids in outputs(*request):
        assert torch.equal(prompts, before)
        assert torch.equal(torch.tensor(ids)[:, : prompts.shape[1]], before)
        assert len(ids[0]) == min(prompts.shape[1] + max_new_tokens, config.n_positions)


@given(requests())
def test_the_cached_loops_compute_every_token_once(request: Any) -> None:
    config, seed, prompts, max_new_tokens = request
    batch, seq = prompts.shape
    new = min(max_new_tokens, config.n_positions - seq)
    for loop in CACHED_LOOPS:
        model = model_of(CLASSES[loop], config, seed)
        with shapes_of_forwards(model) as shapes:
            loop(model, prompts, max_new_tokens)
        assert shapes == ([(batch, seq)] + [(batch, 1)] * (new - 1) if new else [])
        assert sum(length for _, length in shapes) == (seq + new - 1 if new else 0)


@given(requests())
def test_the_naive_loop_computes_the_sequence_at_every_step(request: Any) -> None:
    config, seed, prompts, max_new_tokens = request
    model = model_of(GPTLMHead, config, seed)
    with shapes_of_forwards(model) as shapes:
        end = lab_1.generate(model, prompts, max_new_tokens).shape[1]
    assert shapes == [(len(prompts), length) for length in range(prompts.shape[1], end)]


@given(requests(), st.data())
def test_logits_in_chunks_are_those_of_one_forward(request: Any, data: st.DataObject) -> None:
    """However the prompt is cut: prefill, decode and every chunk in between are one path."""
    config, seed, prompts, _ = request
    batch, seq = prompts.shape
    positions = torch.arange(seq).expand_as(prompts)
    expected = model_of(GPTLMHead, config, seed)(prompts, positions)

    cuts = sorted(data.draw(st.sets(st.integers(1, max(seq - 1, 1)))) | {seq})
    sizes = [end - start for start, end in zip([0, *cuts], cuts, strict=False)]
    chunks = list(zip(prompts.split(sizes, 1), positions.split(sizes, 1), strict=True))
    threaded, pairs = [], None
    cached, kv_cache = [], KVCache(config, batch, seq, dtype=torch.float64)
    for ids, position_ids in chunks:
        logits, pairs = model_of(ThreadedLMHead, config, seed)(ids, position_ids, pairs)
        threaded.append(logits)
        cached.append(model_of(CachedLMHead, config, seed)(ids, position_ids, kv_cache))
    assert_same(torch.cat(threaded, 1), expected)
    assert_same(torch.cat(cached, 1), expected)
    assert kv_cache.length == seq
    assert [pair[0].shape[2] for pair in pairs or []] == [seq] * config.n_layer


@given(requests(), st.data())
def test_tokens_taken_back_leave_no_trace(request: Any, data: st.DataObject) -> None:
    """Speculation: compute guesses, truncate, compute what really follows."""
    config, seed, prompts, _ = request
    seq = prompts.shape[1]
    assume(seq > 1)
    kept = data.draw(st.integers(0, seq - 1))
    model = model_of(CachedLMHead, config, seed)
    positions = torch.arange(seq).expand_as(prompts)
    expected = model_of(GPTLMHead, config, seed)(prompts, positions)

    kv_cache = KVCache(config, len(prompts), seq, dtype=torch.float64)
    guesses = torch.cat([prompts[:, :kept], (prompts[:, kept:] + 1) % config.vocab_size], dim=1)
    model(guesses, positions, kv_cache)
    kv_cache.truncate(kept)
    assert_same(model(prompts[:, kept:], positions[:, kept:], kv_cache), expected[:, kept:])


def test_a_cache_belongs_to_its_call() -> None:
    """The same prompt gives the same tokens, whatever was generated before with the same model."""
    config = CONFIGS[1]
    prompts = torch.tensor([[3, 14, 15], [9, 2, 6]])
    for loop, cls in CLASSES.items():
        model = model_of(cls, config, 0)
        first = loop(model, prompts, 6)
        loop(model, prompts.flip(1), 9)
        assert torch.equal(loop(model, prompts, 6), first)


# --------------------------------------------------------------------- what is refused, and how


@pytest.mark.parametrize("loop", LOOPS)
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
def test_a_request_that_no_loop_can_serve_is_refused(
    loop: Any, prompts: Tensor, max_new_tokens: int, eos: int | None, sentence: str
) -> None:
    model = model_of(CLASSES[loop], CONFIGS[0], 0)
    with (
        shapes_of_forwards(model) as shapes,
        pytest.raises(ValueError, match=sentence),
    ):
        loop(model, prompts, max_new_tokens, eos)
    assert shapes == []


# -------------------------------------------------------------------------------------- metrics

gaps = st.lists(st.floats(1e-4, 10), min_size=1, max_size=50)


@given(st.floats(0, 1e6), gaps)
def test_latency_is_ttft_and_a_tpot_for_every_token_after_the_first(
    start: float, gaps: list[float]
) -> None:
    times = [start + sum(gaps[: i + 1]) for i in range(len(gaps))]
    n = len(times)
    found = lab_1.metrics(start, times)
    assert (found.tpot is None) == (n == 1)
    assert found.latency == pytest.approx(found.ttft + (found.tpot or 0) * (n - 1))
    assert found.latency * found.throughput == pytest.approx(n)
    assert found.ttft == times[0] - start


def test_metrics_of_one_request() -> None:
    assert lab_1.metrics(10.0, [10.5, 10.75, 11.0]) == lab_1.Metrics(0.5, 0.25, 1.0, 3.0)
    with pytest.raises(ValueError, match="empty"):
        lab_1.metrics(0.0, [])


# ------------------------------------------------------------------------------------ the cache


@given(st.data())
def test_a_key_is_visible_from_its_own_position_on(data: st.DataObject) -> None:
    batch, q_len, k_len = (data.draw(st.integers(1, 4)) for _ in range(3))
    position = st.integers(0, 9)
    queries, keys = (
        torch.tensor(data.draw(st.lists(position, min_size=batch * n, max_size=batch * n)))
        for n in (q_len, k_len)
    )
    queries, keys = queries.view(batch, q_len), keys.view(batch, k_len)
    mask = causal_mask(queries, keys)
    assert mask.shape == (batch, 1, q_len, k_len)
    assert mask.dtype == torch.bool
    for row, query, key in torch.cartesian_prod(*map(torch.arange, (batch, q_len, k_len))).tolist():
        assert mask[row, 0, query, key] == (keys[row, key] <= queries[row, query])


class Oracle:
    """What a KVCache holds, as plain lists, and attention written out token by token."""

    def __init__(self, layers: int) -> None:
        self.keys: list[list[Tensor]] = [[] for _ in range(layers)]  # [batch, heads, head_dim] each
        self.values: list[list[Tensor]] = [[] for _ in range(layers)]

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        outputs = []
        for query, key, value in zip(
            queries.unbind(2), keys.unbind(2), values.unbind(2), strict=True
        ):
            self.keys[layer].append(key)
            self.values[layer].append(value)
            scores = [(query * key).sum(-1) / query.shape[-1] ** 0.5 for key in self.keys[layer]]
            weights = torch.stack(scores).softmax(0).unsqueeze(-1)
            outputs.append((weights * torch.stack(self.values[layer])).sum(0))
        return torch.stack(outputs, dim=2)

    def truncate(self, n: int) -> None:
        for held in (*self.keys, *self.values):
            del held[n:]

    def reorder(self, rows: Tensor) -> None:
        for held in (*self.keys, *self.values):
            held[:] = [token[rows] for token in held]


@given(configs, st.integers(1, 3), st.data())
def test_a_cache_holds_what_it_should_after_every_operation(
    config: GPTConfig, batch: int, data: st.DataObject
) -> None:
    max_length = data.draw(st.integers(1, config.n_positions))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    kv_cache = KVCache(config, batch, max_length, dtype=torch.float64)
    oracle, length = Oracle(config.n_layer), 0
    for _ in range(data.draw(st.integers(1, 6))):
        operation = data.draw(st.sampled_from(["attend", "attend", "truncate", "reorder"]))
        if operation == "truncate":
            length = data.draw(st.integers(0, length))
            kv_cache.truncate(length)
            oracle.truncate(length)
        elif operation == "reorder":
            size = data.draw(st.integers(1, 3))
            rows = data.draw(st.lists(st.integers(0, batch - 1), min_size=size, max_size=size))
            kv_cache.reorder(torch.tensor(rows))
            oracle.reorder(torch.tensor(rows))
            batch = size
        else:
            new = data.draw(st.integers(1, 5))
            shape = 3, config.n_layer, batch, config.n_head, new, config.head_dim
            drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
            for layer, given_to_it in enumerate(drawn.unbind(1)):
                assert kv_cache.length == length
                if length + new > max_length:
                    with pytest.raises(ValueError, match=f"room for {max_length} tokens"):
                        kv_cache.attend(layer, *given_to_it)
                else:
                    expected = oracle.attend(layer, *given_to_it)
                    assert_same(kv_cache.attend(layer, *given_to_it), expected)
            length += new if length + new <= max_length else 0
        assert kv_cache.length == length
        assert_holds(kv_cache, oracle, length)


def assert_holds(kv_cache: KVCache, oracle: Oracle, length: int) -> None:
    assert kv_cache.keys.shape == kv_cache.values.shape
    assert kv_cache.keys.shape[3] == kv_cache.max_length
    assert kv_cache.bytes_reserved == 2 * 8 * kv_cache.keys.numel()
    assert kv_cache.bytes_held == kv_cache.bytes_reserved * length / kv_cache.max_length
    for held, tokens in ((kv_cache.keys, oracle.keys), (kv_cache.values, oracle.values)):
        for layer, kept in enumerate(tokens):
            assert len(kept) == length
            for position, token in enumerate(kept):
                assert torch.equal(held[layer, :, :, position], token)


@pytest.mark.parametrize("n", [-1, 4, 5, 6])
def test_truncate_keeps_no_more_than_there_is(n: int) -> None:
    kv_cache = KVCache(CONFIGS[0], batch=1, max_length=5)
    new = torch.zeros(1, 1, 3, 16)
    kv_cache.attend(0, new, new, new)
    with pytest.raises(ValueError, match=f"holds 3 tokens; it cannot keep {n}"):
        kv_cache.truncate(n)
    assert kv_cache.length == 3


@pytest.mark.parametrize(("batch", "max_length"), [(0, 4), (1, 0)])
def test_a_cache_that_cannot_be_is_refused(batch: int, max_length: int) -> None:
    with pytest.raises(ValueError, match="at least one row"):
        KVCache(CONFIGS[0], batch, max_length)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_bytes_per_token_are_those_of_a_real_cache(config: GPTConfig, dtype: torch.dtype) -> None:
    kv_cache = KVCache(config, batch=1, max_length=1, dtype=dtype)
    assert lab_2.kv_bytes_per_token(config, dtype.itemsize) == kv_cache.bytes_reserved


def test_bytes_per_token_of_known_models() -> None:
    """OPT-13B has 40 layers of 5,120 (Zhang et al., 2022, table 1): 800 KB a token in 16 bits."""
    opt_13b = GPTConfig(n_layer=40, n_head=40, n_embd=5120)
    assert lab_2.kv_bytes_per_token(opt_13b, 2) == 819_200 == 800 * 1024
    assert lab_2.kv_bytes_per_token(GPTConfig()) == 73_728  # gpt2
    assert lab_2.kv_bytes_per_token(GPTConfig(n_layer=12, n_head=8, n_embd=256)) == 24_576  # fable


# ------------------------------------------------------------------------------- older lab copies

# What older copies of the labs import from the solutions, and what code kept in work/.mine takes
# for given in the module that it is put into.
TAKEN_FOR_GIVEN = {
    "generate": "GPTLMHead Int Metrics Sequence Tensor dataclass generate metrics require_prompt "
    "torch",
    "kv_cache": "Bool CachedAttention CachedBlock CachedLMHead CachedModel F Float GPTAttention "
    "GPTBlock GPTConfig GPTLMHead GPTModel Int KVCache LayerCache Sequence Tensor "
    "ThreadedAttention ThreadedBlock ThreadedLMHead ThreadedModel causal_mask generate "
    "generate_threaded kv_bytes_per_token nn require_prompt torch",
    "batching": "Bool CachedLMHead ContinuousBatcher F Float GPTConfig Int KVCache PaddedCache "
    "Request Sequence Served SlotCache Tensor Trace causal_mask dataclass deque "
    "generate_continuous generate_padded generate_static pad_left padded_mask "
    "padded_position_ids require_request require_requests torch utilisation",
    "paged_attention": "BlockManager CachedLMHead Copy F Family Float GPTConfig Int OutOfBlocks "
    "PagedBatcher PagedCache Request Sequence Tensor causal_mask deque generate_paged pad_sequence "
    "require_requests slot_mapping torch",
}


@pytest.mark.parametrize("lab", TAKEN_FOR_GIVEN)
def test_names_that_learners_code_takes_for_given_stay(lab: str) -> None:
    there = vars(import_module(f"solutions.{lab}"))
    assert [name for name in TAKEN_FOR_GIVEN[lab].split() if name not in there] == []
