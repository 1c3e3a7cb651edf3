"""The pictures of lab 6 show what they are handed: these tests read the drawn data back."""

import re
from dataclasses import dataclass
from html import unescape
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from visuals.speculative import (
    ACCEPTED,
    BEYOND,
    BONUS,
    CORRECTED,
    LOOKS,
    MOST_ROWS,
    REJECTED,
    UNDRAFTED,
    explore_acceptance,
    kinds,
    round_in_words,
    show_acceptance,
    show_rounds,
    speed_up_curves,
    tokens_a_round,
    verify_costs,
)


def is_png(data: bytes) -> bool:
    return data.startswith(b"\x89PNG") and len(data) > 2_000


# -------------------------------------------------------------------------------- the rounds

EOS = 0


@dataclass(frozen=True)
class Round:
    """The public attributes of a round."""

    drafts: list[int]
    accepted: int
    new: list[int]


ALL_ACCEPTED = Round([1, 2], 2, [1, 2, 3])
CORRECTION = Round([1, 2, 4], 1, [1, 3])
NO_DRAFT = Round([], 0, [5])
CUT = Round([1, EOS, 2, 4], 3, [1, EOS])


def word(token: int) -> str:
    return {0: "<|end|>", 1: " an", 2: " old", 3: " king", 4: "\n", 5: "&"}[token]


def marked(html: str) -> list[tuple[str, str]]:
    """The marked tokens in their order: (kind, text)."""
    found = re.findall(r'<span style="[^"]*" title="([^"]+)">([^<]*)</span>', html)
    return [(kind, unescape(text)) for kind, text in found]


def parts(html: str) -> list[str]:
    """The pieces of the picture: legend, text, summary, then a row for each call."""
    return re.findall(r"<div[^>]*>((?:(?!<div).)*?)</div>", html, flags=re.DOTALL)


def read(html: str) -> str:
    """What a person reads of it."""
    return unescape(re.sub("<[^>]+>", "", html))


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (ALL_ACCEPTED, [(1, ACCEPTED), (2, ACCEPTED), (3, BONUS)]),
        (CORRECTION, [(1, ACCEPTED), (2, REJECTED), (4, REJECTED), (3, CORRECTED)]),
        (NO_DRAFT, [(5, UNDRAFTED)]),
        (CUT, [(1, ACCEPTED), (EOS, ACCEPTED), (2, BEYOND), (4, REJECTED)]),
        (Round([1, EOS], 2, [1, EOS]), [(1, ACCEPTED), (EOS, ACCEPTED)]),
        (Round([1, 2], 1, [1, EOS]), [(1, ACCEPTED), (2, REJECTED), (EOS, CORRECTED)]),
        (Round([1], 1, [1, EOS]), [(1, ACCEPTED), (EOS, BONUS)]),
    ],
)
def test_every_token_of_a_round_is_told_what_became_of_it(one, expected):
    assert list(kinds(one)) == expected


@given(st.lists(st.integers(1, 9), max_size=5), st.data())
def test_a_round_shows_all_its_drafts_and_all_its_new_tokens_once(drafts, data):
    accepted = data.draw(st.integers(0, len(drafts)))
    whole = [*drafts[:accepted], 99]
    new = whole[: data.draw(st.integers(1, len(whole)))]  # EOS may have cut it
    shown = list(kinds(Round(drafts, accepted, new)))
    in_text = [token for token, kind in shown if kind not in (REJECTED, BEYOND)]
    assert in_text == new
    assert [token for token, _ in shown if token != 99] == drafts
    assert sum(kind == REJECTED for _, kind in shown) == len(drafts) - accepted


def test_the_text_can_be_read_with_its_spaces_and_lines():
    rounds = [ALL_ACCEPTED, NO_DRAFT, Round([1], 1, [1, 4]), CUT]
    _, text, *_ = parts(show_rounds("<b> & so", rounds, word).data)
    without_rejected = re.sub(r'<span [^>]*title="(rejected|after the end)">.*?</span>', "", text)
    assert read(without_rejected) == "<b> & so an old king& an↵\n an<|end|> "


