"""Find lines of solutions in a text, such as a page of the built site."""

import html
import re
from functools import cache

import nbformat

from autograder.build import read_modules, stretches
from autograder.text.reference import ROOT, SOLUTIONS

SHORTEST = 12  # characters; a shorter line, such as "return ids", tells nothing


def leaks(text: str) -> list[str]:
    """Return the lines of solutions in a text, which may be HTML."""
    inside = squeezed(text) + squeezed(html.unescape(re.sub(r"<[^<>]*>", "", text)))
    return [line for short, line in solution_lines().items() if short in inside]


@cache
def solution_lines() -> dict[str, str]:
    """Return each line that only a solution has, by its squeezed form.

    Lines that a lab or gpt.py shows as given code reveal nothing.
    """
    labs = [nbformat.read(path, as_version=4) for path in sorted(ROOT.glob("labs/*/*.ipynb"))]
    shown = [cell.source for lab in labs for cell in lab.cells]
    given = squeezed("\n".join([*shown, (ROOT / "gpt.py").read_text(encoding="utf-8")]))
    solutions = stretches(read_modules(SOLUTIONS)).values()
    lines = [line.split("  # ")[0].strip() for solution in solutions for line in solution]
    telling = [line for line in lines if len(line) >= SHORTEST and not line.startswith("#")]
    return {squeezed(line): line for line in telling if squeezed(line) not in given}


def squeezed(text: str) -> str:
    """Return a text without white space, its quotation marks all of one kind."""
    return re.sub(r"\s", "", text).replace("'", '"')
