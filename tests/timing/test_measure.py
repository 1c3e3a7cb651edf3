"""What is measured: how often, in which order, and the numbers of a row."""

import json
import math
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import timed_generate
import timing.machine
import timing.table.measure
import timing.table.verify
from tests.common.timed import requests, timed_run
from timed_generate import TECHNIQUES
from timing.table import Bench, BestBatches, Prepare
from timing.table.workloads import CHAT, EQUAL, LENGTHS, Workload

pytestmark = pytest.mark.usefixtures("quick")
MACHINE = {"last_level_cache_bytes": None, "memory_bandwidth_bytes_per_s": 1000, "threads": 1}


def test_a_row_holds_the_medians_and_the_bandwidth_share():
    workload = requests([4, 4], [3, 3], EQUAL)
    runs = [timed_run([[10.0 + k, 10.0 + 2 * k, 10.0 + 3 * k]] * 2, 600) for k in (1, 5, 2)]
    row = timing.table.measure.new_row(workload, "static", runs, 5000, MACHINE)
    assert (row["ttft_s"], row["tpot_s"], row["total_s"]) == (2, 2, 6)
    assert row["tok_per_s"] == pytest.approx(2 * 3 / 6)
    assert row["tok_per_s_min"] == pytest.approx(2 * 3 / 15)
    # Two decode steps read the keys and values of 5 and of 6 tokens; 6 tokens are 600 bytes.
    assert row["mbu"] == pytest.approx((5000 + 550) / 2 / 1000)


def test_ttft_and_tpot_are_medians_over_the_requests_and_no_mbu_is_made_up():
    workload = requests([4, 4, 4], [2, 1, 3])
    run = timed_run([[11.0, 12.0], [15.0], [16.0, 20.0, 24.0]])
    row = timing.table.measure.new_row(workload, "static", [run], 5000, MACHINE)
    assert row["ttft_s"] == 5  # of 1, 5 and 6: those who wait are waiting from the start
    assert row["tpot_s"] == 2.5  # of 1 and 4: one token alone has none
    assert row["tok_per_s"] == pytest.approx(6 / 14)
    assert row["mbu"] is None


def test_a_later_turn_comes_when_the_one_before_has_ended():
    run = timed_run([[11.0, 12.0], [14.0, 20.0], [15.0, 16.0], [23.0, 24.0]])
    assert [request.ttft for request in run.metrics()] == [1, 4, 5, 13]
    assert [request.ttft for request in run.metrics(turns=2)] == [1, 4, 3, 3]
    workload = Workload(CHAT, CHAT, "", [[0]] * 4, [2] * 4, turns=2)
    assert timing.table.measure.new_row(workload, "engine", [run], 5000, MACHINE)["ttft_s"] == 3


def test_growth_is_the_power_of_the_length():
    rows = [
        {"technique": name, "new_tokens": n, "total_s": n**p, "tokens_computed": 7 * n}
        for n in (16, 64, 256)
        for name, p in (("naive", 2), ("cached", 1))
    ]
    found = timing.table.measure.growth(rows)
    assert found["naive"]["total_time"] == pytest.approx(2)
    assert found["naive"]["total_time_last_two"] == pytest.approx(2)
    assert found["cached"]["total_time"] == pytest.approx(1)
    assert found["cached"]["tokens_computed"] == pytest.approx(1)


def test_growth_is_printed_where_there_are_two_lengths(table):
    printed, result = table("--tokens", "4", "--techniques", "naive")
    assert result["growth"] == {}
    assert "power" not in printed
    printed, result = table("--tokens", "4,16,32", "--techniques", "naive,cached")
    assert result["growth"].keys() == {"naive", "cached"}
    for name, powers in result["growth"].items():
        line = next(line for line in reversed(printed.splitlines()) if line.split()[:1] == [name])
        assert line.split()[1:] == [f"{power:.2f}" for power in powers.values()]


# --------------------------------------------------------------------------------------- repetition


