"""A solved notebook runs again if something that it uses has changed, and only then."""

import pytest
from nbformat.v4 import new_output

from autograder import executed
from autograder.executed import QUICK, WHOLE, code_cells, files_needed, kept, run_and_keep, solved
from autograder.text.lesson import lessons
from autograder.text.reference import ROOT

LESSON = lessons()["batching"]


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """The notebooks that ran, when `take` needed them; nothing is kept at first."""
    monkeypatch.setattr(executed, "KEPT", tmp_path / "notebooks")
    return []


def take(ran, kind=WHOLE):
    def run(notebook):
        code_cells(notebook)[0].outputs = [new_output("stream", text=f"run {len(ran)}")]
        ran.append(notebook)

    notebook = kept(LESSON, kind) or run_and_keep(LESSON, kind, run)
    return code_cells(notebook)[0].outputs[0].text


def changed(monkeypatch, file):
    """Let a file of the project have another content."""
    before = executed.hash_of
    monkeypatch.setattr(executed, "hash_of", lambda f: "new" if f == ROOT / file else before(f))


def test_a_notebook_runs_again_only_if_something_that_it_uses_has_changed(ran, monkeypatch):
    assert [take(ran), take(ran)] == ["run 0", "run 0"]
    changed(monkeypatch, "solutions/decoding.py")
    assert take(ran) == "run 0"
    changed(monkeypatch, "solutions/kv_cache.py")
    assert [take(ran), take(ran)] == ["run 1", "run 1"]
    assert len(list(executed.KEPT.iterdir())) == 1


def test_new_prose_is_shown_with_the_outputs_of_the_code_below_it(ran, monkeypatch):
    take(ran)
    lesson = solved(LESSON)
    lesson.cells[0].source += " More prose."
    monkeypatch.setattr(executed, "solved", lambda _: lesson)
    assert take(ran) == "run 0"
    assert kept(LESSON, WHOLE).cells[0].source.endswith(" More prose.")
    code_cells(lesson)[0].source += "\n1 + 1"
    assert take(ran) == "run 1"


def test_a_whole_run_serves_where_a_quick_one_does_but_not_the_other_way_round(ran):
    assert [take(ran, QUICK), take(ran, WHOLE), take(ran, QUICK)] == ["run 0", "run 1", "run 1"]


def test_a_run_that_fails_leaves_the_kept_one_in_its_place(ran, monkeypatch):
    take(ran)
    with monkeypatch.context() as patch:
        changed(patch, "gpt.py")
        with pytest.raises(ZeroDivisionError):
            run_and_keep(LESSON, WHOLE, lambda _: 1 / 0)
    assert take(ran) == "run 0"


def test_what_a_notebook_uses_is_found_without_an_import_statement_too():
    def used(lab):
        cells = code_cells(solved(lessons()[lab]))
        files = files_needed(lab, [cell.source for cell in cells])
        return {file.relative_to(ROOT).as_posix() for file in files}

    assert used("batching") >= {
        *("gpt.py", "constraints.txt", "models/fable/model.safetensors", "visuals/batching.py"),
        *("solutions/batching.py", "solutions/kv_cache.py", "autograder/check.py"),
        *("course/lab03_batching/cases.py", "autograder/attempt/drivers/batching.py"),
        "solutions/generate.py",  # fetched by `mine`
    }
    assert used("serving") >= {
        "solutions/engine/engine.py",  # imported late, by its name
        "solutions/constrained.py",  # looked up by the server
    }
    assert not used("flash_attention") & {"solutions/moe.py", "course/lab17_moe/cases.py"}
    assert "solutions/flash_attention.py" in used("flash_attention")
