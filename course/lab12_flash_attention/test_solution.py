"""Lab 12: tiles, parts and blocks agree with a softmax over all scores and move what is counted.

Everything is compared in float64. Scores are on a grid, around 0 or up to some thousands, so that
they are the same numbers however they are computed.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask
from torch.nn.attention.flex_attention import flex_attention as pytorch_flex
from torch.overrides import TorchFunctionMode

from gpt import GPTConfig
from solutions.engine.engine import Parts
from solutions.flash_attention import (
    EMPTY,
    FULL,
    TiledCache,
    absorb,
    alibi,
    attend_in_tiles,
    attend_part,
    backward_tile,
    block_reader,
    count_traffic,
    empty_state,
    finish,
    flash_attention,
    flex_in_tiles,
    in_documents,
    merge,
    naive_attention,
    online_steps,
    paged_decode,
    split_decode,
    tile_kinds,
    with_sink,
)
from solutions.kernels.slow_memory import Memory, OutOfFastMemory, fast_numbers_for
from solutions.paged_attention import BlockManager, PagedCache
from tests.common.engines import blocks_for, normal, shuffled
from tests.common.serving import Load, loads, serve

seeds, leads = st.integers(0, 99), st.sampled_from([(), (1,), (3,), (2, 3)])
head_dims, blocks = st.sampled_from([1, 4, 16]), st.integers(1, 9)
lengths, sizes = st.integers(1, 20), st.sampled_from([0.5, 30.0])  # scores up to 4 or to 14,400


def on_a_grid(seed: int, size: float, *shape: int) -> Tensor:
    """Numbers of which products and sums are exact."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-4, 5, shape, generator=generator).double() / 4 * size


