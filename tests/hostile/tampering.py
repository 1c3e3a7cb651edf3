"""Notebooks whose cells and metadata were tampered with, and files that are none."""

import json
from functools import partial

import nbformat

from autograder.course.lesson import lessons
from tests.hostile.notebooks import (
    ALL,
    BYTES,
    NONE,
    Hostile,
    as_bytes,
    check_cell,
    edited,
    grade_id,
    solution_cell,
    write,
)

FAMILY = "tampering"
MASK = "kv_cache.causal_mask"
LAB = "kv_cache"
RIGHT_MASK = "return (key_positions[:, None, :] <= query_positions[:, :, None])[:, None]"
ONLY_MASK = frozenset(lessons()[LAB].cards) - {MASK}

solved = partial(edited, FAMILY, "generate", "solved")
released = partial(edited, FAMILY, LAB, "released")
unreadable = partial(edited, FAMILY, "generate", "solved", NONE)


def marks(notebook):
    """The nbgrader metadata of all cells that have some."""
    return [cell.metadata.nbgrader for cell in notebook.cells if "nbgrader" in cell.metadata]


# ------------------------------------------------------------------------------------ more points


@released(ONLY_MASK)
def every_cell_claims_a_thousand_points(notebook):
    write(notebook, MASK, RIGHT_MASK)
    for mark in marks(notebook):
        mark.points = 1000


@released(ONLY_MASK)
def a_check_cell_is_copied_twenty_times(notebook):
    write(notebook, MASK, RIGHT_MASK)
    at = notebook.cells.index(check_cell(notebook, MASK))
    notebook.cells[at:at] = [notebook.cells[at].copy() for _ in range(20)]


@released(ONLY_MASK)
def a_passed_check_takes_the_place_of_every_other(notebook):
    write(notebook, MASK, RIGHT_MASK)
    for cell in notebook.cells:
        if grade_id(cell).startswith("check-"):
            cell.source = check_cell(notebook, MASK).source


@released(NONE, exercise=MASK, says="no code here yet")
def outputs_claim_full_marks(notebook):
    for cell in notebook.cells:
        if grade_id(cell).startswith("check-"):
            data = {"text/plain": "1000"}
            result = nbformat.v4.new_output("execute_result", data, execution_count=1)
            cell.outputs, cell.execution_count = [result], 1


@released(NONE, exercise=MASK, says="no code here yet")
def the_metadata_hold_a_result(notebook):
    marks = [{"exercise": name, "points": 99} for name in lessons()[LAB].cards]
    notebook.metadata.update(result={"marks": marks}, nbgrader={"score": 99}, graded=True)
    notebook.metadata.lesson_build.sha256.released = "0" * 64
    for cell in notebook.cells:
        cell.metadata.update(score=99, result="passed")


@released(NONE, exercise=MASK, says="no code here yet")
def a_cell_of_its_own_claims_to_be_graded(notebook):
    cell = nbformat.v4.new_code_cell("1000")
    cell.metadata.nbgrader = {
        **check_cell(notebook, MASK).metadata.nbgrader,
        "grade_id": "bonus",
        "points": 1000,
    }
    notebook.cells.append(cell)


@released(NONE)
def a_reference_is_handed_in_as_an_attachment(notebook):
    cell = solution_cell(notebook, MASK)
    cell.attachments = {"solution.py": {"text/x-python": RIGHT_MASK}}
    cell.metadata.source = RIGHT_MASK


# ------------------------------------------------------------------- harmless, whatever was meant


@solved(ALL)
def every_check_is_deleted(notebook):
    notebook.cells = [c for c in notebook.cells if not grade_id(c).startswith("check-")]


@solved(ALL)
def an_unknown_schema_version(notebook):
    for mark in marks(notebook):
        mark.schema_version = 999


@solved(ALL)
def a_schema_version_that_is_no_number(notebook):
    for mark in marks(notebook):
        mark.schema_version = {"version": [3]}


@solved(ALL)
def every_cell_is_there_twice(notebook):
    notebook.cells = [copy for cell in notebook.cells for copy in (cell, cell.copy())]


@solved(ALL)
def every_check_stands_at_the_beginning(notebook):
    notebook.cells.sort(key=lambda cell: not grade_id(cell).startswith("check-"))


@solved(ALL)
def the_checks_are_edited(notebook):
    for cell in notebook.cells:
        if grade_id(cell).startswith("check-"):
            cell.source = "raise SystemExit"


@solved(ALL)
def the_checks_are_markdown(notebook):
    for cell in notebook.cells:
        if grade_id(cell).startswith("check-"):
            cell.cell_type = "markdown"


@solved(ALL)
def every_grade_id_leads_out_of_the_course(notebook):
    for number, mark in enumerate(m for m in marks(notebook) if m.locked):
        mark.grade_id = f"../../../gradebook{number}.db"


