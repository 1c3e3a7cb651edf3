"""Pictures for lab 12: traffic, a running softmax, tiles, times, parts, the blocks that are read.

Each draws numbers, states and traces of the learner's own code.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle, pairwise
from typing import Any

import ipywidgets as widgets
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.ticker import LogLocator, NullLocator
from torch import Tensor

from visuals.explorer import choice, explore
from visuals.style import (
    BLUE,
    CURVES,
    GRAY,
    GREEN,
    INK,
    ORANGE,
    PALE_BLUE,
    PALE_GREEN,
    PALE_ORANGE,
    PLAIN,
    RING,
    Look,
    Picture,
    draw_bars,
    draw_legend,
    fill,
    legend_above,
    name_rows,
    new_figure,
    shared_look,
    write,
)

# ------------------------------------------------------------------- traffic and fast memory

MOVED: Look = PALE_BLUE, BLUE, ""
FAST: Look = PALE_GREEN, GREEN, "...."


@shared_look
def traffic_bars(tiled: Mapping[int, int], naive: int, fast: Mapping[int, int]) -> Picture:
    """Draw how many numbers tiles of each size move, and below how many they hold.

    tiled, fast: how many numbers are moved and held, by the size of a tile. naive: how many are
        moved without tiles, drawn as a line.
    """
    figure, (above, below) = new_figure(height=4.2, rows=2)
    draw_bars(above, tiled, lambda moved: f"{moved:,}\n{naive / moved:.1f}× less", MOVED)
    draw_bars(below, fast, "{:,}".format, FAST)
    line = above.axhline(naive, color=ORANGE, ls="--", lw=2, label=f"the naive way: {naive:,}")
    above.set_ylim(0, 1.1 * max([naive, *tiled.values()]))
    above.set_title("numbers moved")
    below.set(title="numbers held in fast memory", xlabel="tokens in a tile")
    figure.legend(handles=[line], loc="outside upper right", fontsize=9)
    return figure


# ------------------------------------------------------------------------------ the running softmax

State = tuple[Float[Tensor, " 1"], Float[Tensor, " 1"], Float[Tensor, "1 keys"]]

BEFORE, NOW, SHRUNK = "earlier tiles", "this tile", "earlier tiles, before rescaling"
WEIGHTS: dict[str, Look] = {
    BEFORE: (PALE_BLUE, BLUE, ""),
    NOW: (PALE_ORANGE, ORANGE, "/////"),
    SHRUNK: ("none", GRAY, ""),
}


@shared_look
def online_softmax(scores: Float[Tensor, " keys"], states: Sequence[State], block: int) -> Picture:
    """Draw the scores of one query, its weights after each tile, and the softmax.

    states: (peak, total, weighted) after each tile of `block` keys; weighted[0] holds the weight of
        each key, not yet divided by the total.
    """
    rows = 2 + len(states)
    figure, panels = new_figure(height=0.7 + 0.8 * rows, rows=rows)
    draw_scores(panels[0], scores, [float(peak) for peak, _, _ in states], block)
    for number, (axes, state) in enumerate(zip(panels[1:-1], states, strict=True)):
        draw_state(axes, number, states[number - 1] if number else None, state, block)
    draw_softmax(panels[-1], scores, states[-1])
    for axes in panels:
        axes.set_xlim(-0.6, len(scores) - 0.4)
        axes.set_xticks(some(range(0, len(scores), block)))
        axes.tick_params(axis="x", length=0, labelbottom=axes is panels[-1])
    panels[-1].set_xlabel("key")
    draw_legend(figure, WEIGHTS)
    return figure


def draw_scores(
    axes: Axes, scores: Float[Tensor, " keys"], peaks: Sequence[float], block: int
) -> None:
    """Draw all scores, and above each tile a line at the peak so far; −inf isn't drawn."""
    seen = scores.masked_fill(scores == -torch.inf, torch.nan).tolist()
    axes.axhline(0, color=GRAY, lw=0.8)
    axes.vlines(range(len(seen)), 0, seen, color=GRAY)
    axes.plot(range(len(seen)), seen, "o", color=INK, ms=3)
    for number, peak in enumerate(peaks):
        start, end = number * block, min((number + 1) * block, len(seen))
        axes.hlines(peak, start - 0.5, end - 0.5, color=ORANGE, lw=2)
    axes.margins(y=0.15)
    axes.set_title("scores; lines: the peak so far", fontsize=9)