def test_below_the_text_there_is_a_row_for_each_target_call():
    rounds = [ALL_ACCEPTED, CORRECTION, NO_DRAFT]
    _, text, _, *rows = parts(show_rounds("", rounds, word).data)
    assert [token for row in rows for token in marked(row)] == marked(text)
    assert marked(rows[1]) == [
        (ACCEPTED, "an"),
        (REJECTED, "old"),
        (REJECTED, "↵"),
        (CORRECTED, "king"),
    ]
    gains = [re.findall(r"<b>(.+?)</b>", row) for row in rows]
    assert gains == [["+3"], ["+2"], ["+1"]]


def test_a_rejected_line_break_does_not_break_the_line():
    _, text, *_ = parts(show_rounds("", [CORRECTION], word).data)
    assert "\n" not in text


def test_tokens_that_are_spaces_or_nothing_can_be_seen():
    html = show_rounds("", [Round([], 0, [token]) for token in (0, 1)], ["  ", ""].__getitem__).data
    assert marked(parts(html)[1]) == [(UNDRAFTED, "␣␣"), (UNDRAFTED, "(empty)")]


def test_the_summary_counts_tokens_calls_and_drafts():
    _, _, summary, *_ = parts(show_rounds("", [ALL_ACCEPTED, CORRECTION, NO_DRAFT], word).data)
    assert "6 tokens from 3 calls of the target, 2.0 a call; 3 of 5 drafts" in read(summary)
    _, _, summary, *_ = parts(show_rounds("", [NO_DRAFT], word).data)
    assert "drafts accepted" not in summary


def test_the_legend_explains_the_kinds_that_occur():
    legend, *_ = parts(show_rounds("", [ALL_ACCEPTED, NO_DRAFT], word).data)
    assert [kind for kind, _ in marked(legend)] == [ACCEPTED, BONUS, UNDRAFTED]
    legend, *_ = parts(show_rounds("", [CORRECTION, CUT], word).data)
    assert [kind for kind, _ in marked(legend)] == [ACCEPTED, REJECTED, CORRECTED, BEYOND]


def test_the_kinds_differ_in_more_than_colour():
    def without_colours(style: str) -> str:
        return re.sub(r"(background|color):[^;]+;?|#\w{6}", "", style)

    for one, other in combinations(LOOKS.values(), 2):
        assert without_colours(one) != without_colours(other)


def test_of_many_calls_the_first_are_shown_and_the_others_counted():
    *_, last_row, more = parts(show_rounds("", [NO_DRAFT] * (MOST_ROWS + 7), word).data)
    assert read(last_row).startswith(str(MOST_ROWS))
    assert more == "… and 7 more"


def test_a_text_without_new_tokens_can_be_shown():
    _, text, summary, *rows = parts(show_rounds("so", [], word).data)
    assert (text, rows) == ("so", [])
    assert "0 tokens from 0 calls" in read(summary)


# ------------------------------------------------------------------------- accept and residual


def test_the_shares_of_a_place_add_up_to_target_and_draft():
    target, draft = torch.tensor([0.5, 0.2, 0.3]), torch.tensor([0.1, 0.6, 0.3])
    figure = show_acceptance([" a", "$", "\n"], target, draft)
    (axes,) = figure.axes
    heights = [[bar.get_height() for bar in bars] for bars in axes.containers]
    bottoms = [[bar.get_y() for bar in bars] for bars in axes.containers]
    accepted, rejected, residual = (torch.tensor(shares) for shares in heights)
    assert torch.allclose((accepted + residual).float(), target)
    assert torch.allclose((accepted + rejected).float(), draft)
    assert bottoms[1] == bottoms[2] == heights[0]
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {"accepted, min(p, q): 0.60 in all", "rejected, q − p: 0.40 in all"} <= set(names)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["␣a", "$", "↵"]


