"""The pictures of lab 11 show what they are handed: these tests read the drawn data back."""

from copy import deepcopy
from itertools import combinations

import matplotlib.pyplot as plt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from solutions.kv_reduction import HeavyCache, WindowCache, window_mask
from tests.common.pictures import kind_of, legend_of, texts, title_of
from visuals.kv_cache import show_masks
from visuals.kv_reduction import (
    BETWEEN,
    FIRST,
    GONE,
    HEAD,
    LAST,
    PARTS,
    ROWS,
    WAYS,
    explore_window,
    first_token_mass,
    kept_rows,
    key_channels,
    kinds_of,
    preemption,
    token_bytes,
)


@pytest.mark.parametrize("looks", [ROWS.values(), PARTS, WAYS])
def test_kinds_differ_in_more_than_colour(looks):
    ways = [(hatch, face == "white") for face, _, hatch in looks]
    assert all(one != other for one, other in combinations(ways, 2))


# ----------------------------------------------------------------------------- the rows that stay

LETTERS = {FIRST: "f", BETWEEN: "b", LAST: "l", GONE: "g"}


def cells(axes):
    """A word for each step, a letter for each token that it has a box for."""
    rows = {}
    for box in axes.patches:
        step = round(box.get_y() + box.get_height() / 2)
        assert round(box.get_x() + 0.5) == len(rows.get(step, ""))  # no gap, nothing twice
        word = LETTERS[kind_of(box, ROWS)] * round(box.get_width())
        rows[step] = rows.get(step, "") + word
    assert list(rows) == list(range(1, len(rows) + 1))
    return list(rows.values())


WINDOW = [[0], [0, 1], [1, 2], [2, 3], [3, 4]]
CHOSEN = [[0], [0, 1], [0, 2], [0, 2, 3], [0, 2, 4]]


def test_each_token_is_among_the_first_the_last_between_or_gone():
    figure = kept_rows({"window": WINDOW, "chosen": CHOSEN})
    window, chosen = figure.axes
    assert cells(window) == ["l", "ll", "gll", "ggll", "gggll"]
    assert cells(chosen) == ["l", "ll", "fgl", "fgll", "fgbgl"]


def test_a_title_tells_the_way_and_its_largest_number_of_rows():
    figure = kept_rows({"window": WINDOW, "chosen": CHOSEN, "all": [range(n) for n in range(1, 6)]})
    assert [title_of(axes) for axes in figure.axes] == [
        "window\nat most 2 rows",
        "chosen\nat most 3 rows",
        "all\nat most 5 rows",
    ]


def test_the_legend_names_what_occurs():
    assert legend_of(kept_rows({"window": WINDOW})) == [LAST, GONE]
    assert legend_of(kept_rows({"window": WINDOW, "chosen": CHOSEN})) == [
        FIRST,
        BETWEEN,
        LAST,
        GONE,
    ]
    assert legend_of(kept_rows({"all": [[0], [0, 1]]})) == [LAST]


def test_who_gives_up_the_newest_token_is_told_by_those_who_have_it():
    """And where nobody has it any more, it was seen all the same."""
    lost, _ = kept_rows({"lost": [[0], [0]], "window": [[0], [1]]}).axes
    assert cells(lost) == ["l", "fg"]
    (axes,) = kept_rows({"lost": [[0, 1, 2], [0]]}).axes
    assert cells(axes) == ["lll", "fgg"]
    (axes,) = kept_rows({"nothing": [[0, 1], []]}).axes
    assert cells(axes) == ["ll", "gg"]


@given(st.sets(st.integers(0, 15)), st.integers(0, 15))
def test_what_is_first_and_last_is_unbroken_and_the_rest_lies_between(chosen, newest):
    held = {position for position in chosen if position <= newest}
    word = "".join(LETTERS[kind] for kind in kinds_of(held, newest))
    assert {position for position, letter in enumerate(word) if letter != "g"} == held
    assert len(word) == newest + 1
    first, last = word.count("f"), word.count("l")
    assert word.startswith("f" * first)
    assert word.endswith("l" * last)
    inside = word[first : len(word) - last]
    assert inside == "" or (inside[0], inside[-1]) == ("g", "g")