def draw_state(axes: Axes, number: int, before: State | None, state: State, block: int) -> None:
    """Draw the weights after a tile, and in outline the earlier ones before the peak rose."""
    weights, start = state[2][0].tolist(), number * block
    end = min(start + block, len(weights))
    if before and before[0] < state[0]:
        axes.bar(range(start), before[2][0][:start].tolist(), 0.8, **fill(WEIGHTS[SHRUNK]))
    axes.bar(range(start), weights[:start], 0.8, **fill(WEIGHTS[BEFORE]))
    axes.bar(range(start, end), weights[start:end], 0.8, **fill(WEIGHTS[NOW]))
    axes.set(ylim=(0, 1.1), yticks=[0, 1])
    axes.set_title(f"tile {number + 1}: {what_happens(before, state)}", fontsize=9)
    axes.set_title(f"total {float(state[1]):.2f}", loc="right", fontsize=9)


def what_happens(before: State | None, state: State) -> str:
    """Describe the peak, and the factor by which the earlier weights are multiplied."""
    peak = float(state[0])
    if peak == -math.inf:
        return "no key seen yet"
    if before is None or float(before[0]) == -math.inf:
        return f"the peak is {peak:.2f}"
    if float(before[0]) == peak:
        return f"the peak stays {peak:.2f}"
    factor = math.exp(float(before[0]) - peak)
    return f"the peak rises to {peak:.2f}; earlier weights × {factor:.2g}"


def draw_softmax(axes: Axes, scores: Float[Tensor, " keys"], state: State) -> None:
    """Draw the last weights divided by the last total, and dots at the softmax of all scores."""
    total = float(state[1])
    shares = [weight / max(total, 1) for weight in state[2][0].tolist()]
    axes.bar(range(len(shares)), shares, 0.8, **fill(WEIGHTS[BEFORE]))
    axes.plot(range(len(shares)), scores.softmax(dim=0).tolist(), "o", color=INK, ms=3)
    axes.set_ylim(0, 1.1 * max([1e-9, *shares]))
    axes.set_title(f"divided by {total:.2f}; dots: the softmax of all scores at once", fontsize=9)


# ------------------------------------------------------------------------------- the grid of tiles

LOADED, MASKED, SKIPPED = "loaded", "loaded, partly masked", "never loaded"
TILES: dict[str, Look] = {
    LOADED: (PALE_BLUE, BLUE, ""),
    MASKED: (PALE_ORANGE, ORANGE, "/////"),
    SKIPPED: ("white", GRAY, ""),
}
MOST_NUMBERED = 16  # tiles in a row or a column; smaller ones have no room for a number

Span = tuple[int, int]  # the first token, and the one after the last


@shared_look
def tile_grid(
    trace: Sequence[tuple[str, int, int]], q_len: int, k_len: int, block_q: int, block_k: int
) -> Picture:
    """Draw the grid of tiles of queries and keys, numbered in the order in which they were loaded.

    trace: (name, start, end) of everything loaded or stored. A tile counts as loaded if its keys
    were loaded while its queries were in fast memory. The queries are the last of the tokens. A
    tile is partly masked if one of its queries doesn't see all of its keys.
    """
    found = list(loaded_tiles(trace))
    seen = 1 + k_len - q_len  # keys that query 0 sees
    kinds = [MASKED if end > start + seen else LOADED for (start, _), (_, end) in found]
    rows, columns = spans(q_len, block_q), spans(k_len, block_k)
    skipped = [(row, column) for row in rows for column in columns if (row, column) not in found]
    figure, (axes,) = new_figure(height=1.5 + min(0.4 * len(rows), 4))
    for tile in skipped:
        draw_tile(axes, tile, SKIPPED)
    is_numbered = max(len(rows), len(columns)) <= MOST_NUMBERED
    for number, (tile, kind) in enumerate(zip(found, kinds, strict=True), start=1):
        draw_tile(axes, tile, kind, f"{number}" if is_numbered else "")
    axes.plot([k_len - q_len, k_len], [0, q_len], color=INK, lw=1.5)
    axes.set_xticks(some([start for start, _ in columns]))
    axes.set_yticks(some([start for start, _ in rows]))
    axes.set(xlim=(0, k_len), ylim=(q_len, 0), xlabel="key", ylabel="query")
    title = f"{len(found):,} of {len(rows) * len(columns):,} tiles loaded, "
    axes.set_title(f"{title}{kinds.count(MASKED):,} of them partly masked")
    draw_legend(figure, TILES)
    return figure


KINDS = {"empty": SKIPPED, "partial": MASKED, "full": LOADED}  # as numbers 0, 1 and 2


@shared_look
def show_kinds(kinds: Sequence[Sequence[int]], block: int) -> Picture:
    """Draw the tiles of a mask by their kinds: empty, partial or full.

    kinds: 0, 1 or 2, rows of tiles of queries. block: tokens in a tile, of queries and of keys.
    """
    figure, (axes,) = new_figure(height=4.4)
    for row, line in enumerate(kinds):
        for column, kind in enumerate(line):
            corners = (row * block, (row + 1) * block), (column * block, (column + 1) * block)
            draw_tile(axes, corners, [*KINDS.values()][kind])
    q_len, k_len = len(kinds) * block, len(kinds[0]) * block
    axes.set(xlim=(0, k_len), ylim=(q_len, 0), xlabel="key", ylabel="query", aspect="equal")
    draw_legend(figure, {f"{kind}: {name}": TILES[name] for kind, name in KINDS.items()})
    return figure


