"""Pictures for lab 10: number formats, codes, shared scales, and the loss of each method.

Each function draws its arguments and returns a figure or a widget. A weight is [n_in, n_out], as
GPT-2 keeps it: an output channel is a column.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, pairwise
from math import floor, log10
from typing import Any

import ipywidgets as widgets
import torch
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FixedLocator, NullLocator
from torch import Tensor

from visuals.explorer import explore, slider
from visuals.style import (
    BLUE,
    GRAY,
    GREEN,
    INK,
    ORANGE,
    PALE_BLUE,
    PALE_ORANGE,
    PINK,
    RED,
    Mark,
    Picture,
    draw_legend,
    fill,
    legend_above,
    new_figure,
    shared_look,
)

# ---------------------------------------------------------------------- what a format can hold

VALUE: Mark = {"color": INK, "ls": "--", "lw": 1.2}
ROUNDED: Mark = {"marker": "o", "color": BLUE, "ms": 10, "mfc": "none", "mew": 2, "ls": ""}
TRUNCATED: Mark = {"marker": "v", "color": RED, "ms": 7, "ls": ""}
BAND = PALE_BLUE, BLUE, "|||||"
MOST_TICKS = 130  # in a row; more would touch


@shared_look
def number_line(formats: Mapping[str, Sequence[float]], near: float) -> Picture:
    """Draw the numbers of each format near a value, and the numbers that the value becomes.

    formats: by name, the numbers of the format, with some on both sides of `near`; there may be
        more than the picture shows. The coarsest format sets the width: two of its numbers on each
        side. Numbers that would touch are drawn as a band.
    Rounding goes to the nearest number, truncation towards 0. Raises ValueError if `near` isn't
    between two numbers of a format.
    """
    lines = {name: sorted({float(number) for number in has}) for name, has in formats.items()}
    for name, numbers in lines.items():
        require_both_sides(name, numbers, near)
    coarsest = max(lines.values(), key=lambda numbers: step_at(numbers, near))
    above = bisect_right(coarsest, near)
    grid = coarsest[max(above - 2, 0) : above + 2]
    margin = 0.12 * (grid[-1] - grid[0])
    left, right = grid[0] - margin, grid[-1] + margin

    figure, (axes,) = new_figure(height=1.3 + 0.68 * len(lines))
    for row, (name, numbers) in enumerate(lines.items()):
        shown = numbers[bisect_left(numbers, left) : bisect_right(numbers, right)]
        draw_numbers(axes, row, shown, step_at(numbers, near) * MOST_TICKS < right - left)
        draw_results(axes, row, name, numbers, near)
    axes.axvline(near, zorder=0, **VALUE)
    axes.set_xticks(grid, [f"{number:.{decimals(step_at(coarsest, near))}f}" for number in grid])
    axes.set(xlim=(left, right), ylim=(len(lines) - 0.6, -0.75), yticks=[])
    axes.set_title(f"the numbers of each format near {near:g}")
    axes.spines["left"].set_visible(False)
    marks = {f"the value, {near:g}": VALUE, "rounded": ROUNDED, "truncated": TRUNCATED}
    handles = [Line2D([], [], label=name, **mark) for name, mark in marks.items()]
    legend_above(figure, handles=handles, ncols=3)
    return figure


def require_both_sides(name: str, numbers: Sequence[float], near: float) -> None:
    if not numbers or not numbers[0] < near < numbers[-1]:
        raise ValueError(
            f"{name} has no numbers here on both sides of {near:g}: give it some below and above."
        )


def step_at(numbers: Sequence[float], near: float) -> float:
    """Return the distance from the number at or below `near` to the next one."""
    place = bisect_right(numbers, near)
    return numbers[place] - numbers[place - 1]


def neighbors(numbers: Sequence[float], near: float) -> tuple[float, float]:
    """Return what `near` becomes when it is rounded, and when it is truncated."""
    below, above = numbers[bisect_right(numbers, near) - 1], numbers[bisect_left(numbers, near)]
    rounded = below if near - below <= above - near else above
    return rounded, below if near >= 0 else above


def decimals(step: float) -> int:
    """Return how many decimals show the last two digits of a step."""
    return max(0, 1 - floor(log10(step)))


def draw_numbers(axes: Axes, row: int, numbers: Sequence[float], dense: bool) -> None:
    """Draw a line with a tick for each number, or a band if they are dense."""
    width = numbers[-1] - numbers[0]
    if dense:
        axes.add_patch(Rectangle((numbers[0], row - 0.14), width, 0.28, lw=0.8, **fill(BAND)))
    else:
        axes.hlines(row, numbers[0], numbers[-1], color=GRAY, lw=1)
        axes.vlines(numbers, row - 0.14, row + 0.14, color=BLUE, lw=1.5)


def draw_results(axes: Axes, row: int, name: str, numbers: Sequence[float], near: float) -> None:
    """Draw what the value becomes, as marks on the line and in words above it."""
    step, (rounded, truncated) = step_at(numbers, near), neighbors(numbers, near)
    axes.plot(truncated, row - 0.3, **TRUNCATED)
    axes.plot(rounded, row, **ROUNDED)
    digits = decimals(step)
    facts = f"rounded {rounded:.{digits}f}, truncated {truncated:.{digits}f}"
    text = f"{name}: {facts}, a step of {step:.2g}"
    place: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center"}
    axes.text(0, row - 0.52, text, fontsize=9, backgroundcolor="white", **place)


# -------------------------------------------------------------------------- how codes are used

CODES = {"used": (BLUE, BLUE, ""), "never used": ("white", RED, "////")}


@shared_look
def codes_histogram(
    codes: Mapping[str, Int[Tensor, "..."]], ranges: Mapping[str, range]
) -> Picture:
    """Draw how often each code is used, one panel per format; codes never used are hollow.

    ranges: all codes of a format. Raises ValueError if `codes` has another one.
    """
    for name, used in codes.items():
        require_in_range(name, used, ranges[name])
    figure, panels = new_figure(height=0.8 + 1.25 * len(codes), rows=len(codes))
    for axes, (name, used) in zip(panels, codes.items(), strict=True):
        levels = ranges[name]
        counts = torch.bincount(used.flatten().long() - levels[0], minlength=len(levels)).tolist()
        heights = {code: count for code, count in zip(levels, counts, strict=True) if count}
        axes.bar(list(heights), list(heights.values()), 0.8, lw=0.5, **fill(CODES["used"]))
        top = max(counts)
        for start, end in runs_of_zeros(counts):
            corner = levels[start] - 0.4, 0
            width = end - start - 0.2
            axes.add_patch(Rectangle(corner, width, 0.09 * top, lw=1, **fill(CODES["never used"])))
        axes.set(xlim=(levels[0] - 1, levels[-1] + 1), ylim=(0, 1.08 * top), yticks=[])
        axes.set_xticks(sorted({levels[0], 0, levels[-1]}))
        axes.set_title(name)
        axes.set_title(f"{len(heights)} of {len(levels)} codes used", loc="right", fontsize=9)
        axes.spines["left"].set_visible(False)
    panels[-1].set_xlabel("code; height: how often it is used")
    draw_legend(figure, CODES)
    return figure


def require_in_range(name: str, codes: Int[Tensor, "..."], levels: range) -> None:
    if not codes.numel():
        raise ValueError(f"{name} has no codes to show.")
    least, largest = int(codes.min()), int(codes.max())
    if least not in levels or largest not in levels:
        raise ValueError(
            f"{name} has codes from {least} to {largest}, which are not all in its range, "
            f"{levels[0]} to {levels[-1]}."
        )


def runs_of_zeros(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Return the start and end of each run of zeros, the end excluded."""
    used = [-1, *(place for place, count in enumerate(counts) if count), len(counts)]
    return [(one + 1, other) for one, other in pairwise(used) if other - one > 1]


