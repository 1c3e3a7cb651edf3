"""A speedrun: what a score is made of, which cheating is rejected, and the file of a record."""

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import timed_generate
from autograder.notebook.passed import kept_file
from autograder.text.reference import ROOT, lab_module
from gpt import GPTLMHead
from solutions.families import find_checkpoint
from solutions.generate import generate
from tests.common.commands import resize
from timing.peers.worker import PeerFailed, Worker
from timing.speedrun import __main__ as command
from timing.speedrun import record as records
from timing.speedrun import run
from timing.speedrun.record import enter, kept_code, read_record, verdict, write_code, write_record
from timing.speedrun.run import MINE, REFERENCE, Result, Turn, draw_workloads
from timing.table import workloads

pytestmark = pytest.mark.usefixtures("quick")
Serve = Callable[[list[list[int]], list[int]], list[list[int]]]
RESULT = Result(
    {"one": {MINE: [1.0, 2.0, 1.0], REFERENCE: [4.0, 4.0, 4.0]},
     "many": {MINE: [3.0, 3.0, 3.0], REFERENCE: [3.0, 2.0, 3.0]}},
    {"one": 8, "many": 90}, ["one: your engine"], ["engine"], 0.0,
)  # fmt: skip


@pytest.fixture(autouse=True)
def short(quick, monkeypatch) -> None:
    resize(monkeypatch, run, ROUNDS=1, PROMPT=5, NEW=12)
    resize(monkeypatch, workloads, RAGGED_REQUESTS=4)


@pytest.fixture
def model(tiny, tmp_path) -> Path:
    """A copy, which an engine may spoil."""
    return Path(shutil.copytree(tiny, tmp_path / "model"))


@pytest.fixture
def engines(monkeypatch, model) -> Callable[[Serve | None], Result]:
    """Run an engine against an honest one, both in this process."""
    monkeypatch.setattr(run, "used", lambda worker: 0.0)
    seeds = iter(range(100))
    monkeypatch.setattr(run.secrets, "randbits", lambda bits: next(seeds))
    right = continuing(GPTLMHead.from_pretrained(model))

    def compete(mine: Serve | None = None) -> Result:
        class InProcess:
            def __init__(self, command: list[str], threads: int, log: Path) -> None:
                self.greeting = {"about": [], "labs": ["engine"]}
                self.generate = mine if mine and log.name == MINE else right

            def serve(self, prompts: Any, new_tokens: Any, size: int) -> tuple[Any, Any]:
                return self.generate(prompts, new_tokens), []

            def close(self) -> None:
                pass

        monkeypatch.setattr(run, "Worker", InProcess)
        return run.run(model, Path("code"), 1)

    return compete


def continuing(model: GPTLMHead) -> Serve:
    def serve(prompts: list[list[int]], new_tokens: list[int]) -> list[list[int]]:
        both = zip(prompts, new_tokens, strict=True)
        return [generate(model, torch.tensor([p]), n)[0, len(p) :].tolist() for p, n in both]

    return serve


# ----------------------------------------------------------------------------------------- the run


def test_a_score_is_how_many_times_as_fast_round_by_round():
    assert RESULT.score == {"one": 4.0, "many": 1.0, "mean": 2.0}
    assert RESULT.tok_per_s("one", MINE) == 8.0


def test_each_engine_has_each_workload_in_each_round_but_the_first(engines):
    result = engines()
    assert [{name: len(t) for name, t in both.items()} for both in result.times.values()] == [
        {MINE: 1, REFERENCE: 1}
    ] * 2
    assert list(result.tokens) == ["one request", "4 unequal requests"]
    assert result.labs == ["engine"]


def test_prompts_are_drawn_after_the_code_is_loaded_and_anew_in_each_round(engines, monkeypatch):
    events: list[Any] = []
    monkeypatch.setattr(run, "in_turns", noted(events, "loaded", run.in_turns))
    monkeypatch.setattr(run.secrets, "randbits", lambda bits: events.append(bits) or len(events))
    engines()
    assert events[0] == "loaded"
    assert len(events) == 1 + 2  # two rounds
    config = SimpleNamespace(vocab_size=4096, n_positions=64)
    one, other = draw_workloads(config, 1), draw_workloads(config, 2)
    for this, that in zip(one, other, strict=True):
        assert this.prompts != that.prompts
        assert [*map(len, this.prompts)] == [*map(len, that.prompts)]
        assert this.new_tokens == that.new_tokens


def noted(events: list[Any], event: str, function: Callable) -> Callable:
    def call(*args: Any) -> Any:
        events.append(event)
        return function(*args)

    return call


# --------------------------------------------------------------------------------------- cheating


def with_fewer_layers(model: GPTLMHead) -> Serve:
    model.transformer.h = model.transformer.h[:1]
    return continuing(model)


