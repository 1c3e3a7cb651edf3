"""The pictures of lab 8 show what they are handed: these tests read the drawn data back."""

import re
from collections import deque
from dataclasses import dataclass, field
from html import unescape
from itertools import combinations, pairwise

import pytest
from matplotlib.colors import to_hex

from tests.common.pictures import legend_of
from visuals.prefix_caching import (
    LONGEST,
    STATES,
    STRETCHES,
    Block,
    chat_turns,
    cliff,
    edges,
    explore_pools,
    grain,
    hit_rate_curves,
    keep,
    keep_pool,
    pool_strip,
    shortened,
    show_pool,
    show_tree,
    show_trees,
)


@pytest.mark.parametrize("looks", [STRETCHES, STATES])
def test_kinds_differ_in_more_than_colour(looks):
    ways = [(hatch, face == "white") for face, _, hatch in looks.values()]
    assert all(one != other for one, other in combinations(ways, 2))


# ------------------------------------------------------------------------------ chats by turns

# The first computes all of its first prompt; the other finds what both begin with.
CHATS = [[(10, 0, 4), (18, 14, 4)], [(10, 8, 4), (18, 12, 6), (30, 24, 2)]]


def stretches(axes):
    """By the height of a row: name, start and length of its stretches."""
    names = {to_hex(face): name for name, (face, _, _) in STRETCHES.items()}
    rows = {}
    for bar in axes.patches:
        part = names[to_hex(bar.get_facecolor())], bar.get_x(), bar.get_width()
        rows.setdefault(round(bar.get_y() + bar.get_height() / 2, 3), []).append(part)
    return rows


def test_a_turn_is_what_it_found_then_what_it_computed_then_its_answer():
    (axes,) = chat_turns(CHATS).axes
    found, computed, answer = STRETCHES
    first, second, *others = stretches(axes).values()
    assert first == [(computed, 0, 10), (answer, 10, 4)]
    assert second == [(found, 0, 14), (computed, 14, 4), (answer, 18, 4)]
    assert len(others) == 3


def test_chats_stand_apart_and_have_their_names():
    figure = chat_turns(CHATS)
    (axes,) = figure.axes
    heights = list(stretches(axes))
    steps = [low - high for high, low in pairwise(heights)]
    assert steps == pytest.approx([1, 1.6, 1, 1])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["chat 0", "chat 1"]
    assert axes.get_yticks() == pytest.approx([0.5, 3.6])
    low, high = axes.get_ylim()
    assert high < heights[0] - 0.43
    assert low > heights[-1] + 0.43
    assert legend_of(figure) == list(STRETCHES)


@pytest.mark.parametrize(
    ("chats", "title"),
    [(CHATS, "found: 58 of 86 prompt tokens, 67%"), ([], "found: 0 of 0 prompt tokens")],
)
def test_the_title_counts_what_was_found(chats, title):
    (axes,) = chat_turns(chats).axes
    assert axes.get_title("left") == title


# --------------------------------------------------------------------------- the pool over time

MOMENTS = [(3, 0, 0), (5, 2, 0), (4, 4, 2), (6, 1, 3)]


def test_the_strip_is_filled_by_held_known_and_empty_blocks():
    figure = pool_strip(MOMENTS, num_blocks=8)
    (axes,) = figure.axes
    held, known, empty = (patch.get_data() for patch in axes.patches)
    assert held.values.tolist() == [3, 5, 4, 6]
    assert list(known.baseline) == [3, 5, 4, 6]
    assert known.values.tolist() == [3, 7, 8, 7]
    assert list(empty.baseline) == [3, 7, 8, 7]
    assert empty.values.tolist() == [8, 8, 8, 8]
    assert list(held.edges) == [0.5, 1.5, 2.5, 3.5, 4.5]  # a step from 1 stands in its middle
    assert axes.get_xlim() == (0.5, 4.5)
    assert legend_of(figure) == list(STATES)


def test_ticks_above_the_pool_are_steps_that_evicted():
    (axes,) = pool_strip(MOMENTS, num_blocks=8).axes
    _, ticks = axes.lines
    assert list(ticks.get_xdata()) == [3, 4]
    assert all(8 < height < axes.get_ylim()[1] for height in ticks.get_ydata())
    assert axes.get_title("left") == "blocks, of 8; ticks above: 5 evicted"


def test_a_pool_that_evicts_nothing_has_no_ticks():
    (axes,) = pool_strip(MOMENTS[:2], num_blocks=8).axes
    assert list(axes.lines[1].get_xdata()) == []
    assert axes.get_title("left") == "blocks, of 8"


def test_a_strip_without_steps_is_refused():
    with pytest.raises(ValueError, match="no steps to show"):
        pool_strip([], num_blocks=8)


