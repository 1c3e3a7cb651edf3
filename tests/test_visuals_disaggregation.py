"""The pictures of lab 9 show what they are handed: these tests read the drawn data back."""

from collections import deque
from copy import deepcopy
from itertools import combinations

import matplotlib.pyplot as plt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes

from tests.common.pictures import kind_of, legend_of
from visuals.disaggregation import (
    CACHED,
    DECODED,
    DECODES,
    FIRST,
    GAINED,
    GAP_MARKS,
    KINDS,
    LONGEST,
    MOST_CHUNKS,
    NEWCOMER,
    OTHERS,
    OWN,
    STALLED,
    STEP_MARKS,
    WORK,
    chunk_mask,
    explore_budget,
    gaps_of,
    lanes,
    served,
    shares,
    staircase,
    stalls,
    steps_and_gaps,
    steps_of,
    token_dots,
    wire_bytes,
)

# Requests 0 and 1 decode; the newcomer, 2, has a prompt of 12 tokens.
WHOLE = [
    [(0, 3, True), (1, 2, True)],
    [(0, 1, True), (1, 1, True)],
    [(2, 12, True)],
    [(0, 1, True), (1, 1, True), (2, 1, True)],
    [(0, 1, True), (2, 1, True)],
]
CHUNKS = [
    [(0, 3, True), (1, 2, True)],
    [(0, 1, True), (1, 1, True)],
    [(0, 1, True), (1, 1, True), (2, 6, False)],
    [(0, 1, True), (2, 6, True)],
    [(2, 1, True)],
]
POLICIES = {"whole prompts": WHOLE, "chunks": CHUNKS}

TRACES = st.lists(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9), st.booleans()), max_size=4), max_size=9
)


def marked(axes, mark):
    """The points (x, y) of each line that has this look."""
    return [
        list(zip(line.get_xdata(), line.get_ydata(), strict=True))
        for line in axes.lines
        if (line.get_marker(), line.get_color()) == (mark["marker"], mark["color"])
    ]


def titles(axes: Axes) -> tuple[str, str]:
    return axes.get_title("left"), axes.get_title("right")


@pytest.mark.parametrize("looks", [KINDS, WORK, {"cached": CACHED, "own": OWN[0], "next": OWN[1]}])
def test_kinds_differ_in_more_than_colour(looks):
    ways = [(hatch, face == "white") for face, _, hatch in looks.values()]
    assert all(one != other for one, other in combinations(ways, 2))


def test_marks_differ_in_more_than_colour():
    signs = [mark["marker"] for mark in (STEP_MARKS | GAP_MARKS).values()]
    assert len(set(signs)) == len(signs)


# ------------------------------------------------------------------------------- read from a trace


def test_a_request_computes_its_prompt_until_it_has_had_a_token():
    kinds = [(step, request, kind) for step, request, _, kind in served(CHUNKS, newcomer=2)]
    assert kinds == [
        (0, 0, OTHERS),
        (0, 1, OTHERS),
        (1, 0, DECODES),
        (1, 1, DECODES),
        (2, 0, DECODES),
        (2, 1, DECODES),
        (2, 2, NEWCOMER),
        (3, 0, DECODES),
        (3, 2, NEWCOMER),
        (4, 2, DECODES),
    ]


def test_how_many_tokens_there_are_does_not_tell_a_prompt_from_a_decode():
    trace = [[(2, 1, False)], [(2, 1, True)], [(2, 5, True)]]  # at last, drafts are verified
    kinds = [kind for *_, kind in served(trace, newcomer=2)]
    assert kinds == [NEWCOMER, NEWCOMER, DECODES]


@given(TRACES)
def test_the_kinds_of_a_step_are_all_that_it_computes(trace):
    totals = [sum(tokens for _, tokens, _ in line) for line in trace]
    assert [step.total() for step in shares(trace, newcomer=0)] == totals


@pytest.mark.parametrize(
    ("trace", "stalled"),
    [
        (WHOLE, [2]),
        (CHUNKS, []),  # request 1 has ended, and the newcomer has not begun
        ([[(0, 1, True)], [(0, 4, False)], [], [(0, 1, True)]], [1, 2]),  # computed, but no token
        ([[(0, 1, True)], [], []], []),  # nothing comes after: it has ended
        ([[], [], [(0, 1, True)]], []),
        ([], []),
    ],
)
def test_a_stall_stands_between_two_tokens_of_a_request(trace, stalled):
    assert stalls(trace) == stalled


# ------------------------------------------------------------------------ what every step computes


def columns(axes):
    """Each piece of a column: (step, kind, from, up to)."""
    return sorted(
        (
            round(bar.get_x() + bar.get_width() / 2),
            kind_of(bar, KINDS),
            bar.get_y(),
            bar.get_y() + bar.get_height(),
        )
        for bar in axes.patches
    )