def with_another_model(model: GPTLMHead) -> Serve:
    for weight in model.parameters():
        weight.data.normal_(std=0.5, generator=torch.Generator().manual_seed(1))
    return continuing(model)


def with_rounded_weights(model: GPTLMHead) -> Serve:
    for weight in model.parameters():
        weight.data.round_()
    return continuing(model)


def with_kept_answers(model: GPTLMHead) -> Serve:
    kept: dict[int, list[list[int]]] = {}

    def serve(prompts: list[list[int]], new_tokens: list[int]) -> list[list[int]]:
        if len(prompts) not in kept:
            kept[len(prompts)] = continuing(model)(prompts, new_tokens)
        return kept[len(prompts)]

    return serve


def with_fewer_tokens(model: GPTLMHead) -> Serve:
    return lambda prompts, new_tokens: continuing(model)(prompts, [1] * len(prompts))


def with_fewer_requests(model: GPTLMHead) -> Serve:
    return lambda prompts, new_tokens: continuing(model)(prompts[:2], new_tokens[:2])


def with_no_such_tokens(model: GPTLMHead) -> Serve:
    return lambda prompts, new_tokens: [[4096] * n for n in new_tokens]


WRONG = "mine does not generate what the naive model does"


@pytest.mark.parametrize(
    ("cheat", "why"),
    [
        (with_fewer_layers, WRONG),
        (with_another_model, WRONG),
        (with_rounded_weights, WRONG),
        (with_kept_answers, WRONG),
        (with_fewer_tokens, "mine returned 6 tokens for one request"),
        (with_fewer_requests, "mine answered 2 of 4 requests"),
        (with_no_such_tokens, "mine returned tokens .* that the model doesn't have"),
    ],
    ids=lambda it: getattr(it, "__name__", ""),
)
def test_cheating_is_rejected(engines, model, cheat, why):
    with pytest.raises(SystemExit, match=f"Stopped: {why}"):
        engines(cheat(GPTLMHead.from_pretrained(model)))


def test_a_model_that_changes_during_the_run_is_rejected(engines, model):
    def serve(prompts: list[list[int]], new_tokens: list[int]) -> list[list[int]]:
        (model / "config.json").write_text((model / "config.json").read_text() + " ")
        return right(prompts, new_tokens)

    right = continuing(GPTLMHead.from_pretrained(model))
    with pytest.raises(SystemExit, match="the model's files have changed"):
        engines(serve)


LIAR = """
import json, sys, time
print(json.dumps({"about": [], "labs": []}), flush=True)
for line in sys.stdin:
    time.sleep(0.2)
    time.perf_counter = time.monotonic = time.time = lambda: 0.0
    print(json.dumps({"outputs": [[7]], "token_times": [[0.0]]}), flush=True)
"""


@pytest.fixture
def liar(tmp_path) -> Iterator[Worker]:
    worker = Worker([sys.executable, "-c", LIAR], 1, tmp_path / "log")
    yield worker
    worker.close()


def test_an_engine_can_t_change_the_clock(liar):
    one, _ = draw_workloads(SimpleNamespace(vocab_size=4096, n_positions=64), 0)
    for _ in range(2):
        done = Turn(MINE, {MINE: liar}, 4096).run(one)
        assert done.seconds >= 0.2
        assert done.outputs == [[*one.prompts[0], 7]]


@pytest.mark.parametrize("answer", ["'['", "'[' * 10**5"])
def test_an_answer_that_can_t_be_read_is_a_failure(tmp_path, answer):
    with pytest.raises(PeerFailed, match="isn't JSON"):
        Worker([sys.executable, "-c", f"print({answer})"], 1, tmp_path / "log")


def test_an_engine_may_not_work_during_the_reference_s_turn(engines, monkeypatch):
    used = iter(range(100))
    monkeypatch.setattr(run, "used", lambda worker: next(used))
    with pytest.raises(SystemExit, match="busy during the reference's turn"):
        engines()


# ---------------------------------------------------------------------------------------- records


def engine_code(first: str = "") -> records.Code:
    """Return the reference's scheduler as a learner may have kept it, below these lines."""
    lines = first + lab_module("engine").text(lab_module("engine").objects["Scheduler"])
    return {"engine": {"Scheduler.schedule": lines.splitlines()}}


