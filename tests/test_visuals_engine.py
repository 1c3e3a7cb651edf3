"""The pictures of lab 7 show what they are handed: these tests read the drawn data back."""

import re
from dataclasses import dataclass, field
from html import unescape
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes

from visuals.engine import (
    CELLS,
    DECODE,
    LATEST,
    LONGEST,
    MARKS,
    NOTHING,
    PREEMPTED,
    PREFILL,
    RECOMPUTE,
    VERIFY,
    WAITS,
    Snapshot,
    Streams,
    explore_runs,
    kinds,
    pool_and_queue,
    preemptions,
    show_latencies,
    snapshot,
    timeline,
)

# Request 0 decodes and drafts; 1 has a prompt in two chunks, is preempted and computed again; 2
# waits, comes in, and has once no tokens.
TRACE = [
    [(0, 2, True), (1, 6, False)],
    [(0, 1, True), (1, 3, True)],
    [(0, 5, True)],
    [(0, 1, True), (2, 3, True)],
    [(1, 4, False)],
    [(1, 6, True), (2, 1, True)],
]
SNAPSHOTS = [
    Snapshot((2,), {0: 1, 1: 3}),
    Snapshot((2,), {0: 1, 1: 3}),
    Snapshot((1, 2), {0: 2}),
    Snapshot((1,), {2: 1}),
    Snapshot((), {1: 3, 2: 1}),
    Snapshot((), {1: 3}),
]
KINDS = {
    0: [PREFILL, DECODE, VERIFY, DECODE],
    1: [PREFILL, PREFILL, PREEMPTED, PREEMPTED, RECOMPUTE, RECOMPUTE],
    2: [WAITS, WAITS, WAITS, PREFILL, NOTHING, DECODE],
}


@dataclass
class Run:
    """What a lesson records of an engine."""

    trace: list
    snapshots: list


def is_png(data: bytes) -> bool:
    return data.startswith(b"\x89PNG") and len(data) > 2_000


def texts(axes: Axes) -> dict[tuple[int, int], str]:
    """What stands where: (step, row) of the cell -> text."""
    places = [(text.get_position(), text.get_text()) for text in axes.texts]
    return {(int(x), int(y)): text for (x, y), text in places}


# ---------------------------------------------------------------------------------- snapshots


@dataclass
class Request:
    number: int


@dataclass
class Manager:
    tables: dict[int, list[int]]


@dataclass
class Scheduler:
    """The public attributes of a scheduler."""

    waiting: list[Request] = field(default_factory=lambda: [Request(4), Request(2)])
    running: list[Request] = field(default_factory=lambda: [Request(3)])
    manager: Manager = field(default_factory=lambda: Manager({3: [7, 1]}))


def test_a_snapshot_says_who_waits_and_who_holds_how_much_and_stays_so():
    scheduler = Scheduler()
    moment = snapshot(scheduler)
    scheduler.waiting.clear()
    scheduler.manager.tables[3].append(5)
    assert moment == Snapshot((4, 2), {3: 2})


# --------------------------------------------------------------------------- what a cell shows


def test_every_cell_is_told_by_the_old_name_of_what_was_done():
    found: dict[int, list[str]] = {}
    for step, request, kind in kinds(TRACE, SNAPSHOTS):
        found.setdefault(request, []).append(kind)
        assert step == len(found[request]) - 1  # in every step one, up to its end
    assert found == KINDS


def test_after_recompute_a_request_decodes_again():
    trace = [*TRACE, [(1, 1, True)]]
    *_, last = kinds(trace, [*SNAPSHOTS, Snapshot((), {1: 3})])
    assert last == (6, 1, DECODE)


def test_who_is_preempted_before_a_first_token_computes_again_too():
    trace = [[(0, 4, False)], [], [(0, 4, True)]]
    snapshots = [Snapshot((), {0: 1}), Snapshot((0,), {}), Snapshot((), {0: 1})]
    assert [kind for _, _, kind in kinds(trace, snapshots)] == [PREFILL, PREEMPTED, RECOMPUTE]


def test_the_kinds_differ_in_more_than_colour():
    looks = [(hatch, MARKS.get(kind)) for kind, (_, _, hatch) in CELLS.items()]
    assert all(one != other for one, other in combinations(looks, 2))


@given(st.lists(st.lists(st.integers(1, 9), max_size=4), min_size=1, max_size=8))
def test_each_request_that_was_served_has_a_cell_of_work_in_that_step(served):
    trace = [[(n, tokens, True) for n, tokens in enumerate(line)] for line in served]
    snapshots = [Snapshot((), dict.fromkeys(range(len(line)), 1)) for line in served]
    found = [(step, request) for step, request, _ in kinds(trace, snapshots)]
    assert found == [(step, n) for step, line in enumerate(served) for n in range(len(line))]


# ---------------------------------------------------------------------------------- the timeline


def test_a_cell_holds_the_tokens_computed_bold_where_one_was_sampled():
    (axes,) = timeline(TRACE, SNAPSHOTS).axes
    cells = texts(axes)
    for step, line in enumerate(TRACE):
        assert cells[step, 3] == str(sum(tokens for _, tokens, _ in line))
        for request, tokens, _ in line:
            assert cells[step, request] == str(tokens)
    bold = {
        (int(text.get_position()[0]), int(text.get_position()[1]))
        for text in axes.texts
        if text.get_fontweight() == "bold"
    }
    assert bold == {
        (step, n) for step, line in enumerate(TRACE) for n, _, sampled in line if sampled
    }


