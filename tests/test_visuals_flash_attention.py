"""The pictures of lab 12 show what they are handed: these tests read the drawn data back."""

import math
from copy import deepcopy
from itertools import combinations, pairwise

import matplotlib.pyplot as plt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.patches import FancyArrowPatch, Rectangle

from solutions.flash_attention import (
    count_traffic,
    flash_attention,
    hide_later_keys,
    online_steps,
)
from solutions.kernels.slow_memory import Memory, fast_numbers_for
from tests.common.pictures import kind_of, legend_of, texts
from visuals.flash_attention import (
    BEFORE,
    FAST,
    HELD,
    LOADED,
    MASKED,
    MOST_NUMBERED,
    MOVED,
    NOW,
    OTHER,
    PART,
    REST,
    RING,
    SHRUNK,
    SKIPPED,
    SLOTS,
    TILES,
    WEIGHT,
    WEIGHTS,
    faster_from,
    lanes,
    online_softmax,
    over_length,
    tile_grid,
    traffic_bars,
    walk,
)


@pytest.mark.parametrize(
    "looks", [{"moved": MOVED, "fast": FAST}, WEIGHTS, TILES, {"part": PART, "to": WEIGHT}, SLOTS]
)
def test_kinds_differ_in_more_than_colour(looks):
    ways = [(hatch, face in ("white", "none")) for face, _, hatch in looks.values()]
    assert all(one != other for one, other in combinations(ways, 2))


# ---------------------------------------------------------------------- what tiles save, and take

TILED, NAIVE, FAST_NUMBERS = {16: 2_000, 64: 500}, 5_000, {16: 30, 64: 1_200}


def test_bars_are_what_is_moved_and_what_is_held():
    figure = traffic_bars(TILED, NAIVE, FAST_NUMBERS)
    above, below = figure.axes
    assert [bar.get_height() for bar in above.patches] == [2_000, 500]
    assert [bar.get_height() for bar in below.patches] == [30, 1_200]
    assert texts(above) == ["2,000\n2.5× less", "500\n10.0× less"]
    assert texts(below) == ["30", "1,200"]
    for axes in (above, below):
        assert [label.get_text() for label in axes.get_xticklabels()] == ["16", "64"]


def test_the_naive_way_is_a_line_that_is_named():
    figure = traffic_bars(TILED, NAIVE, FAST_NUMBERS)
    (line,) = figure.axes[0].lines
    assert list(line.get_ydata()) == [5_000, 5_000]
    assert figure.axes[0].get_ylim()[1] > 5_000
    assert legend_of(figure) == ["the naive way: 5,000"]


def test_tiles_that_move_more_than_the_naive_way_fit_into_the_picture():
    above, _ = traffic_bars({1: 7_000}, NAIVE, {1: 5}).axes
    assert above.get_ylim()[1] > 7_000
    assert texts(above) == ["7,000\n0.7× less"]


# ------------------------------------------------------------------------------ the running softmax

SCORES = torch.tensor([1.0, -2.0, 0.0, 3.0, 2.0, -1.0, 0.5])
STATES = [tuple(state) for state in online_steps(SCORES, 3)]  # tiles of 3, 3 and 1; peaks 1, 3, 3


def weights_of(axes, kind):
    """The weights by key that are drawn in the look of a kind."""
    return {
        round(bar.get_x() + bar.get_width() / 2): bar.get_height()
        for bar in axes.patches
        if kind_of(bar, WEIGHTS) == kind
    }


def as_drawn(keys, weights):
    return pytest.approx({key: float(weights[key]) for key in keys})


def test_a_panel_for_each_tile_has_its_weights_beside_those_of_the_tiles_before():
    tiles = online_softmax(SCORES, STATES, 3).axes[1:-1]
    assert len(tiles) == 3
    for number, (axes, (_, _, weighted)) in enumerate(zip(tiles, STATES, strict=True)):
        start, end = 3 * number, min(3 * number + 3, 7)
        assert weights_of(axes, BEFORE) == as_drawn(range(start), weighted[0])
        assert weights_of(axes, NOW) == as_drawn(range(start, end), weighted[0])


