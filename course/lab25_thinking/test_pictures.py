"""The pictures of lab 25 show what they are handed: these tests read the drawn data back."""

from itertools import chain

import pytest

import visuals.thinking as lab
from course.lab25_thinking import samples
from tests.common.pictures import curves, legend_of, names


def test_each_way_to_spend_is_a_curve_with_error_bars():
    figure = lab.show_spending(samples.CURVES)
    (axes,) = figure.axes
    assert legend_of(figure) == list(samples.CURVES)
    lines = [line for line in axes.lines if line.get_label() in samples.CURVES]
    points = list(chain(*samples.CURVES.values()))
    assert list(chain(*(line.get_xydata().tolist() for line in lines))) == [
        [point.tokens, point.share] for point in points
    ]
    for container, point in zip(axes.containers, points, strict=True):
        [[(_, low), (_, high)]] = container.lines[2][0].get_segments()
        assert high - low == pytest.approx(2 * point.error)
    figure.png()
    assert "votes: 0.04 at 3, 0.06 at 12" in figure.words()


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