def test_a_column_has_decodes_below_and_prompts_on_top():
    whole, chunks = steps_of(POLICIES, newcomer=2).axes
    assert columns(whole) == [
        (1, OTHERS, 0, 5),
        (2, DECODES, 0, 2),
        (3, NEWCOMER, 0, 12),
        (4, DECODES, 0, 3),
        (5, DECODES, 0, 2),
    ]
    assert columns(chunks) == [
        (1, OTHERS, 0, 5),
        (2, DECODES, 0, 2),
        (3, DECODES, 0, 2),
        (3, NEWCOMER, 2, 8),
        (4, DECODES, 0, 1),
        (4, NEWCOMER, 1, 7),
        (5, DECODES, 0, 1),
    ]


def test_dots_are_steps_with_decodes_crosses_stalls_and_the_triangle_the_first_token():
    whole, chunks = steps_of(POLICIES, newcomer=2).axes
    for axes, decoding, stalled, first, top in (
        (whole, [2, 4, 5], [3], 3, 12),
        (chunks, [2, 3, 4, 5], [], 4, 7),
    ):
        for mark, steps in ((DECODED, decoding), (STALLED, stalled)):
            (points,) = marked(axes, mark)
            assert [x for x, _ in points] == steps
            assert all(axes.get_ylim()[0] < y < 0 for _, y in points)
        (((x, y),),) = marked(axes, FIRST)
        assert x == first
        assert top < y < axes.get_ylim()[1]


def test_a_panel_is_called_by_its_policy_its_largest_step_with_a_decode_and_the_first_token():
    assert [titles(axes) for axes in steps_of(POLICIES, newcomer=2).axes] == [
        ("whole prompts", "largest step with a decode: 3 · first token in step 3"),
        ("chunks", "largest step with a decode: 8 · first token in step 4"),
    ]


@pytest.mark.parametrize("draw", [steps_of, gaps_of])
def test_panels_share_their_scales_and_write_them_once(draw):
    figure = draw(POLICIES | {"short": WHOLE[:1]}, newcomer=2)
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    *others, last = figure.axes
    assert last.get_xlabel()
    assert [axes.get_xlabel() for axes in others] == ["", ""]
    written = [axes.xaxis.get_tick_params()["labelbottom"] for axes in figure.axes]
    assert written == [False, False, True]
    if draw is steps_of:
        assert len({axes.get_ylim() for axes in figure.axes}) == 1


@pytest.mark.parametrize(("draw", "marks"), [(steps_of, STEP_MARKS), (gaps_of, GAP_MARKS)])
def test_the_legend_names_kinds_and_marks(draw, marks):
    assert legend_of(draw(POLICIES, newcomer=2)) == [*KINDS, *marks]


# ---------------------------------------------------------------------------- work in place of time


def test_a_step_is_as_wide_as_its_tokens():
    _, chunks = gaps_of(POLICIES, newcomer=2).axes
    cells = [
        (
            int(patch.get_y()),
            patch.get_x(),
            patch.get_x() + patch.get_width(),
            kind_of(patch, KINDS),
        )
        for patch in chunks.patches
    ]
    assert sorted(cells) == [
        (0, 0, 5, OTHERS),
        (0, 5, 7, DECODES),
        (0, 7, 15, DECODES),
        (0, 15, 22, DECODES),
        (1, 0, 5, OTHERS),
        (1, 5, 7, DECODES),
        (1, 7, 15, DECODES),
        (2, 7, 15, NEWCOMER),
        (2, 15, 22, NEWCOMER),
        (2, 22, 23, DECODES),
    ]


def test_a_tick_ends_each_step_in_which_a_request_gains_a_token():
    whole, _ = gaps_of(POLICIES, newcomer=2).axes
    assert marked(whole, GAINED) == [
        [(5, 0.5), (7, 0.5), (22, 0.5), (24, 0.5)],
        [(5, 1.5), (7, 1.5), (22, 1.5)],
        [(19, 2.5), (22, 2.5), (24, 2.5)],
    ]


def test_a_line_spans_the_longest_gap_and_the_title_tells_it():
    whole, chunks = gaps_of(POLICIES, newcomer=2).axes
    assert marked(whole, LONGEST) == [[(7, 0.5), (22, 0.5)]]  # of two such the first
    assert marked(chunks, LONGEST) == [[(7, 0.5), (15, 0.5)]]
    assert titles(whole) == ("whole prompts", "longest gap: 15 · first token at 19")
    assert titles(chunks) == ("chunks", "longest gap: 8 · first token at 22")


def test_rows_have_their_requests_names():
    trace = [[(7, 2, True), (3, 5, True)]]
    (axes,) = gaps_of({"": trace}, newcomer=7).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["request 3", "newcomer, 7"]
    assert axes.get_ylim() == (2, 0)


