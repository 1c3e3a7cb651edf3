"""The pictures of lab 10 show what they are handed: these tests read the drawn data back."""

from copy import deepcopy
from itertools import combinations, pairwise

import matplotlib.pyplot as plt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex

from tests.common.pictures import legend_of, title_of
from visuals.quantization import (
    CODES,
    GRAINS,
    LARGEST,
    LINEAR,
    LOSSES,
    ROUNDED,
    TRUNCATED,
    ahead,
    channels,
    clipping,
    codes_histogram,
    explore_bits,
    grain,
    in_words,
    neighbours,
    number_line,
    pareto,
    runs_of_zeros,
    unbeaten,
    weights_and_grid,
)


def marked(axes, mark):
    """The points (x, y) of each line with this marker and colour."""
    return [
        point
        for line in axes.lines
        if (line.get_marker(), line.get_color()) == (mark["marker"], mark["color"])
        for point in zip(line.get_xdata(), line.get_ydata(), strict=True)
    ]


def segments(axes):
    """For each collection of lines, the x at which they start and end."""
    return [[(a[0], b[0]) for a, b in lines.get_segments()] for lines in axes.collections]


def test_kinds_differ_in_more_than_colour():
    for looks in (list(CODES.values()), LOSSES):
        ways = [(hatch, face == "white") for face, _, hatch in looks]
        assert all(one != other for one, other in combinations(ways, 2))


# ---------------------------------------------------------------------- what a format can hold

QUARTERS = [n / 4 for n in range(-8, 9)]
FORMATS = {"halves": [n / 2 for n in range(-4, 5)], "quarters": QUARTERS}


def test_each_format_has_a_line_with_its_ticks_in_the_range_of_the_coarsest():
    (axes,) = number_line(FORMATS, near=0.7).axes
    base, halves, finer_base, quarters = segments(axes)
    assert base == [(0.0, 1.5)]
    assert halves == [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0), (1.5, 1.5)]
    assert finer_base == [(0.0, 1.5)]
    assert [x for x, _ in quarters] == [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5]
    assert list(axes.get_xticks()) == [0, 0.5, 1, 1.5]
    assert [label.get_text() for label in axes.get_xticklabels()] == [
        "0.00",
        "0.50",
        "1.00",
        "1.50",
    ]


def test_the_value_and_what_it_becomes_are_marked_and_told():
    figure = number_line(FORMATS, near=0.7)
    (axes,) = figure.axes
    assert marked(axes, ROUNDED) == [(0.5, 0), (0.75, 1)]
    assert [x for x, _ in marked(axes, TRUNCATED)] == [0.5, 0.5]
    assert axes.lines[-1].get_xdata() == [0.7, 0.7]
    assert [text.get_text() for text in axes.texts] == [
        "halves: rounded 0.50, truncated 0.50, one every 0.5",
        "quarters: rounded 0.75, truncated 0.50, one every 0.25",
    ]
    assert title_of(axes) == "the numbers that each format has near 0.7"
    assert legend_of(figure) == ["the value, 0.7", "rounded", "truncated"]


@given(st.lists(st.integers(-50, 50), min_size=2, unique=True), st.floats(-50, 50))
def test_rounded_is_nearest_and_truncated_is_the_next_towards_0(handed, near):
    numbers = sorted([*handed, 0, -51, 51])
    rounded, truncated = neighbours(numbers, near)
    assert abs(rounded - near) == min(abs(number - near) for number in numbers)
    nearer_0 = [number for number in numbers if number * near >= 0 and abs(number) <= abs(near)]
    assert truncated == max(nearer_0, key=abs)


def test_numbers_that_would_touch_are_a_band():
    fine = [n / 1024 for n in range(-1024, 2048)]
    (axes,) = number_line({"fine": fine, "halves": FORMATS["halves"]}, near=0.7).axes
    (band,) = axes.patches
    left, right = axes.get_xlim()
    assert band.get_hatch()
    assert left <= band.get_x() < left + 0.01
    assert right - 0.01 < band.get_x() + band.get_width() <= right
    assert len(axes.collections) == 2  # the halves' line, and its ticks


