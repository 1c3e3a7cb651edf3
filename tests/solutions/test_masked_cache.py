"""Lab 11's cache that keeps everything and shows what a rule says."""

from functools import partial

import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt import GPTConfig
from solutions.kv_cache import CachedLMHead
from solutions.kv_reduction import WindowCache, pool_heads, window_mask
from solutions.kv_variants.grouped_model import grouped
from solutions.kv_variants.masked_cache import MaskedCache, last_and
from tests.common.engines import CONFIGS, configs, model_of, seeds


@given(configs, seeds, st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_a_cache_that_forgets_comes_to_the_same(
    config: GPTConfig, seed: int, sizes: list[int], data: st.DataObject
) -> None:
    window, sinks = data.draw(st.integers(1, 9)), data.draw(st.integers(0, 3))
    model = model_of(CachedLMHead, config, seed)
    caches = (
        MaskedCache(config.n_layer, partial(window_mask, window=window, sinks=sinks)),
        MaskedCache(config.n_layer, last_and(window, *range(sinks))),
        WindowCache(config.n_layer, window, sinks),
    )
    end = 0
    for size in sizes:
        positions = torch.arange(end, min(end + size, config.n_positions))[None]
        if not positions.numel():
            break
        end = int(positions[0, -1]) + 1
        ids = positions * 7 % config.vocab_size
        found = [model(ids, positions, kv_cache) for kv_cache in caches]
        assert [kv_cache.length for kv_cache in caches] == [end] * 3
        torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
        torch.testing.assert_close(found[2], found[0], rtol=1e-9, atol=1e-9)


@given(st.integers(1, 6), st.sets(st.integers(0, 9), max_size=3))
def test_a_query_sees_the_last_ones_and_those_chosen(window: int, chosen: set[int]) -> None:
    positions = torch.arange(10)[None]
    found = last_and(window, *chosen)(positions[:, 4:], positions)
    for query in range(4, 10):
        for key in range(10):
            expected = key <= query and (key > query - window or key in chosen)
            assert found[0, 0, query - 4, key] == expected


def test_heads_of_queries_share_those_of_keys() -> None:
    config = CONFIGS[1]
    model = grouped(model_of(CachedLMHead, config, 0), 1, pool_heads)
    positions = torch.arange(6)[None]
    masked = MaskedCache(config.n_layer, last_and(6))
    found = model(positions, positions, masked)
    torch.testing.assert_close(found, model(positions, positions, WindowCache(config.n_layer, 6)))
