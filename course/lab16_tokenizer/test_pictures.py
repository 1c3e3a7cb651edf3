"""The pictures of lab 16 show what they are handed: these tests read the drawn data back."""

import re

import pytest

import visuals.tokenizer as lab
from course.lab16_tokenizer import samples as samples
from tests.common.pictures import boxes, curves, legend_of, numbers_in, read, texts, title_of

LOOKS = {"old": lab.OLD, "new": lab.NEW}


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (b" king", "␣king"),
        (b"\n", "↵"),
        ("é".encode(), "é"),
        (b"\xe2\x80", "E2 80"),
        (b"", "(empty)"),
    ],
)
def test_a_token_is_shown_as_text_or_as_its_bytes(token, text):
    assert lab.readable(token) == text


def test_each_round_has_its_parts_and_the_new_ones_are_marked():
    (axes,) = lab.merge_rounds(samples.ROUNDS, samples.RANKS).axes
    drawn = [
        (round((bottom + top) / 2), kind, round(left), round(right))
        for kind, left, right, bottom, top in boxes(axes, LOOKS)
    ]
    expected = [[1] * 7, [1, 1, 2, 1, 2], [1, 1, 3, 2], [2, 3, 2]]
    assert [
        [right - left for n, _, left, right in drawn if n == row] for row in range(4)
    ] == expected
    new = [(row, left, right) for row, kind, left, right in drawn if kind == "new"]
    assert new == [(1, 2, 4), (1, 5, 7), (2, 2, 5), (3, 0, 2)]


def test_each_round_has_the_rank_of_its_merge():
    (axes,) = lab.merge_rounds(samples.ROUNDS, samples.RANKS).axes
    labels = [text for text in texts(axes) if text.startswith(("bytes", "rank"))]
    assert labels == ["bytes", "rank 0", "rank 1", "rank 1,234"]
    assert numbers_in(title_of(axes)) == [7, 3]


def test_a_word_without_merges_has_one_round():
    (axes,) = lab.merge_rounds([[b"x"]], {}).axes
    assert texts(axes) == ["x", "bytes"]


def test_the_number_of_merges_is_marked_and_the_example_is_cut_with_it():
    curve, text = lab.merges_at(samples.BYTES_PER_TOKEN, samples.cut, 10).axes
    points, marked = curves(curve)
    assert points == samples.BYTES_PER_TOKEN
    assert marked == {10: 1.5}
    assert texts(text) == ["␣to", "ken"] * 9
    lines = {box.get_y() for box in text.patches}
    assert len(lines) == 2  # of 54 characters
    assert all(box.get_x() + box.get_width() <= lab.LINE for box in text.patches)
    # merges, bytes per token, bytes and tokens of the example
    said = lab.merges_in_words(samples.BYTES_PER_TOKEN, samples.cut, 10)
    assert numbers_in(said) == [10, 1.5, 54, 18]


def test_costs_are_compared_with_the_smallest_vocabulary_and_the_least_is_marked():
    figure = lab.vocabulary_costs(samples.COSTS)
    large, best_large, small, best_small = curves(figure.axes[0])
    assert large == {256: 1, 512: 0.5, 4096: 0.25}
    assert small == {256: 1, 512: 0.5, 4096: 0.75}
    assert (best_large, best_small) == ({4096: 0.25}, {512: 0.5})
    assert legend_of(figure) == list(samples.COSTS)


def columns(html: str) -> list[list[str]]:
    """The texts of each column, from the top down."""
    found = re.findall(r'<div style="display[^>]*>(.*?)</div></div>', html, flags=re.DOTALL)
    return [[read(cell) for cell in f"{column}</div>".split("</div>")[:-1]] for column in found]


def test_a_stream_has_a_column_for_each_token():
    names, *tokens = columns(lab.show_stream(*samples.STREAM).data)
    assert names == list(lab.CELLS)
    assert tokens == [
        ["E2", "\ufffd", "", "[E2]"],
        ["80", "\ufffd", "", "[E2 80]"],
        ["9C 3C", "\ufffd<", "“<", ""],
        ["C3", "\ufffd", "", "[C3]"],
    ]
