"""Run the solved notebooks, and keep each with its outputs until something that it uses changes.

Tests and the site take the same one. A notebook is kept in build/notebooks under a digest of its
code and of all that its outputs depend on, so a change to a lab's solution makes that lab run again
and those that use it.
"""

import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook
from traitlets.config import Config

from autograder.attempt.notebook import python_of
from autograder.build import read_modules, solve
from autograder.exercises import exercises
from autograder.text.imports import files_used
from autograder.text.lesson import Lesson, lessons
from autograder.text.reference import ROOT, SOLUTIONS, Module, importing

KEPT = ROOT / "build" / "notebooks"
# Kinds of runs, the better one first. A quick run times everything once: the numbers don't count.
WHOLE, QUICK = KINDS = ("whole", "quick")
SECONDS = 600  # that one cell may take, also on a machine busy with other tests
ALWAYS_USED = ("models/**/*.*", "constraints.txt", "autograder/executed.py")
LOOKED_UP = re.compile(r'\b(?:mine|labs)\("(\w+)"\)')  # a lab's solution, by the lab's name


# ------------------------------------------------------------------------------ what it depends on


def solved(lesson: Lesson) -> NotebookNode:
    return solve(lesson.room / "lesson.md", modules(), exercises())


@cache
def modules() -> dict[str, Module]:
    return read_modules(SOLUTIONS)


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def digest(lesson: Lesson) -> str:
    """Hash all that the outputs of a solved notebook depend on. Its prose is not part of it."""
    code = [cell.source for cell in code_cells(solved(lesson))]
    counts = {other.name: len(other.cards) for other in lessons().values()}  # `status` shows them
    words = [sys.version, *code, repr([lesson.cards, lesson.questions, counts])]
    files = sorted(files_needed(lesson.lab, code))
    hashes = [f"{file.relative_to(ROOT).as_posix()} {hash_of(file)}" for file in files]
    return hashlib.sha256("\n".join(words + hashes).encode()).hexdigest()[:16]


@cache
def hash_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def files_needed(lab: str, code: Iterable[str]) -> set[Path]:
    """Return the files that the cells of a lab's notebook use, and its checks."""
    texts = [*map(python_of, code), f"import {lessons()[lab].package}.cases"]
    labs = {lab, *looked_up(texts)}
    while True:
        found = files_used([*texts, *importing(labs)])
        more = labs | looked_up(file.read_text(encoding="utf-8") for file in found)
        if more == labs:
            return found | {path for pattern in ALWAYS_USED for path in ROOT.glob(pattern)}
        labs = more


def looked_up(texts: Iterable[str]) -> set[str]:
    return {lab for text in texts for lab in LOOKED_UP.findall(text)}


# ------------------------------------------------------------------------------------------ keeping


def kept(lesson: Lesson, kind: str) -> NotebookNode | None:
    """Return the solved notebook with the outputs of a run of this kind, or of a better one.

    Returns None if none is kept.
    """
    own = digest(lesson)
    for better in KINDS[: KINDS.index(kind) + 1]:
        if (path := place(lesson, better, own)).exists():
            return with_outputs(solved(lesson), nbformat.read(path, as_version=4))
    return None


def with_outputs(notebook: NotebookNode, ran: NotebookNode) -> NotebookNode:
    """Give a notebook the outputs of one with the same code, whose prose may be older."""
    for cell, shown in zip(code_cells(notebook), code_cells(ran), strict=True):
        cell.outputs, cell.execution_count = shown.outputs, shown.execution_count
    notebook.metadata = ran.metadata
    return notebook


def place(lesson: Lesson, kind: str, own: str) -> Path:
    return KEPT / f"{lesson.name}-{kind}-{own}.ipynb"


def run_and_keep(lesson: Lesson, kind: str, run: Callable[[NotebookNode], None]) -> NotebookNode:
    """Run the solved notebook and keep it in place of older ones. If `run` fails, those stay."""
    path, notebook = place(lesson, kind, digest(lesson)), solved(lesson)
    run(notebook)
    KEPT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=KEPT) as folder:
        new = Path(folder) / path.name
        nbformat.write(notebook, new)
        for old in KEPT.glob(f"{lesson.name}-{kind}-*.ipynb"):
            old.unlink(missing_ok=True)
        new.replace(path)
    return notebook


# ------------------------------------------------------------------------------------------ running

FAILURES = CellExecutionError, CellTimeoutError, DeadKernelError
BEGIN = """
%cd -q {folder}
%env MINE_FOLDER={folder}/mine
{settings}
%reset -f
__spec__ = None  # %reset takes it away, and a process that is started looks for it
"""
SETTINGS = {
    WHOLE: "",
    QUICK: """
import timing.stopwatch
timing.stopwatch.MANY = timing.stopwatch.FEW = 1
timing.stopwatch.disturb = lambda *_: False
""",
}


@contextmanager
def new_kernel() -> Iterator[NotebookClient]:
    """Start a kernel, which takes seconds to import torch and may run several notebooks."""
    variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        # Its sockets are files here, which only this user can open; it warns of ports, which others
        # can. Windows has ports only.
        sockets = {} if os.name == "nt" else {"transport": "ipc", "ip": f"{folder}/socket"}
        client = NotebookClient(
            new_notebook(),
            timeout=SECONDS,
            record_timing=False,
            coalesce_streams=True,  # or each token that a cell prints would be a line of its own
            config=Config(KernelManager=sockets),
        )
        with client.setup_kernel(env={**os.environ, **variables}):
            yield client


def execute(notebook: NotebookNode, kernel: NotebookClient, folder: Path, kind: str) -> None:
    """Run all cells in an empty folder, as the learner of a fresh copy would, with no name of the
    notebook before. What passes is kept in the folder, too.

    Raises one of FAILURES, with a note that says in which cell.
    """
    begin = new_code_cell(BEGIN.format(folder=folder, settings=SETTINGS[kind]))
    kernel.reset_execution_trackers()
    for kernel.nb in (new_notebook(cells=[begin]), notebook):
        for index, cell in enumerate(kernel.nb.cells):
            try:
                kernel.execute_cell(cell, index)
            except FAILURES as error:
                number = len(code_cells(new_notebook(cells=kernel.nb.cells[: index + 1])))
                error.add_note(f"Code cell {number}, which begins {cell.source.splitlines()[0]!r}:")
                raise
    kernel.set_widgets_metadata()