# ------------------------------------------------------------------------------- shared scales


LARGEST: Mark = {"marker": "o", "color": ORANGE, "ms": 4, "mec": "white", "mew": 0.4}


@shared_look
def grain(weight: Float[Tensor, "n_in n_out"], size: int = 32) -> Picture:
    """Draw a corner of a matrix three times, with its scales above: one, per column, per group.

    Darker is further from 0. Above the weights that share a scale there is a cell for it, as dark
    as the largest of them, which sets the scale and is marked by a dot. All scales are those of
    this corner. size: inputs in a group. Raises ValueError if it doesn't divide n_in.
    """
    n_in, n_out = weight.shape
    if size < 1 or n_in % size:
        raise ValueError(
            f"Groups of {size} don't divide the {n_in} inputs of this corner: choose a size that "
            "does."
        )
    weight = weight.detach().abs()
    figure, panels = new_figure(height=3.8, columns=3)
    blocks = {
        "for all weights": (n_in, n_out),
        "one per column": (n_in, 1),
        f"one per {size} in a column": (size, 1),
    }
    for axes, (name, (rows, columns)) in zip(panels, blocks.items(), strict=True):
        bottom = draw_shared(axes, weight, rows, columns)
        count = weight.numel() // (rows * columns)
        axes.set_title(f"{count:,} scale{'s' * (count > 1)},\n{name}", fontsize=10)
        axes.set(xlim=(-0.2, n_out + 0.2), ylim=(bottom + 0.2, -0.2), xticks=[], yticks=[])
        axes.set_xlabel(f"{n_out} outputs")
        axes.spines[:].set_visible(False)
    panels[0].set_ylabel(f"{n_in} inputs")
    handles: list[Any] = [
        Patch(label="on top: scales, a stronger color is larger", facecolor=BLUE, edgecolor=INK),
        Line2D([], [], ls="", label="the weight that sets a scale", **LARGEST),
    ]
    legend_above(figure, handles=handles)
    return figure


