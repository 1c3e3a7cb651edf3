"""Pictures for lab 11: rows that are kept, the first token, keys by channel, bytes, preemption.

Each reads what it is handed, and returns a figure or a widget.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import accumulate, count, cycle, groupby
from typing import Any

import ipywidgets as widgets
import matplotlib.pyplot as plt
import torch
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from torch import Tensor

from visuals.explorer import explore, slider
from visuals.kv_cache import draw_numbers, show_masks
from visuals.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    LOOK,
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
    write_behind,
)

BEHIND: dict[str, Any] = {"gap": 4, "fontsize": 9}  # what is written behind a bar

# ----------------------------------------------------------------------------- the rows that stay

FIRST, BETWEEN, LAST, GONE = "the first", "kept in between", "the last", "gone"
ROWS: dict[str, Look] = {
    FIRST: (PALE_GREEN, GREEN, "xxxxx"),
    BETWEEN: (ORANGE, RED, ""),
    LAST: (PALE_BLUE, BLUE, "/////"),
    GONE: ("white", GREY, "..."),
}


@plt.rc_context(LOOK)
def kept_rows(kept: Mapping[str, Sequence[Sequence[int]]]) -> Picture:
    """The tokens that a cache keeps after each step, a panel for each way to choose them.

    kept: for each way, step after step, the positions that are kept. All ways walk the same text,
        and the newest token of a step is the last one that any of them has kept by then. The first
        are an unbroken run from token 0 on, the last are one that ends with the newest.
    Raises ValueError where there are no steps, or not equally many.
    """
    lengths = {len(steps) for steps in kept.values()}
    if len(lengths) != 1 or lengths == {0}:
        raise ValueError(
            "All ways are shown over the same steps, one at least; here they have "
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
    """The last position that any of them has."""
    return max((position for positions in held for position in positions), default=0)


def kinds_of(held: Collection[int], newest: int) -> Iterator[str]:
    """What has become of each token up to the newest."""
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
    """A row of boxes, one for each run of tokens of one kind; gives the kinds that it drew."""
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


@plt.rc_context(LOOK)
def first_token_mass(
    mass: Float[Tensor, "layers heads"], even: float, controls: Mapping[str, tuple[float, float]]
) -> Picture:
    """What the heads give to the first token, and what it costs to keep that or other tokens.

    mass: the share of its attention that each head gives to the text's first token. even: the share
        of each key where all have the same, a line. controls: by the tokens that were kept beside
        the window, the bits a byte lost, and the standard error of that.
    """
    figure, (shares, losses) = new_figure(height=3.4, columns=2)
    layers, heads = mass.shape
    beside = [0.6 * (middle / heads - 0.5) for middle in middles(heads)]  # heads of a layer
    x = [layer + shift for layer in range(layers) for shift in beside]
    shares.plot(x, mass.flatten().tolist(), label="a head", **HEAD)
    shares.axhline(even, color=ORANGE, ls="--", lw=2, label=f"all keys alike: {percent(even)}")
    shares.set_yscale("symlog", linthresh=even / 10)  # 0 has a place too
    shares.yaxis.set_major_formatter(lambda share, _: percent(share))
    shares.set_ylim(-even / 40, 2 * max(even, mass.max().item()))
    shares.locator_params(axis="x", integer=True)
    largest = percent(mass.max().item())
    shares.set_title(f"attention on the first token;\nthe largest share: {largest}", fontsize=10)
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
    """A bar with its standard error for each control, and above it the name and the number."""
    for row, (name, (bits, error)) in enumerate(controls.items()):
        axes.barh(row, bits, 0.4, xerr=error, capsize=4, ecolor=INK, **fill(LOST))
        write_behind(axes, 0, row - 0.38, f"{name}: {bits:+.4f} ± {error:.4f}", **BEHIND)
    axes.axvline(0, color=INK, lw=1)
    axes.set(ylim=(len(controls) - 0.6, -0.7), yticks=[])
    axes.set_title("bits a byte lost, by the tokens\nkept beside the window", fontsize=10)
    axes.spines["left"].set_visible(False)
    axes.locator_params(axis="x", nbins=5)


# ------------------------------------------------------------------------------- keys by channel


@plt.rc_context(LOOK)
def key_channels(keys: Float[Tensor, "tokens head_dim"]) -> Picture:
    """The keys of one head, and in the margins from where to where each channel and token goes.

    A bar in a margin goes from the smallest to the largest number: it is as long as the range that
    codes have to cover. Both margins and the colours have one scale.
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
    colours = panels["corner"].inset_axes((0, 0.3, 1, 0.15))
    figure.colorbar(panels["keys"].images[0], cax=colours, orientation="horizontal")
    colours.set_title("colours", fontsize=9)

    axes = panels["channels"]
    low, ranges = from_and_range(keys, dim=0)
    axes.bar(middles(head_dim), ranges.tolist(), 0.8, low.tolist(), color=BLUE)
    axes.set(xlim=(0, head_dim), ylim=ends)
    axes.set_title(f"range of a channel: {ranges.median().item():.2f} in the median", fontsize=10)
    axes.tick_params(labelbottom=False)
    axes.grid(axis="y")

    axes = panels["tokens"]
    low, ranges = from_and_range(keys, dim=1)
    axes.barh(middles(tokens), ranges.tolist(), 1, low.tolist(), color=BLUE)
    axes.set(xlim=ends, ylim=(tokens, 0))
    axes.set_xlabel(f"range of a token:\n{ranges.median().item():.2f} in the median")
    axes.tick_params(labelleft=False)
    axes.grid(axis="x")
    return figure


