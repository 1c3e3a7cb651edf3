"""Lab 21: parts of the kernel compute what PyTorch does, and keep what they promise."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from autograder.check import mark_passed
from gpt import GPTConfig
from solutions.compiled.assemble import assemble
from solutions.compiled.kernel import Kernel
from solutions.compiled.steps import multiply_pairs
from solutions.compiled.weights import TILE
from solutions.compiler import ON, python_of
from solutions.engine.runner import Chunk, FastCache
from solutions.kv_cache import CachedLMHead, KVCache
from solutions.one_kernel import (
    LINE,
    SHARES,
    Layer,
    Machine,
    attend,
    cut,
    exponentiate,
    floor_ms,
    gelu,
    mlp,
    multiply,
    multiply4,
    normalize,
    rows_of,
    self_times,
    softmax,
)
from solutions.paged_attention import BlockManager, PagedCache
from tests.common.engines import model_of

seeds = st.integers(0, 10**6)
# As Python where `make test` has no numba, and compiled by `make test-rest`, which installs it.
in_either_form = pytest.mark.needs("numba") if ON else lambda test: test


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def assert_near(found: np.ndarray, expected: Any, tolerance: float = 2e-5) -> None:
    most = tolerance * float(expected.abs().max()) + 1e-12
    torch.testing.assert_close(torch.from_numpy(found).double(), expected, rtol=0, atol=most)


def wide(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array).double()


# ------------------------------------------------------------------------------ where a step goes


@st.composite
def calls(draw: st.DrawFn, start: float = 0, depth: int = 0) -> list[tuple[str, float, float]]:
    """Draw operations that follow each other, and in each of them others."""
    events = []
    for _ in range(draw(st.integers(0, 3 if depth < 3 else 0))):
        begin = start + draw(st.integers(0, 3))
        within = draw(calls(begin, depth + 1))
        end = max([begin, *(e for _, _, e in within)]) + draw(st.integers(1, 3))
        events += [(draw(st.sampled_from("abc")), begin, end), *within]
        start = end
    return events


@given(calls().filter(bool), st.randoms())
def test_each_moment_belongs_to_the_innermost_operation(events: Any, random: Any) -> None:
    ends = [moment for _, *both in events for moment in both]
    own, outside = dict[str, int](), 0
    for moment in range(min(ends), max(ends)):
        running = [event for event in events if event[1] <= moment < event[2]]
        outside += not running
        if running:
            name, *_ = max(running, key=lambda event: (event[1], -event[2]))
            own[name] = own.get(name, 0) + 1
    random.shuffle(events)
    times, found = self_times(events)
    assert found == outside
    assert {name: both[1] for name, both in times.items() if both[1]} == own
    assert sum(both[0] for both in times.values()) == len(events)


def test_a_floor_is_the_longer_of_two_and_all_calls() -> None:
    machine = Machine(100.0, 200.0, 0.5)
    assert floor_ms(300, 200, 4, machine) == pytest.approx(1000 * (3 + 2))
    assert floor_ms(300, 1000, 4, machine) == pytest.approx(1000 * (5 + 2))


# ------------------------------------------------------------------------------ parts of the kernel


@given(st.integers(2, 40), st.sampled_from([1e-3, 1.0, 300.0]), seeds)
def test_normalize_is_a_layer_norm(n: int, size: float, seed: int) -> None:
    x, norm, out = size * drawn(seed, n), drawn(seed + 1, 2, n), np.full(n, np.nan, np.float32)
    before = x.copy()
    normalize(x, norm, np.float32(1e-5), out)
    gain, bias = wide(norm)
    assert_near(out, F.layer_norm(wide(x), (n,), gain, bias, 1e-5), 1e-4)
    assert np.array_equal(x, before)


@pytest.mark.parametrize("function", [multiply, multiply4, multiply_pairs])
@pytest.mark.parametrize("codes", [False, True])
def test_a_part_of_a_linear_layer(function: Callable[..., None], codes: bool) -> None:
    @given(st.integers(1, 5), st.integers(1, 13), st.integers(1, 9), st.booleans(), st.data())
    def each(rows: int, n_out: int, n_in: int, added: bool, data: Any) -> None:
        first, last = sorted(data.draw(st.tuples(*[st.integers(0, n_out)] * 2)))
        x, weight, bias, out = (
            drawn(seed, *shape)
            for seed, shape in enumerate([(rows, n_in), (n_out, n_in), (n_out,), (rows, n_out)])
        )
        scale = np.abs(drawn(5, n_out)) if codes else np.ones(n_out, np.float32)
        if codes:
            weight = (40 * weight).astype(np.int8)
        before = out.copy()
        function(x, weight, scale, bias, first, last, out, added)
        expected = F.linear(wide(x), wide(weight) * wide(scale)[:, None], wide(bias))
        expected = expected + wide(before) if added else expected
        if first < last:
            assert_near(out[:, first:last], expected[:, first:last])
        others = [j for j in range(n_out) if not first <= j < last]
        assert np.array_equal(out[:, others], before[:, others])

    each()


@in_either_form
@given(st.integers(1, 6), st.integers(1, 11), seeds)
def test_a_row_has_the_bits_that_it_has_alone(rows: int, n_out: int, seed: int) -> None:
    x, weight, bias = drawn(seed, rows, 33), drawn(seed + 1, n_out, 33), drawn(seed + 2, n_out)
    found = []
    for function in multiply, multiply4, multiply_pairs:
        for parts in [x], [x[r : r + 1] for r in range(rows)]:
            outs = [np.zeros((len(part), n_out), np.float32) for part in parts]
            for part, out in zip(parts, outs, strict=True):
                function(part, weight, np.ones_like(bias), bias, 0, n_out, out, False)
            found.append(np.concatenate(outs))
    assert all(np.array_equal(found[0], each) for each in found)


@given(st.lists(st.floats(-87.25, 88, width=32), min_size=1, max_size=20))
def test_powers_of_e(numbers: list[float]) -> None:
    x = np.array(numbers, np.float32)
    powers = x.astype(float)
    exponentiate(x, np.empty(len(x), np.int32))
    most = 1e-6 + 2e-7 * np.abs(powers)
    assert (np.abs(x - np.exp(powers)) <= most * np.exp(powers)).all()


def test_small_powers_of_e_are_as_good_as_0() -> None:
    x = np.array([-88, -100, -1e4, -1e30, -math.inf], np.float32)
    exponentiate(x, np.empty(5, np.int32))
    assert ((x >= 0) & (x < 1.3e-38)).all()


@given(st.integers(1, 20), st.sampled_from([1.0, 10.0, 100.0]), seeds)
def test_gelu_and_softmax(n: int, size: float, seed: int) -> None:
    x, whole = size * drawn(seed, n), np.empty(n, np.int32)
    for function, expected in (
        (lambda y: gelu(y, np.empty(n, np.float32), whole), F.gelu(wide(x), approximate="tanh")),
        (lambda y: softmax(y, whole), wide(x).softmax(dim=0)),
    ):
        found = x.copy()
        function(found)
        assert_near(found, expected, 3e-5)


@given(st.integers(1, 20), st.integers(1, 5), st.integers(1, 3), st.sampled_from([1, 30]), seeds)
def test_attention_over_a_table(length: int, size: int, heads: int, scale: int, seed: int) -> None:
    dim, blocks = 4, -(-length // size) + 2
    table = np.random.default_rng(seed).permutation(blocks)[:-2]
    keys, values = np.full((2, blocks, size, heads * dim), np.nan, np.float32)
    own_keys, own_values = drawn(seed, 2, length, heads * dim)
    for token in range(length):
        place = table[token // size], token % size
        keys[place], values[place] = own_keys[token], own_values[token]
    query, out = scale * drawn(seed + 1, dim), np.full(dim, np.nan, np.float32)
    start = (heads - 1) * dim
    room = np.empty(length, np.float32), np.empty(length, np.int32)
    attend(query, keys, values, table, start, start + dim, *room, out)
    k, v = (wide(part)[None, :, start:] for part in (own_keys, own_values))
    expected = F.scaled_dot_product_attention(wide(query)[None, None], k, v)[0, 0]
    most = 1e-4 * float(v.abs().max())
    torch.testing.assert_close(wide(out), expected, rtol=0, atol=most)


# ---------------------------------------------------------------------------------- the threads


@given(st.integers(1, 600), st.sampled_from([LINE, TILE]))
def test_shares_follow_each_other_and_are_whole_lines(n: int, line: int) -> None:
    cuts = [cut(n, share, line) for share in range(SHARES + 1)]
    assert (cuts[0], cuts[-1]) == (0, n)
    assert cuts == sorted(cuts)
    assert all(each % line == 0 for each in cuts[:-1])


@given(st.integers(1, 3), st.integers(1, 40), st.integers(1, 140), seeds)
def test_an_mlp_is_pytorchs(rows: int, n: int, n_inner: int, seed: int) -> None:
    hidden, norm = drawn(seed, rows, n), drawn(seed + 1, 2, n)
    shapes = (n_inner, n), (n, n_inner)
    c_fc, c_proj = (
        Layer(drawn(seed + 2, *shape), np.ones(shape[0], np.float32), drawn(seed + 3, shape[0]))
        for shape in shapes
    )
    x, (gain, bias) = wide(hidden), wide(norm)
    inner = F.linear(F.layer_norm(x, (n,), gain, bias, 1e-5), wide(c_fc.weight), wide(c_fc.bias))
    inner = F.gelu(inner, approximate="tanh")
    expected = x + F.linear(inner, wide(c_proj.weight), wide(c_proj.bias))
    room = np.empty_like(hidden), np.empty((rows, n_inner), np.float32)
    own = np.empty(n_inner, np.float32), np.empty(n_inner, np.int32)
    counters = np.zeros((2, 2), np.int64)
    mlp(counters, 0, hidden, norm, np.float32(1e-5), c_fc, c_proj, *room, *own)
    assert_near(hidden, expected, 1e-4)
    assert counters[1].tolist() == [SHARES, SHARES]


# ---------------------------------------------------------------------------- under lab 7's engine


def test_rows_of_a_batch() -> None:
    batch = [Chunk(7, [5, 6, 8], 2, 1), Chunk(3, [4], 0, 0), Chunk(9, [1, 2], 4, 2)]
    ids, positions, tables, wanted = rows_of(batch, {3: [1], 7: [2, 4], 9: [0, 3, 5]})
    assert ids.tolist() == [5, 6, 8, 4, 1, 2]
    assert positions.tolist() == [2, 3, 4, 0, 4, 5]
    assert tables.tolist() == [[2, 4, 0]] * 3 + [[1, 0, 0]] + [[0, 3, 5]] * 2
    assert {request: list(rows) for request, rows in wanted.items()} == {7: [2], 3: [], 9: [4, 5]}


# ------------------------------------------------------------------------------ a learner's step


def double(x: Any, norm: Any, eps: Any, out: Any) -> None:
    """What a learner's `normalize` could be, and clearly another one."""
    for i in range(len(x)):
        out[i] = x[i] + x[i]