def draw_shared(axes: Axes, weight: Float[Tensor, "n_in n_out"], rows: int, columns: int) -> float:
    """Draw a matrix whose blocks of [rows, columns] share a scale; return where it ends."""
    n_in, n_out = weight.shape
    height = max(n_in / 16, 0.5)  # of a scale, in rows of the matrix
    darkest, top = weight.max().item(), 0.0
    for block in weight.split(rows):
        shares = block.split(columns, dim=1)
        peaks = [share.max().item() for share in shares]
        draw_cells(axes, [peaks], (0, n_out, top + height, top), darkest)
        axes.vlines(range(columns, n_out, columns), top, top + height, color=INK, lw=0.5)
        first = top + 1.25 * height
        draw_cells(axes, block.tolist(), (0, n_out, first + rows, first), darkest)
        places = [divmod(int(share.argmax()), columns) for share in shares]
        x = [number * columns + column + 0.5 for number, (_, column) in enumerate(places)]
        axes.plot(x, [first + row + 0.5 for row, _ in places], ls="", **LARGEST)
        top = first + rows + 0.5 * height
    return top - 0.5 * height


Extent = tuple[float, float, float, float]  # left, right, bottom, top


def draw_cells(
    axes: Axes, numbers: Sequence[Sequence[float]], extent: Extent, darkest: float
) -> None:
    """Draw one cell per number, and a frame around them."""
    left, right, bottom, top = extent
    axes.imshow(numbers, cmap="Blues", vmin=0, vmax=darkest, aspect="auto", extent=extent)
    look: dict[str, Any] = {"facecolor": "none", "edgecolor": INK, "lw": 0.7}
    axes.add_patch(Rectangle((left, top), right - left, bottom - top, **look))


# ------------------------------------------------------------ rounding and clipping by the scale

LOSSES = (PALE_BLUE, BLUE, "...."), (PALE_ORANGE, ORANGE, "/////")
CHOICES = ((INK, "-", "o"), (RED, "--", "s"), (GREEN, ":", "D"), (PINK, "-.", "^"))


