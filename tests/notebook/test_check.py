"""check, hint, status and mine: in a script, in a notebook, and across sessions."""

import contextlib
import inspect
import json
import os
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest
import torch
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_notebook
from nbgrader.utils import determine_grade

from autograder import check as check_module
from autograder.check import CheckFailed, Result, check, failing_case, hint, mine, status
from autograder.exercises import exercises
from autograder.judging.judge import INSIDE, drawn, judge
from autograder.notebook import cells, kept, verdict
from autograder.notebook.card import VerdictCard
from autograder.notebook.progress import status_of
from autograder.text.lesson import lessons
from solutions.generate import Metrics, generate, metrics
from solutions.kv_cache import KVCache, causal_mask

ROOT = Path(__file__).resolve().parents[2]
GENERATE, METRICS = exercises()["generate.generate"], exercises()["generate.metrics"]


@pytest.fixture(autouse=True)
def mine_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINE_FOLDER", str(tmp_path / "mine"))
    monkeypatch.delenv("NBGRADER_EXECUTION", raising=False)
    monkeypatch.chdir(tmp_path)
    check_module.hints_given.clear()
    cells.failures.clear()
    return tmp_path / "mine"


def from_source(tmp_path: Path, name: str, source: str) -> Any:
    """An object whose source stands in a file of its own, as a learner's script would hold it."""
    path = tmp_path / f"{name}_{len(list(tmp_path.iterdir()))}.py"
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": path.stem}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), namespace)
    return namespace[name]


OWN_METRICS = """
    from solutions.generate import Metrics

    def metrics(start, token_times):
        first, *_, last = [*token_times, token_times[-1]]
        n = len(token_times)
        tpot = (last - first) / (n - 1) if n > 1 else None
        return Metrics(first - start, tpot, last - start, n / (last - start))
"""


