"""The notebooks run: as released up to the first check, and solved from top to bottom."""

import re

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
from docs.site.grafted import STATE
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
@pytest.mark.in_turn(24)
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
IN_TURN = [pytest.mark.slow, pytest.mark.in_turn(24)]
SHARE = [pytest.param(lesson, marks=IN_TURN) for lesson in OTHERS]


@pytest.fixture
def solved(lesson, request, tmp_path):
    """The solved lab, which does not run again while nothing that it uses has changed."""

    def run(notebook):
        execute(notebook, request.getfixturevalue("kernel"), tmp_path, QUICK)

    return kept(lesson, QUICK) or run_and_keep(lesson, QUICK, run)


@pytest.mark.parametrize("lesson", [FIRST, *SHARE], ids=lambda lesson: lesson.name)
def test_a_solved_lab_runs_top_to_bottom_and_every_check_passes(solved):
    assert checks(solved)
    for cell in checks(solved):
        assert cell.execution_count is not None
        kinds = {output.get("name", output.output_type) for output in cell.outputs}
        assert not kinds & {"error", "stderr"}  # nbgrader scores either 0


IMAGE = re.compile(r"<img\b[^>]*>")
WORDS = re.compile(r'<img alt="[^"]{60,}"')


@pytest.mark.parametrize("lesson", [FIRST, *SHARE], ids=lambda lesson: lesson.name)
def test_every_picture_of_a_solved_lab_says_what_it_shows(solved):
    shown = [
        output.data
        for cell in solved.cells
        for output in cell.get("outputs", [])
        if "data" in output
    ]
    models = solved.metadata.get("widgets", {}).get(STATE, {}).get("state", {}).values()
    texts = [data.get("text/html", "") for data in shown]
    texts += [
        model["state"].get("value", "") for model in models if model["model_name"] == "HTMLModel"
    ]
    images = [image for text in texts for image in IMAGE.findall(text)]
    assert images
    assert [image[:200] for image in images if not WORDS.match(image)] == []
    assert not [kind for data in shown for kind in data if kind.startswith("image/")]  # wordless
    assert "ImageModel" not in {model["model_name"] for model in models}


@pytest.mark.slow
@pytest.mark.in_turn(24)
@pytest.mark.parametrize("lesson", [FIRST, *OTHERS], ids=lambda lesson: lesson.name)
@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_a_lab_solved_in_another_style_runs_top_to_bottom(lesson, times, request, tmp_path):
    """What passes the checks breaks no later cell, and each cell may run again before the next.

    A pass holds until something used changes.
    """
    styles = lesson.room / "style.py"
    passed = KEPT / f"{lesson.name}-style-{times}-{digest(lesson)}-{hash_of(styles)[:16]}"
    if not passed.exists():
        notebook = in_another_style(lesson.lab)
        notebook.cells = [cell for cell in notebook.cells for _ in range(times)]
        execute(notebook, request.getfixturevalue("kernel"), tmp_path, QUICK)
        passed.parent.mkdir(parents=True, exist_ok=True)
        passed.touch()
