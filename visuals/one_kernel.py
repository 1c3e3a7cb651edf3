"""Pictures for lab 21: a step's operations, shares of threads, e^x by its parts, equal bits.

Each function draws only its arguments, and returns a figure or a widget.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import ipywidgets as widgets
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from timing.operations import (
    ATTENTION,
    KERNEL,
    PRODUCTS,
    PYTHON,
    REST,
    Event,
    called_from_python,
    kind_of,
)
from visuals.explorer import explore, fine_slider
from visuals.style import (
    BLUE,
    EMPTY,
    GRAY,
    GREEN,
    INK,
    ORANGE,
    PALE,
    PALE_BLUE,
    PALE_GREEN,
    PALE_ORANGE,
    PALE_PINK,
    PINK,
    PLAIN,
    RANKS,
    RED,
    Look,
    Picture,
    bare,
    draw_legend,
    fill,
    legend_above,
    name_rows,
    new_figure,
    shared_look,
    write,
    write_behind,
)

# ------------------------------------------------------------------------------ where a step goes

FLOOR: Look = PALE, INK, ""
KINDS: dict[str, Look] = {
    PRODUCTS: (PALE_BLUE, BLUE, ""),
    ATTENTION: (PALE_ORANGE, ORANGE, "////"),
    KERNEL: (PALE_PINK, PINK, "xxxx"),
    REST: (PALE_GREEN, GREEN, "...."),
    PYTHON: ("white", GRAY, ""),
}


@shared_look
def show_strip(events: Sequence[Event], floor: float) -> Picture:
    """Draw one step as a strip, colored by what runs; above it the floor, below it the sums.

    events: name, start and end of a thread's operations in µs, as the profiler has them. While an
    operation runs another one, only the inner one counts; Python runs where the strip is white.
    floor: the µs that the step can't fall below.
    """
    pieces = [piece for piece in pieces_of(events) if piece[2] > piece[1]]
    start = min(event[1] for event in events)
    length = max(event[2] for event in events) - start
    figure, (axes,) = new_figure(height=2.6)
    axes.barh(0, floor, 0.7, **fill(FLOOR))
    write_behind(axes, floor, 0, f"{floor:,.0f} µs")
    axes.barh(1, length, 0.7, **fill(KINDS[PYTHON]))
    sums: dict[str, float] = {}
    for kind, look in KINDS.items():
        spans = [(first - start, last - first) for its, first, last in pieces if its == kind]
        if spans:
            sums[kind] = sum(took for _, took in spans)
            color = "none" if kind == PYTHON else look[1]
            axes.broken_barh(spans, (0.65, 0.7), facecolor=color, edgecolor="none")
    write_behind(axes, length, 1, f"{length:,.0f} µs")
    for row, (kind, took) in enumerate(sums.items(), start=2):
        axes.barh(row, took, 0.7, **fill(KINDS[kind]))
        write_behind(axes, took, row, f"{took:,.0f} µs, {took / length:.0%}")
    name_rows(axes, ["floor", "one step", *sums])
    axes.spines["left"].set_visible(False)
    axes.set(xlim=(0, 1.25 * max(length, floor)), xlabel="µs; the profiler's own time is in them")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    calls = len(called_from_python(events))
    axes.set_title(f"{len(events):,} operations, {calls:,} of them called from Python")
    return figure


def pieces_of(events: Sequence[Event]) -> Iterator[tuple[str, float, float]]:
    """Yield the kind, start and end of each stretch of time; some have no length."""
    end = max(event[2] for event in events)
    calls = sorted(events, key=lambda event: (event[1], -event[2]))
    running, now = [(PYTHON, math.inf)], calls[0][1]  # innermost last
    for name, start, stop in [*calls, ("", end, end)]:
        while running[-1][1] <= start:
            kind, until = running.pop()
            yield kind, now, until
            now = until
        yield running[-1][0], now, start
        now = start
        running.append((kind_of(name), stop))


# ------------------------------------------------------------------------------- rows of weights

LEAST = 0.18  # inches of a stripe that has room for a text


@shared_look
def show_rows(taken: Sequence[tuple[int, int, int]]) -> Picture:
    """Draw rows of weights as stripes, filled by the thread that took their share.

    taken: for each share its first row, the row after its last, and the thread, in the order of
    taking. Rows that no thread took are hatched in gray.
    """
    height, n_rows = min(0.3 * max(len(taken), 2), 4.2), max(last for _, last, _ in taken)
    figure, (axes,) = new_figure(height=height + 0.8)
    axes.add_patch(Rectangle((0, 0), 1, n_rows, **fill(EMPTY)))
    rows: dict[int, int] = {}
    for turn, (first, last, thread) in enumerate(taken, start=1):
        look = RANKS[thread % len(RANKS)]
        axes.add_patch(Rectangle((0, first), 1, last - first, **fill(look)))
        rows[thread] = rows.get(thread, 0) + last - first
        if (last - first) / n_rows * height >= LEAST:
            text = f"{turn}. thread {thread}"
            write(axes, 0.5, (first + last) / 2, text, fontsize=8, bbox=PLAIN)
    edges = sorted({edge for first, last, _ in taken for edge in (first, last)})
    axes.set_yticks(edges[:: -(-len(edges) // 16)])
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set(xlim=(-0.01, 1.01), ylim=(1.01 * n_rows, -0.01 * n_rows), xticks=[], ylabel="row")
    axes.set_title(f"{n_rows:,} rows of weights, shares numbered as they were taken")
    bare(axes)
    looks = {f"thread {n}: {rows[n]:,} rows": RANKS[n % len(RANKS)] for n in sorted(rows)}
    draw_legend(figure, looks)
    return figure


# ----------------------------------------------------------------------------- two threads at work

THREADS = 2
WORKS, WAITS, STOPPED = "works on a share", "waits", "stopped by the system"
STATES: dict[str, Look] = {
    WORKS: (PALE_BLUE, BLUE, ""),
    WAITS: ("white", GRAY, "////"),
    STOPPED: (PALE_ORANGE, RED, "xxxx"),
}
NARROW = 0.03  # of the whole time: a share without room for its number

Phases = Sequence[Sequence[float]]  # milliseconds of each share, by phase
Span = tuple[float, float]
Run = tuple[int, int, float, float]  # thread, share, start and end
NEVER: Span = math.inf, math.inf


def show_threads(fixed: Phases, taken: Phases) -> widgets.VBox:
    """Show `threads` with sliders for the moment at which thread 1 is stopped, and for how long."""
    _, [*_, length] = simulated(fixed, NEVER, are_taken=False)
    step = 10 ** math.floor(math.log10(length / 10))
    at = fine_slider("thread 1 stops at (ms)", 0, length, step, 0)
    stopped = fine_slider("for (ms)", 0, 2 * length, step, length)
    for control in (at, stopped):
        control.style.description_width = "initial"
    return explore(lambda at, ms: threads(fixed, taken, at, ms), at, stopped)


@shared_look
def threads(fixed: Phases, taken: Phases, at: float, stopped: float) -> Picture:
    """Draw two threads over the phases of a layer: with fixed shares, and with taken ones.

    fixed: the ms of each thread's share, by phase. taken: the ms of shares that belong to no
    thread, and that each takes when it is free. A phase, up to a dotted line, ends when all its
    shares are done. at, stopped: when the system stops thread 1, and for how many ms.
    """
    stop = at, at + stopped
    runs = {
        "fixed shares": simulated(fixed, stop, are_taken=False),
        "taken shares": simulated(taken, stop, are_taken=True),
    }
    longest = max(ends[-1] for _, ends in runs.values())
    figure, panels = new_figure(height=3.3, rows=2)
    for axes, (name, (shares, ends)) in zip(panels, runs.items(), strict=True):
        draw_threads(axes, shares, ends, stop, longest)
        works = sum(end - start for thread, _, start, end in shares if thread == 0)
        waits = round(ends[-1] - works, 9)  # without the rounding errors of the sum
        axes.set_title(f"{name}: {ends[-1]:.3g} ms; thread 0 waits for {waits:.3g} of them")
    panels[-1].set_xlabel("ms")
    draw_legend(figure, STATES)
    return figure


def simulated(phases: Phases, stop: Span, are_taken: bool) -> tuple[list[Run], list[float]]:
    """Return when each thread works on which share, and when each phase ends.

    A fixed share has the number of its thread. The first free thread takes one that isn't fixed.
    """
    runs, ends, now = list[Run](), list[float](), 0.0
    for shares in phases:
        free = [now] * THREADS
        for share, ms in enumerate(shares):
            is_stopped = stop[0] <= free[1] < stop[1]
            ready = [free[0], stop[1] if is_stopped else free[1]]
            thread = ready.index(min(ready)) if are_taken else share
            spans = spans_of(ready[thread], ms, stop if thread else NEVER)
            runs += [(thread, share, *span) for span in spans]
            free[thread] = spans[-1][1]
        now = max(free)
        ends.append(now)
    return runs, ends


def spans_of(start: float, ms: float, stop: Span) -> list[Span]:
    """Return when a thread works on a share: in two parts if it is stopped meanwhile."""
    at, on = stop
    if start < at < start + ms and at < on:
        return [(start, at), (on, on + start + ms - at)]
    return [(start, start + ms)]


def draw_threads(
    axes: Axes, runs: Sequence[Run], ends: Sequence[float], stop: Span, longest: float
) -> None:
    def draw(thread: int, start: float, end: float, state: str) -> None:
        box = (start, thread - 0.38), end - start, 0.76
        axes.add_patch(Rectangle(*box, lw=0.8, **fill(STATES[state])))

    for thread in range(THREADS):
        draw(thread, 0, ends[-1], WAITS)
    if stop[0] < min(stop[1], ends[-1]):
        draw(1, stop[0], min(stop[1], ends[-1]), STOPPED)
    for thread, share, start, end in runs:
        draw(thread, start, end, WORKS)
        if end - start > NARROW * longest:
            write(axes, (start + end) / 2, thread, str(share), fontsize=8)
    for end in ends:
        axes.axvline(end, color=INK, lw=1, ls=":")
    name_rows(axes, [f"thread {thread}" for thread in range(THREADS)])
    axes.set_xlim(-0.003 * longest, 1.003 * longest)  # room for the outermost edges
    axes.spines[:].set_visible(False)


# ----------------------------------------------------------------------------- e^x as 2^n times 2^f


@shared_look
def show_exponential(
    x: Float[np.ndarray, " n"], ours: Float[np.ndarray, " n"], exact: Float[np.ndarray, " n"]
) -> Picture:
    """Draw e^x with the nearest powers of two, what is left as a factor, and the relative error.

    x: ascending. ours, exact: e^x as computed, and in float64.
    """
    numbers, computed = np.asarray(x, np.float64), np.asarray(ours, np.float64)
    powers = 2 ** np.floor(numbers * math.log2(math.e) + 0.5)
    errors = computed / exact - 1
    figure, (whole, factor, error) = new_figure(height=4.6, rows=3)
    whole.plot(numbers, exact, color=BLUE, lw=2, label="e^x")
    whole.plot(numbers, powers, "--", color=ORANGE, lw=1.5, label="2^n, the nearest power of two")
    whole.set_yscale("log", base=2)
    whole.yaxis.set_major_formatter("{x:.3g}")
    whole.minorticks_off()
    factor.plot(numbers, exact / powers, color=GREEN, lw=1.5)
    factor.axhline(1, color=GRAY, lw=0.8)
    factor.set_title("2^f = e^x / 2^n: for the polynomial", fontsize=9)
    error.plot(numbers, errors, color=INK, lw=0.8)
    error.axhline(0, color=GRAY, lw=0.8)
    error.yaxis.set_major_formatter("{x:.1e}")
    error.locator_params(axis="y", nbins=3)
    largest = np.abs(errors).max()
    error.set_title(f"relative error; the largest is {largest:.1e}", fontsize=9)
    error.set_xlabel("x")
    for axes in (whole, factor, error):
        axes.grid(axis="y")
    legend_above(figure)
    return figure


# -------------------------------------------------------------------------------------- equal bits

SAME, OTHER = "the bits that it has alone", "other bits"
BITS: dict[str, Look] = {SAME: (PALE_BLUE, BLUE, ""), OTHER: ("white", RED, "////")}


@shared_look
def show_bits(found: Mapping[int, Sequence[bool]]) -> Picture:
    """Draw whether each row of a batch has the bits that it has alone.

    found: for each batch size, whether each of its rows does.
    """
    rows = max(map(len, found.values()))
    figure, (axes,) = new_figure(height=1.3 + min(0.2 * rows, 4.2))
    for column, equal in enumerate(found.values()):
        for row, is_equal in enumerate(equal):
            look = fill(BITS[SAME if is_equal else OTHER])
            axes.add_patch(Rectangle((column - 0.46, row - 0.42), 0.92, 0.84, lw=0.6, **look))
    axes.set_xticks(range(len(found)), [str(size) for size in found])
    axes.set_yticks(range(0, rows, -(-rows // 16)))
    axes.set(xlim=(-0.6, len(found) - 0.4), ylim=(rows - 0.4, -0.6))
    axes.set(xlabel="rows in the batch", ylabel="row")
    bare(axes)
    cells = [bool(is_equal) for equal in found.values() for is_equal in equal]
    axes.set_title(f"{sum(cells):,} of {len(cells):,} rows have the bits that they have alone")
    draw_legend(figure, BITS)
    return figure
