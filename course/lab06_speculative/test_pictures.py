"""The pictures of lab 6 show what they are handed: these tests read the drawn data back."""

import re
from html import unescape
from itertools import combinations

import pytest
import torch

import visuals.speculative as lab
from course.lab06_speculative import samples as samples
from course.lab06_speculative.samples import ALL_ACCEPTED, CORRECTION, CUT, NO_DRAFT
from solutions.speculative import Round
from tests.common.pictures import curves, legend_of, numbers_in, read, texts
from tests.samples import END

WORDS = ["<|end|>", " an", " old", " king", "\n", "&"]


def parts(prompt: str, rounds: list[Round], words: list[str] = WORDS) -> list[str]:
    """The pieces of the picture: legend, text, summary, then a row for each call."""
    html = lab.show_rounds(prompt, rounds, words.__getitem__).data
    return re.findall(r"<div[^>]*>((?:(?!<div).)*?)</div>", html, flags=re.DOTALL)


def marked(html: str) -> list[tuple[str, str]]:
    """The marked tokens in their order: (kind, text)."""
    found = re.findall(r'<span style="[^"]*" title="([^"]+)">([^<]*)</span>', html)
    return [(kind, unescape(text)) for kind, text in found]


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (ALL_ACCEPTED, [(1, lab.ACCEPTED), (2, lab.ACCEPTED), (3, lab.BONUS)]),
        (CORRECTION, [(1, lab.ACCEPTED), (2, lab.REJECTED), (4, lab.UNJUDGED), (3, lab.CORRECTED)]),
        (NO_DRAFT, [(5, lab.UNDRAFTED)]),
        (CUT, [(1, lab.ACCEPTED), (END, lab.ACCEPTED), (2, lab.BEYOND), (4, lab.REJECTED)]),
        (Round([1, END], 2, [1, END]), [(1, lab.ACCEPTED), (END, lab.ACCEPTED)]),
        (Round([1, 2], 1, [1, END]), [(1, lab.ACCEPTED), (2, lab.REJECTED), (END, lab.CORRECTED)]),
        (Round([1], 1, [1, END]), [(1, lab.ACCEPTED), (END, lab.BONUS)]),
    ],
)
def test_every_token_of_a_round_is_told_what_became_of_it(one, expected):
    assert list(lab.kinds(one)) == expected


def test_the_text_can_be_read_with_its_spaces_and_lines():
    _, text, *_ = parts("<b> & so", [ALL_ACCEPTED, NO_DRAFT, Round([1], 1, [1, 4]), CUT])
    without_rejected = re.sub(
        r'<span [^>]*title="(rejected|not judged|after the end)">.*?</span>', "", text
    )
    assert read(without_rejected) == "<b> & so an old king& an↵\n an<|end|> "


def test_below_the_text_there_is_a_row_for_each_target_call():
    _, text, _, *rows = parts("", [ALL_ACCEPTED, CORRECTION, NO_DRAFT])
    assert [token for row in rows for token in marked(row)] == marked(text)
    assert marked(rows[1]) == [
        *((lab.ACCEPTED, "an"), (lab.REJECTED, "old"), (lab.UNJUDGED, "↵"), (lab.CORRECTED, "king"))
    ]
    gains = [re.findall(r"<b>(.+?)</b>", row) for row in rows]
    assert gains == [["+3"], ["+2"], ["+1"]]
    assert "\n" not in parts("", [CORRECTION])[1]  # a line break that was rejected

    _, text, *_ = parts("", [Round([], 0, [token]) for token in (0, 1)], ["  ", ""])
    assert marked(text) == [(lab.UNDRAFTED, "␣␣"), (lab.UNDRAFTED, "(empty)")]


def test_the_summary_counts_tokens_calls_and_drafts():
    _, _, summary, *_ = parts("", [ALL_ACCEPTED, CORRECTION, NO_DRAFT])
    assert numbers_in(read(summary)) == [6, 3, 2, 3, 5, 60]  # ... 3 of 5 accepted, 60%
    legend, _, summary, *_ = parts("", [NO_DRAFT])
    assert [kind for kind, _ in marked(legend)] == [lab.UNDRAFTED]  # of the kinds that occur
    assert numbers_in(read(summary)) == [1, 1, 1]
    _, text, summary, *rows = parts("so", [])
    assert (text, rows, numbers_in(read(summary))) == ("so", [], [0, 0])


def test_the_kinds_differ_in_more_than_color():
    styles = [re.sub(r"(background|color):[^;]+;?|#\w{6}", "", look) for look in lab.LOOKS.values()]
    assert all(one != other for one, other in combinations(styles, 2))


def test_of_many_calls_the_first_are_shown_and_the_others_counted():
    *_, last_row, more = parts("", [NO_DRAFT] * (lab.MOST_ROWS + 7))
    assert read(last_row).startswith(str(lab.MOST_ROWS))
    assert numbers_in(more) == [7]


def test_the_shares_of_a_place_add_up_to_target_and_draft():
    target, draft = torch.tensor([0.5, 0.2, 0.3]), torch.tensor([0.1, 0.6, 0.3])
    figure = lab.show_acceptance([" a", "$", "\n"], target, draft)
    (axes,) = figure.axes
    heights = [[bar.get_height() for bar in bars] for bars in axes.containers]
    bottoms = [[bar.get_y() for bar in bars] for bars in axes.containers]
    accepted, rejected, residual = (torch.tensor(shares) for shares in heights)
    assert torch.allclose((accepted + residual).float(), target)
    assert torch.allclose((accepted + rejected).float(), draft)
    assert bottoms[1] == bottoms[2] == heights[0]
    totals = [numbers_in(name) for name in legend_of(figure)]
    assert sorted(totals) == [[], [], [0.4], [0.4], [0.6]]
    levels = [[line[0][1] for line in lines.get_segments()] for lines in axes.collections]
    assert levels == [pytest.approx(target.tolist()), pytest.approx(draft.tolist())]


def test_tokens_a_round_are_those_of_the_function_with_the_chosen_k_marked():
    most, expected, chosen = curves(lab.tokens_a_round(samples.expected_tokens, 0.5, 4).axes[0])
    assert most == {k: k + 1 for k in range(13)}
    assert expected == pytest.approx({k: 1 + 0.5 * k for k in range(13)})
    assert chosen == {4: 3}
    # k, acceptance, tokens, and what one more would add
    assert numbers_in(lab.round_in_words(samples.expected_tokens, 0.5, 4)) == [4, 0.5, 3, 0.5]


def test_verifying_is_measured_in_decode_steps():
    (axes,) = lab.verify_costs({4: 0.006, 1: 0.004, 2: 0.005}).axes
    separate, together = curves(axes)
    assert separate == {1: 1, 2: 2, 4: 4}
    assert together == pytest.approx({1: 1, 2: 1.25, 4: 1.5})
    assert texts(axes) == ["1.2", "1.5"]


def test_speed_up_has_a_line_a_draft_its_points_and_the_line_of_no_gain():
    drafts = {"shipped": [1, 1.4, 1.5], "n-gram": [1, 0.9]}
    figure = lab.speed_up_curves(drafts, {"shipped": {2: 1.45}})
    (axes,) = figure.axes
    one, *drawn = curves(axes)
    assert set(one.values()) == {1}
    assert drawn == [{0: 1, 1: 1.4, 2: 1.5}, {2: 1.45}, {0: 1, 1: 0.9}, {}]
    assert legend_of(figure) == list(drafts)
