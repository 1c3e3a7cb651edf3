"""The pictures of lab 4 show what they are handed: these tests read the drawn data back."""

from collections import deque
from dataclasses import dataclass

import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.patches import ConnectionPatch, Rectangle

from tests.common.pictures import texts
from visuals.paged_attention import (
    block_size_costs,
    look_of,
    memory_bars,
    memory_card,
    show_blocks,
    show_schedule,
    snapshot,
    step_through,
)

# ----------------------------------------------------------------------- where the memory goes


@dataclass
class Use:
    """The public attributes of a memory's use."""

    tokens: float
    later: float
    never: float
    unreserved: float
    running: float


def test_the_card_is_as_wide_as_its_memory_and_names_every_part():
    (axes,) = memory_card({"weights": 26, "cache": 12, "the rest": 2}).axes
    bars = [(bar.get_x(), bar.get_width()) for bar in axes.patches]
    assert bars == [(0, 26), (26, 12), (38, 2)]
    assert texts(axes) == ["weights\n26.0 GB, 65%", "cache\n12.0 GB, 30%", "the rest: 2.0 GB, 5%"]


def test_memory_bars_fill_the_memory_and_count_the_requests():
    uses = {"longest": Use(0.2, 0.3, 0.4, 0.1, 7), "paged": Use(0.97, 0.01, 0, 0.02, 30.42)}
    (axes,) = memory_bars(uses).axes
    for row, use in enumerate(uses.values()):
        widths = [bars[row].get_width() for bars in axes.containers]
        starts = [bars[row].get_x() for bars in axes.containers]
        assert widths == pytest.approx([use.tokens, use.later, use.never, use.unreserved])
        assert starts == pytest.approx([sum(widths[:part]) for part in range(4)])
    assert {"7.0 at a time", "30.4 at a time", "97.0%"} <= set(texts(axes))
    assert "1.0%" not in texts(axes)  # too narrow to write in


def test_the_kinds_of_memory_differ_by_hatching_too():
    (axes,) = memory_bars({"longest": Use(0.2, 0.3, 0.4, 0.1, 7)}).axes
    assert len({bars[0].get_hatch() for bars in axes.containers}) == 4


def test_block_size_costs_are_the_empty_slots_and_the_entries():
    left, right = block_size_costs({1: 1.0, 16: 0.985}, {1: 480.0, 16: 30.5}).axes
    assert [bar.get_height() for bar in left.patches] == pytest.approx([0, 1.5])
    assert [bar.get_height() for bar in right.patches] == [480, 30.5]
    assert [label.get_text() for label in left.get_xticklabels()] == ["1", "16"]


# ------------------------------------------------------------------------- blocks and tables


class Manager:
    """The public attributes of a block manager: request 5 was forked into request 6, which has
    copied the last block; a pool of 4 blocks of 2."""

    def __init__(self) -> None:
        self.num_blocks, self.block_size = 4, 2
        self.tables = {5: [3, 1], 6: [3, 0]}
        self.lengths = {5: 3, 6: 4}
        self.ref_counts = [1, 1, 0, 2]
        self.free_blocks = deque([2])


WORDS = {5: ["an", "old", "king"], 6: ["an", "old", "queen", "\n", "not yet"]}


def under(axes: Axes, heading: str) -> list[str]:
    """The texts straight below a heading, top to bottom."""
    x, top = next(text.get_position() for text in axes.texts if text.get_text() == heading)
    column = [(text.get_position()[1], text.get_text()) for text in axes.texts]
    columns = [text.get_position()[0] for text in axes.texts]
    return [
        text for (y, text), at in sorted(zip(column, columns, strict=True)) if at == x and y > top
    ]


def test_every_word_stands_in_its_place_of_the_pool():
    (axes,) = show_blocks(Manager(), WORDS).axes
    assert under(axes, "3: ref 2") == ["an", "old"]
    assert under(axes, "1: ref 1") == ["king"]
    assert under(axes, "0: ref 1") == ["queen", "↵"]
    assert under(axes, "2: free") == []
    assert "The pool. Free blocks, next one first: 2" in texts(axes)


