"""The pictures of lab 8 show what they are handed: these tests read the drawn data back."""

import re
from html import unescape
from itertools import pairwise

import pytest

import visuals.prefix_caching as lab
from course.lab08_prefix_caching import samples as samples
from solutions.prefix_caching import Node
from tests.common.pictures import (
    boxes,
    curves,
    heights,
    legend_of,
    names,
    numbers_in,
    read,
    told,
)
from tests.samples import decode
from visuals.prefix_caching import keep


def stretches(axes):
    """By the height of a row: name, start and length of its stretches."""
    rows = {}
    for kind, x, end, y, bottom in boxes(axes, lab.STRETCHES):
        rows.setdefault(round((y + bottom) / 2, 3), []).append((kind, x, end - x))
    return rows


def test_a_turn_is_what_it_found_then_what_it_computed_then_its_answer():
    (axes,) = lab.chat_turns(samples.CHATS).axes
    rows = stretches(axes)
    found, computed, answer = lab.STRETCHES
    first, second, *others = rows.values()
    assert first == [(computed, 0, 10), (answer, 10, 4)]
    assert second == [(found, 0, 14), (computed, 14, 4), (answer, 18, 4)]
    assert len(others) == 3
    assert [low - high for high, low in pairwise(rows)] == pytest.approx([1, 1.6, 1, 1])
    assert told(axes) == [58, 86, 67]  # found, of how many, %
    assert told(lab.chat_turns([]).axes[0]) == [0, 0]


def test_the_strip_is_filled_by_held_known_and_empty_blocks_below_its_evictions():
    (axes,) = lab.pool_strip(samples.MOMENTS, num_blocks=8).axes
    areas = [(patch.get_data().baseline, patch.get_data().values) for patch in axes.patches]
    (_, held), (below_known, known), (below_empty, empty) = areas
    assert list(held) == list(below_known) == [3, 5, 4, 6]
    assert list(known) == list(below_empty) == [3, 7, 8, 7]
    assert list(empty) == [8, 8, 8, 8]
    assert list(curves(axes)[1]) == [3, 4]  # the ticks
    assert told(axes) == [8, 5]  # blocks, evicted


def test_a_pool_that_evicts_nothing_has_no_ticks_and_one_without_steps_is_refused():
    (axes,) = lab.pool_strip(samples.MOMENTS[:2], num_blocks=8).axes
    assert curves(axes)[1] == {}
    with pytest.raises(ValueError, match="no steps to show"):
        lab.pool_strip([], num_blocks=8)


def test_the_pool_is_a_table_of_moments_and_blocks():
    manager = samples.knowing_manager()
    before = lab.keep_pool(manager)
    manager.tables.clear()  # what was kept stays
    html = lab.show_pool({"<before>": before, "after": []}).data
    rows = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in html.split("<tr>")[1:]]
    assert rows[0] == ["block", "0", "1", "2", "3", "4"]
    assert [read(cell.replace("<br>", " ")).strip() for cell in rows[1]] == [
        *("<before>", "held by 3", "held by 5", "held by 3, 5 known"),
        *("free, no. 2 known", "free, no. 1"),
    ]
    assert rows[2] == ["after"]


def shown(root: Node, title: str = "") -> str:
    return lab.show_trees({title: keep(root)}, decode).data


def test_a_node_shows_its_text_and_its_stamp_and_no_markup():
    html = shown(samples.split_tree())
    edges = ["the␣<b>fox</b> 2 tokens, stamp 2", "␣and 1 token, stamp 1"]
    assert read(html) == f"root stamp 2{edges[0]}{edges[1]}␣queen↵ 2 tokens, stamp 2"
    assert read(shown(Node())) == "root stamp 0"
    html = shown(samples.tree(), "<i>now</i>")
    assert "<b>fox" not in html
    assert "&lt;i&gt;now" in html


def test_children_stand_inside_their_parents():
    html = shown(samples.split_tree())
    before = [html[: html.index(word)] for word in ("root", "fox", "and", "queen")]
    root, fox, end, queen = (part.count("<div") - part.count("</div") for part in before)
    assert root < fox < end == queen


def test_a_split_marks_the_edges_that_were_not_there_before():
    root = samples.tree()
    root.children[4] = Node([4], stamp=1)
    before = keep(root)
    samples.split(root)
    first, second = lab.show_trees({"before": before, "after": keep(root)}, decode).data.split(
        "after</b>"
    )
    assert "new" not in read(first)
    marked = re.findall(r"font-weight:bold\">(.*?)</span>", second)
    assert [unescape(edge) for edge in marked] == ["the␣<b>fox</b>", "␣and", "␣queen↵"]
    assert read(second).count("new") == 3  # and not at the other leaf


def test_edges_of_equal_tokens_in_other_places_are_two():
    leaf = Node([3])
    root = Node(children={1: Node([1], {3: leaf}), 2: Node([2])})
    before = keep(root)
    root.children[2].children[3] = leaf
    trees = {"before": before, "after": keep(root)}
    assert read(lab.show_trees(trees, decode).data).count("new") == 1


def test_of_a_long_edge_both_ends_are_shown():
    assert lab.shortened("x" * lab.LONGEST) == "x" * lab.LONGEST
    text = lab.shortened(f"begin{'x' * lab.LONGEST}end")
    assert re.fullmatch("beginx+ … x+end", text)
    assert len(text) <= lab.LONGEST + 3


def test_each_order_has_a_line_from_small_pools_to_large():
    (axes,) = lab.hit_rate_curves(samples.RATES).axes
    assert curves(axes) == [*samples.RATES.values()]
    assert list(curves(axes)[0]) == [6, 8, 9, 10]


def test_the_cliff_and_the_working_set_are_marked_and_named():
    figure = lab.hit_rate_curves(samples.RATES, working_set=9)
    (axes,) = figure.axes
    (fall,) = axes.patches
    assert (fall.get_x(), fall.get_width()) == (8, 1)
    assert list(axes.lines[2].get_xdata()) == [9, 9]
    told = sorted(numbers_in(name) for name in legend_of(figure) if name not in samples.RATES)
    assert told == [[0.7, 0], [9]]
    gentle = {"oldest first": {6: 0.4, 8: 0.5, 10: 0.7}, "newest first": samples.CIRCLE}
    figure = lab.hit_rate_curves(gentle)
    assert heights(figure.axes[0]) == []
    assert legend_of(figure) == list(gentle)


@pytest.mark.parametrize(
    ("curve", "found"),
    [
        (samples.CIRCLE, (8, 9)),
        ({1: 0.4, 2: 0.8}, None),  # half of the best is no cliff yet
        ({1: 0.39, 2: 0.8}, (1, 2)),
        ({1: 0.9, 2: 0.0}, None),  # a larger pool that finds less is something else
        ({5: 0.7}, None),
    ],
)
def test_a_cliff_loses_more_than_half_of_the_best_rate(curve, found):
    assert lab.cliff(curve) == found


def test_bars_by_block_size_and_the_tree_as_a_line_across_them():
    (axes,) = lab.grain({16: 2368, 1: 1960, 4: 2080}, tree=4000).axes
    assert heights(axes) == [1960, 2080, 2368]
    assert names(axes.xaxis) == ["1", "4", "16"]
    assert set(axes.lines[0].get_ydata()) == {4000}
