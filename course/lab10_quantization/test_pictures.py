"""The pictures of lab 10 show their arguments: these tests read the drawn data back."""

import pytest
import torch

import visuals.quantization as lab
from course.lab10_quantization import samples as samples
from tests.common.pictures import (
    boxes,
    curves,
    heights,
    legend_of,
    marked,
    numbers_in,
    said,
    texts,
    title_of,
    told,
)
from tests.samples import randn


def lines_at(axes):
    """For each collection of lines, the x at which they start and end."""
    return [[(a[0], b[0]) for a, b in lines.get_segments()] for lines in axes.collections]


def test_each_format_has_a_line_with_its_ticks_in_the_range_of_the_coarsest():
    (axes,) = lab.number_line(samples.FORMATS, near=0.7).axes
    base, halves, finer_base, quarters = lines_at(axes)
    assert base == finer_base == [(0, 1.5)]
    assert halves == [(x / 2, x / 2) for x in range(4)]
    assert quarters == [(x / 4, x / 4) for x in range(7)]
    # the value, and what it becomes
    assert marked(axes, lab.ROUNDED) == [[(0.5, 0)], [(0.75, 1)]]
    assert [x for ((x, _),) in marked(axes, lab.TRUNCATED)] == [0.5, 0.5]
    assert axes.lines[-1].get_xdata() == [0.7, 0.7]
    assert said(axes) == [[0.5, 0.5, 0.5], [0.75, 0.5, 0.25]]  # rounded, truncated, one every


@pytest.mark.parametrize(
    ("near", "facts"),  # rounded to nearest, truncated towards 0, one every
    [(0.5, [0.5, 0.5, 0.5]), (-0.7, [-0.5, -0.5, 0.5]), (-0.8, [-1, -0.5, 0.5])],
)
def test_rounded_is_nearest_and_truncated_is_the_next_towards_0(near, facts):
    assert said(lab.number_line({"": samples.FORMATS["halves"]}, near).axes[0]) == [facts]


def test_numbers_that_would_touch_are_a_band():
    fine = [n / 1024 for n in range(-1024, 2048)]
    (axes,) = lab.number_line({"fine": fine, "halves": samples.FORMATS["halves"]}, near=0.7).axes
    (band,) = axes.patches
    left, right = axes.get_xlim()
    assert band.get_hatch()
    assert left <= band.get_x() < left + 0.01
    assert right - 0.01 < band.get_x() + band.get_width() <= right
    assert len(axes.collections) == 2  # the halves' line, and its ticks


def test_floats_near_a_small_number_are_told_by_enough_digits():
    floats = {"a format": [n * 2.0**-24 for n in range(1640, 1720)]}
    (axes,) = lab.number_line(floats, near=0.0001).axes
    assert said(axes) == [[0.000100017, 0.000099957, 6e-08]]


def test_a_grid_may_end_near_the_value_but_not_before_it():
    (axes,) = lab.number_line({"int2": [-1.0, 0.0, 1.0]}, near=0.9).axes
    assert list(axes.get_xticks()) == [-1, 0, 1]
    for numbers in ([], [0.0, 0.5], [1.0, 2.0]):
        with pytest.raises(ValueError, match=r"int2 has no numbers here on both sides of 0\.9"):
            lab.number_line({"int2": numbers}, near=0.9)


def bars(axes):
    """By code, how high the bar of what is used is."""
    used = [box for box in boxes(axes, lab.CODES) if box[0] == "used"]
    return {round((x + end) / 2): top for _, x, end, _, top in used}


def hollow(axes):
    """The codes below each hollow box."""
    unused = [box for box in boxes(axes, lab.CODES) if box[0] == "never used"]
    return [list(range(round(x + 0.4), round(end + 0.6))) for _, x, end, _, _ in unused]


def test_a_bar_is_a_codes_count_and_what_is_unused_is_hollow():
    codes = {"absmax": samples.INT3, "affine": samples.UINT2}
    absmax, affine = lab.codes_histogram(codes, {"absmax": range(-3, 4), "affine": range(4)}).axes
    assert bars(absmax) == {-3: 1, 0: 3, 1: 1, 3: 1}
    assert hollow(absmax) == [[-2, -1], [2]]
    assert bars(affine) == {0: 1, 1: 1, 2: 1, 3: 2}
    assert hollow(affine) == []
    assert numbers_in(absmax.get_title("right")) == [4, 7]  # used, of how many