def test_logical_blocks_stand_above_their_entries_of_the_block_table():
    (axes,) = show_blocks(Manager(), WORDS, "after the copy").axes
    entries = [text for text in texts(axes) if text.startswith(("block ", "filled"))]
    assert [entry for entry in entries if entry != "block table"] == [
        *("block 3", "filled 2/2", "block 1", "filled 1/2"),
        *("block 3", "filled 2/2", "block 0", "filled 2/2"),
    ]
    assert texts(axes)[0] == "after the copy"
    assert {"request 5", "request 6"} <= set(texts(axes))


def test_arrows_lead_from_the_entries_to_the_physical_blocks():
    (axes,) = show_blocks(Manager(), WORDS).axes
    arrows = [patch for patch in axes.patches if isinstance(patch, ConnectionPatch)]
    assert [arrow.xy2[0] - 0.5 for arrow in arrows] == [3, 1, 3, 0]
    starts = [arrow.xy1[0] for arrow in arrows]
    assert starts == sorted(starts)
    assert arrows[0].get_linestyle() != arrows[2].get_linestyle()


def test_a_shared_block_is_framed_and_striped_by_those_who_hold_it():
    (axes,) = show_blocks(Manager(), WORDS).axes
    boxes = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    frames = [box for box in boxes if box.get_linewidth() > 2]
    assert [int(frame.get_x()) for frame in frames] == [3]
    top = frames[0].get_y()
    stripes = [box for box in boxes if box.get_fill() and box.get_y() == top and box.get_x() > 3]
    fills = [stripe.get_facecolor() for stripe in stripes]
    assert fills == [to_rgba(look_of(5)[0]), to_rgba(look_of(6)[0])]


def test_the_newest_token_of_each_request_is_bold():
    (axes,) = show_blocks(Manager(), WORDS).axes
    words = {word for tokens in WORDS.values() for word in [*tokens, "↵"]}
    bold = {t.get_text() for t in axes.texts if t.get_fontweight() == "bold"} & words
    assert bold == {"king", "↵"}


def test_a_snapshot_stays_as_it_was():
    manager = Manager()
    moment = snapshot(manager, WORDS)
    manager.tables[5].append(2)
    manager.lengths[5] += 5
    manager.ref_counts[2] = 1
    manager.free_blocks.clear()
    assert moment == snapshot(Manager(), WORDS)


def test_an_empty_pool_can_be_shown():
    manager = Manager()
    manager.tables, manager.lengths = {}, {}
    manager.ref_counts, manager.free_blocks = [0] * 4, deque([3, 1, 0, 2])
    (axes,) = show_blocks(manager, {}).axes
    assert "The pool. Free blocks, next one first: 3, 1, 0, 2" in texts(axes)


def test_moving_the_slider_shows_another_moment():
    manager = Manager()
    moments = [snapshot(manager, WORDS, "before")]
    manager.lengths[5] = 4
    manager.tables[5] = [3, 2]
    moments.append(snapshot(manager, WORDS, "after"))
    step, picture = step_through(moments).children
    assert step.max == 1
    first = bytes(picture.value)
    step.value = 1
    assert first.startswith(b"\x89PNG")
    assert bytes(picture.value) != first


# ------------------------------------------------------------------------- who has blocks, when


def test_the_schedule_tells_waiting_from_preempted_and_counts_what_is_taken():
    held = [{0: 1, 1: 2}, {0: 2, 1: 2}, {0: 2}, {1: 3, 2: 1}, {2: 1}]
    (axes,) = show_schedule(held, num_blocks=4).axes
    rows: dict[float, list[str]] = {}
    for text in sorted(axes.texts, key=lambda text: text.get_position()):
        rows.setdefault(text.get_position()[1], []).append(text.get_text())
    assert [rows[y] for y in sorted(rows)] == [
        ["1", "2", "2"],
        ["2", "2", "×", "3"],
        ["·", "·", "·", "1", "1"],
        ["3", "4", "2", "4", "1"],
    ]
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["request 0", "request 1", "request 2", "taken of 4"]
