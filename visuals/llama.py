"""Pictures for lab 20: turning pairs, grouped heads, a block of codes, a chat, bytes of models.

Each function draws only its arguments, and returns a figure, HTML or a widget.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import cycle

import ipywidgets as widgets
import torch
from IPython.display import HTML
from jaxtyping import Float, UInt8
from matplotlib.axes import Axes
from matplotlib.patches import Circle, Rectangle, Wedge
from torch import Tensor

from visuals.explorer import choice, explore
from visuals.style import (
    BLUE,
    CURVES,
    GRAY,
    INK,
    MUTED,
    ORANGE,
    PALE,
    PALE_BLUE,
    PALE_ORANGE,
    PLAIN,
    RANKS,
    Look,
    Picture,
    bare,
    draw_legend,
    fill,
    legend_above,
    name_rows,
    new_figure,
    on_paper,
    shared_look,
    visible,
    write,
    write_behind,
)

# --------------------------------------------------------------------------- positions as rotations

POSITIONS = *range(9), *(2**power for power in range(4, 14))
IN_A_ROW = 8  # clocks


def show_hands(radians: Float[Tensor, " half"]) -> widgets.VBox:
    """Show `hands` with a slider for the position, from 0 to 8,192."""
    return explore(lambda position: hands(radians, position), choice("position", POSITIONS))


@shared_look
def hands(radians: Float[Tensor, " half"], position: int) -> Picture:
    """Draw each pair of a head as the hand of a clock, turned by its radians times the position.

    A hand begins at the right and turns counterclockwise. Below it: its turns since position 0.
    """
    rows = -(-len(radians) // IN_A_ROW)
    figure, (axes,) = new_figure(height=0.4 + 1.04 * rows)
    for pair, angle in enumerate((radians.double() * position).tolist()):
        row, column = divmod(pair, IN_A_ROW)
        draw_clock(axes, column, 1.3 * row, angle)
        turns = angle / (2 * math.pi)
        write(axes, column, 1.3 * row + 0.66, f"{pair}: {shortly(turns)}", fontsize=8)
    axes.set(xlim=(-0.6, IN_A_ROW - 0.4), ylim=(1.3 * rows - 0.4, -0.6), aspect="equal")
    axes.set_axis_off()
    axes.set_title(f"position {position:,}; below each pair: its turns")
    return figure


def draw_clock(axes: Axes, x: float, y: float, angle: float) -> None:
    """Draw a hand at an angle, and the part of the last turn that is behind it."""
    degrees = math.degrees(angle) % 360
    axes.add_patch(Circle((x, y), 0.42, facecolor="white", edgecolor=GRAY))
    # The axis of y points down, so a turn that looks counterclockwise goes to negative angles.
    axes.add_patch(Wedge((x, y), 0.42, -degrees, 0, facecolor=PALE_BLUE, edgecolor="none"))
    end = x + 0.42 * math.cos(angle), y - 0.42 * math.sin(angle)
    axes.plot([x, end[0]], [y, end[1]], color=BLUE, lw=2, solid_capstyle="round")


def shortly(number: float) -> str:
    """Return a number with two digits, or with all digits before the point if there are more."""
    return f"{number:,.0f}" if abs(number) >= 10 else f"{number:.2g}"


SPREAD: Look = PALE_ORANGE, ORANGE, "////"


@shared_look
def show_by_distance(scores: Float[Tensor, "positions positions"]) -> Picture:
    """Draw the scores of one query and one key at all pairs of positions.

    scores: row i, column j: the query at position i, the key at position j. If they depend on the
    distance only, they are the same along each diagonal: stripes on the left, and on the right one
    number for each distance, without a spread.
    """
    length = len(scores)
    largest = max(scores.abs().max().item(), 1e-9)
    figure, (cells, curve) = new_figure(height=3.4, columns=2)
    image = cells.imshow(scores.tolist(), cmap="PuOr", vmin=-largest, vmax=largest)
    figure.colorbar(image, ax=cells, shrink=0.7)
    cells.set(xlabel="position of the key", ylabel="position of the query", title="scores")
    cells.locator_params(integer=True, nbins=5)

    distances = range(1 - length, length)
    diagonals = [scores.diagonal(-distance) for distance in distances]
    low, high = ([float(end(d)) for d in diagonals] for end in (torch.min, torch.max))
    curve.fill_between(distances, low, high, label="lowest to highest", **fill(SPREAD))
    means = [diagonal.mean().item() for diagonal in diagonals]
    curve.plot(distances, means, color=BLUE, lw=2, label="mean")
    spread = max(top - bottom for bottom, top in zip(low, high, strict=True))
    curve.set_title(f"by distance;\nlargest spread: {spread:.2g}")
    curve.set_xlabel("query's position - key's position")
    curve.grid(axis="y")
    legend_above(figure)
    return figure


@shared_look
def show_turns(radians: Mapping[str, Float[Tensor, " half"]], positions: int) -> Picture:
    """Draw how often each pair turns within so many positions, with a line for one turn.

    radians: per position, by a name for the legend, such as "before" and "after" scaling.
    """
    figure, (axes,) = new_figure(height=3.4)
    for (name, each), (color, dashes, marker) in zip(radians.items(), cycle(CURVES), strict=False):
        turns = (each.double() * positions / (2 * math.pi)).tolist()
        label = f"{name}: {shortly(turns[0])} to {shortly(turns[-1])} turns"
        axes.plot(turns, dashes, color=color, lw=2, marker=marker, ms=4, label=label)
    axes.axhline(1, color=GRAY, lw=1)
    axes.set(yscale="log", xlabel="pair", title=f"turns within {positions:,} positions; line: one")
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.locator_params(axis="x", integer=True)
    axes.grid(axis="y")
    legend_above(figure, ncols=1, handlelength=4)
    return figure


# ---------------------------------------------------------------------------------- heads in groups


@shared_look
def show_groups(heads: int, kv_heads: int) -> Picture:
    """Draw which query heads share a KV head, and below it the queries that a fold makes of them.

    Raises ValueError if the query heads can't be divided evenly.
    """
    if kv_heads < 1 or heads % kv_heads:
        raise ValueError(f"{heads} query heads can't be divided evenly among {kv_heads} KV heads.")
    group = heads // kv_heads
    figure, (axes,) = new_figure(height=1.8 + 0.3 * group)
    for head in range(heads):
        owner = head // group
        middle = (owner + 0.5) * group
        axes.plot([head + 0.5, middle], [1, 1.8], color=GRAY, lw=1, zorder=0)
        draw_box(axes, (head, 0), (1, 1), RANKS[owner % 4], str(head))
        folded = owner * group, 3.6 + head % group
        draw_box(axes, folded, (group, 1), RANKS[owner % 4], str(head))
    for owner in range(kv_heads):
        draw_box(axes, (owner * group, 1.8), (group, 1), RANKS[owner % 4], f"KV {owner}")
    for y, text in ((-0.35, "query heads"), (3.25, "folded: one head with more queries")):
        axes.text(0, y, text, fontsize=9, va="center", color=MUTED)
    axes.set(xlim=(-0.05, heads + 0.05), ylim=(3.7 + group, -0.8))
    axes.set_axis_off()
    axes.set_title(f"{heads} query heads, {kv_heads} KV heads: {group} share one")
    return figure


def draw_box(
    axes: Axes, corner: tuple[float, float], size: tuple[float, float], look: Look, text: str
) -> None:
    """Draw a box with a small gap around it, and a text in its middle."""
    (x, y), (width, height) = corner, size
    gap = 0.06
    box = Rectangle((x + gap, y + gap), width - 2 * gap, height - 2 * gap, **fill(look))
    axes.add_patch(box)
    write(axes, x + width / 2, y + height / 2, text, fontsize=7, bbox=PLAIN if look[2] else None)


# ----------------------------------------------------------------------------- the bytes of a block

SCALE, MINIMUM = "scale", "minimum"
WHOLE, LOW, HIGH = "code", "code in a low half", "code in a high half"
BLOCK: dict[str, Look] = {
    WHOLE: RANKS[0],
    LOW: RANKS[0],
    HIGH: RANKS[1],
    SCALE: RANKS[2],
    MINIMUM: RANKS[3],
}
KINDS = {
    "Q8_0": (SCALE, WHOLE),
    "Q4_0": (SCALE, LOW, HIGH),
    "Q4_1": (SCALE, MINIMUM, LOW, HIGH),
}
NUMBERS = 32


@shared_look
def show_block(raw: UInt8[Tensor, " bytes"], kind: str, numbers: Float[Tensor, " 32"]) -> Picture:
    """Draw the bytes of a block of a GGUF, and below each code the number that it becomes.

    raw: in hexadecimal digits, the second of which is the low half of its byte. kind: "Q8_0",
    "Q4_0" or "Q4_1". Number i stands below byte i of the codes; with two codes in a byte, so does
    number i + 16.
    """
    names = KINDS[kind]
    parts = [name for name in names if name in (WHOLE, LOW, HIGH)]
    columns = NUMBERS // len(parts)
    first = len(raw) - columns  # byte of the codes
    figure, (top, *panels) = new_figure(height=1.2 + 1.3 * len(parts), rows=1 + len(parts))
    for place, byte in enumerate(raw.tolist()):
        if place < first:
            draw_box(top, (place - first, 0), (1, 1), BLOCK[names[place // 2]], f"{byte:02x}")
        for row, part in enumerate(reversed(parts) if place >= first else ()):
            size = 1, 1 / len(parts)
            digits = f"{byte:02x}" if part == WHOLE else f"{byte:02x}"[row]
            draw_box(top, (place - first, row * size[1]), size, BLOCK[part], digits)
    top.set(ylim=(1, 0), xticks=[], yticks=[])
    top.set_title(f"{len(raw)} bytes of {kind} become {NUMBERS} numbers")
    bare(top)
    for axes, part, shown in zip(panels, parts, numbers.split(columns), strict=True):
        middles = [place + 0.5 for place in range(columns)]
        axes.bar(middles, shown.tolist(), 0.8, **fill(BLOCK[part]))
        every, start = 2 if part == WHOLE else 1, columns * parts.index(part)
        axes.set_xticks(middles[::every], [str(n) for n in range(start, start + columns, every)])
        axes.axhline(0, color=GRAY, lw=0.8)
        axes.tick_params(axis="x", length=0, labelsize=8)
        axes.locator_params(axis="y", nbins=3)
    for axes in (top, *panels):
        axes.set_xlim(-first - 0.1, columns + 0.1)
    panels[-1].set_xlabel("number")
    draw_legend(figure, {name: BLOCK[name] for name in names})
    return figure


# ------------------------------------------------------------------------------------------- a chat

CELL = "display:inline-block; margin:2px; padding:1px 5px; border-radius:4px; text-align:center"
TYPED, CONTROL = f"background:{PALE}", f"background:{PALE_ORANGE}; outline:2px solid {INK}"


def show_chat(ids: Sequence[int], texts: Sequence[str], control: Mapping[str, int]) -> HTML:
    """Show a chat as the model gets it: a cell for each id, with its text above it.

    texts: the text of each id. control: the ids of the control tokens, which are colored and
    framed; letters that only spell a control token's name are gray as all other text. A line ends
    where the chat has a line break.
    """
    cells = ""
    for token_id, text in zip(ids, texts, strict=True):
        look = CONTROL if token_id in control.values() else TYPED
        shown = f"{escape(visible(text))}<br><small>{token_id}</small>"
        cells += f'<span style="{CELL}; {look}">{shown}</span>' + "<br>" * ("\n" in text)
    count = sum(token_id in control.values() for token_id in ids)
    words = f"{len(ids)} tokens, {count} of them control tokens (framed)"
    return HTML(on_paper(f"<p>{words}</p>{cells}"))


# ----------------------------------------------------------------------------- models in comparison


@shared_look
def show_memory(models: Mapping[str, tuple[int, int]]) -> Picture:
    """Draw the bytes of each model's weights, and of a token's keys and values.

    models: by name, both numbers. The first model is compared with all others.
    """
    figure, panels = new_figure(height=0.8 + 0.6 * len(models), rows=2)
    titles = "MB of weights", "KB of keys and values per token"
    for place, (axes, title, unit) in enumerate(zip(panels, titles, (1e6, 1e3), strict=True)):
        amounts = [both[place] for both in models.values()]
        axes.barh(range(len(amounts)), amounts, 0.7, **fill(RANKS[place]))
        for row, amount in enumerate(amounts):
            times = f" ({amount / amounts[0]:.3g}×)" if row else ""
            write_behind(axes, amount, row, f"{amount / unit:,.1f}{times}", fontsize=9)
        axes.set(xlim=(0, 1.3 * max(amounts)), xticks=[], title=title)
        name_rows(axes, models)
        bare(axes)
    return figure
