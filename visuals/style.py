"""The look that all pictures share: light, calm, legible in a narrow window.

The colors are Okabe and Ito's ("Color Universal Design", 2008), which remain distinct with every
common kind of color blindness. No picture relies on color alone.
"""

import re
from base64 import b64encode
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from html import escape
from io import BytesIO
from itertools import cycle
from typing import Any, ParamSpec

import matplotlib.pyplot as plt
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from visuals.words import in_words

BLUE = "#0072B2"  # the learner's code
ORANGE = "#E69F00"  # the comparison
GREEN = "#009E73"
RED = "#D55E00"  # wrong, rejected, wasted
PINK = "#CC79A7"
SKY = "#56B4E9"
GRAY = "#8A8F98"  # lines in the background
PALE = "#E8EAED"  # an empty cell
INK = "#24292F"  # text
MUTED = "#6B7078"  # text in the background

# Fills that can be written on.
PALE_BLUE = "#DCEEF9"
PALE_ORANGE = "#FBE6B8"
PALE_GREEN = "#C4E9DC"
PALE_PINK = "#F1D9E5"

Look = tuple[str, str, str]  # face, edge and hatching: legible without color
EMPTY: Look = "white", PALE, "////"  # an empty place
RANKS: tuple[Look, ...] = (  # one for each rank
    (PALE_BLUE, BLUE, ""),
    (PALE_ORANGE, ORANGE, "////"),
    (PALE_GREEN, GREEN, "...."),
    (PALE_PINK, PINK, "xxxx"),
)
PLAIN = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # behind text on a hatching

# Color, dashes and marker of lines that are compared.
CURVES = ((BLUE, "-", "o"), (ORANGE, "--", "s"), (PINK, "-.", "^"), (GREEN, ":", "D"))
Mark = dict[str, Any]  # the look of a line or of its points
RING: Mark = {"marker": "o", "ms": 11, "mfc": "none", "mec": INK, "mew": 2, "ls": ""}

