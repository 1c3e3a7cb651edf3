"""Notebooks as students submit them, made from the released ones."""

import copy
import json
import re
from typing import Any

from autograder.grading.judge.submission import Submission
from autograder.text.release import release_of

TODO = re.compile(r"# TODO: write this part\n *raise NotImplementedError\(.*\)")


def released(lab: str) -> list[dict[str, Any]]:
    """Return the cells of a released lab, as a copy that a test may change."""
    return copy.deepcopy([dict(cell) for cell in release_of(lab).cells])


def solved(lab: str) -> list[dict[str, Any]]:
    """Return the cells with every exercise and question answered. None of the code is right."""
    cells = released(lab)
    for cell in cells:
        if is_solution(cell):
            id = label(cell)["grade_id"]
            cell["source"] = f"# begin {id}\n{TODO.sub('return 7', cell['source'])}\n# end {id}"
        elif is_answer(cell):
            cell["source"] = f"My answer to {label(cell)['grade_id']}."
    return cells


def label(cell: dict[str, Any]) -> dict[str, Any]:
    return cell["metadata"].get("nbgrader", {})


def is_solution(cell: dict[str, Any]) -> bool:
    return bool(label(cell).get("solution")) and cell["cell_type"] == "code"


def is_answer(cell: dict[str, Any]) -> bool:
    return bool(label(cell).get("solution")) and cell["cell_type"] == "markdown"


def is_check(cell: dict[str, Any]) -> bool:
    return bool(label(cell).get("grade")) and cell["cell_type"] == "code"


def code(source: str, **fields: Any) -> dict[str, Any]:
    """Return a code cell added by the student, as JupyterLab writes it."""
    cell = {"cell_type": "code", "execution_count": 3, "metadata": {}, "outputs": []}
    return {**cell, "source": source, **fields}


def prose(source: str, **fields: Any) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": source, **fields}


def notebook(cells: list[dict[str, Any]]) -> str:
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def submission(lab: str, cells: list[dict[str, Any]]) -> Submission:
    return Submission("ada", lab, notebook(cells).encode())
