"""What a picture says: its texts, its legend, and the kinds that its boxes show."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from visuals.prefix_caching import Look


def legend_of(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def title_of(axes: Axes) -> str:
    return axes.get_title("left")


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def kind_of(patch: Patch, looks: Mapping[str, Look]) -> str:
    """The kind that a patch shows, by all of its look."""
    shown = patch.get_facecolor(), to_hex(patch.get_edgecolor()), patch.get_hatch() or ""
    return {(to_rgba(f), to_hex(e), h or ""): kind for kind, (f, e, h) in looks.items()}[shown]