def test_the_slider_shows_the_pool_of_its_size_and_its_sentence():
    chosen, words, picture = explore_pools(
        {8: MOMENTS, 9: MOMENTS}, {8: "small", 9: "large"}
    ).children
    before = words.value, bytes(picture.value)
    chosen.value = 9
    assert (before[0], words.value) == ("small", "large")
    assert before[1] != bytes(picture.value)


# ------------------------------------------------------------------------ the pool, block by block


@dataclass
class Manager:
    """The public attributes of a learner's manager."""

    tables: dict[int, list[int]] = field(default_factory=lambda: {3: [0, 2], 5: [2, 1]})
    free_blocks: deque[int] = field(default_factory=lambda: deque([4, 3]))
    block_hash: dict[int, bytes] = field(default_factory=lambda: {2: b"x", 3: b"y"})


def test_a_block_is_kept_with_its_holders_and_its_place_among_the_free():
    manager = Manager()
    blocks = keep_pool(manager)
    assert blocks == [
        Block((3,), False, None),
        Block((5,), False, None),
        Block((3, 5), True, None),
        Block((), True, 2),
        Block((), False, 1),
    ]
    manager.tables.clear()
    assert blocks[2].holders == (3, 5)


def test_the_pool_is_a_table_of_moments_and_blocks():
    rows = show_pool({"<before>": keep_pool(Manager()), "after": []}).data.split("<tr>")[1:]
    cells = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in rows]
    assert cells[0] == ["block", "0", "1", "2", "3", "4"]
    assert cells[2] == ["after"]
    assert [re.sub("<.*?>", " ", cell).replace("&nbsp;", "").strip() for cell in cells[1]] == [
        *("&lt;before&gt;", "held by 3", "held by 5", "held by 3, 5  known"),
        *("free, no. 2  known", "free, no. 1"),
    ]


# ------------------------------------------------------------------------------- the radix tree


@dataclass
class Node:
    """The public attributes of a learner's node."""

    ids: list[int] = field(default_factory=list)
    children: dict[int, "Node"] = field(default_factory=dict)
    stamp: int = 0


WORDS = ["", "The", " <b>fox</b>", " ran", " slept", "\n"]


def words(ids: list[int]) -> str:
    return "".join(WORDS[token] for token in ids)


def tree() -> Node:
    """Of one text: The fox ran."""
    return Node(children={1: Node([1, 2, 3], stamp=1)}, stamp=1)


def split(root: Node) -> None:
    """After: The fox slept."""
    old = root.children[1]
    root.children[1] = Node([1, 2], {3: old, 4: Node([4, 5], stamp=2)}, stamp=2)
    old.ids, root.stamp = [3], 2


def plain(html: str) -> str:
    """What a person reads of it."""
    return unescape(re.sub("<[^>]+>", "", html))


def test_a_node_shows_its_text_and_its_stamp():
    root = tree()
    split(root)
    shown = plain(show_tree(root, words).data)
    edges = ["The␣<b>fox</b> 2 tokens, stamp 2", "␣ran 1 token, stamp 1"]
    assert shown == f"root stamp 2{edges[0]}{edges[1]}␣slept↵ 2 tokens, stamp 2"


def test_children_stand_inside_their_parents():
    root = tree()
    split(root)
    html = show_tree(root, words).data
    depths = {}
    for word in ("root", "The", "ran", "slept"):
        before = html[: html.index(word)]
        depths[word] = before.count("<div") - before.count("</div")
    assert depths["root"] < depths["The"] < depths["ran"] == depths["slept"]
    assert html.count("<div") == html.count("</div>")


def test_decoded_text_and_titles_are_no_markup():
    html = show_trees({"<i>now</i>": keep(tree())}, words).data
    assert "<b>fox" not in html
    assert "<i>" not in html
    assert "&lt;b&gt;fox" in html
    assert "&lt;i&gt;now" in html


def test_holders_are_told_of_all_but_the_root():
    root = tree()
    split(root)
    asked = []

    def holders(node: Node) -> int:
        asked.append(node.ids)
        return len(node.children)

    shown = plain(show_tree(root, words, holders).data)
    assert asked == [[3], [4, 5], [1, 2]]
    assert "root stamp 2The" in shown
    assert "2 tokens, held by 2, stamp 2" in shown
    assert shown.count("held by nobody") == 2


def test_an_empty_tree_is_its_root():
    assert plain(show_tree(Node(), words).data) == "root stamp 0"


def test_what_was_kept_stays_when_the_tree_changes():
    root = tree()
    before = keep(root)
    split(root)
    root.children.clear()
    (child,) = before.children.values()
    assert (child.ids, child.stamp, before.stamp) == ((1, 2, 3), 1, 1)


