"""The pictures of lab 2 show what they are handed: these tests read the drawn data back."""

import pytest
import torch
import torch.nn.functional as F

from visuals.kv_cache import (
    attention_weights,
    explore_attention,
    growing_cache,
    most_decided_head,
    score_times_value,
    show_cache,
    show_masks,
    time_per_token,
)


def is_png(data: bytes) -> bool:
    return data.startswith(b"\x89PNG") and len(data) > 2_000


# ------------------------------------------------------------------------- score times value


def one_head(seq: int = 5, head_dim: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, seq, head_dim, generator=generator)


def test_weights_and_their_sum_are_those_of_pytorch_attention():
    queries, keys, values = one_head()
    expected = F.scaled_dot_product_attention(
        queries[None], keys[None], values[None], is_causal=True
    )[0]
    for position in range(5):
        weights = attention_weights(queries, keys, position)
        assert torch.allclose(weights @ values[: position + 1], expected[position], atol=1e-6)


def test_bars_are_the_weights_of_the_tokens_up_to_the_position():
    queries, keys, values = one_head()
    figure = score_times_value(queries, keys, values, ["The", " king", "\n", "a", "b"], position=2)
    bars, plain, product = figure.axes
    drawn = [bar.get_width() for bar in bars.patches]
    assert drawn == pytest.approx(attention_weights(queries, keys, 2).tolist())
    assert [label.get_text() for label in bars.get_yticklabels()] == ["The", "␣king", "↵"]
    assert torch.equal(torch.tensor(plain.images[0].get_array()), values[:3])
    weighted, total = (torch.tensor(image.get_array()) for image in product.images)
    assert torch.allclose(weighted.sum(dim=0, keepdim=True), total, atol=1e-6)


def test_moving_any_slider_redraws_the_picture():
    layers = [torch.randn(3, 1, 2, 4, 8) for _ in range(3)]
    explorer = explore_attention(layers, ["a", "b", "c", "d"])
    token, layer, head, picture = explorer.children
    assert (token.max, layer.max, head.max) == (3, 2, 1)
    token.value, layer.value, head.value = 3, 0, 0
    seen = {bytes(picture.value)}
    for slider, value in ((token, 1), (layer, 2), (head, 1)):
        slider.value = value
        seen.add(bytes(picture.value))
    assert all(is_png(png) for png in seen)
    assert len(seen) == 4


def test_the_most_decided_head_looks_at_one_word_after_the_first():
    queries, keys = torch.zeros(1, 3, 5, 8), torch.zeros(1, 3, 5, 8)
    queries[0, :, 4] = 5
    # head 0 rests on the first token, head 1 looks at the comma, head 2 at a word
    keys[0, 0, 0], keys[0, 1, 3], keys[0, 2, 2] = 5, 5, 1
    attending = torch.stack([queries, keys, keys])
    layers = [torch.zeros(3, 1, 3, 5, 8), attending]
    assert most_decided_head(layers, ["The", " old", " king", ",", " and"]) == (1, 2)


# --------------------------------------------------------------------------------- the mask


def test_masks_are_drawn_cell_by_cell_with_a_dot_where_the_key_is_seen():
    square = torch.ones(5, 5).tril().bool()[None, None]
    chunk = torch.ones(2, 5).tril(3).bool()[None, None]
    figure = show_masks({"prefill": square, "chunk": chunk})
    for axes, mask in zip(figure.axes, (square, chunk), strict=True):
        assert torch.equal(torch.tensor(axes.images[0].get_array()).bool(), mask[0, 0])
        dots = {(row, column) for column, row in axes.collections[0].get_offsets().tolist()}
        assert dots == {tuple(place) for place in mask[0, 0].nonzero().float().tolist()}
    assert [label.get_text() for label in figure.axes[1].get_yticklabels()] == ["3", "4"]


# -------------------------------------------------------------------------------- the cache


def test_growing_cache_marks_each_position_in_the_step_that_computed_it():
    def cache(length: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(torch.zeros(1, 2, length, 64), torch.zeros(1, 2, length, 64))] * 2

    figure = growing_cache([cache(3), cache(4), cache(5)])
    (axes,) = figure.axes
    assert axes.images[0].get_array().tolist() == [
        [2, 2, 2, 0, 0],
        [1, 1, 1, 2, 0],
        [1, 1, 1, 1, 2],
    ]
    # 2 layers x keys and values x 2 heads x 64 numbers x 4 bytes = 2 KB a token
    assert [text.get_text() for text in axes.texts] == ["6 KB", "8 KB", "10 KB"]
    assert "5 positions computed once" in axes.get_title("left")
    assert "naive loop computes 12" in axes.get_title("left")


class SmallCache:
    """The public attributes of a preallocated cache: 2 layers, 1 head, room for 8 tokens."""

    def __init__(self, filled: int, length: int) -> None:
        self.keys = torch.zeros(2, 1, 1, 8, 64)
        self.keys[..., :filled, :] = 1
        self.values = self.keys.clone()
        self.length, self.max_length = length, 8


def test_show_cache_draws_what_lies_there_and_a_line_at_its_length():
    for length in (6, 2):
        (axes,) = show_cache(SmallCache(filled=6, length=length)).axes
        filled = ~torch.tensor(axes.images[0].get_array().filled(float("nan"))).isnan()
        assert filled.tolist() == [[True] * 6 + [False] * 2] * 2
        assert axes.lines[0].get_xdata()[0] == length - 0.5
        assert f"length {length} of 8: {length} KB held, 8 KB reserved" in axes.get_title("left")


def test_time_per_token_leaves_out_the_prefill_and_places_each_token():
    seconds = {"naive": [9.0, 0.001, 0.002, 0.003], "cached": [9.0, 0.001, 0.001, 0.001]}
    figure = time_per_token(seconds, first_position=10)
    (axes,) = figure.axes
    assert axes.collections[0].get_offsets().tolist() == [[11, 1], [12, 2], [13, 3]]
    assert axes.lines[1].get_ydata() == pytest.approx([1, 1, 1])
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["naive", "cached"]
