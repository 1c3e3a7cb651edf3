"""The released notebook of a lab: its cells, its code, and what stands around an exercise."""

from functools import cache

import nbformat
from nbformat import NotebookNode

from autograder.attempt.notebook import python_of
from autograder.text.lesson import lessons
from autograder.text.reference import ROOT

LABS = ROOT / "labs"


@cache
def release_of(lab: str) -> NotebookNode:
    return nbformat.read(LABS / lessons()[lab].notebook, as_version=4)


def code_of(lab: str) -> list[str]:
    """Return the code cells of a lab's released notebook as Python, without magics."""
    return [python_of(cell.source) for cell in release_of(lab).cells if cell.cell_type == "code"]


def heading_of(exercise: str) -> str:
    """Return the heading of the section with an exercise, which students should read again."""
    heading = ""
    for cell in release_of(exercise.split(".")[0]).cells:
        if cell.cell_type == "markdown":
            titles = [line for line in cell.source.splitlines() if line.startswith("## ")]
            heading = titles[-1].removeprefix("## ") if titles else heading
        if cell.id == f"check-{exercise.replace('.', '-')}":
            return heading
    raise ValueError(f"The released notebook has no check of {exercise}. Run: make labs")