def test_floats_near_a_small_number():
    bfloat16 = [n * 2.0**-21 for n in range(200, 220)]
    float16 = [n * 2.0**-24 for n in range(1640, 1720)]
    (axes,) = number_line({"bfloat16": bfloat16, "float16": float16}, near=0.0001).axes
    assert [text.get_text() for text in axes.texts] == [
        "bfloat16: rounded 0.00010014, truncated 0.00009966, one every 4.8e-07",
        "float16: rounded 0.000100017, truncated 0.000099957, one every 6e-08",
    ]


def test_a_grid_may_end_near_the_value_but_not_before_it():
    (axes,) = number_line({"int2": [-1.0, 0.0, 1.0]}, near=0.9).axes
    assert list(axes.get_xticks()) == [-1, 0, 1]
    for numbers in ([], [0.0, 0.5], [1.0, 2.0]):
        with pytest.raises(ValueError, match=r"int2 has no numbers here on both sides of 0\.9"):
            number_line({"int2": numbers}, near=0.9)


# -------------------------------------------------------------------------- how codes are used

INT3 = torch.tensor([[-3, 0, 0], [1, 0, 3]], dtype=torch.int8)
UINT2 = torch.tensor([0, 1, 2, 3, 3], dtype=torch.uint8)


def bars(axes):
    """By code, how high the bar of what is used is."""
    used = to_hex(CODES["used"][0])
    return {
        round(bar.get_x() + bar.get_width() / 2): bar.get_height()
        for bar in axes.patches
        if to_hex(bar.get_facecolor()) == used
    }


def hollow(axes):
    """The codes that a hollow box stands over, box by box."""
    return [
        list(range(round(box.get_x() + 0.4), round(box.get_x() + box.get_width() + 0.6)))
        for box in axes.patches
        if box.get_hatch()
    ]


def test_a_bar_is_a_codes_count_and_what_is_unused_is_hollow():
    figure = codes_histogram(
        {"absmax": INT3, "affine": UINT2}, {"absmax": range(-3, 4), "affine": range(4)}
    )
    absmax, affine = figure.axes
    assert bars(absmax) == {-3: 1, 0: 3, 1: 1, 3: 1}
    assert hollow(absmax) == [[-2, -1], [2]]
    assert bars(affine) == {0: 1, 1: 1, 2: 1, 3: 2}
    assert hollow(affine) == []
    assert [(title_of(axes), axes.get_title("right")) for axes in figure.axes] == [
        ("absmax", "4 of 7 codes used"),
        ("affine", "4 of 4 codes used"),
    ]
    assert [list(axes.get_xticks()) for axes in figure.axes] == [[-3, 0, 3], [0, 3]]
    assert legend_of(figure) == ["used", "never used"]


@pytest.mark.parametrize("codes", [[0], [-7], [7, 7, -7], [-6, 1, 2, 5], list(range(-7, 8))])
def test_every_code_has_a_bar_or_stands_under_a_hollow_box(codes):
    (axes,) = codes_histogram({"": torch.tensor(codes)}, {"": range(-7, 8)}).axes
    unused = [code for box in hollow(axes) for code in box]
    assert sorted([*bars(axes), *unused]) == list(range(-7, 8))
    assert sum(bars(axes).values()) == len(codes)


@given(st.lists(st.integers(0, 2)))
def test_runs_of_zeros_are_apart_and_hold_all_of_them(counts):
    runs = runs_of_zeros(counts)
    zeros = [place for start, end in runs for place in range(start, end)]
    assert zeros == [place for place, count in enumerate(counts) if count == 0]
    assert all(end < start for (_, end), (start, _) in pairwise(runs))


def test_a_code_outside_its_range_and_no_codes_are_refused():
    with pytest.raises(ValueError, match=r"int8 has codes from -128 to 5, .* -127 to 127"):
        codes_histogram({"int8": torch.tensor([-128, 5])}, {"int8": range(-127, 128)})
    with pytest.raises(ValueError, match="int8 has no codes to show"):
        codes_histogram({"int8": torch.tensor([])}, {"int8": range(-127, 128)})


# -------------------------------------------------------------------------- who shares a scale

WEIGHT = torch.tensor([[1.0, -2.0, 3.0], [-4.0, 0.5, 2.0], [0.0, 6.0, -1.0], [0.1, 0.2, -5.0]])


