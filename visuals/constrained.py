"""Pictures for lab 14: an automaton and a walk through it, masks, what a mask does, jumps, a stack.

Each function draws only its arguments, and returns HTML, a figure or a widget.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from html import escape
from itertools import pairwise
from typing import Any, Protocol

import ipywidgets as widgets
import numpy
from IPython.display import HTML
from jaxtyping import Bool
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Circle
from torch import Tensor

from visuals.explorer import explore, slider
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
    Picture,
    bare,
    fill,
    legend_above,
    name_rows,
    new_figure,
    on_paper,
    probability_axis,
    shared_look,
    visible,
    write,
    write_behind,
)

# -------------------------------------------------------------------------------- an automaton


class Automaton(Protocol):
    """Its states are numbered from 0, the start. edges: by state, the byte and the state after."""

    @property
    def edges(self) -> Sequence[Mapping[int, int]]: ...
    @property
    def accepting(self) -> Collection[int]: ...


def byte_label(numbers: Collection[int]) -> str:
    """Return a short name for a set of bytes: "a", "0–9", "1–9 x"; a space is ␣."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    if len(runs) > 3:
        return f"{len(numbers)} bytes"
    ends = [[visible(chr(end)) if 32 <= end < 127 else f"{end:02X}" for end in run] for run in runs]
    return " ".join(low if low == high else f"{low}–{high}" for low, high in ends)


def walk(automaton: Automaton, read: bytes) -> list[int]:
    """Return the states that a text goes through, up to a byte without an edge."""
    states = [0]
    for byte in read:
        if byte not in automaton.edges[states[-1]]:
            break
        states.append(automaton.edges[states[-1]][byte])
    return states


SPREAD = 1.25  # from one row to the next, so that slanted arrows leave room for labels


def places_of(automaton: Automaton) -> dict[int, tuple[float, float]]:
    """Return a place for each state: to the right, the number of bytes from the start."""
    layers = [[0]]
    placed = {0}
    while layers[-1]:
        after = [end for state in layers[-1] for end in automaton.edges[state].values()]
        layers.append([end for end in dict.fromkeys(after) if end not in placed])
        placed.update(layers[-1])
    return {
        state: (float(x), SPREAD * ((len(layer) - 1) / 2 - row))
        for x, layer in enumerate(layers)
        for row, state in enumerate(layer)
    }


@shared_look
def show_automaton(automaton: Automaton, read: str = "") -> Picture:
    """Draw a small automaton, and the way of a text through it in bold.

    A state has an arrow for each set of bytes that leads to another state; a double circle means
    that the text may end there.
    """
    places, way = places_of(automaton), walk(automaton, read.encode())
    right, (low, *_, high) = max(places.values())[0], sorted(y for _, y in [*places.values()] * 2)
    inches = 6.4 / max(right + 1, 6.4)  # from one state to the next
    figure, (axes,) = new_figure(height=inches * (high - low + 1.6))
    walked = set(pairwise(way))
    for state, edges in enumerate(automaton.edges):
        for end in dict.fromkeys(edges.values()):
            label = byte_label([byte for byte, after in edges.items() if after == end])
            is_walked = (state, end) in walked
            draw_edge(axes, places[state], places[end], label, is_walked, 19 * inches)
    for state, (x, y) in places.items():
        face = PALE_ORANGE if state == way[-1] else PALE_BLUE if state in way else "white"
        look = {"facecolor": face, "edgecolor": INK, "lw": 2.5 if state in way else 1, "zorder": 3}
        axes.add_patch(Circle((x, y), 0.2, **look))
        if state in automaton.accepting:
            axes.add_patch(Circle((x, y), 0.25, fill=False, edgecolor=INK, lw=1))
        write(axes, x, y, str(state), fontsize=9, zorder=4)
    middle, half = right / 2, max(right + 1, 6.4) / 2
    axes.set(xlim=(middle - half, middle + half), ylim=(low - 0.6, high + 1))
    axes.set(aspect="equal", xticks=[], yticks=[])
    bare(axes)
    return figure


