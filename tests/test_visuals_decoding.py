"""The pictures of lab 5 show what they are handed: these tests read the drawn data back."""

import re
from dataclasses import dataclass, field
from html import unescape
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.patches import FancyBboxPatch, PathPatch, Rectangle

from tests.common.pictures import texts
from visuals.decoding import (
    ENDED,
    KEPT,
    MOST_STEPS,
    PRUNED,
    before_and_after,
    distributions,
    explore_sampling,
    fates,
    repeated,
    show_repetition,
    show_tree,
    side_by_side,
    sorting_costs,
    tree_of,
)
from visuals.style import INK, MUTED


def is_png(data: bytes) -> bool:
    return data.startswith(b"\x89PNG") and len(data) > 2_000


def rectangles(axes: Axes) -> list[Rectangle]:
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


def widths(axes: Axes) -> list[float]:
    return [bar.get_width() for bar in rectangles(axes) if not bar.get_hatch()]


def hatched(axes: Axes) -> list[int]:
    """The rows that are hatched."""
    return [round(bar.get_y() + 0.36) for bar in rectangles(axes) if bar.get_hatch()]


def read(html: str) -> str:
    """What a person reads of it."""
    return unescape(re.sub("<[^>]+>", "", html))


# ----------------------------------------------------------------------------- distributions


def test_each_distribution_has_its_panel_and_what_was_dropped_is_hatched():
    named = {"as it is": [0.5, 0.3, 0.2], "top-k 2": torch.tensor([0.625, 0.375, 0])}
    figure = distributions(["mat", "couch", "$"], named)
    for axes, (name, probs) in zip(figure.axes, named.items(), strict=True):
        assert axes.get_title("left") == name
        assert widths(axes) == pytest.approx([float(prob) for prob in probs])
    assert [hatched(axes) for axes in figure.axes] == [[], [2]]
    assert [texts(axes) for axes in figure.axes] == [
        ["0.500", "0.300", "0.200"],
        ["0.625", "0.375", "dropped"],
    ]
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == ["mat", "couch", "$"]
    assert is_png(figure._repr_png_())


def test_panels_share_their_axis_and_those_beyond_a_row_go_below():
    figure = distributions(["a", "b"], {str(n): [n / 10, 1 - n / 10] for n in range(1, 6)})
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title("left") for axes in shown] == ["1", "2", "3", "4", "5"]
    assert len({axes.get_xlim() for axes in shown}) == 1
    assert [label.get_text() for label in shown[3].get_yticklabels()] == ["a", "b"]


# ------------------------------------------------------------------------ sampling, with sliders

LOGITS = torch.tensor([1.0, 3.0, 2.0, 0.0])


def probs_with(*, temperature: float, top_k: int | None, top_p: float, min_p: float):
    """Stands in for a sampler: each setting leaves its trace in the result."""
    probs = (LOGITS / max(temperature, 0.01)).softmax(dim=0)
    least = probs.sort(descending=True).values[(top_k or 4) - 1]
    kept = torch.where((probs >= least) & (probs >= min_p * probs.max()), probs, 0)
    kept = torch.where(probs >= 1 - top_p, kept, 0)
    return kept / kept.sum()


def explorer():
    return explore_sampling(probs_with, lambda token: f" t{token}").children


def test_the_sliders_begin_with_the_models_own_distribution():
    temperature, top_k, top_p, min_p, sentence, picture = explorer()
    assert (temperature.value, top_k.value, top_p.value, min_p.value) == (1, "all", 1, 0)
    assert "4 of 4 tokens can be drawn, with 100.0% of" in sentence.value
    assert is_png(bytes(picture.value))


def test_each_slider_redraws_the_picture_and_its_sentence_counts_who_stays():
    *sliders, sentence, picture = explorer()
    seen = {bytes(picture.value)}
    for control, value, count in zip(sliders, (0.5, 2, 0.7, 0.5), (4, 2, 1, 1), strict=True):
        before = control.value
        control.value = value
        seen.add(bytes(picture.value))
        assert sentence.value.startswith(f"{count} of 4 tokens")
        control.value = before
    assert len(seen) == 4  # two of the settings keep the likeliest token alone


