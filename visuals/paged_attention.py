"""Pictures for lab 4: where the memory goes, blocks and block tables, requests and the pool.

Each reads the public attributes of the learner's own objects, and returns a figure or a widget.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import ipywidgets as widgets
from matplotlib.axes import Axes
from matplotlib.patches import ConnectionPatch, Rectangle

from visuals.explorer import explore, slider
from visuals.style import (
    BLUE,
    GRAY,
    GREEN,
    INK,
    ORANGE,
    PALE,
    PALE_GREEN,
    PALE_ORANGE,
    PALE_PINK,
    PINK,
    PLAIN,
    RED,
    SKY,
    Picture,
    bare,
    draw_bars,
    fill,
    legend_above,
    name_rows,
    new_figure,
    shared_look,
    visible,
    write,
)

# ----------------------------------------------------------------------- where the memory goes

PART_LOOKS = ((PALE, ""), (SKY, "//"), ("white", ".."), (ORANGE, "xx"))


@shared_look
def memory_card(parts: Mapping[str, float]) -> Picture:
    """Draw the memory of a card as one bar of gigabytes; the `parts` are from left to right."""
    total = sum(parts.values())
    figure, (axes,) = new_figure(height=1.35)
    start = 0.0
    for (name, size), (color, hatch) in zip(parts.items(), PART_LOOKS, strict=False):
        axes.barh(0, size, left=start, color=color, hatch=hatch, edgecolor=GRAY)
        label = f"{name}\n{size:.1f} GB, {size / total:.0%}"
        middle = start + size / 2
        if size > 0.15 * total:
            write(axes, middle, 0, label, bbox=PLAIN)
        else:  # too narrow to write in: write above it
            axes.text(start + size, 0.5, label.replace("\n", ": "), ha="right", fontsize=9)
        start += size
    axes.set(xlim=(0, total), ylim=(-0.5, 0.75), yticks=[], xlabel="GB of memory")
    axes.spines["left"].set_visible(False)
    return figure


class Use(Protocol):
    """Shares of a memory, as `memory_bars` draws them."""

    tokens: float
    later: float
    never: float
    unreserved: float
    running: float


@shared_look
def memory_bars(uses: Mapping[str, Use]) -> Picture:
    """Draw the use of the slots for each way to hand out memory, as a stacked bar.

    The bar is the whole memory; to its right is the number of requests that run at a time.
    """
    kinds: list[tuple[str, Callable[[Use], float], str, str]] = [
        ("holds a token", lambda use: use.tokens, BLUE, ""),
        ("reserved, filled later", lambda use: use.later, SKY, "//"),
        ("reserved, never filled", lambda use: use.never, ORANGE, "xx"),
        ("free, too little for the next request", lambda use: use.unreserved, "white", ".."),
    ]
    figure, (axes,) = new_figure(height=1.25 + 0.42 * len(uses))
    rows = range(len(uses))
    starts = [0.0] * len(uses)
    for name, share, color, hatch in kinds:
        shares = [share(use) for use in uses.values()]
        axes.barh(rows, shares, 0.7, starts, label=name, **fill((color, GRAY, hatch)))
        for row, part in zip(rows, shares, strict=True):
            if part > 0.06:
                write(axes, starts[row] + part / 2, row, f"{part:.1%}", fontsize=8, bbox=PLAIN)
        starts = [start + part for start, part in zip(starts, shares, strict=True)]
    for row, use in zip(rows, uses.values(), strict=True):
        axes.text(1.02, row, f"{use.running:.1f} at a time", va="center", fontsize=9)
    name_rows(axes, uses)
    axes.set(xlim=(0, 1.0), xticks=[])
    bare(axes)
    legend_above(figure)
    return figure


@shared_look
def block_size_costs(filled: Mapping[int, float], entries: Mapping[int, float]) -> Picture:
    """Draw the two costs of a block size: empty slots in last blocks, and entries in block tables.

    filled: for each block size, the share of allocated slots that hold a token. entries: the blocks
        in the table of one request, on average.
    """
    figure, (left, right) = new_figure(height=2.6, columns=2)
    wasted = {size: 100 * (1 - share) for size, share in filled.items()}
    draw_bars(left, wasted, "{:.1f}%".format, (ORANGE, ORANGE, ""))
    draw_bars(right, entries, "{:.0f}".format, (BLUE, BLUE, ""))
    left.set(xlabel="block size", title="allocated slots that are empty")
    right.set(xlabel="block size", title="entries in a block table, on average")
    return figure


# ------------------------------------------------------------------------- blocks and tables


class Manager(Protocol):
    """The public attributes of a block manager."""

    num_blocks: int
    block_size: int
    tables: dict[int, list[int]]
    lengths: dict[int, int]
    ref_counts: list[int]

    @property
    def free_blocks(self) -> Sequence[int]: ...


@dataclass(frozen=True)
class Snapshot:
    """A block manager at one moment, with the words of its requests. It never changes."""

    what: str
    block_size: int
    tables: Mapping[int, Sequence[int]]
    words: Mapping[int, Sequence[str]]
    ref_counts: Sequence[int]
    free_blocks: Sequence[int]

    def words_in(self, request: int, place: int) -> Sequence[str]:
        """Return the words in a logical block of a request."""
        first = place * self.block_size
        return self.words[request][first : first + self.block_size]


def snapshot(manager: Manager, words: Mapping[int, Sequence[str]], what: str = "") -> Snapshot:
    """Copy the manager's state. `words`: the tokens of each request, as many as it has or more."""
    return Snapshot(
        what,
        manager.block_size,
        {request: tuple(table) for request, table in manager.tables.items()},
        {request: tuple(words[request][: manager.lengths[request]]) for request in manager.tables},
        tuple(manager.ref_counts),
        tuple(manager.free_blocks),
    )