@solved(ALL)
def what_is_graded_says_that_it_is_not(notebook):
    for mark in marks(notebook):
        mark.update(grade=False, solution=mark.solution, locked=False, points=-5)


@solved(ALL)
def all_metadata_are_gone(notebook):
    notebook.metadata = {}
    for cell in notebook.cells:
        if "nbgrader" not in cell.metadata:
            cell.metadata = {}


@solved(ALL)
def a_kernel_of_its_own(notebook):
    command = ["/bin/sh", "-c", "rm -rf ~"]
    notebook.metadata.kernelspec = {"name": "../../bin/sh", "display_name": "sh", "argv": command}
    notebook.metadata.language_info = {"name": "bash"}


@solved(ALL)
def every_cell_has_one_id(notebook):
    for cell in notebook.cells:
        cell.id = "same"


@solved(ALL)
def twenty_megabytes_of_output(notebook):
    text = nbformat.v4.new_output("stream", text="x" * 20_000_000)
    notebook.cells[2].outputs = [text]


@solved(ALL)
def outputs_that_are_no_outputs(notebook):
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [{"output_type": "forged", "data": None}]


# -------------------------------------------------------------------------------- what it costs


@solved(ALL)
def a_solution_is_markdown(notebook):
    cell = solution_cell(notebook, "generate.metrics")
    cell.cell_type = "markdown"
    del cell["outputs"], cell["execution_count"]


@solved({"generate.metrics"}, exercise="generate.metrics")
def a_solution_is_deleted(notebook):
    notebook.cells.remove(solution_cell(notebook, "generate.metrics"))


@solved({"generate.metrics"}, exercise="generate.metrics", says="did not run")
def a_solution_is_no_Python(notebook):
    solution_cell(notebook, "generate.metrics").source = "def metrics(:\n  \0\n\t return"


@solved({"generate.metrics"}, exercise="generate.metrics", says="did not run")
def a_solution_is_nested_too_deep_to_be_parsed(notebook):
    source = solution_cell(notebook, "generate.metrics")
    source.source += f"\n\nDEEP = {'(' * 5000}1{')' * 5000}"


@solved({"generate.metrics"}, exercise="generate.metrics", says="did not run")
def a_solution_whose_tree_is_too_deep_to_be_walked(notebook):
    cell = solution_cell(notebook, "generate.metrics")
    cell.source += f"\n\nDEEP = {'-' * 90_000}1\nmetrics.deep = DEEP"


# ----------------------------------------------------------------------- files that are no notebook


@unreadable(says="no notebook")
def an_empty_file(notebook):
    return b""


@unreadable(says="no notebook")
def no_JSON(notebook):
    return b"PK\x03\x04 this was a zip"


@unreadable(says="no notebook")
def a_JSON_list(notebook):
    return b"[]"


@unreadable(says="too many parts")
def JSON_nested_without_end(notebook):
    return b'{"cells": ' + b"[" * 1_000_000


@unreadable(says="no notebook")
def a_program_in_place_of_a_notebook(notebook):
    return "\n\n".join(c.source for c in notebook.cells if c.cell_type == "code").encode()


@unreadable(says="no notebook")
def a_pickle_in_place_of_a_notebook(notebook):
    return b"cos\nsystem\n(S'touch /tmp/forged'\ntR."


@solved(ALL)
def UTF_16(notebook):
    return as_bytes(notebook).decode().encode("utf-16")


@unreadable(says="larger than")
def forty_megabytes_of_JSON(notebook):
    notebook.cells[0].metadata.padding = "x" * 40_000_000


@unreadable(says="no exercise of this lab")
def cells_that_are_no_cells(notebook):
    content = json.loads(as_bytes(notebook))
    content["cells"] = [None, 7, "def metrics(): ...", {"cell_type": "code", "source": 7}]
    return json.dumps(content).encode()


@solved(ALL)
def a_format_of_the_future(notebook):
    content = json.loads(as_bytes(notebook))
    content["nbformat"] = 99
    return json.dumps(content).encode()


@solved(ALL)
def a_byte_order_mark(notebook):
    return b"\xef\xbb\xbf" + as_bytes(notebook)


@solved(ALL)
def the_format_of_2013(notebook):
    cells = [{**c, "cell_type": c.cell_type} for c in notebook.cells]
    for cell in cells:
        if cell["cell_type"] == "code":
            cell.update(input=cell.pop("source"), language="python", prompt_number=1, outputs=[])
    content = {"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": [{"cells": cells}]}
    return json.dumps(content).encode()


@solved(ALL)
def Windows_line_ends(notebook):
    for cell in notebook.cells:
        cell.source = cell.source.replace("\n", "\r\n")


@released(NONE, exercise=BYTES, says="no code here yet")
def nothing_at_all(notebook):
    """The lazy one: handed in as it was released."""


CORPUS = [found for found in list(vars().values()) if isinstance(found, Hostile)]
