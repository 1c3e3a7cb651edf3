"""What hostile submissions are made of: a lab as released, a lab as solved, and edits of both."""

import json
import re
import textwrap
from collections.abc import Callable, Set
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from autograder.course.lesson import lessons
from autograder.course.reference import ROOT, lab_module

STUB = re.compile(r"^( *)# TODO: write this part\n *raise NotImplementedError\(.*\)$", re.MULTILINE)
ALL, NONE = "all", "none"

Expected = str | Set[str]  # ALL, NONE, or the exercises that earn nothing
Content = Callable[[NotebookNode, NotebookNode], bytes]
Edit = Callable[[NotebookNode], Any]


def ordinary_file(folder: Path, content: bytes) -> None:
    """What a student hands in, in the folder of the lab."""
    folder.mkdir(parents=True)
    (folder / f"{folder.name.split('_', 1)[1]}.ipynb").write_bytes(content)


@dataclass(frozen=True)
class Hostile:
    """One submission, and what it must come to.

    notebook: makes it of the solved and of the released notebook. files: puts it into the folder of
    the student's lab, which isn't there yet. says: a part of what the mark of `exercise` tells, or
    of the remarks where no exercise is named.
    """

    name: str
    family: str
    lab: str
    notebook: Content
    expected: Expected
    says: str = ""
    exercise: str | None = None
    files: Callable[[Path, bytes], None] = ordinary_file
    student: str = "mallory"

    @property
    def content(self) -> bytes:
        return self.notebook(solved(self.lab), released(self.lab))

    @property
    def points(self) -> dict[str, float]:
        """What each exercise must earn."""
        cards = lessons()[self.lab].cards
        lost = self.expected if isinstance(self.expected, Set) else set()
        full = 0 if self.expected == NONE else 1
        return {name: full * c.points * (name not in lost) for name, c in cards.items()}


# ------------------------------------------------------------------------- released and solved


def released(lab: str) -> NotebookNode:
    return deepcopy(read_released(lab))


@cache
def read_released(lab: str) -> NotebookNode:
    return nbformat.read(ROOT / "labs" / lessons()[lab].notebook, as_version=4)


def solved(lab: str) -> NotebookNode:
    """The released notebook with the reference in every TODO."""
    notebook, module = released(lab), lab_module(lab)
    for exercise in lessons()[lab].cards:
        path = exercise.split(".", 1)[1]
        write(notebook, exercise, "\n".join(module.stretch(path)))
    return notebook


def write(notebook: NotebookNode, exercise: str, body: str) -> NotebookNode:
    """Put a student's lines into the TODO of an exercise."""
    cell, path = solution_cell(notebook, exercise), exercise.split(".", 1)[1]
    todo = STUB.search(cell.source, cell.source.index(f"def {path.split('.')[-1]}("))
    assert todo is not None, exercise
    lines = textwrap.indent(textwrap.dedent(body).strip("\n"), todo[1])
    cell.source = cell.source[: todo.start()] + lines + cell.source[todo.end() :]
    return notebook


# ----------------------------------------------------------------------------- cells and edits


def grade_id(cell: NotebookNode) -> str:
    return cell.metadata.get("nbgrader", {}).get("grade_id", "")


def check_cell(notebook: NotebookNode, exercise: str) -> NotebookNode:
    return next(c for c in notebook.cells if grade_id(c) == f"check-{exercise.replace('.', '-')}")


def solution_cell(notebook: NotebookNode, exercise: str) -> NotebookNode:
    """The cell before an exercise's check; two methods of one class share it."""
    end = notebook.cells.index(check_cell(notebook, exercise))
    cells = [c for c in notebook.cells[:end] if c.metadata.get("nbgrader", {}).get("solution")]
    return cells[-1]


def prepend(notebook: NotebookNode, exercise: str, source: str) -> NotebookNode:
    """Put module-level lines before what stands in the cell of an exercise."""
    cell = solution_cell(notebook, exercise)
    cell.source = f"{textwrap.dedent(source).strip()}\n\n\n{cell.source}"
    return notebook


def append(notebook: NotebookNode, exercise: str, source: str) -> NotebookNode:
    cell = solution_cell(notebook, exercise)
    cell.source = f"{cell.source}\n\n\n{textwrap.dedent(source).strip()}"
    return notebook


def replace(notebook: NotebookNode, exercise: str, old: str, new: str) -> NotebookNode:
    cell = solution_cell(notebook, exercise)
    assert old in cell.source, old
    cell.source = cell.source.replace(old, new)
    return notebook