def positions_all_0(
    model: Any, input_ids: Any, max_new_tokens: int, eos_token_id: Any = None
) -> Any:
    ids = input_ids
    for _ in range(min(max_new_tokens, model.config.n_positions - ids.shape[1])):
        new = model(ids, torch.zeros_like(ids))[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat([ids, new], dim=1)
        if eos_token_id is not None and new.item() == eos_token_id:
            break
    return ids


# ---------------------------------------------------------------------------------------- check


def test_a_pass_returns_its_points_and_shows_a_card(capsys: pytest.CaptureFixture) -> None:
    result = check("generate.generate", generate)
    assert result == Result("passed", "Right on every case.", GENERATE.card.points)
    shown = capsys.readouterr()
    assert shown.out.startswith("generate.generate: passed")
    assert shown.err == ""


def test_a_skeleton_is_not_attempted(capsys: pytest.CaptureFixture) -> None:
    def metrics(start: float, token_times: list) -> Metrics:
        raise NotImplementedError

    with pytest.raises(CheckFailed) as failed:
        check("generate.metrics", metrics)
    assert (failed.value.result.status, failed.value.result.points) == ("not attempted", 0)
    assert 'hint("generate.metrics")' in capsys.readouterr().out


def test_a_wrong_answer_is_told_the_cause_and_shown_the_case(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(CheckFailed) as failed:
        check("generate.generate", positions_all_0)
    result = failed.value.result
    known = next(m for m in GENERATE.misconceptions if m.name == "positions_all_0")
    assert (result.status, result.points) == ("wrong", 0)
    assert known.sentence in result.message
    shown = capsys.readouterr().out
    assert f"Likely cause: {known.sentence}" in shown
    assert "smallest failing case: three new tokens" in shown
    assert re.search(r"got: +torch.tensor\(\[\[", shown)
    assert re.search(r"expected: +torch.tensor\(\[\[", shown)
    assert "requests = [{'input_ids': torch.tensor([[" in shown


def test_the_case_can_be_pasted_and_fetched() -> None:
    with pytest.raises(CheckFailed):
        check("generate.generate", positions_all_0)
    (request,) = failing_case()["requests"]
    names: dict[str, Any] = {"torch": torch}
    exec(verdict.pasted(GENERATE, check_module.failed[0]), names)
    assert torch.equal(names["requests"][0]["input_ids"], request["input_ids"])
    request["input_ids"] += 1
    assert not torch.equal(failing_case()["requests"][0]["input_ids"], request["input_ids"])


@pytest.mark.parametrize(
    "name",
    [
        *("constrained.token_index", "constrained.forced", "constrained.classify"),
        *("tokenizer.merge", "tokenizer.join_by_rank", "tokenizer.encode", "estimating.plan"),
    ],
)
def test_a_case_is_shown_as_the_call_that_a_learner_would_write(name: str) -> None:
    exercise = exercises()[name]
    for case in drawn(exercise):
        shown = verdict.pasted(exercise, case)
        assert shown.startswith(f"{exercise.path}(")
        exec(shown, dict(vars(exercise.module)))


@pytest.mark.parametrize("name", ["constrained.hold_back", "tokenizer.StreamDecoder.push"])
def test_bytes_are_shown_as_bytes(name: str) -> None:
    exercise = exercises()[name]
    assert all("b'" in verdict.pasted(exercise, case) for case in drawn(exercise)[1:])


def test_an_error_is_told_with_the_line_that_raised_it(tmp_path, capsys):
    attempt = from_source(
        tmp_path, "metrics", "def metrics(start, token_times):\n    return 1 / (start - start)\n"
    )
    with pytest.raises(CheckFailed, match="see the card"):
        check("generate.metrics", attempt)
    shown = capsys.readouterr().out
    assert "It raised ZeroDivisionError: float division by zero" in shown
    assert "your line: " in shown
    assert "line 2: return 1 / (start - start)" in shown


def test_nothing_reaches_stderr(capsys: pytest.CaptureFixture) -> None:
    """Stock nbgrader gives 0 to a right cell that writes to it."""

    def loud(start: float, token_times: list) -> Metrics:
        print("a line of the attempt", file=sys.stderr)
        return metrics(start, token_times)

    check("generate.metrics", loud)
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "a line of the attempt" in shown.out


def test_an_unknown_name_is_answered_with_near_ones() -> None:
    with pytest.raises(ValueError, match=r"Did you mean .*generate\.metrics"):
        check("generate.metric", metrics)
    with pytest.raises(ValueError, match=r"kv_cache\.KVCache\.attend"):
        hint("KVCache.attend")
    with pytest.raises(ValueError, match="There is no exercise None"):
        check(None, metrics)  # type: ignore[arg-type]


def test_what_is_no_attempt_is_refused() -> None:
    with pytest.raises(ValueError, match="Pass the function metrics itself, not a Metrics"):
        check("generate.metrics", metrics(0.0, [1.0]))
    with pytest.raises(ValueError, match=r"Pass the class KVCache itself.*attend\", KVCache\)"):
        check("kv_cache.KVCache.attend", KVCache.attend)


def test_a_check_that_had_passed_and_fails_is_red_again(tmp_path, capsys):
    right = from_source(tmp_path, "metrics", OWN_METRICS)
    check("generate.metrics", right)
    with pytest.raises(CheckFailed):
        check("generate.metrics", lambda start, times: None)
    status()
    assert "red again  generate.metrics" in capsys.readouterr().out
    check("generate.metrics", right)
    status()
    assert "passed     generate.metrics" in capsys.readouterr().out


def test_a_name_whose_cell_did_not_run_is_not_judged(capsys: pytest.CaptureFixture) -> None:
    cells.failures["metrics"] = "SyntaxError: '(' was never closed"
    with pytest.raises(CheckFailed):
        check("generate.metrics", metrics)
    assert "defines `metrics` did not run (SyntaxError: '('" in capsys.readouterr().out


def itself(start: float, token_times: list) -> Metrics:
    check("generate.metrics", metrics)
    return metrics(start, token_times)


def suppressed(start: float, token_times: list) -> Metrics:
    with contextlib.suppress(BaseException):
        check("generate.metrics", metrics)
    return metrics(start, token_times)


def in_a_thread(start: float, token_times: list) -> Metrics:
    thread = threading.Thread(target=check, args=("generate.metrics", metrics))
    thread.start()
    thread.join()
    return metrics(start, token_times)


@pytest.mark.parametrize("attempt", [itself, suppressed, in_a_thread])
def test_a_check_inside_an_attempt_is_refused(attempt, capsys, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)  # not pytest's own
    with pytest.raises(CheckFailed) as failed:
        check("generate.metrics", attempt)
    assert failed.value.result == Result("wrong", INSIDE, 0)
    shown = capsys.readouterr()
    assert shown.out.count("generate.metrics: ") == 1
    assert "Traceback" not in shown.out + shown.err
    assert check("generate.metrics", metrics).status == "passed"


def test_the_line_that_checks_inside_an_attempt_is_shown(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(CheckFailed):
        check("generate.metrics", itself)
    assert ': check("generate.metrics", metrics)' in capsys.readouterr().out


def test_mine_inside_an_attempt_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    check("generate.metrics", from_source(tmp_path, "metrics", OWN_METRICS))

    def with_mine(start: float, token_times: list) -> Metrics:
        return mine("generate").metrics(start, token_times)

    with pytest.raises(CheckFailed) as failed:
        check("generate.metrics", with_mine)
    assert failed.value.result.message == INSIDE
    assert "does not pass here" not in capsys.readouterr().out


def test_status_and_hint_inside_an_attempt_are_no_mistake() -> None:
    def curious(start: float, token_times: list) -> Metrics:
        status()
        hint("generate.metrics")
        return metrics(start, token_times)

    assert check("generate.metrics", curious).status == "passed"


def test_ctrl_c_passes_through() -> None:
    def interrupted(start: float, token_times: list) -> Metrics:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        check("generate.metrics", interrupted)
    assert stopped.value._render_traceback_() == ["The check was interrupted."]  # type: ignore[attr-defined]


SCRIPT = """
import warnings
from autograder.check import check
from solutions.generate import Metrics

def metrics(start, token_times):
    warnings.warn("a warning of the attempt")
    return Metrics(0.0, None, 1.0, 1.0)

check("generate.metrics", metrics)
print("not reached")
"""


def run_script(source: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", source]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_a_script_stops_at_a_failed_check_without_a_traceback() -> None:
    ran = run_script(SCRIPT)
    assert ran.returncode == 1
    assert ran.stderr == ""
    assert "generate.metrics: wrong" in ran.stdout
    assert "Traceback" not in ran.stdout
    assert "a warning of the attempt" in ran.stdout
    assert "not reached" not in ran.stdout


@pytest.mark.slow
def test_other_errors_of_a_script_keep_their_traceback() -> None:
    ran = run_script("import autograder.check\n1 / 0")
    assert ran.returncode == 1
    assert "ZeroDivisionError" in ran.stderr


# ---------------------------------------------------------------------------- check in a notebook

IMPORTS = "from autograder.check import check, hint, mine, status\nimport torch"

OWN_GENERATE = """
from solutions.generate import require_prompt

@torch.no_grad()
def generate(model, input_ids, max_new_tokens, eos_token_id=None):
    require_prompt(model, input_ids, max_new_tokens, eos_token_id)
    ids = input_ids
    while ids.shape[1] < min(input_ids.shape[1] + max_new_tokens, model.config.n_positions):
        ids = append(ids, model(ids, positions_of(ids)))
        if eos_token_id is not None and ids[0, -1] == eos_token_id:
            break
    return ids
"""

HELPERS = """
FIRST = 0

def positions_of(ids):
    return torch.arange(FIRST, ids.shape[1]).expand_as(ids)

def append(ids, logits):
    return torch.cat([ids, logits[:, -1:].argmax(-1)], dim=1)
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One for all notebooks: a kernel that imports torch takes seconds to start."""
    environment = {**os.environ, "MINE_FOLDER": str(tmp_path_factory.mktemp("notebook"))}
    environment.pop("NBGRADER_EXECUTION", None)
    where = {"metadata": {"path": str(ROOT)}}
    client = NotebookClient(new_notebook(), timeout=300, resources=where)
    with client.setup_kernel(env=environment):
        yield client


def executed(kernel: Any, *cells: str, allow_errors: bool = False) -> nbformat.NotebookNode:
    """Run cells as `Run All` does: an error stops it. Returns the notebook with its outputs."""
    kernel.nb = new_notebook(cells=[new_code_cell(cell) for cell in cells])
    kernel.allow_errors = allow_errors
    with contextlib.suppress(CellExecutionError):
        for index, cell in enumerate(kernel.nb.cells):
            kernel.execute_cell(cell, index)
    return kernel.nb


@pytest.fixture(scope="module")
def notebook(kernel: Any) -> nbformat.NotebookNode:
    """One notebook with a pass, everything a learner asks for, and a failure that ends it."""
    return executed(
        kernel,
        IMPORTS,
        HELPERS,
        OWN_GENERATE,
        'check("generate.generate", generate)',
        'status()\nhint("generate.metrics")',
        'own = mine("generate")\nassert own.append is not append',
        "def metrics(start, token_times):\n    return (1, 2, 3, 4)",
        'check("generate.metrics", metrics)',
        'print("not reached")',
    )


def test_the_notebook_runs_up_to_the_failed_check(notebook: nbformat.NotebookNode) -> None:
    kinds = [[output.output_type for output in cell.outputs] for cell in notebook.cells]
    assert kinds[3] == ["display_data"]
    assert kinds[7] == ["display_data", "error"]
    assert kinds[8] == []
    assert "error" not in [kind for cell in kinds[:7] for kind in cell]
    streams = [o for c in notebook.cells for o in c.outputs if o.output_type == "stream"]
    assert all(output.name == "stdout" for output in streams)


@pytest.mark.parametrize(
    ("got", "expected", "parts"),
    [
        ([*range(20), -1], list(range(21)), (-1, 20)),
        ([[1, 2], [3]], [[1, 2], [4]], (3, 4)),
        ({"a": 1, "b": [2.0]}, {"a": 1, "b": [2]}, (2.0, 2)),
        ([1, 2], [1, 2, 3], ([1, 2], [1, 2, 3])),
    ],
)
def test_a_card_shows_the_part_that_differs(got: Any, expected: Any, parts: tuple) -> None:
    assert verdict.part(got, expected) == parts


def test_a_part_that_is_too_large_is_not_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "python", None)
    got, expected = [torch.zeros(500, 500)], [torch.zeros(2)]
    assert verdict.part(got, expected) == (got[0], expected[0])


def test_a_card_is_html_with_plain_text_beside_it(notebook: nbformat.NotebookNode) -> None:
    passed, failed = notebook.cells[3].outputs[0].data, notebook.cells[7].outputs[0].data
    assert "<b>generate.generate</b>" in passed["text/html"]
    assert passed["text/plain"].startswith("generate.generate: passed")
    assert "smallest failing case" in failed["text/html"]
    assert "<details>" in failed["text/html"]
    assert "What it returned" in failed["text/plain"]


def test_the_error_has_one_line_and_no_traceback(notebook: nbformat.NotebookNode) -> None:
    card, error = notebook.cells[7].outputs
    assert error.ename == "CheckFailed"
    assert error.traceback == [error.evalue] == ["generate.metrics is wrong: see the card above."]
    assert "Traceback" not in json.dumps(card)
    assert ".py" not in json.dumps(card)


def test_a_cell_that_did_not_run_is_noticed(kernel: Any, notebook: nbformat.NotebookNode) -> None:
    """Run as a learner does, cell by cell, on over the error. After `notebook`, which counts what
    has passed."""
    ran = executed(
        kernel,
        f"{IMPORTS}\nfrom solutions.generate import metrics",
        'check("generate.metrics", metrics)',
        "def metrics(start, token_times:\n    pass",
        'check("generate.metrics", metrics)',
        "def metrics(start, token_times):\n    pass\n\n1 / 0",
        'check("generate.metrics", metrics)',
        "from solutions.generate import metrics as right\ndef metrics(start, times):\n"
        "    if not times:\n        raise ValueError\n    return right(start, times)",
        'check("generate.metrics", metrics)',
        allow_errors=True,
    )
    said = [c.outputs[0].data["text/plain"] for c in ran.cells[1::2]]
    assert said[0].startswith("generate.metrics: passed")
    assert "The last cell that defines `metrics` did not run (SyntaxError" in said[1]
    assert "did not run" not in said[2]  # it was defined before the error
    assert said[3].startswith("generate.metrics: passed")


def test_stock_nbgrader_agrees_with_the_check(notebook: nbformat.NotebookNode) -> None:
    for index, expected in [(3, 5.0), (7, 0.0)]:
        cell = notebook.cells[index]
        cell.metadata["nbgrader"] = {
            "grade": True, "solution": False, "locked": True, "points": 5,
            "grade_id": "g", "schema_version": 3, "cell_type": "code",
        }  # fmt: skip
        assert determine_grade(cell) == (expected, 5)


def test_a_notebook_keeps_what_passed_with_its_helpers(notebook: nbformat.NotebookNode) -> None:
    said = notebook.cells[5].outputs[0].text
    assert said == 'mine("generate"): yours: generate; from the reference: metrics.\n'
    assert "1 of 2 exercises passed" in notebook.cells[4].outputs[0].data["text/plain"]
    assert "Hint 1 of 3" in notebook.cells[4].outputs[1].data["text/markdown"]


def test_html_takes_nothing_for_markup() -> None:
    shown = VerdictCard("x", "wrong", ["a < b & `c < d`"], [("<i>", "<b>")], "e < f")._repr_html_()
    assert "a &lt; b &amp; <code>c &lt; d</code>" in shown
    assert "<i>" not in shown
    assert "<code>&lt;b&gt;</code>" in shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.arange(3), "torch.tensor([0, 1, 2])"),
        (torch.tensor([1.0, 0.25]), "torch.tensor([1.0, 0.25])"),
        (torch.tensor([[True]]), "torch.tensor([[True]])"),
        ([1, (2,), None], "[1, (2,), None]"),
        ({"x": 1e-9, "y": "z"}, "{'x': 1e-09, 'y': 'z'}"),
    ],
)
def test_values_are_shown_as_python(value: Any, text: str) -> None:
    assert verdict.python(value) == text


