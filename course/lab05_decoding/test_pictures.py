"""The pictures of lab 5 show what they are handed: these tests read the drawn data back."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgba
from matplotlib.patches import FancyBboxPatch, PathPatch

import visuals.decoding as lab
from course.lab05_decoding.samples import BEAM_STEPS, SEARCH, probs_with, search
from solutions.decoding import Candidate
from tests.common.pictures import names, numbers_in, read, texts, title_of, told, widths
from tests.samples import END, word
from visuals.decoding import ENDED, KEPT, MOST_STEPS, PRUNED
from visuals.style import INK


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
    assert texts(figure.axes[1]) == ["0.625", "0.375", "dropped"]
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


@given(st.lists(st.sampled_from("ab<"), max_size=12), st.integers(1, 4))
def test_a_token_is_marked_if_one_of_its_runs_was_seen_before(pieces, size):
    runs = [pieces[start : start + size] for start in range(len(pieces) - size + 1)]
    again = [start for start, run in enumerate(runs) if run in runs[:start]]
    marked = {start + place for start in again for place in range(size)}
    assert lab.repeated(pieces, size) == [place in marked for place in range(len(pieces))]
    shown = read(lab.show_repetition(pieces, size).data)
    assert shown.startswith("".join(pieces))
    assert numbers_in(shown) == [len(marked), len(pieces), size]


def test_texts_keep_their_labels_their_lines_and_their_signs():
    html = lab.side_by_side({"T < 1": "a\n  b & <i>c</i>", "T = 1": "d"}).data
    assert read(html) == "T < 1a\n  b & <i>c</i>T = 1d"
    assert "pre-wrap" in html


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
    fates = [lab.fates(candidates, 2, END) for candidates in BEAM_STEPS]
    assert fates == [
        [KEPT, KEPT, PRUNED, PRUNED],
        [KEPT, ENDED, KEPT, PRUNED],
        [ENDED, KEPT, KEPT, PRUNED],
    ]
    assert lab.fates(BEAM_STEPS[1], 2, None) == [KEPT, KEPT, PRUNED, PRUNED]


def test_the_tree_has_a_row_a_step_with_words_and_log_probabilities_below_their_parents():
    axes = draw(SEARCH)
    fox, queen = "␣<b>fox</b>", "␣queen"
    rows = [
        [(fox, -1), ("$x$", -1.25), ("END", -3), ("&", -4)],
        [("END", -2), ("$x$", -2.5), ("&", -1.5), (queen, -3.5)],
        [("$x$", -3.25), ("END", -5), ("END", -1.75), (queen, -4.5)],
    ]
    assert {place: (name, score) for place, (name, score, _) in nodes(axes).items()} == {
        (x + 0.5, y): node for y, row in enumerate(rows, start=1) for x, node in enumerate(row)
    }
    # of the two left nodes of a row, and of the two right ones; beam 1 ended in the second step
    parents = {1: [(2, 0), (2, 0)], 2: [(0.5, 1), (1.5, 1)], 3: [(1.5, 2), (2.5, 2)]}
    assert {child: parent for child, (parent, _) in edges(axes).items()} == {
        (x + 0.5, y): both[x // 2] for y, both in parents.items() for x in range(4)
    }


def test_the_path_of_the_best_text_is_bold_and_thick():
    axes = draw(SEARCH)
    best = {(1.5, 1), (2.5, 2), (2.5, 3)}
    assert {place for place, (*_, bold) in nodes(axes).items() if bold} == best
    assert {child for child, (_, line) in edges(axes).items() if line.get_linewidth() > 2} == best
    axes = draw(search(BEAM_STEPS[:2], 4, 5, 7))  # while no text has ended, that of a beam
    assert {place for place, (*_, bold) in nodes(axes).items() if bold} == {(1.5, 1), (2.5, 2)}


def test_kept_ended_and_pruned_differ_in_box_and_dashes():
    axes = draw(SEARCH)
    frames = {place: to_rgba(box.get_edgecolor()) for place, box in boxes(axes).items()}
    pruned = {(2.5, 1), (3.5, 1), (3.5, 2), (1.5, 3)}
    assert {place for place, frame in frames.items() if frame == to_rgba("none")} == pruned
    lines = {child: line.get_linestyle() for child, (_, line) in edges(axes).items()}
    assert {child for child, style in lines.items() if style != "solid"} == pruned
    faces = {place: box.get_facecolor() for place, box in boxes(axes).items()}
    assert {place for place, face in faces.items() if face == to_rgba(INK)} == {(0.5, 2), (2.5, 3)}


def test_a_long_search_is_drawn_as_far_as_it_can_be_read():
    step = [Candidate(-1, 0, 1), Candidate(-2, 0, 2)]
    axes = draw(search([step] * 30, 4, *[1] * 30, width=1))
    assert max(y for _, y in nodes(axes)) == MOST_STEPS
    assert told(axes) == [MOST_STEPS, 30]


def test_sorting_costs_are_counted_left_and_timed_right():
    counts, seconds = {"heap": 5120, "sort": 61000}, {"heap": 0.002, "sort": 0.003}
    left, right = lab.sorting_costs(counts, seconds).axes
    assert texts(left) == ["5,120", "61,000"]
    assert texts(right) == ["2.00 ms", "3.00 ms"]
    assert [widths(left), widths(right)] == [[5120, 61000], pytest.approx([2, 3])]
    assert left.yaxis_inverted()  # the first is on top
