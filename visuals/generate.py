"""Pictures for lab 1: tokens, the next token, the timeline of a request, the cost of generating."""

from collections.abc import Callable, Sequence
from html import escape
from itertools import accumulate, pairwise

import ipywidgets as widgets
import torch
from IPython.display import HTML
from jaxtyping import Float
from matplotlib.colors import ListedColormap
from torch import Tensor

from visuals.explorer import explore, slider
from visuals.style import (
    BLUE,
    GRAY,
    INK,
    ORANGE,
    PALE,
    RED,
    SKY,
    Picture,
    ending,
    new_figure,
    on_paper,
    probability_axis,
    shared_look,
    visible,
)

CHIP = (
    "display:inline-block; margin:2px; padding:2px 6px; border-radius:4px; text-align:center;"
    f"background:{PALE}; color:{INK}; font-family:monospace"
)


# ----------------------------------------------------------------------------------- tokens


def show_tokens(tokens: Sequence[str], ids: Sequence[int]) -> HTML:
    """Show a text as the model gets it: each token in a box, with its id below."""
    boxes = (
        f'<span style="{CHIP}">{escape(visible(token))}<br><small>{token_id}</small></span>'
        for token, token_id in zip(tokens, ids, strict=True)
    )
    return HTML(on_paper("".join(boxes)))


# --------------------------------------------------------------------------- the next token


@shared_look
def next_token_bars(
    logits: Float[Tensor, " vocab"],
    decode: Callable[[list[int]], str],
    after: str,
    actual: int | None = None,
    top: int = 10,
) -> Picture:
    """Draw the probabilities of the likeliest tokens after a text, and the one that follows."""
    probs = logits.softmax(dim=-1)
    shown = probs.topk(min(top, len(probs)))
    rows = range(len(shown.values))
    figure, (axes,) = new_figure(height=1.0 + 0.24 * len(rows))
    colors = [ORANGE if token_id == actual else BLUE for token_id in shown.indices.tolist()]
    bars = axes.barh(rows, shown.values.tolist(), color=colors)
    axes.bar_label(bars, [f"{prob:.1%}" for prob in shown.values.tolist()], padding=3, fontsize=9)
    axes.set_yticks(rows, [visible(decode([token_id])) for token_id in shown.indices.tolist()])
    probability_axis(axes, shown.values[0].item(), room=1.6)  # for what really follows
    axes.set_title(f"After “{ending(after, 50)}”")
    axes.invert_yaxis()
    if actual is not None:
        rank = int((probs > probs[actual]).sum()) + 1
        word = visible(decode([actual]))
        told = f"{word} really follows:\n{probs[actual]:.1%}, rank {rank:,}"
        axes.text(0.98, 0.06, told, transform=axes.transAxes, ha="right")
    return figure


def explore_next_token(
    logits: Float[Tensor, "seq vocab"], ids: Sequence[int], decode: Callable[[list[int]], str]
) -> widgets.VBox:
    """Show `next_token_bars` with a slider over the rows of `logits`, one row for each of `ids`."""

    def draw(row: int) -> Picture:
        actual = ids[row + 1] if row + 1 < len(ids) else None
        return next_token_bars(logits[row], decode, decode(list(ids[: row + 1])), actual)

    return explore(draw, slider("row", len(ids) - 1))


# ---------------------------------------------------------------------- a request over time

SPAN = {"arrowstyle": "<->", "color": GRAY, "shrinkA": 0, "shrinkB": 0}


@shared_look
def request_timeline(start: float, token_times: Sequence[float]) -> Picture:
    """Draw one request from left to right: a tick for each token, TTFT, the gaps, the latency.

    Times are in seconds.
    """
    since = [1000 * (time - start) for time in token_times]
    first, last = since[0], since[-1]
    figure, (axes,) = new_figure(height=2.0)
    axes.barh(0, first, height=0.5, color=ORANGE)
    for begin, end in pairwise(since):
        axes.barh(0, end - begin, left=begin, height=0.5, color=SKY, edgecolor="white")
    axes.vlines(since, -0.32, 0.32, color=INK, linewidth=1)
    spans = [(0.62, 0.0, first, "TTFT"), (-0.62, 0.0, last, "latency")]
    if len(since) > 1:
        spans.append((0.62, first, last, f"{len(since) - 1} gaps, TPOT is their mean"))
    for height, begin, end, name in spans:
        axes.annotate("", (begin, height), (end, height), arrowprops=SPAN)
        away = "bottom" if height > 0 else "top"
        axes.text((begin + end) / 2, 1.25 * height, name, ha="center", va=away, fontsize=9)
    axes.set(xlim=(0, last * 1.02), ylim=(-1.3, 1.3), yticks=[])
    axes.set_xlabel("milliseconds since the request")
    axes.spines["left"].set_visible(False)
    return figure


# ---------------------------------------------------------------------------------- the cost


@shared_look
def tokens_computed(counts: Sequence[int]) -> Picture:
    """Draw a row per forward pass, a cell per position: computed first, again, or not at all.

    `counts` has the number of tokens that each forward pass computed.
    """
    grid = torch.zeros(len(counts), max(counts))
    seen = 0
    for step, count in enumerate(counts):
        grid[step, :count] = 1
        grid[step, seen:count] = 2
        seen = max(seen, count)
    first, again = int((grid == 2).sum()), int((grid == 1).sum())
    rows, columns = (grid == 2).nonzero(as_tuple=True)

    figure, (axes,) = new_figure(height=1.4 + 0.2 * len(counts))
    colors = ListedColormap([PALE, SKY, BLUE])
    axes.pcolormesh(grid, cmap=colors, vmin=0, vmax=2, edgecolors="white", linewidth=1)
    axes.scatter(columns + 0.5, rows + 0.5, s=8, color="white")
    axes.invert_yaxis()
    axes.set(xlabel="position in the text", ylabel="forward pass")
    axes.set_title(f"{first} tokens computed for the first time (dots), {again} computed again")
    ends = (0, counts[0] - 1, max(counts) - 1)
    axes.set_xticks([end + 0.5 for end in ends], [str(end) for end in ends])
    axes.set_yticks([0.5, len(counts) - 0.5], ["1", str(len(counts))])
    axes.spines[:].set_visible(False)
    return figure


@shared_look
def cost_of_generating(counts: Sequence[int], seconds: Sequence[float]) -> Picture:
    """Draw the tokens computed so far (above) and the milliseconds per token (below)."""
    new_tokens = range(1, len(counts) + 1)
    needed = [counts[0] + step for step in range(len(counts))]
    figure, (total, each) = new_figure(height=5.0, rows=2)
    total.plot(new_tokens, list(accumulate(counts)), color=BLUE, label="computed by your loop")
    total.plot(
        new_tokens, needed, color=RED, linestyle="--", label="if each token were computed once"
    )
    total.set(xlabel="new tokens", ylabel="tokens computed", ylim=(0, None))
    total.yaxis.set_major_formatter("{x:,.0f}")
    total.legend(loc="upper left")
    each.plot(counts, [1000 * second for second in seconds], ".", color=BLUE)
    each.set(xlabel="tokens in the sequence", ylabel="ms for the next token", ylim=(0, None))
    for axes in (total, each):
        axes.grid(axis="y")
    return figure
