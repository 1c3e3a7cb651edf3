"""The pictures of lab 2 show what they are handed: these tests read the drawn data back."""

import pytest
import torch
import torch.nn.functional as F

import visuals.kv_cache as lab
from course.lab02_kv_cache.samples import (
    KEYS,
    MASKS,
    ONE_HEAD,
    QUERIES,
    VALUES,
    growing,
    preallocated,
)
from tests.common.pictures import curves, dots, names, said, told, widths


def image(axes, number: int = 0) -> torch.Tensor:
    return torch.tensor(axes.images[number].get_array())


def test_weights_and_their_sum_are_those_of_pytorch_attention():
    batched = (part[None] for part in ONE_HEAD)
    expected = F.scaled_dot_product_attention(*batched, is_causal=True)[0]
    for position in range(5):
        weights = lab.attention_weights(QUERIES, KEYS, position)
        assert torch.allclose(weights @ VALUES[: position + 1], expected[position], atol=1e-6)


def test_bars_are_the_weights_of_the_tokens_up_to_the_position():
    figure = lab.score_times_value(*ONE_HEAD, ["The", " king", "\n", "a", "b"], position=2)
    bars, plain, product = figure.axes
    assert widths(bars) == pytest.approx(lab.attention_weights(QUERIES, KEYS, 2).tolist())
    assert names(bars.yaxis) == ["The", "␣king", "↵"]
    assert torch.equal(image(plain), VALUES[:3])
    weighted, total = image(product), image(product, 1)
    assert torch.allclose(weighted.sum(dim=0, keepdim=True), total, atol=1e-6)


def test_the_most_decided_head_looks_at_one_word_after_the_first():
    queries, keys = torch.zeros(1, 3, 5, 8), torch.zeros(1, 3, 5, 8)
    queries[0, :, 4] = 5
    # head 0 rests on the first token, head 1 looks at the comma, head 2 at a word
    keys[0, 0, 0], keys[0, 1, 3], keys[0, 2, 2] = 5, 5, 1
    layers = [torch.zeros(3, 1, 3, 5, 8), torch.stack([queries, keys, keys])]
    assert lab.most_decided_head(layers, ["The", " old", " king", ",", " and"]) == (1, 2)


def test_masks_are_drawn_cell_by_cell_with_a_dot_where_the_key_is_seen():
    figure = lab.show_masks(MASKS)
    for axes, mask in zip(figure.axes, MASKS.values(), strict=True):
        assert torch.equal(image(axes).bool(), mask[0, 0])
        assert dots(axes) == {tuple(place) for place in mask[0, 0].nonzero().tolist()}
    assert names(figure.axes[1].yaxis) == ["3", "4"]


def test_growing_cache_marks_each_position_in_the_step_that_computed_it():
    (axes,) = lab.growing_cache(growing(3, 4, 5)).axes
    assert image(axes).tolist() == [[2, 2, 2, 0, 0], [1, 1, 1, 2, 0], [1, 1, 1, 1, 2]]
    assert said(axes) == [[6], [8], [10]]  # KB
    assert told(axes) == [5, 12]  # computed, and by the naive loop


@pytest.mark.parametrize("length", [6, 2])
def test_show_cache_draws_what_lies_there_and_a_line_at_its_length(length):
    (axes,) = lab.show_cache(preallocated(filled=6, length=length)).axes
    filled = ~torch.tensor(axes.images[0].get_array().filled(float("nan"))).isnan()
    assert filled.tolist() == [[True] * 6 + [False] * 2] * 2
    assert list(curves(axes)[0]) == [length - 0.5]
    assert told(axes) == [length, 8, length, 8]  # positions, and KB


def test_time_per_token_leaves_out_the_prefill_and_places_each_token():
    seconds = {"naive": [9.0, 0.001, 0.002, 0.003], "cached": [9.0, 0.001, 0.001, 0.001]}
    (axes,) = lab.time_per_token(seconds, first_position=10).axes
    assert axes.collections[0].get_offsets().tolist() == [[11, 1], [12, 2], [13, 3]]
    assert curves(axes)[1] == pytest.approx({11: 1, 12: 1, 13: 1})