def test_sliders_reach_from_greedy_to_twice_the_temperature_and_from_one_token_to_all():
    temperature, top_k, top_p, min_p, *_ = explorer()
    assert (temperature.min, temperature.max) == (0, 2)
    assert (top_k.options[0], top_k.options[-2:]) == (1, (50, "all"))
    assert (top_p.min, top_p.max, min_p.min, min_p.max) == (0.05, 1, 0, 0.5)


def test_bars_stand_before_and_after_with_the_likeliest_first():
    before, after = torch.tensor([0.1, 0.6, 0.3]), torch.tensor([0.0, 0.8, 0.2])
    (axes,) = before_and_after(before, after, lambda token: f" t{token}").axes
    filled, outlined = axes.containers
    assert [bar.get_width() for bar in filled] == pytest.approx([0.8, 0.2, 0])
    assert [bar.get_width() for bar in outlined] == pytest.approx([0.6, 0.3, 0.1])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["␣t1", "␣t2", "␣t0"]
    assert texts(axes) == ["60.0% → 80.0%", "30.0% → 20.0%", "10.0% → dropped"]
    assert hatched(axes) == [2]


# ------------------------------------------------------------------------------- whole texts


def test_a_run_that_stood_there_before_is_marked_and_nothing_else():
    pieces = [*"abcd", *"xabcy"]
    assert repeated(pieces, 3) == [False] * 5 + [True] * 3 + [False]
    assert repeated(pieces, 4) == [False] * 9
    html = show_repetition([*"ab<d", *"xab<y"], size=3).data
    assert "3 of 9 tokens are marked" in html
    assert read(html).startswith("ab<dxab<y")


@given(st.lists(st.sampled_from("ab"), max_size=12), st.integers(1, 4))
def test_a_token_is_marked_if_one_of_its_runs_was_seen_before(pieces, size):
    runs = [pieces[start : start + size] for start in range(len(pieces) - size + 1)]
    again = [start for start, run in enumerate(runs) if run in runs[:start]]
    marked = {start + place for start in again for place in range(size)}
    assert repeated(pieces, size) == [place in marked for place in range(len(pieces))]


def test_texts_keep_their_labels_their_lines_and_their_signs():
    html = side_by_side({"T < 1": "a\n  b & <i>c</i>", "T = 1": "d"}).data
    assert read(html) == "T < 1a\n  b & <i>c</i>T = 1d"
    assert "pre-wrap" in html
    assert "flex-wrap" in html


# ------------------------------------------------------------------------------ the beam tree

END = 0


class Candidate(NamedTuple):
    """The public attributes of a candidate."""

    score: float
    parent: int
    token: int


@dataclass
class Beam:
    ids: list[int]


@dataclass
class Search:
    """The public attributes of a beam search of width 2, whose best text is 5 7 END."""

    width: int = 2
    prompt_length: int = 1
    eos_token_id: int | None = END
    beams: list[Beam] = field(default_factory=lambda: [Beam([9, 6, 5]), Beam([9, 5, 8])])
    finished: list[Beam] = field(default_factory=lambda: [Beam([9, 5, 7, END])])
    trace: list[list[Candidate]] = field(
        default_factory=lambda: [
            [
                Candidate(-1, 0, 6),
                Candidate(-1.25, 0, 5),
                Candidate(-3, 0, END),  # third: too late to end a text
                Candidate(-4, 0, 7),
            ],
            [
                Candidate(-1.5, 1, 7),
                Candidate(-2, 0, END),
                Candidate(-2.5, 0, 5),
                Candidate(-3.5, 1, 8),
            ],
            [
                Candidate(-1.75, 0, END),
                Candidate(-3.25, 1, 5),
                Candidate(-4.5, 0, 8),
                Candidate(-5, 1, END),
            ],
        ]
    )