def two_passes(scores: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Output and lse from all scores at once; NaN, from 0 / 0, where a query sees no key."""
    lse = scores.logsumexp(dim=-1)
    return scores.softmax(dim=-1).nan_to_num(0) @ values, lse


def causal(queries: Tensor, keys: Tensor) -> Tensor:
    """The scores, with −inf after each query; the queries are the last of the tokens."""
    q_len, k_len = queries.shape[-2], keys.shape[-2]
    scores = queries @ keys.mT / queries.shape[-1] ** 0.5
    later = torch.arange(k_len) > torch.arange(q_len)[:, None] + k_len - q_len
    return scores.masked_fill(later, -torch.inf)


def assert_same(got: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    finite = expected[expected.isfinite()]
    largest = finite.abs().max().item() if finite.numel() else 0.0
    assert got.shape == expected.shape
    torch.testing.assert_close(got, expected, rtol=0, atol=tolerance * largest)


def assert_both(got: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    for one, other in zip(got, expected, strict=True):
        assert_same(one, other)


@st.composite
def inputs(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values; some queries may see nothing."""
    lead, head_dim, seed = draw(leads), draw(head_dims), draw(seeds)
    q_len, k_len, size = draw(lengths), draw(lengths), draw(sizes)
    queries = on_a_grid(seed, size, *lead, q_len, head_dim)
    keys = on_a_grid(seed + 1, size, *lead, k_len, head_dim)
    return queries, keys, normal(seed + 2, *lead, k_len, head_dim)


# ------------------------------------------------------------------------------ the running softmax


@st.composite
def masked_scores(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Scores with −inf anywhere, and values."""
    lead, seed, size = draw(leads), draw(seeds), draw(st.sampled_from([1.0, 2000.0]))
    queries, keys, hidden = draw(st.integers(1, 4)), draw(st.integers(1, 12)), draw(st.floats(0, 1))
    scores = size * normal(seed, *lead, queries, keys)
    generator = torch.Generator().manual_seed(seed)
    is_hidden = torch.rand(scores.shape, generator=generator) < hidden
    return scores.masked_fill(is_hidden, -torch.inf), normal(seed + 1, *lead, keys, 5)


@given(masked_scores(), st.data())
def test_tiles_in_any_order_are_one_softmax(case: tuple[Tensor, Tensor], data: Any) -> None:
    scores, values = case
    order = data.draw(st.permutations(range(scores.shape[-1])))
    inside = st.integers(1, len(order) - 1) if len(order) > 1 else st.nothing()
    cuts = sorted(data.draw(st.sets(inside)))
    state = empty_state(torch.zeros(*scores.shape[:-1], 5, dtype=torch.float64))
    for start, end in pairwise([0, *cuts, len(order)]):
        tile = order[start:end]
        state = absorb(state, scores[..., tile], values[..., tile, :])
    assert torch.equal(state.peak, scores.amax(dim=-1))
    assert_both(finish(state), two_passes(scores, values))


@given(st.integers(1, 12), blocks, seeds)
def test_online_steps_have_every_weight(keys: int, block_k: int, seed: int) -> None:
    scores = normal(seed, keys)
    steps = list(online_steps(scores, block_k))
    assert len(steps) == -(-keys // block_k)
    for number, state in enumerate(steps, 1):
        seen = scores[: number * block_k]
        assert_same(state.weighted[0, : len(seen)], torch.exp(seen - seen.max()))
        assert not state.weighted[0, len(seen) :].any()
        assert_same(state.total, state.weighted.sum(dim=-1))
        assert state.peak.item() == seen.max().item()


# ------------------------------------------------------------------------------------- tile by tile


@given(inputs(), blocks, blocks)
def test_tiles_give_what_two_passes_give(case, block_q, block_k):
    queries, keys, values = case
    assert_both(attend_in_tiles(*case, block_q, block_k), two_passes(causal(queries, keys), values))


# ---------------------------------------------------------------------------------- what is counted


def memory_of(q_len: int, k_len: int, head_dim: int, **room: float) -> Memory:
    keys, values = normal(1, k_len, head_dim), normal(2, k_len, head_dim)
    return Memory(normal(0, q_len, head_dim), keys, values, **room)


@given(lengths, lengths, st.integers(1, 5), blocks, blocks)
def test_memory_moves_the_foretold_traffic(q_len, k_len, head_dim, block_q, block_k):
    naive, tiled = count_traffic(q_len, k_len, head_dim, block_q, block_k)
    memory = memory_of(q_len, k_len, head_dim)
    flash_attention(memory, q_len, k_len, head_dim, block_q, block_k)
    assert memory.moved == tiled
    assert set(memory.tensors) == {"queries", "keys", "values", "output", "lse"}  # no scores
    output = memory.result("output")
    memory = memory_of(q_len, k_len, head_dim)
    naive_attention(memory, q_len, k_len, head_dim)
    assert memory.moved == naive
    assert_same(memory.result("output").nan_to_num(0), output)


@given(lengths, lengths, blocks, blocks)
def test_only_visible_tiles_are_loaded(q_len, k_len, block_q, block_k):
    memory = memory_of(q_len, k_len, 2)
    flash_attention(memory, q_len, k_len, 2, block_q, block_k)
    expected: list[tuple[str, int, int]] = []
    for start in range(0, q_len, block_q):
        end = min(start + block_q, q_len)
        expected.append(("queries", start, end))
        for first in range(0, k_len, block_k):
            if first <= end - 1 + k_len - q_len:
                tile = first, min(first + block_k, k_len)
                expected += [("keys", *tile), ("values", *tile)]
        expected += [("output", start, end), ("lse", start, end)]
    assert memory.trace == expected


@given(lengths, st.integers(1, 5), blocks, blocks)
def test_fast_memory_is_as_foretold(length, head_dim, block_q, block_k):
    q, k = min(block_q, length), min(block_k, length)
    needed = q * head_dim + 2 * k * head_dim + q * k + q * (head_dim + 2)
    assert fast_numbers_for(head_dim, q, k) == needed
    sizes = length, length, head_dim
    flash_attention(memory_of(*sizes, fast_numbers=needed), *sizes, block_q, block_k)
    with pytest.raises(OutOfFastMemory, match=f"take {needed:,} numbers"):
        flash_attention(memory_of(*sizes, fast_numbers=needed - 1), *sizes, block_q, block_k)


def test_a_loaded_tile_is_a_copy() -> None:
    queries, others = normal(0, 3, 5, 4), normal(1, 3, 7, 4)
    memory = Memory(queries, others, others)
    tile = memory.load("keys", 2, 6)
    assert torch.equal(tile, others[:, 2:6])
    tile.zero_()
    assert others.all()
    memory.store("lse", 1, torch.ones(3, 2))
    assert memory.moved == 3 * 4 * 4 + 3 * 2
    assert memory.trace == [("keys", 2, 6), ("lse", 1, 3)]
    assert memory.result("lse").isnan().tolist() == [[True, False, False, True, True]] * 3


def test_what_is_no_tile_is_refused() -> None:
    memory = memory_of(5, 7, 4)
    for tile in [("keys", 4, 8), ("keys", 3, 3), ("keys", -1, 2), ("queries", 5, 6), ("x", 0, 1)]:
        with pytest.raises(ValueError, match=tile[0]):
            memory.load(*tile)
    for start, shape in [(4, (2, 4)), (-1, (2, 4)), (0, (0, 4)), (0, ()), (5, (1,))]:
        with pytest.raises(ValueError, match="no tile of 'output' from token"):
            memory.store("output", start, torch.zeros(shape))
    assert memory.moved == 0


# --------------------------------------------------------------------------------------- in parts


@st.composite
def parts(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    lead, count, seed = draw(leads), draw(st.integers(1, 5)), draw(seeds)
    lses = draw(st.sampled_from([1.0, 2000.0])) * normal(seed, count, *lead)
    is_empty = torch.rand(lses.shape, generator=torch.Generator().manual_seed(seed)) < 0.3
    return 1e3 * normal(seed + 1, count, *lead, 4), lses.masked_fill(is_empty, -torch.inf)


@given(parts())
def test_a_merge_is_a_softmax_over_the_parts(case: tuple[Tensor, Tensor]) -> None:
    outputs, lses = case
    weights = lses.softmax(dim=0).nan_to_num(0)
    expected = (weights[..., None] * outputs).sum(dim=0), lses.logsumexp(dim=0)
    assert_both(merge(outputs, lses), expected)


@given(inputs(), seeds)
def test_a_sink_is_one_more_key(case: tuple[Tensor, Tensor, Tensor], seed: int) -> None:
    queries, keys, values = case
    scores, sink = causal(queries, keys), 3 * normal(seed, 1)
    beside = torch.cat([scores, sink.expand(*scores.shape[:-1], 1)], dim=-1)
    nothing = torch.zeros_like(values[..., :1, :])
    expected = two_passes(beside, torch.cat([values, nothing], dim=-2))
    assert_both(with_sink(*attend_in_tiles(*case, 4, 4), sink), expected)


@given(st.integers(1, 30), st.integers(1, 40), st.integers(1, 3), seeds)
def test_a_split_query_sees_every_key_once(length: int, parts: int, heads: int, seed: int) -> None:
    query = normal(seed, heads, 4)
    keys, values = normal(seed + 1, heads, length, 4), normal(seed + 2, heads, length, 4)
    ranges: list[tuple[int, int]] = []

    def worker(first: int, last: int) -> Any:
        ranges.append((first, last))
        return attend_part(query, keys[:, first:last], values[:, first:last])

    found = split_decode(worker, length, parts)
    expected = two_passes(query[:, None] @ keys.mT / 2, values)
    assert_both(found, (expected[0][:, 0], expected[1][:, 0]))
    assert [key for first, last in ranges for key in range(first, last)] == list(range(length))
    assert len(ranges) <= parts
    assert max(last - first for first, last in ranges) == -(-length // parts)
    assert min(last - first for first, last in ranges) > 0


# ----------------------------------------------------------------------------------- block by block


class SmallTiles(TiledCache):
    tile = 3


TILED = GPTConfig(vocab_size=8, n_positions=64, n_embd=12, n_layer=2, n_head=3)


def both_caches(
    lengths: list[int], q_len: int, block_size: int, tile: int, seed: int
) -> tuple[TiledCache, PagedCache]:
    """Requests of these lengths, selected, in blocks anywhere in a pool of others' tokens."""
    num_blocks = 2 + sum(blocks_for(length, block_size) for length in lengths)
    manager = shuffled(BlockManager(num_blocks, block_size), seed)
    for request, length in enumerate(lengths):
        manager.allocate(request, length)
    tiled, plain = (cls(TILED, manager, dtype=torch.float64) for cls in (TiledCache, PagedCache))
    assert isinstance(tiled, TiledCache)
    tiled.tile = tile
    for cache in (tiled, plain):
        cache.pool.copy_(normal(seed, *cache.pool.shape))
        cache.select(range(len(lengths)), q_len)
    return tiled, plain


@given(st.integers(1, 20), st.integers(1, 6), seeds)
def test_blocks_are_read_where_they_lie(length: int, block_size: int, seed: int) -> None:
    """The output of lab 4's attention in decode, from each block that is needed and no other."""
    _, cache = both_caches([length], 1, block_size, 3, seed)
    manager = cache.manager
    new = normal(seed + 1, 3, 1, 3, 1, 4)
    expected = [cache.attend(layer, *new)[0, :, 0] for layer in range(2)][1]
    slots = [block * block_size + i for block in manager.tables[0] for i in range(block_size)]
    others = set(range(manager.num_blocks * block_size)) - set(slots[:length])
    cache.pool[:, 1].flatten(1, 2)[:, sorted(others)] = torch.nan
    read, asked = block_reader(cache.pool, layer=1), []

    def read_block(block: int) -> Any:
        asked.append(block)
        return read(block)

    table = [*manager.tables[0], manager.num_blocks - 1]
    assert_same(paged_decode(new[0, 0, :, 0], read_block, table, block_size, length), expected)
    assert asked == manager.tables[0]


# ------------------------------------------------------------------------------------ in the engine


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=4),
    st.integers(1, 6),
    st.integers(1, 6),
    st.integers(1, 24),
    seeds,
)
def test_tiles_give_lab_4_s_attention(lengths, q_len, block_size, tile, seed):
    """Where a short row ends, its other slots hold tokens of another request."""
    q_len = min(q_len, min(lengths))
    tiled, plain = both_caches(lengths, q_len, block_size, tile, seed)
    where = tiled.pool.data_ptr()
    for layer in range(TILED.n_layer):
        new = normal(seed + layer, 3, len(lengths), TILED.n_head, q_len, TILED.head_dim)
        before = new.clone()
        assert_same(tiled.attend(layer, *new), plain.attend(layer, *new))
        assert torch.equal(new, before)
        assert torch.equal(tiled.pool, plain.pool)
    assert tiled.pool.data_ptr() == where