# ---------------------------------------------------------------------------------------- hints


def test_hints_go_further_at_every_call(capsys: pytest.CaptureFixture) -> None:
    for level in (1, 2, 3, 3):
        hint("generate.metrics")
        shown = capsys.readouterr().out
        assert f"Hint {level} of 3" in shown
        assert METRICS.card.hints[level - 1] in shown
    hint("generate.generate")
    assert "**Hint 1 of 3** for `generate.generate`. Run it again" in capsys.readouterr().out


def test_a_hint_can_be_asked_for_by_level(capsys: pytest.CaptureFixture) -> None:
    hint("generate.metrics", level=2)
    shown = capsys.readouterr().out
    assert METRICS.card.hints[1] in shown
    assert 'hint("generate.metrics", 1)` goes back' in shown
    hint("generate.metrics")
    assert "The last one." in capsys.readouterr().out
    for level in (0, 4):
        with pytest.raises(ValueError, match="levels are 1 to 3"):
            hint("generate.metrics", level=level)


# --------------------------------------------------------------------------------------- status


def in_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)


def test_status_speaks_of_this_lab_first(tmp_path, monkeypatch, capsys):
    in_lab(tmp_path, monkeypatch, "02_kv_cache")
    check("generate.generate", generate)
    check("kv_cache.causal_mask", causal_mask)
    capsys.readouterr()
    status()
    shown = capsys.readouterr().out
    mine_of_it = [e for e in exercises().values() if e.lab == "kv_cache"]
    minutes = sum(e.card.minutes for e in mine_of_it[1:])
    assert shown.startswith("Lab 2, kv_cache\npassed     kv_cache.causal_mask")
    assert "generate.metrics" not in shown
    points = sum(e.card.points for e in mine_of_it)
    assert f"1 of {len(mine_of_it)} exercises passed (2 of {points} points), about" in shown
    assert f"about {minutes} minutes left" in shown
    assert f"Go on with {mine_of_it[1].name}." in shown
    assert f"{len(lessons()['kv_cache'].questions)} questions are answered in prose" in shown
    assert "The other labs: generate 1 of 2, batching 0 of 10" in shown
    assert "The next lab is 03_batching/batching.ipynb." in shown


