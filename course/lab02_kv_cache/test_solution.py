"""The caches of labs 2 to 4 against plain lists, and against each other."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gpt import GPTConfig, GPTLMHead
from solutions.batching import (
    SlotCache,
)
from solutions.kv_cache import (
    CachedLMHead,
    KVCache,
    ThreadedLMHead,
    causal_mask,
    kv_bytes_per_token,
)
from solutions.paged_attention import BlockManager, PagedCache
from tests.common.engines import (
    CONFIGS,
    assert_same,
    blocks_for,
    configs,
    model_of,
    seeds,
    shuffled,
)


@given(configs, seeds, st.integers(1, 3), st.data())
def test_chunks_give_the_logits_of_one_forward(config, seed, batch, data):
    """However the prompt is cut: prefill, decode and every chunk in between are one path."""
    seq = data.draw(st.integers(1, config.n_positions))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    prompts = torch.randint(config.vocab_size, (batch, seq), generator=generator)
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


# ------------------------------------------------------------------------------------ the cache


@given(st.data())
def test_mask_shows_keys_up_to_the_query(data: st.DataObject) -> None:
    batch, q_len, k_len = (data.draw(st.integers(1, 4)) for _ in range(3))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    queries, keys = (torch.randint(10, (batch, n), generator=generator) for n in (q_len, k_len))
    mask = causal_mask(queries, keys)
    assert mask.shape == (batch, 1, q_len, k_len)
    assert mask.dtype == torch.bool
    for row, at, keys_at in zip(mask[:, 0].tolist(), queries.tolist(), keys.tolist(), strict=True):
        assert row == [[key <= query for key in keys_at] for query in at]


class Oracle:
    """What a KVCache holds, as plain lists, and attention written out token by token."""

    def __init__(self, layers: int) -> None:
        self.keys: list[list[Tensor]] = [[] for _ in range(layers)]  # [batch, heads, head_dim] each
        self.values: list[list[Tensor]] = [[] for _ in range(layers)]

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        outputs = []
        for query, key, value in zip(
            *(new.unbind(2) for new in (queries, keys, values)), strict=True
        ):
            self.keys[layer].append(key)
            self.values[layer].append(value)
            scores = [(query * key).sum(-1) / query.shape[-1] ** 0.5 for key in self.keys[layer]]
            weights = torch.stack(scores).softmax(0).unsqueeze(-1)
            outputs.append((weights * torch.stack(self.values[layer])).sum(0))
        return torch.stack(outputs, dim=2)

    def truncate(self, n: int) -> None:
        for kept in (*self.keys, *self.values):
            del kept[n:]

    def reorder(self, rows: Tensor) -> None:
        for kept in (*self.keys, *self.values):
            kept[:] = [token[rows] for token in kept]


@given(configs, st.integers(1, 3), st.data())
def test_cache_after_any_operations(config, batch, data):
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
    for memory, tokens in ((kv_cache.keys, oracle.keys), (kv_cache.values, oracle.values)):
        for layer, kept in enumerate(tokens):
            assert len(kept) == length
            for position, token in enumerate(kept):
                assert torch.equal(memory[layer, :, :, position], token)


@pytest.mark.parametrize(("batch", "max_length"), [(0, 4), (1, 0)])
def test_empty_caches_are_refused(batch: int, max_length: int) -> None:
    with pytest.raises(ValueError, match="at least one row"):
        KVCache(CONFIGS[0], batch, max_length)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_bytes_per_token_of_a_real_cache(config: GPTConfig, dtype: torch.dtype) -> None:
    kv_cache = KVCache(config, batch=1, max_length=1, dtype=dtype)
    assert kv_bytes_per_token(config, dtype.itemsize) == kv_cache.bytes_reserved


def test_bytes_per_token_of_known_models() -> None:
    """OPT-13B has 40 layers of 5,120 (Zhang et al., 2022, table 1): 800 KB a token in 16 bits."""
    opt_13b = GPTConfig(n_layer=40, n_head=40, n_embd=5120)
    assert kv_bytes_per_token(opt_13b, 2) == 819_200 == 800 * 1024
    assert kv_bytes_per_token(GPTConfig()) == 73_728  # gpt2
    assert kv_bytes_per_token(GPTConfig(n_layer=12, n_head=8, n_embd=256)) == 24_576  # fable


# ------------------------------------------------------------------- a cache for many requests


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
def test_each_request_has_its_own_cache(new_cache, config, requests, data):
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
def test_a_forward_needs_its_select(new_cache: Callable[..., Any]) -> None:
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