class Largest(TorchFunctionMode):
    """Notes how many numbers the largest tensor has that is made meanwhile."""

    numbers = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else [made]:
            if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor._base is None:
                self.numbers = max(self.numbers, tensor.numel())
        return made


def test_no_more_than_a_tile_is_held() -> None:
    """8 queries, 40 keys, tiles of 16: 2 x 16 keys and values of 4 numbers, or 8 x 16 scores."""
    new, rows_and_heads = normal(0, 3, 2, 3, 8, 4), 2 * 3
    largest = []
    for cache in both_caches([40, 33], 8, 4, 16, seed=0):
        with Largest() as watch:
            cache.attend(0, *new)
        largest.append(watch.numbers)
    assert largest[0] == rows_and_heads * 2 * 16 * 4 == rows_and_heads * 8 * 16
    assert largest[1] >= rows_and_heads * 40 * 4


@pytest.mark.slow
def test_the_engine_writes_naive_tokens_in_tiles() -> None:
    happened: Counter[str] = Counter()

    @given(loads())
    def each_load(load: Load) -> None:
        watched = serve(replace(load, parts=Parts(paged_cache=SmallTiles)))
        assert isinstance(watched.engine.runner.kv_cache.cache, SmallTiles)
        for number, story in watched.stories.items():
            expected = load.naive(load.visits[number])
            whole = expected[: len(story.ids)] if story.reasons == ["abort"] else expected
            assert story.ids == whole
        happened["preempted"] += any(story.preempted for story in watched.stories.values())
        happened["blocks of 1"] += load.room["block_size"] == 1
        happened["several tiles"] += max(len(story.ids) for story in watched.stories.values()) > 6
        happened["ragged"] += len({len(visit.prompt) for visit in load.visits}) > 2

    each_load()
    assert min(happened.values()) > 2, happened