@shared_look
def clipping(
    values: Float[Tensor, "..."],
    scales: Float[Tensor, " scales"],
    errors: Mapping[str, Float[Tensor, " scales"]],
    chosen: Mapping[str, float],
    last: int,
) -> Picture:
    """Draw the values with the chosen ranges, and next to them the error of each scale.

    scales: in rising order. errors: the error of each scale by cause, rounding and clipping, drawn
        on top of each other. chosen: the scale that each method chooses. last: the last code, so a
        range ends at `last` times the scale.
    The panel of errors ends a little above the largest error of a chosen scale.
    """
    figure, (counts, lost) = new_figure(height=3.4, columns=2)
    counts.hist(values.flatten().tolist(), bins=61, facecolor=PALE_BLUE, edgecolor=BLUE, lw=0.5)
    counts.set(yscale="log", xlabel="value", title="values, and the ranges chosen")
    counts.set_ylabel("how many")

    handles: list[Any] = []
    below = torch.zeros_like(scales)
    for (cause, error), look in zip(errors.items(), LOSSES, strict=True):
        top = below + error
        lost.fill_between(scales.tolist(), below.tolist(), top.tolist(), lw=0.6, **fill(look))
        handles.append(Patch(label=f"{cause} error", **fill(look)))
        below = top
    heights = [at(scales, below, scale) for scale in chosen.values()]
    for (name, scale), height, (color, dashes, marker) in zip(
        chosen.items(), heights, cycle(CHOICES), strict=False
    ):
        line: dict[str, Any] = {"color": color, "ls": dashes, "lw": 1.8}
        for side in (-1, 1):
            counts.axvline(side * scale * last, **line)
        lost.axvline(scale, **line)
        lost.plot(scale, height, marker, color=color, ms=8, mec="white")
        label = f"{name}: ±{scale * last:.3g}"
        handles.append(Line2D([], [], marker=marker, label=label, **line))
    lost.set(xlabel="scale", title="mean squared error")
    first, end = scales[0].item(), scales[-1].item()
    lost.set(xlim=(first, end + 0.04 * (end - first)), ylim=(0, 1.25 * max(heights)))
    lost.locator_params(axis="x", nbins=4)
    lost.ticklabel_format(axis="y", scilimits=(-2, 3), useMathText=False)
    legend_above(figure, handles=handles, handlelength=3)
    return figure


def at(scales: Float[Tensor, " scales"], errors: Float[Tensor, " scales"], scale: float) -> float:
    """Return the error of the nearest scale that was tried."""
    return errors[(scales - scale).abs().argmin()].item()


# ------------------------------------------------------------------ activations and weights

MOST_NAMED = 3  # channels, those with the largest activations


@shared_look
def channels(
    before: Float[Tensor, "tokens n_in"],
    after: Float[Tensor, "tokens n_in"] | None,
    weight_before: Float[Tensor, "n_in n_out"],
    weight_after: Float[Tensor, "n_in n_out"] | None,
) -> Picture:
    """Draw the largest magnitude of each channel: activations on top, rows of the weight below.

    On the left before smoothing, on the right after it, if given. A triangle with a number marks
    the channels with the largest activations.
    """
    activations, rows = [before.abs().amax(dim=0)], [weight_before.abs().amax(dim=1)]
    if after is not None and weight_after is not None:
        activations.append(after.abs().amax(dim=0))
        rows.append(weight_after.abs().amax(dim=1))
    named = activations[0].topk(min(MOST_NAMED, before.shape[1])).indices.tolist()
    figure, panels = new_figure(height=4.4, rows=2, columns=len(rows))
    drawn = zip(("activations", "weights"), (activations, rows), strict=True)
    for number, (name, both) in enumerate(drawn):
        row = panels[number * len(both) : (number + 1) * len(both)]
        positive = torch.cat([peaks[peaks > 0] for peaks in both])
        low, high = positive.min().item() / 2, positive.max().item() * 4
        for axes, peaks, when in zip(row, both, ("before", "after"), strict=False):
            draw_channels(axes, peaks, named, low)
            times = (peaks.max() / peaks.median()).item()
            fact = f"largest {peaks.max().item():.3g}, {times:,.1f} × the median"
            axes.set_title(f"{name} {when}\n{fact}", fontsize=10)
            axes.set(yscale="log", ylim=(low, high), xlim=(0, len(peaks)))
            axes.grid(axis="y")
        row[0].set_ylabel("largest magnitude")
    for axes in panels[-len(rows) :]:
        axes.set_xlabel("channel")
    figure.align_ylabels()
    return figure


