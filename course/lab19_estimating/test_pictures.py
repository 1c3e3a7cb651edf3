"""The pictures of lab 19 show what they are handed: these tests read the drawn data back."""

import math

import pytest

import visuals.estimating as lab
from course.lab19_estimating import samples as samples
from tests.common.pictures import boxes, curves, legend_of, names, numbers_in, texts, title_of, told
from visuals.style import RING


def rings(axes):
    """The points that a ring marks."""
    return [
        (line.get_xdata()[0], line.get_ydata()[0])
        for line in axes.lines
        if line.get_markeredgewidth() == RING["mew"] and line.get_markersize() == RING["ms"]
    ]


def test_each_part_has_its_share():
    figure = lab.parameter_shares(samples.COUNTS)
    (axes,) = figure.axes
    assert names(axes.yaxis) == list(samples.COUNTS)
    assert legend_of(figure) == list(lab.PARTS)
    drawn = [(kind, round(right - left, 3)) for kind, left, right, *_ in boxes(axes, lab.PARTS)]
    assert drawn == [
        (part, count[part] / count["total"])
        for count in samples.COUNTS.values()
        for part in lab.PARTS
    ]
    shares = [numbers_in(text)[0] for text in texts(axes) if text.endswith("%")]
    assert shares == [30, 65, 89]  # smaller ones have no room for a number
    totals = [text for text in texts(axes) if text.endswith("ion")]
    assert totals == ["10 million", "10 billion"]


def test_a_ring_marks_equal_times():
    (axes,) = lab.step_times(samples.both, 16.0).axes
    reading, computing, *_ = curves(axes)
    assert (reading[1], computing[1]) == (16, 1)
    assert reading[64] == pytest.approx(16)
    assert max(computing) == lab.MOST
    assert rings(axes) == [(16, pytest.approx(16))]
    assert told(axes) == [16]


def test_without_a_ridge_no_batch_is_marked():
    for ridge in (math.inf, 2.0 * lab.MOST):
        (axes,) = lab.step_times(samples.both, ridge).axes
        assert rings(axes) == []
        assert told(axes) == [lab.MOST]


def test_a_ring_marks_the_cheapest():
    figure = lab.price_curves(samples.PRICES, 0.02)
    (axes,) = figure.axes
    fast, full, *_ = curves(axes)
    assert fast == {10: 4.0, 12: 1.0, 30: 0.5}
    assert full == {30: 0.5}  # the largest batch that the memory holds
    assert rings(axes) == [(12, 1.0)]  # the slow machine has no batch within the limit
    assert legend_of(figure) == list(samples.PRICES)


def test_each_budget_has_its_best_size():
    (axes,) = lab.isoflop_curves(samples.CURVES, samples.OPTIMA).axes
    assert curves(axes)[0] == {0.1: 3.2, 0.3: 3.0, 1: 3.1}
    assert texts(axes) == ["1e+18 FLOPs", "1e+19 FLOPs"]
    assert rings(axes) == [(size / 1e9, loss) for size, loss in samples.OPTIMA]


def test_the_error_map_has_its_marks():
    figure = lab.error_map(
        samples.ALPHAS, samples.BETAS, samples.ERRORS, {"one": (0.2, 0.7), "other": (0.4, 0.1)}
    )
    (axes,) = figure.axes
    assert curves(axes) == [{0.2: 0.7}, {0.4: 0.1}]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("alpha", "beta")
    assert axes.get_xlim() == (0.2, 0.4)
    assert legend_of(figure) == ["one", "other"]
    assert "strong is small" in title_of(axes)


def test_optima_are_points_between_ratios():
    figure = lab.optima_cloud(samples.FITS, {"truth": (7e10, 1.4e12)})
    (axes,) = figure.axes
    *lines, cloud, truth = curves(axes)
    for ratio, line in zip(lab.RATIOS, lines, strict=True):
        assert all(1e3 * tokens / params == pytest.approx(ratio) for params, tokens in line.items())
    assert cloud == {70: 1.4, 40: 2.4, 90: 1.0}
    assert truth == {70: 1.4}
    low, high = axes.get_ylim()
    assert low < 1.0 < 2.4 < high
    assert [numbers_in(name) for name in legend_of(figure)[:3]] == [[n] for n in lab.RATIOS]
