"""start.ipynb is written once and renewed on disk and on reading; a learner's changes are kept."""

import asyncio
import copy
import json
import logging

import nbformat
import pytest
from nbclient import NotebookClient

from start import contents, notebook
from start.contents import Manager

FILE = notebook.PAGE


def load(folder):
    return json.loads((folder / FILE).read_text(encoding="utf-8"))


def shown(cells):
    return next(cell for cell in cells if cell["id"] == notebook.OWN_CELL)["outputs"][0]["data"]


def test_the_file_is_a_notebook_that_shows_the_page(tmp_path):
    notebook.write(tmp_path)
    nbformat.validate(nbformat.read(tmp_path / FILE, as_version=4))
    data = shown(load(tmp_path)["cells"])
    assert "Begin with lab 1" in data["text/html"]
    assert data["text/plain"].startswith("Begin with lab 1")


def test_only_the_output_of_our_own_cell_is_renewed(tmp_path, pass_all):
    notebook.write(tmp_path)
    mine = load(tmp_path)
    note = {"cell_type": "markdown", "id": "note", "metadata": {}, "source": ["my", " note"]}
    mine["cells"].insert(0, note)
    mine["cells"][-1]["source"] = "1 + 1"
    (tmp_path / FILE).write_text(json.dumps(mine))
    pass_all("generate.generate")
    notebook.write(tmp_path)
    after = load(tmp_path)
    assert "Exercise 2 of 2" in shown(after["cells"])["text/html"]
    for version in (mine, after):
        version["cells"][2]["outputs"] = []
    assert mine == after


def without_own_cell(text):
    changed = json.loads(text)
    del changed["cells"][1]
    return json.dumps(changed)


def with_own_code(text):
    return text.replace(notebook.CALL, "print(1)")


CHANGES = [without_own_cell, with_own_code, lambda _: "{}", lambda _: "no"]


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_without_our_own_cell_stays_as_it_is(tmp_path, change):
    notebook.write(tmp_path)
    text = change((tmp_path / FILE).read_text(encoding="utf-8"))
    (tmp_path / FILE).write_text(text, encoding="utf-8")
    notebook.write(tmp_path)
    assert (tmp_path / FILE).read_text(encoding="utf-8") == text
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


@pytest.mark.slow
def test_running_the_cell_shows_the_page(tmp_path):
    notebook.write(tmp_path)
    made = nbformat.read(tmp_path / FILE, as_version=4)
    before = copy.deepcopy(shown(made.cells))
    made.cells = made.cells[:2]
    NotebookClient(made, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert shown(made.cells) == before


# ------------------------------------------------------------ as JupyterLab reads the file


@pytest.fixture
def manager(tmp_path):
    notebook.write(tmp_path)
    return Manager(root_dir=str(tmp_path), log=logging.getLogger())


def read(manager, path=FILE, **options):
    return asyncio.run(manager.get(path, **options))


def test_reading_the_file_renews_the_page_and_writes_nothing(tmp_path, manager, pass_all):
    before = (tmp_path / FILE).read_bytes()
    pass_all("generate.generate")
    cells = read(manager)["content"]["cells"]
    assert "Exercise 2 of 2" in shown(cells)["text/html"]
    assert cells[1]["metadata"]["trusted"] is True
    assert (tmp_path / FILE).read_bytes() == before
    assert read(manager, content=False)["content"] is None


def test_in_another_folder_the_page_knows_its_path(tmp_path, manager):
    notebook.write(tmp_path / "work")
    cells = read(manager, f"work/{FILE}")["content"]["cells"]
    assert f'data-path="work/{FILE}"' in shown(cells)["text/html"]


def test_cells_that_are_not_ours_are_not_trusted(tmp_path, manager):
    other = load(tmp_path)
    other["cells"][2]["outputs"] = copy.deepcopy(other["cells"][1]["outputs"])
    (tmp_path / FILE).write_text(json.dumps(other))
    cells = read(manager)["content"]["cells"]
    assert [cell["metadata"].get("trusted") for cell in cells] == [None, True, False]


def test_a_page_that_can_not_be_renewed_is_shown_as_it_was(tmp_path, manager, monkeypatch):
    monkeypatch.setattr(contents, "renew", lambda *_: 1 / 0)
    assert read(manager)["content"]["cells"][1]["outputs"] == load(tmp_path)["cells"][1]["outputs"]
