"""The pictures of lab 23 show what they are handed: these tests read the drawn data back."""

import pytest

import visuals.adapters as lab
from course.lab23_adapters import samples
from tests.common.pictures import curves, legend_of, names, told


def test_losses_are_two_curves_by_step():
    figure = lab.show_losses(samples.MEASURED)
    (axes,) = figure.axes
    own, others = [
        dict(zip(samples.MEASURED, c, strict=True))
        for c in zip(*samples.MEASURED.values(), strict=True)
    ]
    assert curves(axes)[0] == own
    assert others in curves(axes)
    assert len(legend_of(figure)) == 2


def test_a_steps_rows_copies_and_segments():
    (axes,) = lab.show_step(samples.STEP, samples.NAMES).axes
    written = [(text.get_position(), text.get_text()) for text in axes.texts]
    rows = {
        height: [text for (x, y), text in sorted(written) if y == height] for height in (2, 1, 0)
    }
    assert rows == {2: ["0", "1", "2", "3", "4"], 1: ["1", "2", "3", "4"], 0: ["1", "4", "2", "3"]}
    assert told(axes) == [4, 2]


def test_slots_show_users_and_those_without():
    figure = lab.show_slots(samples.MOMENTS)
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == ["1", "2", "1", "0", "1", "1", "1"]
    assert names(axes.yaxis) == ["slot 1", "slot 2", "waiting"]
    assert len(axes.patches) == 7 + sum(len(waiting) for _, waiting in samples.MOMENTS)
    assert legend_of(figure)[-1] == "no users"
    with pytest.raises(ValueError, match="no steps to show"):
        lab.show_slots([])
