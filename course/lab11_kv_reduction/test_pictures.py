"""The pictures of lab 11 show what they are handed: these tests read the drawn data back."""

import pytest
import torch

import visuals.kv_reduction as lab
from course.lab11_kv_reduction import samples as samples
from solutions.kv_reduction import WindowCache, window_mask
from tests.common.pictures import (
    boxes,
    heights,
    legend_of,
    marked,
    names,
    numbers_in,
    said,
    spans,
    texts,
    told,
)
from tests.samples import randn
from visuals.kv_cache import show_masks

LETTERS = {lab.FIRST: "f", lab.BETWEEN: "b", lab.LAST: "l", lab.GONE: "g"}


def cells(axes):
    """A word for each step, a letter for each token that it has a box for."""
    rows = {}
    for kind, x, end, y, bottom in boxes(axes, lab.ROWS):
        step = round((y + bottom) / 2)
        assert round(x + 0.5) == len(rows.get(step, ""))  # no gap, nothing twice
        rows[step] = rows.get(step, "") + LETTERS[kind] * round(end - x)
    assert list(rows) == list(range(1, len(rows) + 1))
    return list(rows.values())


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        (samples.WINDOW, ["l", "ll", "gll", "ggll", "gggll"]),
        (samples.HEAVY, ["l", "ll", "fgl", "fgll", "fgbgl"]),
        ([[0, 1, 2], [0]], ["lll", "fgg"]),  # the newest was seen, and none has it any more
        ([[0, 1], []], ["ll", "gg"]),
    ],
)
def test_each_token_is_among_the_first_the_last_between_or_gone(kept, words):
    figure = lab.kept_rows({"a way": kept})
    (axes,) = figure.axes
    assert cells(axes) == words
    assert told(axes) == [max(map(len, kept))]  # rows at most
    occurring = {kind for kind, letter in LETTERS.items() if letter in "".join(words)}
    assert set(legend_of(figure)) == occurring


def test_a_way_that_gives_up_the_newest_token_is_told_by_those_that_have_it():
    lost, _ = lab.kept_rows({"lost": [[0], [0]], "window": [[0], [1]]}).axes
    assert cells(lost) == ["l", "fg"]


@pytest.mark.parametrize(
    ("kept", "told"),
    [
        ({"window": samples.WINDOW, "short": samples.HEAVY[:2]}, "5, 2"),
        ({"window": []}, "0"),
        ({}, "none"),
    ],
)
def test_ways_of_unequal_length_are_refused(kept, told):
    with pytest.raises(
        ValueError, match=f"the same number of steps, at least one; here they have {told}"
    ):
        lab.kept_rows(kept)


def test_each_head_is_a_dot_at_its_layer_beside_a_line_at_even_shares():
    shares, _ = lab.first_token_mass(samples.MASS, samples.EVEN, samples.CONTROLS).axes
    (dots,) = marked(shares, lab.HEAD)
    assert [y for _, y in dots] == samples.MASS.flatten().tolist()
    assert [round(x) for x, _ in dots] == [0, 0, 1, 1, 2, 2]
    assert len({x for x, _ in dots}) == samples.MASS.numel()  # no dot hides another
    (line,) = [line for line in shares.lines if line.get_linestyle() == "--"]
    assert set(line.get_ydata()) == {samples.EVEN}
    assert told(shares) == [50]  # the largest, in %


def test_each_control_is_a_bar_with_its_error_and_its_numbers():
    _, losses = lab.first_token_mass(samples.MASS, samples.EVEN, samples.CONTROLS).axes
    drawn = [lines.get_segments()[0][:, 0].tolist() for lines in losses.collections]
    each = zip(losses.patches, losses.texts, drawn, samples.CONTROLS.items(), strict=True)
    for row, (bar, text, ends, (name, (bits, error))) in enumerate(each):
        assert bar.get_width() == bits
        assert ends == pytest.approx([bits - error, bits + error])
        assert text.get_text().startswith(name)
        assert numbers_in(text.get_text().removeprefix(name)) == [bits, error]
        assert row - 0.5 < text.xy[1] < bar.get_y() < row  # above its bar


