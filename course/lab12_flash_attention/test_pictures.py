"""The pictures of lab 12 show their arguments: these tests read the drawn data back."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.patches import FancyArrowPatch, Rectangle

import visuals.flash_attention as lab
from course.lab12_flash_attention import samples as samples
from solutions.flash_attention import hide_later_keys
from tests.common.pictures import (
    boxes,
    curves,
    heights,
    kind_of,
    legend_of,
    names,
    numbers_in,
    read,
    said,
    spans,
    texts,
    told,
    widths,
)


def test_bars_are_numbers_moved_and_held():
    above, below = lab.traffic_bars(samples.TILED, samples.NAIVE, samples.FAST_NUMBERS).axes
    assert heights(above) == [2_000, 500]
    assert heights(below) == [30, 1_200]
    assert said(above) == [[2_000, 2.5], [500, 10]]  # times less
    assert texts(below) == ["30", "1,200"]
    assert names(above.xaxis) == names(below.xaxis) == ["16", "64"]
    assert set(above.lines[0].get_ydata()) == {samples.NAIVE}


def weights_of(axes, kind):
    """The weights by key that are drawn in the look of a kind."""
    bars = boxes(axes, lab.WEIGHTS)
    return {round((x + end) / 2): top for one, x, end, _, top in bars if one == kind}


def as_drawn(keys, weights):
    return pytest.approx({key: float(weights[key]) for key in keys})


def test_each_tile_has_a_panel_of_weights():
    scores, *tiles, _ = lab.online_softmax(samples.SCORES, samples.STATES, 3).axes
    for number, (axes, (_, total, weighted)) in enumerate(zip(tiles, samples.STATES, strict=True)):
        start, end = 3 * number, min(3 * number + 3, 7)
        assert weights_of(axes, lab.BEFORE) == as_drawn(range(start), weighted[0])
        assert weights_of(axes, lab.NOW) == as_drawn(range(start, end), weighted[0])
        shrunk = range(3) if number == 1 else []  # where the peak rises
        assert weights_of(axes, lab.SHRUNK) == as_drawn(shrunk, samples.STATES[0][2][0])
        assert numbers_in(axes.get_title("right")) == [round(float(total), 2)]
    # the number of a tile, the peak, and the factor of all before
    assert [told(axes) for axes in tiles] == [[1, 1.0], [2, 3.0, 0.14], [3, 3.0]]
    assert [*curves(scores)[-1].values()] == samples.SCORES.tolist()
    peaks = [lines.get_segments()[0].tolist() for lines in scores.collections[1:]]
    assert peaks == [[[-0.5, 1], [2.5, 1]], [[2.5, 3], [5.5, 3]], [[5.5, 3], [6.5, 3]]]


@pytest.mark.parametrize(
    ("scores", "size", "facts"),
    [
        ([0.0, 20.0], 1, [[1, 0.0], [2, 20.0, 2.1e-09]]),  # a tiny factor isn't told as zero
        ([-torch.inf] * 2 + [1.0, 2.0] + [-torch.inf] * 2, 2, [[1], [2, 2.0], [3, 2.0]]),
    ],
)
def test_a_tile_has_a_peak_if_a_key_is_seen(scores, size, facts):
    scores = torch.tensor(scores)
    _, *tiles, _ = lab.online_softmax(scores, samples.states_of(scores, size), size).axes
    assert [told(axes) for axes in tiles] == facts


@pytest.mark.parametrize("wrong", [1, 2])
def test_the_last_panel_compares_with_a_softmax(wrong):
    peak, total, weighted = samples.STATES[-1]
    handed = [*samples.STATES[:-1], (peak, wrong * total, weighted)]
    axes = lab.online_softmax(samples.SCORES, handed, 3).axes[-1]
    softmax = samples.SCORES.softmax(dim=0)
    assert weights_of(axes, lab.BEFORE) == as_drawn(range(7), softmax / wrong)
    assert curves(axes)[0] == as_drawn(range(7), softmax)
    assert told(axes) == [round(wrong * float(total), 2)]


def grid_of(*sizes, loads=None):
    return lab.tile_grid(samples.loads_of(*sizes) if loads is None else loads, *sizes).axes[0]


def cells(axes):
    """The kind of each tile, by (first query, last query, first key, last key)."""
    tiles = boxes(axes, lab.TILES)
    return {tuple(map(round, (y, end, x, last))): kind for kind, x, last, y, end in tiles}


@given(st.integers(1, 14), st.integers(1, 14), st.integers(1, 5), st.integers(1, 5))
def test_tiles_are_loaded_masked_or_skipped(q_len, k_len, block_q, block_k):
    """For any lengths, a tile is looked up in the table of all keys that each query sees."""
    table = hide_later_keys(torch.zeros(q_len, k_len), k_len - q_len) == 0
    axes = grid_of(q_len, k_len, block_q, block_k)
    drawn = cells(axes)
    assert len(drawn) == len(axes.patches) == -(-q_len // block_q) * -(-k_len // block_k)
    for (top, bottom, left, right), kind in drawn.items():
        tile = table[top:bottom, left:right]
        assert tile.shape == (bottom - top, right - left)  # none reaches beyond the last token
        assert kind == (lab.LOADED if tile.all() else lab.MASKED if tile.any() else lab.SKIPPED)


@pytest.mark.parametrize(
    ("sizes", "loads", "counts", "places"),  # loaded, of how many, partly masked; their middles
    [
        ((4, 6, 2, 2), None, [5, 6, 2], [(1, 1), (3, 1), (1, 3), (3, 3), (5, 3)]),
        (
            (4, 6, 2, 2),
            [("queries", 2, 4), ("keys", 4, 6), ("keys", 0, 2)],
            [2, 6, 1],
            [(5, 3), (1, 3)],
        ),
        ((4, 4, 2, 2), [], [0, 4, 0], []),
        ((256, 256, 8, 8), None, [528, 1024, 32], []),  # too small to be numbered
    ],
)
def test_tiles_are_numbered_as_they_were_loaded(sizes, loads, counts, places):
    axes = grid_of(*sizes, loads=loads)
    assert told(axes) == counts
    found = {text.get_text(): text.get_position() for text in axes.texts}
    assert found == {str(number): place for number, place in enumerate(places, start=1)}
    q_len, k_len, *_ = sizes
    assert curves(axes) == [{k_len - q_len: 0, k_len: q_len}]  # the diagonal


def test_a_ring_marks_where_a_way_wins():
    figure = lab.over_length(samples.LENGTH_TIMES)
    (axes,) = figure.axes
    rings = [line.get_markersize() == lab.WON["ms"] for line in axes.lines]
    drawn = list(zip(rings, curves(axes), strict=True))
    assert [curve for ring, curve in drawn if not ring] == [*samples.LENGTH_TIMES.values()]
    assert all(list(curve) == sorted(curve) for curve in curves(axes))
    assert [curve for ring, curve in drawn if ring] == [{512: 7.0}, {128: 0.5}]
    assert [numbers_in(name) for name in legend_of(figure)] == [[], [512], [128], []]


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
def test_faster_from_means_at_all_that_follow(other, won):
    assert lab.faster_from({1: 10, 2: 10, 3: 10}, other) == won


def test_a_lane_is_a_workers_keys_and_weight():
    keys, merged = lab.lanes(samples.PARTS).axes
    assert spans(keys) == [(0, 6), (6, 12), (12, 16)]
    weights = torch.tensor([1.0, 3.0, -math.inf]).softmax(dim=0).tolist()
    assert widths(merged) == pytest.approx(weights)
    assert said(merged) == [[11.9], [88.1], [0]]
    assert told(keys) == [6]  # keys of the longest part


@pytest.mark.parametrize(
    ("lses", "total"), [((-2e3, -1999), 1), ((2e3, 2001), 1), ([-math.inf], 0)]
)
def test_weights_of_large_lses_sum_to_one(lses, total):
    merged = lab.lanes([(n, n + 1, lse) for n, lse in enumerate(lses)]).axes[1]
    assert sum(widths(merged)) == pytest.approx(total)


def blocks(axes):
    """By block: the kinds of its boxes, with the share of a block's height that each has."""
    rectangles = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    whole = rectangles[0].get_height()
    found = {}
    for box in rectangles:
        place = int(box.get_x()) + 12 * int(box.get_y())
        share = pytest.approx(box.get_height() / whole)
        found.setdefault(place, {})[kind_of(box, lab.SLOTS)] = share
    return found


