"""The pictures of lab 14 show what they are handed: these tests read the drawn data back."""

import re
from html import unescape

import pytest
import torch
from matplotlib.patches import Circle
from matplotlib.path import Path

import visuals.constrained as lab
from course.lab14_constrained.samples import LAUGH
from solutions.constrained import automaton_of
from solutions.grammars.regex import parse
from tests.common.pictures import numbers_in, read, texts

DATES = automaton_of(parse(r"(19|20)\d\d-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"))


@pytest.mark.parametrize(
    ("numbers", "label"),
    [
        (b"a", "a"),
        (b"0123456789", "0–9"),
        (b"x12", "1–2 x"),
        (b" \xc3", "␣ C3"),
        (b"acegi", "5 bytes"),
        (b"", ""),
    ],
)
def test_a_set_of_bytes_has_a_short_name(numbers, label):
    assert lab.byte_label(numbers) == label


def test_a_walk_ends_at_a_byte_without_an_edge():
    assert lab.walk(LAUGH, b"hah") == [0, 1, 2, 1]
    assert lab.walk(LAUGH, b"hx!") == [0, 1]
    assert lab.walk(LAUGH, b"") == [0]


def test_states_stand_by_their_distance():
    for automaton in (LAUGH, DATES):
        places = lab.places_of(automaton)
        assert sorted(places) == list(range(len(automaton.edges)))
        assert len(set(places.values())) == len(places)
        assert places[0] == (0, 0)
    assert [places[state][0] for state in (1, 2, 3)] == [1, 1, 2]


def test_an_automaton_has_a_bold_walk():
    (axes,) = lab.show_automaton(LAUGH, "hah").axes
    assert sorted(filter(None, texts(axes))) == sorted([*"0123", *"ha", "h", "!", "!"])
    circles = [patch for patch in axes.patches if isinstance(patch, Circle)]
    assert len(circles) == len(LAUGH.edges) + len(LAUGH.accepting)
    arrows = [note.arrow_patch for note in axes.texts if getattr(note, "arrow_patch", None)]
    assert len(arrows) == 5
    assert sum(arrow.get_linewidth() > 2 for arrow in arrows) == 3  # 0 to 1 to 2 to 1


def test_no_label_touches_an_arrow_or_a_state():
    figure = lab.show_automaton(DATES)
    figure.draw_without_rendering()
    (axes,) = figure.axes
    rings = [patch.get_window_extent() for patch in axes.patches if isinstance(patch, Circle)]
    notes = [note for note in axes.texts if getattr(note, "arrow_patch", None)]
    arrows = [axes.transData.transform_path(Path([note.xyann, note.xy])) for note in notes]
    labels = [text for text in axes.texts if text.get_text() and text.get_zorder() < 4]
    assert len(labels) == len(arrows) > 10
    for label in labels:
        box = label.get_window_extent().padded(2)
        assert not any(box.overlaps(ring) for ring in rings)
        assert not any(arrow.intersects_bbox(box, filled=False) for arrow in arrows)


def test_the_walk_is_told_in_words():
    assert lab.walk_in_words(LAUGH, "haha!", 1).endswith("may be: a.")
    told = lab.walk_in_words(LAUGH, "haha!", 2)
    assert "<b>ha</b>" in told
    assert told.endswith("may be: ! h. The text may end here.")
    assert lab.walk_in_words(automaton_of(parse("a")), "a", 1).endswith(
        "none. The text may end here."
    )


def test_every_token_has_a_cell_of_the_mask():
    mask = torch.zeros(300, dtype=torch.bool)
    mask[[0, 299]] = True
    figure = lab.show_masks({"here": mask, "there": ~mask})
    titles = [axes.get_title("left") for axes in figure.axes]
    assert [numbers_in(title) for title in titles] == [[2, 300], [298, 300]]
    cells = figure.axes[0].images[0].get_array()
    assert cells.shape == (2, lab.COLUMNS)
    flat = cells.filled(-1).reshape(-1)
    assert flat[[0, 1, 299]].tolist() == [1, 0, 1]
    assert set(flat[300:].tolist()) == {-1}  # no token


def test_each_text_has_both_probabilities():
    (axes,) = lab.distortion([" a", "b"], [0.9999, 0.0001], [0.25, 0.75]).axes
    widths = [[bar.get_width() for bar in bars] for bars in axes.containers]
    assert widths == [[0.9999, 0.0001], [0.25, 0.75]]
    assert texts(axes) == ["100.0%", "below 0.1%", "25.0%", "75.0%"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["␣a", "b"]


def test_masses_are_on_a_log_scale():
    (axes,) = lab.allowed_mass(["{", " "], [1e-9, 1.0]).axes
    assert axes.get_yscale() == "log"
    assert axes.lines[0].get_ydata().tolist() == [1e-9, 1.0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["{", "␣"]
    (axes,) = lab.allowed_mass(["a"] * 60, [0.5] * 60).axes
    assert len(axes.lines[0].get_ydata()) == lab.MOST_PIECES


def test_jumped_tokens_are_marked():
    html = lab.show_jumps(["{", " <b>", "\n"], [False, True, True]).data
    marked = re.findall(r'title="(\w+)">([^<]*)<', html)
    kinds = [(kind, unescape(text)) for kind, text in marked if kind != text]
    assert kinds == [(lab.CHOSEN, "{"), (lab.JUMPED, "␣<b>"), (lab.JUMPED, "↵")]
    assert numbers_in(read(html).split("own")[-1]) == [3, 1]


def test_the_stack_is_shown_after_each_token():
    html = lab.show_stack(["[", "<b>"], ["[", ""], [(1, 2, 1), (1000, 0, 0)]).data
    cells = [unescape(read(cell)) for cell in re.findall(r"<td[^>]*>(.*?)</td>", html)]
    assert cells == ["[", "[", "1", "2", "1", "<b>", "–", "1,000", "0", "0"]