def cells(axes):
    """What each image of a panel shows, from the top down."""
    images = sorted(axes.images, key=lambda image: image.get_extent()[3])
    return [image.get_array().tolist() for image in images]


def test_above_those_who_share_a_scale_stands_the_largest_of_them():
    figure = grain(WEIGHT, size=2)
    tensor, channel, group = (cells(axes) for axes in figure.axes)
    sizes = WEIGHT.abs()
    shown = [pytest.approx(row) for row in sizes.tolist()]
    assert tensor == [[[6]], shown]
    assert channel == [[[4, 6, 5]], shown]
    assert group == [[[4, 2, 3]], shown[:2], [[pytest.approx(0.1), 6, 5]], shown[2:]]
    assert [title_of(axes) for axes in figure.axes] == [
        "1 scale,\nfor all weights",
        "3 scales,\none a column",
        "6 scales,\none for 2 of a column",
    ]
    assert [axes.get_xlabel() for axes in figure.axes] == ["3 outputs"] * 3
    assert figure.axes[0].get_ylabel() == "4 inputs"


@pytest.mark.parametrize(("groups", "size", "n_out"), [(1, 1, 1), (2, 3, 4), (3, 1, 2), (1, 4, 3)])
def test_a_dot_stands_on_the_largest_weight_of_each_scale(groups, size, n_out):
    n_in = groups * size
    weight = torch.randn(n_in, n_out, generator=torch.Generator().manual_seed(0))
    figure = grain(weight, size)
    for axes, scales in zip(figure.axes, (1, n_out, groups * n_out), strict=True):
        dots = marked(axes, LARGEST)
        assert len(dots) == scales
        found, wanted = [], []
        images = sorted(axes.images, key=lambda image: image.get_extent()[3])
        for above, block in zip(images[::2], images[1::2], strict=True):
            _, _, bottom, top = block.get_extent()
            wanted += above.get_array()[0].tolist()
            inside = [(x, y) for x, y in dots if top < y < bottom]
            found += [block.get_array()[int(y - top), int(x)] for x, y in inside]
        assert found == wanted


def test_all_panels_have_one_scale_of_colours():
    images = [image for axes in grain(WEIGHT, size=2).axes for image in axes.images]
    assert {image.get_clim() for image in images} == {(0, 6)}


@pytest.mark.parametrize("size", [3, 0, 8])
def test_groups_that_do_not_divide_the_inputs_are_refused(size):
    with pytest.raises(ValueError, match=f"Groups of {size} don't divide the 4 inputs"):
        grain(WEIGHT, size)


# -------------------------------------------------------------------- what a smaller scale loses

VALUES = torch.tensor([-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 8.0])
SCALES = torch.tensor([0.5, 1.0, 2.0, 4.0])
ERRORS = {
    "rounding": torch.tensor([1.0, 2.0, 4.0, 8.0]),
    "clipping": torch.tensor([90.0, 6.0, 1.0, 0.0]),
}
CHOSEN = {"min-max": 4.0, "99 %": 1.0, "least squared error": 2.0}


def test_the_ranges_chosen_stand_on_both_sides_of_the_histogram():
    figure = clipping(VALUES, SCALES, ERRORS, CHOSEN, last=2)
    counts, _ = figure.axes
    assert sum(bar.get_height() for bar in counts.patches) == len(VALUES)
    assert [line.get_xdata()[0] for line in counts.lines] == [-8, 8, -2, 2, -4, 4]
    assert legend_of(figure) == [
        "lost by rounding",
        "lost by clipping",
        "min-max: ±8",
        "99 %: ±2",
        "least squared error: ±4",
    ]


def test_losses_lie_on_top_of_each_other_and_choices_on_their_sum():
    _, lost = clipping(VALUES, SCALES, ERRORS, CHOSEN, last=2).axes
    rounding, cut = ({tuple(p) for p in area.get_paths()[0].vertices} for area in lost.collections)
    assert {(0.5, 1), (1, 2), (2, 4), (4, 8), (0.5, 0), (4, 0)} <= rounding
    assert {(0.5, 1), (0.5, 91), (1, 8), (2, 5), (4, 8)} <= cut
    points = [
        (float(line.get_xdata()[0]), line.get_ydata()[0])
        for line in lost.lines
        if line.get_marker() not in ("None", "", None)
    ]
    assert points == [(4, 8), (1, 8), (2, 5)]
    low, high = lost.get_ylim()
    assert low == 0
    assert 8 < high < 91  # what loses more than any choice may leave the picture
    assert lost.get_xlim()[0] == 0.5
    assert lost.get_xlim()[1] > 4


