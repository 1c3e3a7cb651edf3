"""Pictures for lab 15: guesses that are corrected, trees and their masks, and what rows cost.

Each function draws only its arguments, and returns HTML, a figure or a widget.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from html import escape
from typing import Any, Protocol

import ipywidgets as widgets
from IPython.display import HTML
from jaxtyping import Bool
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from torch import Tensor

from visuals.explorer import explore, slider
from visuals.style import (
    BLUE,
    CURVES,
    GRAY,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PALE,
    PALE_BLUE,
    PALE_GREEN,
    PALE_ORANGE,
    PLAIN,
    Look,
    Mark,
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

Words = Callable[[int], str]  # the text of a token id


class Tree(Protocol):
    """Guessed tokens, each with its parent; node 0 is the last token of the text."""

    tokens: list[int]
    parents: list[int]


class Call(Protocol):
    """A forward pass over a tree: the accepted nodes, from 0 down, and the text's new tokens."""

    @property
    def tree(self) -> Tree: ...
    @property
    def path(self) -> Sequence[int]: ...
    @property
    def new(self) -> Sequence[int]: ...


def short(word: str, longest: int = 7) -> str:
    """Return a token's text for a small box: without the space before it, and cut."""
    return (visible(word.strip(" ")) if word.strip(" ") else visible(word))[:longest]


# --------------------------------------------------------------------------- guess and correct

TEXT, CONFIRMED, OWN, GUESS = "text", "confirmed guess", "the model's token", "guess not confirmed"
CELLS: dict[str, Look] = {
    TEXT: (PALE, PALE, ""),
    OWN: (PALE_ORANGE, ORANGE, ".."),
    CONFIRMED: (PALE_GREEN, GREEN, "//"),
    GUESS: ("white", GRAY, ""),
}
COLUMNS, ROWS = 10, 9  # that are shown


def cells_of(calls: Sequence[Call]) -> Iterator[tuple[int, int, int, str]]:
    """Yield the cells of the calls: call, place in the text, token, kind."""
    text: list[int] = []
    for row, call in enumerate(calls):
        confirmed, place = len(call.path) - 1, len(text)
        for column, token in enumerate(text):
            yield row, column, token, TEXT
        for column, token in enumerate(call.new):
            yield row, place + column, token, CONFIRMED if column < confirmed else OWN
        for column, token in enumerate(call.tree.tokens[1:]):
            if column >= len(call.new):
                yield row, place + column, token, GUESS
        text += call.new


@shared_look
def show_guesses(calls: Sequence[Call], words: Words, first: int = 0) -> Picture:
    """Draw calls whose trees are chains: a row for each, a column for each place in the text.

    first: the number of the first call that is shown.
    """
    shown = calls[first : first + ROWS]
    figure, (axes,) = new_figure(height=1.1 + 0.3 * len(shown))
    for row, column, token, kind in cells_of(shown):
        if column < COLUMNS:
            axes.add_patch(Rectangle((column - 0.48, row - 0.42), 0.96, 0.84, **fill(CELLS[kind])))
            look = {"color": MUTED} if kind in (TEXT, GUESS) else {"bbox": PLAIN, "weight": "bold"}
            write(axes, column, row, short(words(token)), fontsize=7.5, **look)
    name_rows(axes, [f"call {first + row}" for row in range(len(shown))])
    axes.set(xlim=(-0.6, COLUMNS - 0.4), xticks=[])
    bare(axes)
    draw_legend(figure, CELLS)
    return figure


# ------------------------------------------------------------------------- trees and their masks

LAST, ACCEPTED, NOT_ACCEPTED = "the text's last token", "accepted", "not accepted"
NODES: dict[str, Look] = {
    LAST: (PALE, INK, ""),
    ACCEPTED: (PALE_GREEN, GREEN, "//"),
    NOT_ACCEPTED: ("white", GRAY, ""),
}
FRAMES = CURVES[:3]  # of the parts of a tree


def places_of(parents: Sequence[int]) -> list[tuple[int, int]]:
    """Return each node's depth and line: a first child continues its parent's line."""
    places, lines = [(0, 0)] * len(parents), 0

    def put(node: int, depth: int, line: int) -> None:
        nonlocal lines
        places[node] = depth, line
        for number, child in enumerate(n for n, parent in enumerate(parents) if parent == node):
            lines += number > 0
            put(child, depth + 1, lines if number else line)

    put(0, 0, 0)
    return places