def draw_channels(
    axes: Axes, peaks: Float[Tensor, " n_in"], named: Sequence[int], low: float
) -> None:
    """Draw a column for each channel, and a mark with its number above some of them."""
    axes.stairs(peaks.tolist(), baseline=low, fill=True, facecolor=BLUE)
    for channel in named:
        place: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "clip_on": False}
        axes.plot(channel + 0.5, 0.86, "v", color=RED, ms=5, **place)
        axes.text(channel + 0.5, 0.91, str(channel), ha="center", fontsize=9, **place)


# ---------------------------------------------------------------------- rounding that looks ahead


@shared_look
def ahead(rounding: Float[Tensor, " n_in"], gptq: Float[Tensor, " n_in"]) -> Picture:
    """Draw the squared error of the outputs after each row: rounding to nearest, and GPTQ.

    Item i of each: the error once rows 0 to i are rounded.
    """
    figure, (axes,) = new_figure(height=3.0)
    every = max(len(rounding) // 8, 1)
    for name, errors, color, dashes, marker in (
        ("rounding to nearest", rounding, ORANGE, "--", "s"),
        ("GPTQ", gptq, BLUE, "-", "o"),
    ):
        rows = range(1, len(errors) + 1)
        label = f"{name}: {shortly(errors[-1].item())} after all rows"
        look: dict[str, Any] = {"color": color, "ls": dashes, "marker": marker, "lw": 2}
        axes.plot(rows, errors.tolist(), markevery=every, label=label, **look)
    axes.set(xlabel="rows rounded so far", ylim=(0, None), xlim=(0, len(rounding)))
    axes.set_title("squared error of the outputs")
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.legend(loc="upper left")
    axes.grid(axis="y")
    return figure


def shortly(number: float) -> str:
    """Return the number with three digits, or all digits before the point if there are more."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


# ------------------------------------------------------------------------- bytes against quality

LINEAR = 0.01  # bits per byte; a smaller loss is about as large as its standard error
TICKS_OF_SIZE = 1, 2, 3, 4, 5, 6, *(2**n for n in range(3, 16))
TICKS_OF_LOSS = -0.1, -LINEAR, 0, LINEAR, 0.1, 1, 10
LEADER = {"arrowstyle": "-", "color": GRAY, "lw": 0.7, "shrinkB": 5, "relpos": (0, 0.5)}
Point = tuple[float, float, float]  # size, bits per byte lost, their standard error


@shared_look
def pareto(points: Mapping[str, Point], size: str = "bits per weight, scales included") -> Picture:
    """Draw the loss of each method over its size in bits per weight.

    points: for each method its size, the bits per byte lost, and their standard error, which is
        drawn as a bar. A point is filled if no other method has as few bits and as little loss.
        The axis of losses is logarithmic above LINEAR, so that it can show 0.
    size: the label of the axis, if the size isn't bits per weight.
    """
    figure, (axes,) = new_figure(height=1.4 + 0.24 * max(len(points), 8))
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=LINEAR, linscale=0.6)
    axes.axhline(0, color=INK, lw=1)
    front = unbeaten(points)
    order = sorted(points, key=lambda name: points[name][1])
    for place, name in enumerate(order):
        height = (place + 0.5) / len(order)
        draw_point(axes, name, points[name], BLUE if name in front else "white", height)
    steps = sorted(points[name][:2] for name in front)
    axes.step(*zip(*steps, strict=True), where="post", color=BLUE, lw=1, ls=":", zorder=0)
    for axis, ticks in ((axes.xaxis, TICKS_OF_SIZE), (axes.yaxis, TICKS_OF_LOSS)):
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_major_formatter("{x:,g}")
        axis.set_minor_locator(NullLocator())
    axes.set_ylim(top=max(axes.get_ylim()[1], 1.5 * LINEAR))
    axes.set(xlabel=size)
    axes.set_title(f"bits per byte lost; logarithmic above {LINEAR:g}")
    axes.grid(axis="y")
    faces = {"unbeaten": BLUE, "another method is as small and loses no more": "white"}
    handles = [
        Line2D([], [], marker="o", ls="", color=BLUE, mfc=face, mew=1.5, label=name)
        for name, face in faces.items()
    ]
    legend_above(figure, handles=handles)
    return figure


def draw_point(axes: Axes, name: str, point: Point, face: str, height: float) -> None:
    """Draw a point with its bar, and a line to its label at this height on the right."""
    bits, lost, error = point
    look: dict[str, Any] = {"color": BLUE, "mfc": face, "mew": 1.5, "ms": 7, "capsize": 3}
    axes.errorbar(bits, lost, error, marker="o", elinewidth=1, **look)
    place: dict[str, Any] = {"textcoords": "axes fraction", "va": "center", "fontsize": 9}
    text = f"{name}: {lost:+.4f}"
    axes.annotate(text, (bits, lost), (1.06, height), arrowprops=LEADER, **place)


def unbeaten(points: Mapping[str, Point]) -> set[str]:
    """Return the methods for which no other has as few bits and as little loss."""
    return {
        name
        for name, (bits, lost, _) in points.items()
        if not any(
            other[0] <= bits and other[1] <= lost and other[:2] != (bits, lost)
            for other in points.values()
        )
    }


# ------------------------------------------------------------------ a slider: bits and the grain

GROUP = 32  # inputs that share a scale
GRAINS = {"tensor": "the matrix", "channel": "each column", "group": f"each group of {GROUP}"}
SCALE_BITS = 16  # of a scale, as kernels keep it
Quantize = Callable[[Float[Tensor, "n_in n_out"], int, str], Float[Tensor, "n_in n_out"]]


def explore_bits(weight: Float[Tensor, "n_in n_out"], quantize: Quantize) -> widgets.VBox:
    """Show `weights_and_grid` with a slider for bits, a choice of grain, and a sentence on both.

    quantize: called with the weight, bits and one of GRAINS; returns the weight that the codes
        stand for.
    """
    options = [(name, grain) for grain, name in GRAINS.items()]
    weight = weight.detach()
    return explore(
        lambda bits, grain: weights_and_grid(weight, quantize(weight, bits, grain), grain),
        slider("bits", 8, start=4, first=2),
        widgets.Dropdown(options=options, value="channel", description="a scale for"),
        words=lambda bits, grain: in_words(weight, quantize(weight, bits, grain), bits, grain),
    )


@shared_look
def weights_and_grid(
    weight: Float[Tensor, "n_in n_out"], rounded: Float[Tensor, "n_in n_out"], grain: str
) -> Picture:
    """Draw a histogram of the weights, and below it the values that column 0 has after rounding.

    If each group has a scale, these are the values of its first group.
    """
    figure, (axes,) = new_figure(height=2.8)
    axes.hist(weight.flatten().tolist(), 80, facecolor=PALE_BLUE, edgecolor=BLUE, lw=0.5)
    top = axes.get_ylim()[1]
    share = rounded[:GROUP, 0] if grain == "group" else rounded[:, 0]
    grid = share.unique().tolist()
    axes.vlines(grid, -0.16 * top, -0.03 * top, color=RED, lw=1.2)
    which = f"the first {GROUP} weights" if grain == "group" else "the weights"
    axes.set_title(f"all weights, and the {len(grid)} values of {which} in column 0 after rounding")
    axes.set(xlabel="value", yticks=[], ylim=(-0.18 * top, top))
    axes.axhline(0, color=GRAY, lw=0.8)
    axes.spines[["left", "bottom"]].set_visible(False)
    return figure


def in_words(
    weight: Float[Tensor, "n_in n_out"],
    rounded: Float[Tensor, "n_in n_out"],
    bits: int,
    grain: str,
) -> str:
    """Describe the error of the weights, and the bytes of codes and scales."""
    error = (rounded - weight).square().mean().sqrt().item()
    typical = weight.square().mean().sqrt().item()
    n_in, n_out = weight.shape
    scales = {"tensor": 1, "channel": n_out, "group": n_out * n_in // GROUP}[grain]
    n_bytes = (bits * weight.numel() + SCALE_BITS * scales) / 8
    return (
        f"With {bits} bits and a scale for {GRAINS[grain]}, a weight is off by {error:.2g}, which "
        f"is {error / typical:.1%} of its size (both as root mean squares). Codes and scales of "
        f"{SCALE_BITS} bits take {n_bytes:,.0f} bytes, {8 * n_bytes / weight.numel():.2f} bits per "
        f"weight; float32 takes {4 * weight.numel():,} bytes."
    )