def test_choices_differ_in_more_than_colour():
    _, lost = clipping(VALUES, SCALES, ERRORS, CHOSEN, last=2).axes
    assert len({line.get_linestyle() for line in lost.lines[::2]}) == len(CHOSEN)
    assert len({line.get_marker() for line in lost.lines[1::2]}) == len(CHOSEN)


# ------------------------------------------------------------------ activations and weights

BEFORE = torch.tensor([[1.0, -40.0, 2.0, 0.5], [-2.0, 10.0, 1.0, 0.25]])
ROWS = torch.tensor([[0.5, -1.0], [0.1, 0.05], [2.0, 0.0], [1.0, -4.0]])


def test_a_column_is_a_channels_largest_distance_from_0():
    figure = channels(BEFORE, BEFORE / 2, ROWS, ROWS * 2)
    drawn = [axes.patches[0].get_data().values.tolist() for axes in figure.axes]
    assert drawn == [
        [2, 40, 2, 0.5],
        [1, 20, 1, 0.25],
        pytest.approx([1, 0.1, 2, 4]),
        pytest.approx([2, 0.2, 4, 8]),
    ]
    assert [title_of(axes) for axes in figure.axes] == [
        "activations before\nlargest 40, 20.0 × the median",
        "activations after\nlargest 20, 20.0 × the median",
        "weights before\nlargest 4, 4.0 × the median",
        "weights after\nlargest 8, 4.0 × the median",
    ]


def test_the_largest_channels_are_named_everywhere_and_rows_share_a_scale():
    figure = channels(BEFORE, BEFORE / 2, ROWS, ROWS * 2)
    for axes in figure.axes:
        names = [text.get_text() for text in axes.texts]
        assert names[0] == "1"
        assert len(set(names)) == 3
        assert "3" not in names
        assert [line.get_xdata()[0] - 0.5 for line in axes.lines] == [int(name) for name in names]
    top, other, below, last = (axes.get_ylim() for axes in figure.axes)
    assert top == other
    assert below == last
    assert top[0] < 0.25
    assert top[1] > 40


def test_without_an_after_there_is_a_column_of_panels():
    figure = channels(BEFORE, None, ROWS, None)
    assert [title_of(axes).split("\n")[0] for axes in figure.axes] == [
        "activations before",
        "weights before",
    ]


@pytest.mark.filterwarnings("error")
def test_channels_that_are_0_are_drawn():
    silent = torch.tensor([[0.0, 0.0, 0.0, 5.0]])
    figure = channels(silent, None, ROWS, None)
    assert title_of(figure.axes[0]).endswith("inf × the median")
    assert figure._repr_png_().startswith(b"\x89PNG")


# ---------------------------------------------------------------------- rounding that looks ahead


def test_the_errors_of_both_are_drawn_and_told_as_they_were_handed():
    (axes,) = ahead(torch.tensor([1.0, 3.0, 12345.0]), torch.tensor([1.0, 2.0, 2.5])).axes
    rounding, gptq = axes.lines
    assert list(rounding.get_xdata()) == list(gptq.get_xdata()) == [1, 2, 3]
    assert list(rounding.get_ydata()) == [1, 3, 12345]
    assert list(gptq.get_ydata()) == [1, 2, 2.5]
    assert rounding.get_linestyle() != gptq.get_linestyle()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "rounding to nearest: 12,345 in the end",
        "GPTQ: 2.5 in the end",
    ]


# ------------------------------------------------------------------------- bytes against quality

POINTS = {
    "int8": (8.06, -0.0003, 0.0001),
    "int4": (4.06, 0.006, 0.0015),
    "GPTQ, 3 bits": (3.06, 0.019, 0.003),
    "int3": (3.06, 0.06, 0.005),
    "int2": (2.06, 1.4, 0.05),
    "float32": (32, 0, 0),
}