@pytest.fixture
def ran(monkeypatch) -> list[tuple[str, int]]:
    """What naive and a technique `new`, its twin, have been asked for, in order."""
    asked: list[tuple[str, int]] = []

    def noting(name: str, prepare: Prepare, bench: Bench) -> Any:
        naive: Any = prepare(bench)

        def generate(model, prompts, new_tokens):
            asked.append((name, *new_tokens))
            return naive.generate(model, prompts, new_tokens)

        return replace(naive, generate=generate)

    naive_row = TECHNIQUES["naive"][LENGTHS]
    for name in ("naive", "new"):
        monkeypatch.setitem(TECHNIQUES, name, {LENGTHS: partial(noting, name, naive_row)})
    return asked


VERIFIED = [("naive", 2), ("new", 2), ("naive", 3), ("new", 3)]


OTHER_FIRST = [("new", 2), ("naive", 2), ("new", 3), ("naive", 3)]


@pytest.mark.parametrize(
    ("asked", "enough", "timed"),
    [
        ("new --repeats 4", 1e-9, [("new", 2), ("new", 3)] * 4),  # as often as asked
        ("naive,new --repeats 2", 1e-9, VERIFIED + OTHER_FIRST),
        ("naive,new", math.inf, VERIFIED + OTHER_FIRST + VERIFIED),  # thrice, in turns
        ("naive,new", 1e-9, [("new", 2), ("new", 3)]),  # the reference was timed at once
    ],
)
def test_each_row_is_verified_and_then_timed_until_it_is_enough(
    tiny, ran, monkeypatch, asked, enough, timed, capsys
):
    monkeypatch.setattr(timing.table.measure, "ENOUGH_SECONDS", enough)
    options = f"--workloads lengths --tokens 2,3 --techniques {asked}".split()
    timed_generate.main(["--model", str(tiny), *options])
    assert ran == VERIFIED + timed
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {row["repeats"] for row in result["rows"]} == {timed.count(("new", 2))}


MANY = 1000.0  # cores, more than any machine has


@pytest.mark.parametrize(
    ("cores", "runs", "kept", "marked"),
    [
        ([0, 0, 0, MANY, MANY, MANY], 3, 3, True),  # also when it is timed again, twice
        ([0, 0, 0, MANY, 0], 2, 1, False),
        ([MANY, MANY, 0, 0], 1, 1, False),  # only while they were verified
    ],
)
def test_a_row_that_other_programs_disturb_is_timed_again_and_then_marked(
    table, ran, others_take, cores, runs, kept, marked
):
    others_take(timing.table.verify, cores)
    printed, result = table("--techniques", "naive,new", "--tokens", "3")
    assert ran == [("naive", 3), ("new", 3)] * 2 + [("new", 3)] * (runs - 1)
    naive, new = result["rows"]
    assert (new["repeats"], new["disturbed"], naive["disturbed"]) == (kept, marked, False)
    assert new["other_programs_cores"] == (MANY if marked else 0)
    assert ("new!" in printed) == ("! Other programs kept 1000.0 cores busy" in printed) == marked


def test_by_default_the_slowest_technique_is_left_out_of_long_texts(table, monkeypatch):
    monkeypatch.setattr(timed_generate, "SHORT", 2)
    _, result = table("--tokens", "2,3")
    found = [row["workload"] for row in result["rows"] if row["technique"] == "hf-nocache"]
    assert found == ["2 new tokens"]
    assert "hf-nocache" not in result["growth"]
    _, result = table("--tokens", "2,3", "--techniques", "hf-nocache")
    assert [row["new_tokens"] for row in result["rows"]] == [2, 3]


# --------------------------------------------------------------------------------- the fastest size


class Paced:
    """Batches of a given speed that note what they were asked for."""

    def __init__(self, size, seconds):
        self.size, self.seconds, self.asked, self.weight_bytes = size, seconds, [], None

    def run(self, workload):
        self.asked.append(workload.new_tokens)
        return replace(timed_run([[10.0 + self.seconds]]), batch=self.size)


def test_the_fastest_size_is_chosen_once_by_short_trials():
    slow, fast = Paced(8, 3.0), Paced(32, 2.0)
    best = BestBatches([slow, fast])
    workload = requests([1, 1], [8, 9])
    assert [best.run(workload).batch for _ in range(2)] == [32, 32]
    assert slow.asked == [[2], [2, 3]]  # one request to warm up, and the trial
    assert fast.asked == [[2, 3], [8, 9], [8, 9]]