@shared_look
def show_tree(
    tree: Tree,
    words: Words,
    own: Bool[Tensor, "nodes nodes"],
    path: Sequence[int] = (),
    parts: Mapping[str, Collection[int]] | None = None,
) -> Picture:
    """Draw a tree on the left, its accepted nodes marked, and on the right which nodes see which.

    own: row i is True for the nodes that node i sees. parts: up to three names, each with the nodes
    that have its frame.
    """
    places = places_of(tree.parents)
    deepest, lines = (1 + max(numbers) for numbers in zip(*places, strict=True))
    figure, (left, right) = new_figure(height=max(2.8, 1 + 0.32 * lines), columns=2)
    grid: Any = left.get_subplotspec()
    grid.get_gridspec().set_width_ratios([3, 2])
    for node, parent in enumerate(tree.parents):
        (x, y), kind = places[node], ACCEPTED if node in path else NOT_ACCEPTED
        if node == 0:
            kind = LAST
        else:
            start, line = places[parent]
            left.plot([start, x - 0.45], [line, y], color=GRAY, lw=1, zorder=0)
        left.add_patch(Rectangle((x - 0.45, y - 0.36), 0.9, 0.72, **fill(NODES[kind])))
        label = f"{node} {short(words(tree.tokens[node]), 6)}"
        write(left, x, y, label, fontsize=7.5, bbox=PLAIN if kind == ACCEPTED else None)
    frames: list[Line2D] = []
    for (name, nodes), (color, dashes, _) in zip((parts or {}).items(), FRAMES, strict=False):
        look: Mark = {"color": color, "ls": dashes, "lw": 2}
        frames.append(Line2D([], [], label=name, **look))
        for x, y in (places[node] for node in nodes):
            sides = [x - 0.45, x + 0.45, x + 0.45, x - 0.45, x - 0.45]
            left.plot(sides, [y - 0.36, y - 0.36, y + 0.36, y + 0.36, y - 0.36], **look)
    left.set(xlim=(-0.6, deepest - 0.4), ylim=(lines - 0.5, -0.6), xticks=[], yticks=[])
    bare(left)
    draw_mask(right, own)
    left.set_title("the tree", fontsize=10)
    right.set_title("each row sees", fontsize=10)
    kinds = NODES if len(path) else {LAST: NODES[LAST], "guess": NODES[NOT_ACCEPTED]}
    handles = [Patch(label=name, **fill(look)) for name, look in kinds.items()]
    legend_above(figure, handles=[*handles, *frames], ncols=3)
    return figure