def test_where_the_peak_rises_what_was_before_is_outlined():
    _, first, second, third, _ = online_softmax(SCORES, STATES, 3).axes
    assert weights_of(second, SHRUNK) == as_drawn(range(3), STATES[0][2][0])
    assert weights_of(first, SHRUNK) == weights_of(third, SHRUNK) == {}


def test_the_titles_tell_peak_factor_and_total():
    tiles = online_softmax(SCORES, STATES, 3).axes[1:-1]
    assert [axes.get_title("left") for axes in tiles] == [
        "tile 1: the peak is 1.00",
        "tile 2: the peak rises to 3.00; all before × 0.14",
        "tile 3: the peak stays 3.00",
    ]
    totals = [f"total {float(total):.2f}" for _, total, _ in STATES]
    assert [axes.get_title("right") for axes in tiles] == totals


def test_a_factor_that_is_tiny_is_not_told_as_zero():
    scores = torch.tensor([0.0, 20.0])
    axes = online_softmax(scores, [tuple(state) for state in online_steps(scores, 1)], 1).axes[2]
    assert axes.get_title("left").endswith("× 2.1e-09")


def test_all_scores_stand_above_with_the_peak_so_far():
    axes = online_softmax(SCORES, STATES, 3).axes[0]
    (dots,) = [line for line in axes.lines if line.get_marker() == "o"]
    assert list(dots.get_ydata()) == SCORES.tolist()
    peaks = [lines.get_segments()[0].tolist() for lines in axes.collections[1:]]
    assert peaks == [[[-0.5, 1], [2.5, 1]], [[2.5, 3], [5.5, 3]], [[5.5, 3], [6.5, 3]]]


def test_in_the_end_stands_the_softmax():
    axes = online_softmax(SCORES, STATES, 3).axes[-1]
    assert weights_of(axes, BEFORE) == as_drawn(range(7), SCORES.softmax(dim=0))
    (dots,) = axes.lines
    assert list(dots.get_ydata()) == pytest.approx(SCORES.softmax(dim=0).tolist())
    assert axes.get_title("left").startswith(f"divided by {float(STATES[-1][1]):.2f}")


def test_weights_that_are_wrong_are_drawn_wrong():
    """The bars are what was handed over, and the dots what would be right."""
    peak, total, weighted = STATES[-1]
    axes = online_softmax(SCORES, [*STATES[:-1], (peak, 2 * total, weighted)], 3).axes[-1]
    (dots,) = axes.lines
    heights = [height for _, height in sorted(weights_of(axes, BEFORE).items())]
    assert [2 * height for height in heights] == pytest.approx(list(dots.get_ydata()))


@pytest.mark.filterwarnings("error")
def test_tiles_of_which_nothing_is_seen():
    scores = torch.tensor([-torch.inf, -torch.inf, 1.0, 2.0, -torch.inf, -torch.inf])
    figure = online_softmax(scores, [tuple(state) for state in online_steps(scores, 2)], 2)
    assert [axes.get_title("left") for axes in figure.axes[1:-1]] == [
        "tile 1: nothing seen yet",
        "tile 2: the peak is 2.00",
        "tile 3: the peak stays 2.00",
    ]
    assert figure._repr_png_().startswith(b"\x89PNG")
    nothing = torch.full((2,), -torch.inf)
    figure = online_softmax(nothing, [tuple(state) for state in online_steps(nothing, 2)], 2)
    assert figure._repr_png_().startswith(b"\x89PNG")


# ------------------------------------------------------------------------------- the grid of tiles


def trace_of(q_len, k_len, block_q, block_k):
    memory = Memory(torch.randn(q_len, 2), torch.randn(k_len, 2), torch.randn(k_len, 2))
    flash_attention(memory, q_len, k_len, 2, block_q, block_k)
    return memory.trace


def cells(axes):
    """The kind of each tile, by (first query, last query, first key, last key)."""
    return {
        (
            round(box.get_y()),
            round(box.get_y() + box.get_height()),
            round(box.get_x()),
            round(box.get_x() + box.get_width()),
        ): kind_of(box, TILES)
        for box in axes.patches
    }


def numbers(axes):
    """The number in each tile, by the middle of its keys and of its queries."""
    return {text.get_position(): text.get_text() for text in axes.texts}


