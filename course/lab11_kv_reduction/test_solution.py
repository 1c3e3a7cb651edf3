"""Lab 11's own pieces: grouped heads, windows, heavy rows, codes, and what is swapped.

A reduced cache computes what the whole text gives under the same mask, in float64; with a budget as
large as the text it changes nothing. The naive side computes every text from its start.
"""

from collections.abc import Callable
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gpt import GPTConfig
from solutions.engine.engine import Output, Parts, new_engine
from solutions.engine.integrity import check_integrity
from solutions.engine.limits import Limits
from solutions.kv_cache import CachedLMHead
from solutions.kv_reduction import (
    ChannelKeys,
    HeavyCache,
    HostPool,
    PerLayer,
    QuantizedCache,
    TokenValues,
    WindowCache,
    attention_weights,
    grouped_attention,
    keep_heavy,
    kv_bytes_per_token,
    pool_heads,
    take_rows,
    window_mask,
)
from solutions.kv_variants.grouped_model import grouped, grouped_pages
from solutions.kv_variants.masked_cache import MaskedCache, last_and
from solutions.kv_variants.packed_rows import Codes, packed, unpacked
from solutions.paged_attention import BlockManager, OutOfBlocks, PagedCache
from tests.common.engines import (
    CONFIGS,
    assert_same,
    blocks_for,
    configs,
    model_of,
    naive_logits,
    normal,
    seeds,
)

FABLE = GPTConfig(vocab_size=4096, n_embd=256, n_layer=12, n_head=8)

# ----------------------------------------------------------------------------- the naive side


class WholeText:
    """Stands for a cache where the text is computed at once: attention under a mask, and no more.

    visible: for each layer [batch, heads, seq, seq], or what can be broadcast to it.
    """

    def __init__(self, visible: list[Tensor]) -> None:
        self.visible = visible

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        group = queries.shape[1] // keys.shape[1]
        keys, values = (part.repeat_interleave(group, dim=1) for part in (keys, values))
        scores = queries @ keys.transpose(2, 3) / keys.shape[3] ** 0.5
        return scores.masked_fill(~self.visible[layer], -torch.inf).softmax(dim=-1) @ values


def seen_by_rule(rule: Callable[[int, int], bool], seq: int) -> Tensor:
    return torch.tensor(
        [[key <= query and rule(query, key) for key in range(seq)] for query in range(seq)]
    )


def causal(seq: int) -> Tensor:
    return seen_by_rule(lambda query, key: True, seq)


def under_a_window(window: int, sinks: int, seq: int) -> Tensor:
    return seen_by_rule(lambda query, key: key > query - window or key < sinks, seq)


def whole(model: Any, ids: Tensor, visible: list[Tensor]) -> Tensor:
    return model(ids, torch.arange(ids.shape[1]).expand_as(ids), WholeText(visible))


def in_chunks(model: Any, ids: Tensor, sizes: list[int], cache: Any, after: Any = None) -> Tensor:
    """The logits of all tokens, from forwards of so many tokens each."""
    logits, start = [], 0
    for size in sizes:
        part = ids[:, start : start + size]
        positions = torch.arange(start, start + size).expand_as(part)
        logits.append(model(part, positions, cache))
        start += size
        assert cache.length == start
        if after is not None:
            after(start)
    return torch.cat(logits, dim=1)


def real_bytes(thing: Any, seen: set[int] | None = None) -> int:
    """Of all memory that can be reached from an object's attributes."""
    seen = set() if seen is None else seen
    if isinstance(thing, Tensor):
        storage = thing.untyped_storage()
        is_new = storage.data_ptr() not in seen
        seen.add(storage.data_ptr())
        return storage.nbytes() if is_new else 0
    if isinstance(thing, list | tuple):
        return sum(real_bytes(item, seen) for item in thing)
    if isinstance(thing, dict):
        return sum(real_bytes(item, seen) for item in thing.values())
    return real_bytes(vars(thing), seen) if hasattr(thing, "__dict__") else 0


@st.composite
def texts(draw: st.DrawFn) -> tuple[GPTConfig, Any, Tensor]:
    """A config, a model, and two texts of one length that fills most of the context."""
    config, seed = draw(configs), draw(seeds)
    seq = draw(st.integers(6, config.n_positions))
    ids = st.lists(st.integers(0, config.vocab_size - 1), min_size=seq, max_size=seq)
    return config, model_of(CachedLMHead, config, seed), torch.tensor([draw(ids), draw(ids)])


