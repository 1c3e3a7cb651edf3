"""The pictures of lab 5 show what they are handed: these tests read the drawn data back."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgba
from matplotlib.patches import FancyBboxPatch, PathPatch

import visuals.decoding as lab
from tests.common.pictures import names, numbers_in, read, texts, title_of, told, widths
from tests.common.samples import BEAM_STEPS, END, SEARCH, Candidate, probs_with, search, word
from visuals.decoding import ENDED, KEPT, MOST_STEPS, PRUNED
from visuals.style import INK, MUTED


def hatched(axes) -> list[int]:
    """The rows that are hatched."""
    return [round(bar.get_y() + 0.36) for bar in axes.patches if bar.get_hatch()]


def test_each_distribution_has_its_panel_and_what_was_dropped_is_hatched():
    named = {"as it is": [0.5, 0.3, 0.2], "top-k 2": torch.tensor([0.625, 0.375, 0])}
    figure = lab.distributions(["mat", "couch", "$"], named)
    for axes, (name, probs) in zip(figure.axes, named.items(), strict=True):
        assert title_of(axes) == name
        assert widths(axes) == pytest.approx([float(prob) for prob in probs])
    assert [hatched(axes) for axes in figure.axes] == [[], [2]]
    assert [texts(axes) for axes in figure.axes] == [
        ["0.500", "0.300", "0.200"],
        ["0.625", "0.375", "dropped"],
    ]
    assert names(figure.axes[0].yaxis) == ["mat", "couch", "$"]


def test_the_sliders_begin_with_the_models_own_distribution_and_the_words_count_what_stays():
    *sliders, sentence, _ = lab.explore_sampling(probs_with, word).children
    assert [control.value for control in sliders] == [1, "all", 1, 0]
    assert numbers_in(sentence.value) == [4, 4, 100]  # of 4, with 100% of the probability
    for control, value, count in zip(sliders, (0.5, 2, 0.7, 0.5), (4, 2, 1, 1), strict=True):
        before, control.value = control.value, value
        assert numbers_in(sentence.value)[:2] == [count, 4]
        control.value = before


def test_bars_stand_before_and_after_with_the_likeliest_first():
    before, after = torch.tensor([0.1, 0.6, 0.3]), torch.tensor([0.0, 0.8, 0.2])
    (axes,) = lab.before_and_after(before, after, word).axes
    filled, outlined = ([bar.get_width() for bar in bars] for bars in axes.containers)
    assert filled == pytest.approx([0.8, 0.2, 0])
    assert outlined == pytest.approx([0.6, 0.3, 0.1])
    assert names(axes.yaxis) == ["␣king", "␣and", "the"]
    assert texts(axes) == ["60.0% → 80.0%", "30.0% → 20.0%", "10.0% → dropped"]
    assert hatched(axes) == [2]


def test_a_run_that_stood_there_before_is_marked_and_nothing_else():
    pieces = [*"ab<d", *"xab<y"]
    assert lab.repeated(pieces, 3) == [False] * 5 + [True] * 3 + [False]
    assert lab.repeated(pieces, 4) == [False] * 9
    shown = read(lab.show_repetition(pieces, size=3).data)
    assert shown.startswith("ab<dxab<y")
    assert numbers_in(shown) == [3, 9, 3]  # marked, of how many, in a row


@given(st.lists(st.sampled_from("ab"), max_size=12), st.integers(1, 4))
def test_a_token_is_marked_if_one_of_its_runs_was_seen_before(pieces, size):
    runs = [pieces[start : start + size] for start in range(len(pieces) - size + 1)]
    again = [start for start, run in enumerate(runs) if run in runs[:start]]
    marked = {start + place for start in again for place in range(size)}
    assert lab.repeated(pieces, size) == [place in marked for place in range(len(pieces))]


def test_texts_keep_their_labels_their_lines_and_their_signs():
    html = lab.side_by_side({"T < 1": "a\n  b & <i>c</i>", "T = 1": "d"}).data
    assert read(html) == "T < 1a\n  b & <i>c</i>T = 1d"
    assert "pre-wrap" in html
    assert "flex-wrap" in html


def draw(beam_search):
    return lab.show_tree(beam_search, word).axes[0]


def boxes(axes) -> dict[tuple[float, float], FancyBboxPatch]:
    """The nodes, by the middle of their boxes."""
    found = [patch for patch in axes.patches if isinstance(patch, FancyBboxPatch)]
    return {
        (round(box.get_x() + 0.44, 3), round(box.get_y() + box.get_height() / 2, 3)): box
        for box in found
    }


def nodes(axes) -> dict[tuple[float, float], tuple[str, float, bool]]:
    """Where -> the word, the score and whether the word is bold."""
    shown = axes.texts[1:]  # the prompt is the first text
    return {
        place: (one.get_text(), float(score.get_text()), one.get_fontweight() == "bold")
        for place, one, score in zip(boxes(axes), shown[::2], shown[1::2], strict=True)
    }


def edges(axes) -> dict[tuple[float, float], tuple[tuple[float, float], PathPatch]]:
    """By the place of a child that of its parent, and the line between them."""
    found = {}
    for patch in axes.patches:
        if isinstance(patch, PathPatch):
            (x, y), *_, (child_x, child_y) = np.asarray(patch.get_path().vertices).tolist()
            found[child_x, round(child_y + 0.22, 3)] = (x, round(y - 0.22, 3)), patch
    return found


def test_the_first_ones_that_are_not_eos_go_on_and_eos_ends_among_the_first():
    first, second, third = BEAM_STEPS
    assert lab.fates(first, 2, END) == [KEPT, KEPT, PRUNED, PRUNED]
    assert lab.fates(second, 2, END) == [KEPT, ENDED, KEPT, PRUNED]
    assert lab.fates(third, 2, END) == [ENDED, KEPT, KEPT, PRUNED]
    assert lab.fates(second, 2, None) == [KEPT, KEPT, PRUNED, PRUNED]


def test_the_tree_has_a_row_a_step_with_words_and_log_probabilities():
    axes = draw(SEARCH)
    assert texts(axes)[0] == "↵"
    fox, queen = "␣<b>fox</b>", "␣queen"
    rows = [
        [(fox, -1), ("$x$", -1.25), ("END", -3), ("&", -4)],
        [("END", -2), ("$x$", -2.5), ("&", -1.5), (queen, -3.5)],
        [("$x$", -3.25), ("END", -5), ("END", -1.75), (queen, -4.5)],
    ]
    assert {place: (name, score) for place, (name, score, _) in nodes(axes).items()} == {
        (x + 0.5, y): node for y, row in enumerate(rows, start=1) for x, node in enumerate(row)
    }


def test_edges_lead_from_the_parents_and_do_not_cross():
    parents = {child: parent for child, (parent, _) in edges(draw(SEARCH)).items()}
    assert parents == {
        **{(x, 1): (2, 0) for x in (0.5, 1.5, 2.5, 3.5)},
        **{(x, 2): (0.5, 1) for x in (0.5, 1.5)},
        **{(x, 2): (1.5, 1) for x in (2.5, 3.5)},
        **{(x, 3): (1.5, 2) for x in (0.5, 1.5)},  # beam 1: third, below the one that ended
        **{(x, 3): (2.5, 2) for x in (2.5, 3.5)},
    }


@given(st.data())
def test_no_tree_has_crossing_edges(data):
    width = data.draw(st.integers(1, 3))
    steps = []
    beams = 1
    for _ in range(4):
        pairs = [(parent, token) for parent in range(beams) for token in range(2 * width + 1)]
        order = data.draw(st.permutations(pairs))[: 2 * width]
        steps.append([Candidate(0, *pair) for pair in order])
        beams = lab.fates(steps[-1], width, END).count(KEPT)
        if not beams:
            break
    for row, candidates in zip(lab.tree_of(search(steps, 4, width=width)), steps, strict=True):
        parents = [node.parent for node in row]
        assert parents == sorted(parents)
        assert {node.candidate for node in row} == set(candidates)


def test_the_path_of_the_best_text_is_bold_and_thick():
    axes = draw(SEARCH)
    best = {(1.5, 1), (2.5, 2), (2.5, 3)}
    assert {place for place, (*_, bold) in nodes(axes).items() if bold} == best
    assert {child for child, (_, line) in edges(axes).items() if line.get_linewidth() > 2} == best
    axes = draw(search(BEAM_STEPS[:2], 4, 5, 7))  # while no text has ended, that of a beam
    assert {place for place, (*_, bold) in nodes(axes).items() if bold} == {(1.5, 1), (2.5, 2)}


def test_kept_ended_and_pruned_differ_in_box_and_dashes():
    axes = draw(SEARCH)
    transparent = to_rgba("none")
    kept, ended, pruned = (boxes(axes)[place] for place in ((0.5, 1), (2.5, 3), (3.5, 1)))
    assert kept.get_edgecolor() != transparent
    assert kept.get_facecolor() != ended.get_facecolor() == to_rgba(INK)
    assert pruned.get_edgecolor() == pruned.get_facecolor() == transparent
    lines = {child: line.get_linestyle() for child, (_, line) in edges(axes).items()}
    dashed = {child for child, style in lines.items() if style != "solid"}
    assert dashed == {(2.5, 1), (3.5, 1), (3.5, 2), (1.5, 3)}
    muted = [text.get_text() for text in axes.texts if text.get_color() == MUTED]
    assert muted == ["END", "-3.00", "&", "-4.00", "␣queen", "-3.50", "END", "-5.00"]


def test_a_long_search_is_drawn_as_far_as_it_can_be_read():
    step = [Candidate(-1, 0, 1), Candidate(-2, 0, 2)]
    axes = draw(search([step] * 30, 4, *[1] * 30, width=1))
    assert max(y for _, y in nodes(axes)) == MOST_STEPS
    assert told(axes) == [MOST_STEPS, 30]


def test_sorting_costs_are_counted_left_and_timed_right():
    seconds = {"heap": 0.002, "sort": 0.003}
    left, right = lab.sorting_costs({"heap": 5120, "sort": 61000}, seconds).axes
    assert widths(left) == [5120, 61000]
    assert widths(right) == pytest.approx([2, 3])
    assert texts(left) == ["5,120", "61,000"]
    assert texts(right) == ["2.00 ms", "3.00 ms"]
    assert names(left.yaxis) == ["heap", "sort"]