# ------------------------------------------------------------------------------------ the gradients


@given(inputs(), blocks, seeds)
def test_gradients_of_tiles_are_autograds(case, block_k, seed):
    queries, keys, values = (part.clone().requires_grad_() for part in case)
    scores = causal(queries, keys)
    is_blind = scores.amax(dim=-1, keepdim=True) == -torch.inf
    weights = scores.masked_fill(is_blind, 0).softmax(dim=-1).masked_fill(is_blind, 0)
    grad_output = normal(seed, *queries.shape)
    expected = torch.autograd.grad(weights @ values, (queries, keys, values), grad_output)
    output, lse = attend_in_tiles(*case, 4, 4)
    before = keys.shape[-2] - queries.shape[-2]
    found = []
    for first in range(0, keys.shape[-2], block_k):
        own_keys, own_values = (part[..., first : first + block_k, :] for part in case[1:])
        saved = output, lse, grad_output
        found.append(backward_tile(case[0], own_keys, own_values, *saved, before - first))
    of_queries, *others = zip(*found, strict=True)
    got = [sum(of_queries), *(torch.cat(tiles, dim=-2) for tiles in others)]
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(
            one, other, rtol=0, atol=1e-10 * max(1.0, other.abs().max().item())
        )


# ------------------------------------------------------------------------------- what is refused


