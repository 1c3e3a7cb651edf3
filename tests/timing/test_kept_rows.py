"""The timed rows that are kept for the start page and the report."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import timed_generate
from tests.common.checkpoints import write_tiny
from timing import kept_rows
from timing.kept_rows import keep, kept

HERE = {"processor": "A", "cores": 2, "device": "cpu", "model": "fable", "torch": "2.9"}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("MINE_FOLDER", str(tmp_path / "mine"))
    return tmp_path / "mine"


def run(*rows: dict[str, Any], **other: Any) -> dict[str, Any]:
    """Return the JSON of a run, on this machine unless told otherwise."""
    return {"rows": list(rows), "environment": {**HERE, "os": "Linux", **other}}


def row(technique: str, tok_per_s: float, workload: str = "ragged", about: str = "") -> dict:
    return {"technique": technique, "tok_per_s": tok_per_s, "workload": workload, "about": about}


def seen() -> list[tuple[str, str, float]]:
    return [(row["processor"], row["technique"], row["tok_per_s"]) for row in kept()]


def test_a_run_that_ends_keeps_its_rows_and_one_that_does_not_keeps_none(tmp_path, monkeypatch):
    write_tiny(tmp_path, n_positions=64, n_embd=32)
    monkeypatch.setattr("timing.machine.BANDWIDTH_BYTES", 2**20)
    args = ["--model", str(tmp_path), "--workloads", "lengths", "--tokens", "2", "--threads", "1"]
    args += ["--techniques", "naive,int8", "--mine", "--repeats", "1"]
    with monkeypatch.context() as patch:
        patch.setattr(timed_generate, "measure_rows", lambda *_: sys.exit("a technique was wrong"))
        with pytest.raises(SystemExit, match="a technique was wrong"):
            timed_generate.main(args)
    assert kept() == []
    timed_generate.main(args)
    found = [(row["technique"], row["differs"]) for row in kept()]
    assert found == [("naive", False), ("int8", True)]
    assert "in 8 bits (lab 10)" in kept()[1]["about"]


def test_a_row_is_kept_with_its_date_and_machine():
    keep(run(row("naive", 40.0)))
    [found] = kept()
    assert found == {**row("naive", 40.0), **HERE, "date": found["date"]}
    assert found["date"][:2] == "20"
    assert "T" in found["date"]


def test_the_newest_row_of_each_technique_workload_and_machine_is_kept_last():
    keep(run(row("naive", 40.0), row("naive", 41.0, workload="64 new tokens"), row("hf", 90.0)))
    keep(run(row("naive", 7.0), processor="B"))
    keep(run(row("naive", 50.0)))
    assert seen() == [("A", "naive", 41.0), ("A", "hf", 90.0), ("B", "naive", 7.0),
                      ("A", "naive", 50.0)]  # fmt: skip


def test_the_row_mine_is_kept_only_with_code_of_the_learners():
    keep(run(row("mine", 9.0, about="many requests: the reference's static batches, until ...")))
    assert kept() == []
    keep(run(row("mine", 10.0, about="many requests: your engine (lab 7)")))
    assert seen() == [("A", "mine", 10.0)]


@pytest.mark.parametrize("text", ["", "{", "null", "{}", "[1, {}]", '[{"technique": "mine"}]'])
def test_a_broken_file_has_no_rows_and_is_replaced(folder, text):
    folder.mkdir()
    (folder / "timed.json").write_text(text)
    assert kept() == []
    keep(run(row("naive", 40.0)))
    assert seen() == [("A", "naive", 40.0)]


def test_where_nothing_can_be_written_nothing_is_kept(folder):
    folder.write_text("a file")
    keep(run(row("naive", 40.0)))
    assert kept() == []


def test_a_run_that_is_cut_off_while_it_writes_leaves_the_old_rows(folder, monkeypatch):
    keep(run(row("naive", 40.0)))
    monkeypatch.setattr(kept_rows.os, "replace", lambda *_: (_ for _ in ()).throw(OSError))
    keep(run(row("naive", 50.0)))
    assert seen() == [("A", "naive", 40.0)]
    assert json.loads((folder / "timed.json").read_text())
