"""The contract that holds the course together, and the reference solutions of labs 1 and 2.

Whatever the technique, greedy output is token for token that of the naive loop. Proved in float64
on small models with large random weights, where a wrong position or mask changes the tokens.
"""

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
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
    SlotCache,
    generate_continuous,
    generate_padded,
    generate_static,
)
from solutions.decoding import GREEDY, stream
from solutions.kv_cache import CachedLMHead, KVCache, ThreadedLMHead, causal_mask
from solutions.paged_attention import BlockManager, PagedBatcher, PagedCache, generate_paged
from solutions.speculative import NgramDrafter, generate_speculative
from tests.common.engines import (
    BAD_REQUESTS,
    CONFIGS,
    Work,
    assert_same,
    blocks_for,
    configs,
    model_of,
    naive,
    seeds,
    shapes_of_forwards,
    shuffled,
    works,
)

CLASSES: dict[Any, Any] = {
    lab_1.generate: GPTLMHead,
    lab_2.generate_threaded: ThreadedLMHead,
    lab_2.generate: CachedLMHead,
}
LOOPS = list(CLASSES)


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
    """The prompts stay as they were, and grow to the context at most."""
    config, _, prompts, max_new_tokens = request
    before = prompts.clone()
    naive, *cached = outputs(*request)
    assert cached == [naive, naive]
    assert torch.equal(prompts, before)
    assert torch.equal(torch.tensor(naive)[:, : prompts.shape[1]], before)
    assert len(naive[0]) == min(prompts.shape[1] + max_new_tokens, config.n_positions)


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
def test_a_cached_loop_computes_every_token_once_and_the_naive_one_all_at_every_step(request):
    config, seed, prompts, max_new_tokens = request
    batch, seq = prompts.shape
    new = min(max_new_tokens, config.n_positions - seq)
    cached = [(batch, seq), *[(batch, 1)] * (new - 1)][:new]
    expected = [[(batch, seq + step) for step in range(new)], cached, cached]
    for (loop, cls), forwards in zip(CLASSES.items(), expected, strict=True):
        model = model_of(cls, config, seed)
        with shapes_of_forwards(model) as shapes:
            loop(model, prompts, max_new_tokens)
        assert shapes == forwards


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
def test_every_server_gives_the_tokens_of_the_naive_loop(name: str, work: Work, most: int) -> None:
    before = [list(prompt) for prompt in work.prompts]
    requests = work.model, work.prompts, work.limits
    assert SERVERS[name](*requests, work.eos, most) == work.expected
    assert work.prompts == before


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize(("prompt", "limit", "sentence"), BAD_REQUESTS)
def test_a_bad_request_is_refused_before_any_forward(name, prompt, limit, sentence):
    requests = ([[1], prompt], [3, limit]) if name in IN_BATCHES else ([prompt], [limit])
    model = model_of(CachedLMHead, CONFIGS[0], 0)
    with shapes_of_forwards(model) as shapes, pytest.raises(ValueError, match=sentence):
        SERVERS[name](model, *requests, None, 2)
    assert shapes == []


@pytest.mark.parametrize("name", IN_BATCHES)
def test_a_batch_that_cannot_be_is_refused(name: str) -> None:
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
def test_a_bad_request_costs_nobody_else_anything(make, prompt, limit, sentence):
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


class Slots(SlotCache):
    """A SlotCache in whose memory others have been."""

    def __init__(self, config: GPTConfig, requests: int, max_length: int) -> None:
        super().__init__(config, requests, max_length, dtype=torch.float64)
        self.keys.fill_(1e3)
        self.values.fill_(1e3)


class Blocks(PagedCache):
    """A PagedCache in whose pool others have been. It takes blocks for what is selected."""

    def __init__(
        self, config: GPTConfig, requests: int, max_length: int, block_size: int = 3
    ) -> None:
        manager = BlockManager(requests * blocks_for(max_length, block_size), block_size)
        super().__init__(config, shuffled(manager, seed=0), dtype=torch.float64)
        self.pool.fill_(1e3)

    def select(self, names: Sequence[int], q_len: int) -> Tensor:
        tables = self.manager.tables
        for name in names:
            if name not in tables:
                self.manager.allocate(name, q_len)
            else:
                assert [self.manager.append(name) for _ in range(q_len)] == [None] * q_len
        return super().select(names, q_len)

    def free(self, name: int) -> None:
        if name in self.manager.tables:
            super().free(name)


CACHES = [Slots, *(partial(Blocks, block_size=size) for size in (1, 2, 3, 17))]


