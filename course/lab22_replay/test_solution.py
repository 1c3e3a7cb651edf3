"""Lab 22's solution: steps are replayed with the same tokens, and pads touch no request."""

import random
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from course.lab20_llama.test_engine import llama_of
from gpt import GPTConfig
from solutions.engine.engine import Parts, new_engine
from solutions.engine.limits import Limits
from solutions.flash_attention import attend_part
from solutions.kv_cache import CachedLMHead
from solutions.paged_attention import BlockManager
from solutions.prefix_caching import PrefixManager
from solutions.recorded.recorder import Recorder
from solutions.recorded.runner import GraphRunner, scratch_of
from solutions.recorded.step import step_of
from solutions.replay import Device, Graphs, Guarded, in_spans, ladder, rows_computed
from tests.common.engines import model_of, normal
from tests.common.serving import Load, loads, serve

CONFIG = GPTConfig(vocab_size=80, n_positions=40, n_embd=48, n_layer=2, n_head=3)

# ------------------------------------------------------------------------- recorded and replayed

X, Y = normal(0, 4, 6), normal(1, 4, 6)


def in_place() -> torch.Tensor:
    total = X * 2
    total += Y
    total[1:, 2].mul_(3)
    return total


FUNCTIONS = {
    "one operation": lambda: X + Y,
    "views between operations": lambda: (X.T.reshape(3, 8)[:, 1:] * 2).unsqueeze(0),
    "several results": lambda: F.layer_norm(X, (6,)).topk(2).values,
    "several inputs": lambda: torch.cat([X, 2 * Y, X @ Y.T], dim=1),
    "in place": in_place,
    "attention": lambda: F.scaled_dot_product_attention(X[None], Y[None], X[None]),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_replay_computes_with_what_is_in_the_memory_now(function):
    device = Device()
    graph = device.capture(function)
    for seed in (2, 3):
        X.copy_(normal(seed, 4, 6))
        Y.copy_(normal(seed + 9, 4, 6))
        assert torch.equal(graph.replay(), function())
    assert device.launches == 2


def test_views_launch_nothing():
    with Recorder() as recorder:
        (X + Y).T.unsqueeze(0)[0].view(6, 4) * 2
    assert len(recorder.recorded) == 2


@pytest.mark.parametrize(
    "reading", [lambda: X * 2 if X.sum() > 0 else X, lambda: X.sum().item(), lambda: X.nonzero()]
)
def test_a_graph_refuses_to_decide_by_a_number(reading):
    with Recorder():
        reading()
    with pytest.raises(RuntimeError, match="would have decided once"):
        Device().capture(reading)


# ------------------------------------------------------------------------- graphs of some sizes


@given(st.integers(1, 300))
def test_a_ladder_ends_with_the_largest_batch_and_costs_few_pads(most):
    sizes = ladder(most)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == most
    for rows in range(1, most + 1):
        assert rows <= rows_computed([rows], sizes) <= min(rows + 7, 2 * rows)
    assert rows_computed([most + 1, 1], sizes) == most + 2


def replaying(model: Any, limits: Limits, *rest: Any, sizes: list[int], **named: Any) -> Any:
    """Return lab 7's engine, with a block more, whose decode steps are replayed."""
    limits = replace(limits, num_blocks=limits.num_blocks + 1)
    engine = new_engine(model, limits, *rest, **named)
    scratch = scratch_of(engine)
    width = -(-model.config.n_positions // limits.block_size)
    graphs = Graphs(Device(), step_of(engine.runner), sizes, width, scratch)
    engine.runner = GraphRunner(engine.runner, graphs)
    return engine


@settings(max_examples=30)
@given(
    loads(),
    st.sampled_from([BlockManager, PrefixManager]),
    st.sampled_from([[1], [4], [1, 2, 4], [3], [1, 8]]),
)
def test_a_replayed_engine_is_the_engine(load: Load, manager: Any, sizes: list[int]) -> None:
    """Whatever the scheduler plans: chunks, preemption, drafts and the prefix cache."""

    def make(model: Any, limits: Limits, *rest: Any, **named: Any) -> Any:
        named["parts"] = Parts(block_manager=manager)
        return replaying(model, limits, *rest, sizes=sizes, **named)

    serve(replace(load, make=make))


@pytest.mark.parametrize("family", ["gpt2", "tied"])
def test_a_decode_step_is_one_launch(family):
    is_gpt2 = family == "gpt2"
    model = model_of(CachedLMHead, CONFIG, 0) if is_gpt2 else llama_of(family, CONFIG, 0)
    tokens: dict[str, dict[int, list[int]]] = {"usual": {}, "replayed": {}}
    limits = Limits(40, 4, 64, 3)

    def into(name: str, output: Any) -> None:
        tokens[name].setdefault(output.request, []).extend(output.new_ids)

    plain = new_engine(model, limits, partial(into, "usual"))
    engine = replaying(model, limits, partial(into, "replayed"), sizes=[1, 2, 4])
    for each in (plain, engine):
        for number, count in enumerate((9, 4, 6)):
            each.submit([5 + number, 3, 70 - number], count)
        each.step()
        for _ in range(8):
            each.step()
    assert tokens["usual"] == tokens["replayed"]
    assert engine.runner.graphs.graphs[1].device.launches == 8


# ---------------------------------------------------------------------------- code under guards


@given(st.lists(st.integers(0, 12)), st.integers(0, 9))
def test_code_runs_only_where_its_guards_hold(calls, limit):
    traced = list[int]()

    def trace(number: int) -> Any:
        traced.append(number)
        return [lambda other: other // 3 == number // 3], lambda other: ("code", number // 3, other)

    function = Guarded(trace, lambda number: ("eager", number), limit)
    for number in calls:
        found = function.run(number)
        is_kept = number // 3 in [each // 3 for each in traced]
        assert found == (("code", number // 3, number) if is_kept else ("eager", number))
    kinds = list(dict.fromkeys(number // 3 for number in calls))
    assert [number // 3 for number in traced] == kinds[:limit]


# ------------------------------------------------------------------------ the same bits in a split


@given(st.integers(1, 200), st.integers(1, 70), st.integers(0, 9))
def test_spans_give_the_whole_attention_with_the_same_bits_in_any_order(length, span, seed):
    query, keys, values = (normal(n, 2, *shape) for n, shape in
                           enumerate(((8,), (length, 8), (length, 8))))  # fmt: skip
    asked = list[tuple[int, int]]()

    def worker(first: int, last: int) -> Any:
        asked.append((first, last))
        return attend_part(query, keys[:, first:last], values[:, first:last])

    def run(tasks: Any, order: random.Random) -> Any:
        places = list(range(len(tasks)))
        order.shuffle(places)
        return ((place, tasks[place]()) for place in places)

    found = in_spans(worker, length, span, partial(run, order=random.Random(seed)))
    assert sorted(asked) == [(a, min(a + span, length)) for a in range(0, length, span)]
    again = in_spans(worker, length, span, partial(run, order=random.Random(seed + 1)))
    assert all(map(torch.equal, found, again))
    for ours, right in zip(found, worker(0, length), strict=True):
        torch.testing.assert_close(ours, right)
