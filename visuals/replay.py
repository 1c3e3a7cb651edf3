"""Pictures for lab 22: launches and a graph on a clock, batches with their pads, blocks and pads.

Each function draws only its arguments, and returns a figure or a widget.
"""

from collections.abc import Sequence
from typing import Any

import ipywidgets as widgets
from jaxtyping import Int
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from torch import Tensor

from visuals.explorer import explore, fine_slider
from visuals.style import (
    BLUE,
    EMPTY,
    GRAY,
    PALE,
    PALE_BLUE,
    PALE_ORANGE,
    PLAIN,
    RANKS,
    RED,
    Look,
    Picture,
    bare,
    draw_legend,
    fill,
    name_rows,
    new_figure,
    shared_look,
    write,
)

# ------------------------------------------------------------------------- launches on a clock

LAUNCHES, COMPUTES, IDLES = "the host launches", "the GPU computes", "the GPU waits"
WORK: dict[str, Look] = {
    LAUNCHES: (PALE_ORANGE, RED, "////"),
    COMPUTES: (PALE_BLUE, BLUE, ""),
    IDLES: ("white", GRAY, "...."),
}
Span = tuple[float, float]


def show_launches(operations: int, launch: float) -> widgets.VBox:
    """Show `launches` with a slider for how long an operation takes."""
    takes = fine_slider("µs of an operation", launch / 5, 4 * launch, launch / 20, launch / 2)
    takes.style.description_width = "initial"
    return explore(lambda takes: launches(operations, launch, takes), takes)


@shared_look
def launches(operations: int, launch: float, takes: float) -> Picture:
    """Draw a host and a GPU: launched one by one, and as a graph.

    operations: how many. launch: the µs that the host needs for one, or for a graph. takes: the µs
    that the GPU computes one.
    """
    one_by_one = [(i * launch, (i + 1) * launch) for i in range(operations)]
    ways = {"one by one": one_by_one, "a graph": one_by_one[:1]}
    runs = {name: computed(spans, operations, takes) for name, spans in ways.items()}
    longest = max(run[-1][1] for run in runs.values())
    figure, panels = new_figure(height=3.3, rows=2)
    for axes, (name, run) in zip(panels, runs.items(), strict=True):
        end = run[-1][1]
        draw(axes, 0, [(run[0][0], end)], IDLES)  # behind what it computes
        draw(axes, 0, run, COMPUTES)
        draw(axes, 1, ways[name], LAUNCHES)
        name_rows(axes, ["GPU", "host"])
        axes.set_xlim(-0.003 * longest, 1.003 * longest)
        axes.spines[:].set_visible(False)
        waits = round(end - run[0][0] - operations * takes, 9)
        axes.set_title(f"{name}: {end:.4g} µs; the GPU waits for {waits:.4g} of them")
    panels[-1].set_xlabel("µs")
    draw_legend(figure, WORK)
    return figure


def computed(launched: Sequence[Span], operations: int, takes: float) -> list[Span]:
    """Return when the GPU computes each operation: after its launch, and after those before it."""
    spans, free = list[Span](), 0.0
    for number in range(operations):
        start = max(free, launched[min(number, len(launched) - 1)][1])
        free = start + takes
        spans.append((start, free))
    return spans


def draw(axes: Axes, row: int, spans: Sequence[Span], kind: str) -> None:
    for start, end in spans:
        box = Rectangle((start, row - 0.36), end - start, 0.72, lw=0.8, **fill(WORK[kind]))
        axes.add_patch(box)


# ------------------------------------------------------------------------------ batches and pads

REAL, PADS, ALONE = "rows", "pads", "rows without a graph"
ROWS: dict[str, Look] = {
    REAL: (PALE_BLUE, BLUE, ""),
    PADS: (PALE, GRAY, "////"),
    ALONE: (PALE_ORANGE, RED, "...."),
}


