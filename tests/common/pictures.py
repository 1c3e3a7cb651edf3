"""Read a picture: its texts and numbers, its legend, its boxes and lines."""

import re
from collections.abc import Mapping
from html import unescape
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from visuals.style import Look

NUMBER = re.compile(r"[+-]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]\d+)?")

# ------------------------------------------------------------------------------------------ texts


def title_of(axes: Axes) -> str:
    return axes.get_title("left")


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def cells(axes: Axes) -> dict[tuple[int, int], str]:
    """Return the text of each cell, by its (column, row)."""
    found: dict[tuple[int, int], str] = {}
    for text in axes.texts:
        x, y = map(int, text.get_position())
        found[x, y] = f"{found.get((x, y), '')} {text.get_text()}".strip()
    return found


def names(axis: Any) -> list[str]:
    """Return the tick labels of an axis."""
    return [label.get_text() for label in axis.get_ticklabels()]


def legend_of(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def numbers_in(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in NUMBER.findall(text)]


def told(axes: Axes) -> list[float]:
    """Return the numbers in the title."""
    return numbers_in(title_of(axes))


def said(axes: Axes) -> list[list[float]]:
    """Return the numbers in each text."""
    return [numbers_in(text) for text in texts(axes)]


def read(html: str) -> str:
    """Return the visible text of some HTML."""
    return unescape(re.sub("<style>.*?</style>|<[^>]+>", "", html, flags=re.DOTALL))


# ----------------------------------------------------------------------------------------- shapes


def widths(axes: Any) -> list[float]:
    """Return the widths of the bars that aren't hatched."""
    return [bar.get_width() for bar in axes.patches if not bar.get_hatch()]


def heights(axes: Any) -> list[float]:
    return [bar.get_height() for bar in axes.patches]


def spans(axes: Any) -> list[tuple[float, float]]:
    """Return where each horizontal bar begins and ends."""
    return [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches]


def curves(axes: Any) -> list[dict[float, float]]:
    """Return the points of each line: {x: y}."""
    return [dict(zip(line.get_xdata(), line.get_ydata(), strict=True)) for line in axes.lines]


def marked(axes: Any, mark: Mapping[str, Any]) -> list[list[tuple[float, float]]]:
    """Return the points (x, y) of each line with this marker and color."""
    return [
        list(zip(line.get_xdata(), line.get_ydata(), strict=True))
        for line in axes.lines
        if (line.get_marker(), line.get_color()) == (mark["marker"], mark["color"])
    ]


def dots(axes: Any) -> set[tuple[float, float]]:
    """Return the (row, column) of each dot in the last scatter plot."""
    return {(row, column) for column, row in axes.collections[-1].get_offsets().tolist()}


def boxes(axes: Any, looks: Mapping[str, Look]) -> list[tuple[str, float, float, float, float]]:
    """Return each box as its kind, left and right end, lower and upper end."""
    return [
        (kind_of(box, looks), x, x + box.get_width(), y, y + box.get_height())
        for box in axes.patches
        for x, y in [box.get_xy()]
    ]


def kind_of(patch: Patch, looks: Mapping[str, Look]) -> str:
    """Return the kind of a patch, found by its face, edge and hatching."""
    shown = patch.get_facecolor(), to_hex(patch.get_edgecolor()), patch.get_hatch() or ""
    return {(to_rgba(f), to_hex(e), h or ""): kind for kind, (f, e, h) in looks.items()}[shown]