@pytest.mark.parametrize(
    ("trace", "by_steps", "by_work"),
    [
        ([], "no decodes · no first token", "no gap · no first token"),
        ([[]], "no decodes · no first token", "no gap · no first token"),
        ([[(2, 5, False)]], "no decodes · no first token", "no gap · no first token"),
        ([[(2, 5, True)]], "no decodes · first token in step 1", "no gap · first token at 5"),
        (
            [[(0, 5, True)], [(0, 1, True)]],
            "largest step with a decode: 1 · no first token",
            "longest gap: 1 · no first token",
        ),
    ],
)
@pytest.mark.filterwarnings("error")
def test_traces_with_little_in_them_are_drawn_and_told(trace, by_steps, by_work):
    for draw, facts in ((steps_of, by_steps), (gaps_of, by_work)):
        figure = draw({"alone": trace}, newcomer=2)
        assert titles(figure.axes[0]) == ("alone", facts)
        assert figure._repr_png_().startswith(b"\x89PNG")


def test_a_trace_by_steps_and_by_work_leaves_room_for_the_others():
    figure = steps_and_gaps(CHUNKS, 2, [CHUNKS, WHOLE])
    steps, gaps = figure.axes
    together, by_work = steps_of(POLICIES, 2).axes[1], gaps_of(POLICIES, 2).axes[1]
    assert columns(steps) == columns(together)
    assert steps.get_ylim() == together.get_ylim()
    assert gaps.get_xlim() == by_work.get_xlim()
    assert titles(steps) == ("by steps", titles(together)[1])
    assert titles(gaps) == ("by work", titles(by_work)[1])
    assert legend_of(figure) == [*KINDS, *STEP_MARKS, *GAP_MARKS]


def test_the_slider_shows_each_budget_with_its_words():
    traces = {12: WHOLE, 8: CHUNKS}
    chosen, words, picture = explore_budget(traces, 2, {12: "whole", 8: "small"}).children
    assert list(chosen.options) == [12, 8]
    before = words.value, bytes(picture.value)
    chosen.value = 8
    after = words.value, bytes(picture.value)
    assert (before[0], after[0]) == ("whole", "small")
    assert before[1] != after[1]
    assert all(png.startswith(b"\x89PNG") for _, png in (before, after))


# ------------------------------------------------------------------------- the mask of the chunks

LOOKS = {"cached": CACHED, "own": OWN[0], "next": OWN[1]}


def seen(axes, prompt):
    """For each query and key, the look in whose area the middle of their cell lies."""
    cells = {}
    middles = [(key + 0.5, query + 0.5) for query in range(prompt) for key in range(prompt)]
    for patch in axes.patches:
        area = patch.get_path().transformed(patch.get_patch_transform())
        for (key, query), inside in zip(middles, area.contains_points(middles), strict=True):
            if inside:
                assert (int(query), int(key)) not in cells  # nothing is drawn twice
                cells[int(query), int(key)] = kind_of(patch, LOOKS)
    return cells


