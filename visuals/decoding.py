"""Pictures for lab 5: distributions, sampling with sliders, repetition, the beam tree, sorting.

Each function returns a figure, a widget or HTML. `words` is a function from a token id to its text.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Protocol

import ipywidgets as widgets
from IPython.display import HTML
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch, PathPatch, Rectangle
from matplotlib.path import Path
from torch import Tensor

from visuals.explorer import choice, explore, fine_slider
from visuals.style import (
    BLUE,
    EMPTY,
    INK,
    MUTED,
    ORANGE,
    PALE_BLUE,
    PALE_ORANGE,
    Picture,
    bare,
    ending,
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

Words = Callable[[int], str]

PANELS = 3  # side by side, at most


# ----------------------------------------------------------------------------- distributions


@shared_look
def distributions(words: Sequence[str], named: Mapping[str, Sequence[float] | Tensor]) -> Picture:
    """Draw distributions over the same few words, one panel each; dropped words are hatched."""
    columns = min(len(named), PANELS)
    rows = -(-len(named) // columns)
    height = 0.5 + 0.24 * len(words)
    figure, all_axes = new_figure(height=0.1 + height * rows, columns=columns, rows=rows)
    drawn = [[float(prob) for prob in probs] for probs in named.values()]
    longest = max(map(max, drawn))
    for axes in all_axes[len(named) :]:
        axes.set_visible(False)
    for place, (axes, name, probs) in enumerate(zip(all_axes, named, drawn, strict=False)):
        draw_probs(axes, probs, 1.35 * longest)
        is_first = place % columns == 0
        axes.set_yticks(range(len(words)), [*words] if is_first else [""] * len(words))
        axes.set_title(name, fontsize=10)
    return figure


def draw_probs(axes: Axes, probs: Sequence[float], right: float) -> None:
    """Draw a bar for each probability, with its number; a probability of 0 gives a hatched row."""
    for row, prob in enumerate(probs):
        if prob == 0:
            draw_dropped(axes, row, right)
    axes.barh(range(len(probs)), probs, color=BLUE, height=0.72)
    for row, prob in enumerate(probs):
        text = f"{prob:.3f}" if prob else "dropped"
        write_behind(axes, prob, row, text, color=INK if prob else MUTED)
    axes.set(xlim=(0, right), ylim=(len(probs) - 0.4, -0.6), xticks=[])
    bare(axes)


def draw_dropped(axes: Axes, row: int, right: float) -> None:
    axes.add_patch(Rectangle((0, row - 0.36), right, 0.72, lw=0, **fill(EMPTY)))


# ------------------------------------------------------------------------ sampling, with sliders

SHOWN = 15  # the number of likeliest tokens
ALL = "all"


def explore_sampling(
    probs_with: Callable[..., Float[Tensor, " vocab"]], words: Words
) -> widgets.VBox:
    """Explore the distribution with sliders for temperature, top-k, top-p and min-p.

    probs_with: called with `temperature`, `top_k` (None for all), `top_p` and `min_p`.
    """
    before = probs_with(temperature=1.0, top_k=None, top_p=1.0, min_p=0.0)

    def after(temperature: float, top_k: int | str, top_p: float, min_p: float) -> Tensor:
        k = None if top_k == ALL else top_k
        return probs_with(temperature=temperature, top_k=k, top_p=top_p, min_p=min_p)

    return explore(
        lambda *values: before_and_after(before, after(*values), words),
        fine_slider("temperature", 0, 2, 0.1, start=1),
        choice("top-k", [*range(1, 51), ALL], start=ALL),
        fine_slider("top-p", 0.05, 1, 0.05, start=1),
        fine_slider("min-p", 0, 0.5, 0.01, start=0),
        words=lambda *values: who_stays(before, after(*values)),
    )


def who_stays(before: Float[Tensor, " vocab"], after: Float[Tensor, " vocab"]) -> str:
    stay = after > 0
    share = before[stay].sum().item()
    return (
        f"{int(stay.sum()):,} of {len(after):,} tokens can be drawn. "
        f"The model itself gives them a probability of {share:.1%}."
    )


@shared_look
def before_and_after(
    before: Float[Tensor, " vocab"], after: Float[Tensor, " vocab"], words: Words
) -> Picture:
    """Draw the likeliest tokens: the model's probabilities outlined, the new ones filled."""
    shown = before.topk(min(SHOWN, len(before)))
    old, new = shown.values.tolist(), after[shown.indices].tolist()
    rows = range(len(old))
    figure, (axes,) = new_figure(height=0.7 + 0.22 * len(old))
    right = probability_axis(axes, max(old + new), room=1.25)
    for row in rows:
        if new[row] == 0:
            draw_dropped(axes, row, right)
    axes.barh(rows, new, color=BLUE, height=0.72, label="with these settings")
    axes.barh(rows, old, height=0.72, facecolor="none", edgecolor=INK, label="the model's own")
    for row in rows:
        text = f"{old[row]:.1%} → " + (f"{new[row]:.1%}" if new[row] else "dropped")
        write_behind(axes, max(old[row], new[row]), row, text, color=INK if new[row] else MUTED)
    name_rows(axes, [visible(words(token)) for token in shown.indices.tolist()])
    axes.legend(loc="lower right", facecolor="white", framealpha=1, frameon=True, edgecolor="white")
    bare(axes)
    return figure


