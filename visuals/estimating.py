"""Pictures for lab 19: where parameters are, what a step waits for, prices, and scaling laws.

Each function draws only its arguments, and returns a figure or a widget.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import ipywidgets as widgets
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from torch import Tensor

from visuals.explorer import choice, explore
from visuals.style import (
    BLUE,
    CURVES,
    EMPTY,
    GRAY,
    GREEN,
    INK,
    ORANGE,
    PALE_BLUE,
    PALE_GREEN,
    PALE_ORANGE,
    PINK,
    PLAIN,
    RING,
    Look,
    Picture,
    draw_legend,
    fill,
    legend_above,
    name_rows,
    new_figure,
    shared_look,
    write,
    write_behind,
)

Point = tuple[float, float]


def logarithmic(axes: Axes, which: str, *ticks: float) -> None:
    """Make an axis logarithmic, with plain numbers at its ticks."""
    axes.set(**{f"{which}scale": "log"})
    axis = axes.xaxis if which == "x" else axes.yaxis
    if ticks:
        axis.set_ticks(ticks)
    else:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))
    axis.set_minor_formatter(NullFormatter())


# ----------------------------------------------------------------------------------- parameters

PARTS: dict[str, Look] = {
    "embedding": (PALE_ORANGE, ORANGE, ".."),
    "matrices": (PALE_BLUE, BLUE, "//"),
    "vectors": ("white", GRAY, ""),
    "head": (PALE_GREEN, GREEN, "xx"),
}
WRITTEN = 0.07  # the least share that has its number in it


@shared_look
def parameter_shares(counts: Mapping[str, Mapping[str, int]]) -> Picture:
    """Draw which shares of each model's parameters are in its parts, a bar for each model.

    counts: for each model, the parts of PARTS and their total.
    """
    figure, (axes,) = new_figure(height=1.1 + 0.34 * len(counts))
    for row, count in enumerate(counts.values()):
        left = 0.0
        for part, look in PARTS.items():
            share = count[part] / count["total"]
            axes.barh(row, share, 0.72, left=left, **fill(look))
            if share >= WRITTEN:
                write(axes, left + share / 2, row, f"{share:.1%}", fontsize=8.5, bbox=PLAIN)
            left += share
        size, unit = (1e9, "billion") if count["total"] >= 1e9 else (1e6, "million")
        total = f"{count['total'] / size:,.3g} {unit}"
        write_behind(axes, left, row, total, gap=5, fontsize=8.5)
    name_rows(axes, list(counts))
    axes.set(xlim=(0, 1.28), xticks=[])
    axes.spines[:].set_visible(False)
    draw_legend(figure, PARTS)
    return figure


# ------------------------------------------------------------------------------- times and prices

MOST = 4096  # the largest batch that is drawn


@shared_look
def step_times(both: Callable[[int], Point], ridge: float) -> Picture:
    """Draw the seconds of a decode step over the batch, and where arithmetic takes over.

    both: returns the seconds of reading and of computing for a batch. ridge: the batch at which
    computing takes over, or infinity.
    """
    batches = [2**n for n in range(int(math.log2(MOST)) + 1)]
    figure, (axes,) = new_figure(height=3.5)
    lines = zip(*([1e3 * seconds for seconds in both(batch)] for batch in batches), strict=True)
    names = "reading weights and KV caches", "computing"
    for name, line, (color, dashes, _) in zip(names, lines, CURVES, strict=False):
        axes.plot(batches, line, dashes, color=color, lw=2, label=name)
    if ridge <= MOST:
        axes.plot(ridge, 1e3 * max(both(int(ridge))), **RING)
        axes.set_title(f"arithmetic takes over at batch {ridge:,.0f} (ring)")
    else:
        axes.set_title(f"reading takes longer at every batch up to {MOST:,}")
    logarithmic(axes, "x", *batches[::2])
    logarithmic(axes, "y")
    axes.set(xlabel="batch", ylabel="ms")
    axes.grid(axis="y")
    legend_above(figure)
    return figure


def explore_steps(
    both: Callable[[int, int], Point], ridge: Callable[[int], float], contexts: Sequence[int]
) -> widgets.VBox:
    """Show `step_times` with a slider for the context length.

    both: returns the seconds of reading and of computing, for a batch and a context. ridge: returns
    the ridge batch for a context.
    """

    def draw(context: int) -> Picture:
        return step_times(lambda batch: both(batch, context), ridge(context))

    return explore(draw, choice("tokens in the cache", contexts))


@shared_look
def price_curves(curves: Mapping[str, Sequence[Point]], limit: float) -> Picture:
    """Draw the price of a million tokens over the TPOT, for each machine and for growing batches.

    curves: for each machine, (seconds, dollars) of batches in ascending order; the last batch is
    the largest that its memory holds. limit: the most seconds. A ring marks the cheapest point of
    each machine within it.
    """
    figure, (axes,) = new_figure(height=3.9)
    for (name, points), (color, dashes, marker) in zip(curves.items(), CURVES, strict=False):
        times, prices = [1e3 * seconds for seconds, _ in points], [price for _, price in points]
        axes.plot(times, prices, dashes, color=color, lw=2, label=name)
        axes.plot(times[-1], prices[-1], marker, color=color, ms=7)
        reached = zip(prices, times, strict=True)
        within = [(price, time) for price, time in reached if time <= 1e3 * limit]
        if within:
            axes.plot(*min(within)[::-1], **RING)
    axes.axvline(1e3 * limit, color=INK, lw=1)
    longest = max([limit, *(points[-1][0] for points in curves.values())])
    axes.axvspan(1e3 * limit, 1.3e3 * longest, zorder=0, lw=0, **fill(EMPTY))
    logarithmic(axes, "x")
    logarithmic(axes, "y")
    axes.set(xlabel="TPOT, ms: larger batches to the right", ylabel="$ per million tokens")
    axes.set_xlim(right=1.3e3 * longest)
    axes.set_title("hatched: over the limit; marker: memory full; ring: the plan")
    legend_above(figure, ncols=4, handlelength=3)
    return figure


# --------------------------------------------------------------------------------- scaling laws


@shared_look
def isoflop_curves(
    curves: Mapping[float, tuple[Sequence[float], Sequence[float]]], optima: Sequence[Point]
) -> Picture:
    """Draw the loss over the size of the model, a line for each budget of FLOPs.

    curves: for each budget, sizes and losses. optima: (size, loss) that a ring marks.
    """
    figure, (axes,) = new_figure(height=3.6)
    for budget, (sizes, losses) in curves.items():
        axes.plot([size / 1e9 for size in sizes], losses, color=BLUE, lw=1.5)
        end = sizes[-1] / 1e9, losses[-1]
        write_behind(axes, *end, f"{budget:.0e} FLOPs", gap=4, fontsize=8)
    for size, loss in optima:
        axes.plot(size / 1e9, loss, **RING)
    logarithmic(axes, "x")
    left, right = axes.get_xlim()
    axes.set(xlim=(left, right * (right / left) ** 0.15), xlabel="billions of parameters")
    axes.set_title("loss; rings: the best size for each budget")
    axes.grid(axis="y")
    return figure


@shared_look
def error_map(
    alphas: Sequence[float],
    betas: Sequence[float],
    errors: Float[Tensor, "alphas betas"],
    marks: Mapping[str, Point],
) -> Picture:
    """Draw how well the best law fits each pair of exponents: the stronger the color, the better.

    marks: (alpha, beta) by name, at most three.
    """
    figure, (axes,) = new_figure(height=4.2)
    shown = axes.contourf(alphas, betas, errors.T.log10().tolist(), 14, cmap="Blues_r")
    shown.set_edgecolor("face")
    looks = zip(marks.items(), ("*", "s", "^"), (ORANGE, PINK, GREEN), strict=False)
    for (name, (alpha, beta)), marker, color in looks:
        axes.plot(alpha, beta, marker, ms=13, color=color, mec="white", ls="", label=name)
    axes.set(xlabel="alpha", ylabel="beta", aspect="equal")
    axes.set_title("error of the best fit: strong is small")
    legend_above(figure)
    return figure


RATIOS = {5: ":", 20: "-", 100: "--"}  # tokens per parameter, and their dashes


@shared_look
def optima_cloud(drawn: Sequence[Point], marks: Mapping[str, Point]) -> Picture:
    """Draw the optimal sizes by which resampled fits would spend a budget.

    drawn: (params, tokens) of each fit. marks: the same, by name. Along a line, the tokens per
    parameter are equal.
    """
    figure, (axes,) = new_figure(height=4)
    everything = [*drawn, *marks.values()]
    left, right = (edge(params for params, _ in everything) for edge in (min, max))
    low, high = (edge(tokens for _, tokens in everything) for edge in (min, max))
    ends = left / 2e9, right * 2 / 1e9
    for ratio, dashes in RATIOS.items():
        line = [end * ratio / 1e3 for end in ends]
        axes.plot(ends, line, dashes, color=GRAY, label=f"{ratio} tokens per parameter")
    cloud = [(params / 1e9, tokens / 1e12) for params, tokens in drawn]
    axes.plot(*zip(*cloud, strict=True), "o", ms=6, mfc="none", color=BLUE, label="resampled fits")
    for (name, point), marker in zip(marks.items(), "*s^D", strict=False):
        place = point[0] / 1e9, point[1] / 1e12
        axes.plot(*place, marker, ms=10, color=ORANGE, mec=INK, ls="", label=name)
    logarithmic(axes, "x")
    logarithmic(axes, "y")
    axes.set(xlim=ends, ylim=(low / 2e12, high * 2 / 1e12))
    axes.set(xlabel="billions of parameters", ylabel="trillions of tokens")
    legend_above(figure)
    return figure