@pytest.mark.parametrize("codes", [[0], [-7], [7, 7, -7], [-6, 1, 2, 5], list(range(-7, 8))])
def test_every_code_has_a_bar_or_stands_under_a_hollow_box(codes):
    (axes,) = lab.codes_histogram({"": torch.tensor(codes)}, {"": range(-7, 8)}).axes
    unused = [code for box in hollow(axes) for code in box]
    assert sorted([*bars(axes), *unused]) == list(range(-7, 8))
    assert sum(bars(axes).values()) == len(codes)


@pytest.mark.parametrize(
    ("codes", "sentence"),
    [([-128, 5], "int8 has codes from -128 to 5, .* -127 to 127"), ([], "int8 has no codes to")],
)
def test_a_code_outside_its_range_and_no_codes_are_refused(codes, sentence):
    with pytest.raises(ValueError, match=sentence):
        lab.codes_histogram({"int8": torch.tensor(codes)}, {"int8": range(-127, 128)})


def cells(axes):
    """What each image of a panel shows, from the top down."""
    images = sorted(axes.images, key=lambda image: image.get_extent()[3])
    return [image.get_array().tolist() for image in images]


@pytest.mark.parametrize("weight", [samples.WEIGHT, torch.nn.Parameter(samples.WEIGHT)])
def test_above_the_weights_that_share_a_scale_stands_the_largest_of_them(weight):
    figure = lab.grain(weight, size=2)
    tensor, channel, group = (cells(axes) for axes in figure.axes)
    shown = [pytest.approx(row) for row in samples.WEIGHT.abs().tolist()]
    assert tensor == [[[6]], shown]
    assert channel == [[[4, 6, 5]], shown]
    assert group == [[[4, 2, 3]], shown[:2], [[pytest.approx(0.1), 6, 5]], shown[2:]]
    assert [told(axes) for axes in figure.axes] == [[1], [3], [6, 2]]
    assert {image.get_clim() for axes in figure.axes for image in axes.images} == {(0, 6)}


@pytest.mark.parametrize(("groups", "size", "n_out"), [(1, 1, 1), (2, 3, 4), (3, 1, 2), (1, 4, 3)])
def test_a_dot_stands_on_the_largest_weight_of_each_scale(groups, size, n_out):
    figure = lab.grain(randn(groups * size, n_out), size)
    for axes, scales in zip(figure.axes, (1, n_out, groups * n_out), strict=True):
        dots = [dot for line in marked(axes, lab.LARGEST) for dot in line]
        assert len(dots) == scales
        found, wanted = [], []
        images = sorted(axes.images, key=lambda image: image.get_extent()[3])
        for above, block in zip(images[::2], images[1::2], strict=True):
            _, _, bottom, top = block.get_extent()
            wanted += above.get_array()[0].tolist()
            inside = [(x, y) for x, y in dots if top < y < bottom]
            found += [block.get_array()[int(y - top), int(x)] for x, y in inside]
        assert found == wanted


@pytest.mark.parametrize("size", [3, 0])
def test_groups_that_do_not_divide_the_inputs_are_refused(size):
    with pytest.raises(ValueError, match=f"Groups of {size} don't divide the 4 inputs"):
        lab.grain(samples.WEIGHT, size)


def test_ranges_stand_on_both_sides_of_the_histogram_and_choices_on_the_sum_of_losses():
    figure = lab.clipping(samples.CLIPPED, samples.SCALES, samples.ERRORS, samples.CHOSEN, last=2)
    counts, lost = figure.axes
    assert sum(heights(counts)) == len(samples.CLIPPED)
    assert [line.get_xdata()[0] for line in counts.lines] == [-8, 8, -2, 2, -4, 4]
    ranges = [numbers_in(name)[-1] for name in legend_of(figure) if "±" in name]
    assert ranges == [8, 2, 4]
    rounding, cut = ({tuple(p) for p in area.get_paths()[0].vertices} for area in lost.collections)
    assert {(0.5, 1), (1, 2), (2, 4), (4, 8), (0.5, 0), (4, 0)} <= rounding
    assert {(0.5, 1), (0.5, 91), (1, 8), (2, 5), (4, 8)} <= cut
    assert curves(lost)[1::2] == [{4: 8}, {1: 8}, {2: 5}]  # after each line its point
    assert 8 < lost.get_ylim()[1] < 91  # what loses more than any choice may leave the picture


