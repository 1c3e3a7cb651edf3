"""The pictures of lab 24 show what they are handed: these tests read the drawn data back."""

import visuals.tools as lab
from course.lab24_tools import samples
from tests.common.pictures import boxes, curves, names, read, texts, told


def test_a_walk_climbs_the_mark_and_ends_at_a_letter_without_an_edge():
    (axes,) = lab.show_walk(samples.SMALL, "aab", "aaabca").axes
    way, cross = curves(axes)
    assert list(way.values()) == [0, 1, 2, 2, 3, 3]
    assert list(cross) == [6]
    assert names(axes.yaxis) == ["nothing", "a", "aa", "in a call"]
    assert names(axes.xaxis) == list("aaabca")
    (axes,) = lab.show_walk(samples.SMALL, "aab", "aab").axes
    assert len(curves(axes)) == 1


def test_a_stream_shows_after_each_piece_what_is_sent_and_what_is_held_back():
    (axes,) = lab.show_stream(samples.PARTS, samples.PUSHED).axes
    rows = [[], [], [], []]
    for kind, left, right, low, _ in boxes(axes, lab.KINDS):
        rows[int(low)].append((kind, left, right))
    sent = [("content", 0, 3), (lab.MARK, 3, 4)]
    rest = [("name", 4, 7), (lab.MARK, 7, 8)]
    assert rows == [
        [("content", 0, 2), (lab.HELD, 2, 3)],
        [*sent, (lab.HELD, 4, 5)],
        [*sent, *rest, ("arguments", 8, 9)],
        [*sent, *rest, ("arguments", 8, 10)],
    ]
    assert "".join(texts(axes)) == "1␣<[add:{}"


def test_blocks_say_how_many_were_found():
    html = lab.show_blocks({"again": (["a b", "c\n", "d"], 2)}).data
    assert "again: 2 of 3 blocks found" in read(html)
    assert html.count('title="found"') == 3  # and one in the legend
    assert html.count('title="computed"') == 2


def test_a_conversation_has_an_arrow_for_each_text_call_and_result():
    (axes,) = lab.show_conversation(samples.MESSAGES).axes
    arrows = [note for note in axes.texts if getattr(note, "arrow_patch", None)]
    assert [arrow.xyann[0] for arrow in arrows] == [0, 1, 1, 1, 0, 0, 1]
    dashed = [arrow.arrow_patch.get_linestyle() == "--" for arrow in arrows]
    assert dashed == [False] * 5 + [True, False]
    assert told(axes) == [2]
    assert [text for text in texts(axes) if text][:2] == ["user: Where is <b>?", "I look."]