def test_the_caches_of_the_lab_are_shown_as_they_are():
    def positions(cache, of):
        found = []
        for _ in range(6):
            cache.attend(0, *torch.randn(3, 1, 1, 1, 4, generator=torch.Generator().manual_seed(0)))
            found.append(of(cache).tolist())
        return found

    sinks = positions(WindowCache(1, window=3, sinks=1), lambda cache: cache.positions[0][0])
    heavy = positions(HeavyCache(1, budget=3, recent=3), lambda cache: cache.held[0][3][0, 0])
    sinks_axes, heavy_axes = kept_rows({"sinks": sinks, "heavy": heavy}).axes
    assert cells(sinks_axes) == ["l", "ll", "lll", "fgll", "fggll", "fgggll"]
    assert cells(heavy_axes) == ["l", "ll", "lll", "glll", "gglll", "ggglll"]


def test_ways_of_unequal_length_are_refused():
    with pytest.raises(ValueError, match="the same steps, one at least; here they have 5, 2"):
        kept_rows({"window": WINDOW, "short": CHOSEN[:2]})
    with pytest.raises(ValueError, match="here they have 0"):
        kept_rows({"window": []})
    with pytest.raises(ValueError, match="here they have none"):
        kept_rows({})


# ------------------------------------------------------------------------------- the first token

MASS = torch.tensor([[0.001, 0.02], [0.0, 0.004], [0.5, 0.0001]])
EVEN = 1 / 768
CONTROLS = {
    "the first 4": (0.265, 0.012),
    "tokens 200 to 203": (0.383, 0.015),
    "none": (-0.01, 0.1),
}


def test_each_head_is_a_dot_at_its_layer():
    shares, _ = first_token_mass(MASS, EVEN, CONTROLS).axes
    (dots,) = [line for line in shares.lines if line.get_marker() == HEAD["marker"]]
    assert list(dots.get_ydata()) == MASS.flatten().tolist()
    assert [round(x) for x in dots.get_xdata()] == [0, 0, 1, 1, 2, 2]
    assert len(set(dots.get_xdata())) == MASS.numel()  # none hides another
    low, high = shares.get_ylim()
    assert low < 0 < 0.5 < high
    assert shares.get_yscale() == "symlog"


def test_even_shares_are_a_line_and_the_largest_is_told():
    figure = first_token_mass(MASS, EVEN, CONTROLS)
    shares = figure.axes[0]
    (line,) = [line for line in shares.lines if line.get_linestyle() == "--"]
    assert list(line.get_ydata()) == [EVEN, EVEN]
    assert legend_of(figure) == ["a head", "all keys alike: 0.13%"]
    assert title_of(shares) == "attention on the first token;\nthe largest share: 50%"


def test_each_control_is_a_bar_with_its_error_and_its_numbers():
    _, losses = first_token_mass(MASS, EVEN, CONTROLS).axes
    assert [bar.get_width() for bar in losses.patches] == [0.265, 0.383, -0.01]
    drawn = [lines.get_segments()[0][:, 0].tolist() for lines in losses.collections]
    ends = [[bits - error, bits + error] for bits, error in CONTROLS.values()]
    assert drawn == [pytest.approx(pair) for pair in ends]
    assert texts(losses) == [
        "the first 4: +0.2650 ± 0.0120",
        "tokens 200 to 203: +0.3830 ± 0.0150",
        "none: -0.0100 ± 0.1000",
    ]
    for row, (bar, text) in enumerate(zip(losses.patches, losses.texts, strict=True)):
        assert bar.get_y() < row < bar.get_y() + bar.get_height()
        assert row - 0.5 < text.xy[1] < bar.get_y()


# ------------------------------------------------------------------------------- keys by channel

KEYS = torch.tensor([[1.0, -3.0, 0.0, 2.0], [1.5, -4.0, 0.5, 2.5], [0.5, -2.0, -1.0, 6.0]])


def panels_of(figure):
    return {axes.get_label(): axes for axes in figure.axes}


def test_the_keys_are_an_image_whose_colours_are_even_around_0():
    image = panels_of(key_channels(KEYS))["keys"].images[0]
    assert image.get_array().tolist() == KEYS.tolist()
    assert image.get_clim() == (-6, 6)


