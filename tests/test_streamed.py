"""Lab 11's measure: bits for a byte of text, streamed through a cache."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from gpt import GPTConfig, GPTLMHead
from models import measure
from solutions.kv_cache import CachedLMHead, KVCache
from solutions.kv_reduction import HeavyCache, WindowCache
from solutions.streamed import bits_per_byte, bytes_scored
from tests.common.engines import CONFIGS, configs, model_of, seeds


@given(configs, seeds, st.integers(1, 3), st.integers(2, 12), st.integers(1, 14), st.data())
def test_streamed_bits_are_those_of_whole_windows(
    config: GPTConfig, seed: int, windows: int, seq: int, chunk: int, data: Any
) -> None:
    scored = data.draw(st.integers(1, seq - 1))
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(config.vocab_size, (windows, seq), generator=generator)
    n_bytes = torch.randint(1, 50, (windows,), generator=generator)
    positions = torch.arange(seq).expand_as(ids)
    logits = model_of(GPTLMHead, config, seed)(ids, positions)
    expected = [
        F.cross_entropy(row[-scored - 1 : -1], text[-scored:], reduction="sum") / math.log(2) / n
        for row, text, n in zip(logits, ids, n_bytes, strict=True)
    ]
    model = model_of(CachedLMHead, config, seed)
    for make in (
        lambda: KVCache(config, windows, seq, dtype=torch.float64),
        lambda: WindowCache(config.n_layer, seq),
        lambda: HeavyCache(config.n_layer, seq, 1),
    ):
        got = bits_per_byte(model, ids, n_bytes, scored, make, chunk)
        torch.testing.assert_close(got.double(), torch.stack(expected), rtol=1e-5, atol=0)


def test_one_window_is_what_the_models_are_measured_by() -> None:
    config, ids = CONFIGS[2], torch.arange(20)[None] * 7 % 40
    expected = measure.bits_per_byte(model_of(GPTLMHead, config, 0), ids[0], 31)
    make = lambda: WindowCache(config.n_layer, 20)  # noqa: E731
    got = bits_per_byte(model_of(CachedLMHead, config, 0), ids, torch.tensor([31]), 19, make)
    assert got.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("scored", "chunk"), [(0, 1), (5, 1), (-1, 1), (2, 0)])
def test_what_nothing_predicts_cannot_be_scored(scored: int, chunk: int) -> None:
    ids, model = torch.zeros(1, 5, dtype=torch.int64), model_of(CachedLMHead, CONFIGS[1], 0)
    with pytest.raises(ValueError, match="so 1 to 4 tokens of 5 can be scored"):
        bits_per_byte(model, ids, torch.tensor([3]), scored, lambda: None, chunk)


def test_bytes_are_those_of_the_text() -> None:
    def batch_decode(ids: Any, **_: Any) -> list[str]:
        return ["".join("aé€"[token] for token in row) for row in ids.tolist()]

    tokenizer = SimpleNamespace(batch_decode=batch_decode)
    ids = torch.tensor([[0, 0, 1, 2], [2, 2, 0, 0]])
    assert bytes_scored(tokenizer, ids, 2).tolist() == [5, 2]
