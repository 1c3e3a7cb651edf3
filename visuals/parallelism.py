"""Pictures for lab 18: a ring step by step, cut weights, pipelines over time, what a wire costs.

Each function draws only its arguments, and returns a figure or a widget.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Protocol

import ipywidgets as widgets
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from torch import Tensor

from visuals.explorer import explore, slider
from visuals.style import (
    BLUE,
    EMPTY,
    GRAY,
    GREEN,
    ORANGE,
    PALE,
    PALE_GREEN,
    PALE_ORANGE,
    RANKS,
    SKY,
    Look,
    Picture,
    bare,
    draw_bars,
    draw_legend,
    fill,
    legend_above,
    name_rows,
    new_figure,
    shared_look,
    write,
)

WHOLE = "on every rank"
NEITHER: Look = (PALE, GRAY, "++")  # on some ranks, or on none

# ------------------------------------------------------------------------------- steps of a ring

PARTIAL, COMPLETE = "sum of some ranks", "complete sum"
SUMS: dict[str, Look] = {PARTIAL: ("white", ORANGE, ""), COMPLETE: (PALE_GREEN, GREEN, "")}


def inside(number: float, size: int) -> tuple[int, list[int]]:
    """Return which part a number belongs to, and which ranks' numbers are in the sum."""
    bits = [bit for bit in range(size * size) if int(number) >> bit & 1]
    return bits[0] // size, [bit % size for bit in bits]


@shared_look
def show_ring(sent: Sequence[Sequence[float]]) -> Picture:
    """Draw what each rank sends in each step: the part, and whose numbers are in the sum.

    sent: for each rank the numbers it has sent, in order. Rank r began with the number
        2 ** (size * part + r) in each part, so that a sum says what is in it.
    """
    size, steps = len(sent), max(map(len, sent))
    figure, (axes,) = new_figure(height=1.1 + 0.48 * size)
    for rank, numbers in enumerate(sent):
        for step, number in enumerate(numbers):
            part, ranks = inside(number, size)
            look = SUMS[COMPLETE if len(ranks) == size else PARTIAL]
            axes.add_patch(Rectangle((step - 0.46, rank - 0.36), 0.92, 0.72, **fill(look)))
            write(axes, step, rank, f"part {part}\n{'+'.join(map(str, ranks))}", fontsize=8)
    name_rows(axes, [f"rank {rank} sends" for rank in range(size)])
    axes.set_xticks(range(steps), [f"T{step + 1}" for step in range(steps)])
    axes.set_xlim(-0.6, steps - 0.4)
    bare(axes)
    draw_legend(figure, SUMS)
    return figure


# --------------------------------------------------------------------------------- cut matrices

GAP = 4  # between matrices, in columns
WIDEST = 62  # columns in a line of matrices


def owners(whole: Tensor, parts: Sequence[Tensor]) -> list[list[int | None]]:
    """Return which rank holds each number of a matrix: -1 for all of them, None for none or some.

    whole: a matrix whose numbers all differ. parts: what each rank holds of it.
    """
    holding: dict[float, list[int]] = {number: [] for number in whole.flatten().tolist()}
    for rank, part in enumerate(parts):
        for number in part.flatten().tolist():
            holding[number].append(rank)

    def owner(ranks: list[int]) -> int | None:
        if len(parts) > 1 and len(ranks) == len(parts):
            return -1
        return ranks[0] if len(ranks) == 1 else None

    return [[owner(holding[number]) for number in row] for row in whole.tolist()]


def blocks(table: Sequence[Sequence[Any]]) -> Iterator[tuple[int, int, int, int, Any]]:
    """Yield rectangles of equal entries: the first column and row, width, height, the entry."""
    row = 0
    for line, same in groupby(map(tuple, table)):
        height, column = len(list(same)), 0
        for entry, cells in groupby(line):
            width = len(list(cells))
            yield column, row, width, height, entry
            column += width
        row += height


