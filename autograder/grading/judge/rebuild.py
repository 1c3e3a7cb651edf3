"""Building the notebook that is graded: the released cells with the student's code in them.

A submitted notebook is never graded as it is. Its cells may be shuffled, duplicated, deleted,
split, joined or relabeled, by accident or on purpose, and its own points and checks are ignored.
Instead, each of the student's cells is assigned to a place in the released notebook, by the first
of these criteria that applies:

- the grade_id or the id of a released cell, unless the cell is a copy of another one, or defines
  what belongs in another one;
- exactly the text of a released cell;
- a function or class that a solution cell defines, if no cell assigned so far defines it (some web
  notebooks lose all labels).

A cell without a place is kept as an extra cell, after the cell that it followed. A changed copy of
a cell that students shouldn't write is kept in the same way, after the released cell. Nothing that
a student wrote is lost, except far beyond any reasonable size.
"""

import copy
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell

from autograder.grading.judge.submission import Cell, Submission, Unreadable, read_cells
from autograder.notebook.cells import DEFINED
from autograder.text.lesson import lessons

MOST_CELLS = 2000
MOST_TEXT = 10**6  # characters of all cells together
MOST_PICTURES = 8 * 10**6  # characters in the pictures of a cell
QUOTED = re.compile(r"""\"[^\"\n]*\"|'[^'\n]*'""")  # what is printed names no exercise
SOLUTION, ANSWER, CHECK, GIVEN = "solution", "answer", "check", "given"  # kinds of cells
BEFORE = -1  # the place of cells before the first released cell


@dataclass(frozen=True)
class CodeCell:
    """A code cell of the rebuilt notebook, with the sources that run instead of it.

    grade_id: "" if it has none. solution: whether it is a solution cell. own: whether the sources
    are the student's.
    """

    grade_id: str
    sources: tuple[str, ...]
    solution: bool
    own: bool


@dataclass(frozen=True)
class Rebuilt:
    """notebook: what nbgrader grades. remarks: on problems. code: its code cells, in order."""

    notebook: NotebookNode
    remarks: tuple[str, ...]
    code: tuple[CodeCell, ...]

    def cells_before(self, check: str) -> list[str]:
        """Return the sources of all code before the check of an exercise, in order."""
        return [source for cell in self.before(check) for source in cell.sources]

    def attempted(self, exercise: str) -> bool:
        """Whether the student changed its solution cell, or names it in an own cell before."""
        before = self.before(exercise)
        solution = [cell for cell in before if cell.solution][-1]
        name = re.compile(rf"(?<![.\w]){exercise.split('.')[1]}\b")  # no method of that name
        others = [cell for cell in before if cell.own and not cell.solution]
        texts = [QUOTED.sub('""', text) for cell in others for text in cell.sources]
        return solution.own or any(name.search(text) for text in texts)

    def before(self, check: str) -> Sequence[CodeCell]:
        """Raises ValueError if the notebook has no such check."""
        return self.code[: [cell.grade_id for cell in self.code].index(check_id(check))]


def check_id(exercise: str) -> str:
    """Return the grade_id of the check cell of an exercise."""
    return f"check-{exercise.replace('.', '-')}"


def rebuild(submission: Submission, release: NotebookNode) -> Rebuilt:
    """Put a student's code into the released notebook. Never raises, whatever is submitted."""
    cells, remarks = student_cells(submission)
    released = Released(release)
    places = placed(cells, released)
    set_scratch_aside(places, cells, released)
    written = student_texts(cells, places, released)
    extra = extra_cells(cells, places, released)
    take_answers_beside(written, extra, released)
    if cells or not remarks:
        remarks += other_notebook(cells, places, released, submission.lab)
    notebook, code = assembled(release, written, extra)
    return Rebuilt(notebook, tuple(remarks), code)


# ------------------------------------------------------------------------------ the submission


def student_cells(submission: Submission) -> tuple[list[Cell], list[str]]:
    """Return the non-empty cells of a submission, and remarks on what was left out."""
    if submission.content is None:
        return [], [submission.problem or "Nothing was handed in."]
    try:
        cells = [cell for cell in read_cells(submission.content) if cell.source.strip()]
    except Unreadable as error:
        return [], [str(error)]
    remarks = []
    if len(cells) > MOST_CELLS:
        remarks.append(
            f"It has {len(cells):,} cells. Those after the first {MOST_CELLS:,} were left out."
        )
    kept, total = [], 0
    for cell in cells[:MOST_CELLS]:
        if total + len(cell.source) <= MOST_TEXT:
            kept.append(cell)
            total += len(cell.source)
    if len(kept) < len(cells[:MOST_CELLS]):
        remarks.append("Its cells contain more than 1 MB of text. The rest was left out.")
    return kept, remarks