def draw_mask(axes: Axes, own: Bool[Tensor, "nodes nodes"]) -> None:
    """Draw a mask, with a dot where a node sees another."""
    rows, columns = own.nonzero(as_tuple=True)
    axes.imshow(own.cpu().numpy(), cmap=ListedColormap([PALE, BLUE]), vmin=0, vmax=1)
    axes.scatter(columns.tolist(), rows.tolist(), s=5, color="white")
    ticks = range(0, len(own), 1 + len(own) // 13)
    axes.set_xticks(ticks)
    axes.set_yticks(ticks)
    axes.tick_params(length=0, labelsize=7.5)
    axes.set(ylabel="node", xlabel="node")


def explore_calls(
    calls: Sequence[Call], words: Words, layout: Callable[[Sequence[int]], tuple[Any, Any]]
) -> widgets.VBox:
    """Show `show_tree` for each call, with a slider for the call and a sentence.

    layout: returns the mask of a tree and its depths, from the parents.
    """

    def draw(number: int) -> Picture:
        call = calls[number]
        return show_tree(call.tree, words, layout(call.tree.parents)[0], call.path)

    def sentence(number: int) -> str:
        call = calls[number]
        gained = escape("".join(map(words, call.new)).replace("\n", "↵"))
        return (
            f"Call {number}: {len(call.tree.tokens)} rows, {len(call.new)} new tokens: "
            f"<b>{gained}</b>"
        )

    return explore(draw, slider("call", len(calls) - 1), words=sentence)


FIRST, OTHER, MODEL = "first guess", "another branch", "the model's own"
MARKS = {  # they differ in more than color
    FIRST: f"background:{PALE_BLUE}; border-bottom:2px solid {BLUE}",
    OTHER: f"background:{PALE_GREEN}; border:2px solid {GREEN}; font-weight:bold",
    MODEL: f"border-bottom:2px dotted {GRAY}",
}


def marks_of(call: Call) -> Iterator[tuple[int, str]]:
    """Yield the new tokens of a call, each with where it comes from."""
    parents, kinds = call.tree.parents, []
    for before, node in zip(call.path, call.path[1:], strict=False):
        kinds.append(FIRST if parents.index(before) == node else OTHER)
    yield from zip(call.new, [*kinds, MODEL], strict=False)


def show_branches(prompt: str, calls: Sequence[Call], words: Words) -> HTML:
    """Show a text, with each token marked by where it comes from, and the counts."""
    marked = [pair for call in calls for pair in marks_of(call)]
    legend = " &nbsp; ".join(
        f"{mark(kind, kind)} <small>{sum(kind == one for _, one in marked)} tokens</small>"
        for kind in MARKS
    )
    text = "".join(mark(words(token), kind) for token, kind in marked)
    rows = sum(len(call.tree.tokens) for call in calls)
    html = (
        f"<div>{legend}</div>"
        f'<div style="white-space:pre-wrap; max-width:60em">{escape(prompt)}{text}</div>'
        f"<div><b>{len(marked)} tokens from {len(calls)} calls and {rows} rows</b></div>"
    )
    return HTML(on_paper(html, "line-height:1.9"))


def mark(text: str, kind: str) -> str:
    """Return a token with its mark; the space before a word stays outside the mark."""
    word = text.lstrip(" ")
    space = text[: len(text) - len(word)] if word else ""
    shown = escape(word.replace("\n", "↵") or visible(text))
    breaks = "\n" * text.count("\n")
    look = f"border-radius:3px; padding:0 2px; {MARKS[kind]}"
    return f'{space}<span style="{look}" title="{kind}">{shown}</span>{breaks}'


# ------------------------------------------------------------------------------- what rows cost

GAINS = {0.5: ":", 1: "-", 2: "--", 3: "-."}  # times as fast as plain decode, and their dashes


@shared_look
def rows_and_tokens(
    price: Callable[[int], float], methods: Mapping[str, tuple[float, float]], most: int = 64
) -> Picture:
    """Draw methods by their rows and tokens per call, over lines of equal speed-up.

    price: the time of a forward pass over some rows, in one-row passes. methods: (rows, tokens) by
    name. A line's speed-up holds if making the guesses takes no time.
    """
    figure, (axes,) = new_figure(height=3.6)
    numbers = range(1, most + 1)
    for gain, dashes in GAINS.items():
        tokens, label = [gain * price(n) for n in numbers], f"{gain:g} × plain decode"
        axes.plot(numbers, tokens, dashes, label=label, color=INK if gain == 1 else GRAY)
    for name, (rows, won) in methods.items():
        axes.plot(rows, won, "o", color=BLUE, mec="white", ms=8)
        write_behind(axes, rows, won, name, gap=6, bbox=PLAIN)
    axes.set_xscale("log", base=2)
    ticks = [n for n in (1, 2, 4, 8, 16, 32, 64, 128) if n <= most]
    axes.set_xticks(ticks, list(map(str, ticks)))
    top = max([3.0, *(won for _, won in methods.values())])
    axes.set(xlabel="rows per call", xlim=(0.9, 1.6 * most), ylim=(0, 1.15 * top))
    axes.set_title("tokens per call")
    legend_above(figure)
    return figure


@shared_look
def predicted_and_measured(
    predicted: Mapping[str, float], measured: Mapping[str, float] | None = None
) -> Picture:
    """Draw the speed-up of each method as predicted, and as measured."""
    names, found = list(predicted), measured or {}
    figure, (axes,) = new_figure(height=1.2 + 0.32 * len(names))
    axes.axvline(1, color=INK, lw=1)
    rows = [names.index(name) for name in found]
    axes.plot(list(predicted.values()), range(len(names)), "o", mfc="white", color=BLUE, ms=9)
    axes.plot(list(found.values()), rows, "s", color=ORANGE, mec="white", ms=8)
    name_rows(axes, names)
    axes.set(xlim=(0, 1.15 * max([1, *predicted.values(), *found.values()])))
    axes.set_xlabel("times as fast as plain decode; left of the line it is slower")
    axes.grid(axis="x")
    handles = [axes.lines[1], *([axes.lines[2]] if found else [])]
    legend_above(figure, handles, ["predicted", "measured"][: len(handles)])
    return figure
