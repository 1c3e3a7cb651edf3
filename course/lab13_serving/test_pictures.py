"""The pictures of lab 13 show their arguments: these tests read the drawn data back."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import visuals.serving as lab
from course.lab13_serving import samples as samples
from course.lab13_serving.samples import RECORDS, Record
from solutions.serving import SLO, Served, goodput, percentile
from tests.common.pictures import boxes, curves, legend_of, marked, numbers_in, texts, told, widths


def test_a_bar_has_the_phases_that_a_request_reached_and_how_it_ended():
    (axes,) = lab.bars(RECORDS).axes
    moments = [(0, 0.05, 0.25, 0.5), (0.1, 0.12, 0.2, 0.8), (0.15, 0.45, 0.5, 0.7), ()]
    moments += [(0.25, 0.6), (0.3, 0.35, 0.4, 0.6), (0.35, 0.45, 0.5), (0.4, 0.5, 0.55)]
    for row, times in enumerate(moments):
        drawn = [box for box in boxes(axes, lab.PHASES) if box[3] < row < box[4]]
        assert [kind for kind, *_ in drawn] == [*lab.PHASES][: len(drawn)]
        assert [box[1:3] for box in drawn] == [pytest.approx(span) for span in pairwise(times)]
    ends = [(y, round(x, 3)) for mark in lab.ENDS.values() for ((x, y),) in marked(axes, mark)]
    assert ends == [(3, 0.2), (4, 0.6), (5, 0.6), (6, 0.5)]  # refused, aborted twice, failed
    assert told(axes) == [4, 8]  # whole, of all


def test_an_slo_marks_the_requests_that_met_it_and_the_seconds_that_were_too_late():
    (axes,) = lab.bars(RECORDS, samples.SLO).axes
    rows = [[row for _, row in marked(axes, mark)[0]] for mark in (lab.MET, lab.MISSED)]
    assert rows == [[0, 7], [1, 2, 3, 4, 5, 6]]
    lines = marked(axes, {"marker": "None"} | lab.LATE)
    late = [(row, round(x, 3)) for line in lines for x, row in line]
    assert late == [(1, 0.7), (1, 0.8), (2, 0.4), (2, 0.5), (4, 0.5), (4, 0.6)]
    assert told(axes) == [2, 8, 250, 25]
    assert legend_of(lab.bars(RECORDS[4:6])) == [*lab.PHASES, "aborted"]


eighths = st.integers(0, 8).map(lambda n: n / 8)  # of a second; some just in time
ENDS = "failed", "whole"
answers = st.tuples(eighths, eighths, st.integers(1, 3), st.booleans())


@given(st.lists(answers, min_size=1))
def test_the_sentence_has_goodput_and_percentiles_as_the_lab_defines_them(answers):
    served = [Served(1, 1 + a, 1 + a + b, n, is_whole) for a, b, n, is_whole in answers]
    records = [Record(1, 1, 1 + a, 1 + a + b, 3, ENDS[c], n) for a, b, n, c in answers]
    words = lab.in_words([*records, replace(RECORDS[3], due=1, ended=3)], SLO(0.5, 0.25))
    assert f"Goodput: {goodput(served, SLO(0.5, 0.25), 2):.1f} requests per second" in words
    for p in (50, 95, 99):
        assert f"p{p} {percentile([1000 * ttft for ttft, *_ in answers], p):,.0f}" in words


def test_the_knee_has_its_rates_in_order_and_a_ring_at_the_highest_goodput():
    (axes,) = lab.knee(samples.RATES, samples.THROUGHPUT, samples.GOODPUT).axes
    diagonal, throughput, goodput, ring = (list(curve.items()) for curve in curves(axes))
    assert all(x == y for x, y in diagonal)
    assert throughput == [(8, 8), (16, 16), (24, 23), (32, 27)]
    assert goodput == [(8, 8), (16, 15.5), (24, 20), (32, 9)]
    assert (ring, told(axes)) == ([(24, 20)], [20, 24])


def test_percentiles_are_nearest_ranks_on_the_curve():
    figure = lab.ttft_curves(samples.TTFTS)
    assert [numbers_in(n)[1::2] for n in legend_of(figure)] == [[20, 500, 500], [50, 95, 99]]
    curve, *marks = (line.get_xydata().round(9).tolist() for line in figure.axes[0].lines[4:])
    assert marks == [[[50, 0.5]], [[95, 0.95]], [[99, 0.99]]]
    assert all(mark in curve for (mark,) in marks)


def test_cells_and_bars_count_the_requests_of_each_replica():
    panels = lab.routing(samples.COUNTS, samples.HITS).axes
    for name, cells, bars in zip(samples.COUNTS, panels[::2], panels[1::2], strict=True):
        rows = samples.COUNTS[name]
        assert cells.collections[0].get_array().tolist() == rows
        assert texts(cells) == [str(number) for row in rows for number in row if number]
        assert widths(bars) == [sum(row) for row in rows]
        assert numbers_in(cells.get_title("right")) == [round(100 * samples.HITS[name])]
    assert [told(axes) for axes in panels[1::2]] == [[1.0], [1.26]]  # the largest over the mean


def test_a_stream_has_its_bytes_their_times_and_what_each_part_is():
    assert texts(lab.on_the_wire(samples.STREAM).axes[0]) == [
        *("HTTP/1.1 200 OK", r"\r\n", "status line", "0.0"),
        *("content-type: text/event-stream", r"\r\n\r\n", "header"),  # begins in the same read
        'data: {"id":"cmpl-0123456789","object":"text_completion","choices":[{"i',
        *('ndex":0,"text":"a","finish_reason":null}]}', r"\n\n", "event", "1.0"),
        r'data: {…":"$x$ \n “\xff\x00” \u738b \U0001f600","finish_reason":null}]}',
        *(r"\n\n", "event", "10.0"),
        *('data: {"choices":[],"usage":{"prompt_tokens":9}}', r"\n\n", "usage", "20.0"),
        *("data: [DONE]", r"\n\n", "end"),
    ]
    (axes,) = lab.on_the_wire([(0, samples.HEAD + b'data: {"a":1}\n')]).axes
    assert texts(axes)[-3:] == ['data: {"a":1}', r"\n", "unfinished"]  # without an empty line


def test_a_long_stream_loses_the_events_in_its_middle():
    shown = texts(lab.on_the_wire(samples.CHUNKED).axes[0])
    assert [n for text in shown for n in range(200) if f'"{n:03}"' in text] == [0, 1, 198, 199]
    assert "… 196 more events …" in shown
    assert [numbers_in(text) for text in shown if text[0] == "="] == [*[[117]] * 4, [14], [0]]


BAD = [
    (lab.bars, [[]], "no requests"),
    (lab.bars, [[replace(RECORDS[0], outcome=None)]], "request 0 is None"),
    (lab.knee, [[1, 2], [1, 2], [1]], "2 rates, 2 throughputs and 1 goodputs"),
    (lab.ttft_curves, [{"even": [0.1, None]}], "'even' needs"),
    (lab.routing, [samples.COUNTS, {"one": 0.5}], "hits has one"),
    (lab.on_the_wire, [[(0.0, samples.DONE)]], "data.*HTTP head"),
]


@pytest.mark.parametrize(("draw", "handed", "said"), BAD)
def test_what_cannot_be_drawn_is_refused_with_a_sentence(draw, handed, said):
    with pytest.raises(ValueError, match=said):
        draw(*handed)