def other_notebook(
    cells: Sequence[Cell], places: Sequence[int | None], released: "Released", lab: str
) -> list[str]:
    """Return a remark if the notebook belongs to another lab, or to none of the course."""
    kinds = {released.kinds[place] for place in places if place is not None}
    if kinds & {SOLUTION, CHECK}:
        return []
    ids = [cell.grade_id.removeprefix("check-").split("-")[0] for cell in cells if cell.grade_id]
    labs = [id for id in ids if id in lessons() and id != lab]
    what = f"This is the notebook of lab {labs[0]}." if labs else "It has no exercise of this lab."
    return [f"{what} Hand in {lab}.ipynb, with your solutions in it."]


# ------------------------------------------------------------------------------- finding places


class Released:
    """The released cells, and ways to find them. A place is an index among them."""

    def __init__(self, release: NotebookNode) -> None:
        labels = [cell.metadata.get("nbgrader", {}) for cell in release.cells]
        self.kinds = [kind_of(cell) for cell in release.cells]
        self.checks = checks_by_solution(self.kinds)
        self.texts = [tidy(cell.source) for cell in release.cells]
        self.by_id = {cell.id: place for place, cell in enumerate(release.cells)}
        self.by_grade_id = {label["grade_id"]: place for place, label in enumerate(labels) if label}
        self.by_text = defaultdict(list)
        for place, text in enumerate(self.texts):
            self.by_text[text].append(place)
        self.by_name = {
            name: place
            for place, text in enumerate(self.texts)
            if self.kinds[place] == SOLUTION
            for name in DEFINED.findall(text)
        }

    def theirs(self, place: int | None) -> bool:
        """Whether the student writes the cell at a place."""
        return place is not None and self.kinds[place] in (SOLUTION, ANSWER)

    def defined_in(self, cell: Cell) -> set[int]:
        """Return the solution cells that share a function or class with a code cell."""
        names = DEFINED.findall(cell.source) if cell.code else []
        return {self.by_name[name] for name in names if name in self.by_name}

    def is_unchanged(self, cell: Cell, place: int) -> bool:
        return tidy(cell.source) == self.texts[place]

    def place_of(self, cell: Cell) -> int | None:
        """Return a cell's place by its labels, as far as they are plausible, or by its text."""
        same = self.by_text.get(tidy(cell.source), [])
        possible = same or self.defined_in(cell)
        for place in (self.by_grade_id.get(cell.grade_id), self.by_id.get(cell.id)):
            if place is not None and (place in possible or not possible):
                return place
        return same[0] if same else None


def kind_of(cell: NotebookNode) -> str:
    label = cell.metadata.get("nbgrader", {})
    if label.get("solution"):
        return SOLUTION if cell.cell_type == "code" else ANSWER
    return CHECK if label.get("grade") else GIVEN


def checks_by_solution(kinds: Sequence[str]) -> dict[int, list[int]]:
    """Return, for each solution, the places of the checks between it and the next solution."""
    checks: dict[int, list[int]] = {}
    for place, kind in enumerate(kinds):
        if kind == SOLUTION:
            checks[place] = []
        elif kind == CHECK:
            checks[max(checks)].append(place)
    return checks


def tidy(source: str) -> str:
    """Remove white space at line ends, which editors add and remove."""
    return "\n".join(line.rstrip() for line in source.split("\n")).strip("\n")


def placed(cells: Sequence[Cell], released: Released) -> list[int | None]:
    """Return the place of each of the student's cells; None for extra cells."""
    places = [released.place_of(cell) for cell in cells]
    defined = [released.defined_in(cell) for cell in cells]
    claimed = {place for place, here in zip(places, defined, strict=True) if place in here}
    return [
        min(here - claimed, default=None) if place is None else place
        for place, here in zip(places, defined, strict=True)
    ]


def set_scratch_aside(places: list[int | None], cells: Sequence[Cell], released: Released) -> None:
    """Make a second copy of a solution after the last of its checks an extra cell.

    The student tried something there without checking it.
    """
    for solution, checks in released.checks.items():
        last_check = max((n for n, place in enumerate(places) if place in checks), default=-1)
        copies = [
            n
            for n, place in enumerate(places)
            if place == solution and not released.is_unchanged(cells[n], solution)
        ]
        if any(n < last_check and solution in released.defined_in(cells[n]) for n in copies):
            for n in copies:
                if n > last_check:
                    places[n] = None