@shared_look
def show_cuts(whole: Mapping[str, Tensor], parts: Sequence[Mapping[str, Tensor]]) -> Picture:
    """Draw weight matrices as rectangles [in, out], filled by the rank that holds each number.

    whole: matrices by name, the numbers of each all different. parts: what each of up to four ranks
        holds, under the same names.
    """
    figure, (axes,) = new_figure(height=4.0)
    left, top, lowest, names = 0, 0, 0, list(whole)
    for name in names:
        rows, columns = whole[name].shape
        if left and left + columns > WIDEST:
            left, top = 0, lowest + 5
        table = owners(whole[name], [part[name] for part in parts])
        for x, y, width, height, entry in blocks(table):
            look = EMPTY if entry == -1 else NEITHER if entry is None else RANKS[entry]
            axes.add_patch(Rectangle((left + x, top + y), width, height, **fill(look)))
        label = name.removesuffix(".weight")
        axes.text(left, top - 0.7, label, fontsize=8, va="bottom")
        lowest, left = max(lowest, top + rows), left + columns + GAP
    axes.set(xlim=(-1, WIDEST), ylim=(lowest + 1, -3.5), xticks=[], yticks=[])
    bare(axes)
    looks = {f"rank {rank}": RANKS[rank] for rank in range(len(parts))}
    draw_legend(figure, looks | {WHOLE: EMPTY})
    return figure


# ----------------------------------------------------------------------------- pipelines over time

KINDS: dict[str, Look] = {
    "forward": ("white", BLUE, ""),
    "backward": (PALE_ORANGE, ORANGE, ""),
    "idle": EMPTY,
}
LONGEST = 36  # units of time in which a number fits into each box


