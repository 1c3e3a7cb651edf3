"""The pictures of lab 9 show what they are handed: these tests read the drawn data back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import visuals.disaggregation as lab
from course.lab09_disaggregation.samples import CHUNKS, EVENTS, LITTLE, POLICIES, TOKEN_TIMES, WHOLE
from tests.common.pictures import boxes, curves, kind_of, marked, names, numbers_in, texts, told
from visuals.disaggregation import DECODES, KINDS, NEWCOMER, OTHERS


def facts(axes) -> list[float]:
    """The numbers that stand above a panel, on the right."""
    return numbers_in(axes.get_title("right"))


def test_how_many_tokens_there_are_does_not_tell_a_prompt_from_a_decode():
    trace = [[(2, 1, False)], [(2, 1, True)], [(2, 5, True)]]  # at last, drafts are verified
    assert [kind for *_, kind in lab.served(trace, 2)] == [NEWCOMER, NEWCOMER, DECODES]


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
    assert lab.stalls(trace) == stalled


def columns(axes):
    """Each piece of a column: (step, kind, from, up to)."""
    pieces = boxes(axes, KINDS)
    return sorted((round((x + end) / 2), kind, y, top) for kind, x, end, y, top in pieces)


def test_a_column_has_decodes_below_and_prompts_on_top():
    whole, chunks = lab.steps_of(POLICIES, newcomer=2).axes
    begin = [(1, OTHERS, 0, 5), (2, DECODES, 0, 2)]
    assert columns(whole) == [*begin, (3, NEWCOMER, 0, 12), (4, DECODES, 0, 3), (5, DECODES, 0, 2)]
    assert columns(chunks) == [
        *begin,
        *((3, DECODES, 0, 2), (3, NEWCOMER, 2, 8)),
        *((4, DECODES, 0, 1), (4, NEWCOMER, 1, 7), (5, DECODES, 0, 1)),
    ]
    # dots are steps with decodes, crosses are stalls, the triangle stands over the first token
    for axes, decoding, stalled, first, top in (
        (whole, [2, 4, 5], [3], 3, 12),
        (chunks, [2, 3, 4, 5], [], 4, 7),
    ):
        for mark, steps in ((lab.DECODED, decoding), (lab.STALLED, stalled)):
            (points,) = marked(axes, mark)
            assert [x for x, _ in points] == steps
            assert all(y < 0 for _, y in points)
        (((x, y),),) = marked(axes, lab.FIRST)
        assert x == first
        assert y > top


@pytest.mark.parametrize(
    ("draw", "whole", "chunks", "little"),
    [  # the largest step with a decode, the longest gap; and when the first token came
        (lab.steps_of, [3, 3], [8, 4], [[], [], [], [1], [1]]),
        (lab.gaps_of, [15, 19], [8, 22], [[], [], [], [5], [1]]),
    ],
)
def test_panels_tell_their_numbers_and_share_their_scales(draw, whole, chunks, little):
    figure = draw(POLICIES | {"short": WHOLE[:1]}, newcomer=2)
    assert [facts(axes) for axes in figure.axes[:2]] == [whole, chunks]
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    assert len({axes.get_ylim() for axes in figure.axes}) == (1 if draw is lab.steps_of else 2)
    assert [facts(draw({"": trace}, newcomer=2).axes[0]) for trace in LITTLE] == little


def test_a_step_is_as_wide_as_its_tokens_with_a_tick_where_a_request_gains_one():
    whole, chunks = lab.gaps_of(POLICIES, newcomer=2).axes
    assert names(chunks.yaxis) == ["request 0", "request 1", "new request, 2"]
    assert chunks.yaxis_inverted()  # request 0 is on top
    assert {(int(y), kind, x, end) for kind, x, end, y, _ in boxes(chunks, KINDS)} == {
        *((0, OTHERS, 0, 5), (0, DECODES, 5, 7), (0, DECODES, 7, 15), (0, DECODES, 15, 22)),
        *((1, OTHERS, 0, 5), (1, DECODES, 5, 7), (1, DECODES, 7, 15)),
        *((2, NEWCOMER, 7, 15), (2, NEWCOMER, 15, 22), (2, DECODES, 22, 23)),
    }
    assert marked(whole, lab.GAINED) == [
        [(5, 0.5), (7, 0.5), (22, 0.5), (24, 0.5)],
        [(5, 1.5), (7, 1.5), (22, 1.5)],
        [(19, 2.5), (22, 2.5), (24, 2.5)],
    ]
    assert marked(whole, lab.LONGEST) == [[(7, 0.5), (22, 0.5)]]  # of two such the first
    assert marked(chunks, lab.LONGEST) == [[(7, 0.5), (15, 0.5)]]


def test_a_trace_by_steps_and_by_work_leaves_room_for_the_others():
    steps, gaps = lab.steps_and_gaps(CHUNKS, 2, [CHUNKS, WHOLE]).axes
    together, by_work = lab.steps_of(POLICIES, 2).axes[1], lab.gaps_of(POLICIES, 2).axes[1]
    assert columns(steps) == columns(together)
    assert steps.get_ylim() == together.get_ylim()
    assert gaps.get_xlim() == by_work.get_xlim()
    assert (facts(steps), facts(gaps)) == (facts(together), facts(by_work))


def seen(axes, prompt):
    """For each query and key, the look in whose area the middle of their cell lies."""
    looks = {"cached": lab.CACHED, "own": lab.OWN[0], "next": lab.OWN[1]}
    cells = {}
    middles = [(key + 0.5, query + 0.5) for query in range(prompt) for key in range(prompt)]
    for patch in axes.patches:
        area = patch.get_path().transformed(patch.get_patch_transform())
        for (key, query), inside in zip(middles, area.contains_points(middles), strict=True):
            if inside:
                assert (int(query), int(key)) not in cells  # nothing is drawn twice
                cells[int(query), int(key)] = kind_of(patch, looks)
    return cells


@given(st.integers(1, 12), st.integers(1, 14))
def test_a_query_sees_the_keys_before_its_chunk_in_the_cache_and_its_own_up_to_itself(
    prompt, chunk
):
    found = seen(lab.chunk_mask(prompt, chunk).axes[0], prompt)
    assert set(found) == {(query, key) for query in range(prompt) for key in range(query + 1)}
    for (query, key), look in found.items():
        own = "next" if query // chunk % 2 else "own"
        assert look == ("cached" if key < query // chunk * chunk else own)


def test_the_chunks_are_counted_and_named_and_of_many_some():
    (axes,) = lab.chunk_mask(20, 8).axes
    assert told(axes) == [20, 8, 3]  # tokens, in a chunk, forwards
    own = [[1, 0, 8], [2, 8, 8], [3, 16, 4]]  # number, cached, own
    assert [numbers_in(text.replace("+", "")) for text in texts(axes)] == own
    (axes,) = lab.chunk_mask(640, 16).axes
    assert len(axes.patches) == 40 + 39
    assert len(axes.texts) <= lab.MOST_CHUNKS
    assert texts(axes)[1].startswith("chunk 6: 80 cached")


@pytest.mark.parametrize(("prompt", "chunk"), [(0, 4), (4, 0), (4, -1)])
def test_a_mask_of_nothing_is_refused(prompt, chunk):
    with pytest.raises(ValueError, match="one token or more"):
        lab.chunk_mask(prompt, chunk)


def test_dots_begin_at_their_first_and_the_longest_gap_stands_below():
    (axes,) = lab.token_dots(TOKEN_TIMES).axes
    dots = [list(line.get_xdata()) for line in axes.lines if line.get_marker() == "o"]
    assert dots == [pytest.approx([0, 100, 500, 600]), pytest.approx([0, 200, 300]), [0], []]
    gaps = [[x for x, _ in line] for line in marked(axes, lab.LONGEST)]
    assert gaps == [pytest.approx([100, 500]), pytest.approx([0, 200])]
    gaps = {text.get_position()[1]: text.get_text() for text in axes.texts}
    assert gaps == {0: "400 ms", 1: "200 ms", 2: "no gap", 3: "no gap"}


def test_events_lie_in_their_lanes_from_the_first_start_on():
    (axes,) = lab.lanes(EVENTS).axes
    drawn = boxes(axes, lab.WORK)
    events = [(row, *event) for row, lane in enumerate(EVENTS.values()) for event in lane]
    both = zip(drawn, events, strict=True)
    for (kind, x, end, y, bottom), (row, wanted, start, duration) in both:
        assert (round((y + bottom) / 2), kind) == (row, wanted)
        assert (x, end) == pytest.approx((1000 * (start - 5), 1000 * (start - 5 + duration)))


def test_what_was_sent_stands_by_the_line_through_the_origin():
    (axes,) = lab.wire_bytes({640: 2_000_000, 64: 131_072}, per_token=2048).axes
    assert curves(axes) == [{0: 0, 640: 1280}, {640: 1953.125, 64: 128}]  # KB
