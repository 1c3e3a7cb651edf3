"""Pictures for lab 7: the plan step by step, pool and queue over time, texts as they stream out.

A trace has a list for every step: (request, tokens computed, whether a token was sampled) for each
request that the step served. A snapshot after each step has the waiting requests and the number of
blocks of each running one.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby, pairwise
from typing import Any, Protocol

import ipywidgets as widgets
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from visuals.explorer import choice, explore
from visuals.style import (
    BLUE,
    GRAY,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PALE,
    PALE_BLUE,
    PALE_GREEN,
    PALE_ORANGE,
    PALE_PINK,
    PINK,
    RED,
    Picture,
    bare,
    fill,
    legend_above,
    new_figure,
    on_paper,
    shared_look,
    visible,
)

Step = Sequence[tuple[int, int, bool]]
Trace = Sequence[Step]


STRIPES = (PALE_BLUE, PALE_ORANGE, PALE_GREEN, PALE_PINK)


def stripe_of(request: int) -> str:
    """Return a request's color; requests with neighboring numbers differ."""
    return STRIPES[request % len(STRIPES)]


class Request(Protocol):
    number: int


class Manager(Protocol):
    tables: dict[int, list[int]]


class Scheduler(Protocol):
    """The public attributes of a scheduler."""

    waiting: Sequence[Request]
    running: Sequence[Request]
    manager: Manager


@dataclass(frozen=True)
class Snapshot:
    """A scheduler between two steps. waiting: the queue. held: blocks of each running request."""

    waiting: tuple[int, ...]
    held: Mapping[int, int]


def snapshot(scheduler: Scheduler) -> Snapshot:
    """Return the scheduler's current state."""
    tables = scheduler.manager.tables
    return Snapshot(
        tuple(request.number for request in scheduler.waiting),
        {request.number: len(tables[request.number]) for request in scheduler.running},
    )


# --------------------------------------------------------------------------- what a cell shows

PREFILL, DECODE, VERIFY, RECOMPUTE = "prefill", "decode", "verification", "recompute"
NOTHING, PREEMPTED, WAITS = "no tokens", "preempted", "waits"

# Face, edge and hatching: legible without color.
CELLS = {
    PREFILL: (PALE_ORANGE, ORANGE, "////"),
    DECODE: (PALE_BLUE, BLUE, ""),
    VERIFY: (PALE_GREEN, GREEN, "...."),
    RECOMPUTE: (PALE_PINK, PINK, "\\\\\\\\"),
    NOTHING: ("white", GRAY, ""),
    PREEMPTED: ("white", RED, ""),
    WAITS: (PALE, PALE, ""),
}
MARKS = {NOTHING: "–", PREEMPTED: "×", WAITS: "·"}


def kinds(trace: Trace, snapshots: Sequence[Snapshot]) -> Iterator[tuple[int, int, str]]:
    """Yield what each request did in each step until it ended: (step, request, kind).

    Prefill goes up to a request's first token, recompute from a preemption to the next token.
    """
    begun: set[int] = set()  # requests that have gained a token
    again: set[int] = set()  # requests whose keys and values were lost
    for step, (served, after) in enumerate(zip(trace, snapshots, strict=True)):
        computed = {request for request, _, _ in served}
        for request, tokens, sampled in served:
            if request in again:
                yield step, request, RECOMPUTE
            elif request not in begun:
                yield step, request, PREFILL
            else:
                yield step, request, VERIFY if tokens > 1 else DECODE
            if sampled:
                begun.add(request)
                again.discard(request)
        if step:
            again |= preempted(snapshots[step - 1], after)
        for request in after.waiting:
            yield step, request, PREEMPTED if request in again else WAITS
        for request in set(after.held) - computed:
            yield step, request, NOTHING


# ---------------------------------------------------------------------------------- the timeline


CELLS_WIDE = 5.2 * 72  # points for all columns together
SMALLEST = 4  # points; smaller text is left out


