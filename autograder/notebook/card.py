"""What a check shows: a small card, HTML in a notebook and plain text in a terminal."""

import html
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autograder.judging.verdicts import NOT_ATTEMPTED, PASSED, WRONG

# Middle tones, visible on white and on black; everything else keeps the theme's own colors.
COLORS = {PASSED: "#2e9e5b", NOT_ATTEMPTED: "#c98a1b", WRONG: "#d2504b"}
CELL = "text-align:left;vertical-align:top;padding:1px 12px 1px 0"
TABLE = "margin:4px 0;color:inherit;font:inherit"
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
        color = COLORS[self.status]
        paragraphs = "".join(f"<div>{code_marked(p)}</div>" for p in self.paragraphs)
        rows = "".join(
            f'<tr style="background:none"><td style="{CELL};opacity:.7">{html.escape(label)}</td>'
            f'<td style="{CELL}"><code>{html.escape(value)}</code></td></tr>'
            for label, value in self.rows
        )
        folded = (
            '<details><summary style="opacity:.7;cursor:pointer">the case, in Python</summary>'
            f'<pre style="white-space:pre-wrap;margin:2px 0">{html.escape(self.folded)}</pre>'
            "</details>"
        )
        return (
            f'<div style="border-left:4px solid {color};padding:2px 12px;margin:4px 0">'
            f"<div><b>{html.escape(self.name)}</b>: "
            f'<b style="color:{color}">{self.status}</b>'
            + (f", {html.escape(self.points)}" if self.points else "")
            + f"</div>{paragraphs}"
            + (f'<table style="{TABLE}">{rows}</table>' if rows else "")
            + (folded if self.folded else "")
            + "</div>"
        )


def code_marked(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


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