def explore_kinds(
    kinds: Callable[[str, int], Sequence[Sequence[int]]],
    seen: Mapping[str, float],
    blocks: Sequence[int],
) -> widgets.VBox:
    """Show the tiles of a mask, with sliders for the mask and for the size of tiles.

    kinds: returns them for a mask's name and a size. seen: the share of pairs that each mask lets
    see each other.
    """

    def sentence(name: str, block: int) -> str:
        all_kinds = [kind for line in kinds(name, block) for kind in line]
        computed = sum(kind > 0 for kind in all_kinds) / len(all_kinds)
        return (
            f"Tiles of {block}: {computed:.1%} of all scores are computed, and "
            f"<b>{seen[name]:.1%}</b> are seen."
        )

    def draw(name: str, block: int) -> Picture:
        return show_kinds(kinds(name, block), block)

    return explore(draw, choice("mask", seen), choice("tile", blocks), words=sentence)


def loaded_tiles(trace: Sequence[tuple[str, int, int]]) -> Iterator[tuple[Span, Span]]:
    """Yield the queries and keys of each tile, in the order in which the keys were loaded."""
    queries: Span | None = None
    for name, start, end in trace:
        if name == "queries":
            queries = start, end
        if name == "keys" and queries:
            yield queries, (start, end)


def spans(length: int, block: int) -> list[Span]:
    """Return the start and end of each tile; the last tile may be shorter."""
    return [(start, min(start + block, length)) for start in range(0, length, block)]