def test_a_column_is_a_channels_largest_distance_from_0_and_the_largest_are_named_everywhere():
    figure = lab.channels(*samples.SMOOTHED)
    activations, weights = [2, 40, 2, 0.5], [1, 0.1, 2, 4]
    drawn = [axes.patches[0].get_data().values.tolist() for axes in figure.axes]
    scaled = (activations, 1), (activations, 1 / 2), (weights, 1), (weights, 2)
    assert drawn == [pytest.approx([size * by for size in sizes]) for sizes, by in scaled]
    largest = [told(axes) for axes in figure.axes]  # and how many times the median
    assert largest == [[40, 20], [20, 20], [4, 4], [8, 4]]

    for axes in figure.axes:
        first, *others = texts(axes)
        assert first == "1"
        assert sorted(others) == ["0", "2"]
        assert [line.get_xdata()[0] - 0.5 for line in axes.lines] == [1, *map(int, others)]
    top, other, below, last = (axes.get_ylim() for axes in figure.axes)
    assert (top, below) == (other, last)


@pytest.mark.parametrize("weight", [samples.ROWS, torch.nn.Parameter(samples.ROWS)])
def test_without_an_after_there_is_a_column_of_panels(weight):
    silent = torch.tensor([[0.0, 0.0, 0.0, 5.0]])
    activations, weights = lab.channels(silent, None, weight, None).axes
    assert "inf × the median" in title_of(activations)
    assert told(weights) == [4, 4]


def test_the_errors_of_both_are_drawn_and_named_as_they_are():
    (axes,) = lab.ahead(torch.tensor([1.0, 3.0, 12345.0]), torch.tensor([1.0, 2.0, 2.5])).axes
    assert curves(axes) == [{1: 1, 2: 3, 3: 12345}, {1: 1, 2: 2, 3: 2.5}]
    named = [numbers_in(text.get_text()) for text in axes.get_legend().get_texts()]
    assert named == [[12345], [2.5]]


def test_each_method_is_a_point_with_its_bar_and_its_label_full_where_nothing_beats_it():
    (axes,) = lab.pareto(samples.POINTS).axes
    drawn, beaten = {}, set()
    for (point, _, (bar,)), text in zip(axes.containers, axes.texts, strict=True):
        name, lost = text.get_text().rsplit(": ")
        (low, high) = bar.get_segments()[0][:, 1]
        drawn[name] = (point.get_xdata()[0], point.get_ydata()[0], (high - low) / 2)
        assert text.xy == drawn[name][:2]
        assert float(lost) == samples.POINTS[name][1]
        beaten |= {name} if point.get_markerfacecolor() == "white" else set()
    assert drawn == {name: pytest.approx(point, abs=1e-9) for name, point in samples.POINTS.items()}
    assert beaten == {"int3", "float32"}


@pytest.mark.parametrize(("grain", "share"), [("channel", 64), ("group", 32)])
def test_below_the_weights_stand_the_values_that_those_of_a_column_have(grain, share):
    rounded = samples.to_steps(samples.NORMAL, 3, grain)
    (axes,) = lab.weights_and_grid(samples.NORMAL, rounded, grain).axes
    assert sum(heights(axes)) == samples.NORMAL.numel()
    (ticks,) = lines_at(axes)
    assert [x for x, _ in ticks] == rounded[:share, 0].unique().tolist()
    assert told(axes)[0] == len(ticks)


@pytest.mark.parametrize(
    ("bits", "grain", "n_bytes", "effective"),
    [(4, "tensor", 194, 4.04), (4, "channel", 204, 4.25), (3, "group", 168, 3.5)],
)
def test_the_words_tell_the_error_and_the_bytes(bits, grain, n_bytes, effective):
    words = lab.in_words(torch.ones(64, 6), torch.full((64, 6), 1.125), bits, grain)
    assert lab.GRAINS[grain] in words
    found = numbers_in(words.replace(lab.GRAINS[grain], "").replace("float32", ""))
    assert found == [bits, 0.12, 12.5, 16, n_bytes, effective, 1536]  # 16: bits of a scale


def test_the_slider_and_the_choice_ask_for_other_weights():
    asked = []

    def quantize(weight, bits, grain):
        asked.append((bits, grain))
        return samples.to_steps(weight, bits, grain)

    bits, chosen, *_ = lab.explore_bits(torch.nn.Parameter(samples.NORMAL), quantize).children
    bits.value, chosen.value = 2, "group"
    assert list(dict.fromkeys(asked)) == [(4, "channel"), (2, "channel"), (2, "group")]
