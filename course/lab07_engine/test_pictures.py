"""The pictures of lab 7 show what they are handed: these tests read the drawn data back."""

from itertools import combinations
from types import SimpleNamespace

import pytest

import visuals.engine as lab
from course.lab07_engine.samples import SNAPSHOTS, TRACE
from tests.common.pictures import cells, curves, marked, read, texts, told, widths
from visuals.style import RED

KINDS = {
    0: [lab.PREFILL, lab.DECODE, lab.VERIFY, lab.DECODE],
    1: [lab.PREFILL, lab.PREFILL, lab.PREEMPTED, lab.PREEMPTED, lab.RECOMPUTE, lab.RECOMPUTE],
    2: [lab.WAITS, lab.WAITS, lab.WAITS, lab.PREFILL, lab.NOTHING, lab.DECODE],
}


def test_a_snapshot_says_who_waits_and_who_holds_how_much_and_stays_so():
    request = {number: SimpleNamespace(number=number) for number in (2, 3, 4)}
    manager = SimpleNamespace(tables={3: [7, 1]})
    waiting = [request[4], request[2]]
    scheduler = SimpleNamespace(waiting=waiting, running=[request[3]], manager=manager)
    moment = lab.snapshot(scheduler)
    waiting.clear()
    manager.tables[3].append(5)
    assert moment == lab.Snapshot((4, 2), {3: 2})


def test_every_cell_is_told_by_the_old_name_of_what_was_done():
    found = {(step, request): kind for step, request, kind in lab.kinds(TRACE, SNAPSHOTS)}
    assert found == {(step, n): kind for n, row in KINDS.items() for step, kind in enumerate(row)}


def test_a_preempted_request_computes_again_and_then_decodes():
    *_, last = lab.kinds([*TRACE, [(1, 1, True)]], [*SNAPSHOTS, lab.Snapshot((), {1: 3})])
    assert last == (6, 1, lab.DECODE)
    # before its first token too
    trace = [[(0, 4, False)], [], [(0, 4, True)]]
    snapshots = [lab.Snapshot((), {0: 1}), lab.Snapshot((0,), {}), lab.Snapshot((), {0: 1})]
    found = [kind for _, _, kind in lab.kinds(trace, snapshots)]
    assert found == [lab.PREFILL, lab.PREEMPTED, lab.RECOMPUTE]


def test_the_kinds_differ_in_more_than_color():
    looks = [(hatch, lab.MARKS.get(kind)) for kind, (_, _, hatch) in lab.CELLS.items()]
    assert all(one != other for one, other in combinations(looks, 2))


def test_a_cell_holds_the_tokens_computed_or_a_mark_and_is_bold_where_one_was_sampled():
    (axes,) = lab.timeline(TRACE, SNAPSHOTS).axes
    shown = cells(axes)
    marks = {
        (step, request): lab.MARKS[kind]
        for request, row in KINDS.items()
        for step, kind in enumerate(row)
        if kind in lab.MARKS
    }
    served = [(step, *one) for step, line in enumerate(TRACE) for one in line]
    assert shown == marks | {(step, n): str(tokens) for step, n, tokens, _ in served} | {
        (step, 3): str(sum(tokens for _, tokens, _ in line)) for step, line in enumerate(TRACE)
    }
    bold = [text.get_position() for text in axes.texts if text.get_fontweight() == "bold"]
    sampled = {(step, n) for step, n, _, sampled in served if sampled}
    assert {(int(x), int(y)) for x, y in bold} == sampled
    # only a request that has ended has a dark edge
    lines = [line for lines in axes.collections for line in lines.get_segments()]
    assert {(float(line[0][0]), int(line[0][1])) for line in lines} == {(4, 0), (6, 2)}


def test_the_pool_is_filled_by_the_requests_that_hold_blocks_and_the_queue_counts_the_others():
    pool, queue = lab.pool_and_queue(SNAPSHOTS, num_blocks=5).axes
    held = [0.0] * len(SNAPSHOTS)
    for bars in pool.containers:
        for step, bar in enumerate(bars):
            assert bar.get_y() == held[step]  # on top of the others
            held[step] += bar.get_height()
    assert held == [sum(moment.held.values()) for moment in SNAPSHOTS]
    # each stripe without a gap has its request's number: 1 comes twice
    assert sorted(texts(pool)) == ["0", "1", "1", "2"]
    assert told(pool) == [5, 60]  # blocks, and % held on average
    running, waiting = curves(queue)
    assert [*running.values()] == [2, 2, 1, 1, 2, 1]
    assert [*waiting.values()] == [1, 1, 2, 1, 0, 0]
    assert marked(pool, {"marker": "x", "color": RED}) == [[(3, 5)]]  # a preemption
    pool, _ = lab.pool_and_queue(SNAPSHOTS[:2], num_blocks=5).axes
    assert marked(pool, {"marker": "x", "color": RED}) == [[]]


def test_latencies_are_drawn_in_milliseconds_with_their_percentiles():
    ttft, tpot = lab.show_latencies([0.1, 0.2, 0.4], [0.01, None, 0.03]).axes
    assert widths(ttft) == pytest.approx([100, 200, 400])
    assert widths(tpot) == pytest.approx([10, 30])
    assert [round(bar.get_y() + 0.35) for bar in tpot.patches] == [0, 2]  # the second has none
    assert [line.get_xdata()[0] for line in ttft.lines] == pytest.approx([200, 380])
    assert told(ttft) == [50, 200, 95, 380]
    _, tpot = lab.show_latencies([0.1], [None]).axes
    assert widths(tpot) == curves(tpot) == []


def streamed(prompts: list[str], *outputs: tuple[int, list[int], str | None]) -> str:
    """What is read once these have come: the number of a request, its new ids, why it ended."""
    streams = lab.Streams(prompts, lambda ids: "".join(f" w{token}" for token in ids))
    for request, new_ids, reason in outputs:
        output = SimpleNamespace(request=request, new_ids=new_ids, finish_reason=reason)
        streams.receive(output)
    return read(streams.widget.value)


def test_texts_grow_behind_their_prompts_and_tell_how_they_ended():
    prompts = ["<once>", "The fox"]
    assert "0<once>1The fox" in streamed(prompts)
    shown = streamed(prompts, (0, [5], None), (1, [6, 7], None), (0, [8], "stop"))
    assert "0<once> w5 w8 ■ stop1The fox w6 w7" in shown
    assert streamed([f"begin {'x' * lab.LONGEST}"]).startswith(f"0… {'x' * lab.LONGEST}")


def test_pieces_stand_in_the_order_in_which_they_came_and_of_many_the_last():
    shown = streamed(["a", "b"], (1, [6, 7], None), (0, [5], None), (1, [], "abort"))
    assert shown.endswith("in order1␣w6␣w70␣w5")
    shown = streamed(["a"], *((0, [token], None) for token in range(lab.LATEST + 3)))
    pieces = shown.split("order")[1]
    assert pieces.startswith("0␣w3")
    assert pieces.endswith(f"0␣w{lab.LATEST + 2}")