@st.composite
def cuts(draw: st.DrawFn, seq: int, window: int) -> list[int]:
    """A prefill about as long as a window, single tokens, then chunks."""
    first = draw(st.sampled_from([1, window - 1, window, window + 1, 3 * window + 2]))
    sizes = [max(1, first), *[1] * draw(st.integers(0, 4))]
    while sum(sizes) < seq:
        sizes.append(draw(st.sampled_from([1, 2, window, window + 1])))
    ends = sorted({min(end, seq) for end in accumulate(sizes, initial=0)})
    return [end - start for start, end in pairwise(ends)]


Windowed = tuple[GPTConfig, Any, Tensor, list[int], int, list[int]]


@st.composite
def windowed(draw: st.DrawFn) -> Windowed:
    """A text and a window for each layer, often the same; it may be longer than the text."""
    config, model, ids = draw(texts())
    window, sinks = st.sampled_from([1, 2, 3, 4, 5, 64]), draw(st.integers(0, 3))
    windows = [draw(window)] * config.n_layer
    if draw(st.booleans()):
        windows = [draw(window) for _ in windows]
    return config, model, ids, windows, sinks, draw(cuts(ids.shape[1], min(5, windows[0])))


# ------------------------------------------------------------------------------- bytes of a token


@pytest.mark.parametrize(
    ("kv_heads", "bits", "group", "expected"),
    [
        *((8, 32, None, 24576), (2, 32, None, 6144), (8, 3, None, 2304)),
        *((8, 2, 32, 2304), (8, 8, 32, 6912)),
    ],
)
def test_bytes_of_a_token(kv_heads: int, bits: int, group: int | None, expected: float) -> None:
    assert kv_bytes_per_token(FABLE, kv_heads, bits, group) == expected


# ----------------------------------------------------------------------------------- fewer heads