@pytest.mark.parametrize("keys", [samples.CHANNELS, torch.nn.Parameter(samples.CHANNELS)])
def test_keys_are_an_image_and_bars_in_the_margins_go_from_smallest_to_largest(keys):
    panels = {axes.get_label(): axes for axes in lab.key_channels(keys).axes}
    (image,) = panels["keys"].images
    assert image.get_array().tolist() == samples.CHANNELS.tolist()
    assert image.get_clim() == (-6, 6)  # even around 0
    bars = panels["channels"].patches
    ends = [(bar.get_y(), bar.get_y() + bar.get_height()) for bar in bars]
    assert ends == [(0.5, 1.5), (-4, -2), (-1, 0.5), (2, 6)]
    assert [int(bar.get_x()) for bar in bars] == [0, 1, 2, 3]
    assert spans(panels["tokens"]) == [(-3, 2), (-4, 2.5), (-2, 6)]
    assert [int(bar.get_y()) for bar in panels["tokens"].patches] == [0, 1, 2]
    channels, tokens, keys = (panels[name] for name in ("channels", "tokens", "keys"))
    assert told(channels) == [1.5]
    assert numbers_in(tokens.get_xlabel()) == [6.5]
    assert tokens.get_xlim() == channels.get_ylim()
    assert (keys.get_xlim(), keys.get_ylim()) == (channels.get_xlim(), tokens.get_ylim())


def test_a_bar_has_its_parts_one_behind_the_other_and_behind_them_the_sum():
    figure = lab.token_bytes(samples.BYTES)
    (axes,) = figure.axes
    looks = dict(zip(legend_of(figure), lab.PARTS, strict=False))
    found, ends = {}, {}
    for part, x, end, y, bottom in boxes(axes, looks):
        way = list(samples.BYTES)[round((y + bottom) / 2)]
        assert x == ends.get(way, 0)
        ends[way] = end
        found.setdefault(way, {})[part] = end - x
    assert found == samples.BYTES
    less = said(axes)  # bytes, and times less than the first
    assert less == [[24_576], [3_072, 8], [30_720, 0.8]]


def test_each_way_has_a_bar_for_its_tokens_and_one_for_its_bytes():
    computed, copied = lab.preemption(samples.PREEMPTED).axes
    assert heights(computed) == [5_321, 3_010]
    assert heights(copied) == [0, 45.678912]
    assert texts(computed) == ["5,321", "3,010"]
    assert texts(copied) == ["0.0", "45.7"]
    looks = dict(zip(samples.PREEMPTED, lab.WAYS, strict=True))
    for axes in (computed, copied):
        assert names(axes.xaxis) == [box[0] for box in boxes(axes, looks)] == [*looks]


def test_moving_a_slider_draws_the_mask_that_it_stands_for(monkeypatch):
    drawn = []
    monkeypatch.setattr(lab, "show_masks", lambda masks: drawn.append(masks) or show_masks(masks))
    window, sinks, *_ = lab.explore_window(window_mask).children
    assert [window.min, sinks.min, window.max, sinks.max] == [1, 0, 24, 24]
    sinks.value = 3
    window.value = 3
    shown = [numbers_in(" ".join(masks)) for masks in drawn]  # window and sinks
    assert shown == [[8, 0], [8, 3], [3, 3]]
    positions = torch.arange(24)[None]
    everything, mask = drawn[-1].values()
    assert torch.equal(everything, window_mask(positions, positions, 24, 0))
    assert torch.equal(mask, window_mask(positions, positions, 3, 3))


@pytest.mark.slow
@pytest.mark.parametrize(("window", "sinks"), [(1, 0), (4, 0), (4, 2), (10, 10), (1, 10)])
def test_the_words_tell_how_many_rows_a_cache_holds(window, sinks):
    cache = WindowCache(1, window, sinks)
    cache.attend(0, *randn(3, 1, 1, 10, 4))
    sliders = lab.explore_window(window_mask, tokens=10).children
    sliders[0].value, sliders[1].value = window, sinks
    assert numbers_in(sliders[2].value) == [10, cache.positions[0].shape[1], 10]
