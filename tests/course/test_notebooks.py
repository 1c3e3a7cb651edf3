"""The notebooks run: as released up to the first check, and solved from top to bottom."""

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError

from autograder.executed import (
    KEPT,
    QUICK,
    digest,
    execute,
    hash_of,
    kept,
    new_kernel,
    run_and_keep,
)
from autograder.text.lesson import lessons
from autograder.text.reference import ROOT
from tests.common.styles import in_another_style

FIRST, *OTHERS = lessons().values()


@pytest.fixture(scope="module")
def kernel():
    """One for all labs: a kernel that imports torch takes seconds to start."""
    with new_kernel() as kernel:
        yield kernel


def checks(notebook):
    return [cell for cell in notebook.cells if cell.id.startswith("check-")]


@pytest.mark.slow
@pytest.mark.in_turn(8)
@pytest.mark.parametrize("lesson", [FIRST, *OTHERS], ids=lambda lesson: lesson.name)
def test_a_lab_runs_up_to_its_first_check_which_says_not_attempted(lesson, kernel, tmp_path):
    lab = nbformat.read(ROOT / "labs" / lesson.notebook, as_version=4)
    with pytest.raises(CellExecutionError) as stopped:
        execute(lab, kernel, tmp_path, QUICK)
    failed = [
        cell.id
        for cell in lab.cells
        if "error" in [output.output_type for output in cell.get("outputs", [])]
    ]
    assert failed == [checks(lab)[0].id]
    assert stopped.value.ename == "CheckFailed"
    assert "not attempted" in stopped.value.evalue
    assert checks(lab)[0].source in stopped.value.__notes__[0]


# `make test` tries the first lab. `make site` runs them all.
IN_TURN = [pytest.mark.slow, pytest.mark.in_turn(12)]
SHARE = [pytest.param(lesson, marks=IN_TURN) for lesson in OTHERS]


@pytest.mark.parametrize("lesson", [FIRST, *SHARE], ids=lambda lesson: lesson.name)
def test_a_solved_lab_runs_top_to_bottom_and_every_check_passes(lesson, request, tmp_path):
    """It does not run again while nothing that it uses has changed."""

    def run(notebook):
        execute(notebook, request.getfixturevalue("kernel"), tmp_path, QUICK)

    solved = kept(lesson, QUICK) or run_and_keep(lesson, QUICK, run)
    assert checks(solved)
    for cell in checks(solved):
        assert cell.execution_count is not None
        kinds = {output.get("name", output.output_type) for output in cell.outputs}
        assert not kinds & {"error", "stderr"}  # nbgrader scores either 0


@pytest.mark.slow
@pytest.mark.in_turn(12)
@pytest.mark.parametrize("lesson", [FIRST, *OTHERS], ids=lambda lesson: lesson.name)
def test_a_lab_solved_in_another_style_runs_top_to_bottom(lesson, request, tmp_path):
    """What passes the checks breaks no later cell. A pass holds until something used changes."""
    styles = lesson.room / "style.py"
    passed = KEPT / f"{lesson.name}-style-{digest(lesson)}-{hash_of(styles)[:16]}"
    if not passed.exists():
        execute(in_another_style(lesson.lab), request.getfixturevalue("kernel"), tmp_path, QUICK)
        passed.parent.mkdir(parents=True, exist_ok=True)
        passed.touch()