def test_each_method_is_a_point_with_its_bar_and_its_label():
    (axes,) = pareto(POINTS).axes
    drawn = {}
    for (point, _, (bar,)), text in zip(axes.containers, axes.texts, strict=True):
        name = text.get_text().rsplit(":")[0]
        (low, high) = bar.get_segments()[0][:, 1]
        drawn[name] = (point.get_xdata()[0], point.get_ydata()[0], (high - low) / 2)
        assert text.xy == drawn[name][:2]
    assert drawn == {name: pytest.approx(point, abs=1e-9) for name, point in POINTS.items()}
    assert "int8: -0.0003" in [text.get_text() for text in axes.texts]


def test_labels_do_not_overlap_each_other_nor_the_points():
    many = {f"a method with a name, {n}": (4.06, n // 3 / 1000, 0.001) for n in range(20)}
    for points in (POINTS, many, {"one": (4, 0.1, 0.01)}):
        figure = pareto(points)
        figure.draw_without_rendering()
        (axes,) = figure.axes
        shown = axes.get_window_extent()
        boxes = [super(type(text), text).get_window_extent() for text in axes.texts]
        assert all(not one.overlaps(other) for one, other in combinations(boxes, 2))
        assert all(shown.x1 < box.x0 and box.x1 <= figure.bbox.x1 for box in boxes)
        assert shown.width > figure.bbox.width / 3


def test_labels_stand_in_the_order_of_the_losses():
    (axes,) = pareto(POINTS).axes
    labels = sorted(axes.texts, key=lambda text: text.xyann[1])
    losses = [text.xy[1] for text in labels]
    assert losses == sorted(loss for _, loss, _ in POINTS.values())


def test_a_point_is_full_where_nothing_beats_it():
    figure = pareto(POINTS)
    (axes,) = figure.axes
    names = [text.get_text().rsplit(":")[0] for text in axes.texts]
    faces = [container[0].get_markerfacecolor() for container in axes.containers]
    hollow = {name for name, face in zip(names, faces, strict=True) if face == "white"}
    assert hollow == {"int3", "float32"}
    assert unbeaten(POINTS) == POINTS.keys() - hollow
    assert len(legend_of(figure)) == 2


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(-3, 3)), min_size=1))
def test_whatever_is_beaten_is_beaten_by_one_that_is_not(pairs):
    points = {str(n): (bits, lost, 0) for n, (bits, lost) in enumerate(pairs)}
    front = unbeaten(points)
    for name, (bits, lost, _) in points.items():
        no_worse = [one for one in front if points[one][0] <= bits and points[one][1] <= lost]
        assert no_worse
        if name in front:
            assert {points[one] for one in no_worse} == {points[name]}


def test_other_sizes_than_bits_a_weight_have_their_words_and_their_ticks():
    (axes,) = pareto(POINTS).axes
    assert axes.get_xlabel() == "bits a weight, scales counted"
    (axes,) = pareto({"all": (24_576, 0, 0), "few": (1_536, 0.3, 0.01)}, size="KB of cache").axes
    assert axes.get_xlabel() == "KB of cache"
    low, high = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks() if low < tick < high]
    assert ticks == [2_048, 4_096, 8_192, 16_384]


def test_small_losses_have_a_scale_too():
    (axes,) = pareto({"int8": (8, 0.0001, 0.0001), "int4": (4, 0.001, 0.001)}).axes
    low, high = axes.get_ylim()
    assert low < 0
    assert high > LINEAR
    ticks = [tick for tick in axes.get_yticks() if low < tick < high]
    assert ticks == [0, LINEAR]


# ----------------------------------------------------------------------- fewer bits, finer grain

NORMAL = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))


def to_steps(weight, bits, grain):
    """Rounds to multiples of a step that tells both apart."""
    step = {"tensor": 1.0, "channel": 0.5, "group": 0.25}[grain] / 2**bits * 4
    return (weight / step).round() * step


def test_below_the_weights_stand_the_values_that_those_of_a_column_have():
    rounded = to_steps(NORMAL, 3, "channel")
    (axes,) = weights_and_grid(NORMAL, rounded, "channel").axes
    assert sum(bar.get_height() for bar in axes.patches) == NORMAL.numel()
    (ticks,) = segments(axes)
    assert [x for x, _ in ticks] == rounded[:, 0].unique().tolist()
    assert title_of(axes) == (
        f"all weights, and the {len(ticks)} values that the weights of column 0 have now"
    )


