"""The pictures of lab 21 show their arguments: these tests read the drawn data back."""

import math

import numpy as np
import pytest

import visuals.one_kernel as lab
from course.lab21_one_kernel import samples as samples
from solutions.one_kernel import self_times
from tests.common.pictures import boxes, curves, heights, legend_of, names, numbers_in, said, told
from timing.operations import ATTENTION, PRODUCTS, PYTHON, REST, kind_of


def strip_of(axes):
    """Return where the strip has each color, and for how long."""
    colors = [[path.vertices[:, 0] for path in bars.get_paths()] for bars in axes.collections]
    return [[(min(x), max(x) - min(x)) for x in color] for color in colors]


def test_the_innermost_operation_colors_the_strip():
    (axes,) = lab.show_strip(samples.EVENTS, 5.0).axes
    products, attention, rest, python = strip_of(axes)
    assert products == [(1, 7)]
    assert attention == [(14, 6)]
    assert rest == [(0, 1), (8, 2), (24, 1)]
    assert python == [(10, 4), (20, 4)]
    assert names(axes.yaxis) == ["floor", "one step", PRODUCTS, ATTENTION, REST, PYTHON]
    shown = [[5], [25], [7, 28], [6, 24], [4, 16], [8, 32]]  # µs, per cent
    assert said(axes) == shown
    assert [bar.get_width() for bar in axes.patches] == [took for took, *_ in shown]
    assert told(axes) == [6, 4]  # what begins where another one ends isn't called by it


@pytest.mark.parametrize("events", [samples.EVENTS, samples.STEP])
def test_the_strip_sums_up_to_what_the_lab_computes(events):
    times, outside = self_times(events)
    sums = {PYTHON: outside}
    for name, (_, own) in times.items():
        sums[kind_of(name)] = sums.get(kind_of(name), 0) + own
    drawn = dict.fromkeys(sums, 0)
    for kind, start, end in lab.pieces_of(events):
        drawn[kind] += end - start
    assert drawn == pytest.approx(sums)


def test_a_stripe_has_the_look_of_its_thread():
    figure = lab.show_rows(samples.TAKEN)
    (axes,) = figure.axes
    looks = {"nobody": lab.EMPTY, 0: lab.RANKS[0], 1: lab.RANKS[1]}
    stripes = [(thread, low, high) for thread, _, _, low, high in boxes(axes, looks)]
    taken = [(thread, first, last) for first, last, thread in samples.TAKEN]
    assert stripes == [("nobody", 0, 96), *taken]  # rows 64 to 79 stay hatched
    assert said(axes) == [[1, 0], [2, 1], [3, 1], [4, 0]]
    assert [numbers_in(text) for text in legend_of(figure)] == [[0, 32], [1, 48]]


@pytest.mark.parametrize(
    ("at", "stopped", "fixed", "taken"),  # milliseconds of the layer, and of thread 0's waiting
    [
        (0, 0, [3, 0], [3, 0]),
        (0, 5, [8, 5], [5.5, 0]),  # thread 0 does the work of both
        (0.5, 5, [8, 5], [7, 3]),  # but waits for a share that has been begun
        (2, 1, [4, 1], [3.5, 0]),
        (0, 99, [102, 99], [6, 0]),  # and never for a thread
        (3, 9, [3, 0], [3, 0]),
    ],
)
def test_threads_wait_for_each_other_or_for_work(at, stopped, fixed, taken):
    above, below = lab.threads(samples.FIXED, samples.SHARED, at, stopped).axes
    assert [told(axes)[0] for axes in (above, below)] == [fixed[0], taken[0]]
    assert [told(axes)[2] for axes in (above, below)] == [fixed[1], taken[1]]
    for axes, phases in ((above, samples.FIXED), (below, samples.SHARED)):
        drawn = boxes(axes, lab.STATES)
        works = [end - start for state, start, end, *_ in drawn if state == lab.WORKS]
        assert sum(works) == pytest.approx(sum(map(sum, phases)))
        stops = [(start, end) for state, start, end, *_ in drawn if state == lab.STOPPED]
        end = told(axes)[0]
        assert stops == ([(at, min(at + stopped, end))] if stopped and at < end else [])
        if stops:
            its = [(a, b) for state, a, b, low, high in drawn if state == lab.WORKS and low > 0.5]
            assert all(b <= stops[0][0] or a >= stops[0][1] for a, b in its)
        assert axes.lines[-1].get_xdata()[0] == pytest.approx(end)


def test_an_exponential_is_its_two_factors():
    off = samples.EXACT * np.where(samples.X > 0, 1.001, 1)
    whole, factor, error = lab.show_exponential(samples.X, off, samples.EXACT).axes
    exact, powers = curves(whole)
    factors, _ = curves(factor)
    for x, value in exact.items():
        assert value == pytest.approx(math.exp(x))
        assert math.log2(powers[x]).is_integer()
        assert powers[x] * factors[x] == pytest.approx(value)
        assert 0.7071 < factors[x] < 1.4143
    errors = curves(error)[0]
    assert errors == {x: pytest.approx(0.001 * (x > 0), abs=1e-9) for x in exact}
    assert told(error) == [0.001]


def test_a_row_with_other_bits_is_hatched():
    (axes,) = lab.show_bits(samples.BITS).axes
    cells = {(round(x), round(y)): kind for kind, x, _, y, _ in boxes(axes, lab.BITS)}
    expected = {
        (column, row): lab.SAME if is_equal else lab.OTHER
        for column, equal in enumerate(samples.BITS.values())
        for row, is_equal in enumerate(equal)
    }
    assert cells == expected
    assert names(axes.xaxis) == ["1", "2", "4"]
    assert told(axes) == [4, 7]
    assert len(heights(axes)) == 7
