"""The look that all pictures share: light, calm, legible in a narrow window.

The colours are those of Okabe and Ito ("Color Universal Design", 2008), which stay apart for every
common kind of colour blindness. Nothing is told by colour alone.
"""

from io import BytesIO

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

BLUE = "#0072B2"  # what the learner's code does
ORANGE = "#E69F00"  # what to compare it with
GREEN = "#009E73"
RED = "#D55E00"  # wrong, rejected, wasted
PINK = "#CC79A7"
SKY = "#56B4E9"
GREY = "#8A8F98"  # what stands in the background
PALE = "#E8EAED"  # an empty cell
INK = "#24292F"  # text
MUTED = "#6B7078"  # text in the background
PAPER = f"background:white; color:{INK}; padding:0.5em 0.8em"  # under HTML, in dark themes too

# Fills that can be written on.
PALE_BLUE = "#DCEEF9"
PALE_ORANGE = "#FBE6B8"
PALE_GREEN = "#C4E9DC"
PALE_PINK = "#F1D9E5"

LOOK = {
    "figure.facecolor": "white",
    "figure.dpi": 110,
    "axes.facecolor": "white",
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.labelsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "font.size": 10,
    "grid.color": PALE,
    "legend.frameon": False,
    "text.color": INK,
    "text.parse_math": False,  # a token may be a dollar sign
    "xtick.color": INK,
    "ytick.color": INK,
}


class Picture(Figure):
    """A figure that a notebook shows where a cell returns it, whatever pyplot's backend is."""

    def _repr_png_(self) -> bytes:
        png = BytesIO()
        self.savefig(png, format="png")
        return png.getvalue()


def new_figure(
    height: float = 2.8, width: float = 6.4, columns: int = 1, rows: int = 1
) -> tuple[Picture, list[Axes]]:
    """A figure in the shared look and its axes, row by row. Sizes in inches.

    The figure isn't registered with pyplot: a cell shows it by returning it, exactly once.
    """
    with plt.rc_context(LOOK):
        figure = Picture(figsize=(width, height), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.flat)


def visible(token: str) -> str:
    """A token as it can be read: a space as ␣, a new line as ↵."""
    return token.replace(" ", "␣").replace("\n", "↵") or "(empty)"