@given(st.integers(1, 14), st.integers(1, 14), st.integers(1, 5), st.integers(1, 5))
def test_each_tile_is_loaded_masked_or_skipped_as_its_pairs_are_seen(
    q_len, k_len, block_q, block_k
):
    """Of whatever lengths, a tile is looked up in the whole table of who sees whom."""
    table = hide_later_keys(torch.zeros(q_len, k_len), k_len - q_len) == 0
    trace = trace_of(q_len, k_len, block_q, block_k)
    (axes,) = tile_grid(trace, q_len, k_len, block_q, block_k).axes
    drawn = cells(axes)
    assert len(drawn) == len(axes.patches) == -(-q_len // block_q) * -(-k_len // block_k)
    for (top, bottom, left, right), kind in drawn.items():
        tile = table[top:bottom, left:right]
        assert tile.shape == (bottom - top, right - left)  # none reaches beyond the last token
        assert kind == (LOADED if tile.all() else MASKED if tile.any() else SKIPPED)


def test_tiles_are_numbered_in_the_order_in_which_keys_came():
    (axes,) = tile_grid(trace_of(4, 6, 2, 2), 4, 6, 2, 2).axes
    assert numbers(axes) == {(1, 1): "1", (3, 1): "2", (1, 3): "3", (3, 3): "4", (5, 3): "5"}
    backwards = [("queries", 2, 4), ("keys", 4, 6), ("keys", 0, 2)]
    (axes,) = tile_grid(backwards, 4, 6, 2, 2).axes
    assert numbers(axes) == {(5, 3): "1", (1, 3): "2"}
    assert list(cells(axes).values()).count(SKIPPED) == 4


def test_what_is_loaded_and_masked_is_counted():
    (axes,) = tile_grid(trace_of(256, 256, 32, 32), 256, 256, 32, 32).axes
    assert axes.get_title("left") == "36 of 64 tiles loaded, 8 of them masked in part"
    (axes,) = tile_grid(trace_of(1, 10, 1, 4), 1, 10, 1, 4).axes
    assert axes.get_title("left") == "3 of 3 tiles loaded, 0 of them masked in part"


def test_the_diagonal_ends_at_the_last_query_and_the_last_key():
    (axes,) = tile_grid(trace_of(4, 10, 2, 2), 4, 10, 2, 2).axes
    (line,) = axes.lines
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([6, 10], [0, 4])
    assert (axes.get_xlim(), axes.get_ylim()) == ((0, 10), (4, 0))


def test_many_tiles_are_drawn_without_numbers_and_with_few_ticks():
    length = MOST_NUMBERED + 1
    (axes,) = tile_grid(trace_of(length, length, 1, 1), length, length, 1, 1).axes
    assert len(axes.patches) == length**2
    assert texts(axes) == []
    assert len(axes.get_xticks()) <= MOST_NUMBERED
    (axes,) = tile_grid(trace_of(length - 1, 1, 1, 1), length - 1, 1, 1, 1).axes
    assert texts(axes) == ["1"]  # of so many queries the last one alone sees the key


def test_without_a_trace_nothing_is_loaded():
    (axes,) = tile_grid([], 4, 4, 2, 2).axes
    assert set(cells(axes).values()) == {SKIPPED}
    assert axes.get_title("left").startswith("0 of 4 tiles")
    assert legend_of(tile_grid([], 4, 4, 2, 2)) == [*TILES]


# ------------------------------------------------------------------------- milliseconds over length

TIMES = {
    "naive": {128: 1.0, 512: 8.0, 2048: 100.0},
    "tiles": {2048: 30.0, 128: 3.0, 512: 7.0},
    "kernel": {128: 0.5, 512: 2.0, 2048: 9.0},
    "slow": {128: 2.0, 512: 7.5, 2048: 101.0},
}


def test_each_way_has_its_times_by_length():
    (axes,) = over_length(TIMES).axes
    curves = [line for line in axes.lines if line.get_markersize() != RING["ms"]]
    for line, curve in zip(curves, TIMES.values(), strict=True):
        assert dict(zip(line.get_xdata(), line.get_ydata(), strict=True)) == curve
        assert list(line.get_xdata()) == sorted(curve)
    assert len({(line.get_linestyle(), line.get_marker()) for line in curves}) == len(curves)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert [label.get_text() for label in axes.get_xticklabels()] == ["128", "512", "2,048"]


def test_rings_and_words_tell_from_where_a_way_is_faster_than_the_first():
    figure = over_length(TIMES)
    (axes,) = figure.axes
    rings = [line for line in axes.lines if line.get_markersize() == RING["ms"]]
    assert [(*line.get_xdata(), *line.get_ydata()) for line in rings] == [(512, 7.0), (128, 0.5)]
    assert legend_of(figure) == [
        "naive",
        "tiles: faster from 512 on",
        "kernel: faster from 128 on",
        "slow: nowhere faster",
    ]
    assert axes.get_title("left").endswith("faster than naive")


@pytest.mark.parametrize(
    ("other", "won"),
    [
        ({1: 9, 2: 9, 3: 9}, 1),
        ({1: 10, 2: 9, 3: 9}, 2),  # as fast is not faster
        ({1: 9, 2: 11, 3: 9}, 3),  # once faster by chance
        ({1: 9, 2: 9, 3: 11}, None),
        ({2: 9}, 2),
        ({5: 1}, None),  # no length in common
        ({}, None),
    ],
)
def test_faster_from_a_length_on_means_at_all_that_follow(other, won):
    assert faster_from({1: 10, 2: 10, 3: 10}, other) == won


# ------------------------------------------------------------------------- one query, many workers

PARTS = [(0, 6, 1.0), (6, 12, 3.0), (12, 16, -math.inf)]


def test_a_lane_has_the_keys_of_its_worker_and_its_weight():
    keys, merged = lanes(PARTS).axes
    spans = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in keys.patches]
    assert spans == [(0, 6), (6, 12), (12, 16)]
    both = math.exp(1) + math.exp(3)
    shares = [math.exp(1) / both, math.exp(3) / both, 0]
    assert [bar.get_width() for bar in merged.patches] == pytest.approx(shares)
    assert texts(merged) == ["11.9%", "88.1%", "0.0%"]
    for row, (lane, weight) in enumerate(zip(keys.patches, merged.patches, strict=True)):
        assert lane.get_y() + lane.get_height() / 2 == pytest.approx(row)
        assert weight.get_y() == lane.get_y()
    assert keys.get_ylim() == merged.get_ylim()
    names = [label.get_text() for label in keys.get_yticklabels()]
    assert names == ["worker 1", "worker 2", "worker 3"]
    assert keys.get_title("left") == "keys; the longest part: 6"


