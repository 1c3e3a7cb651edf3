"""What a check shows: a small card, HTML in a notebook and plain text in a terminal."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autograder.judging.verdicts import NOT_ATTEMPTED, PASSED, WRONG
from autograder.text.templates import render

CARD = Path(__file__).with_name("card.html")
# Middle tones, visible on white and on black; everything else keeps the theme's own colors.
COLORS = {PASSED: "#2e9e5b", NOT_ATTEMPTED: "#c98a1b", WRONG: "#d2504b"}
MOST_CHARACTERS = 600  # of a folded text, in a terminal


@dataclass(frozen=True, repr=False)
class VerdictCard:
    """A headline with its status, paragraphs (`code` between backticks), labeled values, a text
    that is folded away in a notebook, and in a graded one the points ("2 of 2 points")."""

    name: str
    status: str
    paragraphs: Sequence[str]
    rows: Sequence[tuple[str, str]] = ()
    folded: str = ""
    points: str = ""

    def __repr__(self) -> str:
        width = max((len(label) for label, _ in self.rows), default=0)
        rows = [f"  {label + ':':{width + 1}} {value}" for label, value in self.rows]
        paragraphs = [f"  {paragraph}" for paragraph in self.paragraphs]
        folded = [
            f"    {line}" for line in self.folded.splitlines() if len(self.folded) < MOST_CHARACTERS
        ]
        points = f", {self.points}" if self.points else ""
        return "\n".join([f"{self.name}: {self.status}{points}", *paragraphs, *rows, *folded])

    def _repr_html_(self) -> str:
        return render(CARD, card=self, color=COLORS[self.status])


def in_ipython() -> Any:
    """IPython's shell where it is running, else None; without importing it where it isn't."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def show(thing: Any) -> None:
    """Display in a notebook, print in a terminal."""
    if in_ipython():
        from IPython.display import display

        display(thing)
    else:
        print(thing)