def rewrite(notebook: NotebookNode, exercise: str, body: str) -> NotebookNode:
    """Put other lines in the place of the right ones."""
    right = textwrap.indent(right_lines(exercise), "    ")
    new = textwrap.indent(textwrap.dedent(body).strip(), "    ")
    return replace(notebook, exercise, right, new)


def insert(notebook: NotebookNode, exercise: str, source: str, before: bool = True) -> NotebookNode:
    """Add a cell of the student's own before the cell of an exercise, or behind it."""
    cell = nbformat.v4.new_code_cell(textwrap.dedent(source).strip())
    at = notebook.cells.index(solution_cell(notebook, exercise))
    notebook.cells.insert(at if before else at + 1, cell)
    return notebook


def as_bytes(notebook: NotebookNode) -> bytes:
    """As a file; nothing of it is checked, or put right."""
    return json.dumps(notebook).encode()


# ------------------------------------------------------------------------------- submissions


def attempt(
    family: str,
    name: str,
    exercise: str,
    body: str,
    above: str = "",
    says: str = "",
    others: bool = False,
) -> Hostile:
    """A submission that attacks in the TODO of one exercise, and in module-level lines above it.

    others: whether the other exercises are right, to show that they keep their points.
    """

    def notebook(solved: NotebookNode, released: NotebookNode) -> bytes:
        if others:
            solution_cell(solved, exercise).source = solution_cell(released, exercise).source
        found = write(solved if others else released, exercise, body)
        return as_bytes(prepend(found, exercise, above) if above else found)

    lost = frozenset({exercise}) if others else NONE
    return Hostile(name, family, exercise.split(".")[0], notebook, lost, says, exercise)


BYTES = "kv_cache.kv_bytes_per_token"  # the quickest exercise to attack: numbers in, a number out
RIGHT = "2 * config.n_layer * config.n_embd * bytes_per_number"


def spoils(family: str, name: str, source: str) -> Hostile:
    """A submission that is right only if its attack succeeds: if `source` sets `won`."""
    body = f"{guarded(source)}\nreturn {RIGHT} if won else 0"
    return attempt(family, name, BYTES, body, says="The number of bytes is 0; expected")


def guarded(source: str) -> str:
    """Lines that may set `won`; whatever stops them means that they have not."""
    lines = textwrap.indent(textwrap.dedent(source).strip(), "    ")
    return f"won = False\ntry:\n{lines}\nexcept Exception:\n    won = False"


def edited(family: str, lab: str, start: str, expected: Expected, **named: Any) -> Callable:
    """A decorator for an edit of the solved or the released notebook; its name is the attack's.

    The edit changes the notebook, or returns the bytes to hand in.
    """

    def decorate(edit: Edit) -> Hostile:
        def notebook(solved: NotebookNode, released: NotebookNode) -> bytes:
            chosen = {"solved": solved, "released": released}[start]
            made = edit(chosen)
            return made if isinstance(made, bytes) else as_bytes(chosen)

        name = edit.__name__.replace("_", " ")
        lost = expected if isinstance(expected, str) else frozenset(expected)
        return Hostile(name, family, lab, notebook, lost, **named)

    return decorate


LOOP, METRICS = "generate.generate", "generate.metrics"  # lab 1's, judged in this order


def right_lines(exercise: str) -> str:
    """What the reference has in the place of the TODO."""
    lab, path = exercise.split(".", 1)
    return textwrap.dedent("\n".join(lab_module(lab).stretch(path)))


def works_and_does(
    family: str, name: str, source: str, expected: Expected = ALL, last: bool = False
) -> Hostile:
    """Both exercises of lab 1 are right, and the first, or the last, does something else before."""

    def notebook(solved: NotebookNode, released: NotebookNode) -> bytes:
        does, other = (METRICS, LOOP) if last else (LOOP, METRICS)
        write(released, does, f"{textwrap.dedent(source).strip()}\n{right_lines(does)}")
        return as_bytes(write(released, other, right_lines(other)))

    return Hostile(name, family, "generate", notebook, expected)


def leaves(family: str, name: str, leave: str, found: str) -> Hostile:
    """The second exercise is right only if it finds what the first one left: if it sets `won`."""

    def notebook(solved: NotebookNode, released: NotebookNode) -> bytes:
        write(released, LOOP, f"{guarded(leave)}\n{right_lines(LOOP)}")
        body = f"{guarded(found)}\nif not won:\n    return 'nothing was left'\n"
        return as_bytes(write(released, METRICS, body + right_lines(METRICS)))

    lost, says = frozenset({METRICS}), "nothing was left"
    return Hostile(name, family, "generate", notebook, lost, says, METRICS)
