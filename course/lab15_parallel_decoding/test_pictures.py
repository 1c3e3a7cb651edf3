"""The pictures of lab 15 show what they are handed: these tests read the drawn data back."""

import re
from html import unescape

import pytest

import visuals.parallel_decoding as lab
from course.lab15_parallel_decoding import samples as samples
from course.lab15_parallel_decoding.samples import (
    ALONE,
    CALLS,
    CHAIN,
    ENDED,
    PARENTS,
    SECOND_BRANCH,
    TREE,
)
from tests.common.pictures import boxes, curves, dots, legend_of, names, numbers_in, read, texts
from tests.samples import END, word


def test_calls_have_cells_of_four_kinds():
    assert list(lab.cells_of([CHAIN, ALONE])) == [
        *((0, 0, 1, lab.CONFIRMED), (0, 1, 5, lab.OWN), (0, 2, 3, lab.GUESS)),
        *((1, 0, 1, lab.TEXT), (1, 1, 5, lab.TEXT), (1, 2, 4, lab.OWN)),
    ]
    ended = [(1, lab.CONFIRMED), (END, lab.CONFIRMED)]  # an accepted EOS has no token after it
    assert [(token, kind) for *_, token, kind in lab.cells_of([ENDED])] == ended


def test_each_cell_is_in_its_place():
    (axes,) = lab.show_guesses([CHAIN, ALONE, ENDED], word, first=1).axes
    drawn = [
        (round(low), round(left), kind) for kind, left, _, low, _ in boxes(axes, lab.CELLS)
    ]  # a box begins just left of its column and above its row
    assert drawn == [(row, column, kind) for row, column, _, kind in lab.cells_of([ALONE, ENDED])]
    assert names(axes.yaxis) == ["call 1", "call 2"]
    assert texts(axes)[0] == lab.short(word(4))


def test_only_the_first_calls_are_drawn():
    (axes,) = lab.show_guesses([ALONE] * 40, word).axes
    assert len(names(axes.yaxis)) == lab.ROWS
    assert max(x for x, _ in (text.get_position() for text in axes.texts)) < lab.COLUMNS


def test_a_first_child_continues_its_line():
    places = lab.places_of(PARENTS)
    assert places == [(0, 0), (1, 0), (1, 2), (2, 0), (2, 1), (2, 2)]
    assert lab.places_of([-1]) == [(0, 0)]


def test_a_tree_has_boxes_and_a_mask_of_dots():
    own, _ = samples.layout(PARENTS)
    figure = lab.show_tree(TREE, word, own, SECOND_BRANCH.path)
    tree, mask = figure.axes
    wrong, right = lab.NOT_ACCEPTED, lab.ACCEPTED
    kinds = [kind for kind, *_ in boxes(tree, lab.NODES)]
    assert kinds == [lab.LAST, wrong, right, wrong, wrong, right]
    assert [text.split()[0] for text in texts(tree)] == list("012345")
    edges = [[*line.items()] for line in curves(tree)]
    assert [(start[1], end[1]) for start, end in edges] == [(0, 0), (0, 2), (0, 0), (0, 1), (2, 2)]
    assert dots(mask) == {(n, n) for n in range(6)} | {(n, p) for n, p in enumerate(PARENTS) if n}
    assert legend_of(figure) == list(lab.NODES)
    assert legend_of(lab.show_tree(TREE, word, own)) == [lab.LAST, "guess"]


def test_the_parts_of_a_tree_have_frames():
    """Each is a line around the boxes of its nodes."""
    own, _ = samples.layout(PARENTS)
    figure = lab.show_tree(TREE, word, own, SECOND_BRANCH.path, samples.PARTS)
    tree, _ = figure.axes
    framed = [
        next(
            n
            for n, box in enumerate(tree.patches)
            if min(line.get_xdata()) == box.get_x() and min(line.get_ydata()) == box.get_y()
        )
        for line in tree.lines
        if len(line.get_xdata()) == 5
    ]
    assert framed == [node for nodes in samples.PARTS.values() for node in nodes]
    assert legend_of(figure) == [*lab.NODES, *samples.PARTS]


def test_words_count_rows_and_new_tokens():
    sentence = lab.explore_calls(CALLS, word, samples.layout).children[-2].value
    assert numbers_in(read(sentence)) == [0, 6, 3]
    assert read(sentence).endswith("queen" + "".join(map(word, SECOND_BRANCH.new[1:])))


@pytest.mark.parametrize(
    ("call", "kinds"),
    [
        (SECOND_BRANCH, [lab.OTHER, lab.FIRST, lab.MODEL]),
        (CHAIN, [lab.FIRST, lab.MODEL]),
        (ALONE, [lab.MODEL]),
        (ENDED, [lab.FIRST, lab.FIRST]),
    ],
)
def test_tokens_are_marked_by_their_source(call, kinds):
    assert list(lab.marks_of(call)) == list(zip(call.new, kinds, strict=True))


def test_the_text_is_shown_with_its_counts():
    html = lab.show_branches("<i>", CALLS, word).data
    assert "&lt;i&gt;" in html
    shown = re.findall(r'title="([^"]+)">([^<]*)</span>', html)[len(lab.MARKS) :]
    assert [kind for kind, _ in shown] == [kind for c in CALLS for _, kind in lab.marks_of(c)]
    assert unescape(shown[1][1]) == word(6).strip()
    assert numbers_in(read(html))[:3] == [3, 1, 1]  # first guesses, other branches, the model's
    assert numbers_in(read(html))[-3:] == [5, 2, 9]  # tokens, calls, rows


def test_methods_are_points_over_speed_ups():
    figure = lab.rows_and_tokens(samples.price, samples.METHODS)
    (axes,) = figure.axes
    *lines, chain, tree = curves(axes)
    assert [line[20] for line in lines] == [2 * gain for gain in lab.GAINS]
    assert (chain, tree) == ({5: 2.5}, {22: 3.5})
    assert texts(axes) == list(samples.METHODS)
    assert [numbers_in(name) for name in legend_of(figure)] == [[gain] for gain in lab.GAINS]


def test_predicted_and_measured_share_a_row():
    figure = lab.predicted_and_measured({"chain": 1.8, "tree": 0.9}, {"tree": 0.8})
    (axes,) = figure.axes
    assert curves(axes)[1:] == [{1.8: 0, 0.9: 1}, {0.8: 1}]
    assert names(axes.yaxis) == ["chain", "tree"]
    assert legend_of(figure) == ["predicted", "measured"]
    assert legend_of(lab.predicted_and_measured({"chain": 1.8})) == ["predicted"]
