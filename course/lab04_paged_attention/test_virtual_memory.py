"""Pages instead of blocks: what a layout takes, lab 3's cache over it, and a manager's books."""

from contextlib import suppress

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt import GPTConfig
from solutions.batching import SlotCache
from solutions.paged_attention import LAYOUTS, OutOfPages, VirtualManager, committed_bytes
from solutions.reserved import ReservedCache

CONFIG = GPTConfig(n_embd=8, n_layer=2, n_head=2)
SLOTS, LENGTH, PAGE = 3, 32, 64  # each range of 32 tokens ends where a page ends


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_count_is_that_of_the_pages_that_the_tokens_addresses_are_on(layout):
    cache, lengths = ReservedCache(CONFIG, SLOTS, LENGTH, layout), [1, 17, 32]
    pages = {
        part[layer, slot, head, token, 0].data_ptr() // PAGE
        for part in (cache.keys, cache.values)
        for layer in range(CONFIG.n_layer)
        for head in range(CONFIG.n_head)
        for slot, length in enumerate(lengths)
        for token in range(length)
    }
    assert len(pages) * PAGE == committed_bytes(lengths, CONFIG, PAGE, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_lab_3s_cache_does_the_same_over_reserved_memory(layout):
    caches = SlotCache(CONFIG, SLOTS, LENGTH), ReservedCache(CONFIG, SLOTS, LENGTH, layout)
    for slots, q_len in (([0], 5), ([2], 3), ([0, 2], 1), ([0], 1)):
        new = torch.randn(3, len(slots), CONFIG.n_head, q_len, CONFIG.head_dim)
        for cache in caches:
            cache.select(slots, q_len)
        for layer in range(CONFIG.n_layer):
            torch.testing.assert_close(*(cache.attend(layer, *new) for cache in caches))
    caches[1].memory.give_back()
    assert caches[1].memory.resident_bytes() in (0, caches[1].memory.tensor.nbytes)


calls = st.lists(st.tuples(st.sampled_from(["admit", "grow", "end"]), st.integers(1, 20)))


@given(calls, st.integers(1, 4), st.integers(1, 5), st.integers(1, 12))
def test_pages_are_enough_and_none_is_lost(calls, rows, page_tokens, num_pages):
    manager = VirtualManager(rows, 20, page_tokens, num_pages)
    for call, number in calls:
        given = {"admit": [number], "grow": [number % rows, number], "end": [number % rows]}[call]
        with suppress(OutOfPages):
            getattr(manager, call)(*given)
        assert manager.free_pages + sum(manager.mapped) == num_pages
        assert manager.maps - manager.unmaps == sum(manager.mapped)
        needed = map(manager.pages_for, manager.tokens)
        assert all(has >= needs for has, needs in zip(manager.mapped, needed, strict=True))
