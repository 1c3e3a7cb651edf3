"""Write start.ipynb, and renew the page in it. The learner's own cells and changes are kept."""

import json
import os
from pathlib import Path
from typing import Any

from start.page import PAGE, Page

OWN_CELL, CALL = "start-page", "show_page()"
TITLE = """\
# The inference workbook

JupyterLab renews this page when you open it. Elsewhere, run the next cell."""
SOURCE = f"from start.page import show_page\n\n{CALL}"
REPORT = """\
# A report of your own, to keep or to send: report.html
%run -m timing.report"""

Notebook = dict[str, Any]
Cell = dict[str, Any]


def write(folder: Path) -> None:
    """Write start.ipynb with the page as it is now, or renew the page in it.

    A file that isn't a notebook, or whose own cell is gone, stays as it is.
    """
    file = folder / PAGE
    folder.mkdir(parents=True, exist_ok=True)
    notebook = read(file) if file.exists() else new_notebook()
    if renew(notebook, Page(folder)):
        half = file.with_suffix(f".{os.getpid()}")  # so that no reader finds half of it
        half.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "utf-8")
        os.replace(half, file)


def read(file: Path) -> Notebook:
    """Return a notebook; one without cells if the file isn't a notebook."""
    nothing: Notebook = {"cells": []}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return found if "cells" in found else nothing
    except (ValueError, TypeError):
        return nothing


def new_notebook() -> Notebook:
    return {
        "cells": [
            {"cell_type": "markdown", "id": "start-title", "metadata": {}, "source": TITLE},
            code_cell(OWN_CELL, SOURCE, {"jupyter": {"source_hidden": True}}),
            code_cell("start-report", REPORT, {}),
        ],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def code_cell(name: str, source: str, metadata: dict[str, Any]) -> Cell:
    empty: Cell = {"execution_count": None, "outputs": []}
    return {"cell_type": "code", "id": name, "metadata": metadata, "source": source, **empty}


def renew(notebook: Notebook, page: Page) -> Cell | None:
    """Put the page into the output of our own cell, and return this cell.

    A cell whose source no longer calls the page isn't ours any more.
    """
    for cell in notebook["cells"]:
        if cell.get("id") == OWN_CELL and CALL in "".join(cell["source"]):
            data = {"text/html": page._repr_html_(), "text/plain": repr(page)}
            cell["outputs"] = [{"output_type": "display_data", "metadata": {}, "data": data}]
            return cell
    return None
