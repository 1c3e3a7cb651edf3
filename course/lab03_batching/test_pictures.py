"""The pictures of lab 3 show what they are handed: these tests read the drawn data back."""

import pytest
import torch

import visuals.batching as lab
from course.lab03_batching import samples as samples
from tests.common.pictures import cells, curves, dots, names, numbers_in, told, widths
from tests.samples import decode


def hatched(axes) -> set[tuple[float, float, float]]:
    """The idle stretches: (column, row, width)."""
    idle = [patch for patch in axes.patches if patch.get_hatch()]
    return {(patch.get_x(), patch.get_y(), patch.get_width()) for patch in idle}


def test_padding_shows_each_token_with_its_position_and_hatches_the_pads():
    (axes,) = lab.show_padding(samples.PADDED, samples.IS_TOKEN, samples.POSITIONS, decode).axes
    rows = [["the 0", "␣king 1", "␣and 2"], ["pad 0", "pad 0", "␣queen 0"]]
    assert cells(axes) == {(x, y): text for y, row in enumerate(rows) for x, text in enumerate(row)}
    assert hatched(axes) == {(0, 1, 1), (1, 1, 1)}
    assert told(axes) == [2, 3, 6, 2]  # 2 x 3 = 6 cells, 2 of them pads


def test_a_padded_mask_has_a_dot_where_the_query_sees_the_key_and_hatches_the_pads():
    is_token = torch.tensor([[True, True, True], [False, True, True]])
    mask = torch.ones(2, 1, 2, 3).tril(1).bool() & is_token[:, None, None, :]
    figure = lab.show_padded_mask(mask, is_token)
    for axes, seen in zip(figure.axes, mask[:, 0], strict=True):
        assert dots(axes) == {(row + 0.5, column + 0.5) for row, column in seen.nonzero().tolist()}
    assert [hatched(axes) for axes in figure.axes] == [set(), {(0, 0, 1), (0, 1, 1)}]
    # a pad that is seen isn't hidden, and one that asks is called so
    figure = lab.show_padded_mask(torch.ones(2, 1, 2, 3).bool(), samples.IS_TOKEN)
    assert [hatched(axes) for axes in figure.axes] == [set(), set()]
    assert [names(axes.yaxis) for axes in figure.axes] == [["1", "2"], ["pad 1", "2"]]


def test_timelines_hold_the_request_in_each_cell_mark_its_end_and_share_their_steps():
    figure = lab.timelines(
        {"static": samples.STATIC, "continuous": samples.CONTINUOUS + samples.CONTINUOUS[-1:] * 3}
    )
    axes, other = figure.axes
    shown = cells(axes)
    for step, slots in enumerate(samples.STATIC):
        for slot, request in enumerate(slots):
            name = "" if request is None else f"S{request + 1}"
            assert shown.get((step, slot), "").removesuffix("\nEND") == name
    ends = {place for place, text in shown.items() if text.endswith("END")}
    assert ends == {(3, 0), (7, 1), (2, 2), (4, 3)}
    assert hatched(axes) == {(4, 0, 4), (3, 2, 5), (5, 3, 3)}
    assert hatched(other) == set()
    assert told(axes) == [8, 20, 32, 62]  # steps, cells in use, of how many, %
    assert axes.get_xlim() == other.get_xlim() == (0, 11)


def test_a_long_trace_names_the_requests_that_have_room_and_edges_every_end():
    (axes,) = lab.timeline([[step // 25, 10 + step] for step in range(50)]).axes
    assert sorted(cells(axes).values()) == ["S1", "S2"]
    lines = [line for lines in axes.collections for line in lines.get_segments()]
    edges = sorted((float(line[0][0]), int(line[0][1])) for line in lines)
    assert edges == sorted([(25, 0), (50, 0), *((step + 1, 1) for step in range(50))])


def test_slots_are_as_long_as_the_tokens_they_hold():
    (axes,) = lab.show_slots(samples.SLOTS).axes
    assert widths(axes) == [7, 0, 5]
    assert {(x, width) for x, _, width in hatched(axes)} == {(7, 5), (0, 12), (5, 7)}
    assert told(axes) == [12, 36, 33]  # held, reserved, %


def test_throughput_counts_the_tokens_of_all_requests_and_tpot_those_of_one():
    left, right = lab.throughput_and_latency(samples.STEP_SECONDS, chosen=16).axes
    throughput, if_free, pointed_at = curves(left)
    assert throughput == pytest.approx({1: 250, 2: 400, 16: 1600})
    assert if_free == pytest.approx({1: 250, 2: 500, 16: 4000})
    assert pointed_at == {16: 1600}
    tpot, twice, pointed_at = curves(right)
    assert tpot == pytest.approx({1: 4, 2: 5, 16: 10})
    assert list(twice.values()) == pytest.approx([8, 8])
    assert pointed_at == {16: 10}
    # tokens a second, gain, wait and slowdown
    assert numbers_in(lab.in_words(samples.STEP_SECONDS, 16)) == [16, 1600, 6.4, 10, 2.5]
