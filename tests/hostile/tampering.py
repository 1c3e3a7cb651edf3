"""Notebooks whose cells and metadata were tampered with, and files that are none."""

import nbformat

from autograder.text.lesson import lessons
from tests.hostile.notebooks import (
    ALL,
    BYTES,
    METRICS,
    NONE,
    append,
    as_bytes,
    check_cell,
    code_cells,
    edited,
    grade_id,
    right_lines,
    solution_cell,
    write,
)

FAMILY = "tampering"
MASK = "kv_cache.causal_mask"
LAB = "kv_cache"
ONLY_MASK = frozenset(lessons()[LAB].cards) - {MASK}


def is_check(cell):
    return grade_id(cell).startswith("check-")


def checks(notebook):
    return [cell for cell in notebook.cells if is_check(cell)]


def labels(notebook):
    """The nbgrader metadata of all cells that have some."""
    return [cell.metadata.nbgrader for cell in notebook.cells if "nbgrader" in cell.metadata]


def in_all(parts, **fields):
    for part in parts:
        part.update(fields)


# ------------------------------------------------------------------------------------ more points


@edited(FAMILY, LAB, "released", ONLY_MASK)
def a_passed_check_takes_the_place_of_every_other(notebook):
    write(notebook, MASK, right_lines(MASK))
    in_all(checks(notebook), source=check_cell(notebook, MASK).source)


@edited(FAMILY, LAB, "released", ONLY_MASK, exercise=BYTES, says="no code here yet")
def everything_claims_a_thousand_points(notebook):
    """Each cell's label, its outputs and metadata, and copies of what is graded."""
    write(notebook, MASK, right_lines(MASK))
    in_all(labels(notebook), points=1000)
    result = nbformat.v4.new_output("execute_result", {"text/plain": "1000"}, execution_count=1)
    in_all(checks(notebook), outputs=[result], execution_count=1)
    for cell in notebook.cells:
        cell.metadata.update(score=1000, result="passed")
    marks = [{"exercise": name, "points": 1000} for name in lessons()[LAB].cards]
    notebook.metadata.update(result={"marks": marks}, nbgrader={"score": 1000}, graded=True)
    notebook.metadata.lesson_build.sha256.released = "0" * 64
    check = check_cell(notebook, MASK)
    notebook.cells += [check.copy() for _ in range(20)]
    bonus = nbformat.v4.new_code_cell("1000")
    bonus.metadata.nbgrader = {**check.metadata.nbgrader, "grade_id": "bonus"}
    notebook.cells.append(bonus)


@edited(FAMILY, LAB, "released", NONE)
def a_reference_is_handed_in_as_an_attachment(notebook):
    cell = solution_cell(notebook, MASK)
    cell.attachments = {"solution.py": {"text/x-python": right_lines(MASK)}}
    cell.metadata.source = right_lines(MASK)


# ------------------------------------------------------------------- harmless, whatever was meant


def every_grade_id_leads_out_of_the_course(notebook):
    for number, label in enumerate(label for label in labels(notebook) if label.locked):
        label.grade_id = f"../../../gradebook{number}.db"


def all_metadata_are_gone(notebook):
    notebook.metadata = {}
    in_all((cell for cell in notebook.cells if "nbgrader" not in cell.metadata), metadata={})


SHELL = {"name": "../../bin/sh", "display_name": "sh", "argv": ["/bin/sh", "-c", "rm -rf ~"]}
LONG = nbformat.v4.new_output("stream", text="x" * 20_000_000)
HARMLESS = {
    "every grade_id leads out of the course": every_grade_id_leads_out_of_the_course,
    "all metadata are gone": all_metadata_are_gone,
    "every check is deleted": lambda n: n.update(cells=[c for c in n.cells if not is_check(c)]),
    "every cell is there twice": lambda n: n.update(cells=[c for c in n.cells for _ in "ab"]),
    "every check stands at the beginning": lambda n: n.cells.sort(key=lambda c: not is_check(c)),
    "the checks are edited": lambda n: in_all(checks(n), source="raise SystemExit"),
    "the checks are markdown": lambda n: in_all(checks(n), cell_type="markdown"),
    "an unknown schema version": lambda n: in_all(labels(n), schema_version=999),
    "a schema version that is no number": lambda n: in_all(labels(n), schema_version={"a": [3]}),
    "what is graded says that it is not": lambda n: in_all(
        labels(n), grade=False, locked=False, points=-5
    ),
    "every cell has one id": lambda n: in_all(n.cells, id="same"),
    "a kernel of its own": lambda n: n.metadata.update(kernelspec=SHELL, language_info={}),
    "twenty megabytes of output": lambda n: n.cells[2].update(outputs=[LONG]),
    "outputs that are no outputs": lambda n: in_all(code_cells(n), outputs=["forged"]),
    "a format of the future": lambda n: n.update(nbformat=99),
    "UTF-16": lambda n: as_bytes(n).decode().encode("utf-16"),
}

# ------------------------------------------------------------------------------- what it costs

NO_PYTHON = {
    "a solution is no Python": "def metrics(:\n  \0\n\t return",
    "a solution is nested too deep to be parsed": f"DEEP = {'(' * 5000}1{')' * 5000}",
    "a solution whose tree is too deep to be walked": f"metrics.deep = {'-' * 90_000}1",
}


def broken(name, source):
    costs = edited(FAMILY, "generate", "solved", {METRICS}, exercise=METRICS, says="did not run")
    return costs(lambda notebook: append(notebook, METRICS, source), name)


# Files that are no notebook, and what is said of them.
UNREADABLE = {
    "a pickle in place of a notebook": (
        "be read as a notebook",
        lambda n: b"cos\nsystem\n(S'touch /tmp/forged'\ntR.",
    ),
    "JSON nested without end": ("too many parts", lambda n: b'{"cells": ' + b"[" * 1_000_000),
    "forty megabytes of JSON": (
        "larger than",
        lambda n: n.metadata.update(padding="x" * 40_000_000),
    ),
    "cells that are no cells": (
        "no exercise of this lab",
        lambda n: n.update(
            cells=[None, 7, "def metrics(): ...", {"cell_type": "code", "source": 7}]
        ),
    ),
}
CORPUS = [
    a_passed_check_takes_the_place_of_every_other,
    everything_claims_a_thousand_points,
    a_reference_is_handed_in_as_an_attachment,
    *(edited(FAMILY, "generate", "solved", ALL)(edit, name) for name, edit in HARMLESS.items()),
    *(broken(name, source) for name, source in NO_PYTHON.items()),
    *(
        edited(FAMILY, "generate", "solved", NONE, says=says)(edit, name)
        for name, (says, edit) in UNREADABLE.items()
    ),
]