def some(numbers: Sequence[int]) -> Sequence[int]:
    """Return at most as many of them as there is room for in a row."""
    return numbers[:: -(-len(numbers) // MOST_NUMBERED)]


def draw_tile(axes: Axes, tile: tuple[Span, Span], kind: str, text: str = "") -> None:
    (top, bottom), (left, right) = tile
    axes.add_patch(Rectangle((left, top), right - left, bottom - top, lw=0.8, **fill(TILES[kind])))
    if text:
        write(axes, (left + right) / 2, (top + bottom) / 2, text, fontsize=8, bbox=PLAIN)


# ------------------------------------------------------------------------- milliseconds over length

WON = RING | {"ms": 15, "mew": 1.5}


@shared_look
def over_length(milliseconds: Mapping[str, Mapping[int, float]]) -> Picture:
    """Draw milliseconds over the length of a text, one line per way, on logarithmic axes.

    The others are compared with the first: a ring marks the length from which on a way is faster,
    and the legend gives that length.
    """
    figure, (axes,) = new_figure(height=3.8)
    first = next(iter(milliseconds))
    both = zip(milliseconds.items(), cycle(CURVES), strict=False)
    for (name, curve), (color, dashes, marker) in both:
        won = faster_from(milliseconds[first], curve)
        words = "nowhere faster" if won is None else f"faster from {won:,} on"
        label = name if name == first else f"{name}: {words}"
        lengths = sorted(curve)
        times = [curve[length] for length in lengths]
        axes.plot(lengths, times, dashes, color=color, lw=2, marker=marker, label=label)
        if won is not None:
            axes.plot(won, curve[won], **WON)
    measured = sorted({length for curve in milliseconds.values() for length in curve})
    axes.set(xscale="log", yscale="log", xlabel="tokens")
    axes.set_title(f"milliseconds; ring: from here on faster than {first}")
    axes.set_xticks(measured, [f"{length:,}" for length in measured])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(axis="y")
    legend_above(figure, ncols=1, handlelength=4)
    return figure


def faster_from(base: Mapping[int, float], other: Mapping[int, float]) -> int | None:
    """Return the length from which on `other` is faster at all common lengths; None if never."""
    won = None
    for length in sorted(base.keys() & other.keys(), reverse=True):
        if other[length] >= base[length]:
            break
        won = length
    return won


# ------------------------------------------------------------------------- one query, many workers

PART: Look = PALE_BLUE, BLUE, "/////"
WEIGHT: Look = PALE_ORANGE, ORANGE, ""


@shared_look
def lanes(parts: Sequence[tuple[int, int, float]]) -> Picture:
    """Draw the keys of each worker, and the weight of its output in the merge.

    parts: (first, last, lse), `last` excluded; the weight is exp(lse − the lse of all keys).
    """
    lses = torch.tensor([lse for _, _, lse in parts], dtype=torch.float64)
    weights = lses.softmax(dim=0).nan_to_num().tolist()  # NaN where no part saw anything
    figure, (keys, merged) = new_figure(height=1.0 + 0.28 * len(parts), columns=2)
    rows = range(len(parts))
    widths = [last - first for first, last, _ in parts]
    keys.barh(rows, widths, 0.7, [first for first, _, _ in parts], **fill(PART))
    bars = merged.barh(rows, weights, 0.7, **fill(WEIGHT))
    merged.bar_label(bars, [f"{weight:.1%}" for weight in weights], padding=3, fontsize=9)
    longest = max(widths, default=0)
    keys.set(title=f"keys; the longest part: {longest:,}", xlabel="key")
    keys.set_xlim(0, max((last for _, last, _ in parts), default=1))
    keys.locator_params(axis="x", nbins=4)
    keys.xaxis.set_major_formatter("{x:,.0f}")
    merged.set(title="weight in the merge", xlim=(0, 1.25 * max([1e-9, *weights])), xticks=[])
    name_rows(keys, [f"worker {number + 1}" for number in rows])
    name_rows(merged, [""] * len(parts))
    merged.spines[["left", "bottom"]].set_visible(False)
    return figure


# ----------------------------------------------------------------------- the blocks that are read

HELD, REST, OTHER = "the request's tokens", "after its last token", "not in its table"
SLOTS: dict[str, Look] = {
    HELD: (PALE_BLUE, BLUE, ""),
    REST: ("white", BLUE, "...."),
    OTHER: ("white", GRAY, ""),
}
IN_A_ROW = 12  # blocks


@shared_look
def walk(
    read: Sequence[int], table: Sequence[int], block_size: int, length: int, num_blocks: int
) -> Picture:
    """Draw the blocks of a pool, the request's tokens in each, and the order of reading.

    read: the blocks in the order in which they were read. table: the request's blocks, which hold
    `length` tokens. Arrows go from each block that was read to the next one.
    """
    held = {
        block: min(max(length - place * block_size, 0), block_size)
        for place, block in enumerate(table)
    }
    rows = -(-num_blocks // IN_A_ROW)
    figure, (axes,) = new_figure(height=0.8 + 1.2 * rows)
    for block in range(num_blocks):
        draw_block(axes, block, held.get(block), block_size)
    for block, following in pairwise(read):
        draw_arrow(axes, block, following)
    for block in dict.fromkeys(read):
        turns = [str(number) for number, other in enumerate(read, start=1) if other == block]
        x, y = corner(block)
        circle = {"boxstyle": "circle", "facecolor": "white", "edgecolor": INK}
        look = {"fontsize": 8, "fontweight": "bold", "bbox": circle}
        write(axes, x + 0.5, y + READ, ", ".join(turns), **look)
    axes.set(xlim=(0, IN_A_ROW), ylim=(rows, 0))
    axes.set_axis_off()
    axes.set_title(f"blocks of the pool; circles: the order of the {len(read):,} that were read")
    draw_legend(figure, SLOTS)
    return figure


TOP, BOTTOM, READ = 0.16, 0.56, 0.7  # in a row: of a block's box, and of the order below it


def corner(block: int) -> tuple[int, int]:
    """Return column and row of a block."""
    row, column = divmod(block, IN_A_ROW)
    return column, row


def draw_block(axes: Axes, block: int, held: int | None, block_size: int) -> None:
    """Draw its number, and a box filled by the tokens held; None: it isn't in the table."""
    x, y = corner(block)
    height = BOTTOM - TOP
    share = (held or 0) / block_size
    look = SLOTS[OTHER if held is None else REST]
    write(axes, x + 0.5, y + TOP / 2, str(block), fontsize=8, bbox=PLAIN)
    axes.add_patch(Rectangle((x + 0.06, y + TOP), 0.88, height, **fill(look)))
    if held:
        box = Rectangle((x + 0.06, y + TOP), 0.88, share * height, **fill(SLOTS[HELD]))
        axes.add_patch(box)
    if held is not None:
        write(axes, x + 0.5, y + (TOP + BOTTOM) / 2, f"{held}/{block_size}", fontsize=8, bbox=PLAIN)


def draw_arrow(axes: Axes, block: int, following: int) -> None:
    """Draw an arc below the boxes, equally deep for near and far blocks."""
    (x, y), (next_x, next_y) = corner(block), corner(following)
    bend = max(-0.4, min(0.4, 1.2 / ((next_x - x) or 1)))
    ends = (x + 0.5, y + READ), (next_x + 0.5, next_y + READ)
    look: dict[str, Any] = {"mutation_scale": 10, "shrinkA": 9, "shrinkB": 9, "color": INK}
    arc = f"arc3,rad={bend}"
    axes.add_patch(FancyArrowPatch(*ends, connectionstyle=arc, arrowstyle="-|>", **look))