def test_lines_stand_at_the_height_of_p_and_q():
    (axes,) = show_acceptance(["a", "b"], [0.7, 0.3], [0.4, 0.6]).axes
    levels = [[line[0][1] for line in lines.get_segments()] for lines in axes.collections]
    assert levels == [[0.7, 0.3], [0.4, 0.6]]


def test_accepted_rejected_and_residual_differ_by_hatching_too():
    (axes,) = show_acceptance(["a", "b"], [0.7, 0.3], [0.4, 0.6]).axes
    assert len({bars[0].get_hatch() for bars in axes.containers}) == 3


# -------------------------------------------------------------------------- tokens a round


def tokens(acceptance: float, k: int) -> float:
    """Stands in for a learner's function."""
    return 1 + acceptance * k


def test_tokens_a_round_are_those_of_the_function_with_the_chosen_k_marked():
    (axes,) = tokens_a_round(tokens, 0.5, 4).axes
    most, expected, chosen = axes.lines
    assert most.get_ydata() == pytest.approx([k + 1 for k in range(13)])
    assert expected.get_ydata() == pytest.approx([1 + 0.5 * k for k in range(13)])
    assert (chosen.get_xdata()[0], chosen.get_ydata()[0]) == (4, 3)


def test_a_round_in_words():
    assert round_in_words(tokens, 0.5, 4) == (
        "With 4 drafts, each accepted with probability 0.50, a round gives 3.00 tokens on "
        "average. One draft more would add 0.50."
    )


def test_moving_the_sliders_redraws_the_picture_and_its_words():
    acceptance, k, sentence, picture = explore_acceptance(tokens).children
    seen = {(sentence.value, bytes(picture.value))}
    for control, value in ((acceptance, 1.0), (k, 0), (k, k.max)):
        control.value = value
        seen.add((sentence.value, bytes(picture.value)))
    assert len({text for text, _ in seen}) == len({png for _, png in seen}) == 4
    assert all(is_png(png) for _, png in seen)


# ------------------------------------------------------------------------------ does it pay?


def test_verifying_is_measured_in_decode_steps():
    (axes,) = verify_costs({4: 0.006, 1: 0.004, 2: 0.005}).axes
    separate, together = axes.lines
    assert separate.get_xdata().tolist() == separate.get_ydata().tolist() == [1, 2, 4]
    assert together.get_xdata().tolist() == [1, 2, 4]
    assert together.get_ydata() == pytest.approx([1, 1.25, 1.5])
    assert [text.get_text() for text in axes.texts] == ["1.2", "1.5"]


def test_speed_up_has_a_line_a_draft_its_points_and_the_line_of_no_gain():
    curves = {"shipped": [1, 1.4, 1.5], "n-gram": [1, 0.9]}
    figure = speed_up_curves(curves, {"shipped": {2: 1.45}})
    (axes,) = figure.axes
    one, shipped, points, ngram, nothing = axes.lines
    assert set(one.get_ydata()) == {1}
    assert shipped.get_ydata() == pytest.approx([1, 1.4, 1.5])
    assert ngram.get_xdata().tolist() == [0, 1]
    assert (points.get_xdata().tolist(), points.get_ydata().tolist()) == ([2], [1.45])
    assert len(nothing.get_xdata()) == 0
    assert [text.get_text() for text in axes.texts] == ["no gain"]
    assert "points: measured" in axes.get_title("left")
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["shipped", "n-gram"]
    assert shipped.get_linestyle() != ngram.get_linestyle()


def test_curves_can_be_predicted_before_anything_is_measured():
    figure = speed_up_curves({"shipped": [1, 1.4]})
    assert "measured" not in figure.axes[0].get_title("left")
    assert is_png(figure._repr_png_())
