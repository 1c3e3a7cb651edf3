"""The pictures of lab 4 show what they are handed: these tests read the drawn data back."""

from itertools import accumulate

import pytest
from matplotlib.colors import to_rgba
from matplotlib.patches import ConnectionPatch, Rectangle

import visuals.paged_attention as lab
from course.lab04_paged_attention.samples import BLOCK_WORDS, HELD, USES, block_manager
from tests.common.pictures import heights, names, numbers_in, said, spans, texts


def test_the_card_is_as_wide_as_its_memory_and_names_every_part():
    (axes,) = lab.memory_card({"weights": 26, "cache": 12, "the rest": 2}).axes
    assert spans(axes) == [(0, 26), (26, 38), (38, 40)]
    assert said(axes) == [[26, 65], [12, 30], [2, 5]]  # GB, %


def test_memory_bars_fill_the_memory_and_count_the_requests():
    (axes,) = lab.memory_bars(USES).axes
    for row, use in enumerate(USES.values()):
        ends = [bars[row].get_x() + bars[row].get_width() for bars in axes.containers]
        shares = [use.tokens, use.later, use.never, use.unreserved]
        assert ends == pytest.approx([*accumulate(shares)])
    assert {"7.0 at a time", "30.4 at a time", "97.0%"} <= set(texts(axes))


def test_block_size_costs_are_the_empty_slots_and_the_entries():
    left, right = lab.block_size_costs({1: 1.0, 16: 0.985}, {1: 480.0, 16: 30.5}).axes
    assert heights(left) == pytest.approx([0, 1.5])
    assert heights(right) == [480, 30.5]


@pytest.fixture
def axes():
    return lab.show_blocks(block_manager(), BLOCK_WORDS, "after the copy").axes[0]


def under(axes, heading: str) -> list[str]:
    """The texts straight below a heading, top to bottom."""
    placed = [(*text.get_position(), text.get_text()) for text in axes.texts]
    x, top = next((x, y) for x, y, text in placed if text == heading)
    return [text for _, text in sorted((y, text) for at, y, text in placed if at == x and y > top)]


def test_every_word_stands_in_its_place_of_the_pool(axes):
    assert under(axes, "3: ref 2") == ["an", "old"]
    assert under(axes, "1: ref 1") == ["king"]
    assert under(axes, "0: ref 1") == ["queen", "↵"]
    assert under(axes, "2: free") == []
    assert "The pool. Free blocks, next one first: 2" in texts(axes)


def test_logical_blocks_stand_above_their_entries_of_the_block_table(axes):
    entries = [text for text in texts(axes) if text.startswith(("block ", "filled"))]
    assert [numbers_in(entry) for entry in entries if entry != "block table"] == [
        *([3], [2, 2], [1], [1, 2]),  # block 3, filled 2/2, block 1, filled 1/2
        *([3], [2, 2], [0], [2, 2]),
    ]
    assert {"after the copy", "request 5", "request 6"} <= set(texts(axes))


def test_arrows_lead_from_the_entries_to_the_physical_blocks(axes):
    arrows = [patch for patch in axes.patches if isinstance(patch, ConnectionPatch)]
    assert [arrow.xy2[0] - 0.5 for arrow in arrows] == [3, 1, 3, 0]
    assert arrows[0].get_linestyle() != arrows[2].get_linestyle()


def test_a_shared_block_is_framed_and_striped_and_the_newest_token_of_a_request_is_bold(axes):
    boxes = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    (frame,) = [box for box in boxes if box.get_linewidth() > 2]
    assert int(frame.get_x()) == 3
    filled = [box for box in boxes if box.get_fill() and box.get_y() == frame.get_y()]
    fills = [box.get_facecolor() for box in filled if box.get_x() > 3]
    assert fills == [to_rgba(lab.look_of(5)[0]), to_rgba(lab.look_of(6)[0])]
    words = {word for tokens in BLOCK_WORDS.values() for word in [*tokens, "↵"]}
    bold = {text.get_text() for text in axes.texts if text.get_fontweight() == "bold"}
    assert bold & words == {"king", "↵"}


def test_a_snapshot_stays_as_it_was():
    manager = block_manager()
    moment = lab.snapshot(manager, BLOCK_WORDS)
    manager.tables[5].append(2)
    manager.lengths[5] += 5
    manager.ref_counts[2] = 1
    manager.free_blocks.clear()
    assert moment == lab.snapshot(block_manager(), BLOCK_WORDS)


def test_the_schedule_tells_waiting_from_preempted_and_counts_what_is_taken():
    (axes,) = lab.show_schedule(HELD, num_blocks=4).axes
    rows: dict[float, list[str]] = {}
    for text in sorted(axes.texts, key=lambda text: text.get_position()):
        rows.setdefault(text.get_position()[1], []).append(text.get_text())
    shown = [" ".join(rows[y]) for y in sorted(rows)]
    assert shown == ["1 2 2", "2 2 × 3", "· · · 1 1", "3 4 2 4 1"]
    assert names(axes.yaxis) == ["request 0", "request 1", "request 2", "taken of 4"]
