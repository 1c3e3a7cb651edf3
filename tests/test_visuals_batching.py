"""The pictures of lab 3 show what they are handed: these tests read the drawn data back."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from visuals.batching import (
    explore_batch,
    in_words,
    runs,
    served,
    show_padded_mask,
    show_padding,
    show_slots,
    throughput_and_latency,
    timeline,
    timelines,
)

# four slots; S1 has 4 steps, S2 8, S3 3, S4 5; then S5 to S7 fill in
STATIC = [
    [0, 1, 2, 3],
    [0, 1, 2, 3],
    [0, 1, 2, 3],
    [0, 1, None, 3],
    [None, 1, None, 3],
    [None, 1, None, None],
    [None, 1, None, None],
    [None, 1, None, None],
]
CONTINUOUS = [
    [0, 1, 2, 3],
    [0, 1, 2, 3],
    [0, 1, 2, 3],
    [0, 1, 4, 3],
    [5, 1, 4, 3],
    [5, 1, 4, 6],
    [5, 1, 4, 6],
    [5, 1, 4, 6],
]


def is_png(data: bytes) -> bool:
    return data.startswith(b"\x89PNG") and len(data) > 2_000


def texts(axes) -> dict[tuple[int, int], str]:
    """What stands where: (column, row) of the cell -> text."""
    found: dict[tuple[int, int], str] = {}
    for text in axes.texts:
        x, y = text.get_position()
        found[int(x), int(y)] = f"{found.get((int(x), int(y)), '')} {text.get_text()}".strip()
    return found


def hatched(axes) -> set[tuple[float, float, float]]:
    """The idle stretches: (column, row, width)."""
    return {
        (patch.get_x(), patch.get_y(), patch.get_width())
        for patch in axes.patches
        if patch.get_hatch()
    }


# --------------------------------------------------------------------------- a padded batch


def test_padding_shows_each_token_with_its_position_and_hatches_the_pads():
    input_ids = torch.tensor([[5, 6, 7], [0, 0, 8]])
    attention_mask = torch.tensor([[True, True, True], [False, False, True]])
    position_ids = torch.tensor([[0, 1, 2], [0, 0, 0]])
    figure = show_padding(input_ids, attention_mask, position_ids, lambda ids: f" t{ids[0]}")
    (axes,) = figure.axes
    assert texts(axes) == {
        (0, 0): "␣t5 0",
        (1, 0): "␣t6 1",
        (2, 0): "␣t7 2",
        (0, 1): "pad 0",
        (1, 1): "pad 0",
        (2, 1): "␣t8 0",
    }
    assert hatched(axes) == {(0, 1, 1), (1, 1, 1)}
    assert axes.get_title("left") == "2 × 3 = 6 cells, 2 of them pads"
    assert is_png(figure._repr_png_())


def test_a_padded_mask_has_a_dot_where_the_query_sees_the_key_and_hatches_the_pads():
    attention_mask = torch.tensor([[True, True, True], [False, True, True]])
    mask = torch.ones(2, 1, 2, 3).tril(1).bool() & attention_mask[:, None, None, :]
    figure = show_padded_mask(mask, attention_mask)
    for axes, seen in zip(figure.axes, mask[:, 0], strict=True):
        dots = {(y - 0.5, x - 0.5) for x, y in axes.collections[-1].get_offsets().tolist()}
        assert dots == {tuple(place) for place in seen.nonzero().tolist()}
        assert [label.get_text() for label in axes.get_yticklabels()] == ["1", "2"]
    assert hatched(figure.axes[0]) == set()
    assert hatched(figure.axes[1]) == {(0, 0, 1), (0, 1, 1)}


def test_a_pad_that_is_seen_is_not_hidden_by_its_hatching():
    attention_mask = torch.tensor([[False, True]])
    (axes,) = show_padded_mask(torch.ones(1, 1, 1, 2).bool(), attention_mask).axes
    assert hatched(axes) == set()


def test_queries_that_are_pads_are_called_so():
    attention_mask = torch.tensor([[True, True, True], [False, False, True]])
    figure = show_padded_mask(torch.ones(2, 1, 2, 3).bool(), attention_mask)
    names = [[label.get_text() for label in axes.get_yticklabels()] for axes in figure.axes]
    assert names == [["1", "2"], ["pad 1", "2"]]


# ------------------------------------------------------------------------- the batch timeline


def test_seven_requests_have_seven_colours():
    bars = [bar for bar in timeline([list(range(7))]).axes[0].patches if not bar.get_hatch()]
    assert len({bar.get_facecolor() for bar in bars}) == 7


@pytest.mark.parametrize("slots", [2, 4, 8, 16])
def test_requests_that_follow_one_another_in_a_static_batch_differ_in_colour(slots):
    trace = [[first + slot for slot in range(slots)] for first in (0, slots)]
    bars = timeline(trace).axes[0].patches
    for slot in range(slots):
        one, other = (bar.get_facecolor() for bar in bars if int(bar.get_y()) == slot)
        assert one != other


def test_the_timeline_holds_the_request_in_each_cell_and_marks_its_end():
    (axes,) = timeline(STATIC).axes
    cells = texts(axes)
    for step, slots in enumerate(STATIC):
        for slot, request in enumerate(slots):
            shown = cells.get((step, slot), "")
            assert shown.split("\n")[0] == ("" if request is None else f"S{request + 1}")
    ends = {place for place, text in cells.items() if text.endswith("END")}
    assert ends == {(3, 0), (7, 1), (2, 2), (4, 3)}
    assert hatched(axes) == {(4, 0, 4), (3, 2, 5), (5, 3, 3)}
    assert axes.get_title("left") == "8 steps, 20 of 32 cells in use: 62%"
    ticks = [label.get_text() for label in axes.get_xticklabels()]
    assert ticks == [f"T{step}" for step in range(1, 9)]


def test_timelines_share_their_axis_of_steps():
    figure = timelines({"static": STATIC + STATIC[:3], "continuous": CONTINUOUS})
    assert [axes.get_xlim() for axes in figure.axes] == [(0, 11), (0, 11)]
    assert [axes.get_title("left").split(",")[0] for axes in figure.axes] == [
        "static: 11 steps",
        "continuous: 8 steps",
    ]
    assert texts(figure.axes[1])[7, 0] == "S6\nEND"
    assert hatched(figure.axes[1]) == set()


def test_a_long_trace_names_the_requests_that_have_room_and_edges_every_end():
    trace = [[step // 25, 10 + step] for step in range(50)]
    (axes,) = timeline(trace).axes
    assert sorted(text.get_text() for text in axes.texts) == ["S1", "S2"]
    edges = [
        (float(segment[0][0]), int(segment[0][1]))
        for collection in axes.collections
        for segment in collection.get_segments()
    ]
    assert sorted(edges) == sorted([(25, 0), (50, 0), *((step + 1, 1) for step in range(50))])
    assert len(axes.get_xticks()) <= 14


def test_forty_steps_of_sixteen_slots_can_be_drawn():
    trace = [[(step // 5) * 16 + slot for slot in range(16)] for step in range(40)]
    assert is_png(timelines({"static": trace, "continuous": trace})._repr_png_())


slots_of_requests = st.integers(1, 5).flatmap(
    lambda slots: st.lists(
        st.lists(st.none() | st.integers(0, 3), min_size=slots, max_size=slots), min_size=1
    )
)


@given(slots_of_requests)
def test_the_runs_of_a_slot_are_its_column_of_the_trace(trace):
    for slot in range(len(trace[0])):
        column = []
        for start, length, request in runs(trace, slot):
            assert start == len(column)
            column += [request] * length
        assert column == [step[slot] for step in trace]


@given(slots_of_requests)
def test_served_counts_the_cells_with_a_request(trace):
    idle = sum(step.count(None) for step in trace)
    cells = len(trace) * len(trace[0])
    assert served(trace) == (cells - idle, cells)


# ---------------------------------------------------------------------------------- the slots


def test_slots_are_as_long_as_the_tokens_they_hold():
    kv_cache = SimpleNamespace(lengths=torch.tensor([7, 0, 5]), max_length=12)
    (axes,) = show_slots(kv_cache).axes
    bars = [patch.get_width() for patch in axes.patches if not patch.get_hatch()]
    assert bars == [7, 0, 5]
    assert {(x, width) for x, _, width in hatched(axes)} == {(7, 5), (0, 12), (5, 7)}
    assert axes.get_title("left") == "12 tokens held, room for 36 reserved: 33% in use"


# ------------------------------------------------------------------ throughput against latency

SECONDS = {1: 0.004, 2: 0.005, 16: 0.010}


def test_throughput_counts_the_tokens_of_all_requests_and_tpot_those_of_one():
    left, right = throughput_and_latency(SECONDS).axes
    assert left.lines[0].get_xdata().tolist() == [1, 2, 16]
    assert left.lines[0].get_ydata() == pytest.approx([250, 400, 1600])
    assert left.lines[1].get_ydata() == pytest.approx([250, 500, 4000])  # if free
    assert right.lines[0].get_ydata() == pytest.approx([4, 5, 10])
    assert right.lines[1].get_ydata() == pytest.approx([8, 8])  # twice the first


def test_a_chosen_batch_is_pointed_at_in_both_panels():
    left, right = throughput_and_latency(SECONDS, chosen=16).axes
    assert (left.lines[-1].get_xdata()[0], left.lines[-1].get_ydata()[0]) == (16, 1600)
    assert (right.lines[-1].get_xdata()[0], right.lines[-1].get_ydata()[0]) == (16, 10)


def test_a_batch_in_words():
    assert in_words(SECONDS, 16) == (
        "16 at once: 1,600 tokens a second in all, 6.4 times the throughput; each request waits "
        "10.0 ms for a token, 2.5 times as long."
    )


def test_moving_the_slider_redraws_the_picture_and_its_words():
    batch, words, picture = explore_batch(SECONDS).children
    seen = {(words.value, bytes(picture.value))}
    for size in (2, 16):
        batch.value = size
        seen.add((words.value, bytes(picture.value)))
    assert len({text for text, _ in seen}) == len({png for _, png in seen}) == 3
    assert all(is_png(png) for _, png in seen)
