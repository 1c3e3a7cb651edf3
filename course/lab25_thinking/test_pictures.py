"""The pictures of lab 25 show what they are handed: these tests read the drawn data back."""

import pytest

import visuals.thinking as lab
from course.lab25_thinking import samples
from tests.common.pictures import curves, legend_of, names


def test_each_way_to_spend_is_a_curve_with_error_bars():
    figure = lab.show_spending(samples.CURVES)
    (axes,) = figure.axes
    assert legend_of(figure) == list(samples.CURVES)
    for bars, points in zip(axes.containers, samples.CURVES.values(), strict=True):
        data, _, (lines,) = bars.lines
        assert list(data.get_xdata()) == [point.tokens for point in points]
        heights = [segment[1][1] - segment[0][1] for segment in lines.get_segments()]
        assert heights == pytest.approx([2 * point.error for point in points])


def test_the_error_of_a_share():
    assert lab.Point(1.0, 50, 100).error == pytest.approx(0.05)
    assert lab.Point(1.0, 100, 100).error == 0


def test_thoughts_and_answers_letter_by_letter():
    figure = lab.show_thoughts(samples.TEXTS, "13")
    (axes,) = figure.axes
    rows = dict.fromkeys(range(3), "")
    for text in axes.texts:
        rows[text.get_position()[1]] += text.get_text()
    assert list(rows.values()) == [thoughts + answer for thoughts, answer in samples.TEXTS.values()]
    assert names(axes.yaxis) == list(samples.TEXTS)
    assert len({patch.get_hatch() for patch in axes.patches}) == 3


def test_a_vote_is_decided_when_the_lead_is_larger_than_what_is_left():
    (axes,) = lab.show_votes(samples.VOTES, 6).axes
    lead, left = curves(axes)[:2]
    assert lead == {1: 1, 2: 0, 3: 1, 4: 2, 5: 3}
    assert left == {1: 5, 2: 4, 3: 3, 4: 2, 5: 1}
    assert [text.get_text() for text in axes.texts] == ["decided after 5"]
    assert not lab.show_votes(samples.VOTES[:2], 6).axes[0].texts