@pytest.mark.parametrize("lse", [-2000.0, 2000.0])
def test_weights_sum_to_one_however_large_the_lses_are(lse):
    merged = lanes([(0, 4, lse), (4, 8, lse + 1), (8, 9, lse - 1)]).axes[1]
    assert sum(bar.get_width() for bar in merged.patches) == pytest.approx(1)


def test_parts_that_saw_nothing_weigh_nothing():
    merged = lanes([(0, 4, -math.inf), (4, 8, -math.inf)]).axes[1]
    assert [bar.get_width() for bar in merged.patches] == [0, 0]


# -------------------------------------------------------------------------- the block table, walked


def boxes(axes):
    """By block: the kinds of its boxes, with the share of a block's height that each has."""
    rectangles = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    whole = rectangles[0].get_height()
    found = {}
    for box in rectangles:
        place = int(box.get_x()) + 12 * int(box.get_y())
        found.setdefault(place, {})[kind_of(box, SLOTS)] = pytest.approx(box.get_height() / whole)
    return found


def test_blocks_are_filled_by_the_tokens_that_they_hold():
    (axes,) = walk([4, 0, 2], [4, 0, 2], 8, 22, 6).axes
    other, full = {OTHER: 1}, {REST: 1, HELD: 1}
    assert boxes(axes) == {
        0: full,
        1: other,
        2: {REST: 1, HELD: 6 / 8},
        3: other,
        4: full,
        5: other,
    }
    assert [text for text in texts(axes) if "/" in text] == ["8/8", "6/8", "8/8"]


def test_circles_number_the_blocks_in_the_order_in_which_they_were_read():
    (axes,) = walk([4, 0, 2], [4, 0, 2], 8, 22, 6).axes
    bold = [text for text in axes.texts if text.get_fontweight() == "bold"]
    assert {int(text.get_position()[0]): text.get_text() for text in bold} == {
        4: "1",
        0: "2",
        2: "3",
    }
    assert axes.get_title("left").endswith("the order of the 3 that were read")


