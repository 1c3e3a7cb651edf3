"""Lab 11's cache that keeps everything and shows what a rule says, and the table of losses."""

import re
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt import GPTConfig
from solutions.grouped import grouped
from solutions.kv_cache import CachedLMHead
from solutions.kv_reduction import WindowCache, pool_heads, window_mask
from solutions.masked import MaskedCache, last_and
from tests.common.checkpoints import write_tiny
from tests.common.engines import CONFIGS, configs, model_of, seeds
from timing import cache_losses
from timing.cache_losses import evenly, first_head

CONTEXT, WIDTH = 64, 32


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


# ------------------------------------------------------------------------------------- the table


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small model and short passages."""
    write_tiny(tmp_path, n_positions=CONTEXT, n_embd=WIDTH)
    monkeypatch.setattr(sys, "argv", ["cache_losses", "--passages", "2"])
    sizes = {"LENGTH": CONTEXT, "SCORED": 16, "KEPT": (32, 16), "FEW": 40, "GROUP": 8}
    for name, value in {
        "MODEL": str(tmp_path),
        "FEWER_HEADS": (2, 1),
        "RECENT": 8,
        **sizes,
    }.items():
        monkeypatch.setattr(cache_losses, name, value)


@pytest.mark.usefixtures("quick")
def test_every_way_has_its_row(capsys: pytest.CaptureFixture[str]) -> None:
    cache_losses.main()
    about, *tables = capsys.readouterr().out.strip().split("\n\n")
    assert "on the last 16 of 64 tokens of 2 passages" in about
    counts = {}
    for table in tables:
        head, _, *rows = table.splitlines()
        counts[head.split("|")[1].strip()] = len(rows)
        for row in rows:
            assert re.fullmatch(r"\| .+ \| [+-]\d\.\d{4} ± \d\.\d{4} \| ([\d,]+|–) \|", row), row
    assert counts == {
        "fewer tokens": 2 * 4,
        "40 tokens: which?": 5,
        "40 tokens: where?": 6,
        "fewer bits": 3 * 4,
        "fewer heads, without training": 2 * 2,
    }


def test_positions_are_spread_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_losses, "LENGTH", 24)
    assert evenly(4) == [3, 9, 15, 21]
    assert evenly(1) == [12]


def test_the_first_head_of_a_group_stands_for_it() -> None:
    """Of columns q0 q1 k0 k1 v0 v1, with heads of one number."""
    weight, bias = torch.arange(12.0).view(2, 6), torch.arange(6.0)
    found = first_head(weight, bias, n_head=2, kv_heads=1)
    assert found[0].tolist() == [[0, 1, 2, 4], [6, 7, 8, 10]]
    assert found[1].tolist() == [0, 1, 2, 4]
