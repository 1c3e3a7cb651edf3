"""What a picture shows, in words: its alternative text, for readers who don't see it."""

import re
from collections.abc import Iterator
from textwrap import shorten

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.text import Text

LONGEST = 400  # characters of what is written in one panel
MOST_BARS = 30  # of one panel; more are a shape, not numbers
ON_A_SCALE = re.compile(r"[−\d.,%]*|\$.*")  # a tick label that is a number


def in_words(figure: Figure) -> str:
    """Describe a figure that has been drawn, panel by panel.

    For each: its title, what its axes measure, where its lines begin and end, how long its bars are
    if no text says it, and what is written in it, row by row. The names in the legends come last.
    """
    panels = [axes for axes in figure.axes if axes.get_visible()]
    legends = [*figure.legends, *filter(None, (axes.get_legend() for axes in panels))]
    sentences = [sentence for axes in panels for sentence in panel_in_words(axes)]
    if names := [plain(text) for legend in legends for text in Legend.get_texts(legend)]:
        sentences.append(f"Legend: {'; '.join(names)}")
    return " ".join(f"{sentence.rstrip('.')}." for sentence in sentences)


def panel_in_words(axes: Axes) -> Iterator[str]:
    titles = (axes.title, axes._left_title, axes._right_title)  # type: ignore[attr-defined]
    if title := "; ".join(plain(text) for text in titles if plain(text)):
        yield title
    if across := plain(axes.xaxis.label):
        yield f"Across: {across}"
    if upward := plain(axes.yaxis.label):
        yield f"{'Down' if axes.yaxis_inverted() else 'Up'}: {upward}"
    for line in axes.lines:
        if sentence := line_in_words(line, axes):
            yield sentence
    if not axes.texts and (bars := list(bars_in_words(axes))):
        yield f"Bars: {'; '.join(bars)}"
    if rows := "; ".join(rows_of([*axes.texts, *names_on(axes.yaxis), *names_on(axes.xaxis)])):
        yield shorten(f"Written: {rows}", LONGEST, placeholder=" …")


def line_in_words(line: Line2D, axes: Axes) -> str:
    """Say where a line begins and ends; nothing for a line that only guides the eye."""
    points = np.asarray(line.get_xydata()).tolist()
    if line.get_transform() != axes.transData or len(points) < 2:
        return ""
    (first, start), (last, end) = points[0], points[-1]
    name = str(line.get_label())
    if name.startswith("_"):
        if start == end or len(points) == 2:
            return ""
        name = "A line"
    return f"{name}: {amount(start)} at {amount(first)}, {amount(end)} at {amount(last)}"


def amount(number: float) -> str:
    return f"{number:,.0f}" if 100 <= abs(number) < 1e9 else f"{number:.3g}"


def bars_in_words(axes: Axes) -> Iterator[str]:
    """Yield the lengths of the bars of one kind, with its name."""
    kinds = [kind for kind in axes.containers if isinstance(kind, BarContainer) and len(kind) > 1]
    if sum(map(len, kinds)) <= MOST_BARS:
        for kind in kinds:
            name = str(kind.get_label())
            lengths = ", ".join(map(amount, np.asarray(kind.datavalues).tolist()))
            yield lengths if name.startswith("_") else f"{name} {lengths}"


def names_on(axis: Axis) -> list[Text]:
    """Return the names on an axis; the numbers of a scale aren't names."""
    labels = axis.get_ticklabels()
    return [] if all(ON_A_SCALE.fullmatch(label.get_text()) for label in labels) else labels


def rows_of(texts: list[Text]) -> Iterator[str]:
    """Yield the texts that are at one height, from left to right, row by row from the top."""
    placed = [(Text.get_window_extent(text), plain(text)) for text in texts if plain(text)]
    row: list[tuple[float, str]] = []
    lowest = None
    for box, text in sorted(placed, key=lambda one: -(one[0].y0 + one[0].y1)):
        middle = (box.y0 + box.y1) / 2
        if lowest is not None and middle < lowest:
            yield in_order(row)
            row, lowest = [], None
        lowest = box.y0 if lowest is None else lowest
        row.append((box.x0, text))
    if row:
        yield in_order(row)


def in_order(row: list[tuple[float, str]]) -> str:
    return ", ".join(text for _, text in sorted(row))


def plain(text: Text) -> str:
    return " ".join(text.get_text().split())
