"""Pictures for lab 11: kept rows, the first token, keys by channel, bytes per token, preemption.

Each draws the objects it is given, and returns a figure or a widget.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import accumulate, count, cycle, groupby
from typing import Any

import ipywidgets as widgets
import torch
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from torch import Tensor

from visuals.explorer import explore, slider
from visuals.kv_cache import draw_numbers, show_masks
from visuals.style import (
    BLUE,
    GRAY,
    GREEN,
    INK,
    ORANGE,
    PALE_BLUE,
    PALE_GREEN,
    PALE_ORANGE,
    PALE_PINK,
    PINK,
    RED,
    Look,
    Mark,
    Picture,
    draw_bars,
    draw_legend,
    fill,
    legend_above,
    name_rows,
    new_figure,
    shared_look,
    write_behind,
)

BEHIND: dict[str, Any] = {"gap": 4, "fontsize": 9}  # of the text after a bar

# ------------------------------------------------------------------------------- the rows kept

FIRST, BETWEEN, LAST, GONE = "first tokens", "kept in between", "last tokens", "dropped"
ROWS: dict[str, Look] = {
    FIRST: (PALE_GREEN, GREEN, "xxxxx"),
    BETWEEN: (ORANGE, RED, ""),
    LAST: (PALE_BLUE, BLUE, "/////"),
    GONE: ("white", GRAY, "..."),
}


@shared_look
def kept_rows(kept: Mapping[str, Sequence[Sequence[int]]]) -> Picture:
    """Draw the tokens that a cache keeps after each step, with a panel for each way to choose them.

    kept: for each way, the positions kept after each step. All ways go through the same text, and
        the newest token of a step is the last one that any of them has kept so far. "First tokens"
        are an unbroken run that starts at token 0, "last tokens" one that ends with the newest.
    Raises ValueError if there are no steps, or if the ways have different numbers of steps.
    """
    lengths = {len(steps) for steps in kept.values()}
    if len(lengths) != 1 or lengths == {0}:
        raise ValueError(
            "All ways need the same number of steps, at least one; here they have "
            f"{', '.join(str(len(steps)) for steps in kept.values()) or 'none'}."
        )
    newest = list(accumulate(map(last_of, zip(*kept.values(), strict=True)), max))
    figure, panels = new_figure(height=1.4 + 5 / max(len(kept), 2), columns=len(kept))
    drawn = set[str]()
    for axes, (name, steps) in zip(panels, kept.items(), strict=True):
        for step, (held, end) in enumerate(zip(steps, newest, strict=True), start=1):
            drawn |= draw_step(axes, step, kinds_of(held, end))
        axes.set(xlim=(-0.5, newest[-1] + 0.5), ylim=(len(steps) + 0.5, 0.5), xlabel="token")
        axes.locator_params(integer=True, nbins=5)
        axes.set_title(f"{name}\nat most {max(map(len, steps)):,} rows", fontsize=10)
    panels[0].set_ylabel("step")
    draw_legend(figure, {kind: look for kind, look in ROWS.items() if kind in drawn})
    return figure


def last_of(held: Sequence[Sequence[int]]) -> int:
    """Return the largest position that any of the ways has kept."""
    return max((position for positions in held for position in positions), default=0)


def kinds_of(held: Collection[int], newest: int) -> Iterator[str]:
    """Yield the kind of each token up to the newest."""
    first_gap = next(position for position in count() if position not in held)
    last_gap = next(position for position in count(newest, -1) if position not in held)
    for position in range(newest + 1):
        if position not in held:
            yield GONE
        elif position > last_gap:
            yield LAST
        else:
            yield FIRST if position < first_gap else BETWEEN


def draw_step(axes: Axes, step: int, kinds: Iterator[str]) -> set[str]:
    """Draw a row of boxes, one per run of tokens of one kind; return the kinds drawn."""
    start, drawn = 0, set[str]()
    for kind, run in groupby(kinds):
        width = len(list(run))
        corner = start - 0.5, step - 0.5
        axes.add_patch(Rectangle(corner, width, 1, lw=0.3, **fill(ROWS[kind])))
        start += width
        drawn.add(kind)
    return drawn


# ------------------------------------------------------------------------------- the first token

HEAD: Mark = {"marker": "o", "color": BLUE, "ms": 4, "mfc": "none", "ls": ""}
LOST: Look = PALE_ORANGE, ORANGE, "/////"


@shared_look
def first_token_mass(
    mass: Float[Tensor, "layers heads"], even: float, controls: Mapping[str, tuple[float, float]]
) -> Picture:
    """Draw how much attention heads give to the first token, and the loss for some kept tokens.

    mass: the share of its attention that each head gives to the first token of the text. even: the
        share of each key if all get the same; drawn as a line. controls: by name of the tokens kept
        in addition to the window, the loss in bits per byte and its standard error.
    """
    figure, (shares, losses) = new_figure(height=3.4, columns=2)
    layers, heads = mass.shape
    beside = [0.6 * (middle / heads - 0.5) for middle in middles(heads)]  # heads of a layer
    x = [layer + shift for layer in range(layers) for shift in beside]
    shares.plot(x, mass.flatten().tolist(), label="one head", **HEAD)
    shares.axhline(even, color=ORANGE, ls="--", lw=2, label=f"even share: {percent(even)}")
    shares.set_yscale("symlog", linthresh=even / 10)  # 0 has a place, too
    shares.yaxis.set_major_formatter(lambda share, _: percent(share))
    shares.set_ylim(-even / 40, 2 * max(even, mass.max().item()))
    shares.locator_params(axis="x", integer=True)
    largest = percent(mass.max().item())
    shares.set_title(f"attention to the first token;\nlargest share: {largest}", fontsize=10)
    shares.set_xlabel("layer")
    shares.grid(axis="y")
    draw_losses(losses, controls)
    legend_above(figure)
    return figure


def middles(cells: int) -> list[float]:
    return [cell + 0.5 for cell in range(cells)]


def percent(share: float) -> str:
    return f"{100 * share:.3g}%"


def draw_losses(axes: Axes, controls: Mapping[str, tuple[float, float]]) -> None:
    """Draw a bar with its standard error for each control, and its name and loss above it."""
    for row, (name, (bits, error)) in enumerate(controls.items()):
        axes.barh(row, bits, 0.4, xerr=error, capsize=4, ecolor=INK, **fill(LOST))
        write_behind(axes, 0, row - 0.38, f"{name}: {bits:+.4f} ± {error:.4f}", **BEHIND)
    axes.axvline(0, color=INK, lw=1)
    axes.set(ylim=(len(controls) - 0.6, -0.7), yticks=[])
    axes.set_title(
        "loss in bits per byte, by the tokens\nkept in addition to the window", fontsize=10
    )
    axes.spines["left"].set_visible(False)
    axes.locator_params(axis="x", nbins=5)


# ------------------------------------------------------------------------------- keys by channel


@shared_look
def key_channels(keys: Float[Tensor, "tokens head_dim"]) -> Picture:
    """Draw the keys of one head, and in the margins the range of each channel and each token.

    A bar in a margin goes from the smallest to the largest number, so its length is the range that
    codes have to cover. Both margins and the colors have the same scale.
    """
    keys = keys.detach()
    tokens, head_dim = keys.shape
    scale = max(keys.abs().max().item(), 1e-9)
    ends = -1.05 * scale, 1.05 * scale
    figure = Picture(figsize=(6.4, 4.6), layout="constrained")
    panels: dict[str, Axes] = figure.subplot_mosaic(
        [["channels", "corner"], ["keys", "tokens"]], width_ratios=(3, 1), height_ratios=(1, 2)
    )

    draw_numbers(panels["keys"], keys, scale)
    panels["keys"].set(xlabel="channel", ylabel="token")
    panels["corner"].set_axis_off()
    colors = panels["corner"].inset_axes((0, 0.3, 1, 0.15))
    figure.colorbar(panels["keys"].images[0], cax=colors, orientation="horizontal")
    colors.set_title("numbers in the keys", fontsize=9)

    axes = panels["channels"]
    low, ranges = from_and_range(keys, dim=0)
    axes.bar(middles(head_dim), ranges.tolist(), 0.8, low.tolist(), color=BLUE)
    axes.set(xlim=(0, head_dim), ylim=ends)
    axes.set_title(f"range of a channel (median {ranges.median().item():.2f})", fontsize=10)
    axes.tick_params(labelbottom=False)
    axes.grid(axis="y")

    axes = panels["tokens"]
    low, ranges = from_and_range(keys, dim=1)
    axes.barh(middles(tokens), ranges.tolist(), 1, low.tolist(), color=BLUE)
    axes.set(xlim=ends, ylim=(tokens, 0))
    axes.set_xlabel(f"range of a token\n(median {ranges.median().item():.2f})")
    axes.tick_params(labelleft=False)
    axes.grid(axis="x")
    return figure


def from_and_range(
    keys: Float[Tensor, "tokens head_dim"], dim: int
) -> tuple[Float[Tensor, " kept"], Float[Tensor, " kept"]]:
    """Return the smallest number along a dimension, and the range from it to the largest."""
    low, high = keys.aminmax(dim=dim)
    return low, high - low


# ------------------------------------------------------------------------------ bytes of a token

PARTS: tuple[Look, ...] = (
    (PALE_BLUE, BLUE, ""),
    (PALE_ORANGE, ORANGE, "/////"),
    (PALE_GREEN, GREEN, "...."),
    (PALE_PINK, PINK, "xxxxx"),
    ("white", GRAY, "-----"),
)


@shared_look
def token_bytes(ways: Mapping[str, Mapping[str, float]]) -> Picture:
    """Draw the bytes of a token in the cache by part, with a bar for each way to store it.

    ways: for each, the bytes by part. After its bar comes their sum, and by what factor that is
        smaller than for the first way.
    """
    names = dict.fromkeys(part for parts in ways.values() for part in parts)
    looks = dict(zip(names, cycle(PARTS), strict=False))
    figure, (axes,) = new_figure(height=1.1 + 0.42 * len(ways))
    totals = [sum(parts.values()) for parts in ways.values()]
    for row, (parts, total) in enumerate(zip(ways.values(), totals, strict=True)):
        start = 0.0
        for part, n_bytes in parts.items():
            axes.barh(row, n_bytes, 0.7, start, lw=0.8, **fill(looks[part]))
            start += n_bytes
        less = f", {totals[0] / total:.1f}× smaller" if row else ""
        write_behind(axes, total, row, f"{total:,.0f}{less}", **BEHIND)
    name_rows(axes, ways)
    axes.set(xlim=(0, 1.2 * max(totals)), xticks=[], title="bytes per token")
    axes.spines["bottom"].set_visible(False)
    draw_legend(figure, looks)
    return figure


# ------------------------------------------------------------------------------------ preemption

WAYS: tuple[Look, ...] = ((PALE_ORANGE, ORANGE, "/////"), (PALE_BLUE, BLUE, ""))


@shared_look
def preemption(ways: Mapping[str, tuple[int, int]]) -> Picture:
    """Draw the cost of preemption in each way: the tokens computed, and next to them the MB copied.

    ways: for each, the number of tokens computed and of bytes copied.
    """
    figure, (computed, copied) = new_figure(height=2.8, columns=2)
    draw_bars(computed, {way: tokens for way, (tokens, _) in ways.items()}, "{:,}".format, *WAYS)
    megabytes = {way: n_bytes / 1e6 for way, (_, n_bytes) in ways.items()}
    draw_bars(copied, megabytes, "{:,.1f}".format, *WAYS)
    computed.set_title("tokens computed")
    copied.set_title("MB copied")
    return figure


# ------------------------------------------------------------------------- a window, with sliders


def explore_window(
    window_mask: Callable[..., Bool[Tensor, "batch 1 q_len k_len"]], tokens: int = 24
) -> widgets.VBox:
    """Show a window mask next to the full causal mask, with sliders for the window and the sinks.

    window_mask: called with the positions of queries and of keys, both [1, tokens], the window and
        the number of sinks. A cache holds the rows that it shows to the next token.
    """
    window = slider("window", tokens, start=tokens // 3, first=1)  # a token always sees itself
    sinks = slider("sinks", tokens)
    positions = torch.arange(tokens)[None]
    everything = torch.ones(1, 1, tokens, tokens, dtype=torch.bool).tril()
    ticks = range(0, tokens, max(tokens // 8, 1))

    def draw(window: int, sinks: int) -> Picture:
        mask = window_mask(positions, positions, window, sinks)
        figure = show_masks({"everything": everything, f"window {window}, sinks {sinks}": mask})
        for axes in figure.axes:
            axes.set_xticks(ticks)
            axes.set_yticks(ticks, [str(tick) for tick in ticks])
        return figure

    def words(window: int, sinks: int) -> str:
        held = int(window_mask(positions[:, -1:] + 1, positions, window, sinks).sum())
        return (
            f"After {tokens} tokens, the cache holds {held} of {tokens} rows: those that the next "
            "token sees besides its own."
        )

    return explore(draw, window, sinks, words=words)
