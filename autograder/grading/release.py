"""The released notebook of a lab, with which every submission is compared."""

from functools import cache

import nbformat
from nbformat import NotebookNode

from autograder.course.lesson import lessons
from autograder.course.reference import ROOT

LABS = ROOT / "labs"


@cache
def release_of(lab: str) -> NotebookNode:
    return nbformat.read(LABS / lessons()[lab].notebook, as_version=4)


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