def circles(axes):
    """The numbers in the circle below each block that was read."""
    bold = [text for text in axes.texts if text.get_fontweight() == "bold"]
    return {int(text.get_position()[0]): text.get_text() for text in bold}


def test_blocks_are_filled_and_numbered():
    (axes,) = lab.walk([4, 0, 2], [4, 0, 2], 8, 22, 6).axes
    full, last = {lab.REST: 1, lab.HELD: 1}, {lab.REST: 1, lab.HELD: 6 / 8}
    assert blocks(axes) == {block: {lab.OTHER: 1} for block in range(6)} | {
        0: full,
        2: last,
        4: full,
    }
    assert [text for text in texts(axes) if "/" in text] == ["8/8", "6/8", "8/8"]
    assert circles(axes) == {4: "1", 0: "2", 2: "3"}
    assert told(axes) == [3]  # that were read

    read = [4, 0, 2, 13]
    (axes,) = lab.walk(read, read, 8, 32, 14).axes
    arrows = [patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)]
    ends = [[(int(x), int(y)) for x, y in arrow._posA_posB] for arrow in arrows]
    places = {4: (4, 0), 0: (0, 0), 2: (2, 0), 13: (1, 1)}
    assert ends == [[places[block], places[other]] for block, other in pairwise(read)]


def test_wrong_reads_are_drawn_too():
    """A block twice, one of another request, and one of the table not at all."""
    (axes,) = lab.walk([1, 5, 1], [1, 3], 4, 8, 6).axes
    assert circles(axes) == {1: "1, 3", 5: "2"}
    assert blocks(axes)[5] == {lab.OTHER: 1}
    assert blocks(axes)[3] == {lab.REST: 1, lab.HELD: 1}
    (axes,) = lab.walk([2], [2, 0], 4, 4, 3).axes  # of which one has no tokens
    assert blocks(axes)[0] == {lab.REST: 1}
    assert "0/4" in texts(axes)


# ---------------------------------------------------------------------------------------- any mask


def test_each_tile_of_a_mask_has_the_look_of_its_kind():
    axes = lab.show_kinds(samples.KINDS[2], 2).axes[0]
    kinds = {0: lab.SKIPPED, 1: lab.MASKED, 2: lab.LOADED}
    assert cells(axes) == {
        (2 * row, 2 * row + 2, 2 * column, 2 * column + 2): kinds[kind]
        for row, line in enumerate(samples.KINDS[2])
        for column, kind in enumerate(line)
    }


def test_words_compare_what_is_computed_with_what_is_seen():
    _, tile, sentence, _ = lab.explore_kinds(samples.kinds_of, samples.SEEN, [2, 3]).children
    assert numbers_in(read(sentence.value)) == [2, 66.7, 58]
    tile.value = 3
    assert numbers_in(read(sentence.value)) == [3, 75, 58]
