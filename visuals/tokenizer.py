"""Pictures for lab 16: how a word is merged, what a vocabulary gives and costs, a stream of text.

Each function draws only its arguments, and returns HTML, a figure or a widget.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from html import escape
from itertools import accumulate, cycle, pairwise

import ipywidgets as widgets
from IPython.display import HTML
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from visuals.explorer import choice, explore
from visuals.style import (
    BLUE,
    CURVES,
    GRAY,
    INK,
    MUTED,
    PALE,
    PALE_BLUE,
    PALE_ORANGE,
    RED,
    RING,
    Look,
    Picture,
    bare,
    fill,
    legend_above,
    new_figure,
    on_paper,
    shared_look,
    visible,
    write,
)

Parts = Sequence[bytes]  # of a word
Span = tuple[int, int]  # where a part begins and ends in its word, in bytes

OLD: Look = "white", GRAY, ""
NEW: Look = PALE_ORANGE, INK, ""


def readable(token: bytes) -> str:
    """Return the text of a token with visible white space; if it isn't UTF-8, its bytes in hex."""
    try:
        return visible(token.decode())
    except UnicodeDecodeError:
        return token.hex(" ").upper()


# ----------------------------------------------------------------------------------- merging


@shared_look
def merge_rounds(rounds: Sequence[Parts], ranks: Mapping[tuple[bytes, bytes], int]) -> Picture:
    """Draw the parts of a word after each round: a row for a round, a box for a part.

    rounds: the parts before the first merge, then after each. ranks: the rank of each merge, which
    is written next to its row. The parts that a round has made are filled.
    """
    length = sum(map(len, rounds[0]))
    figure, (axes,) = new_figure(height=0.7 + 0.33 * len(rounds))
    for row, parts in enumerate(rounds):
        before = spans(rounds[row - 1]) if row else spans(parts)
        for (start, end), part in spans(parts).items():
            is_new = (start, end) not in before
            look = fill(NEW if is_new else OLD)
            axes.add_patch(Rectangle((start + 0.06, row - 0.38), end - start - 0.12, 0.76, **look))
            bold = "bold" if is_new else "normal"
            write(axes, (start + end) / 2, row, readable(part), fontsize=9, fontweight=bold)
        label = "bytes" if not row else f"rank {rank_of(before, parts, ranks):,}"
        axes.text(length + 0.2, row, label, va="center", fontsize=9, color=MUTED)
    axes.set(xlim=(-0.1, length + 2.4), ylim=(len(rounds) - 0.5, -0.5), xticks=[], yticks=[])
    axes.set_title(f"{length} bytes become {len(rounds[-1])} tokens")
    bare(axes)
    return figure


def spans(parts: Parts) -> dict[Span, bytes]:
    """Return the parts of a word by their places in it."""
    ends = [0, *accumulate(map(len, parts))]
    return dict(zip(pairwise(ends), parts, strict=True))


def rank_of(
    before: Mapping[Span, bytes], parts: Parts, ranks: Mapping[tuple[bytes, bytes], int]
) -> int:
    """Return the rank of the merge that has made a round's new parts."""
    new = spans(parts).keys() - before.keys()
    joined = [
        (before[left], before[right])
        for left, right in pairwise(before)
        if (left[0], right[1]) in new
    ]
    return ranks[joined[0]]


# --------------------------------------------------------------------------- a vocabulary's size

LINE = 48  # characters of the example in a line
FEWEST_LINES = 2  # that the example has room for
SIZES = (256, 512, 1024, 2048, 4096)  # of vocabularies, on the axis