# ------------------------------------------------------------------------------- filling places


def student_texts(
    cells: Sequence[Cell], places: Sequence[int | None], released: Released
) -> dict[int, list[Cell]]:
    """Return what the student wrote, by the place of each changed solution or answer.

    If no cell has the place of a solution, the cells that define it are used: two cells may have
    been joined, and the released TODO must not follow them and overwrite what they define.
    """
    written = defaultdict(list)
    for cell, place in zip(cells, places, strict=True):
        if place is not None and released.theirs(place):
            written[place].append(cell)
    for place, kind in enumerate(released.kinds):
        if kind == SOLUTION and place not in written:
            written[place] = [cell for cell in cells if place in released.defined_in(cell)]
    changed = {
        place: last_of_each([cell for cell in pieces if not released.is_unchanged(cell, place)])
        for place, pieces in written.items()
    }
    return {place: pieces for place, pieces in changed.items() if pieces}


def last_of_each(pieces: Sequence[Cell]) -> list[Cell]:
    """Drop copies: of cells with the same text keep the last one, which takes effect last."""
    last = {tidy(piece.source): i for i, piece in enumerate(pieces)}
    return [pieces[i] for i in sorted(last.values())]


def extra_cells(
    cells: Sequence[Cell], places: Sequence[int | None], released: Released
) -> dict[int, list[Cell]]:
    """Return the student's extra cells, by the place after which they come."""
    extra = defaultdict(list)
    behind = BEFORE
    for cell, place in zip(cells, places, strict=True):
        behind = behind if place is None else place
        if place is None or not (released.theirs(place) or released.is_unchanged(cell, place)):
            extra[behind].append(cell)
    return extra


def take_answers_beside(
    written: dict[int, list[Cell]], extra: dict[int, list[Cell]], released: Released
) -> None:
    """If an answer cell is unchanged, use the prose next to it, so that a person reads it."""
    for place, kind in enumerate(released.kinds):
        if kind == ANSWER and place not in written:
            around = [*extra.get(place - 1, []), *extra.get(place, [])]
            if notes := [cell for cell in around if not cell.code]:
                written[place] = notes
                for near in (place - 1, place):
                    extra[near] = [cell for cell in extra.get(near, []) if cell.code]


# --------------------------------------------------------------------------- the new notebook


def assembled(
    release: NotebookNode,
    written: Mapping[int, Sequence[Cell]],
    extra: Mapping[int, Sequence[Cell]],
) -> tuple[NotebookNode, tuple[CodeCell, ...]]:
    """Return the notebook, and the sources that run instead of each of its code cells."""
    notebook = copy.deepcopy(release)
    cells: list[NotebookNode] = []
    code: list[CodeCell] = []
    for place in range(BEFORE, len(release.cells)):
        if place != BEFORE:
            cell = notebook.cells[place]
            pieces = written.get(place, [])
            fill(cell, pieces)
            cells.append(cell)
            if cell.cell_type == "code":
                label = cell.metadata.get("nbgrader", {})
                sources = tuple(piece.source for piece in pieces) or (cell.source,)
                id, solution = label.get("grade_id", ""), label.get("solution", False)
                code.append(CodeCell(id, sources, solution, own=bool(pieces)))
        for own in extra.get(place, []):
            cells.append(extra_cell(own, f"extra-{len(cells)}"))
            if own.code:
                code.append(CodeCell("", (own.source,), solution=False, own=True))
    notebook.cells = cells
    return notebook, tuple(code)


def fill(cell: NotebookNode, pieces: Sequence[Cell]) -> None:
    """Put the student's text into a released cell; without any, the cell stays as released."""
    if pieces:
        cell.source = "\n\n".join(piece.source for piece in pieces)
    if cell.cell_type == "code":
        cell.outputs, cell.execution_count = [], None
    else:
        hang(cell, pieces)


def extra_cell(own: Cell, id: str) -> NotebookNode:
    if own.code:
        return new_code_cell(own.source, id=id)
    cell = new_markdown_cell(own.source, id=id)
    hang(cell, [own])
    return cell


def hang(cell: NotebookNode, pieces: Sequence[Cell]) -> None:
    """Attach to a prose cell the pictures that were pasted into it."""
    pictures, total = {}, 0
    for name, kinds in [item for piece in pieces for item in piece.pictures.items()]:
        total += sum(map(len, kinds.values()))
        if total <= MOST_PICTURES:
            pictures[name] = kinds
    if pictures:
        cell.attachments = pictures