@pytest.mark.slow
def test_a_record_of_kept_code_is_confirmed_by_a_second_run(model, monkeypatch, tmp_path, capsys):
    """In processes of their own, with code that changes its process's clock."""
    monkeypatch.chdir(tmp_path)
    write_code(
        engine_code("import time\ntime.perf_counter = lambda: 0.0\n"), kept_file("a.b").parents[1]
    )
    monkeypatch.setattr(records, "CLOSE", 0.0)  # such short rounds vary
    timed_generate.main(["--speedrun", "--model", str(model), "--threads", "1"])
    printed = capsys.readouterr().out
    assert "many requests: your engine (lab 7)" in printed
    assert "geometric mean" in printed
    record = read_record(Path("speedrun.json"))
    assert record["code"] == kept_code()
    assert record["environment"]["threads"] == 1
    with pytest.raises(SystemExit) as ended:
        command.main(["check", "speedrun.json", "--threads", "1"])
    assert ended.value.code == 0
    assert "Confirmed: " in capsys.readouterr().out
    with pytest.raises(SystemExit, match="nothing exact of yours serves one request yet"):
        enter(str(model), {}, 1)


def test_code_is_kept_written_and_read_the_same_oldest_first(tmp_path, monkeypatch):
    code = {"kv_cache": {"KVCache.truncate": ["b = 1", "", "c = 'ä'"], "KVCache.attend": ["a = 1"]}}
    write_code(code, tmp_path / "mine")
    monkeypatch.setenv("MINE_FOLDER", str(tmp_path / "mine"))
    assert kept_code() == code
    assert list(kept_code()["kv_cache"]) == ["KVCache.truncate", "KVCache.attend"]


RECORD = {
    "model": "fable", "weights": "0", "environment": {"processor": "A"}, "score": {"mean": 2.0},
    "code": {},
}  # fmt: skip


def test_a_record_is_written_as_it_is_read(tmp_path):
    record = {**RECORD, "code": engine_code()}
    write_record(record, tmp_path / "record.json")
    assert read_record(tmp_path / "record.json") == record


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("{", "can't be read as JSON"),
        ([], "it isn't an object"),
        ({"model": None}, "its model isn't a text"),
        ({"environment": 3}, "it has no environment"),
        ({"score": {"mean": "2"}}, "its score has no mean"),
        ({"code": []}, "it has no code"),
        ({"code": {"engine": []}}, "its code of lab engine isn't an object"),
        ({"code": {"engine": {"../x": []}}}, "there is no exercise engine.../x"),
        ({"code": {"..": {"engine.Engine.step": []}}}, "there is no exercise"),
        ({"code": {"engine": {"Engine.step": "x"}}}, "isn't a list of lines"),
        ({}, "was made with other weights than fable here"),
        ({"model": "no such model"}, "There is no model 'no such model'"),
    ],
)
def test_what_is_no_record_is_refused_with_a_sentence(tmp_path, capsys, change, sentence):
    text = json.dumps({**RECORD, **change} if isinstance(change, dict) else change)
    (tmp_path / "record.json").write_text(change if isinstance(change, str) else text)
    with pytest.raises(SystemExit) as stopped:
        command.main(["check", str(tmp_path / "record.json")])
    assert stopped.value.code == 2
    told = capsys.readouterr().err
    assert sentence in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("claimed", "confirmed", "sentence"),
    [
        ({"mean": 2.1}, True, "Confirmed: the record claims 2.10, and here it is 2.00."),
        ({"mean": 1.0}, True, "Confirmed"),
        ({"mean": 3.0}, False, "Not confirmed here: the record claims 3.00 (on A), and here it is"),
        ({"mean": float("nan")}, False, "Not confirmed"),
        (None, True, "The record has no score yet; here it is 2.00."),
    ],
)
def test_a_second_run_confirms_a_record_or_not(claimed, confirmed, sentence):
    found, told = verdict({**RECORD, "score": claimed}, {**RECORD, "score": {"mean": 2.0}})
    assert found is confirmed
    assert told.startswith(sentence)


@pytest.mark.parametrize(("claimed", "status"), [(2.0, 0), (2.5, 1)])
def test_checking_ends_with_status_1_unless_confirmed(tmp_path, monkeypatch, claimed, status):
    weights = run.digest(find_checkpoint("fable"))
    record = {**RECORD, "weights": weights, "score": {"mean": claimed}}
    write_record(record, tmp_path / "record.json")
    again = {"score": RESULT.score, "about": RESULT.about, "environment": {"disturbed": False}}
    monkeypatch.setattr(command, "enter", lambda model, code, threads: (again, RESULT))
    with pytest.raises(SystemExit) as ended:
        command.main(["check", str(tmp_path / "record.json")])
    assert ended.value.code == status


def test_with_nothing_solved_a_sentence_says_so(tiny, capsys):
    with pytest.raises(SystemExit) as stopped:
        timed_generate.main(["--speedrun", "--model", str(tiny)])
    assert stopped.value.code == 2
    assert "no exercise of yours has passed its check yet" in capsys.readouterr().err


def test_the_reference_s_record_is_of_the_shipped_model():
    record = read_record(ROOT / "docs" / "records" / "reference.json")
    assert record["weights"] == run.digest(find_checkpoint(record["model"]))
    assert list(record["code"]) == ["engine"]