def from_and_range(
    keys: Float[Tensor, "tokens head_dim"], dim: int
) -> tuple[Float[Tensor, " kept"], Float[Tensor, " kept"]]:
    """The smallest number along a dimension, and how far the largest is from it."""
    low, high = keys.aminmax(dim=dim)
    return low, high - low


# ------------------------------------------------------------------------------ bytes of a token

PARTS: tuple[Look, ...] = (
    (PALE_BLUE, BLUE, ""),
    (PALE_ORANGE, ORANGE, "/////"),
    (PALE_GREEN, GREEN, "...."),
    (PALE_PINK, PINK, "xxxxx"),
    ("white", GREY, "-----"),
)


@plt.rc_context(LOOK)
def token_bytes(ways: Mapping[str, Mapping[str, float]]) -> Picture:
    """The bytes of a token in the cache by what they are, a bar for each way to keep it.

    ways: for each the bytes by part. Behind its bar stands their sum, and how many times less that
        is than the first way takes.
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
        less = f", {totals[0] / total:.1f}× less" if row else ""
        write_behind(axes, total, row, f"{total:,.0f}{less}", **BEHIND)
    name_rows(axes, ways)
    axes.set(xlim=(0, 1.2 * max(totals)), xticks=[], title="bytes of a token")
    axes.spines["bottom"].set_visible(False)
    draw_legend(figure, looks)
    return figure


# ------------------------------------------------------------------------------------ preemption

WAYS: tuple[Look, ...] = ((PALE_ORANGE, ORANGE, "/////"), (PALE_BLUE, BLUE, ""))


@plt.rc_context(LOOK)
def preemption(ways: Mapping[str, tuple[int, int]]) -> Picture:
    """What preempted requests cost in each way: tokens computed, and beside them MB copied.

    ways: for each the tokens that were computed, and the bytes that were copied.
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
    """The mask of a window beside that without one, with sliders for the window and the sinks.

    window_mask: called with the positions of queries and of keys, both [1, tokens], the window and
        the sinks. A cache holds what it lets the next token see.
    """
    window = slider("window", tokens, start=tokens // 3, first=1)  # a token sees itself at least
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
            f"After {tokens} tokens the cache holds {held} of {tokens} rows: those that the next "
            "token may see, beside its own."
        )

    return explore(draw, window, sinks, words=words)