@shared_look
def show_blocks(manager: Manager, words: Mapping[int, Sequence[str]], what: str = "") -> Picture:
    """Draw the logical blocks, the block tables under them, and the pool of physical blocks."""
    return draw_snapshot(snapshot(manager, words, what))


def step_through(snapshots: Sequence[Snapshot]) -> widgets.VBox:
    """Show `show_blocks` with a slider over snapshots."""
    return explore(lambda step: draw_snapshot(snapshots[step]), slider("step", len(snapshots) - 1))


# The colors of a request's cells and of its arrows, and how the arrows are dashed.
REQUEST_LOOKS = (
    ("#C9E4F6", BLUE, "-"),
    (PALE_ORANGE, "#B57B00", "--"),
    (PALE_GREEN, GREEN, ":"),
    (PALE_PINK, PINK, "-."),
)
GAP = 0.3  # between two requests, in widths of a block
LETTER = 0.64  # the width of a letter, in font sizes
LOGICAL_TOP = 2  # below the title and the names of the requests


def look_of(request: int) -> tuple[str, str, str]:
    return REQUEST_LOOKS[request % len(REQUEST_LOOKS)]


@shared_look
def draw_snapshot(moment: Snapshot) -> Picture:
    """Draw a snapshot: each block is a column, each place in it a row.

    The newest token of a request is bold. Coordinates count blocks from left to right and rows of
    text from top to bottom.
    """
    size, num_blocks = moment.block_size, len(moment.ref_counts)
    logical = sum(len(table) + GAP for table in moment.tables.values()) - GAP
    columns = max(num_blocks, logical)
    table_top = LOGICAL_TOP + size + 1.1  # room for the words "block table"
    pool_top = table_top + 2 + 3  # room for the arrows
    bottom = pool_top + size + 2.3
    figure, (axes,) = new_figure(height=0.195 * (bottom + 1.3))
    axes.set(xlim=(-0.02, columns + 0.02), ylim=(bottom, -1.3))
    axes.set_axis_off()
    widest = 6.2 * 72 / columns  # points that a word may take

    label(axes, 0, -0.9, moment.what, ha="left", fontsize=10, fontweight="bold")
    start = 0.0
    for request, table in moment.tables.items():
        color = look_of(request)[1]
        label(axes, start, 0.4, f"request {request}", ha="left", fontweight="bold", color=color)
        label(axes, start + 0.03, table_top - 0.5, "block table", ha="left", fontsize=8)
        for place, block in enumerate(table):
            draw_logical(axes, moment, request, place, start + place, widest)
            draw_entry(axes, moment, request, place, start + place, table_top)
            draw_arrow(axes, request, (start + place, table_top + 2), (block, pool_top))
        start += len(table) + GAP
    for block in range(num_blocks):
        draw_physical(axes, moment, block, pool_top, widest)
    following = ", ".join(map(str, moment.free_blocks)) or "none"
    label(axes, 0, bottom - 0.5, f"The pool. Free blocks, next one first: {following}", ha="left")
    return figure