def test_status_knows_when_a_lab_is_done(tmp_path, monkeypatch, capsys):
    in_lab(tmp_path, monkeypatch, "01_generate")
    check("generate.generate", generate)
    check("generate.metrics", metrics)
    capsys.readouterr()
    status()
    assert "All 2 exercises of this lab passed." in capsys.readouterr().out


def test_status_links_to_the_start_page_where_there_is_one(tmp_path, monkeypatch):
    in_lab(tmp_path, monkeypatch, "01_generate")
    assert "href" not in status_of(lessons()["generate"])._repr_html_()
    (tmp_path / "start.ipynb").touch()
    assert 'href="../start.ipynb"' in status_of(lessons()["generate"])._repr_html_()


def test_elsewhere_status_speaks_of_the_lab_of_the_newest_pass(capsys):
    status()
    assert capsys.readouterr().out.startswith("Lab 1, generate")
    check("kv_cache.causal_mask", causal_mask)
    capsys.readouterr()
    status()
    assert capsys.readouterr().out.startswith("Lab 2, kv_cache")


# ----------------------------------------------------------------------------------------- mine


def test_with_nothing_kept_mine_is_the_reference(capsys: pytest.CaptureFixture) -> None:
    module = mine("generate")
    assert isinstance(module, ModuleType)
    assert module.metrics(0.0, [1.0, 3.0]).tpot == 2.0
    assert capsys.readouterr().out == (
        'mine("generate"): yours: nothing yet; from the reference: generate, metrics.\n'
    )


