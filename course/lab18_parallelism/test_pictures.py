"""The pictures of lab 18 show what they are handed: these tests read the drawn data back."""

import pytest
import torch

import visuals.parallelism as lab
from course.lab18_parallelism import samples
from course.lab18_parallelism.samples import PARTS, PER_TOKEN, POINTS, RING, TWO, WHOLE, run
from tests.common.pictures import boxes, curves, heights, legend_of, names, numbers_in, read, texts

# ---------------------------------------------------------------------------------------- the ring


def test_a_sum_names_its_part_and_ranks():
    assert lab.inside(2**0, 3) == (0, [0])
    assert lab.inside(2**3 + 2**5, 3) == (1, [0, 2])
    assert lab.inside(2**6 + 2**7 + 2**8, 3) == (2, [0, 1, 2])


def test_a_ring_has_ranks_by_steps():
    (axes,) = lab.show_ring(RING).axes
    assert texts(axes) == ["part 0\n0", "part 1\n0+1", "part 1\n1", "part 0\n0+1"]
    assert [kind for kind, *_ in boxes(axes, lab.SUMS)] == 2 * [lab.PARTIAL, lab.COMPLETE]
    assert names(axes.yaxis) == ["rank 0 sends", "rank 1 sends"]
    assert names(axes.xaxis) == ["T1", "T2"]


# ------------------------------------------------------------------------------------ cut matrices


def test_a_number_has_its_owners():
    whole = torch.arange(8).view(2, 4)
    assert lab.owners(whole, [whole[:, :2], whole[:, 2:]]) == [[0, 0, 1, 1]] * 2
    assert lab.owners(whole, [whole, whole]) == [[-1] * 4] * 2
    assert lab.owners(whole, [whole[:1], whole[:0]]) == [[0] * 4, [None] * 4]
    assert lab.owners(whole, [whole]) == [[0] * 4] * 2  # of one rank


def test_equal_entries_become_rectangles():
    table = [[0, 0, 1], [0, 0, 1], [1, 1, 1]]
    assert list(lab.blocks(table)) == [(0, 0, 2, 2, 0), (2, 0, 1, 2, 1), (0, 2, 3, 1, 1)]


def test_matrices_are_filled_by_rank():
    figure = lab.show_cuts(WHOLE, PARTS)
    (axes,) = figure.axes
    looks = dict(enumerate(lab.RANKS[:2])) | {"whole": lab.EMPTY, "neither": lab.NEITHER}
    drawn = boxes(axes, looks)
    assert [kind for kind, *_ in drawn] == [
        *(0, 1, 0, 1, 0, 1),  # queries, keys and values
        *(0, "neither"),
        *(0, 1),
        "whole",
        *(0, 1),
    ]
    area = sum((right - left) * (high - low) for _, left, right, low, high in drawn)
    assert area == sum(weight.numel() for weight in WHOLE.values())
    assert texts(axes) == [name.removesuffix(".weight") for name in WHOLE]
    assert legend_of(figure) == ["rank 0", "rank 1", lab.WHOLE]


# --------------------------------------------------------------------------------------- pipelines


def test_each_run_is_a_box_in_the_row_of_its_stage():
    figure = lab.show_pipelines(TWO)
    for axes, (name, replay) in zip(figure.axes, TWO.items(), strict=True):
        drawn = [box for box in boxes(axes, lab.KINDS) if box[0] != "idle"]
        assert [
            (kind[0].upper(), left, right, round(low)) for kind, left, right, low, _ in drawn
        ] == [(run.kind, run.start, run.end, run.stage) for run in replay.runs]
        assert texts(axes) == [str(run.microbatch) for run in replay.runs]
        first, last = axes.get_xlim()  # no outermost edge is cut off
        assert first < 0
        assert last > replay.makespan
        assert axes.get_title("left").startswith(f"{name}: idle {replay.idle:.1%}")
        assert numbers_in(axes.get_title("left").split(";")[1]) == replay.live


def test_a_long_schedule_has_no_numbers():
    figure = lab.show_pipelines({"gpipe": run(3, 16, "gpipe")})
    assert texts(figure.axes[0]) == []


def test_words_have_shares_and_live_microbatches():
    *controls, sentence, _ = lab.explore_pipeline(run).children
    stages, microbatches = controls
    stages.value, microbatches.value = 2, 3
    found = numbers_in(read(sentence.value))
    both = TWO["gpipe"], TWO["1f1b"]
    assert found[0] == both[0].makespan
    idle = 100 * both[0].idle
    assert found[1:3] == pytest.approx([idle, idle / (1 - idle / 100)], abs=0.06)
    assert [both[0].live[0], both[1].live[0]] == [found[4], found[5]]


# ----------------------------------------------------------------------------------- nano-batches


def test_operations_are_boxes_in_the_rows_of_their_resources():
    figure = lab.show_timelines({"split": samples.NANO_BATCHES}, "ms")
    (axes,) = figure.axes
    assert boxes(axes, dict(enumerate(lab.RANKS))) == [
        (batch, 2 * (batch + row), 2 * (batch + row + 1), row - 0.4, row + 0.4)
        for batch in range(2)
        for row in range(2)
    ]
    assert names(axes.yaxis) == ["compute", "network"]
    assert legend_of(figure) == ["nano-batch 0", "nano-batch 1"]
    assert axes.get_xlabel() == "time, ms"


# ---------------------------------------------------------------------------------------- the wire


def test_bytes_per_token_are_bars():
    (axes,) = lab.show_bytes(PER_TOKEN).axes
    assert heights(axes) == list(PER_TOKEN.values())
    assert texts(axes) == ["0", "25,600", "26,112", "1,024"]


def test_a_call_costs_latency_and_bytes():
    (axes,) = lab.wire_curve(1e-4, 1e-9, POINTS).axes
    curve, points, latency, _ = curves(axes)
    assert names(axes.xaxis) == ["1 KB", "1,024 KB"]
    assert names(axes.yaxis) == ["0.05", "0.1", "0.2", "0.5", "1", "2"]
    assert curve[1024.0] == pytest.approx(0.1 + 1024e-6)
    assert points == {size: 1000 * took for size, took in POINTS.items()}
    assert set(latency.values()) == {0.1}