def draw_logical(
    axes: Axes, moment: Snapshot, request: int, place: int, x: float, widest: float
) -> None:
    face, edge, _ = look_of(request)
    words = moment.words_in(request, place)
    label(axes, x + 0.5, LOGICAL_TOP - 0.5, f"logical {place}", fontsize=8)
    draw_cells(axes, (x, LOGICAL_TOP), moment.block_size, len(words), [face], edge)
    is_last = place == len(moment.tables[request]) - 1
    write_words(axes, (x, LOGICAL_TOP), words, widest, bold=len(words) - 1 if is_last else None)


def draw_entry(
    axes: Axes, moment: Snapshot, request: int, place: int, x: float, top: float
) -> None:
    """Draw one column of a block table: the physical block, and how much of it is filled."""
    filled = f"filled {len(moment.words_in(request, place))}/{moment.block_size}"
    draw_cells(axes, (x, top), 2, 0, [], INK)
    block = moment.tables[request][place]
    label(axes, x + 0.5, top + 0.5, f"block {block}", fontweight="bold", fontsize=8)
    label(axes, x + 0.5, top + 1.5, filled, fontsize=7.5)


def draw_arrow(
    axes: Axes, request: int, entry: tuple[float, float], block: tuple[float, float]
) -> None:
    _, color, dashes = look_of(request)
    (x, y), (block_x, block_y) = entry, block
    ends = (x + 0.5, y), (block_x + 0.5, block_y)
    look: dict[str, Any] = {"color": color, "ls": dashes, "lw": 1.3}
    axes.add_patch(ConnectionPatch(*ends, "data", arrowstyle="-|>", **look))


def draw_physical(axes: Axes, moment: Snapshot, block: int, top: float, widest: float) -> None:
    """Draw a block of the pool, striped by its holders, framed if there are several."""
    holders = [
        (request, table.index(block)) for request, table in moment.tables.items() if block in table
    ]
    words = max((moment.words_in(*holder) for holder in holders), key=len, default=())
    fills = [look_of(request)[0] for request, _ in holders]
    refs = moment.ref_counts[block]
    state = f"ref {refs}" if refs else "free"
    weight = "bold" if refs > 1 else "normal"
    label(axes, block + 0.5, top + 0.5, f"{block}: {state}", fontsize=8, fontweight=weight)
    edge, dashes = (INK, "-") if refs else (GRAY, ":")
    draw_cells(axes, (block, top + 1), moment.block_size, len(words), fills, edge, dashes)
    if refs > 1:
        corner = block + 0.03, top + 1
        axes.add_patch(Rectangle(corner, 0.94, moment.block_size, fill=False, lw=2.5, ec=INK))
    write_words(axes, (block, top + 1), words, widest)


def draw_cells(
    axes: Axes,
    corner: tuple[float, float],
    cells: int,
    filled: int,
    fills: Sequence[str],
    edge: str,
    dashes: str = "-",
) -> None:
    """Draw a column of cells, the first `filled` of them in stripes of the colors `fills`."""
    x, y = corner[0] + 0.03, corner[1]
    for stripe, face in enumerate(fills):
        width = 0.94 / len(fills)
        axes.add_patch(Rectangle((x + stripe * width, y), width, filled, color=face, linewidth=0))
    for row in range(cells):
        box = Rectangle((x, y + row), 0.94, 1, fill=False, ec=edge, linewidth=0.7, ls=dashes)
        axes.add_patch(box)


