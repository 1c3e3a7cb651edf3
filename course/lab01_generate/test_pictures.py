"""The pictures of lab 1 show what they are given."""

import re

import pytest
import torch

import visuals.generate as lab
from tests.common.pictures import curves, names, numbers_in, texts, told, widths
from tests.samples import decode, randn
from visuals.predict import remind, reveal
from visuals.style import visible


def test_show_tokens():
    html = lab.show_tokens([" upon", "<b>", "\n", ""], [7, 42, 3, 5]).data
    tokens = re.findall(r">([^<>]+)<br><small>(\d+)<", html)
    assert tokens == [("␣upon", "7"), ("&lt;b&gt;", "42"), ("↵", "3"), ("(empty)", "5")]


PROBS = torch.tensor([0.1, 0.5, 0.02, 0.2, 0.08, 0.1])


def test_next_token_bars_are_the_likeliest():
    (axes,) = lab.next_token_bars(PROBS.log(), decode, after="the", top=3).axes
    assert names(axes.yaxis)[:2] == ["␣king", "␣queen"]
    assert widths(axes) == pytest.approx([0.5, 0.2, 0.1])


def test_next_token_bars_mark_the_actual_one():
    for actual, rank, colors in ((2, 6, 1), (3, 2, 2)):
        (axes,) = lab.next_token_bars(PROBS.log(), decode, after="the", actual=actual, top=3).axes
        text = texts(axes)[-1]
        assert visible(decode([actual])) in text
        assert numbers_in(text) == pytest.approx([100 * PROBS[actual].item(), rank])
        assert len({bar.get_facecolor() for bar in axes.patches}) == colors


def test_explorer_shows_the_sliders_row():
    logits = randn(3, 6)
    row, picture = lab.explore_next_token(logits, [0, 1, 5], decode).children
    first = lab.next_token_bars(logits[0], decode, after="the", actual=1)
    assert picture.value == first.html()
    row.value = row.max
    last = lab.next_token_bars(logits[2], decode, after="the king$x$")
    assert picture.value == last.html()


@pytest.mark.parametrize(
    ("token_times", "pieces"), [([10.5, 10.6, 10.9], [500, 100, 300]), ([10.5], [500])]
)
def test_timeline_has_ttft_and_gaps(token_times, pieces):
    (axes,) = lab.request_timeline(10.0, token_times).axes
    assert widths(axes) == pytest.approx(pieces)
    assert ("2 gaps" in " ".join(texts(axes))) == (len(pieces) == 3)


@pytest.mark.parametrize(
    ("counts", "grid"),
    [([2, 3, 4], [[2, 2, 0, 0], [1, 1, 2, 0], [1, 1, 1, 2]]), ([1], [[2]])],
)
def test_tokens_computed_first_and_again(counts, grid):
    (axes,) = lab.tokens_computed(counts).axes
    assert axes.collections[0].get_array().tolist() == grid
    flat = [cell for row in grid for cell in row]
    assert told(axes) == [flat.count(2), flat.count(1)]


def test_cost_in_all_and_of_each_token():
    total, each = lab.cost_of_generating([2, 3, 4], [0.1, 0.2, 0.3]).axes
    assert curves(total) == [{1: 2, 2: 5, 3: 9}, {1: 2, 2: 3, 3: 4}]  # computed, needed
    assert curves(each) == [pytest.approx({2: 100, 3: 200, 4: 300})]


DIFFERS, RIGHT = "They differ: find out why.", "Exactly right."


@pytest.mark.parametrize(
    ("guess", "measured", "exact", "verdict"),
    [
        (9152, 9152, False, RIGHT),
        (9000, 9152, False, "Less than 10% off."),
        (2000, 9000, False, "Too low by a factor of 4.5."),
        (0.3, 0.1, False, "Too high by a factor of 3."),
        (0, 5, False, DIFFERS),
        ((1, 8, 4096), torch.Size([1, 8, 4096]), False, RIGHT),
        ([1, 8], torch.Size([1, 8, 4096]), False, DIFFERS),
        ("a lot", 5, False, DIFFERS),
        (1024, 1024, True, RIGHT),
        (1031, 1024, True, "Too high by 7 bytes: only the exact number is right here."),
        (0, 18, True, "Too low by 18 bytes: only the exact number is right here."),
    ],
)
def test_an_estimate_is_compared(guess, measured, exact, verdict, capsys):
    reveal("It", guess, measured, "bytes", exact)
    assert capsys.readouterr().out.splitlines()[1].endswith(f". {verdict}")


def test_reveal_without_an_estimate(capsys):
    """The advice comes once, however many estimates of a cell are missing."""
    remind.cache_clear()
    reveal("KV bytes per token", 12000, 24576, "bytes")
    reveal("Length", None, 1024, "tokens")
    reveal("Width", None, 256)
    first, second, third, fourth, fifth = capsys.readouterr().out.splitlines()
    assert (first, third) == ("KV bytes per token: 24,576 bytes", "Length: 1,024 tokens")
    assert fourth.startswith("No estimate yet.")
    assert fifth == "Width: 256"
    assert second == "Your estimate: 12,000 bytes. Too low by a factor of 2.05."