def tiny() -> Any:
    config = GPTConfig(vocab_size=40, n_positions=16, n_embd=32, n_layer=2, n_head=2)
    return model_of(CachedLMHead, config, 0).float()


def logits_with(step: dict[str, Any]) -> np.ndarray:
    model = tiny()
    pool = FastCache(PagedCache(model.config, BlockManager(4, 4))).cache.pool.zero_()
    tables = np.array([[1], [1]])
    rows = np.array([5, 6]), np.array([0, 1]), tables, np.array([0, 1])
    return Kernel(model, pool, **step)(*rows)[1]


@pytest.mark.slow
@pytest.mark.in_turn(3)  # all is compiled anew
def test_a_new_part_reaches_all_that_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no other step."""
    usual = logits_with({})
    mark_passed(double)
    theirs = logits_with({"step": assemble(normalize=double, multiply4=multiply4, mlp=mlp)})
    assert np.array_equal(logits_with({}), usual)
    monkeypatch.setattr(torch.nn.LayerNorm, "forward", lambda norm, x: x + x)
    model, ids, positions = tiny(), torch.tensor([[5, 6]]), torch.tensor([[0, 1]])
    expected = model(ids, positions, KVCache(model.config, 1, 2))[0]
    assert_near(theirs, expected.double(), 1e-5)


def test_what_has_not_passed_is_not_compiled() -> None:
    def unchecked(x: Any, whole: Any) -> None:
        pass

    with pytest.raises(ValueError, match=r'`exponentiate` has not passed yet: run check\("one_'):
        assemble(exponentiate=unchecked)
    with pytest.raises(ValueError, match=r"no part 'gelu'; its parts are normalize, multiply,"):
        assemble(gelu=python_of(gelu))
