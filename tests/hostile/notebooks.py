"""What hostile submissions are made of: a lab as released, a lab as solved, and edits of both."""

import json
import re
import textwrap
from collections.abc import Callable, Mapping, Set
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from autograder.text.lesson import lessons
from autograder.text.reference import ROOT, lab_module

STUB = re.compile(r"^( *)# TODO: write this part\n *raise NotImplementedError\(.*\)$", re.MULTILINE)
ALL, NONE = "all", "none"

Expected = str | Set[str]  # ALL, NONE, or the exercises that earn nothing
Edit = Callable[[NotebookNode], Any]


def ordinary_file(folder: Path, content: bytes) -> None:
    """What a student hands in, in the folder of the lab."""
    folder.mkdir(parents=True)
    (folder / f"{folder.name.split('_', 1)[1]}.ipynb").write_bytes(content)


@dataclass(frozen=True)
class Hostile:
    """One submission, and what it must come to.

    made: gives the file. files: puts it into the folder of the student's lab, which isn't there
    yet. says: a part of what the mark of `exercise` tells, or of the remarks where no exercise is
    named.
    """

    name: str
    family: str
    lab: str
    made: Callable[[], bytes]
    expected: Expected
    says: str = ""
    exercise: str | None = None
    files: Callable[[Path, bytes], None] = ordinary_file
    student: str = "mallory"

    @property
    def content(self) -> bytes:
        return self.made()

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
    notebook = released(lab)
    for exercise in lessons()[lab].cards:
        write(notebook, exercise, right_lines(exercise))
    return notebook


def right_lines(exercise: str) -> str:
    """What the reference has in the place of the TODO."""
    lab, path = exercise.split(".", 1)
    return textwrap.dedent("\n".join(lab_module(lab).stretch(path)))


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


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


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


def rewrite(notebook: NotebookNode, exercise: str, body: str) -> NotebookNode:
    """Put other lines in the place of the right ones."""
    right = textwrap.indent(right_lines(exercise), "    ")
    cell, new = solution_cell(notebook, exercise), textwrap.indent(textwrap.dedent(body), "    ")
    assert right in cell.source
    cell.source = cell.source.replace(right, new)
    return notebook


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

BYTES = "kv_cache.kv_bytes_per_token"  # the quickest exercise to attack: numbers in, a number out
LOOP, METRICS = "generate.generate", "generate.metrics"  # lab 1's, judged in this order

# Above every attack: what attacks take of the standard library, and a class of things that equal
# everything. Of this a worker runs only what the attack uses.
TOOLS = """
import atexit, contextlib, ctypes, gc, glob, itertools, json, mmap, multiprocessing, os, pathlib
import re, resource, signal, socket, stat, struct, sys, threading, time, types, warnings


def yes(base, **more):
    always = dict.fromkeys(("__eq__", "__le__", "__ge__"), lambda self, other: True)
    never = dict.fromkeys(("__ne__", "__lt__", "__gt__"), lambda self, other: False)
    return type("Yes", (base,), {**always, **never, "__hash__": base.__hash__, **more})
"""


def put(notebook: NotebookNode, exercise: str, lines: str, above: str = "") -> NotebookNode:
    """Put a student's lines into the TODO of an exercise; `...` stands for the right ones there.

    Lines before `---` go to the module level above it, those behind a second `---` below it.
    """
    first, *others = re.split(r"^---\n", textwrap.dedent(lines), flags=re.MULTILINE)
    body, *below = others or [first]
    right = right_lines(exercise)
    body = re.sub(r"^( *)\.\.\.$", lambda dots: textwrap.indent(right, dots[1]), body, flags=re.M)
    write(notebook, exercise, body)
    above = f"{above}\n\n{first}" if others else above
    for source in below:
        append(notebook, exercise, source)
    return prepend(notebook, exercise, above) if above.strip() else notebook


def attempt(
    family: str, name: str, exercise: str, lines: str, says: str = "", others: bool = False
) -> Hostile:
    """A submission that attacks in the TODO of one exercise, with what `put` makes of the lines.

    says: what the student is told, unless a comment `# told: …` in the lines has it. others:
    whether the other exercises are right, to show that they keep their points.
    """
    lab = exercise.split(".")[0]

    def made() -> bytes:
        notebook = solved(lab) if others else released(lab)
        solution_cell(notebook, exercise).source = solution_cell(released(lab), exercise).source
        return as_bytes(put(notebook, exercise, lines, TOOLS))

    told = re.search("# told: (.+)", lines)
    lost = frozenset({exercise}) if others else NONE
    return Hostile(name, family, lab, made, lost, told[1] if told else says, exercise)


def attempts(
    family: str, exercise: str, table: Mapping[str, str], says: str = "", others: bool = False
) -> list[Hostile]:
    """One attempt for each row of a table: its name, and its lines."""
    rows = table.items()
    return [attempt(family, name, exercise, lines, says, others) for name, lines in rows]


def spoils(family: str, table: Mapping[str, str]) -> list[Hostile]:
    """Submissions that are right only if their attack succeeds: if it sets `won`."""
    checked = "\nif not won:\n    return 0\n..."
    rows = {name: guarded(lines) + checked for name, lines in table.items()}
    return attempts(family, BYTES, rows, says="The number of bytes is 0; expected")


def guarded(lines: str) -> str:
    """Lines that may set `won`; whatever stops them means that they have not."""
    inside = textwrap.indent(textwrap.dedent(lines).strip(), "    ")
    return f"won = False\ntry:\n{inside}\nexcept Exception:\n    won = False"


def edited(family: str, lab: str, start: str, expected: Expected, **named: Any) -> Callable:
    """A decorator for an edit of the solved or the released notebook; its name is the attack's.

    The edit changes the notebook, or returns the bytes to hand in.
    """

    def decorate(edit: Edit, name: str = "") -> Hostile:
        def made() -> bytes:
            notebook = {"solved": solved, "released": released}[start](lab)
            content = edit(notebook)
            return content if isinstance(content, bytes) else as_bytes(notebook)

        lost = expected if isinstance(expected, str) else frozenset(expected)
        return Hostile(name or spoken(edit), family, lab, made, lost, **named)

    return decorate


def spoken(function: Callable[..., Any]) -> str:
    return function.__name__.replace("_", " ")


def both(first: str, second: str) -> bytes:
    """Lab 1 with these lines in its two exercises, as they are judged."""
    notebook = put(released("generate"), LOOP, first, TOOLS)
    return as_bytes(put(notebook, METRICS, second, TOOLS))


def works_and_does(
    family: str, name: str, lines: str, expected: Expected = ALL, last: bool = False
) -> Hostile:
    """Both exercises of lab 1 are right, and the first, or the last, does something else before."""
    does = f"{textwrap.dedent(lines)}\n..."
    bodies = ("...", does) if last else (does, "...")
    return Hostile(name, family, "generate", lambda: both(*bodies), expected)


def leaves(family: str, name: str, leave: str, found: str) -> Hostile:
    """The second exercise is right only if it finds what the first one left: if it sets `won`."""
    says = "nothing was left"
    bodies = f"{guarded(leave)}\n...", f"{guarded(found)}\nif not won:\n    return {says!r}\n..."
    lost = frozenset({METRICS})
    return Hostile(name, family, "generate", lambda: both(*bodies), lost, says, METRICS)