# ------------------------------------------------------------------------------- whole texts

REPEATED = f"background:{PALE_ORANGE}; border-bottom:2px solid {ORANGE}"


def show_repetition(pieces: Sequence[str], size: int = 4) -> HTML:
    """Show a text and mark the tokens of every run of `size` tokens that occurred before."""
    marks = repeated(pieces, size)
    text = "".join(
        f'<span style="{REPEATED}">{escape(piece)}</span>' if is_repeated else escape(piece)
        for piece, is_repeated in zip(pieces, marks, strict=True)
    )
    summary = (
        f"{sum(marks)} of {len(marks)} tokens are marked: "
        f"each belongs to a run of {size} tokens that occurred before."
    )
    html = f'<div style="white-space:pre-wrap">{text}</div><small>{summary}</small>'
    return HTML(on_paper(html, "line-height:1.6"))


def repeated(pieces: Sequence[str], size: int) -> list[bool]:
    """For each piece, whether it belongs to a run of `size` pieces that occurred before."""
    marks = [False] * len(pieces)
    seen = set()
    for start in range(len(pieces) - size + 1):
        gram = tuple(pieces[start : start + size])
        if gram in seen:
            marks[start : start + size] = [True] * size
        seen.add(gram)
    return marks


def side_by_side(texts: Mapping[str, str]) -> HTML:
    """Show texts in columns under their labels; in a narrow window, one below the other."""
    column = f"flex:1 1 13em; border-top:3px solid {BLUE}; padding-top:0.3em"
    columns = "".join(
        f'<div style="{column}"><b>{escape(name)}</b>'
        f'<div style="white-space:pre-wrap; overflow-wrap:anywhere">{escape(text)}</div></div>'
        for name, text in texts.items()
    )
    return HTML(on_paper(columns, "line-height:1.6; display:flex; flex-wrap:wrap; gap:1em"))


# ------------------------------------------------------------------------------ the beam tree

MOST_STEPS = 12  # as many as can be read
LONGEST = 60  # characters of the prompt
KEPT, ENDED, PRUNED = "goes on", "has ended", "pruned"


class Candidate(Protocol):
    """A beam's continuation by one token; `parent` counts the beams of the step before."""

    score: float
    parent: int
    token: int


class Text(Protocol):
    ids: list[int]


class Search(Protocol):
    """The public attributes of a beam search."""

    width: int
    prompt_length: int
    eos_token_id: int | None
    beams: Sequence[Text]
    finished: Sequence[Text]
    trace: Sequence[Sequence[Candidate]]


@dataclass(frozen=True)
class Node:
    """A candidate in its row of the tree. parent: the place of its parent in the row above."""

    candidate: Candidate
    parent: int
    fate: str
    ids: list[int]  # the new tokens up to this one


def fates(candidates: Sequence[Candidate], width: int, eos_token_id: int | None) -> list[str]:
    """Say of each candidate whether it goes on, has ended or was pruned. The best comes first."""
    found, going_on = [], 0
    for rank, candidate in enumerate(candidates):
        if candidate.token == eos_token_id:
            found.append(ENDED if rank < width else PRUNED)
        else:
            found.append(KEPT if going_on < width else PRUNED)
            going_on += 1
    return found


def tree_of(search: Search) -> list[list[Node]]:
    """Return the candidates of each step, ordered by parent, so that no two edges cross."""
    rows: list[list[Node]] = []
    beams: list[tuple[int, list[int]]] = [(0, [])]  # of the previous step: place in its row, tokens
    for candidates in search.trace:
        row = []
        told = fates(candidates, search.width, search.eos_token_id)
        for candidate, fate in zip(candidates, told, strict=True):
            place, ids = beams[candidate.parent]
            row.append(Node(candidate, place, fate, [*ids, candidate.token]))
        survivors = [node for node in row if node.fate == KEPT]
        row.sort(key=lambda node: node.parent)  # stable: siblings stay ordered by score
        beams = [(row.index(node), node.ids) for node in survivors]
        rows.append(row)
    return rows


LETTER = {"normal": 0.66, "bold": 0.75}  # the width of a letter, in font sizes
HALF = 0.22  # of the height of a node
FAINT, DASHES = "#B9BEC5", (0, (3, 2))  # the edge to a pruned node
LOOKS = {  # of a node: its face, its edge, its text
    KEPT: (PALE_BLUE, BLUE, INK),
    ENDED: (INK, INK, "white"),
    PRUNED: ("none", "none", MUTED),
}


