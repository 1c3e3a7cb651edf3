"""Pictures for lab 3: a padded batch, the batch timeline, the slots, throughput against latency.

A trace is the record of a batching loop: for every step and every slot, the number of the request
that the slot served, or None. Requests are numbered from 0; the pictures call the first one S1.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Protocol

import ipywidgets as widgets
from jaxtyping import Bool, Int
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.patches import Rectangle
from torch import Tensor

from visuals.explorer import choice, explore
from visuals.style import (
    BLUE,
    EMPTY,
    GRAY,
    GREEN,
    INK,
    ORANGE,
    PALE,
    PINK,
    RED,
    RING,
    SKY,
    Picture,
    bare,
    fill,
    new_figure,
    shared_look,
    visible,
    write,
)

Trace = Sequence[Sequence[int | None]]


def pastel(color: str) -> tuple[float, ...]:
    """Mix a color with white, so that black text on it is readable."""
    return tuple(0.45 * part + 0.55 for part in to_rgb(color))


# Seven, so that consecutive requests in a slot differ in color: in static batches of 2, 4, 8 or 16
# their numbers are that far apart.
CALM = [pastel(color) for color in (BLUE, ORANGE, GREEN, PINK, SKY, RED, GRAY)]


def draw_idle(axes: Axes, column: float, row: float, width: float = 1) -> None:
    """Draw `width` hatched cells, starting at `column`."""
    axes.add_patch(Rectangle((column, row), width, 1, lw=0, **fill(EMPTY)))


# --------------------------------------------------------------------------- a padded batch


@shared_look
def show_padding(
    input_ids: Int[Tensor, "batch seq"],
    attention_mask: Bool[Tensor, "batch seq"],
    position_ids: Int[Tensor, "batch seq"],
    decode: Callable[[list[int]], str],
) -> Picture:
    """Draw the padded rectangle: a token and its position in each cell, pads hatched."""
    batch, seq = input_ids.shape
    figure, (axes,) = new_figure(height=0.9 + 0.55 * batch)
    for row in range(batch):
        for column in range(seq):
            token, position = int(input_ids[row, column]), int(position_ids[row, column])
            if attention_mask[row, column]:
                axes.add_patch(Rectangle((column, row), 1, 1, fc=CALM[0], ec="white", lw=2))
                text, color = visible(decode([token])), INK
            else:
                draw_idle(axes, column, row)
                text, color = "pad", GRAY
            size = min(9, 80 / seq)
            write(axes, column + 0.5, row + 0.36, text, fontsize=size, color=color)
            write(axes, column + 0.5, row + 0.74, str(position), fontsize=0.9 * size, color=color)
    axes.set(xlim=(0, seq), ylim=(batch, 0), xlabel="column (in each cell: token and position)")
    axes.set_xticks([column + 0.5 for column in range(seq)], [str(c) for c in range(seq)])
    axes.set_yticks([row + 0.5 for row in range(batch)], [f"row {row}" for row in range(batch)])
    bare(axes)
    pads = int((~attention_mask).sum())
    axes.set_title(f"{batch} × {seq} = {batch * seq} cells, {pads} of them pads")
    return figure


@shared_look
def show_padded_mask(
    mask: Bool[Tensor, "batch 1 q_len k_len"], attention_mask: Bool[Tensor, "batch k_len"]
) -> Picture:
    """Draw the mask of each row of a padded batch: a dot where the query sees the key.

    Pads are hatched. The queries are the last q_len of the k_len columns; queries that are pads are
    labeled so.
    """
    batch, _, q_len, k_len = mask.shape
    figure, all_axes = new_figure(height=max(1.7, 0.9 + 6.0 / batch * q_len / k_len), columns=batch)
    for row, axes in enumerate(all_axes):
        seen = mask[row, 0]
        axes.pcolormesh(
            seen.int(), cmap=ListedColormap(["white", BLUE]), vmin=0, vmax=1, edgecolors=PALE
        )
        queries, keys = seen.nonzero(as_tuple=True)
        axes.scatter(keys + 0.5, queries + 0.5, s=6, color="white")
        for column in (~attention_mask[row]).nonzero().flatten().tolist():
            for query in (~seen[:, column]).nonzero().flatten().tolist():
                draw_idle(axes, column, query)
        axes.set(xlim=(0, k_len), ylim=(q_len, 0), aspect="equal")
        axes.set(title=f"row {row}", xlabel="key, column")
        axes.set_xticks([c + 0.5 for c in range(0, k_len, 2)], [str(c) for c in range(0, k_len, 2)])
        is_token = attention_mask[row, k_len - q_len :].tolist()
        names = [f"{'' if is_token[q] else 'pad '}{k_len - q_len + q}" for q in range(q_len)]
        axes.set_yticks([q + 0.5 for q in range(q_len)], names)
        bare(axes)
    all_axes[0].set_ylabel("query, column")
    return figure


# ------------------------------------------------------------------------- the batch timeline

MOST_COLUMNS = 24  # up to here every cell has its own label


def runs(trace: Trace, slot: int) -> Iterator[tuple[int, int, int | None]]:
    """Yield the stretches in which a slot served one request, or none: (first step, steps,
    request)."""
    start = 0
    for request, steps in groupby(step[slot] for step in trace):
        length = len(list(steps))
        yield start, length, request
        start += length


def served(trace: Trace) -> tuple[int, int]:
    """Return how many cells of the timeline served a request, and how many cells there are."""
    cells = [request is not None for step in trace for request in step]
    return sum(cells), len(cells)


@shared_look
def timeline(trace: Trace) -> Picture:
    """Draw a trace: rows are slots, columns are steps, cells hold the request served.

    Hatched cells served no request.
    """
    return timelines({"": trace})


@shared_look
def timelines(traces: Mapping[str, Trace]) -> Picture:
    """Draw several traces of the same requests below one another, on one axis of steps.

    The last step of a request is marked END if there is room, and always has a thick edge.
    """
    columns = max(len(trace) for trace in traces.values())
    slots = max(len(trace[0]) for trace in traces.values())
    each = 0.75 + slots * (0.36 if columns <= MOST_COLUMNS else 0.22)
    figure, all_axes = new_figure(height=0.2 + each * len(traces), rows=len(traces))
    for axes, (name, trace) in zip(all_axes, traces.items(), strict=True):
        draw_timeline(axes, trace, columns)
        count, cells = served(trace)
        title = f"{len(trace)} steps, {count} of {cells} cells in use: {count / cells:.0%}"
        axes.set_title(f"{name}: {title}" if name else title)
    return figure


def draw_timeline(axes: Axes, trace: Trace, columns: int) -> None:
    slots = len(trace[0])
    for slot in range(slots):
        for start, length, request in runs(trace, slot):
            if request is None:
                draw_idle(axes, start, slot, length)
            else:
                draw_run(axes, slot, start, length, request, columns)
    if columns <= MOST_COLUMNS:
        ticks = list(range(1, columns + 1))
    else:
        every = next(n for n in (5, 10, 20, 50, 100, 1000) if columns / n <= 12)
        ticks = [1, *range(every, columns + 1, every)]
    axes.set_xticks([tick - 0.5 for tick in ticks], [f"T{tick}" for tick in ticks])
    axes.set_yticks([s + 0.5 for s in range(slots)], [str(s) for s in range(slots)])
    axes.set(xlim=(0, columns), ylim=(slots, 0), ylabel="slot")
    bare(axes)


def draw_run(axes: Axes, slot: int, start: int, length: int, request: int, columns: int) -> None:
    """Draw one request in its slot: a bar with white seams, its name, and its end."""
    end, name = start + length, f"S{request + 1}"
    color = CALM[request % len(CALM)]
    axes.add_patch(Rectangle((start, slot + 0.04), length, 0.92, fc=color, ec="white", lw=0.5))
    if columns <= MOST_COLUMNS:
        axes.vlines(range(start + 1, end), slot + 0.04, slot + 0.96, color="white", lw=1)
        size = min(9, 110 / columns)
        for step in range(start, end - 1):
            write(axes, step + 0.5, slot + 0.5, name, fontsize=size)
        last = f"{name}\nEND"
        write(axes, end - 0.5, slot + 0.5, last, fontsize=0.85 * size, fontweight="bold")
    elif 65 * length / columns >= len(name):  # about 65 letters fit in a row
        write(axes, start + length / 2, slot + 0.5, name, fontsize=8)
    axes.vlines(end, slot + 0.04, slot + 0.96, color=INK, lw=2, clip_on=False)


# ---------------------------------------------------------------------------------- the slots


class Slots(Protocol):
    lengths: Tensor
    max_length: int


@shared_look
def show_slots(kv_cache: Slots) -> Picture:
    """Draw how much of each slot holds tokens; the reserved, empty part is hatched."""
    lengths = kv_cache.lengths.tolist()
    held, reserved = sum(lengths), len(lengths) * kv_cache.max_length
    figure, (axes,) = new_figure(height=0.9 + 0.3 * len(lengths))
    for slot, length in enumerate(lengths):
        draw_idle(axes, length, slot + 0.1, kv_cache.max_length - length)
        axes.barh(slot + 0.5, length, height=0.8, color=CALM[0])
        axes.text(length, slot + 0.5, f" {length}", va="center", fontsize=9)
    axes.set_yticks([s + 0.5 for s in range(len(lengths))], [str(s) for s in range(len(lengths))])
    axes.set(xlim=(0, kv_cache.max_length), ylim=(len(lengths), 0), xlabel="tokens", ylabel="slot")
    bare(axes)
    axes.set_title(
        f"{held} tokens held, room for {reserved} reserved: {held / reserved:.0%} in use"
    )
    return figure


# ------------------------------------------------------------------ throughput against latency


@shared_look
def throughput_and_latency(seconds: Mapping[int, float], chosen: int | None = None) -> Picture:
    """Draw tokens a second of the whole batch, and milliseconds a token for each request.

    seconds: the time of one decode step, by batch size; the smallest size is the baseline.
    chosen: a batch size to highlight.
    """
    batches = sorted(seconds)
    smallest = batches[0]
    throughput = [batch / seconds[batch] for batch in batches]
    tpot = [1000 * seconds[batch] for batch in batches]
    alone = smallest / seconds[smallest]
    figure, (left, right) = new_figure(height=3.1, columns=2)
    left.plot(batches, throughput, "o-", color=BLUE)
    free = [alone * batch / smallest for batch in batches]
    left.plot(batches, free, "--", color=GRAY, label="if requests cost no time")
    left.set(title="tokens a second, all requests", ylim=(0, 1.25 * max(throughput)))
    left.yaxis.set_major_formatter("{x:,.0f}")
    right.plot(batches, tpot, "o-", color=ORANGE)
    right.axhline(2 * tpot[0], color=GRAY, linestyle="--", label=f"twice that of batch {smallest}")
    right.set(title="TPOT: ms a token, each request", ylim=(0, 1.15 * max([2 * tpot[0], *tpot])))
    for axes, values in ((left, throughput), (right, tpot)):
        axes.set(xlabel="requests in the batch", xlim=(0, 1.05 * batches[-1]))
        axes.grid(axis="y")
        axes.legend(loc="lower right")
        if chosen is not None:
            place = chosen, values[batches.index(chosen)]
            axes.plot(*place, **RING)
    return figure


def explore_batch(seconds: Mapping[int, float]) -> widgets.VBox:
    """Show `throughput_and_latency` with a slider over the batch sizes and a sentence in words."""
    picture, words = partial(throughput_and_latency, seconds), partial(in_words, seconds)
    return explore(picture, choice("requests", sorted(seconds)), words=words)


def in_words(seconds: Mapping[int, float], batch: int) -> str:
    smallest = min(seconds)
    gain = (batch / seconds[batch]) / (smallest / seconds[smallest])
    slower = seconds[batch] / seconds[smallest]
    return (
        f"Batch of {batch}: {batch / seconds[batch]:,.0f} tokens a second in all, {gain:.1f} times "
        f"the throughput; each request waits {1000 * seconds[batch]:.1f} ms for a token, "
        f"{slower:.1f} times as long."
    )