def draw(search: Search) -> Axes:
    (axes,) = show_tree(search, lambda token: f" w{token}").axes
    return axes


def nodes(axes: Axes) -> dict[tuple[float, float], tuple[str, str, bool]]:
    """Where -> the word, the score and whether they are bold."""
    boxes = [patch for patch in axes.patches if isinstance(patch, FancyBboxPatch)]
    words = axes.texts[1:]  # the prompt is the first text
    found = {}
    for number, box in enumerate(boxes):
        place = (box.get_x() + box.get_width() / 2, box.get_y() + box.get_height() / 2)
        word, score = words[2 * number : 2 * number + 2]
        bold = word.get_fontweight() == "bold"
        found[round(place[0], 3), round(place[1], 3)] = (word.get_text(), score.get_text(), bold)
    return found


def edges(axes: Axes) -> list[tuple[tuple[float, float], tuple[float, float], PathPatch]]:
    """From the column and row of the parent to those of the child."""
    found = []
    for patch in axes.patches:
        if isinstance(patch, PathPatch):
            (x, y), *_, (child_x, child_y) = np.asarray(patch.get_path().vertices).tolist()
            found.append(((x, round(y - 0.22, 3)), (child_x, round(child_y + 0.22, 3)), patch))
    return found


def test_the_first_ones_that_are_not_eos_go_on_and_eos_ends_among_the_first():
    search = Search()
    found = [fates(candidates, 2, END) for candidates in search.trace]
    assert found == [
        [KEPT, KEPT, PRUNED, PRUNED],
        [KEPT, ENDED, KEPT, PRUNED],
        [ENDED, KEPT, KEPT, PRUNED],
    ]
    assert fates(search.trace[1], 2, None) == [KEPT, KEPT, PRUNED, PRUNED]


def test_the_tree_has_a_row_a_step_with_words_and_log_probabilities():
    axes = draw(Search())
    assert texts(axes)[0] == " w9"
    rows = {}
    for (x, y), (word, score, _) in sorted(nodes(axes).items()):
        rows.setdefault(y, []).append((x, word, score))
    assert rows == {
        1: [
            (0.5, "␣w6", "-1.00"),
            (1.5, "␣w5", "-1.25"),
            (2.5, "END", "-3.00"),
            (3.5, "␣w7", "-4.00"),
        ],
        2: [
            (0.5, "END", "-2.00"),
            (1.5, "␣w5", "-2.50"),
            (2.5, "␣w7", "-1.50"),
            (3.5, "␣w8", "-3.50"),
        ],
        3: [
            (0.5, "␣w5", "-3.25"),
            (1.5, "END", "-5.00"),
            (2.5, "END", "-1.75"),
            (3.5, "␣w8", "-4.50"),
        ],
    }


def test_edges_lead_from_the_parents_and_do_not_cross():
    drawn = edges(draw(Search()))
    lines = {(parent, child) for parent, child, _ in drawn}
    assert lines == {
        *(((2, 0), (x, 1)) for x in (0.5, 1.5, 2.5, 3.5)),
        *(((0.5, 1), (x, 2)) for x in (0.5, 1.5)),
        *(((1.5, 1), (x, 2)) for x in (2.5, 3.5)),
        *(((1.5, 2), (x, 3)) for x in (0.5, 1.5)),  # beam 1: third, below the one that ended
        *(((2.5, 2), (x, 3)) for x in (2.5, 3.5)),
    }


@given(st.data())
def test_no_tree_has_crossing_edges(data):
    width = data.draw(st.integers(1, 3))
    search = Search(width=width, trace=[], finished=[])
    beams = 1
    for _ in range(4):
        pairs = [(parent, token) for parent in range(beams) for token in range(2 * width + 1)]
        order = data.draw(st.permutations(pairs))[: 2 * width]
        search.trace.append([Candidate(0, *pair) for pair in order])
        beams = fates(search.trace[-1], width, END).count(KEPT)
        if not beams:
            break
    for row, candidates in zip(tree_of(search), search.trace, strict=True):
        parents = [node.parent for node in row]
        assert parents == sorted(parents)
        assert {node.candidate for node in row} == set(candidates)


