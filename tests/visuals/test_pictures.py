"""What holds of every picture and every explorer of every lab, over a table of all of them.

Whether a picture shows the right numbers is tested beside the others of its lab.
"""

import pickle
import pkgutil
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from inspect import isfunction
from itertools import combinations
from types import SimpleNamespace
from typing import Any, NamedTuple

import ipywidgets as widgets
import matplotlib.pyplot as plt
import pytest
import torch
from IPython.display import HTML
from matplotlib.colors import to_rgba
from matplotlib.patches import Patch
from matplotlib.text import Text

import visuals
from solutions.kv_reduction import window_mask
from tests.common import samples
from timing.machine import Machine, Work
from visuals import (
    batching,
    decoding,
    disaggregation,
    engine,
    flash_attention,
    generate,
    kv_cache,
    kv_reduction,
    paged_attention,
    prefix_caching,
    quantization,
    roofline,
    speculative,
)
from visuals.style import Picture

pytestmark = pytest.mark.filterwarnings("error")  # a sign that the font lacks, no room for a layout


class Example(NamedTuple):
    """A picture, and what it is handed."""

    draw: Callable[..., Any]
    handed: tuple[Any, ...]

    @property
    def name(self) -> str:
        return f"{self.draw.__module__.removeprefix('visuals.')}.{self.draw.__name__}"


def of(draw: Callable[..., Any], *handed: Any) -> Example:
    return Example(draw, handed)