def write_words(
    axes: Axes,
    corner: tuple[float, float],
    words: Sequence[str],
    widest: float,
    bold: int | None = None,
) -> None:
    """Write words in the cells from a corner down, smaller if they would be wider than a cell."""
    for row, word in enumerate(words):
        text = visible(word)
        fontsize = min(8, widest / (LETTER * len(text)))
        weight = "bold" if row == bold else "normal"
        x, y = corner[0] + 0.5, corner[1] + row + 0.5
        label(axes, x, y, text, fontsize=fontsize, fontweight=weight)


def label(axes: Axes, x: float, y: float, text: str, ha: str = "center", **look: Any) -> None:
    axes.text(x, y, text, ha=ha, va="center_baseline", **({"fontsize": 9} | look))


# ---------------------------------------------------------------------- blocks held, by request


@shared_look
def show_schedule(held: Sequence[Mapping[int, int]], num_blocks: int) -> Picture:
    """Draw how many blocks each request holds after each step: rows are requests, columns steps.

    A pale cell with a dot: the request waits for its first blocks. A crossed cell: it was preempted
    and waits for new ones. The last row is the number of blocks taken in all.
    """
    requests = sorted({request for step in held for request in step})
    figure, (axes,) = new_figure(height=1.2 + 0.27 * len(requests))
    for row, request in enumerate(requests):
        present = [step for step, blocks in enumerate(held) if request in blocks]
        for step in range(present[-1] + 1):
            if request in held[step]:
                text, ink, face, edge = str(held[step][request]), INK, SKY, "white"
            elif step < present[0]:
                text, ink, face, edge = "·", INK, PALE, "white"
            else:
                text, ink, face, edge = "×", RED, "white", RED
            axes.add_patch(Rectangle((step + 0.05, row + 0.08), 0.9, 0.84, fc=face, ec=edge))
            label(axes, step + 0.5, row + 0.5, text, fontsize=8, color=ink)
    small = min(8, 5.2 * 72 / len(held) / (LETTER * 2.2))  # two digits
    for step, blocks in enumerate(held):
        label(axes, step + 0.5, len(requests) + 0.6, str(sum(blocks.values())), fontsize=small)
    axes.set(xlim=(0, len(held)), ylim=(len(requests) + 1.1, 0), xlabel="step")
    names = [*(f"request {request}" for request in requests), f"taken of {num_blocks}"]
    axes.set_yticks([row + 0.5 for row in range(len(names))], names)
    every = range(0, len(held), 5)
    axes.set_xticks([step + 0.5 for step in every], [str(step + 1) for step in every])
    axes.set_title("blocks held after each step;  · waiting,  × preempted")
    bare(axes)
    return figure


# ----------------------------------------------------------------------------- pages of rows


class Pages(Protocol):
    """The part of lab 4's virtual manager that is drawn."""

    page_tokens: int
    max_tokens: int
    mapped: list[int]
    tokens: list[int]


@shared_look
def show_pages(manager: Pages) -> Picture:
    """Draw the pages mapped to each row of a reserved memory, and the tokens in them.

    A page is a box; hatched pages are mapped but spare. The line ends where the addresses end.
    """
    size, rows = manager.page_tokens, len(manager.mapped)
    figure, (axes,) = new_figure(height=1.3 + 0.3 * rows)
    for row, (pages, tokens) in enumerate(zip(manager.mapped, manager.tokens, strict=True)):
        axes.plot([0, manager.max_tokens], [row + 0.5] * 2, color=GRAY, linewidth=0.8, zorder=0)
        for page in range(pages):
            look = fill((PALE, GRAY, "") if page * size < tokens else ("white", GRAY, "///"))
            axes.add_patch(Rectangle((page * size, row + 0.12), size, 0.76, **look))
        axes.add_patch(Rectangle((0, row + 0.3), tokens, 0.4, color=BLUE))
    axes.set(xlim=(0, manager.max_tokens), ylim=(rows, 0), xlabel="tokens")
    axes.set_yticks([row + 0.5 for row in range(rows)], [f"row {row}" for row in range(rows)])
    axes.set_title("blue: tokens,  pale: their pages,  hatched: spare pages,  line: addresses only")
    bare(axes)
    return figure
