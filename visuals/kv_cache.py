"""Pictures for lab 2: attention for one token, the mask, the growing cache, time per token.

Each reads the tensors or the cache that the learner made, and returns a figure or a widget.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle
from statistics import median
from typing import Any, Protocol

import ipywidgets as widgets
import matplotlib.pyplot as plt
import torch
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from torch import Tensor

from visuals.explorer import explore, slider
from visuals.source_diff import difference as difference  # older copies of lab 2 take it from here
from visuals.style import (
    BLUE,
    GRAY,
    INK,
    ORANGE,
    PALE,
    SKY,
    Picture,
    bare,
    new_figure,
    shared_look,
    visible,
    write_behind,
)

LayerCache = tuple[
    Float[Tensor, "batch heads length head_dim"], Float[Tensor, "batch heads length head_dim"]
]


# -------------------------------------------------------------------------- score times value


def attention_weights(
    queries: Float[Tensor, "seq head_dim"], keys: Float[Tensor, "seq head_dim"], position: int
) -> Float[Tensor, " visible"]:
    """Return the weights that the query at `position` gives to each position up to its own."""
    scores = keys[: position + 1] @ queries[position] / queries.shape[1] ** 0.5
    return scores.softmax(dim=0)


@shared_look
def score_times_value(
    queries: Float[Tensor, "seq head_dim"],
    keys: Float[Tensor, "seq head_dim"],
    values: Float[Tensor, "seq head_dim"],
    tokens: Sequence[str],
    position: int,
) -> Picture:
    """Draw one head for one token: the weights, the values, and weight × value with the sum."""
    weights = attention_weights(queries, keys, position)
    rows = len(weights)
    weighted = weights[:, None] * values[:rows]
    figure, (bars, plain, product) = new_figure(height=1.4 + 0.24 * rows, columns=3)

    middles = [row + 0.5 for row in range(rows)]
    bars.barh(middles, weights.tolist(), color=BLUE)
    for middle, weight in zip(middles, weights.tolist(), strict=True):
        write_behind(bars, weight, middle, f"{weight:.2f}")
    bars.set_yticks(middles, [visible(token) for token in tokens[:rows]])
    bars.get_yticklabels()[position].set_fontweight("bold")
    bars.set(xlim=(0, 1.25), xticks=[], title="weights")

    width = values.shape[1]
    total = weighted.sum(dim=0, keepdim=True)
    draw_numbers(plain, values[:rows], scale=values[:rows].abs().max().item())
    scale = torch.cat([weighted, total]).abs().max().item()
    draw_numbers(product, weighted, scale)
    draw_numbers(product, total, scale, top=rows + 0.7)
    plain.text(width - 1, rows + 1.2, "their sum", ha="right", va="center", fontsize=9)
    for axes, title in ((plain, "values"), (product, "weight × value")):
        axes.set(xlim=(0, width), yticks=[], xticks=[], title=title, xlabel=f"{width} numbers")
    for axes in (bars, plain, product):
        axes.set_ylim(rows + 2, -0.1)
        bare(axes)
    return figure


def draw_numbers(
    axes: Axes, numbers: Float[Tensor, "rows columns"], scale: float, top: float = 0
) -> None:
    """Draw a cell per number, from row `top` down: orange above zero, purple below, white at 0."""
    rows, columns = numbers.shape
    look: dict[str, Any] = {"cmap": "PuOr_r", "vmin": -scale, "vmax": scale, "aspect": "auto"}
    axes.imshow(numbers.numpy(), extent=(0, columns, top + rows, top), **look)


def most_decided_head(
    layers: Sequence[Float[Tensor, "3 batch heads seq head_dim"]], tokens: Sequence[str]
) -> tuple[int, int]:
    """Return the layer and head in which the last token gives one earlier word the highest weight.

    The first token doesn't count, because many heads give it a high weight and do little. Neither
    do punctuation and the token just before the last.
    """
    last = len(tokens) - 1
    words = [position for position in range(1, last - 1) if tokens[position].strip().isalpha()]
    firmness = {}
    for layer, (queries, keys, _) in enumerate(layers):
        for head in range(queries.shape[1]):
            weights = attention_weights(queries[0, head], keys[0, head], last)
            firmness[layer, head] = max((weights[word].item() for word in words), default=0)
    return max(firmness, key=lambda place: firmness[place])


def explore_attention(
    layers: Sequence[Float[Tensor, "3 batch heads seq head_dim"]], tokens: Sequence[str]
) -> widgets.VBox:
    """Show `score_times_value` with sliders for token, layer and head, for row 0 of the batch."""
    first_layer, first_head = most_decided_head(layers, tokens)
    token = slider("token", len(tokens) - 1, start=len(tokens) - 1)
    layer = slider("layer", len(layers) - 1, start=first_layer)
    head = slider("head", layers[0].shape[2] - 1, start=first_head)

    def draw(position: int, layer: int, head: int) -> Picture:
        queries, keys, values = layers[layer][:, 0, head]
        return score_times_value(queries, keys, values, tokens, position)

    return explore(draw, token, layer, head)


# --------------------------------------------------------------------------------- the mask


@shared_look
def show_masks(masks: Mapping[str, Bool[Tensor, "batch 1 q_len k_len"]]) -> Picture:
    """Draw masks next to each other, for row 0 of the batch, with a dot where a query sees a key.

    The queries are assumed to have the last q_len of the k_len positions, as with a cache.
    """
    tallest = max(mask.shape[2] for mask in masks.values())
    widest = max(mask.shape[3] for mask in masks.values())
    height = 0.9 + 5.6 / len(masks) * tallest / widest
    figure, all_axes = new_figure(height, columns=len(masks))
    for axes, (name, mask) in zip(all_axes, masks.items(), strict=True):
        q_len, k_len = mask.shape[2:]
        rows, columns = mask[0, 0].nonzero(as_tuple=True)
        axes.imshow(mask[0, 0].numpy(), cmap=ListedColormap([PALE, BLUE]), vmin=0, vmax=1)
        axes.scatter(columns.tolist(), rows.tolist(), s=6, color="white")
        draw_grid(axes, q_len, k_len)
        axes.set(xlim=(-0.5, widest - 0.5), ylim=(tallest - 0.5, -0.5))
        axes.set_xticks(range(0, k_len, 2))
        axes.set_yticks(range(q_len), [str(k_len - q_len + row) for row in range(q_len)])
        axes.set(title=name, xlabel="key position")
    all_axes[0].set_ylabel("query position")
    return figure


def draw_grid(axes: Axes, rows: int, columns: int) -> None:
    """Draw white lines between the cells of an image."""
    axes.set_xticks([column - 0.5 for column in range(1, columns)], minor=True)
    axes.set_yticks([row - 0.5 for row in range(1, rows)], minor=True)
    axes.grid(which="minor", color="white", linewidth=1)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)


# ----------------------------------------------------------------------- the cache, growing


@shared_look
def growing_cache(steps: Sequence[list[LayerCache]]) -> Picture:
    """Draw the cache after each step of generation, as a threaded model returned it.

    A row is a step, a column a position: dark with a + where the step computed the key, light where
    the key was already in the cache.
    """
    lengths = [cache[0][0].shape[2] for cache in steps]
    sizes = [sum(keys.nbytes + values.nbytes for keys, values in cache) for cache in steps]
    cells = torch.zeros(len(steps), lengths[-1])
    for row, (kept, length) in enumerate(zip([0, *lengths], lengths, strict=False)):
        cells[row, :kept], cells[row, kept:length] = 1, 2

    figure, (axes,) = new_figure(height=1.3 + 0.26 * len(steps))
    colors = ListedColormap([PALE, SKY, BLUE])
    axes.imshow(cells.numpy(), cmap=colors, vmin=0, vmax=2, aspect="auto")
    rows, columns = (cells == 2).nonzero(as_tuple=True)
    axes.scatter(columns.tolist(), rows.tolist(), marker="+", s=30, color="white")
    draw_grid(axes, *cells.shape)
    for row, size in enumerate(sizes):
        axes.text(lengths[-1] - 0.3, row, f"{size / 1024:,.0f} KB", va="center", fontsize=9)
    axes.set_yticks(range(len(steps)), ["prefill"] + [f"decode {i}" for i in range(1, len(steps))])
    axes.set_xticks(range(0, lengths[-1], 2))
    title = f"{lengths[-1]} positions computed once (+) and kept"
    axes.set(xlabel="position", title=f"{title}; the naive loop computes {sum(lengths)}")
    return figure


class Cache(Protocol):
    keys: Tensor
    values: Tensor
    length: int
    max_length: int


@shared_look
def show_cache(kv_cache: Cache) -> Picture:
    """Draw the contents of a preallocated cache, for row 0 of the batch, and its length.

    A cell is the key of one layer at one position; the longer the vector, the darker the cell. The
    line is at `length`: memory to the right of it is not read.
    """
    sizes = kv_cache.keys[:, 0].norm(dim=-1).mean(dim=1)  # [layers, max_length]
    per_token = (kv_cache.keys.nbytes + kv_cache.values.nbytes) // kv_cache.max_length
    held, reserved = kv_cache.length * per_token, kv_cache.max_length * per_token

    figure, (axes,) = new_figure(height=2.9)
    shown = torch.where(sizes > 0, sizes, float("nan"))
    colors = plt.get_cmap("Blues").with_extremes(bad=PALE)
    axes.imshow(shown.numpy(), cmap=colors, vmin=0, aspect="auto", origin="lower")
    draw_grid(axes, *sizes.shape)
    axes.axvline(kv_cache.length - 0.5, color=ORANGE, linewidth=3)
    axes.set_xticks(range(0, kv_cache.max_length, 4))
    axes.set_yticks(range(0, len(sizes), 2))
    sizes_held = f"{held / 1024:,.0f} KB held, {reserved / 1024:,.0f} KB reserved"
    axes.set_title(f"length {kv_cache.length} of {kv_cache.max_length}: {sizes_held}")
    axes.set(xlabel="position", ylabel="layer")
    return figure


# -------------------------------------------------------------------------- time per token


@shared_look
def time_per_token(loops: Mapping[str, Sequence[float]], first_position: int) -> Picture:
    """Draw the milliseconds of every new token but the first, by its position.

    loops: for each loop, the seconds of every new token; the first one, which includes the prefill,
        is left out. The line is a running median, the dots are the measurements.
    """
    figure, (axes,) = new_figure(height=3.2)
    highest = 0.0
    looks = cycle(((ORANGE, "-"), (BLUE, "--"), (INK, ":"), (GRAY, "-.")))
    for (name, seconds), (color, dashes) in zip(loops.items(), looks, strict=False):
        times = [1000 * s for s in seconds[1:]]
        positions = range(first_position + 1, first_position + 1 + len(times))
        smooth = [median(times[max(0, i - 7) : i + 8]) for i in range(len(times))]
        axes.scatter(positions, times, s=4, color=color, alpha=0.3)
        axes.plot(positions, smooth, dashes, color=color, linewidth=2, label=name)
        highest = max([highest, *smooth])
    # Room for the legend. A single dot far above the line means the computer was busy.
    axes.set(ylim=(0, 1.4 * highest), xlabel="position", ylabel="ms per token")
    axes.legend(loc="upper left")
    axes.grid(axis="y")
    return figure