@given(st.integers(1, 12), st.integers(1, 14))
def test_a_query_sees_the_keys_before_its_chunk_in_the_cache_and_its_own_up_to_itself(
    prompt, chunk
):
    (axes,) = chunk_mask(prompt, chunk).axes
    for (query, key), look in seen(axes, prompt).items():
        own = "next" if query // chunk % 2 else "own"
        assert look == ("cached" if key < query // chunk * chunk else own)
    assert set(seen(axes, prompt)) == {(q, k) for q in range(prompt) for k in range(q + 1)}


def test_a_staircase_goes_around_whole_cells():
    assert staircase(4, 6) == [(4, 4), (5, 4), (5, 5), (6, 5), (6, 6), (4, 6)]


def test_the_chunks_are_counted_and_named():
    figure = chunk_mask(20, 8)
    (axes,) = figure.axes
    assert axes.get_title("left") == "20 tokens in chunks of 8; forwards: 3"
    assert [text.get_text() for text in axes.texts] == [
        "chunk 1: 0 cached + 8 own",
        "chunk 2: 8 cached + 8 own",
        "chunk 3: 16 cached + 4 own",
    ]
    assert list(axes.get_xticks()) == list(axes.get_yticks()) == [0, 8, 16]
    assert legend_of(figure) == ["key from the cache", "key of the chunk itself"]


def test_of_many_chunks_some_are_named():
    (axes,) = chunk_mask(640, 16).axes
    assert len(axes.patches) == 40 + 39
    assert len(axes.texts) == len(axes.get_xticks()) <= MOST_CHUNKS
    assert axes.texts[1].get_text() == "chunk 6: 80 cached + 16 own"


@pytest.mark.parametrize(("prompt", "chunk"), [(0, 4), (4, 0), (4, -1)])
def test_a_mask_of_nothing_is_refused(prompt, chunk):
    with pytest.raises(ValueError, match="one token or more"):
        chunk_mask(prompt, chunk)


# ------------------------------------------------------------------------ the times of one decoder

TIMES = {"whole": [50.0, 50.1, 50.5, 50.6], "chunks": [7.0, 7.2, 7.3], "one": [3.0], "none": []}


def test_dots_begin_at_their_first_and_the_longest_gap_stands_below():
    (axes,) = token_dots(TIMES).axes
    dots = [list(line.get_xdata()) for line in axes.lines if line.get_marker() == "o"]
    assert dots == [
        pytest.approx([0, 100, 500, 600]),
        pytest.approx([0, 200, 300]),
        [0],
        [],
    ]
    (whole, chunks) = marked(axes, LONGEST)
    assert [x for x, _ in whole] == pytest.approx([100, 500])
    assert [x for x, _ in chunks] == pytest.approx([0, 200])
    assert all(0 < y < 0.5 for _, y in whole)
    assert all(1 < y < 1.5 for _, y in chunks)


def test_each_line_has_its_name_and_its_longest_gap():
    (axes,) = token_dots(TIMES).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == list(TIMES)
    gaps = [(text.get_position()[1], text.get_text()) for text in axes.texts]
    assert gaps == [(0, "400 ms"), (1, "200 ms"), (2, "no gap"), (3, "no gap")]


# ------------------------------------------------------------------------- two sides, and the wire

EVENTS = {
    "P": [("prefill", 5.0, 0.2), ("wait", 5.2, 0.1)],
    "wire": [("send", 5.2, 0.05)],
    "D": [("wait", 5.05, 0.2), ("decode", 5.25, 0.01), ("decode", 5.26, 0.01)],
}


def test_events_lie_in_their_lanes_from_the_first_start_on():
    figure = lanes(EVENTS)
    (axes,) = figure.axes
    drawn = [
        (
            round(bar.get_y() + bar.get_height() / 2),
            kind_of(bar, WORK),
            bar.get_x(),
            bar.get_width(),
        )
        for bar in axes.patches
    ]
    assert [(row, kind) for row, kind, _, _ in drawn] == [
        (row, kind) for row, lane in enumerate(EVENTS.values()) for kind, _, _ in lane
    ]
    assert [start for _, _, start, _ in drawn] == pytest.approx([0, 200, 200, 50, 250, 260])
    assert [width for _, _, _, width in drawn] == pytest.approx([200, 100, 50, 200, 10, 10])
    assert [label.get_text() for label in axes.get_yticklabels()] == list(EVENTS)
    assert legend_of(figure) == list(WORK)


def test_what_was_sent_stands_by_the_line_through_the_origin():
    (axes,) = wire_bytes({640: 2_000_000, 64: 131_072}, per_token=2048).axes
    line, sent = axes.lines
    assert list(line.get_xdata()) == [0, 640]
    assert list(line.get_ydata()) == [0, 1280]
    assert list(sent.get_xdata()) == [640, 64]
    assert list(sent.get_ydata()) == [1953.125, 128]
    assert axes.get_ylim()[1] > 1953.125  # above the line, and still in the picture
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["2,048 bytes a token", "sent"]


# -------------------------------------------------------------------------------------- all of them


@pytest.mark.filterwarnings("error")  # a sign that the font lacks, or no room for a layout
def test_pictures_are_drawn_without_a_warning_and_not_kept_open():
    before = plt.get_fignums()
    figures = (
        steps_of(POLICIES, 2),
        gaps_of(POLICIES, 2),
        chunk_mask(20, 8),
        chunk_mask(1, 1),
        token_dots(TIMES),
        token_dots({}),
        lanes(EVENTS),
        lanes({"P": [], "D": []}),
        lanes({}),
        wire_bytes({64: 131_072}, 2048),
        wire_bytes({}, 2048),
    )
    for figure in figures:
        assert figure._repr_png_().startswith(b"\x89PNG")
    assert plt.get_fignums() == before


def test_what_is_handed_in_stays_as_it_was():
    handed = deepcopy((POLICIES, TIMES, EVENTS))
    steps_of(POLICIES, 2)
    gaps_of(POLICIES, 2)
    token_dots(TIMES)
    lanes(EVENTS)
    assert handed == (POLICIES, TIMES, EVENTS)


def test_an_engines_own_trace_is_drawn_as_it_is():
    trace = deque(CHUNKS, maxlen=100)
    for draw in (steps_of, gaps_of):
        one, other = draw({"deque": trace, "list": CHUNKS}, newcomer=2).axes
        assert titles(one)[1] == titles(other)[1]
        assert len(one.patches) == len(other.patches)
