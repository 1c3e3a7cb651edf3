"""What a picture says: its texts and numbers, its legend, and what its boxes and lines show."""

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

# ------------------------------------------------------------------------------- what is written


def title_of(axes: Axes) -> str:
    return axes.get_title("left")


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def cells(axes: Axes) -> dict[tuple[int, int], str]:
    """What stands where: (column, row) of the cell -> text."""
    found: dict[tuple[int, int], str] = {}
    for text in axes.texts:
        x, y = map(int, text.get_position())
        found[x, y] = f"{found.get((x, y), '')} {text.get_text()}".strip()
    return found


def names(axis: Any) -> list[str]:
    """What stands at the ticks of an axis."""
    return [label.get_text() for label in axis.get_ticklabels()]


def legend_of(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def numbers_in(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in NUMBER.findall(text)]


def told(axes: Axes) -> list[float]:
    """The numbers of a title."""
    return numbers_in(title_of(axes))


def said(axes: Axes) -> list[list[float]]:
    """The numbers of each text."""
    return [numbers_in(text) for text in texts(axes)]


def read(html: str) -> str:
    """What is read of it."""
    return unescape(re.sub("<[^>]+>", "", html))


# --------------------------------------------------------------------------------- what is drawn


def widths(axes: Any) -> list[float]:
    """Of bars that aren't hatched."""
    return [bar.get_width() for bar in axes.patches if not bar.get_hatch()]


def heights(axes: Any) -> list[float]:
    return [bar.get_height() for bar in axes.patches]


def spans(axes: Any) -> list[tuple[float, float]]:
    """Where each bar that lies begins and ends."""
    return [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches]


def curves(axes: Any) -> list[dict[float, float]]:
    """The points of each line."""
    return [dict(zip(line.get_xdata(), line.get_ydata(), strict=True)) for line in axes.lines]


def marked(axes: Any, mark: Mapping[str, Any]) -> list[list[tuple[float, float]]]:
    """The points (x, y) of each line that has this marker and colour."""
    return [
        list(zip(line.get_xdata(), line.get_ydata(), strict=True))
        for line in axes.lines
        if (line.get_marker(), line.get_color()) == (mark["marker"], mark["color"])
    ]


def dots(axes: Any) -> set[tuple[float, float]]:
    """The (row, column) of each dot of a scattering, the last one drawn."""
    return {(row, column) for column, row in axes.collections[-1].get_offsets().tolist()}


def boxes(axes: Any, looks: Mapping[str, Look]) -> list[tuple[str, float, float, float, float]]:
    """Of each box its kind, from where to where it goes in x, and from where to where in y."""
    return [
        (kind_of(box, looks), x, x + box.get_width(), y, y + box.get_height())
        for box in axes.patches
        for x, y in [box.get_xy()]
    ]


def kind_of(patch: Patch, looks: Mapping[str, Look]) -> str:
    """The kind that a patch shows, by all of its look."""
    shown = patch.get_facecolor(), to_hex(patch.get_edgecolor()), patch.get_hatch() or ""
    return {(to_rgba(f), to_hex(e), h or ""): kind for kind, (f, e, h) in looks.items()}[shown]
