"""The notebooks run: as released up to the first check, and solved from top to bottom."""

import os

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from autograder.build import read_modules, solve
from autograder.course.lesson import LESSONS, lessons
from autograder.course.reference import ROOT, SOLUTIONS
from autograder.exercises import exercises

TIMEOUT = 300  # seconds for one cell, on a machine busy with other tests
FIRST, *OTHERS = lessons().values()


@pytest.fixture(scope="module")
def kernel():
    """One for all labs: a kernel that imports torch takes seconds to start."""
    client = NotebookClient(nbformat.v4.new_notebook(), timeout=TIMEOUT)
    with client.setup_kernel(env={**os.environ, "PYTHONPATH": str(ROOT)}):
        yield client


BEGIN = """
%cd -q {folder}
%env MINE_FOLDER={folder}/mine
import timing.stopwatch
timing.stopwatch.MANY = timing.stopwatch.FEW = 1
timing.stopwatch.disturb = lambda *_: False
%reset -f
__spec__ = None  # %reset takes it away, and a process that is started looks for it
"""


def execute(notebook, kernel, folder):
    """As a student runs all of it, with no name of the notebook before it; what passes is kept in
    the folder. What is timed runs once, also beside other tests: the numbers don't count.
    """
    notebook.cells.insert(0, nbformat.v4.new_code_cell(BEGIN.format(folder=folder)))
    kernel.nb = notebook
    for index, cell in enumerate(notebook.cells):
        kernel.execute_cell(cell, index)


def checks(notebook):
    return [cell for cell in notebook.cells if cell.id.startswith("check-")]


@pytest.mark.slow
@pytest.mark.in_turn(4)
@pytest.mark.parametrize("lesson", [FIRST, *OTHERS], ids=lambda lesson: lesson.name)
def test_a_lab_runs_up_to_its_first_check_which_says_not_attempted(lesson, kernel, tmp_path):
    lab = nbformat.read(ROOT / "labs" / lesson.notebook, as_version=4)
    with pytest.raises(CellExecutionError) as stopped:
        execute(lab, kernel, tmp_path)
    failed = [
        cell.id
        for cell in lab.cells
        if "error" in [output.output_type for output in cell.get("outputs", [])]
    ]
    assert failed == [checks(lab)[0].id]
    assert stopped.value.ename == "CheckFailed"
    assert "not attempted" in stopped.value.evalue


# `make test` tries the first lab, `make test-all` every third one of the others, too, and `make
# site` runs them all.
IN_TURN = [pytest.mark.slow, pytest.mark.in_turn(3)]
SHARE = [pytest.param(lesson, marks=IN_TURN) for lesson in OTHERS]


@pytest.mark.parametrize("lesson", [FIRST, *SHARE], ids=lambda lesson: lesson.name)
def test_a_solved_lab_runs_top_to_bottom_and_every_check_passes(lesson, kernel, tmp_path):
    solved = solve(LESSONS / f"{lesson.name}.md", read_modules(SOLUTIONS), exercises())
    execute(solved, kernel, tmp_path)
    assert checks(solved)
    for cell in checks(solved):
        assert cell.execution_count is not None
        kinds = {output.get("name", output.output_type) for output in cell.outputs}
        assert not kinds & {"error", "stderr"}  # nbgrader scores either 0
