"""A small timing table for tests: its checkpoint, its command, techniques broken on purpose."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import timed_generate
import timing.machine
from autograder.text.reference import fresh_copy, module_files
from tests.common.checkpoints import write_tiny
from tests.common.commands import resize
from timed_generate import DEFAULT, TECHNIQUES
from timing.table import Bench, Prepare, Run, workloads
from timing.table.workloads import RAGGED, Workload

CPU, CONTEXT = torch.device("cpu"), 64
BESIDE = {"medusa", "llama", "codes"}  # they need heads, another model, codes: this one has none
COMPILED = {name for name in DEFAULT if name.startswith("kernel")} | {"same-bits"}  # in a minute
ROWS = [name for name in DEFAULT if name not in BESIDE | COMPILED]
NAIVE = "does not generate what the naive model does"
SAME_WORK = (
    *("batch", "tokens_computed", "kv_bytes", "kv_bytes_reserved", "weight_bytes", "used"),
    *("queried", "hits", "acceptance"),
)
Sabotage = Callable[[Prepare, Bench], Any]


def shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure a little memory only, and serve short requests, more of them than slots."""
    ragged = {"RAGGED_REQUESTS": 20, "RAGGED_PROMPT": (2, 8), "RAGGED_NEW": (2, 12)}
    chat = {"CHAT_SYSTEM": 16, "CHAT_QUESTION": 5, "CHAT_ANSWER": 4, "CHAT_TURNS": 3, "CHATS": 3}
    others = {"EQUAL_PROMPT": 6, "EQUAL_NEW": 5, "SAMPLED_NEW": 9}
    resize(monkeypatch, workloads, **ragged, **chat, **others)
    resize(monkeypatch, timing.machine, BANDWIDTH_BYTES=2**20)
    monkeypatch.setattr("timing.cores.others_seconds", lambda: 0.0)
    monkeypatch.setattr("course.lab21_one_kernel.row.find_spec", lambda _: None)  # as if no numba


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny(folder, n_positions=CONTEXT, n_embd=32)
    return folder


@pytest.fixture
def quick(monkeypatch, tmp_path_factory) -> Iterator[None]:
    """Short workloads. Rows are kept in a folder of the test's; torch's threads stay."""
    shorten(monkeypatch)
    monkeypatch.setenv("MINE_FOLDER", str(tmp_path_factory.mktemp("mine")))
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def table(tiny, quick, capsys) -> Callable[..., tuple[str, dict]]:
    """Run the command and return what it printed, and the last line read as JSON.

    On the lengths alone, once each, unless told otherwise: the last one of an option counts.
    """

    def run(*args: str) -> tuple[str, dict]:
        first = ["--model", str(tiny), "--workloads", "lengths", "--repeats", "1"]
        timed_generate.main([*first, *args])
        printed = capsys.readouterr().out
        return printed, json.loads(printed.splitlines()[-1])

    return run


def rows_of(result: dict, workload: str) -> dict[str, dict]:
    return {row["technique"]: row for row in result["rows"] if row["workload"] == workload}


def prepared(name: str, kind: str, folder: Path) -> Any:
    return TECHNIQUES[name][kind](Bench(folder, CPU))


def requests(prompts: list[int], new_tokens: list[int], kind: str = RAGGED) -> Workload:
    """Requests of these lengths, whose prompts are zeros."""
    return Workload(kind, kind, "", [[0] * n for n in prompts], new_tokens)


def timed_run(token_times: list[list[float]], kv_bytes: int = 0) -> Run:
    return Run([], 10.0, token_times, 0, kv_bytes, kv_bytes, batch=2)


def assert_marked(name: str, printed: str, result: dict) -> None:
    """On two workloads, and no other row is; its loss is printed."""
    lines = printed.splitlines()
    assert re.findall(r"^ ?([^\s#]+)#", printed, re.MULTILINE) == [name] * 2
    assert result["losses"].keys() == {name}
    loss = result["losses"][name]
    shown = f"{loss['bits']:+.4f} ± {loss['error']:.4f} bits per byte on 4 passages."
    assert any(line.startswith(f"# {name}: ") and line.endswith(shown) for line in lines)


@pytest.fixture
def written(monkeypatch) -> Callable[[dict[str, list[str]]], Callable[[str], Any]]:
    """As if a learner had written these functions and classes of these labs, and nothing else."""

    def write(yours: dict[str, list[str]]) -> Callable[[str], Any]:
        def mine(lab: str) -> Any:
            module, own = fresh_copy(lab), fresh_copy(lab)
            # In reverse, so that the names that a file imports are no longer the reference's.
            for file in reversed(module_files([lab])):
                exec(compile(file.read_text(), f"my {lab}", "exec"), vars(own))
            vars(module).update({part: vars(own)[part] for part in yours.get(lab, [])})
            return module

        monkeypatch.setattr("autograder.check.mine", mine)
        monkeypatch.setattr(timed_generate, "has_solved", lambda: True)
        return mine

    return write


# -------------------------------------------------------------------------------------- saboteurs


def broken(lab: str, **names: Any) -> Sabotage:
    """The lab has these instead of its own; `Class__name` is an attribute of a class."""

    def prepare_it(prepare: Prepare, bench: Bench) -> Any:
        module, other = fresh_copy(lab), bench.lab
        for path, thing in names.items():
            owner, _, name = path.rpartition("__")
            setattr(vars(module)[owner] if owner else module, name, thing)
        return prepare(replace(bench, lab=lambda name: module if name == lab else other(name)))

    return prepare_it


@pytest.fixture
def assert_stopped(table, monkeypatch, capsys) -> Callable[..., None]:
    """Break a row on a kind of workload; the command must stop with this, and print no table."""

    def stop(row: str, kind: str, sabotage: Sabotage, why: str = NAIVE) -> None:
        wrong = partial(sabotage, TECHNIQUES[row][kind])
        monkeypatch.setitem(TECHNIQUES, "saboteur", {kind: wrong})
        with pytest.raises(SystemExit) as stopped:
            table("--workloads", kind, "--tokens", "40", "--techniques", "saboteur")
        assert re.match(f"Stopped: saboteur {why}", str(stopped.value))  # exits with status 1
        assert "tok/s" not in capsys.readouterr().out

    return stop