def test_arrows_go_from_each_block_to_the_next():
    read = [4, 0, 2, 13]
    (axes,) = walk(read, read, 8, 32, 14).axes
    arrows = [patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)]
    ends = [[(int(x), int(y)) for x, y in arrow._posA_posB] for arrow in arrows]
    places = {4: (4, 0), 0: (0, 0), 2: (2, 0), 13: (1, 1)}
    assert ends == [[places[block], places[other]] for block, other in pairwise(read)]


def test_what_is_read_is_drawn_even_where_it_is_wrong():
    """A block twice, one of somebody else, and one of the table not at all."""
    (axes,) = walk([1, 5, 1], [1, 3], 4, 8, 6).axes
    bold = {
        int(text.get_position()[0]): text.get_text()
        for text in axes.texts
        if text.get_fontweight() == "bold"
    }
    assert bold == {1: "1, 3", 5: "2"}
    assert boxes(axes)[5] == {OTHER: 1}
    assert boxes(axes)[3] == {REST: 1, HELD: 1}


def test_a_block_of_the_table_behind_all_tokens_holds_none():
    (axes,) = walk([2], [2, 0], 4, 4, 3).axes
    assert boxes(axes)[0] == {REST: 1}
    assert "0/4" in texts(axes)
    assert legend_of(walk([2], [2, 0], 4, 4, 3)) == [*SLOTS]


# -------------------------------------------------------------------------------------- all of them


@pytest.mark.filterwarnings("error")  # a sign that the font lacks, or no room for a layout
def test_pictures_are_drawn_without_a_warning_and_not_kept_open():
    before = plt.get_fignums()
    one = [tuple(state) for state in online_steps(SCORES, 7)]
    figures = (
        traffic_bars(TILED, NAIVE, FAST_NUMBERS),
        traffic_bars({64: 500}, NAIVE, {64: 1_200}),
        online_softmax(SCORES, STATES, 3),
        online_softmax(SCORES, one, 7),
        tile_grid(trace_of(9, 9, 2, 2), 9, 9, 2, 2),
        tile_grid(trace_of(1, 1, 1, 1), 1, 1, 1, 1),
        tile_grid(trace_of(3, 9, 2, 4), 3, 9, 2, 4),
        tile_grid(trace_of(9, 3, 2, 4), 9, 3, 2, 4),
        over_length(TIMES),
        over_length({"naive": {128: 1.0}}),
        lanes(PARTS),
        lanes(PARTS[:1]),
        walk([4, 0, 2], [4, 0, 2], 8, 22, 6),
        walk([0], [0], 1, 1, 1),
        walk([20, 3, 13], [20, 3, 13], 16, 40, 30),
    )
    for figure in figures:
        assert figure._repr_png_().startswith(b"\x89PNG")
    assert plt.get_fignums() == before


def test_what_is_handed_in_stays_as_it_was():
    trace = trace_of(9, 9, 2, 2)
    handed = deepcopy((TILED, FAST_NUMBERS, trace, TIMES, PARTS))
    scores, weighted = SCORES.clone(), [state[2].clone() for state in STATES]
    traffic_bars(TILED, NAIVE, FAST_NUMBERS)
    online_softmax(SCORES, STATES, 3)
    tile_grid(trace, 9, 9, 2, 2)
    over_length(TIMES)
    lanes(PARTS)
    assert handed == (TILED, FAST_NUMBERS, trace, TIMES, PARTS)
    assert torch.equal(scores, SCORES)
    assert all(map(torch.equal, weighted, [state[2] for state in STATES]))


def test_the_numbers_of_the_solution_are_drawn_as_they_are():
    sizes = (16, 64)
    tiled = {size: count_traffic(128, 128, 4, size, size)[1] for size in sizes}
    fast = {size: fast_numbers_for(4, size, size) for size in sizes}
    above, below = traffic_bars(tiled, count_traffic(128, 128, 4, 16, 16)[0], fast).axes
    assert [bar.get_height() for bar in above.patches] == [*tiled.values()]
    assert [bar.get_height() for bar in below.patches] == [*fast.values()]
