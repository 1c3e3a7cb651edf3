"""The pictures of lab 20 show their arguments: these tests read the drawn data back."""

import pytest
import torch

import visuals.llama as lab
from course.lab20_llama import samples as samples
from tests.common.pictures import (
    curves,
    heights,
    legend_of,
    numbers_in,
    read,
    said,
    texts,
    told,
)


def test_a_hand_is_the_first_axis_turned_counterclockwise():
    (axes,) = lab.hands(samples.QUARTERS, 2).axes
    ends = [(line.get_xdata(), line.get_ydata()) for line in axes.lines]
    turned = [(x[1] - x[0], y[0] - y[1]) for x, y in ends]  # the axis of y points down
    half = 0.5**0.5
    expected = [(-1, 0), (0, 1), (half, -half)]
    assert turned == [pytest.approx((0.42 * x, 0.42 * y), abs=1e-6) for x, y in expected]
    assert said(axes) == [[0, 0.5], [1, 0.25], [2, -0.13]]
    assert told(axes) == [2]


@pytest.mark.parametrize(("scores", "spread"), [(samples.STRIPES, 0), (samples.BROKEN, 0.5)])
def test_scores_of_a_distance_are_a_mean_and_a_spread(scores, spread):
    cells, curve, _ = lab.show_by_distance(scores).axes
    assert cells.images[0].get_array().tolist() == scores.tolist()
    by_distance = {d: scores.diagonal(-d).mean().item() for d in range(-2, 3)}
    assert curves(curve) == [pytest.approx(by_distance)]
    assert told(curve) == [spread]
    area = {tuple(point) for point in curve.collections[0].get_paths()[0].vertices}
    assert {(0, 0), (0, spread)} <= area
    assert {(2, 2), (-2, 3 + spread)} <= area  # the query after the key, and before it


def test_turns_are_drawn_for_each_pair():
    figure = lab.show_turns({"before": samples.QUARTERS[:2], "after": samples.QUARTERS[:2] / 8}, 16)
    drawn = [pytest.approx(dict(enumerate(turns))) for turns in ([4, 2], [0.5, 0.25])]
    assert curves(figure.axes[0])[:2] == drawn
    assert [numbers_in(name) for name in legend_of(figure)] == [[4, 2], [0.5, 0.25]]
    assert figure.axes[0].get_yscale() == "log"


def test_heads_of_a_group_are_above_their_kv_head_and_folded_below_it():
    (axes,) = lab.show_groups(6, 2).axes
    places = {}
    for text in axes.texts:
        places.setdefault(text.get_text(), []).append(text.get_position())
    assert [places[f"KV {owner}"][0][0] for owner in range(2)] == [1.5, 4.5]
    for head in range(6):
        above, below = places[str(head)]
        assert above[0] == head + 0.5
        assert below == (1.5 if head < 3 else 4.5, pytest.approx(4.1 + head % 3))
    ends = [line.get_xdata()[1] for line in axes.lines]
    assert ends == [1.5] * 3 + [4.5] * 3
    for kv_heads in (0, 4):
        with pytest.raises(ValueError, match=f"6 query heads .* evenly among {kv_heads} KV heads"):
            lab.show_groups(6, kv_heads)


@pytest.mark.parametrize(("kind", "parts"), [("Q8_0", 1), ("Q4_0", 2), ("Q4_1", 2)])
def test_each_code_stands_above_its_number(kind, parts):
    raw = samples.BYTES[0 if kind == "Q4_1" else 2 :][: {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20}[kind]]
    top, *panels = lab.show_block(raw, kind, samples.NUMBERS).axes
    columns = 32 // parts
    for place, byte in enumerate(raw.tolist(), start=columns - len(raw)):
        above = [t for t in top.texts if t.get_position()[0] == place + 0.5]
        digits = "".join(t.get_text() for t in sorted(above, key=lambda t: t.get_position()[1]))
        assert digits == f"{byte:02x}"
    drawn = torch.tensor([height for axes in panels for height in heights(axes)])
    assert torch.equal(drawn, samples.NUMBERS)
    starts = [axes.patches[0].get_x() + 0.4 for axes in panels]
    assert starts == [pytest.approx(0.5)] * parts  # under the first byte of the codes
    assert [int(axes.get_xticklabels()[0].get_text()) for axes in panels] == [0, 16][:parts]
    assert told(top)[0] == len(raw)


def test_only_control_tokens_are_framed():
    html = lab.show_chat(samples.CHAT, samples.TEXTS, samples.CONTROL).data
    cells = html.split(f'<span style="{lab.CELL}; ')[1:]
    framed = [number for number, cell in enumerate(cells) if cell.startswith(lab.CONTROL)]
    assert framed == [0, 5]
    for cell, token_id, text in zip(cells, samples.CHAT, samples.TEXTS, strict=True):
        assert read(f"<{cell}").startswith(text.replace("\n", "↵") + str(token_id))
        assert cell.endswith("</span><br>") == (text == "\n") or cell is cells[-1]
    assert numbers_in(read(html))[:2] == [7, 2]


def test_models_are_compared_with_the_first():
    weights, tokens = lab.show_memory(samples.MODELS).axes
    bars = [[bar.get_width() for bar in axes.patches] for axes in (weights, tokens)]
    assert bars == [[43_000_000, 538_700_000], [24_576, 46_080]]
    assert texts(weights) == ["43.0", "538.7 (12.5×)"]
    assert texts(tokens) == ["24.6", "46.1 (1.88×)"]