def test_bars_in_the_margins_go_from_the_smallest_to_the_largest_number():
    panels = panels_of(key_channels(KEYS))
    bars = panels["channels"].patches
    spans = [(bar.get_y(), bar.get_y() + bar.get_height()) for bar in bars]
    assert spans == [(0.5, 1.5), (-4, -2), (-1, 0.5), (2, 6)]
    assert [int(bar.get_x()) for bar in bars] == [0, 1, 2, 3]
    bars = panels["tokens"].patches
    spans = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars]
    assert spans == [(-3, 2), (-4, 2.5), (-2, 6)]
    assert [int(bar.get_y()) for bar in bars] == [0, 1, 2]


def test_margins_tell_their_median_and_have_one_scale_that_holds_all():
    panels = panels_of(key_channels(KEYS))
    channels, tokens, keys = (panels[name] for name in ("channels", "tokens", "keys"))
    assert title_of(channels) == "range of a channel: 1.50 in the median"
    assert tokens.get_xlabel() == "range of a token:\n6.50 in the median"
    low, high = channels.get_ylim()
    assert tokens.get_xlim() == (low, high)
    assert low < -6
    assert high > 6
    assert channels.get_xlim() == keys.get_xlim() == (0, 4)
    assert tokens.get_ylim() == keys.get_ylim() == (3, 0)


def test_keys_that_are_being_trained_are_drawn():
    image = panels_of(key_channels(torch.nn.Parameter(KEYS)))["keys"].images[0]
    assert image.get_array().tolist() == KEYS.tolist()


# ------------------------------------------------------------------------------ bytes of a token

BYTES = {
    "float32": {"keys and values": 24_576},
    "KIVI": {"codes": 1_536, "scales and zeros": 768.0, "recent tokens": 768},
    "groups of 1": {"codes": 6_144, "scales and zeros": 24_576},
}


def test_a_bar_has_its_parts_one_behind_the_other():
    (axes,) = token_bytes(BYTES).axes
    names = list(dict.fromkeys(part for parts in BYTES.values() for part in parts))
    looks = dict(zip(names, PARTS, strict=False))
    found, ends = {}, {}
    for bar in axes.patches:
        way = list(BYTES)[round(bar.get_y() + bar.get_height() / 2)]
        assert bar.get_x() == ends.get(way, 0)
        ends[way] = bar.get_x() + bar.get_width()
        found.setdefault(way, {})[kind_of(bar, looks)] = bar.get_width()
    assert found == BYTES
    assert [label.get_text() for label in axes.get_yticklabels()] == list(BYTES)


def test_behind_a_bar_stands_the_sum_and_what_it_is_to_the_first():
    figure = token_bytes(BYTES)
    (axes,) = figure.axes
    assert texts(axes) == ["24,576", "3,072, 8.0× less", "30,720, 0.8× less"]
    assert [text.xy for text in axes.texts] == [(24_576, 0), (3_072, 1), (30_720, 2)]
    assert legend_of(figure) == ["keys and values", "codes", "scales and zeros", "recent tokens"]


# ------------------------------------------------------------------------------------ preemption

PREEMPTED = {"recompute": (5_321, 0), "swap": (3_010, 45_678_912)}


def test_each_way_has_a_bar_for_its_tokens_and_one_for_its_bytes():
    computed, copied = preemption(PREEMPTED).axes
    assert [bar.get_height() for bar in computed.patches] == [5_321, 3_010]
    assert [bar.get_height() for bar in copied.patches] == [0, 45_678_912]
    assert texts(computed) == ["5,321", "3,010"]
    assert texts(copied) == ["0.0", "45.7"]
    assert [title_of(axes) for axes in (computed, copied)] == ["tokens computed", "MB copied"]
    for axes in (computed, copied):
        assert [label.get_text() for label in axes.get_xticklabels()] == ["recompute", "swap"]


def test_a_way_looks_the_same_in_both_panels():
    computed, copied = preemption(PREEMPTED).axes
    looks = dict(zip(PREEMPTED, WAYS, strict=True))
    for axes in (computed, copied):
        assert [kind_of(bar, looks) for bar in axes.patches] == list(PREEMPTED)


# ------------------------------------------------------------------------- a window, with sliders


