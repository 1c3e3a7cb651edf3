"""Lab 11's measure: bits for a byte of text, streamed through a cache."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt import GPTConfig, GPTLMHead
from solutions.kv_cache import CachedLMHead, KVCache
from solutions.kv_reduction import HeavyCache, WindowCache
from solutions.quality.bits_per_byte import bits_per_byte, logits_of
from solutions.quality.streamed import streamed_bits
from tests.common.engines import model_of, seeds

CONFIG = GPTConfig(vocab_size=4096, n_positions=16, n_embd=16, n_layer=2, n_head=2)


@pytest.mark.slow
@given(seeds, st.integers(1, 3), st.integers(2, 16), st.integers(1, 20), st.data())
def test_streamed_bits_are_those_of_one_forward(seed, count, seq, chunk, data):
    scored = data.draw(st.integers(1, seq - 1))
    generator = torch.Generator().manual_seed(seed)
    texts = [*torch.randint(CONFIG.vocab_size, (count, seq), generator=generator)]
    expected = bits_per_byte(logits_of(model_of(GPTLMHead, CONFIG, seed)), texts, scored=scored)
    for new_cache in (
        partial(KVCache, CONFIG, count, seq, dtype=torch.float64),
        partial(WindowCache, CONFIG.n_layer, seq),
        partial(HeavyCache, CONFIG.n_layer, seq, 1),
    ):
        model = model_of(CachedLMHead, CONFIG, seed)
        found = streamed_bits(model, new_cache, texts, scored, chunk)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)


def test_a_cache_that_forgets_is_streamed_through() -> None:
    """Hiding the keys in one forward would be something else: what is hidden has been seen."""
    text, model = torch.arange(16) * 7, model_of(CachedLMHead, CONFIG, 0)
    new_cache = partial(HeavyCache, CONFIG.n_layer, 4, 2)
    token_by_token, at_once = (streamed_bits(model, new_cache, [text], 8, n) for n in (1, 15))
    assert not torch.allclose(token_by_token, at_once, rtol=1e-6)


@pytest.mark.parametrize(("scored", "chunk"), [(0, 1), (5, 1), (-1, 1), (2, 0)])
def test_what_nothing_predicts_cannot_be_scored(scored: int, chunk: int) -> None:
    text, model = torch.zeros(5, dtype=torch.int64), model_of(CachedLMHead, CONFIG, 0)
    with pytest.raises(ValueError, match="Of passages of 5 tokens 1 to 4 can be scored"):
        streamed_bits(model, lambda: None, [text], scored, chunk)