def explore_merges(
    bytes_per_token: Mapping[int, float], cut: Callable[[int], Parts]
) -> widgets.VBox:
    """Show `merges_at` with a slider over the numbers of merges, and a sentence."""
    return explore(
        partial(merges_at, bytes_per_token, cut),
        choice("merges", bytes_per_token, start=list(bytes_per_token)[len(bytes_per_token) // 2]),
        words=partial(merges_in_words, bytes_per_token, cut),
    )


@shared_look
def merges_at(
    bytes_per_token: Mapping[int, float], cut: Callable[[int], Parts], merges: int
) -> Picture:
    """Draw the bytes per token against the number of merges, and below it how a text is cut.

    bytes_per_token: by the number of merges, ascending. cut: returns the tokens of an example for
    a number of merges. `merges` is marked.
    """
    lines = list(wrapped(cut(merges)))
    figure, (curve, text) = new_figure(height=3.7, rows=2)
    curve.plot(list(bytes_per_token), list(bytes_per_token.values()), "o-", color=BLUE, ms=4)
    curve.plot(merges, bytes_per_token[merges], **RING)
    curve.set(ylim=(0, None), xlabel="merges", title="bytes per token")
    curve.grid(axis="y")
    for row, tokens in enumerate(lines):
        draw_boxes(text, row, tokens)
    bottom = max(len(lines), FEWEST_LINES) - 0.4
    text.set(xlim=(-0.1, LINE + 0.3), ylim=(bottom, -0.6), xticks=[], yticks=[])
    bare(text)
    return figure


def draw_boxes(axes: Axes, row: int, tokens: Parts) -> None:
    """Draw tokens in a row, each in a box as wide as its text."""
    place = 0
    for token, color in zip(tokens, cycle((PALE_BLUE, "white")), strict=False):
        shown = readable(token)
        box = Rectangle((place, row - 0.4), len(shown), 0.8, facecolor=color, edgecolor=GRAY)
        axes.add_patch(box)
        look = {"fontsize": 9, "family": "monospace"}
        write(axes, place + len(shown) / 2, row, shown, **look)
        place += len(shown)


def wrapped(tokens: Parts) -> Iterator[list[bytes]]:
    """Yield lines of tokens, none of them longer than `LINE` characters."""
    line: list[bytes] = []
    for token in tokens:
        if line and sum(len(readable(part)) for part in [*line, token]) > LINE:
            yield line
            line = []
        line.append(token)
    yield line


def merges_in_words(
    bytes_per_token: Mapping[int, float], cut: Callable[[int], Parts], merges: int
) -> str:
    tokens = cut(merges)
    return (
        f"With {merges:,} merges the whole text has {bytes_per_token[merges]:.2f} bytes per token. "
        f"The example's {sum(map(len, tokens))} bytes are {len(tokens)} tokens."
    )


@shared_look
def vocabulary_costs(costs: Mapping[str, Mapping[int, float]]) -> Picture:
    """Draw the work per byte of text against the vocabulary's size, a line for each model.

    costs: the work by the size of the vocabulary, ascending; it is drawn compared with that of the
    smallest vocabulary. The least of each line is marked.
    """
    figure, (axes,) = new_figure(height=3.0)
    for (name, work), (color, dashes, marker) in zip(costs.items(), cycle(CURVES), strict=False):
        first = next(iter(work.values()))
        shares = {size: cost / first for size, cost in work.items()}
        line = f"{marker}{dashes}"
        axes.plot(list(shares), list(shares.values()), line, color=color, ms=5, label=name)
        best = min(shares, key=shares.__getitem__)
        axes.plot(best, shares[best], **RING)
    axes.set_xscale("log")
    axes.set_xticks(SIZES, [f"{size:,}" for size in SIZES])
    axes.minorticks_off()
    axes.set(xlabel="tokens in the vocabulary", ylim=(0, 1.08))
    axes.set_title("multiplications per byte of text, compared with bytes alone")
    axes.grid(axis="y")
    legend_above(figure)
    return figure


# -------------------------------------------------------------------------------- a stream of text

COLUMN = (
    "display:inline-block; vertical-align:top; text-align:center; font-family:monospace; "
    f"min-width:2.6em; padding:2px 5px; border-left:1px solid {PALE}"
)
CELL = "height:1.5em; white-space:pre"
TOKEN, ALONE, SHOWN, HELD = "token", "decoded alone", "shown", "held"
CELLS = {
    TOKEN: f"{CELL}; color:{MUTED}",
    ALONE: CELL,
    SHOWN: f"{CELL}; background:{PALE_BLUE}; font-weight:bold",
    HELD: f"{CELL}; color:{MUTED}; font-style:italic",
}
TORN = "\ufffd"


def show_stream(tokens: Parts, pieces: Sequence[str], held: Parts) -> HTML:
    """Show a stream, a column for each token: its bytes, the text shown at once, the bytes held.

    pieces: what is shown after each token. held: the bytes that are held after it. The row
    "decoded alone" is what a client would see if each token were decoded by itself.
    """
    columns = [stream_column(list(CELLS))]
    for token, piece, rest in zip(tokens, pieces, held, strict=True):
        alone = visible(token.decode("utf-8", "replace"))
        shown = visible(piece) if piece else ""
        waiting = f"[{rest.hex(' ').upper()}]" if rest else ""
        columns.append(stream_column([readable(token), alone, shown, waiting]))
    return HTML(on_paper("".join(columns), "line-height:1.5em"))


def stream_column(cells: Sequence[str]) -> str:
    """Return a column of the stream, with a cell for each row."""
    rows = []
    for look, cell in zip(CELLS.values(), cells, strict=True):
        torn = f"; color:{RED}" if TORN in cell else ""
        rows.append(f'<div style="{look}{torn}">{escape(cell)}</div>')
    return f'<div style="{COLUMN}">{"".join(rows)}</div>'