def draw_edge(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    label: str,
    walked: bool,
    gap: float,
) -> None:
    """Draw an arrow: straight to the right, in an arc back to the left or to the same state.

    gap: from the middle of a state to the arrow, in points.
    """
    (x, y), (after_x, after_y) = start, end
    middle_x, middle_y = (x + after_x) / 2, (y + after_y) / 2
    color, width = (BLUE, 2.5) if walked else (GRAY, 1)
    arrow: dict[str, Any] = {"arrowstyle": "-|>", "color": color, "lw": width}
    if after_x > x:
        arrow |= {"shrinkA": gap, "shrinkB": gap}
        middle_x += 0.2 * (abs(y) - abs(after_y))  # away from an arrow that rises or falls
        middle_y += 0.2 if middle_y >= 0 else -0.2
    elif start != end:
        bend = 0.9 / max(x - after_x, 1)  # equally high, however far it goes
        arrow |= {"shrinkA": gap, "shrinkB": gap, "connectionstyle": f"arc3,rad={bend}"}
        middle_y += 0.62
    else:
        start, end = (x - 0.15, y + 0.2), (x + 0.15, y + 0.2)
        arrow["connectionstyle"] = "arc3,rad=-1.8"
        middle_y += 0.7
    axes.annotate("", end, start, arrowprops=arrow)
    write(axes, middle_x, middle_y, label, fontsize=8)


def explore_walk(automaton: Automaton, text: str) -> widgets.VBox:
    """Show `show_automaton` with a slider for how many characters of the text have been read."""
    return explore(
        lambda read: show_automaton(automaton, text[:read]),
        slider("read", len(text)),
        words=partial(walk_in_words, automaton, text),
    )


def walk_in_words(automaton: Automaton, text: str, read: int) -> str:
    *_, state = walk(automaton, text[:read].encode())
    after = [byte_label([byte]) for byte in sorted(automaton.edges[state])]
    ends = " The text may end here." if state in automaton.accepting else ""
    return (
        f"Read: <b>{escape(visible(text[:read]))}</b>. In state {state}, the next byte may be: "
        f"{escape(' '.join(after)) or 'none'}.{ends}"
    )


# -------------------------------------------------------------------------------------- masks

COLUMNS = 256  # cells in a row