WITH_A_ZERO = [[0, 3, 4, 3, 3], [3, 0, 4, 3, 3], [3, 3, 4, 0, 3], [3, 3, 4, 3, 0]]


def unused_worker(*_: int) -> Any:
    pytest.fail("nothing is read")


@pytest.mark.parametrize(
    ("function", "given"),
    [
        *((count_traffic, sizes) for sizes in WITH_A_ZERO),
        *((flash_attention, [memory_of(3, 3, 4), *sizes]) for sizes in WITH_A_ZERO),
        *((split_decode, [unused_worker, *sizes]) for sizes in ([0, 2], [3, 0])),
        *((paged_decode, [torch.zeros(1, 4), unused_worker, [1, 0], 4, n]) for n in (0, 9)),
    ],
)
def test_refusals(function: Callable[..., Any], given: list[Any]) -> None:
    with pytest.raises(ValueError, match=r"must be 1 or more, not 0|room for 1 to 8 tokens"):
        function(*given)


# ---------------------------------------------------------------------------------------- any mask


def up_to(query: Tensor, key: Tensor) -> Tensor:
    return key <= query


PYTORCH = "ignore:flex_attention called without torch.compile"
MASKS = {
    "causal": up_to,
    "window": lambda query, key: (key <= query) & (query - key < 9),
    "earlier": lambda query, key: key < query,  # query 0 sees nothing
    "texts": in_documents([30, 2, 11, 21], up_to),
    "prefixes": in_documents([40, 24], lambda query, key: (key <= query) | (key < 7)),
}


def block_mask_of(mask: Callable[[Tensor, Tensor], Tensor], tokens: int) -> Any:
    sizes: dict[str, Any] = {"B": None, "H": None, "Q_LEN": tokens, "KV_LEN": tokens}
    return create_block_mask(lambda b, h, q, k: mask(q, k), **sizes, device="cpu", BLOCK_SIZE=16)


@pytest.mark.filterwarnings(PYTORCH)
@pytest.mark.parametrize("tokens", [64, 61])
@pytest.mark.parametrize("name", MASKS)
def test_any_mask_gives_what_flex_attention_of_pytorch_does(name: str, tokens: int) -> None:
    queries, keys, values = torch.randn(3, 1, 4, tokens, 8, dtype=torch.float64).unbind()
    for score_mod, theirs in (
        (lambda scores, query, key: scores, None),
        (alibi(4), lambda score, b, head, query, key: score - 0.25 ** (head + 1) * (query - key)),
    ):
        output, lse = flex_in_tiles(queries, keys, values, 16, MASKS[name], score_mod)
        blocks, aux = block_mask_of(MASKS[name], tokens), AuxRequest(lse=True)
        more = {"score_mod": theirs, "block_mask": blocks, "return_aux": aux}
        wanted, also = pytorch_flex(queries, keys, values, **more)
        torch.testing.assert_close((output, lse), (wanted, also.lse), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", MASKS)
def test_kinds_of_tiles_are_those_of_pytorch(name: str) -> None:
    kinds, theirs = tile_kinds(MASKS[name], 64, 64, 16, 16), block_mask_of(MASKS[name], 64)
    assert (kinds > EMPTY).int().tolist() == theirs.to_dense()[0, 0].tolist()
    assert int((kinds == FULL).sum()) == int(theirs.full_kv_num_blocks.sum())