def test_moving_a_slider_draws_the_mask_anew(monkeypatch):
    drawn = []

    def kept(masks):
        drawn.append(masks)
        return show_masks(masks)

    monkeypatch.setattr("visuals.kv_reduction.show_masks", kept)
    window, sinks, words, picture = explore_window(window_mask).children
    assert (window.min, window.max, window.value) == (1, 24, 8)
    assert (sinks.min, sinks.max, sinks.value) == (0, 24, 0)
    shown = [(words.value, bytes(picture.value))]
    for slider in (sinks, window):
        slider.value = 3
        shown.append((words.value, bytes(picture.value)))
    assert all(png.startswith(b"\x89PNG") for _, png in shown)
    assert all(one[0] != other[0] and one[1] != other[1] for one, other in combinations(shown, 2))
    assert [list(masks) for masks in drawn] == [
        ["everything", "window 8, sinks 0"],
        ["everything", "window 8, sinks 3"],
        ["everything", "window 3, sinks 3"],
    ]
    positions = torch.arange(24)[None]
    everything, mask = drawn[-1].values()
    assert torch.equal(everything, window_mask(positions, positions, 24, 0))
    assert torch.equal(mask, window_mask(positions, positions, 3, 3))


@pytest.mark.parametrize(("window", "sinks"), [(1, 0), (4, 0), (4, 2), (10, 10), (1, 10)])
def test_the_words_tell_how_many_rows_a_cache_holds(window, sinks):
    cache = WindowCache(1, window, sinks)
    cache.attend(0, *torch.randn(3, 1, 1, 10, 4))
    sliders = explore_window(window_mask, tokens=10).children
    sliders[0].value, sliders[1].value = window, sinks
    rows = cache.positions[0].shape[1]
    assert f"the cache holds {rows} of 10 rows" in sliders[2].value


# -------------------------------------------------------------------------------------- all of them


@pytest.mark.filterwarnings("error")  # a sign that the font lacks, or no room for a layout
def test_pictures_are_drawn_without_a_warning_and_not_kept_open():
    before = plt.get_fignums()
    figures = (
        kept_rows({"window": WINDOW, "chosen": CHOSEN}),
        kept_rows({f"a way with a name, {n}": [range(t + 1) for t in range(40)] for n in range(4)}),
        kept_rows({"one": [[0]]}),
        first_token_mass(MASS, EVEN, CONTROLS),
        first_token_mass(torch.zeros(1, 1), EVEN, {"one": (0.0, 0.0)}),
        key_channels(KEYS),
        key_channels(torch.zeros(1, 1)),
        token_bytes(BYTES),
        token_bytes({"float32": {"keys and values": 24_576}}),
        preemption(PREEMPTED),
        preemption({"recompute": (0, 0), "swap": (0, 0)}),
    )
    for figure in figures:
        assert figure._repr_png_().startswith(b"\x89PNG")
    assert plt.get_fignums() == before


def test_what_is_handed_in_stays_as_it_was():
    handed = WINDOW, CHOSEN, CONTROLS, BYTES, PREEMPTED
    copied, mass, keys = deepcopy(handed), MASS.clone(), KEYS.clone()
    kept_rows({"window": WINDOW, "chosen": CHOSEN})
    first_token_mass(MASS, EVEN, CONTROLS)
    key_channels(KEYS)
    token_bytes(BYTES)
    preemption(PREEMPTED)
    assert handed == copied
    assert torch.equal(mass, MASS)
    assert torch.equal(keys, KEYS)


def test_nothing_that_is_written_leaves_the_picture_or_lies_on_a_neighbour():
    four = {f"first {n} + window": CHOSEN for n in range(4)}
    for figure in (
        kept_rows(four),
        first_token_mass(MASS, EVEN, CONTROLS),
        key_channels(KEYS),
        token_bytes(BYTES),
        preemption(PREEMPTED),
    ):
        figure.draw_without_rendering()
        written = [text for axes in figure.axes for text in (*axes.texts, axes._left_title)]
        boxes = [text.get_window_extent() for text in written if text.get_text()]
        assert all(not one.overlaps(other) for one, other in combinations(boxes, 2))
        corners = [corner for box in boxes for corner in box.corners()]
        assert all(figure.bbox.contains(x, y) for x, y in corners)
