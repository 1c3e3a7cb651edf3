"""The pictures of lab 1 show what they are given."""

import re

import pytest
import torch

from visuals.generate import (
    cost_of_generating,
    explore_next_token,
    next_token_bars,
    request_timeline,
    show_tokens,
    tokens_computed,
)
from visuals.predict import reveal
from visuals.style import visible

WORDS = ["the", " king", " and", " queen", "\n", "$x$"]


def decode(ids):
    return "".join(WORDS[token_id] for token_id in ids)


def labels(axes):
    return [label.get_text() for label in axes.get_yticklabels()]


def bars(axes):
    return [bar.get_width() for bar in axes.patches]


def texts(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


# ----------------------------------------------------------------------------------- tokens


def test_tokens_stand_in_order_with_their_ids_and_with_spaces_made_visible():
    html = show_tokens(["Once", " upon", "<b>"], [7, 42, 3]).data
    assert re.findall(r">([^<>]+)<br><small>(\d+)<", html) == [
        ("Once", "7"),
        ("␣upon", "42"),
        ("&lt;b&gt;", "3"),
    ]


@pytest.mark.parametrize(
    ("token", "shown"), [(" king", "␣king"), ("\n", "↵"), ("", "(empty)"), ("a", "a")]
)
def test_every_token_can_be_seen(token, shown):
    assert visible(token) == shown


# --------------------------------------------------------------------------- the next token


def test_bars_are_the_most_probable_tokens_with_their_probabilities():
    probs = torch.tensor([0.1, 0.5, 0.05, 0.2, 0.05, 0.1])
    axes = next_token_bars(probs.log(), decode, after="the", top=3).axes[0]
    assert labels(axes)[:2] == ["␣king", "␣queen"]
    assert bars(axes) == pytest.approx([0.5, 0.2, 0.1])
    assert axes.get_title(loc="left") == "After “the”"


@pytest.mark.parametrize(("largest", "end"), [(0.09, "10%"), (0.3, "50%"), (0.9, "100%")])
def test_the_axis_ends_where_the_bars_can_still_be_seen(largest, end):
    probs = torch.tensor([largest, *[(1 - largest) / 15] * 15])
    axes = next_token_bars(probs.log(), lambda ids: str(ids), after="the").axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()][-1] == end


def test_the_token_that_follows_is_marked_even_where_it_has_no_bar():
    probs = torch.tensor([0.1, 0.5, 0.02, 0.2, 0.08, 0.1])
    figure = next_token_bars(probs.log(), decode, after="the", actual=2, top=3)
    assert any("␣and really follows" in text and "rank 6" in text for text in texts(figure))
    colours = {bar.get_facecolor() for bar in figure.axes[0].patches}
    assert len(colours) == 1
    marked = next_token_bars(probs.log(), decode, after="the", actual=3, top=3)
    assert len({bar.get_facecolor() for bar in marked.axes[0].patches}) == 2


def test_a_long_text_shows_its_end_on_one_line():
    figure = next_token_bars(torch.zeros(6), decode, after="x" * 90 + "\nend")
    title = figure.axes[0].get_title(loc="left")
    assert title.endswith("x↵end”")
    assert len(title) < 70


def test_moving_the_slider_draws_another_row():
    logits = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
    row, picture = explore_next_token(logits, [0, 1, 5], decode).children
    assert (row.min, row.max) == (0, 2)
    inner = next_token_bars(logits[0], decode, after="the", actual=1)
    assert bytes(picture.value) == inner._repr_png_()
    row.value = 2
    last = next_token_bars(logits[2], decode, after="the king$x$")
    assert bytes(picture.value) == last._repr_png_() != inner._repr_png_()


# ---------------------------------------------------------------------- a request over time


def test_a_request_is_its_ttft_and_one_piece_for_each_gap():
    figure = request_timeline(10.0, [10.5, 10.6, 10.9])
    assert bars(figure.axes[0]) == pytest.approx([500, 100, 300])
    assert "2 gaps, TPOT each on average" in texts(figure)


def test_a_single_token_has_no_gap():
    figure = request_timeline(10.0, [10.5])
    assert bars(figure.axes[0]) == pytest.approx([500])
    assert not any("TPOT" in text for text in texts(figure))


# ---------------------------------------------------------------------------------- the cost


@pytest.mark.parametrize(
    ("counts", "grid"),
    [
        ([2, 3, 4], [[2, 2, 0, 0], [1, 1, 2, 0], [1, 1, 1, 2]]),
        ([1], [[2]]),
    ],
)
def test_cells_are_computed_first_again_or_not_at_all(counts, grid):
    axes = tokens_computed(counts).axes[0]
    cells = axes.collections[0].get_array().tolist()
    assert cells == grid
    flat = [cell for row in grid for cell in row]
    assert axes.get_title(loc="left") == (
        f"{flat.count(2)} computed for the first time (dots), {flat.count(1)} computed again"
    )


def test_cost_adds_up_above_and_stands_alone_below():
    total, each = cost_of_generating([2, 3, 4], [0.1, 0.2, 0.3]).axes
    computed, needed = total.lines
    assert list(computed.get_ydata()) == [2, 5, 9]
    assert list(needed.get_ydata()) == [2, 3, 4]
    assert list(each.lines[0].get_xdata()) == [2, 3, 4]
    assert list(each.lines[0].get_ydata()) == pytest.approx([100, 200, 300])


# ------------------------------------------------------------------------------- predictions


@pytest.mark.parametrize(
    ("guess", "measured", "verdict"),
    [
        (9152, 9152, "Exactly right."),
        (9000, 9152, "Within a tenth of it."),
        (2000, 9000, "Too low by a factor of 4.5."),
        (0.3, 0.1, "Too high by a factor of 3."),
        (0, 5, "That differs: find out why."),
        ((1, 8, 4096), torch.Size([1, 8, 4096]), "Exactly right."),
        ([1, 8], torch.Size([1, 8, 4096]), "That differs: find out why."),
        ("a lot", 5, "That differs: find out why."),
    ],
)
def test_an_estimate_is_compared(guess, measured, verdict, capsys):
    reveal("It", guess, measured, "tokens")
    assert capsys.readouterr().out.splitlines()[1].endswith(f". {verdict}")


@pytest.mark.parametrize(
    ("guess", "measured", "verdict"),
    [
        (1024, 1024, "Exactly right."),
        (1031, 1024, "Too high by 7 bytes: here only the exact number is right."),
        (0, 18, "Too low by 18 bytes: here only the exact number is right."),
        ((1, 8), [1, 8], "Exactly right."),
        ("a lot", 5, "That differs: find out why."),
    ],
)
def test_where_it_can_be_counted_only_the_exact_number_is_right(guess, measured, verdict, capsys):
    reveal("It", guess, measured, "bytes", exact=True)
    assert capsys.readouterr().out.splitlines()[1].endswith(f". {verdict}")


def test_numbers_come_with_their_unit_and_thousands(capsys):
    reveal("KV bytes per token", 12000, 24576, "bytes")
    assert capsys.readouterr().out == (
        "KV bytes per token: 24,576 bytes\n"
        "Your estimate: 12,000 bytes. Too low by a factor of 2.05.\n"
    )


def test_without_an_estimate_the_measurement_is_shown_and_nothing_fails(capsys):
    reveal("Length", None, 1024, "tokens")
    assert capsys.readouterr().out.startswith("Length: 1,024 tokens\nNo estimate yet.")