@shared_look
def timeline(trace: Trace, snapshots: Sequence[Snapshot], columns: int | None = None) -> Picture:
    """Draw requests as rows and steps as columns; a cell holds the number of tokens computed.

    A number is bold if a token was sampled; a dark edge marks the end of a request. The bottom row
    has the tokens of each step. snapshots: one after each step. columns: the width, in steps.
    """
    cells = list(kinds(trace, snapshots))
    rows = {request: row for row, request in enumerate(sorted({cell[1] for cell in cells}))}
    columns = columns or len(trace)
    served = {(step, one[0]): one for step, line in enumerate(trace) for one in line}
    figure, (axes,) = new_figure(height=1.35 + 0.25 * len(rows))
    for step, request, kind in cells:
        draw_cell(axes, step, rows[request], kind, columns)
        _, tokens, sampled = served.get((step, request), (request, 0, False))
        text = MARKS.get(kind, str(tokens))
        look: dict[str, Any] = {"fontweight": "bold"} if sampled else {}
        if CELLS[kind][2]:  # on a hatching, the number needs a background
            look["bbox"] = {"facecolor": CELLS[kind][0], "edgecolor": "none", "pad": 0.4}
        ink = RED if kind == PREEMPTED else INK
        write(axes, step, rows[request], text, columns, color=ink, **look)
    for request, row in rows.items():
        last = max(step for step, other, _ in cells if other == request)
        if request not in snapshots[last].held and request not in snapshots[last].waiting:
            axes.vlines(last + 1, row + 0.06, row + 0.94, color=INK, lw=2)
    for step, line in enumerate(trace):
        total = sum(tokens for _, tokens, _ in line)
        write(axes, step, len(rows), str(total), columns, color=MUTED)
    names = [*(f"request {request}" for request in rows), "tokens"]
    axes.set_yticks([row + 0.5 for row in range(len(names))], names)
    every = next(n for n in (1, 5, 10, 50, 100, 1000) if columns / n <= 12 or n == 1000)
    ticks = range(1, columns + 1) if every == 1 else [1, *range(every, columns + 1, every)]
    axes.set_xticks([tick - 0.5 for tick in ticks], [str(tick) for tick in ticks])
    axes.set(xlim=(0, columns + 0.1), ylim=(len(names), 0), xlabel="step")
    bare(axes)
    present = {kind for _, _, kind in cells}
    handles = [legend_of(kind) for kind in CELLS if kind in present]
    legend_above(figure, handles=handles, ncols=5, columnspacing=1.2)
    return figure


def draw_cell(axes: Axes, step: int, row: int, kind: str, columns: int) -> None:
    face, edge, hatch = CELLS[kind]
    dense = hatch if columns <= 30 else hatch[:3]
    corner = step + 0.04, row + 0.08
    axes.add_patch(Rectangle(corner, 0.92, 0.84, fc=face, ec=edge, hatch=dense, lw=0.6))


def write(axes: Axes, step: int, row: int, text: str, columns: int, **look: Any) -> None:
    """Write a text in its cell as large as fits, or nothing if that is too small."""
    size = min(8, CELLS_WIDE / columns / (0.62 * len(text) + 0.35))
    if size >= SMALLEST:
        look |= {"ha": "center", "va": "center_baseline", "fontsize": size}
        axes.text(step + 0.5, row + 0.5, text, **look)


def legend_of(kind: str) -> Patch:
    label = f"{kind}  {MARKS[kind]}" if kind in MARKS else kind
    return Patch(label=label, **fill(CELLS[kind]))


class Run(Protocol):
    """A recorded run of an engine."""

    trace: Trace
    snapshots: Sequence[Snapshot]


def explore_runs(name: str, runs: Mapping[int, Run], words: Mapping[int, str]) -> widgets.VBox:
    """Show `timeline` with a slider over recorded runs, and a sentence on each.

    name: what differs between the runs. All share one axis of steps.
    """
    columns = max(len(run.trace) for run in runs.values())

    def draw(key: int) -> Picture:
        return timeline(runs[key].trace, runs[key].snapshots, columns)

    return explore(draw, choice(name, runs), words=lambda key: words[key])


# -------------------------------------------------------------------------------- pool and queue


@shared_look
def pool_and_queue(snapshots: Sequence[Snapshot], num_blocks: int) -> Picture:
    """Draw the held blocks after each step, a numbered stripe per request, and below the queue."""
    steps = range(1, len(snapshots) + 1)
    figure, (pool, queue) = new_figure(height=5.2, rows=2)
    requests = sorted({request for moment in snapshots for request in moment.held})
    bottoms = [0] * len(snapshots)
    for request in requests:
        heights = [moment.held.get(request, 0) for moment in snapshots]
        pool.bar(steps, heights, 1, bottoms, facecolor=stripe_of(request), edgecolor=GRAY, lw=0.4)
        for step in number_places(heights):
            middle = bottoms[step] + heights[step] / 2
            look: dict[str, Any] = {"ha": "center", "va": "center_baseline", "fontsize": 7}
            pool.text(step + 1, middle, str(request), **look)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    pool.axhline(num_blocks, color=INK, lw=1)
    lost = preemptions(snapshots)
    pool.plot(lost, [num_blocks] * len(lost), "x", color=RED, ms=8, mew=2)
    pool.set(ylim=(0, 1.12 * num_blocks))
    share = sum(bottoms) / len(snapshots) / num_blocks
    crosses = "; × preempted" if lost else ""
    pool.set_title(f"blocks held, of {num_blocks}: {share:.0%} on average{crosses}")
    running = [len(moment.held) for moment in snapshots]
    waiting = [len(moment.waiting) for moment in snapshots]
    queue.step(steps, running, where="mid", color=BLUE, label="running")
    queue.step(steps, waiting, where="mid", color=ORANGE, ls="--", label="waiting")
    queue.set(xlabel="step", ylim=(0, 1.1 * max([*running, *waiting, 1])))
    queue.set_title("requests")
    queue.legend(loc="upper right")
    for axes in (pool, queue):
        axes.set_xlim(0.5, len(snapshots) + 0.5)
        axes.grid(axis="y")
    return figure