LOOK = {
    "figure.facecolor": "white",
    "figure.dpi": 110,
    "axes.facecolor": "white",
    "axes.edgecolor": GRAY,
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


# In the dark themes of JupyterLab and of the site, light becomes dark, and hues stay what they are.
DARK = """<style>
:is([data-jp-theme-light="false"], [data-theme="dark"]) .visual {
  filter: invert(.93) hue-rotate(180deg) }
</style>"""


def on_paper(html: str, look: str = "") -> str:
    """Return HTML on a sheet of its own colors, white or dark as the page's theme is."""
    paper = f"background:white; color:{INK}; padding:0.5em 0.8em; {look}"
    return f'{DARK}<div class="visual" style="{paper}">{html}</div>'


class Picture(Figure):
    """A figure that a notebook shows when a cell returns it, with any backend of pyplot.

    about: a sentence that says what is drawn.
    """

    about = ""

    def png(self, bbox: str | None = None) -> bytes:
        png = BytesIO()
        self.savefig(png, format="png", bbox_inches=bbox)
        return png.getvalue()

    def html(self, bbox: str | None = None) -> str:
        """Return the picture as an image with an alternative text.

        bbox: "tight" cuts empty margins, so pictures of one size may differ in theirs.
        """
        png = b64encode(self.png(bbox)).decode()  # first, because words are read off what is drawn
        image = f'<img alt="{escape(self.words())}" src="data:image/png;base64,{png}"'
        return f'{DARK}{image} class="visual dark-light" style="max-width:100%">'

    def words(self) -> str:
        """Say what the picture shows. It must have been drawn."""
        return f"{self.about} {in_words(self)}".strip()

    def _ipython_display_(self) -> None:
        # Not a method for each kind: pyplot's backend adds the same picture without the words.
        display({"text/html": self.html("tight"), "text/plain": self.words()}, raw=True)


Handed = ParamSpec("Handed")


def shared_look(draw: Callable[Handed, Picture]) -> Callable[Handed, Picture]:
    """Draw in the shared look. The first sentence of the docstring says what the picture shows."""
    sentence = re.match(r"Draw,? (.+?\.)(?:\s|$)", draw.__doc__ or "", re.DOTALL)
    if sentence is None:
        raise ValueError(f"The docstring of {draw.__name__} doesn't begin with what it draws.")
    about = " ".join(sentence[1].split())

    @wraps(draw)
    def in_look(*args: Handed.args, **named: Handed.kwargs) -> Picture:
        with plt.rc_context(LOOK):
            picture = draw(*args, **named)
        picture.about = about[0].upper() + about[1:]
        return picture

    return in_look


def new_figure(
    height: float = 2.8, width: float = 6.4, columns: int = 1, rows: int = 1
) -> tuple[Picture, list[Axes]]:
    """Return a figure in the shared look, and its axes row by row. Sizes are in inches.

    The figure isn't registered with pyplot, so a cell shows it exactly once, by returning it.
    """
    with plt.rc_context(LOOK):
        figure = Picture(figsize=(width, height), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.flat)


def bare(axes: Axes) -> None:
    """Remove the frame and the tick marks; the tick labels stay."""
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def fill(look: Look) -> dict[str, Any]:
    return dict(zip(("facecolor", "edgecolor", "hatch"), look, strict=True))


def draw_legend(figure: Figure, looks: Mapping[str, Look]) -> None:
    """Draw a legend above the figure: the name of each kind, with its fill."""
    handles = [Patch(label=name, **fill(look)) for name, look in looks.items()]
    legend_above(figure, handles=handles, ncols=len(handles))


def legend_above(figure: Figure, *entries: Any, ncols: int = 2, **look: Any) -> None:
    """Explain a figure's colors, lines and markers above it."""
    figure.legend(*entries, loc="outside upper left", ncols=ncols, fontsize=9, **look)


def write(axes: Axes, x: float, y: float, text: str, **look: Any) -> None:
    """Write a text centered at a point."""
    axes.text(x, y, text, ha="center", va="center", **look)


def write_behind(axes: Axes, x: float, y: float, text: str, gap: float = 3, **look: Any) -> None:
    """Write a text that begins `gap` typographic points to the right of a point."""
    look = {"fontsize": 8} | look
    axes.annotate(text, (x, y), (gap, 0), textcoords="offset points", va="center", **look)


def name_rows(axes: Axes, names: Collection[str]) -> None:
    """Number the rows from the top down, with their names on the left."""
    axes.set_yticks(range(len(names)), list(names))
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)


def draw_bars(
    axes: Axes, numbers: Mapping[Any, float], label: Callable[..., str], *looks: Look
) -> None:
    """Draw a bar for each number, its label on top and its name below; the looks take turns."""
    for place, (number, look) in enumerate(zip(numbers.values(), cycle(looks), strict=False)):
        bar = axes.bar(place, number, 0.7, **fill(look))
        axes.bar_label(bar, [label(number)], padding=3, fontsize=9)
    axes.set_xticks(range(len(numbers)), [str(name) for name in numbers])
    axes.set(yticks=[], ylim=(0, 1.25 * max([1e-9, *numbers.values()])))
    axes.tick_params(axis="x", length=0)
    axes.spines["left"].set_visible(False)


def probability_axis(axes: Axes, largest: float, room: float) -> float:
    """Scale an axis of probabilities so that small ones are visible. Return its limit.

    room: how many times as far the axis reaches, to leave space for labels.
    """
    edge = next((edge for edge in (0.1, 0.2, 0.5) if largest <= edge), 1)
    axes.set(xlim=(0, room * edge), xlabel="probability")
    axes.set_xticks([0, edge / 2, edge], ["0", f"{edge / 2:.0%}", f"{edge:.0%}"])
    return room * edge


def ending(text: str, longest: int) -> str:
    """Return the last `longest` characters of a text, on one line."""
    line = text.replace("\n", "↵")
    return line if len(line) <= longest else f"…{line[-longest:]}"


def visible(token: str) -> str:
    """Return a token with visible white space: a space as ␣, a line break as ↵."""
    return token.replace(" ", "␣").replace("\n", "↵") or "(empty)"