def test_of_groups_the_first_is_shown():
    rounded = to_steps(NORMAL, 4, "group")
    (axes,) = weights_and_grid(NORMAL, rounded, "group").axes
    (ticks,) = segments(axes)
    assert [x for x, _ in ticks] == rounded[:32, 0].unique().tolist()
    assert "the first 32 weights of column 0" in title_of(axes)


@pytest.mark.parametrize(
    ("bits", "grain", "n_bytes", "effective"),
    [(4, "tensor", "194", "4.04"), (4, "channel", "204", "4.25"), (3, "group", "168", "3.50")],
)
def test_the_words_tell_the_error_and_the_bytes(bits, grain, n_bytes, effective):
    words = in_words(torch.ones(64, 6), torch.full((64, 6), 1.125), bits, grain)
    assert f"With {bits} bits and a scale for {GRAINS[grain]}, a weight is off by 0.12" in words
    assert "12.5% of its size" in words
    assert f"take {n_bytes} bytes, {effective} bits a weight; float32 takes 1,536." in words


def test_the_slider_and_the_choice_ask_for_other_weights():
    asked = []

    def quantize(weight, bits, grain):
        asked.append((bits, grain))
        return to_steps(weight, bits, grain)

    bits, chosen, words, picture = explore_bits(torch.nn.Parameter(NORMAL), quantize).children
    assert (bits.min, bits.max) == (2, 8)
    assert [grain for _, grain in chosen.options] == list(GRAINS)
    shown = [(words.value, bytes(picture.value))]
    bits.value = 2
    shown.append((words.value, bytes(picture.value)))
    chosen.value = "group"
    shown.append((words.value, bytes(picture.value)))
    assert list(dict.fromkeys(asked)) == [(4, "channel"), (2, "channel"), (2, "group")]
    assert all(png.startswith(b"\x89PNG") for _, png in shown)
    assert all(one[0] != other[0] and one[1] != other[1] for one, other in combinations(shown, 2))


# -------------------------------------------------------------------------------------- all of them


def all_pictures():
    return (
        number_line(FORMATS, 0.7),
        number_line(FORMATS, -0.7),
        codes_histogram({"int3": INT3}, {"int3": range(-3, 4)}),
        codes_histogram({"": torch.zeros(1, dtype=torch.int8)}, {"": range(-127, 128)}),
        grain(WEIGHT, 2),
        grain(torch.zeros(1, 1), 1),
        clipping(VALUES, SCALES, ERRORS, CHOSEN, 2),
        channels(BEFORE, BEFORE / 2, ROWS, ROWS * 2),
        ahead(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 2.0])),
        ahead(torch.tensor([1.0]), torch.tensor([1.0])),
        pareto(POINTS),
        weights_and_grid(NORMAL, NORMAL, "tensor"),
    )


@pytest.mark.filterwarnings("error")  # a sign that the font lacks, or no room for a layout
def test_pictures_are_drawn_without_a_warning_and_not_kept_open():
    before = plt.get_fignums()
    for figure in all_pictures():
        assert figure._repr_png_().startswith(b"\x89PNG")
    assert plt.get_fignums() == before


def test_what_is_handed_in_stays_as_it_was():
    handed = FORMATS, INT3, WEIGHT, VALUES, SCALES, ERRORS, CHOSEN, BEFORE, ROWS, POINTS, NORMAL
    copied = deepcopy(handed)
    all_pictures()
    explore_bits(NORMAL, to_steps)
    for before, after in zip(copied, handed, strict=True):
        if isinstance(before, torch.Tensor):
            assert torch.equal(before, after)
        elif before.keys() == ERRORS.keys():
            assert all(torch.equal(before[name], ERRORS[name]) for name in ERRORS)
        else:
            assert before == after


def test_weights_that_are_being_trained_are_drawn():
    weight = torch.nn.Parameter(WEIGHT)
    assert cells(grain(weight, 2).axes[1]) == cells(grain(WEIGHT, 2).axes[1])
    assert len(channels(BEFORE, None, weight, None).axes) == 2
