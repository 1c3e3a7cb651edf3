"""Run the solved notebooks, each in a kernel of its own, and keep them until the code changes.

A notebook is kept in build/site/executed under a hash of its cells and of all that they use.
"""

import hashlib
import os
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

from autograder.build import digest, read_modules, solve
from autograder.course.lesson import LESSONS
from autograder.course.reference import ROOT, SOLUTIONS, Module
from autograder.exercises import exercises

KEPT = ROOT / "build" / "site" / "executed"
USED = ("gpt.py", "models/*/*", "solutions/**/*.py", "timing/*.py", "visuals/*.py")
SHOWN = ("autograder/notebook/*.py",)  # of a check that passes: what it shows
SECONDS = 600  # that one cell may take


def executed(names: Iterable[str]) -> dict[str, NotebookNode]:
    """Return the executed notebooks of these lessons, by name; run as many at a time as cores.

    Raises CellExecutionError if a cell fails.
    """
    names = list(names)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(names, pool.map(executed_one, names), strict=True))


def executed_one(name: str) -> NotebookNode:
    notebook = solve(LESSONS / f"{name}.md", modules(), exercises())
    key = hashlib.sha256(f"{digest(notebook)} {digest_of_code()}".encode()).hexdigest()[:16]
    kept = KEPT / f"{name}-{key}.ipynb"
    if not kept.exists():
        run(notebook)
        kept.parent.mkdir(parents=True, exist_ok=True)
        for old in KEPT.glob(f"{name}-*"):
            old.unlink()
        nbformat.write(notebook, kept)
    return nbformat.read(kept, as_version=4)


@cache
def modules() -> dict[str, Module]:
    return read_modules(SOLUTIONS)


@cache
def digest_of_code() -> str:
    """Hash all the code and all the models that an output depends on."""
    files = sorted(path for pattern in (*USED, *SHOWN) for path in ROOT.glob(pattern))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def run(notebook: NotebookNode) -> None:
    """Run all cells in an empty folder, as the learner of a fresh copy would."""
    with tempfile.TemporaryDirectory() as folder:
        places = {"PYTHONPATH": str(ROOT), "MINE_FOLDER": f"{folder}/mine", "OMP_NUM_THREADS": "1"}
        client = NotebookClient(
            notebook,
            timeout=SECONDS,
            resources={"metadata": {"path": folder}},
            record_timing=False,
            coalesce_streams=True,  # or each token that a cell prints would be a line of its own
        )
        client.execute(env={**os.environ, **places})