def test_mine_is_what_passed(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    check("generate.metrics", from_source(tmp_path, "metrics", OWN_METRICS))
    capsys.readouterr()
    module = mine("generate")
    assert "yours: metrics; from the reference: generate." in capsys.readouterr().out
    assert Path(module.metrics.__code__.co_filename) == kept.kept_file(METRICS.name)
    assert module.metrics(0.0, [1.0, 3.0]).tpot == 2.0


def test_a_later_failure_takes_nothing_away(tmp_path: Path, mine_folder: Path) -> None:
    check("generate.metrics", from_source(tmp_path, "metrics", OWN_METRICS))
    before = {path: path.read_text() for path in mine_folder.rglob("*.py")}
    with pytest.raises(CheckFailed):
        check("generate.metrics", from_source(tmp_path, "metrics", "def metrics(s, t): return 1"))
    assert before
    assert {path: path.read_text() for path in mine_folder.rglob("*.py")} == before


def test_an_attempt_of_another_name_is_kept_under_the_right_one(tmp_path, capsys):
    renamed = OWN_METRICS.replace("def metrics", "def figures")
    check("generate.metrics", from_source(tmp_path, "figures", renamed))
    mine("generate")
    assert "yours: metrics" in capsys.readouterr().out


@pytest.mark.parametrize(
    "broken",
    [
        "def metrics(:",
        "1 / 0",
        "import sys; sys.exit()",
        "x = 1",
        "del metrics",
        "def metrics(s, t): 0",
        "",
    ],
)
def test_broken_kept_code_gives_way_to_the_reference(broken, capsys):
    path = kept.kept_file(METRICS.name)
    path.parent.mkdir(parents=True)
    path.write_text(broken)
    module = mine("generate")
    said = capsys.readouterr().out
    assert "yours: nothing yet" in said
    assert "does not pass here" in said
    assert module.metrics(0.0, [1.0, 3.0]).tpot == 2.0
    assert path.read_text() == broken


def test_code_without_source_passes_all_the_same(capsys: pytest.CaptureFixture) -> None:
    namespace: dict[str, Any] = {}
    exec(textwrap.dedent(OWN_METRICS), namespace)
    assert check("generate.metrics", namespace["metrics"]).status == "passed"
    status()
    assert "passed     generate.metrics" in capsys.readouterr().out
    mine("generate")
    assert "does not pass here" in capsys.readouterr().out


UNWRAPPED = """
    def logged(function):
        def wrapper(*given):
            return function(*given)
        return wrapper

    @logged
""" + OWN_METRICS.split("\n\n")[1]
PARTIAL = f"{OWN_METRICS}\n    from functools import partial\n    metrics = partial(metrics)"


@pytest.mark.parametrize("source", [OWN_METRICS.split("\n\n")[0] + UNWRAPPED, PARTIAL])
def test_code_whose_source_is_not_found_passes_and_says_so(source, tmp_path, capsys):
    assert check("generate.metrics", from_source(tmp_path, "metrics", source)).status == "passed"
    shown = " ".join(capsys.readouterr().out.split())
    assert "Your code can't be kept for later labs, which use the reference instead" in shown


def test_code_with_a_decorator_that_wraps_is_kept(tmp_path, capsys):
    wraps = UNWRAPPED.replace("def wrapper", "@functools.wraps(function)\n        def wrapper")
    source = f"{OWN_METRICS.split(chr(10) * 2)[0]}\n    import functools\n{wraps}"
    assert check("generate.metrics", from_source(tmp_path, "metrics", source)).status == "passed"
    mine("generate")
    assert "yours: metrics" in capsys.readouterr().out


def test_a_place_where_nothing_can_be_kept_takes_nothing_from_a_pass(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MINE_FOLDER", str(tmp_path / "file" / "below"))
    assert check("generate.metrics", metrics).status == "passed"
    assert "could not be kept" in capsys.readouterr().out


def test_nbgrader_keeps_nothing_and_grades_by_the_reference(
    tmp_path: Path,
    mine_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    check("generate.metrics", from_source(tmp_path, "metrics", OWN_METRICS))
    before = sorted(mine_folder.rglob("*"))
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    check("generate.generate", generate)
    mine("generate")
    assert "yours: nothing yet" in capsys.readouterr().out
    assert sorted(mine_folder.rglob("*")) == before


USES_A_PROXY = """
    class Proxy:
        def __getattr__(self, name):
            raise RuntimeError("not bound yet")

    proxy = Proxy()
""" + OWN_METRICS.replace("first, *_", "proxy; first, *_")


def test_what_cannot_be_written_down_takes_nothing_from_a_pass(tmp_path, capsys):
    attempt = from_source(tmp_path, "metrics", USES_A_PROXY)
    assert check("generate.metrics", attempt).status == "passed"
    assert "could not be kept for later labs: not bound yet." in capsys.readouterr().out


def test_an_unknown_lab_is_refused() -> None:
    with pytest.raises(ValueError, match='the labs are "generate", "kv_cache"'):
        mine("kvcache")


def kv_cache_source(truncate: str) -> str:
    """A learner's KVCache: the reference's, with another body of truncate."""
    source = Path(sys.modules[KVCache.__module__].__file__ or "").read_text(encoding="utf-8")
    head, _, rest = source.partition("    def truncate(self, n: int) -> None:")
    _, _, tail = rest.partition("### END SOLUTION\n")
    return f"{head}    def truncate(self, n: int) -> None:\n        {truncate}\n{tail}"


TRUNCATE = """if not 0 <= n <= self.length:
            raise ValueError("no")
        self.length = n"""


def test_a_class_with_two_exercises_is_yours_when_both_have_passed(tmp_path, capsys):
    half = from_source(tmp_path, "KVCache", kv_cache_source("raise NotImplementedError"))
    check("kv_cache.KVCache.attend", half)
    with pytest.raises(CheckFailed):
        check("kv_cache.KVCache.truncate", half)
    capsys.readouterr()
    mine("kv_cache")
    assert "KVCache (partly open)" in capsys.readouterr().out

    whole = from_source(tmp_path, "KVCache", kv_cache_source(TRUNCATE))
    check("kv_cache.KVCache.truncate", whole)  # attend was kept from the older definition
    capsys.readouterr()
    module = mine("kv_cache")
    assert "yours: KVCache;" in capsys.readouterr().out
    kept_in = Path(module.KVCache.attend.__code__.co_filename)
    assert kept_in == kept.kept_file("kv_cache.KVCache.truncate")
    assert inspect.unwrap(module.generate).__globals__["KVCache"] is module.KVCache


@pytest.mark.slow
def test_the_newest_class_that_passes_both_is_taken(tmp_path, capsys):
    whole = from_source(tmp_path, "KVCache", kv_cache_source(TRUNCATE))
    check("kv_cache.KVCache.attend", whole)
    check("kv_cache.KVCache.truncate", whole)
    spoiled = from_source(tmp_path, "KVCache", kv_cache_source("self.length = 0"))
    check("kv_cache.KVCache.attend", spoiled)
    with pytest.raises(CheckFailed):
        check("kv_cache.KVCache.truncate", spoiled)
    capsys.readouterr()
    module = mine("kv_cache")
    assert "yours: KVCache;" in capsys.readouterr().out
    assert judge(exercises()["kv_cache.KVCache.truncate"], module.KVCache).status == "passed"