def test_a_split_marks_the_edges_that_were_not_there_before():
    root = tree()
    root.children[4] = Node([4], stamp=1)
    before = keep(root)
    split(root)
    html = show_trees({"before": before, "after": keep(root)}, words).data
    first, second = html.split("after</b>")
    assert plain(first).startswith("before")
    assert "new" not in plain(first)
    marked = re.findall(r"font-weight:bold\">(.*?)</span>", second)
    assert [unescape(edge) for edge in marked] == ["The␣<b>fox</b>", "␣ran", "␣slept↵"]
    assert plain(second).count("new") == 3  # and not at the other leaf


def test_edges_of_equal_tokens_in_other_places_are_two():
    root = Node(children={1: Node([1], {3: Node([3])}), 2: Node([2], {3: Node([3])})})
    assert edges(keep(root)) == {
        ((), ()),
        ((), (1,)),
        ((), (2,)),
        ((1,), (3,)),
        ((2,), (3,)),
    }


def test_of_a_long_edge_both_ends_are_shown():
    assert shortened("x" * LONGEST) == "x" * LONGEST
    text = shortened(f"begin{'x' * LONGEST}end")
    assert text.startswith("begin")
    assert text.endswith("end")
    assert len(text) <= LONGEST + 3
    assert text.count("…") == 1


# ------------------------------------------------------------------- hit rate against pool size

CIRCLE = {10: 0.8, 6: 0.0, 9: 0.7, 8: 0.0}  # documents asked for in a circle
RATES = {"oldest first": CIRCLE, "newest first": {6: 0.5, 8: 0.6, 10: 0.8}}


def test_each_order_has_a_line_of_its_own_look_from_small_pools_to_large():
    (axes,) = hit_rate_curves(RATES).axes
    oldest, newest = axes.lines
    assert list(oldest.get_xdata()) == [6, 8, 9, 10]
    assert list(oldest.get_ydata()) == [0, 0, 0.7, 0.8]
    assert list(newest.get_ydata()) == [0.5, 0.6, 0.8]
    assert oldest.get_linestyle() != newest.get_linestyle()
    assert oldest.get_marker() != newest.get_marker()
    low, high = axes.get_ylim()
    assert low < 0 < 1 < high


def test_the_cliff_and_the_working_set_are_marked_and_named():
    figure = hit_rate_curves(RATES, working_set=9)
    (axes,) = figure.axes
    (fall,) = axes.patches
    assert (fall.get_x(), fall.get_width()) == (8, 1)
    assert fall.get_hatch()
    assert list(axes.lines[2].get_xdata()) == [9, 9]
    marks = ["LRU's cliff: 0.70 to 0.00", "working set: 9 blocks"]
    assert sorted(legend_of(figure)) == sorted([*RATES, *marks])


def test_without_a_cliff_and_a_working_set_neither_is_marked():
    gentle = {"oldest first": {6: 0.4, 8: 0.5, 10: 0.7}, "newest first": CIRCLE}
    figure = hit_rate_curves(gentle)
    assert list(figure.axes[0].patches) == []
    assert legend_of(figure) == list(gentle)


@pytest.mark.parametrize(
    ("curve", "found"),
    [
        (CIRCLE, (8, 9)),
        ({1: 0.4, 2: 0.8}, None),  # half of the best is no cliff yet
        ({1: 0.39, 2: 0.8}, (1, 2)),
        ({1: 0.9, 2: 0.0}, None),  # a larger pool that finds less is something else
        ({1: 0.0, 2: 0.0}, None),
        ({5: 0.7}, None),
        ({}, None),
    ],
)
def test_a_cliff_loses_more_than_half_of_the_best_rate(curve, found):
    assert cliff(curve) == found


# ------------------------------------------------------------------------------- how fine a grain


def test_bars_by_block_size_and_the_tree_as_a_line_across_them():
    figure = grain({16: 2368, 1: 1960, 4: 2080}, tree=1960)
    (axes,) = figure.axes
    assert [bar.get_height() for bar in axes.patches] == [1960, 2080, 2368]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "4", "16"]
    assert [text.get_text() for text in axes.texts] == ["1,960", "2,080", "2,368"]
    (line,) = axes.lines
    assert list(line.get_ydata()) == [1960, 1960]
    assert line.get_linestyle() == "--"
    assert sorted(legend_of(figure)) == ["blocks", "radix tree: 1,960"]


def test_a_tree_above_all_bars_is_in_the_picture():
    (axes,) = grain({1: 10}, tree=40).axes
    assert axes.get_ylim()[1] > 40


@pytest.mark.filterwarnings("error")  # a sign that the font lacks, or no room for a layout
def test_pictures_are_drawn_without_a_warning():
    figures = (
        chat_turns(CHATS),
        chat_turns([]),
        pool_strip(MOMENTS, 8),
        hit_rate_curves(RATES, 9),
        hit_rate_curves({}),
        grain({16: 2368}, tree=1960),
    )
    for figure in figures:
        assert figure._repr_png_().startswith(b"\x89PNG")