def test_the_path_of_the_best_text_is_bold_and_thick():
    axes = draw(Search())
    best = {(1.5, 1), (2.5, 2), (2.5, 3)}
    assert {place for place, (*_, bold) in nodes(axes).items() if bold} == best
    thick = {child for _, child, edge in edges(axes) if edge.get_linewidth() > 2}
    assert thick == best


def test_while_no_text_has_ended_the_best_beam_is_bold():
    search = Search()
    search.trace, search.finished = search.trace[:2], []
    search.beams = [Beam([9, 5, 7]), Beam([9, 6, 5])]
    bold = {place for place, (*_, bold) in nodes(draw(search)).items() if bold}
    assert bold == {(1.5, 1), (2.5, 2)}


def test_a_search_without_steps_shows_its_prompt():
    search = Search(trace=[], finished=[], beams=[Beam([9])])
    assert texts(draw(search)) == [" w9"]


def test_kept_ended_and_pruned_differ_in_box_and_dashes():
    axes = draw(Search())
    boxes = {
        (round(box.get_x() + 0.44, 3), round(box.get_y() + 0.22, 3)): box
        for box in axes.patches
        if isinstance(box, FancyBboxPatch)
    }
    transparent = to_rgba("none")
    kept, ended, pruned = boxes[0.5, 1], boxes[2.5, 3], boxes[3.5, 1]
    assert kept.get_edgecolor() != transparent
    assert kept.get_facecolor() != ended.get_facecolor() == to_rgba(INK)
    assert pruned.get_edgecolor() == pruned.get_facecolor() == transparent
    dashed = {child for _, child, edge in edges(axes) if edge.get_linestyle() != "solid"}
    solid = {child for _, child, edge in edges(axes) if edge.get_linestyle() == "solid"}
    assert dashed == {(2.5, 1), (3.5, 1), (3.5, 2), (1.5, 3)}
    assert {(0.5, 1), (0.5, 2), (2.5, 3)} <= solid
    ink = {text.get_text() for text in axes.texts if text.get_color() == MUTED}
    assert ink == {"END", "␣w7", "␣w8", "-3.00", "-4.00", "-3.50", "-5.00"}


def test_the_legend_names_only_what_is_shown():
    (legend,) = show_tree(Search(), str).legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["goes on", "has ended", "pruned", "the best text"]
    without_end = Search(eos_token_id=None)
    without_end.trace = without_end.trace[:1]
    (legend,) = show_tree(without_end, str).legends
    assert [t.get_text() for t in legend.get_texts()] == ["goes on", "pruned", "the best text"]


def test_a_long_search_is_drawn_as_far_as_it_can_be_read():
    step = [Candidate(-1, 0, 1), Candidate(-2, 0, 2)]
    search = Search(width=1, trace=[step] * 30, finished=[], beams=[Beam([9] + [1] * 30)])
    axes = draw(search)
    assert max(y for _, y in nodes(axes)) == MOST_STEPS
    assert axes.get_title("left") == f"the first {MOST_STEPS} of 30 steps"


def test_the_end_of_a_long_prompt_stands_on_one_line():
    search = Search(prompt_length=40, beams=[Beam([1] * 40)], finished=[], trace=[])
    (axes,) = show_tree(search, lambda token: "\nab").axes
    assert texts(axes) == ["…" + "↵ab" * 20]


# ------------------------------------------------------------------------------ finding top k


def test_sorting_costs_are_counted_left_and_timed_right():
    left, right = sorting_costs({"heap": 5120, "sort": 61000}, {"heap": 0.002, "sort": 0.003}).axes
    assert widths(left) == [5120, 61000]
    assert widths(right) == pytest.approx([2, 3])
    assert texts(left) == ["5,120", "61,000"]
    assert texts(right) == ["2.00 ms", "3.00 ms"]
    assert [label.get_text() for label in left.get_yticklabels()] == ["heap", "sort"]