def test_cells_without_tokens_have_their_marks():
    (axes,) = timeline(TRACE, SNAPSHOTS).axes
    cells = texts(axes)
    for request, row in KINDS.items():
        for step, kind in enumerate(row):
            if kind in MARKS:
                assert cells[step, request] == MARKS[kind]


def test_only_a_request_that_has_ended_has_a_dark_edge():
    (axes,) = timeline(TRACE, SNAPSHOTS).axes
    edges = {
        (float(line[0][0]), int(line[0][1]))
        for lines in axes.collections
        for line in lines.get_segments()
    }
    assert edges == {(4, 0), (6, 2)}


def test_the_legend_names_the_kinds_that_occur():
    figure = timeline(TRACE[:2], SNAPSHOTS[:2])
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == [PREFILL, DECODE, f"{WAITS}  {MARKS[WAITS]}"]


def test_what_does_not_fit_into_a_cell_is_left_out_and_the_axis_stays_legible():
    (axes,) = timeline(TRACE, SNAPSHOTS, columns=400).axes
    assert list(axes.texts) == []
    assert len(axes.get_xticks()) <= 13
    assert axes.get_xlim()[1] > 400


def test_moving_the_slider_shows_another_run_on_the_same_axis():
    runs = {8: Run(TRACE, SNAPSHOTS), 64: Run(TRACE[:2], SNAPSHOTS[:2])}
    chosen, words, picture = explore_runs("budget", runs, {8: "small", 64: "large"}).children
    before = words.value, bytes(picture.value)
    chosen.value = 64
    after = words.value, bytes(picture.value)
    assert (before[0], after[0]) == ("small", "large")
    assert before[1] != after[1]
    assert is_png(before[1])
    assert is_png(after[1])


# -------------------------------------------------------------------------------- pool and queue


def test_the_pool_is_filled_by_those_who_hold_blocks():
    pool, _ = pool_and_queue(SNAPSHOTS, num_blocks=5).axes
    held = [0.0] * len(SNAPSHOTS)
    for bars in pool.containers:
        for step, bar in enumerate(bars):
            assert bar.get_y() == held[step]  # on top of the others
            held[step] += bar.get_height()
    assert held == [sum(moment.held.values()) for moment in SNAPSHOTS]
    assert pool.get_title("left") == "blocks held, of 5: 60% on average; × preempted"


def test_the_queue_counts_who_runs_and_who_waits():
    _, queue = pool_and_queue(SNAPSHOTS, num_blocks=5).axes
    running, waiting = queue.lines
    assert running.get_ydata().tolist() == [2, 2, 1, 1, 2, 1]
    assert waiting.get_ydata().tolist() == [1, 1, 2, 1, 0, 0]


def test_preemptions_are_counted_where_they_happen():
    assert preemptions(SNAPSHOTS) == [3]
    assert preemptions(SNAPSHOTS[:2]) == []
    pool, _ = pool_and_queue(SNAPSHOTS[:2], num_blocks=5).axes
    assert "preempted" not in pool.get_title("left")


# ------------------------------------------------------------------------------------ latencies


def test_latencies_are_drawn_in_milliseconds_with_their_percentiles():
    ttft, tpot = show_latencies([0.1, 0.2, 0.4], [0.01, None, 0.03]).axes
    assert [bar.get_width() for bar in ttft.patches] == pytest.approx([100, 200, 400])
    assert [bar.get_width() for bar in tpot.patches] == pytest.approx([10, 30])
    assert [round(bar.get_y() + 0.35) for bar in tpot.patches] == [0, 2]  # the second has none
    assert [line.get_xdata()[0] for line in ttft.lines] == pytest.approx([200, 380])
    assert ttft.get_title("left") == "TTFT: p50 200 (dashed), p95 380 ms"
    assert ttft.lines[0].get_linestyle() != ttft.lines[1].get_linestyle()


def test_a_single_token_each_leaves_tpot_empty():
    _, tpot = show_latencies([0.1], [None]).axes
    assert len(tpot.patches) == len(tpot.lines) == 0


# ---------------------------------------------------------------------------------- the streams


@dataclass
class Output:
    """What a step gave to a request."""

    request: int
    new_ids: list[int]
    finish_reason: str | None = None


def words(ids: list[int]) -> str:
    return "".join(f" w{token}" for token in ids)


def read(html: str) -> str:
    """What a person reads of it."""
    return unescape(re.sub("<[^>]+>", "", html))


def test_texts_grow_behind_their_prompts_and_tell_how_they_ended():
    streams = Streams(["<once>", "The fox"], words)
    assert "0<once>1The fox" in read(streams.widget.value)
    for output in (Output(0, [5]), Output(1, [6, 7]), Output(0, [8], "stop")):
        streams.receive(output)
    assert "0<once> w5 w8 ■ stop1The fox w6 w7" in read(streams.widget.value)


def test_of_a_long_prompt_the_end_is_shown():
    row = read(Streams([f"begin {'x' * LONGEST}"], words).widget.value)
    assert row.startswith(f"0… {'x' * LONGEST}")


def test_pieces_stand_in_the_order_in_which_they_came():
    streams = Streams(["a", "b"], words)
    for output in (Output(1, [6, 7]), Output(0, [5]), Output(1, [], "abort")):
        streams.receive(output)
    assert read(streams.widget.value).endswith("in their order1␣w6␣w70␣w5")


def test_of_many_pieces_the_last_are_shown():
    streams = Streams(["a"], words)
    for token in range(LATEST + 3):
        streams.receive(Output(0, [token]))
    shown = read(streams.widget.value).split("order")[1]
    assert shown.startswith("0␣w3")
    assert shown.endswith(f"0␣w{LATEST + 2}")