@given(st.sampled_from(CACHES), configs, st.integers(1, 4), st.data())
def test_every_request_has_a_cache_of_its_own(new_cache, config, requests, data):
    """Some requests or all, in any order, freed and filled again: as if each had a KVCache."""
    max_length = data.draw(st.integers(1, config.n_positions))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))

    def empty() -> KVCache:
        return KVCache(config, 1, max_length, dtype=torch.float64)

    kv_cache, alone = new_cache(config, requests, max_length), [empty() for _ in range(requests)]
    some_requests = st.permutations(range(requests)).flatmap(
        lambda order: st.integers(1, requests).map(lambda n: order[:n])
    )
    for _ in range(data.draw(st.integers(1, 8))):
        chosen = data.draw(some_requests)
        room = max_length - max(alone[name].length for name in chosen)
        if room == 0 or data.draw(st.sampled_from(["attend", "attend", "free"])) == "free":
            for name in chosen:
                kv_cache.free(name)
                alone[name] = empty()
        else:
            q_len = data.draw(st.integers(1, min(room, 4)))
            starts = torch.tensor([alone[name].length for name in chosen])
            expected = starts[:, None] + torch.arange(q_len)
            assert torch.equal(kv_cache.select(chosen, q_len), expected)
            shape = config.n_layer, 3, len(chosen), config.n_head, q_len, config.head_dim
            drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
            for layer, new in enumerate(drawn):
                if isinstance(kv_cache, Slots):  # they grow with the last layer
                    assert kv_cache.lengths[list(chosen)].tolist() == starts.tolist()
                rows = [alone[name].attend(layer, *new[:, [i]]) for i, name in enumerate(chosen)]
                assert_same(kv_cache.attend(layer, *new), torch.cat(rows))
        if isinstance(kv_cache, Slots):
            assert kv_cache.lengths.tolist() == [each.length for each in alone]


@pytest.mark.parametrize("new_cache", [Slots, Blocks])
def test_a_forward_is_for_what_was_selected(new_cache: Callable[..., Any]) -> None:
    """One select, one forward: the same rows, the same q_len, every layer once and in order."""
    config, names = CONFIGS[1], [2, 0]
    kv_cache = new_cache(config, 3, 6)

    def attend(layer: int, rows: int, q_len: int) -> None:
        new = torch.zeros(rows, config.n_head, q_len, config.head_dim, dtype=torch.float64)
        kv_cache.attend(layer, new, new, new)

    def is_refused(*given: int) -> None:
        with pytest.raises(ValueError, match="Call select before every forward"):
            attend(*given)

    is_refused(0, 2, 1)
    for _ in range(2):
        kv_cache.select(names, 1)
        is_refused(0, 3, 1)
        is_refused(0, 2, 2)
        is_refused(1, 2, 1)
        for layer in range(config.n_layer):
            attend(layer, 2, 1)
        is_refused(0, 2, 1)


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
def test_a_request_that_no_loop_can_serve_is_refused(loop, prompts, max_new_tokens, eos, sentence):
    model = model_of(CLASSES[loop], CONFIGS[0], 0)
    with shapes_of_forwards(model) as shapes, pytest.raises(ValueError, match=sentence):
        loop(model, prompts, max_new_tokens, eos)
    assert shapes == []


# -------------------------------------------------------------------------------------- metrics

gaps = st.lists(st.floats(1e-4, 10), min_size=1, max_size=50)


@given(st.floats(0, 1e6), gaps)
def test_latency_is_ttft_and_a_tpot_for_every_token_after_the_first(start, gaps):
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
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    queries, keys = (torch.randint(10, (batch, n), generator=generator) for n in (q_len, k_len))
    mask = causal_mask(queries, keys)
    assert mask.shape == (batch, 1, q_len, k_len)
    assert mask.dtype == torch.bool
    for row, asked, held in zip(mask[:, 0].tolist(), queries.tolist(), keys.tolist(), strict=True):
        assert row == [[key <= query for key in held] for query in asked]


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
def test_a_cache_holds_what_it_should_after_every_operation(config, batch, data):
    max_length = data.draw(st.integers(1, config.n_positions))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    kv_cache = KVCache(config, batch, max_length, dtype=torch.float64)
    oracle, length = Oracle(config.n_layer), 0
    for _ in range(data.draw(st.integers(1, 6))):
        operation = data.draw(st.sampled_from(["attend", "attend", "truncate", "reorder"]))
        if operation == "truncate":
            kept = data.draw(st.integers(-1, length + 2))
            if 0 <= kept <= length:
                length = kept
                kv_cache.truncate(length)
                oracle.truncate(length)
            else:
                with pytest.raises(ValueError, match=f"{length} tokens; it cannot keep {kept}"):
                    kv_cache.truncate(kept)
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