@shared_look
def show_masks(masks: Mapping[str, Bool[Tensor, " vocab"]]) -> Picture:
    """Draw each mask as a strip with a cell for every token of the vocabulary; blue is allowed."""
    height = -(-max(map(len, masks.values())) // COLUMNS)
    figure, all_axes = new_figure(height=(0.4 + 0.03 * height) * len(masks), rows=len(masks))
    for axes, (name, mask) in zip(all_axes, masks.items(), strict=True):
        cells = numpy.full(height * COLUMNS, numpy.nan)
        cells[: len(mask)] = mask.numpy()
        colors = ListedColormap([PALE, BLUE])
        look: dict[str, Any] = {"aspect": "auto", "interpolation": "nearest", "vmin": 0, "vmax": 1}
        axes.imshow(cells.reshape(height, COLUMNS), cmap=colors, **look)
        axes.set_title(f"{name}: {int(mask.sum()):,} of {len(mask):,} allowed", fontsize=10)
        axes.set(xticks=[], yticks=[])
        bare(axes)
    return figure


@shared_look
def distortion(texts: Sequence[str], given: Sequence[float], masked: Sequence[float]) -> Picture:
    """Draw two probabilities of each text: the model's, given that one comes, and the masked."""
    figure, (axes,) = new_figure(height=0.8 + 0.5 * len(texts))
    right = probability_axis(axes, max(*given, *masked), room=1.25)
    for shift, probs, name, look in (
        (-0.2, given, "the model's, given that the text is one of these", (BLUE, BLUE, "")),
        (0.2, masked, "by sampling with a mask", (PALE_ORANGE, ORANGE, "////")),
    ):
        rows = [row + shift for row in range(len(texts))]
        axes.barh(rows, list(probs), 0.38, label=name, **fill(look))
        for row, prob in zip(rows, probs, strict=True):
            number = f"{prob:.1%}" if prob >= 0.001 else "below 0.1%"
            write_behind(axes, prob, row, number)
    name_rows(axes, [visible(text) for text in texts])
    axes.set_xlim(0, right)
    bare(axes)
    legend_above(figure, ncols=1)
    return figure


MOST_PIECES = 45  # as many as have room side by side


@shared_look
def allowed_mass(pieces: Sequence[str], masses: Sequence[float]) -> Picture:
    """Draw, for each token of a text, the probability that the model gave to all allowed tokens."""
    shown = range(min(len(pieces), MOST_PIECES))
    figure, (axes,) = new_figure(height=3.2)
    axes.vlines(shown, [masses[place] for place in shown], 1, color=BLUE, lw=3)
    axes.plot(shown, [masses[place] for place in shown], "o", color=BLUE, ms=4)
    axes.set_yscale("log")
    axes.set_title("the model's probability of all allowed tokens together")
    axes.set_ylim(min(masses) / 5, 3)
    axes.set_xticks(shown, [visible(pieces[n]) for n in shown], rotation=90, fontsize=8)
    axes.grid(axis="y")
    return figure


# -------------------------------------------------------------------------------------- jumps

JUMPED, CHOSEN = "jumped", "chosen"
LOOKS = {
    CHOSEN: f"background:{PALE_BLUE}; border-bottom:2px solid {BLUE}",
    JUMPED: f"background:{PALE_GREEN}; border-bottom:4px double {GREEN}",
}
EXPLAINED = {
    CHOSEN: "chosen from logits, after a forward pass",
    JUMPED: "forced, without a forward pass of its own",
}


def piece_html(text: str, kind: str) -> str:
    shown = escape(visible(text))
    look = f"display:inline-block; line-height:1.4; padding:0 2px; margin-right:2px; {LOOKS[kind]}"
    return f'<span style="{look}" title="{kind}">{shown}</span>'


def show_jumps(pieces: Sequence[str], jumped: Sequence[bool]) -> HTML:
    """Show the tokens of a text, and mark those that were jumped over."""
    kinds = [JUMPED if jump else CHOSEN for jump in jumped]
    text = "".join(piece_html(piece, kind) for piece, kind in zip(pieces, kinds, strict=True))
    legend = "".join(
        f'<span style="display:inline-block; margin-right:1.2em">{piece_html(kind, kind)} '
        f"<small>{meaning}</small></span>"
        for kind, meaning in EXPLAINED.items()
    )
    passes = kinds.count(CHOSEN)
    html = (
        f'<div>{legend}</div><div style="max-width:60em">{text}</div>'
        f"<b>{len(pieces)} tokens from {passes} forward passes</b>"
    )
    return HTML(on_paper(html, "line-height:1.9"))


# -------------------------------------------------------------------------------------- a stack


def show_stack(
    pieces: Sequence[str], stacks: Sequence[str], counts: Sequence[tuple[int, int, int]]
) -> HTML:
    """Show a text token by token, with the brackets that are open after each.

    counts: for the token's place, how many tokens were accepted whatever the stack holds, how many
    were uncertain, and how many of those the stack let pass.
    """
    row = '<tr style="background:none">'  # else a theme's stripes
    cell = f"padding:0 0.8em; border-top:1px solid {PALE}; text-align:left; color:{INK}"
    code = '<code style="background:none; color:inherit">'
    heads = ("token", "open after it", "accepted", "uncertain", "of these, pass")
    head = "".join(f'<th style="{cell}">{name}</th>' for name in heads)
    rows = "".join(
        f'{row}<td style="{cell}">{code}{escape(visible(piece))}</code></td>'
        f'<td style="{cell}"><b>{escape(stack) or "–"}</b></td>'
        + "".join(f'<td style="{cell}; color:{MUTED}">{count:,}</td>' for count in numbers)
        + "</tr>"
        for piece, stack, numbers in zip(pieces, stacks, counts, strict=True)
    )
    table = f'<table style="border-collapse:collapse">{row}{head}</tr>{rows}</table>'
    return HTML(on_paper(table, "overflow-x:auto"))