@shared_look
def show_tree(search: Search, words: Words) -> Picture:
    """Draw the texts that a beam search followed and those that it pruned, one row per step.

    A blue box goes on, a dark one has ended, a word without a box was pruned. The best text so far,
    or at the end the best of all, is bold. Under each word is the log-probability of the text up
    to it. The words of a row are ordered by parent, not by log-probability.
    """
    rows = tree_of(search)
    shown = rows[:MOST_STEPS]
    columns = max(map(len, shown), default=1)
    best = (list(search.finished) or list(search.beams))[0].ids
    prompt, best = best[: search.prompt_length], best[search.prompt_length :]
    figure, (axes,) = new_figure(height=0.9 + 0.7 * len(shown))
    axes.set(xlim=(0, columns), ylim=(len(shown) + 0.45, -0.4))
    axes.set_axis_off()

    places = [(columns / 2, 0.0)]
    text = ending("".join(map(words, prompt)), LONGEST)
    write(axes, *places[0], text, fontsize=9.5, fontweight="bold")
    for step, row in enumerate(shown, start=1):
        parents = places
        places = [((place + 0.5) * columns / len(row), float(step)) for place in range(len(row))]
        for node, place in zip(row, places, strict=True):
            is_best = node.ids == best[:step]
            draw_edge(axes, parents[node.parent], place, node.fate, is_best)
            is_end = node.candidate.token == search.eos_token_id
            word = "END" if is_end else visible(words(node.candidate.token))
            draw_node(axes, place, word, node, is_best, 6.2 * 72 / columns)
    draw_legend(figure, {node.fate for row in shown for node in row})
    if len(rows) > len(shown):
        axes.set_title(f"the first {len(shown)} of {len(rows)} steps")
    return figure


def draw_edge(
    axes: Axes, parent: tuple[float, float], child: tuple[float, float], fate: str, is_best: bool
) -> None:
    (x, y), (child_x, child_y) = (parent[0], parent[1] + HALF), (child[0], child[1] - HALF)
    middle = (y + child_y) / 2
    curve = Path(
        [(x, y), (x, middle), (child_x, middle), (child_x, child_y)],
        [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4],
    )
    look: dict[str, Any] = {"edgecolor": BLUE, "lw": 1.2, "zorder": 1}
    if fate == PRUNED:
        look = {"edgecolor": FAINT, "lw": 0.8, "ls": DASHES, "zorder": 0}
    if is_best:
        look |= {"edgecolor": INK, "lw": 2.8, "zorder": 2}
    axes.add_patch(PathPatch(curve, fill=False, **look))


def draw_node(
    axes: Axes,
    place: tuple[float, float],
    word: str,
    node: Node,
    is_best: bool,
    widest: float,
) -> None:
    x, y = place
    face, edge, ink = LOOKS[node.fate]
    edge = INK if is_best and node.fate == KEPT else edge
    box: dict[str, Any] = {"fc": face, "ec": edge, "lw": 2 if is_best else 0.8, "zorder": 3}
    corner, rounded = (x - 0.44, y - HALF), "round,pad=0,rounding_size=0.08"
    axes.add_patch(FancyBboxPatch(corner, 0.88, 2 * HALF, boxstyle=rounded, **box))
    look: dict[str, Any] = {"ha": "center", "va": "center", "color": ink, "zorder": 4}
    weight = "bold" if is_best else "normal"
    size = min(9, 0.84 * widest / (LETTER[weight] * len(word)))
    axes.text(x, y - 0.07, word, fontsize=size, fontweight=weight, **look)
    axes.text(x, y + 0.12, f"{node.candidate.score:.2f}", fontsize=7, **look)


def draw_legend(figure: Picture, shown: Collection[str]) -> None:
    """Add a legend for the kinds of nodes that are shown."""
    handles: list[Any] = [
        Rectangle((0, 0), 1, 1, facecolor=face, edgecolor=edge, label=fate)
        for fate, (face, edge, _) in LOOKS.items()
        if fate in shown and fate != PRUNED
    ]
    if PRUNED in shown:
        handles.append(Line2D([], [], color=FAINT, ls=DASHES, lw=1, label=PRUNED))
    handles.append(Line2D([], [], color=INK, lw=2.8, label="the best text"))
    legend_above(figure, handles=handles, ncols=4)


# ------------------------------------------------------------------------------ finding top k


@shared_look
def sorting_costs(counts: Mapping[str, int], seconds: Mapping[str, float]) -> Picture:
    """Draw the cost of finding the k largest: comparisons counted, time measured."""
    figure, (left, right) = new_figure(height=0.7 + 0.3 * max(len(counts), len(seconds)), columns=2)
    draw_costs(left, counts, "{:,.0f}", ORANGE)
    draw_costs(right, {name: 1000 * time for name, time in seconds.items()}, "{:,.2f} ms", BLUE)
    left.set_title("comparisons")
    right.set_title("time")
    return figure


def draw_costs(axes: Axes, costs: Mapping[str, float], form: str, color: str) -> None:
    rows = range(len(costs))
    bars = axes.barh(rows, list(costs.values()), color=color, height=0.7)
    axes.bar_label(bars, [form.format(cost) for cost in costs.values()], padding=3, fontsize=9)
    name_rows(axes, costs)
    axes.set(xlim=(0, 1.45 * max(costs.values())), xticks=[])
    bare(axes)