def number_places(heights: Sequence[int]) -> Iterator[int]:
    """Yield a step for the number of each uninterrupted stripe: the middle of its tallest part."""
    for is_held, run in groupby(range(len(heights)), key=lambda step: heights[step] > 0):
        if is_held:
            steps = list(run)
            tallest = max(heights[step] for step in steps)
            tall = [step for step in steps if heights[step] == tallest]
            yield tall[len(tall) // 2]


def preemptions(snapshots: Sequence[Snapshot]) -> list[int]:
    """Return the steps, from 1, in which a running request was preempted, once for each."""
    return [
        step
        for step, (before, after) in enumerate(pairwise(snapshots), start=2)
        for _ in preempted(before, after)
    ]


def preempted(before: Snapshot, after: Snapshot) -> set[int]:
    return set(before.held) & set(after.waiting)


# ------------------------------------------------------------------------------------ latencies


@shared_look
def show_latencies(ttft: Sequence[float], tpot: Sequence[float | None]) -> Picture:
    """Draw TTFT and TPOT of each request, with the median and the 95th percentile.

    ttft, tpot: in seconds, by the request's number; None for a request with a single token.
    """
    figure, both = new_figure(height=1.5 + 0.2 * len(ttft), columns=2)
    for axes, name, seconds, color in (
        (both[0], "TTFT", ttft, BLUE),
        (both[1], "TPOT", tpot, ORANGE),
    ):
        known = {row: 1000 * s for row, s in enumerate(seconds) if s is not None}
        axes.barh(list(known), list(known.values()), height=0.7, color=color)
        if known:
            p50, p95 = np.percentile(list(known.values()), [50, 95])
            axes.axvline(p50, color=INK, ls="--", lw=1.2)
            axes.axvline(p95, color=INK, ls=":", lw=1.8)
            axes.set_title(f"{name}\np50 {p50:,.0f} (dashed), p95 {p95:,.0f} ms", fontsize=9.5)
        axes.set(ylim=(len(ttft) - 0.4, -0.6), xlabel="ms")
        axes.locator_params(axis="x", nbins=5)
        axes.xaxis.set_major_formatter("{x:,g}")
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x")
    both[0].set_yticks(range(len(ttft)), [f"request {row}" for row in range(len(ttft))])
    both[1].set_yticks([])
    return figure


# ---------------------------------------------------------------------------------- the streams


class Output(Protocol):
    """A request's new tokens from one step."""

    request: int
    new_ids: Sequence[int]
    finish_reason: str | None


LATEST = 24  # pieces shown in the order in which they came
LONGEST = 60  # characters of a prompt


class Streams:
    """Texts that grow on the page: pass `receive` to an engine, and show `widget`."""

    def __init__(
        self, prompts: Sequence[str], words: Callable[[list[int]], str], pause: float = 0
    ) -> None:
        """words: returns the text of some ids. pause: seconds to wait after each output."""
        self.prompts, self.words, self.pause = prompts, words, pause
        self.new_ids: list[list[int]] = [[] for _ in prompts]
        self.reasons: dict[int, str] = {}
        self.latest: list[tuple[int, str]] = []
        self.widget = widgets.HTML()
        self.draw()

    def receive(self, output: Output) -> None:
        """Add a request's output to its text, and show it."""
        self.new_ids[output.request] += output.new_ids
        if output.new_ids:
            piece = self.words(list(output.new_ids))
            self.latest = [*self.latest, (output.request, piece)][-LATEST:]
        if output.finish_reason is not None:
            self.reasons[output.request] = output.finish_reason
        self.draw()
        time.sleep(self.pause)

    def draw(self) -> None:
        rows = "".join(map(self.row, range(len(self.prompts))))
        pieces = "".join(
            f'<span style="background:{stripe_of(request)}; padding:0 3px; '
            f'margin-right:2px; display:inline-block"><small>{request}</small>'
            f"{escape(visible(piece))}</span>"
            for request, piece in self.latest
        )
        latest = f"<b>The latest pieces, in order</b><br>{pieces}"
        html = f'{rows}<div style="margin-top:0.6em">{latest}</div>'
        self.widget.value = on_paper(html, "line-height:1.5")

    def row(self, request: int) -> str:
        """Return a request's row: number, end of the prompt in gray, text, and how it ended."""
        reason, prompt = self.reasons.get(request), self.prompts[request]
        prompt = prompt if len(prompt) <= LONGEST else f"… {prompt[-LONGEST:]}"
        end = f' <b style="color:{BLUE}">■ {escape(reason)}</b>' if reason else ""
        return (
            f'<div style="display:flex; gap:0.6em; border-top:1px solid {PALE}">'
            f'<b style="flex:none; width:1.6em; text-align:right">{request}</b>'
            f'<span style="flex:1"><span style="color:{MUTED}">{escape(prompt)}'
            f"</span>{escape(self.words(self.new_ids[request]))}{end}</span></div>"
        )