@shared_look
def show_ladder(batches: Sequence[int], sizes: Sequence[int]) -> Picture:
    """Draw the rows of each step, and above them the pads up to the next size of the ladder.

    batches: the rows of each step. sizes: ascending. A batch above all sizes has no pads.
    """
    figure, (axes,) = new_figure(height=2.9)
    pads = 0
    for step, rows in enumerate(batches, start=1):
        size = next((size for size in sizes if size >= rows), None)
        axes.bar(step, rows, 0.8, lw=0.8, **fill(ROWS[ALONE if size is None else REAL]))
        if size is not None and size > rows:
            axes.bar(step, size - rows, 0.8, bottom=rows, lw=0.8, **fill(ROWS[PADS]))
            pads += size - rows
    for size in sizes:
        axes.axhline(size, color=GRAY, lw=0.6, ls=":", zorder=0)
    most = max(*batches, *sizes)
    axes.set_yticks([size for size in sizes if size in (1, most) or size >= most / 10])
    axes.set(xlabel="step", xlim=(0.4, len(batches) + 0.6))
    axes.locator_params(axis="x", integer=True)
    real = sum(batches)
    axes.set_title(f"{real:,} rows, {pads:,} pads: {(real + pads) / real:.2f} computed for each")
    draw_legend(figure, ROWS)
    return figure


# ------------------------------------------------------------------------------- blocks and pads

FREE, SCRATCH = "free", "the scratch block"
BLOCKS: dict[str, Look] = {FREE: EMPTY, SCRATCH: (PALE, GRAY, "xxxx")}


@shared_look
def show_pool(
    tables: Int[Tensor, "size width"], rows: int, blocks: int, block_size: int,
    positions: Int[Tensor, " size"], scratch: int,
) -> Picture:  # fmt: skip
    """Draw a graph's tables, and the pool's blocks in the look of the row that has them.

    tables, positions: of all rows of the graph, of which the first `rows` are no pads. A row's
    newest token is in the block with a thick edge.
    """
    figure, (above, below) = new_figure(height=1.5 + 0.28 * (1 + len(tables)), rows=2)
    grid: Any = below.get_gridspec()
    grid.set_height_ratios([1, len(tables)])
    owners = {
        int(block): row
        for row, table in enumerate(tables.tolist()[:rows])
        for block in table[: int(positions[row]) // block_size + 1]
    }
    for block in range(blocks):
        row = owners.get(block)
        look = BLOCKS[SCRATCH if block == scratch else FREE] if row is None else look_of(row)
        cell(above, block, 0, look, str(block))
    for row, table in enumerate(tables.tolist()):
        newest = int(positions[row]) // block_size
        for place, block in enumerate(table):
            used = row < rows and place <= newest
            look = look_of(row) if used else BLOCKS[SCRATCH if row >= rows else FREE]
            cell(below, place, row, look, str(block), lw=2 if place == newest else 0.8)
    above.set(xlim=(-0.55, blocks - 0.45), ylim=(0.55, -0.55), xticks=[], yticks=[])
    above.set_title(f"the pool: {blocks} blocks, {len(owners)} of texts")
    width = tables.shape[1]
    below.set(xlim=(-0.55, max(width, blocks) - 0.45), xticks=[])
    name_rows(below, [f"row {n}" if n < rows else f"pad {n}" for n in range(len(tables))])
    below.set_title(f"tables: {rows} of {len(tables)} rows aren't pads")
    for axes in (above, below):
        bare(axes)
    draw_legend(figure, BLOCKS)
    return figure


def look_of(row: int) -> Look:
    return RANKS[row % len(RANKS)]


def cell(axes: Axes, x: float, y: float, look: Look, text: str, lw: float = 0.8) -> None:
    axes.add_patch(Rectangle((x - 0.45, y - 0.42), 0.9, 0.84, lw=lw, **fill(look)))
    write(axes, x, y, text, fontsize=8, bbox=PLAIN)
