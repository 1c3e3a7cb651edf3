"""The speedruns of a class: whatever a record does in its sandbox costs only its own row."""

import json
import re
import shutil
from pathlib import Path

import pytest

from autograder.__main__ import main
from autograder.text.reference import ROOT
from tests.common.commands import resize
from timing.peers import worker
from timing.speedrun import run
from timing.speedrun.record import Record, read_record, write_record
from timing.table import workloads

ANSWERS = """
import time
import timing.speedrun.engine as speedrun_engine

def answer_otherwise(wire, answer, send=speedrun_engine.send):
    if "outputs" in answer:
        {}
    send(wire, answer)

speedrun_engine.send = answer_otherwise
"""
REACHES = """
import os
reached = [place for place in {} if os.path.exists(place)]
reached += [place for place in ("/course/gpt.py", "/code/engine") if os.access(place, os.W_OK)]
processes = [name for name in os.listdir("/proc") if name.isdecimal()]
os.write(2, f"reached {{reached}}, {{len(processes)}} processes\\n".encode())
os._exit(3)
"""


def record_with(first: str) -> Record:
    """Return the reference's record, with these lines before its code."""
    record = read_record(ROOT / "docs" / "records" / "reference.json")
    record["score"] = None  # of another machine
    record["code"]["engine"]["Scheduler.schedule"][:0] = first.splitlines()
    return record


@pytest.mark.slow
@pytest.mark.needs("bwrap")
@pytest.mark.in_turn(3)
def test_a_class_gets_a_table_and_no_record_costs_another(tmp_path, monkeypatch, capsys):
    resize(monkeypatch, run, ROUNDS=1, PROMPT=5, NEW=12)
    resize(monkeypatch, workloads, RAGGED_REQUESTS=4)
    resize(monkeypatch, worker, ANSWER_SECONDS=20)
    outside = *("gpt.py", "autograder/secret"), tmp_path, Path.home() / ".cache", "/course/tests"
    code = {
        "bob": ANSWERS.format("time.sleep(1)"),
        "dan": ANSWERS.format("time.sleep(1e6)"),
        "eve": REACHES.format([str(ROOT / place) for place in outside]),
        "ada/21_one_kernel/speedrun": "",
    }
    for name, first in code.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write_record(record_with(first), tmp_path / f"{name}.json")
    (tmp_path / "gus.json").symlink_to(tmp_path / "bob.json")
    (tmp_path / "hal.json").write_text(json.dumps({**record_with(""), "weights": "0"}))
    assert main(["speedrun", str(tmp_path), "--threads", "1"]) == 0
    table = " ".join(capsys.readouterr().out.partition("score")[2].split())
    ratio = r"\d+\.\d\d \(\d+\.\d\d-\d+\.\d\d\)"
    ran = rf"(\d+\.\d\d) {ratio} {ratio} .*?The record has no score yet.*?"
    why = {
        "dan": "stopped after 20 seconds without an answer",
        "eve": r"its process ended: reached \[\], 2 processes",
        "gus": "isn't an ordinary file",
        "hal": "was made with other weights than fable here",
    }
    rejected = ".*? ".join(f"{name} - - - Rejected. .*?{reason}" for name, reason in why.items())
    found = re.search(f"ada {ran} bob {ran} {rejected}", table)
    assert found, table
    assert float(found[1]) > float(found[2])


def test_without_a_record_or_a_sandbox_it_says_so(tmp_path, monkeypatch, capsys):
    assert main(["speedrun", str(tmp_path)]) == 1
    assert "There is no record in" in capsys.readouterr().err
    write_record(record_with(""), tmp_path / "ada.json")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert main(["speedrun", str(tmp_path)]) == 1
    assert "Grading needs bubblewrap" in capsys.readouterr().err