class Run(Protocol):
    """One forward ("F") or backward ("B") of a microbatch through a stage, and when."""

    @property
    def stage(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def microbatch(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


class Replay(Protocol):
    """A schedule run on paper; live: the most microbatches that each stage holds at once."""

    @property
    def runs(self) -> Sequence[Run]: ...
    @property
    def live(self) -> Sequence[int]: ...
    @property
    def makespan(self) -> int: ...
    @property
    def idle(self) -> float: ...


@shared_look
def show_pipelines(replays: Mapping[str, Replay]) -> Picture:
    """Draw schedules over time, a panel for each: stages are rows, numbers are microbatches."""
    rows = sum(len(replay.live) for replay in replays.values())
    height = 0.9 + 0.55 * len(replays) + 0.26 * rows
    figure, panels = new_figure(height=height, rows=len(replays))
    longest = max(replay.makespan for replay in replays.values())
    for axes, (name, replay) in zip(panels, replays.items(), strict=True):
        draw_pipeline(axes, replay, is_numbered=longest <= LONGEST)
        live = ", ".join(map(str, replay.live))
        axes.set_title(f"{name}: idle {replay.idle:.1%}; live microbatches: {live}", fontsize=9)
        axes.set_xlim(-0.003 * longest, 1.003 * longest)  # room for the outermost edges
        axes.locator_params(axis="x", integer=True)
    panels[-1].set_xlabel("time; a forward takes 1, a backward 2")
    draw_legend(figure, KINDS)
    return figure


def draw_pipeline(axes: Axes, replay: Replay, is_numbered: bool) -> None:
    """Draw the runs of a schedule, over a row for each stage that is hatched where it is idle."""
    for stage in range(len(replay.live)):
        row = (0, stage - 0.4), replay.makespan, 0.8
        axes.add_patch(Rectangle(*row, lw=0.6, **fill(KINDS["idle"])))
    for run in replay.runs:
        look = KINDS["forward" if run.kind == "F" else "backward"]
        corner, width = (run.start, run.stage - 0.4), run.end - run.start
        axes.add_patch(Rectangle(corner, width, 0.8, lw=0.8, **fill(look)))
        if is_numbered:
            middle = (run.start + run.end) / 2
            write(axes, middle, run.stage, str(run.microbatch), fontsize=7)
    name_rows(axes, [f"stage {stage}" for stage in range(len(replay.live))])
    axes.spines[:].set_visible(False)


def explore_pipeline(replay: Callable[[int, int, str], Replay]) -> widgets.VBox:
    """Show both kinds of schedule, with sliders for the stages and the microbatches.

    replay: runs the schedule for so many stages, microbatches and a kind on paper.
    """

    def both(stages: int, microbatches: int) -> dict[str, Replay]:
        return {kind: replay(stages, microbatches, kind) for kind in ("gpipe", "1f1b")}

    def draw(stages: int, microbatches: int) -> Picture:
        return show_pipelines(both(stages, microbatches))

    def sentence(stages: int, microbatches: int) -> str:
        one, other = both(stages, microbatches).values()
        return (
            f"{one.makespan} units of time: stages are idle for <b>{one.idle:.1%}</b> of it. "
            f"That is {one.idle / (1 - one.idle):.1%} of the time in which they work. "
            f"Stage 0 holds {one.live[0]} (gpipe) and {other.live[0]} (1f1b) microbatches."
        )

    stages, microbatches = slider("stages", 6, 4, first=1), slider("microbatches", 16, 8, first=1)
    microbatches.style.description_width = "initial"
    return explore(draw, stages, microbatches, words=sentence)


# ---------------------------------------------------------------------------- nano-batches in time


class Operation(Protocol):
    """One operation of a nano-batch, the resource that it keeps busy, and when."""

    @property
    def batch(self) -> int: ...
    @property
    def resource(self) -> str: ...
    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float: ...


@shared_look
def show_timelines(timelines: Mapping[str, Sequence[Operation]], unit: str = "") -> Picture:
    """Draw what each resource does over time, a panel for each timeline: resources are rows.

    timelines: by their titles, of up to four nano-batches each. unit: of the times.
    """
    rows = list(dict.fromkeys(run.resource for runs in timelines.values() for run in runs))
    height = 0.9 + len(timelines) * (0.55 + 0.26 * len(rows))
    figure, panels = new_figure(height=height, rows=len(timelines))
    longest = max(run.end for runs in timelines.values() for run in runs)
    for axes, (title, runs) in zip(panels, timelines.items(), strict=True):
        for run in runs:
            corner = run.start, rows.index(run.resource) - 0.4
            look = fill(RANKS[run.batch])
            axes.add_patch(Rectangle(corner, run.end - run.start, 0.8, lw=0.8, **look))
        axes.set_title(title, fontsize=9)
        name_rows(axes, rows)
        axes.set_xlim(-0.003 * longest, 1.003 * longest)
        axes.spines[:].set_visible(False)
    panels[-1].set_xlabel(f"time{unit and f', {unit}'}")
    batches = sorted({run.batch for runs in timelines.values() for run in runs})
    draw_legend(figure, {f"nano-batch {batch}": RANKS[batch] for batch in batches})
    return figure


# -------------------------------------------------------------------------- what is sent, and when


@shared_look
def show_bytes(per_token: Mapping[str, float]) -> Picture:
    """Draw the bytes that a rank puts on the wire for each token, a bar for each cut."""
    figure, (axes,) = new_figure(height=2.6)
    draw_bars(axes, per_token, "{:,.0f}".format, *RANKS)
    axes.set_title("bytes per token and rank, in a forward pass")
    return figure


STEPS = 40  # of the curve


@shared_look
def wire_curve(alpha: float, beta: float, points: Mapping[float, float]) -> Picture:
    """Draw how long a call takes by the bytes it sends: the model's curve, and measured points.

    alpha: seconds per call. beta: seconds per byte. points: seconds, by bytes.
    """
    figure, (axes,) = new_figure(height=3.2)
    first, last = min(points), max(points)
    sizes = [first * (last / first) ** (step / STEPS) for step in range(STEPS + 1)]
    curve = [1000 * (alpha + beta * size) for size in sizes]
    axes.plot(sizes, curve, color=BLUE, lw=2, label="α + β × bytes")
    measured = [1000 * took for took in points.values()]
    axes.plot(list(points), measured, "s", color=ORANGE, label="measured")
    axes.axhline(1000 * alpha, color=GRAY, ls=":", lw=1.5, label="α alone")
    axes.axvline(alpha / beta, color=SKY, ls="--", lw=1.5, label="as long for α as for the bytes")
    axes.set(xscale="log", yscale="log", xlabel="bytes on the wire", title="milliseconds per call")
    axes.minorticks_off()
    every = list(points)[::2]
    axes.set_xticks(every, [f"{size / 1024:,.0f} KB" for size in every])
    low, high = min([*curve, *measured]), max([*curve, *measured])
    ticks = [n * 10**power for power in range(-4, 4) for n in (1, 2, 5)]
    ticks = [tick for tick in ticks if low / 2 <= tick <= 2 * high]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.grid(axis="y")
    legend_above(figure)
    return figure