def with_equal_heads(model: Any, kv_heads: int) -> Any:
    """The same model with the keys and values of a group's heads all equal to its first one's."""
    model = grouped(model, model.config.n_head, pool_heads)  # a copy
    n_head, head_dim = model.config.n_head, model.config.head_dim
    first = [head // (n_head // kv_heads) * (n_head // kv_heads) for head in range(n_head)]
    for block in model.transformer.h:
        for columns in (block.attn.c_attn.weight.data, block.attn.c_attn.bias.data):
            heads = columns.unflatten(-1, (3, n_head, head_dim))
            heads[..., 1:, :, :] = heads[..., 1:, first, :].clone()
    return model


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_pooling_equal_heads_changes_nothing(kv_heads: int) -> None:
    config = CONFIGS[1]
    model = with_equal_heads(model_of(CachedLMHead, config, 1), kv_heads)
    ids, visible = torch.arange(24).view(2, 12), [under_a_window(64, 0, 12)] * config.n_layer
    few = grouped(model, kv_heads, pool_heads)
    assert_same(whole(few, ids, visible), whole(model, ids, visible))


@pytest.mark.parametrize(("n_head", "kv_heads"), [(4, 2), (4, 1), (6, 3), (6, 2), (3, 3)])
def test_pooled_heads_are_means_of_neighbors(n_head: int, kv_heads: int) -> None:
    weight = normal(0, 5 * n_head, 15 * n_head)
    _, keys, values = weight.unflatten(-1, (3, kv_heads, n_head // kv_heads, 5)).mean(-2).unbind(1)
    expected = torch.cat([weight[:, : 5 * n_head], keys.flatten(1), values.flatten(1)], dim=1)
    new_weight, new_bias = pool_heads(weight, weight[0], n_head, kv_heads)
    assert_same(new_weight, expected)
    assert_same(new_bias, expected[0])


@pytest.mark.parametrize(
    ("config", "kv_heads"), [(CONFIGS[1], 2), (CONFIGS[1], 1), (CONFIGS[2], 1)]
)
def test_the_engine_serves_a_grouped_model(config, kv_heads):
    """The naive tokens of that model, from a pool too small for all four."""
    model = grouped(model_of(CachedLMHead, config, 1), kv_heads, pool_heads)
    texts = {number: [3 + number, 14, 1][: 1 + number % 3] for number in range(4)}
    prompts = {number: list(text) for number, text in texts.items()}

    def receive(output: Output) -> None:
        texts[output.request] += output.new_ids

    parts = Parts(paged_cache=grouped_pages(kv_heads, grouped_attention))
    engine = new_engine(model, Limits(10, 2, 6, 4), receive, parts=parts)
    for text in prompts.values():
        engine.submit(text, 8)
    engine.run()
    assert engine.runner.kv_cache.cache.pool.shape[4] == kv_heads
    assert engine.scheduler.preemptions > 0
    for number, prompt in prompts.items():
        ids, seq = torch.tensor([texts[number]]), len(texts[number])
        following = whole(model, ids, [causal(seq)] * config.n_layer)[0].argmax(dim=-1).tolist()
        assert seq == len(prompt) + 8
        assert texts[number] == prompt + following[len(prompt) - 1 : -1]


# ------------------------------------------------------------------------------------- a window


@given(windowed(), st.booleans())
def test_a_window_is_the_text_under_its_mask(case: Windowed, is_grouped: bool) -> None:
    """However the text is cut, with fewer heads too; what is kept is what the next token sees."""
    config, model, ids, windows, sinks, sizes = case
    kv_heads = 1 if is_grouped else config.n_head
    a_token = kv_bytes_per_token(config, kv_heads, bits=64) / config.n_layer
    few = grouped(model, kv_heads, pool_heads)
    visible = [under_a_window(window, sinks, ids.shape[1]) for window in windows]
    expected = whole(few if is_grouped else model, ids, visible)
    forgetting: list[Any] = [PerLayer([WindowCache(1, window, sinks) for window in windows])]
    window = windows[0]
    if windows == [window] * config.n_layer:
        forgetting.append(WindowCache(config.n_layer, window, sinks))
        shown = partial(window_mask, window=window, sinks=sinks)
        for rule in (shown, last_and(window, *range(sinks))):
            masked = MaskedCache(config.n_layer, rule)
            assert_same(in_chunks(few, ids, sizes, masked), expected)

    for cache in forgetting:

        def is_small(length: int, cache: Any = cache) -> None:
            for each in getattr(cache, "caches", [cache]):
                seen = [p for p in range(length) if p < sinks or p > length - each.window]
                assert all(kept[0].tolist() == seen for kept in each.positions)
                assert all(kept.shape[2] == len(seen) for kept in (*each.keys, *each.values))
                row_bytes = 2 * a_token + 8  # of two texts, and the position
                assert each.bytes_held == len(each.keys) * len(seen) * row_bytes
            assert cache.bytes_held == real_bytes(cache)

        assert_same(in_chunks(few, ids, sizes, cache, is_small), expected)


@given(st.integers(1, 6), st.sets(st.integers(0, 9), max_size=3))
def test_last_and_shows_the_last_and_the_chosen(window: int, chosen: set[int]) -> None:
    positions = torch.arange(10)[None]
    mask = last_and(window, *chosen)(positions[:, 4:], positions)
    rule = seen_by_rule(lambda query, key: key > query - window or key in chosen, 10)
    assert torch.equal(mask[0, 0], rule[4:])


@given(windowed(), st.data())
def test_a_window_goes_back_as_far_as_it_can(case: Windowed, data: st.DataObject) -> None:
    """To where every row is held that is needed; and then it goes on as if it had never been on."""
    config, model, ids, windows, sinks, sizes = case
    window = max(windows[0], 2)  # one that shows a token itself alone goes back nowhere
    cache = WindowCache(config.n_layer, window, sinks)
    seq, done = ids.shape[1], data.draw(st.integers(1, len(sizes)))
    in_chunks(model, ids, sizes[:done], cache)
    length = cache.length
    n = data.draw(st.integers(-1, length + 1))
    held = {p for p in range(length) if p < sinks or p > length - window}
    needed = {p for p in range(max(n, 0)) if p < sinks or p > n - window}
    before = [kept.clone() for kept in (*cache.keys, *cache.values, *cache.positions)]
    if not 0 <= n <= length or not needed <= held:
        with pytest.raises(ValueError, match=r"cannot keep|are gone"):
            cache.truncate(n)
        after = [*cache.keys, *cache.values, *cache.positions]
        assert all(torch.equal(*both) for both in zip(before, after, strict=True))
        assert cache.length == length
        return
    cache.truncate(n)
    visible = [under_a_window(window, sinks, seq)] * config.n_layer
    expected = whole(model, ids, visible)
    for start in range(n, seq):
        position = torch.full((2, 1), start)
        assert_same(model(ids[:, start : start + 1], position, cache)[:, 0], expected[:, start])


# ------------------------------------------------------------------------ a policy for each layer


def test_layers_go_back_together_or_not_at_all() -> None:
    model = model_of(CachedLMHead, CONFIGS[1], 0)
    ids = torch.arange(16).view(1, 16)
    cache = PerLayer([WindowCache(1, 64), WindowCache(1, 3)])
    in_chunks(model, ids[:, :8], [8], cache)
    with pytest.raises(ValueError, match="are gone"):
        cache.truncate(7)
    assert [inner.length for inner in cache.caches] == [8, 8]
    cache.truncate(0)
    assert [inner.length for inner in cache.caches] == [0, 0]
    visible = [under_a_window(window, 0, 16) for window in (64, 3)]
    assert_same(in_chunks(model, ids, [16], cache), whole(model, ids, visible))


# ------------------------------------------------------------------------------------ heavy rows


class Replayed:
    """H2O without a cache: everything stays, and a mask forgets. Written row by row."""

    def __init__(self, config: GPTConfig, batch: int, budget: int, recent: int) -> None:
        self.budget, self.recent, self.length = budget, recent, 0
        self.keys: list[Any] = [None] * config.n_layer
        self.values: list[Any] = [None] * config.n_layer
        heads = range(config.n_head)
        self.kept: Any = [
            [[[] for _ in heads] for _ in range(batch)] for _ in range(config.n_layer)
        ]
        self.mass: list[Any] = [[[{} for _ in heads] for _ in range(batch)] for _ in self.keys]

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        if self.keys[layer] is not None:
            keys = torch.cat([self.keys[layer], keys], dim=2)
            values = torch.cat([self.values[layer], values], dim=2)
        self.keys[layer], self.values[layer] = keys, values
        output = torch.zeros_like(queries)
        new = range(self.length, self.length + queries.shape[2])
        for b, h in [(b, h) for b in range(len(queries)) for h in range(queries.shape[1])]:
            kept, mass = self.kept[layer][b][h], self.mass[layer][b][h]
            kept += new
            for q, position in enumerate(new):
                seen = [p for p in kept if p <= position]
                scores = keys[b, h, seen] @ queries[b, h, q] / keys.shape[3] ** 0.5
                weights = scores.softmax(dim=0)
                output[b, h, q] = weights @ values[b, h, seen]
                for p, weight in zip(seen, weights.tolist(), strict=True):
                    mass[p] = mass.get(p, 0.0) + weight
            if len(kept) > self.budget:
                older, newest = kept[: len(kept) - self.recent], kept[len(kept) - self.recent :]
                heavy = sorted(older, key=lambda p: -mass[p])[: self.budget - self.recent]
                kept[:] = sorted(heavy + newest)
        if layer == len(self.keys) - 1:
            self.length = new.stop
        return output


@given(texts(), st.data())
def test_heavy_rows_are_those_of_the_replay(text, data):
    """The same logits, the same rows of every head, and their memory alone."""
    config, model, ids = text
    budget = data.draw(st.sampled_from([1, 2, 3, 4, 5, 6, 64]))
    recent = data.draw(st.integers(0, min(6, budget)))
    sizes = data.draw(cuts(ids.shape[1], min(6, budget)))
    cache = HeavyCache(config.n_layer, budget, recent)
    replayed = Replayed(config, len(ids), budget, recent)
    row_bytes = 2 * (2 * config.n_embd + 2 * config.n_head) * 8

    def is_compact(length: int) -> None:
        rows = min(length, budget)
        assert [held[3].shape[2] for held in cache.held] == [rows] * config.n_layer
        assert cache.bytes_held == real_bytes(cache) == rows * row_bytes * config.n_layer

    logits = in_chunks(model, ids, sizes, cache, is_compact)
    assert_same(logits, in_chunks(model, ids, sizes, replayed))
    for held, kept in zip(cache.held, replayed.kept, strict=True):
        assert held[3].tolist() == kept
    if budget >= ids.shape[1]:
        visible = [under_a_window(64, 0, ids.shape[1])] * config.n_layer
        assert_same(logits, whole(model, ids, visible))


def test_shared_heads_sum_the_mass_of_their_queries() -> None:
    queries, (keys, values) = normal(0, 2, 6, 4, 5), normal(1, 2, 2, 3, 4, 5)
    cache = HeavyCache(1, budget=3, recent=1)
    expected = WholeText([causal(4)]).attend(0, queries, keys, values)
    assert_same(cache.attend(0, queries, keys, values), expected)
    weights = attention_weights(queries, keys, causal(4).expand(2, 3, 4, 4))
    mass = weights.sum(dim=(2, 3))
    assert_same(mass.sum(dim=2), torch.full((2, 3), 8.0, dtype=torch.float64))  # 2 heads, 4 queries
    rows = torch.stack([keep_heavy(m, 3, 1) for m in mass])
    assert_same(cache.held[0][2], take_rows(mass, rows))


@pytest.mark.parametrize("make", [lambda: HeavyCache(2, 4, 2), lambda: QuantizedCache(2, 8, 4, 2)])
def test_a_cache_that_cannot_go_back_says_so(make: Callable[[], Any]) -> None:
    model, cache = model_of(CachedLMHead, CONFIGS[1], 0), make()
    in_chunks(model, torch.zeros(1, 6, dtype=torch.int64), [6], cache)
    for n, said in ((5, "can't go back from 6 tokens to 5"), (7, "cannot keep 7"), (-1, "keep -1")):
        with pytest.raises(ValueError, match=said):
            cache.truncate(n)
    cache.truncate(6)
    assert cache.length == 6


# ------------------------------------------------------------------------------------- reordering

CACHES: list[Any] = [
    lambda: WindowCache(2, 4, 1),
    lambda: HeavyCache(2, 4, 2),
    lambda: QuantizedCache(2, 8, 4, 2),
    lambda: PerLayer([HeavyCache(1, 5, 2), WindowCache(1, 3)]),
]


@pytest.mark.parametrize("make", CACHES)
def test_rows_of_a_batch_can_be_reordered(make: Callable[[], Any]) -> None:
    """And one can go on twice, as beam search does."""
    model, ids = model_of(CachedLMHead, CONFIGS[1], 2), torch.arange(33).view(3, 11)
    one, other, rows = make(), make(), torch.tensor([2, 0, 2, 1])
    in_chunks(model, ids[:, :9], [7, 1, 1], one)
    in_chunks(model, ids[rows, :9], [7, 1, 1], other)
    one.reorder(rows)
    for start in (9, 10):
        new, position = ids[rows, start : start + 1], torch.full((4, 1), start)
        assert_same(model(new, position, one), model(new, position, other))


# ------------------------------------------------------------------------------------- fewer bits


@given(st.sampled_from([1, 2, 4, 8]), st.integers(1, 3), st.integers(1, 4), st.integers(0, 99))
def test_codes_are_packed_and_unpacked(bits: int, rows: int, eights: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(2**bits, (rows, 8 * eights), generator=generator).to(torch.uint8)
    held = packed(codes, bits)
    assert held.dtype == torch.uint8
    assert held.shape == (rows, bits * eights)
    assert torch.equal(unpacked(held, bits), codes)


def frozen(tensors: Any) -> list[Any]:
    return [tensor.tolist() for tensor in tensors]


@given(
    st.sampled_from([(2, 4), (4, 2), (8, 3), (2, 8), (8, 1)]),
    st.integers(1, 20),
    st.integers(0, 5),
    st.data(),
)
def test_codes_dont_depend_on_chunks(kind, tokens, recent, data):
    """Older tokens are in codes as close as half a step, keys in whole groups; the others wait."""
    (bits, group), numbers = kind, normal(tokens, 2, 3, tokens, 8)
    older = max(0, tokens - recent)
    for is_keys in (True, False):
        at_once, kept = (
            ChannelKeys(bits, group, recent) if is_keys else TokenValues(4, recent)
            for _ in range(2)
        )
        at_once.append(numbers)
        for part in numbers.split(data.draw(cuts(tokens, group)), dim=2):
            kept.append(part)
        assert frozen(kept.tensors) == frozen(at_once.tensors)
        assert real_bytes(kept) == sum(t.nbytes for t in kept.tensors)
        coded = older // group * group if is_keys else older
        read = kept.read()
        assert torch.equal(kept.waiting, numbers[:, :, coded:])
        assert torch.equal(read[:, :, coded:], numbers[:, :, coded:])
        if isinstance(kept, ChannelKeys):  # a scale for each channel of each head
            scales = [codes.scale.mT.expand(2, 3, group, 8) for codes in kept.groups]
        else:  # and for each token
            scales = [kept.codes.scale.expand(2, 3, older, 8)] if kept.codes else []
        if coded:
            off = (read - numbers)[:, :, :coded].abs()
            assert (off <= torch.cat(scales, dim=2) * (0.5 + 1e-9)).all()


@given(texts(), st.sampled_from([2, 4, 8]), st.data())
def test_attention_reads_codes_back(text, bits, data):
    """Each layer, after each forward: what is read back stands for the keys and values."""
    config, _, ids = text
    cache = QuantizedCache(config.n_layer, bits, 4, data.draw(st.integers(0, 5)))
    start = 0
    for size in data.draw(cuts(ids.shape[1], 4)):
        for layer in range(config.n_layer):
            new = normal(start + layer, 3, 2, config.n_head, size, config.head_dim)
            output = cache.attend(layer, *new)
            keys, values = cache.keys[layer].read(), cache.values[layer].read()
            visible = causal(start + size)[start:]
            assert_same(output, WholeText([visible]).attend(0, new[0], keys, values))
        start += size
        assert cache.length == start
    assert cache.bytes_held == real_bytes(cache)


def test_two_bits_are_three_and_a_quarter() -> None:
    """In float32: 2 bits, and 40 beside each 32 numbers; what waits comes on top."""
    cache = QuantizedCache(1, bits=2, group=32, recent=32)
    keys = normal(0, 2, 3, 32 * 9, 32).float()
    cache.attend(0, keys, keys, keys)
    numbers, waiting = 2 * keys.numel(), 2 * keys[:, :, :32].numel()
    assert cache.bytes_held == (numbers - waiting) * 3.25 / 8 + waiting * 4


# -------------------------------------------------------------------------------------- elsewhere


def a_pool(num_blocks: int, block_size: int) -> PagedCache:
    cache = PagedCache(CONFIGS[2], BlockManager(num_blocks, block_size), dtype=torch.float64)
    cache.pool.copy_(normal(0, *cache.pool.shape))
    return cache


def rows_of(cache: PagedCache, request_id: int) -> Tensor:
    """Keys and values of a request, token by token."""
    manager = cache.manager
    table, size = manager.tables[request_id], manager.block_size
    tokens = range(manager.lengths[request_id])
    return torch.stack([cache.pool[:, :, table[t // size], t % size] for t in tokens], dim=2)


@given(st.integers(1, 5), st.lists(st.integers(1, 12), min_size=1, max_size=4), st.data())
def test_a_request_comes_back_as_it_went(block_size: int, lengths: list[int], data: Any) -> None:
    """Into whichever blocks are free, whatever has been written into its own meanwhile.

    The last one shares its blocks with the first: if one goes, the other keeps them.
    """
    lengths = [*lengths, lengths[0]]
    needed = sum(blocks_for(length, block_size) for length in lengths)
    cache, host = a_pool(needed + data.draw(st.integers(0, 3)), block_size), HostPool()
    for request_id, length in enumerate(lengths[:-1]):
        cache.manager.allocate(request_id, length)
    cache.manager.fork(0, len(lengths) - 1)
    before = {r: rows_of(cache, r) for r in range(len(lengths))}
    going = data.draw(st.permutations(range(len(lengths))))
    going = going[: data.draw(st.integers(1, len(lengths)))]
    for request_id in going:
        host.swap_out(cache, request_id)
        check_integrity(cache.manager)
        assert request_id not in cache.manager.tables
        kept = host.store[request_id]
        assert torch.equal(kept, before[request_id])
        assert kept.untyped_storage().nbytes() == before[request_id].nbytes  # nothing else
    for block in cache.manager.free_blocks:
        cache.pool[:, :, block] = -7
    for request_id in data.draw(st.permutations(going)):
        host.swap_in(cache, request_id)
        check_integrity(cache.manager)
        assert cache.manager.lengths[request_id] == lengths[request_id]
    assert not host.store
    for request_id, rows in before.items():
        assert torch.equal(rows_of(cache, request_id), rows)


def test_without_room_a_request_stays_out() -> None:
    cache, host = a_pool(3, 2), HostPool()
    cache.manager.allocate(0, 5)
    before = rows_of(cache, 0)
    host.swap_out(cache, 0)
    cache.manager.allocate(1, 2)
    pool = cache.pool.clone()
    with pytest.raises(OutOfBlocks):
        host.swap_in(cache, 0)
    check_integrity(cache.manager)
    assert torch.equal(cache.pool, pool)
    assert cache.manager.tables.keys() == {1}
    cache.free(1)
    host.swap_in(cache, 0)
    assert torch.equal(rows_of(cache, 0), before)


def test_only_what_is_there_can_be_swapped() -> None:
    cache, host = a_pool(3, 2), HostPool()
    with pytest.raises(ValueError, match="There is no request 4 in this pool"):
        host.swap_out(cache, 4)
    with pytest.raises(ValueError, match="Request 4 is not swapped out"):
        host.swap_in(cache, 4)
    cache.manager.allocate(4, 3)
    host.swap_out(cache, 4)
    host.forget(4)
    host.forget(4)
    assert not host.store


def test_the_naive_side_is_gpt() -> None:
    """The measure itself: with nothing hidden it is lab 1's model."""
    ids = torch.arange(20).view(2, 10)
    got = whole(model_of(CachedLMHead, CONFIGS[1], 3), ids, [causal(10)] * 2)
    assert_same(got[:, -1], naive_logits(CONFIGS[1], 3, ids.tolist()))


# ------------------------------------------------------------------------------- what is refused

UNEVEN = [(8, 3), (16, 1), (3, 4), (0, 2), (8, 16)]  # codes, and bits of each
WHOLE_BYTES = "{} codes of {} bits don't fill whole bytes".format
EVEN = "4 query heads can't be divided evenly among {} KV heads".format
SEES_ITSELF, KEEPS_ONE = "a token sees itself", "A heavy cache needs n_layer and budget"
OF_5, RECENT = "A head can keep 1 to 5 of its 5 rows", "must be 0 or more; it is -1"
REFUSED: list[tuple[Callable[..., Any], tuple[Any, ...], str]] = [
    *((WindowCache, given, SEES_ITSELF) for given in [(0, 4, 0), (2, 0, 0), (2, 4, -1)]),
    *((HeavyCache, given, KEEPS_ONE) for given in [(0, 4, 0), (2, 0, 0), (2, 4, -1), (2, 4, 5)]),
    *((keep_heavy, (torch.zeros(2, 5), *n), OF_5) for n in [(0, 0), (3, 4), (3, -1), (6, 2)]),
    *((ChannelKeys, (bits, size, 0), WHOLE_BYTES(size, bits)) for size, bits in UNEVEN),
    *((Codes, (torch.zeros(2, size), bits), WHOLE_BYTES(size, bits)) for size, bits in UNEVEN),
    (ChannelKeys, (8, 4, -1), RECENT),
    (TokenValues, (8, -1), RECENT),
    *((pool_heads, (torch.zeros(8, 24), torch.zeros(24), 4, n), EVEN(n)) for n in (0, -1, 3, 8)),
    *((kv_bytes_per_token, (CONFIGS[1], n), EVEN(n)) for n in (0, -1, 3, 8)),
    (grouped_attention, (torch.zeros(1, 4, 1, 2), *torch.zeros(2, 1, 3, 1, 2), None), EVEN(3)),
]


@pytest.mark.parametrize(
    ("function", "given", "sentence"), REFUSED, ids=[row[0].__name__ for row in REFUSED]
)
def test_refusals(function, given, sentence):
    with pytest.raises(ValueError, match=sentence):
        function(*given)
