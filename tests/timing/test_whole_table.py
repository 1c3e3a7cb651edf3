"""Every technique on every workload: each token has its time, and the work is counted exactly."""

import json
import re
from contextlib import redirect_stdout
from io import StringIO
from typing import Any, NamedTuple

import pytest

import timed_generate
import timing.table.measure
from gpt import read_config
from solutions.kv_cache import kv_bytes_per_token
from tests.common.timed import ROWS, rows_of, shorten
from timed_generate import TECHNIQUES
from timing.table import (
    BLOCK_SIZE,
    Batches,
    BestBatches,
    Continuous,
    Prepared,
    Rounds,
    Run,
    Served,
    Verifier,
    kv_bytes,
)
from timing.table.workloads import KINDS, LENGTHS, Workload


class Whole(NamedTuple):
    """What was printed, the JSON, and each row's workload, technique and last run."""

    printed: str
    result: dict[str, Any]
    runs: dict[tuple[str, str], tuple[Workload, Prepared, Run]]


@pytest.fixture(scope="module")
def whole(tiny) -> Whole:
    runs = {}

    class Keeping(Verifier):
        def run(self, workload: Workload, name: str, technique: Prepared) -> Run:
            run = super().run(workload, name, technique)
            runs[workload.name, name] = workload, technique, run
            return run

    with pytest.MonkeyPatch.context() as monkeypatch, redirect_stdout(StringIO()) as out:
        shorten(monkeypatch)
        monkeypatch.setattr(timing.table.measure, "Verifier", Keeping)
        timed_generate.main(["--model", str(tiny), "--repeats", "1", "--tokens", "1,7", "--all"])
    *printed, result = out.getvalue().splitlines()
    return Whole("\n".join(printed), json.loads(result), runs)


def test_every_workload_is_served_by_the_techniques_that_can(whole):
    kinds = {"1 new tokens": LENGTHS, "7 new tokens": LENGTHS, **{kind: kind for kind in KINDS[1:]}}
    assert [(row["workload"], row["technique"]) for row in whole.result["rows"]] == [
        (workload, name)
        for workload, kind in kinds.items()
        for name in ROWS
        if kind in TECHNIQUES[name]
    ]
    for row in whole.result["rows"]:
        name = row["technique"]
        assert len(re.findall(rf"^ ?{name}[# ]", whole.printed, re.MULTILINE)) >= 2
    assert "…" not in whole.printed  # every cell is there in full
    assert "~" not in whole.printed


def test_the_numbers_of_a_row_agree(whole):
    totals = {(row["workload"], row["technique"]): row["total_s"] for row in whole.result["rows"]}
    for row in whole.result["rows"]:
        workload, technique, _ = whole.runs[row["workload"], row["technique"]]
        assert row["requests"] == len(workload.prompts)
        assert row["new_tokens"] == sum(workload.new_tokens)
        assert 0 < row["ttft_s"] <= row["ttft_p95_s"] <= row["total_s"]
        assert row["tok_per_s_min"] <= row["tok_per_s"] <= row["tok_per_s_max"]
        assert row["kv_bytes"] is None or row["kv_bytes"] <= row["kv_bytes_reserved"]
        if reference := totals.get((row["workload"], workload.reference)):
            assert row["speedup"] == reference / row["total_s"]
        if set(workload.new_tokens) == {1}:
            assert row["tpot_s"] is None
        else:
            assert row["tpot_s"] <= row["tpot_p95_s"]
        is_known = row["tpot_s"] and technique.weight_bytes and row["kv_bytes"] is not None
        is_alike = len(set(workload.new_tokens)) == len({*map(len, workload.prompts)}) == 1
        assert bool(row["mbu"]) == bool(is_known and is_alike)


def test_each_request_has_a_time_for_each_of_its_tokens(whole):
    for workload, technique, run in whole.runs.values():
        assert [len(times) for times in run.token_times] == workload.new_tokens
        for times in run.token_times:
            assert run.start < times[0]
            assert times == sorted(times)
            if isinstance(technique, Batches | Continuous):  # one token in a forward pass
                assert len(set(times)) == len(times)


def test_the_work_is_counted_exactly(whole, tiny):
    per_token = kv_bytes_per_token(read_config(tiny))
    for workload, technique, run in whole.runs.values():
        prompts = [workload.prompt(n, run.outputs) for n in range(len(workload.prompts))]
        ends = [len(p) + n - 1 for p, n in zip(prompts, workload.new_tokens, strict=True)]
        counted = run.tokens_computed, run.kv_bytes
        if isinstance(technique, BestBatches):
            technique = technique.best
        match technique:
            case Batches(kv_bytes=kv_bytes.none_held):  # the whole text in each forward pass
                [prompt], [end] = prompts, ends
                assert counted == (sum(range(len(prompt), end + 1)), 0)
            case Batches(size=size):  # padded to the longest prompt, and to the most new tokens
                cells = []
                for first in range(0, len(prompts), size):
                    batch = slice(first, first + size)
                    width = max(map(len, prompts[batch])) + max(workload.new_tokens[batch]) - 1
                    cells.append(len(prompts[batch]) * width)
                assert counted == (sum(cells), max(cells) * per_token)
                assert run.batch == size
            case Continuous(fixed_slots=True, size=size):
                slots = min(size, workload.at_start)
                assert run.tokens_computed == sum(ends)
                assert run.kv_bytes_reserved == slots * workload.longest * per_token
            case Continuous():  # more where a request was preempted
                assert run.tokens_computed >= sum(ends)
            case Served():  # whole blocks
                found = run.notes["hits"] or 0
                assert run.tokens_computed == sum(ends) - found
                assert run.notes["preemptions"] == 0
                assert 0 < run.notes["pool_used"] <= 1
                assert run.batch == workload.at_start
                if workload.kind == LENGTHS:
                    blocks = -(-ends[0] // BLOCK_SIZE)
                    assert run.kv_bytes == blocks * BLOCK_SIZE * per_token
            case Rounds(one_token_each=True):
                assert counted == (sum(ends), max(ends) * per_token)
            case Rounds():  # rejected drafts are computed too, forced tokens at the end are not
                assert run.tokens_computed >= sum(map(len, prompts))
                assert run.kv_bytes >= max(map(len, prompts)) * per_token
            case _:  # in another process
                assert run.tokens_computed in (None, sum(ends))


def test_equal_requests_waste_nothing(whole):
    rows = rows_of(whole.result, "equal")
    assert {row["tokens_computed"] for row in rows.values()} == {16 * (6 + 5 - 1)}
    engines = "engine", "adapters"
    assert {rows[name]["used"] for name in engines} == {None}  # they have no slots
    assert {row["used"] for name, row in rows.items() if name not in engines} == {1.0}


def test_what_an_engine_did_is_printed(whole):
    assert "engine, ragged: p50 / p95 of TTFT" in whole.printed