MANY = {f"first {n} + window": [range(t + 1) for t in range(40)] for n in range(4)}
EMPTY_POOL = vars(samples.BlockManager()) | {"tables": {}, "lengths": {}, "ref_counts": [0] * 4}
WIDE = [[(step // 5) * 16 + slot for slot in range(16)] for step in range(40)]
NOTHING_SEEN = torch.full((2,), -torch.inf)
LONG_SEARCH = samples.search(
    [[samples.Candidate(-1, 0, 1), samples.Candidate(-2, 0, 2)]] * 30, *[1] * 31, width=1
)
LAYERS = [samples.randn(3, 1, 2, 4, 8, seed=n) for n in range(3)]
BEFORE, AFTER = (
    paged_attention.snapshot(samples.BlockManager(), samples.BLOCK_WORDS, what)
    for what in ("before", "after")
)
METHODS = {f"a method with a name, {n}": (4.06, n // 3 / 1000, 0.001) for n in range(20)}
MACHINE = Machine(bandwidth=10e9, flops=50e9)
WORKS = [Work("prefill", 128e9, 1e9, 4.0), Work("decode", 1e9, 2e9, 0.5)]

EXAMPLES = (
    of(generate.show_tokens, ["Once", " upon", "<b>"], [7, 42, 3]),
    of(generate.next_token_bars, samples.randn(8), samples.decode, "the king", 3, 5),
    of(generate.next_token_bars, samples.randn(16), str, "x" * 90 + "\nend"),
    of(generate.explore_next_token, samples.randn(3, 8), [0, 1, 5], samples.decode),
    of(generate.request_timeline, 10.0, [10.5, 10.6, 10.9]),
    of(generate.request_timeline, 10.0, [10.5]),
    of(generate.tokens_computed, [2, 3, 4]),
    of(generate.tokens_computed, [1]),
    of(generate.cost_of_generating, [2, 3, 4], [0.1, 0.2, 0.3]),
    of(kv_cache.score_times_value, *samples.ONE_HEAD, ["The", " king", "\n", "a", "b"], 2),
    of(kv_cache.explore_attention, LAYERS, ["a", "b", "c", "d"]),
    of(kv_cache.show_masks, samples.MASKS),
    of(kv_cache.growing_cache, samples.growing(3, 4, 5)),
    of(kv_cache.show_cache, samples.preallocated(filled=6, length=2)),
    of(kv_cache.time_per_token, {"naive": [9, 0.001, 0.002], "cached": [9, 0.001, 0.001]}, 10),
    of(batching.show_padding, samples.PADDED, samples.IS_TOKEN, samples.POSITIONS, samples.decode),
    of(batching.show_padded_mask, torch.ones(2, 1, 2, 3).tril(1).bool(), samples.IS_TOKEN),
    of(batching.timeline, samples.STATIC),
    of(batching.timelines, {"static": samples.STATIC, "continuous": samples.CONTINUOUS}),
    of(batching.timelines, {"static": WIDE, "continuous": WIDE}),
    of(batching.show_slots, samples.SLOTS),
    of(batching.throughput_and_latency, samples.STEP_SECONDS, 16),
    of(batching.explore_batch, samples.STEP_SECONDS),
    of(paged_attention.memory_card, {"weights": 26, "cache": 12, "the rest": 2}),
    of(paged_attention.memory_bars, samples.USES),
    of(paged_attention.block_size_costs, {1: 1.0, 16: 0.985}, {1: 480.0, 16: 30.5}),
    of(paged_attention.show_blocks, samples.BlockManager(), samples.BLOCK_WORDS, "after the copy"),
    of(paged_attention.show_blocks, SimpleNamespace(**EMPTY_POOL), {}),
    of(paged_attention.draw_snapshot, BEFORE),
    of(paged_attention.step_through, [BEFORE, AFTER]),
    of(paged_attention.show_schedule, samples.HELD, 4),
    of(decoding.distributions, ["a", "b"], {str(n): [n / 10, 1 - n / 10] for n in range(6)}),
    of(decoding.explore_sampling, samples.probs_with, samples.word),
    of(decoding.before_and_after, torch.tensor([0.1, 0.9]), torch.tensor([0.0, 1]), samples.word),
    of(decoding.show_repetition, [*"ab<d", *"xab<y"], 3),
    of(decoding.side_by_side, {"T < 1": "a\n  b & <i>c</i>", "T = 1": "d"}),
    of(decoding.show_tree, samples.SEARCH, samples.word),
    of(decoding.show_tree, samples.search([], 4), samples.word),
    of(decoding.show_tree, samples.search([], *[4, 1] * 20, prompt=40), samples.word),
    of(decoding.show_tree, LONG_SEARCH, samples.word),
    of(decoding.sorting_costs, {"heap": 5120, "sort": 61000}, {"heap": 0.002, "sort": 0.003}),
    of(speculative.show_rounds, "so", [samples.ALL_ACCEPTED, samples.CORRECTION], samples.word),
    of(speculative.show_acceptance, ["a", "$", "\n"], [0.5, 0.2, 0.3], torch.tensor([0.1, 0.9, 0])),
    of(speculative.explore_acceptance, samples.expected_tokens),
    of(speculative.tokens_a_round, samples.expected_tokens, 0.5, 4),
    of(speculative.verify_costs, {4: 0.006, 1: 0.004, 2: 0.005}),
    of(speculative.speed_up_curves, {"shipped": [1, 1.4, 1.5], "n-gram": [1, 0.9]}),
    of(speculative.speed_up_curves, {"shipped": [1, 1.4, 1.5]}, {"shipped": {2: 1.45}}),
    of(engine.timeline, samples.TRACE, samples.SNAPSHOTS),
    of(engine.timeline, samples.TRACE, samples.SNAPSHOTS, 400),
    of(engine.explore_runs, "budget", samples.RUNS, {8: "small", 64: "large"}),
    of(engine.pool_and_queue, samples.SNAPSHOTS, 5),
    of(engine.show_latencies, [0.1, 0.2, 0.4], [0.01, None, 0.03]),
    of(engine.show_latencies, [0.1], [None]),
    of(prefix_caching.chat_turns, samples.CHATS),
    of(prefix_caching.chat_turns, []),
    of(prefix_caching.show_pool, {"<now>": prefix_caching.keep_pool(samples.knowing_manager())}),
    of(prefix_caching.pool_strip, samples.MOMENTS, 8),
    of(prefix_caching.explore_pools, dict.fromkeys((8, 9), samples.MOMENTS), {8: "few", 9: "more"}),
    of(prefix_caching.show_tree, samples.split_tree(), samples.decode),
    of(prefix_caching.show_trees, {"<i>": prefix_caching.keep(samples.tree())}, samples.decode),
    of(prefix_caching.hit_rate_curves, samples.RATES, 9),
    of(prefix_caching.hit_rate_curves, {}),
    of(prefix_caching.grain, {16: 2368, 1: 1960}, 1960),
    *(
        of(draw, {"alone": trace}, 2)
        for draw in (disaggregation.steps_of, disaggregation.gaps_of)
        for trace in samples.LITTLE
    ),
    of(disaggregation.steps_of, samples.POLICIES, 2),
    of(disaggregation.steps_of, {"an engine's own": deque(samples.CHUNKS)}, 2),
    of(disaggregation.gaps_of, samples.POLICIES, 2),
    of(disaggregation.gaps_of, {"an engine's own": deque(samples.CHUNKS)}, 2),
    of(disaggregation.steps_and_gaps, samples.CHUNKS, 2, [samples.CHUNKS, samples.WHOLE]),
    of(disaggregation.explore_budget, samples.BUDGETS, 2, {12: "whole", 8: "small"}),
    of(disaggregation.chunk_mask, 20, 8),
    of(disaggregation.chunk_mask, 640, 16),
    of(disaggregation.chunk_mask, 1, 1),
    of(disaggregation.token_dots, samples.TOKEN_TIMES),
    of(disaggregation.token_dots, {}),
    of(disaggregation.lanes, samples.EVENTS),
    of(disaggregation.lanes, {"P": [], "D": []}),
    of(disaggregation.lanes, {}),
    of(disaggregation.wire_bytes, {640: 2_000_000, 64: 131_072}, 2048),
    of(disaggregation.wire_bytes, {}, 2048),
    of(quantization.number_line, samples.FORMATS, 0.7),
    of(quantization.number_line, samples.FORMATS, -0.7),
    of(quantization.codes_histogram, {"int3": samples.INT3}, {"int3": range(-3, 4)}),
    of(quantization.codes_histogram, {"": torch.zeros(1).char()}, {"": range(-127, 128)}),
    of(quantization.grain, samples.WEIGHT, 2),
    of(quantization.grain, torch.zeros(1, 1), 1),
    of(quantization.grain, torch.nn.Parameter(samples.WEIGHT), 2),
    of(quantization.clipping, samples.CLIPPED, samples.SCALES, samples.ERRORS, samples.CHOSEN, 2),
    of(quantization.channels, *samples.SMOOTHED),
    of(quantization.channels, torch.tensor([[0.0, 0, 0, 5]]), None, samples.ROWS, None),
    of(quantization.ahead, torch.tensor([1.0, 3.0]), torch.tensor([1.0, 2.0])),
    of(quantization.ahead, torch.tensor([1.0]), torch.tensor([1.0])),
    of(quantization.pareto, samples.POINTS),
    of(quantization.pareto, METHODS),
    of(quantization.pareto, {"one": (4, 0.1, 0.01)}, "KB of cache"),
    of(quantization.weights_and_grid, samples.NORMAL, samples.NORMAL, "tensor"),
    of(quantization.explore_bits, torch.nn.Parameter(samples.NORMAL), samples.to_steps),
    of(kv_reduction.kept_rows, {"window": samples.WINDOW, "chosen": samples.HEAVY}),
    of(kv_reduction.kept_rows, {"one": [[0]]}),
    of(kv_reduction.kept_rows, MANY),
    of(kv_reduction.first_token_mass, samples.MASS, samples.EVEN, samples.CONTROLS),
    of(kv_reduction.first_token_mass, torch.zeros(1, 1), samples.EVEN, {"one": (0.0, 0.0)}),
    of(kv_reduction.key_channels, samples.CHANNELS),
    of(kv_reduction.key_channels, torch.zeros(1, 1)),
    of(kv_reduction.key_channels, torch.nn.Parameter(samples.CHANNELS)),
    of(kv_reduction.token_bytes, samples.BYTES),
    of(kv_reduction.token_bytes, {"all": {f"part {n}": 100 for n in range(5)}}),
    of(kv_reduction.preemption, samples.PREEMPTED),
    of(kv_reduction.preemption, {"recompute": (0, 0), "swap": (0, 0)}),
    of(kv_reduction.explore_window, window_mask),
    of(flash_attention.traffic_bars, samples.TILED, samples.NAIVE, samples.FAST_NUMBERS),
    of(flash_attention.traffic_bars, {64: 500}, samples.NAIVE, {64: 1_200}),
    of(flash_attention.online_softmax, samples.SCORES, samples.STATES, 3),
    of(flash_attention.online_softmax, samples.SCORES, samples.states_of(samples.SCORES, 7), 7),
    of(flash_attention.online_softmax, NOTHING_SEEN, samples.states_of(NOTHING_SEEN, 2), 2),
    *(
        of(flash_attention.tile_grid, samples.loads_of(*sizes), *sizes)
        for sizes in ((9, 9, 2, 2), (1, 1, 1, 1), (17, 17, 1, 1), (3, 9, 2, 4), (9, 3, 2, 4))
    ),
    of(flash_attention.over_length, samples.LENGTH_TIMES),
    of(flash_attention.over_length, {"naive": {128: 1.0}}),
    of(flash_attention.lanes, samples.PARTS),
    of(flash_attention.lanes, samples.PARTS[:1]),
    of(flash_attention.walk, [4, 0, 2], [4, 0, 2], 8, 22, 6),
    of(flash_attention.walk, [0], [0], 1, 1, 1),
    of(flash_attention.walk, [20, 3, 13], [20, 3, 13], 16, 40, 30),
    of(roofline.roofline, MACHINE, WORKS),
)


def draws(example: Example) -> Any:
    """What kind of thing it gives: a figure, HTML or an explorer."""
    return example.draw.__annotations__["return"]


def all_that_draw(kind: type) -> list[Any]:
    found = [example for example in EXAMPLES if draws(example) is kind]
    return [pytest.param(example, id=example.name) for example in found]


@pytest.fixture(scope="module", params=all_that_draw(Picture))
def shown(request):
    """The name of a picture, and the figure, drawn once for all tests."""
    figure = request.param.draw(*request.param.handed)
    figure.draw_without_rendering()
    return request.param.name, figure


def everything() -> Iterator[tuple[str, Any]]:
    """All that stands in a module of a lab or for several, by its name."""
    for module in pkgutil.iter_modules(visuals.__path__):
        for name, thing in vars(import_module(f"visuals.{module.name}")).items():
            yield f"{module.name}.{name}", thing


def test_every_public_picture_is_in_the_table():
    public = {
        name
        for name, thing in everything()
        if isfunction(thing) and f"{thing.__module__}.{thing.__name__}" == f"visuals.{name}"
        if thing.__annotations__.get("return") in (Picture, HTML, widgets.VBox)
    }
    with_all = {"explorer.explore"}  # what all explorers are made with
    assert public - with_all == {example.name for example in EXAMPLES}


# ------------------------------------------------------------------------------------ every one


@pytest.mark.parametrize("example", [pytest.param(one, id=one.name) for one in EXAMPLES])
def test_a_picture_leaves_what_it_is_handed_and_is_not_kept_open(example):
    before, open_figures = pickle.dumps(example.handed), plt.get_fignums()
    picture = example.draw(*example.handed)
    assert isinstance(picture, draws(example))
    assert pickle.dumps(example.handed) == before
    assert plt.get_fignums() == open_figures


@pytest.mark.parametrize("example", all_that_draw(HTML))
def test_html_closes_what_it_opens(example):
    html = example.draw(*example.handed).data
    for tag in set(re.findall(r"<(\w+)", html)) - {"br"}:
        assert len(re.findall(f"<{tag}\\b", html)) == html.count(f"</{tag}>")


# -------------------------------------------------------------------------------------- figures

SMALLEST = 7  # pixels of a letter's height where a figure is as wide as a narrow window: 480


def test_a_figure_is_shown_as_png(shown):
    assert shown[1]._repr_png_().startswith(b"\x89PNG")


def test_text_is_legible_in_a_narrow_window(shown):
    _, figure = shown
    pixels = figure.dpi / 72 * 480 / figure.bbox.width  # of a point
    for text in figure.findobj(Text):
        assert pixels * text.get_fontsize() >= SMALLEST or not text.get_text()


def test_nothing_leaves_the_figure_and_no_text_lies_on_another(shown):
    _, figure = shown
    drawn = figure.get_tightbbox()
    assert min(drawn.p0) >= 0
    assert all(drawn.p1 <= figure.bbox_inches.p1)
    written = [
        text
        for axes in figure.axes
        for text in (*axes.texts, axes._left_title, axes._right_title)
        if axes.get_visible() and text.get_text()
    ]
    boxes = [Text.get_window_extent(text) for text in written]  # without an annotation's arrow
    assert all(not one.overlaps(other) for one, other in combinations(boxes, 2))


# What looks alike in black and white, and what tells it apart in the picture.
MARKS, END = "marks, which its legend has too", "END in the box of a text that has ended"
TOLD_OTHERWISE = {
    "engine.timeline": MARKS,
    "engine.CELLS": MARKS,
    "decoding.show_tree": END,
    "decoding.LOOKS": END,
    "kv_cache.time_per_token": "nothing: this is a defect",
}


def is_look(thing: Any) -> bool:
    return isinstance(thing, tuple) and all(isinstance(word, str) for word in thing)


def tables_of_looks() -> Iterator[Any]:
    """Whatever stands in `visuals` as several looks, each of them some colours and other words."""
    for name, thing in everything():
        looks = [*thing.values()] if isinstance(thing, Mapping) else thing
        if isinstance(looks, list | tuple) and len(looks) > 1 and all(map(is_look, looks)):
            yield pytest.param(name, looks, id=name)


@pytest.mark.parametrize(("name", "looks"), [*tables_of_looks()])
def test_looks_differ_in_more_than_colour(name, looks):
    ways = [tuple(word for word in look if not word.startswith("#")) for look in looks]
    assert len(set(ways)) == len(ways) or name in TOLD_OTHERWISE


def without_colour(sign: Any) -> tuple[Any, ...]:
    """What is left of a sign in black and white: hatching, dashes, marker, filling."""
    if isinstance(sign, Patch):
        return sign.get_hatch() or "", is_hollow(sign.get_facecolor())
    dashes = sign.get_linestyle(), str(sign._dash_pattern)  # drawn by plot, and by hlines
    if sign.get_marker() in ("", "None"):
        return dashes
    return *dashes, sign.get_marker(), is_hollow(sign.get_markerfacecolor())


def is_hollow(face: Any) -> bool:
    *colour, alpha = to_rgba(face)
    return colour == [1, 1, 1] or not alpha


def test_what_a_legend_names_differs_in_more_than_colour(shown):
    name, figure = shown
    for legend in filter(None, [*figure.legends, *(axes.get_legend() for axes in figure.axes)]):
        signs = [without_colour(sign) for sign in legend.legend_handles]
        assert len(set(signs)) == len(signs) or name in TOLD_OTHERWISE


# ------------------------------------------------------------------------------------- explorers


def turned(control: Any) -> Iterator[None]:
    """Set a slider or a choice to its ends and to places between them; then as it was."""
    if isinstance(control, widgets.IntSlider | widgets.FloatSlider):
        name, stops = "value", torch.linspace(control.min, control.max, 5).tolist()
        stops = [type(control.value)(stop) for stop in stops]
    else:
        last = len(control.options) - 1
        name, stops = "index", sorted({0, last // 4, last // 2, last})
    before = getattr(control, name)
    for stop in stops:
        setattr(control, name, stop)
        yield
    setattr(control, name, before)


@pytest.mark.parametrize("example", all_that_draw(widgets.VBox))
def test_an_explorer_redraws_over_the_whole_range_of_its_sliders(example):
    *controls, picture = example.draw(*example.handed).children
    sentence = controls.pop() if isinstance(controls[-1], widgets.HTML) else None
    for control in controls:
        seen = set()
        for _ in turned(control):
            png = bytes(picture.value)
            assert png.startswith(b"\x89PNG")
            seen.add((png, sentence and sentence.value))
        assert len({png for png, _ in seen}) > 1
        assert not sentence or len({words for _, words in seen}) > 1
