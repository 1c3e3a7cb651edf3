"""Labs that were released earlier keep working, with learners' copies and everything they import.

tests/data/ holds the imports of the labs at their release, what code kept in work/.mine takes for
given in its lab's module, and the record that `make lab` kept of them.
"""

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest

import workbook
from solutions.engine import new_engine
from solutions.engine.limits import Limits
from solutions.kv_cache import CachedLMHead
from solutions.kv_reduction import HostPool, window_mask
from solutions.kv_variants.swapping_engine import swapping_engine
from solutions.kv_variants.window_engine import windowed_engine
from tests.common.engines import CONFIGS, model_of
from tests.common.files import tree

DATA = Path(__file__).resolve().parent / "data"
IMPORTS = (DATA / "released_imports.txt").read_text().splitlines()
RECORD = json.loads((DATA / "released_labs.json").read_text())


@pytest.mark.parametrize(
    "statement",
    [pytest.param(s, marks=pytest.mark.needs("triton") if "triton" in s else ()) for s in IMPORTS],
)
def test_what_the_released_labs_import_is_there(statement):
    exec(statement, {})


def test_an_update_keeps_everything_of_a_learners(tmp_path, monkeypatch, capsys):
    work, fresh = tmp_path / "work", tmp_path / "fresh"
    kept = [".mine/generate/generate.py", ".mine/kv_cache/KVCache.attend.py", "01_generate/notes"]
    for name in [*RECORD, *kept]:
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(f"my own {name}")
    before = tree(work)
    (work / workbook.RECORD).write_text(json.dumps(RECORD))

    monkeypatch.setattr(workbook, "WORK", work)
    for step in ("start_page", "launch", "follow"):
        monkeypatch.setattr(workbook, step, lambda *arguments, **options: [])
    workbook.lab(Path("python"), [])
    after = tree(work)
    assert {name: after[name] for name in before} == before
    assert json.loads(after[workbook.RECORD]).items() >= RECORD.items()

    workbook.copy_labs(workbook.LABS, fresh)
    now = json.loads((fresh / workbook.RECORD).read_text())
    changed = {name for name, release in RECORD.items() if now[name] != release}
    told = capsys.readouterr().out
    reported = {n for n in RECORD if f"{n} has changed since you copied it. Your copy" in told}
    assert reported == changed


@pytest.mark.parametrize("form", ["limits", "numbers", "names"])
def test_an_engine_also_takes_its_limits_as_four_numbers(form):
    """In the ways in which labs 7 to 13 gave them at their release."""
    model, numbers = model_of(CachedLMHead, CONFIGS[0], 0), (9, 2, 8, 3)
    given, named = {
        "limits": ([Limits(*numbers)], {}),
        "numbers": (numbers, {}),
        "names": ([], asdict(Limits(*numbers))),
    }[form]
    windowed = partial(windowed_engine, window=4, sinks=2, window_mask=window_mask)
    for new in (new_engine, windowed, partial(swapping_engine, host=HostPool())):
        scheduler = new(model, *given, on_output=print, **named).scheduler
        manager = scheduler.manager
        sizes = manager.num_blocks, manager.block_size
        assert (*sizes, scheduler.token_budget, scheduler.max_running) == numbers
