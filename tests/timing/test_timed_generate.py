"""The timing table: what it counts, what it refuses, and that nothing wrong is ever timed."""

import inspect
import itertools
import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from copy import deepcopy
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import GPT2LMHeadModel

import timed_generate
import timing.machine
import timing.table.measure
import timing.table.verify
import timing.table.workloads
from autograder.text.reference import fresh_copy, module_file
from gpt import GPTConfig, GPTLMHead, load_tokenizer, read_config
from solutions import batching as lab3
from solutions import constrained as lab14
from solutions import flash_attention as lab12
from solutions import kv_cache as lab2
from solutions import kv_reduction as lab11
from solutions import paged_attention as lab4
from solutions import quantization as lab10
from solutions.quality.bits_per_byte import bits_per_byte, logits_of, loss, passages
from solutions.quantized_model import QuantizedLMHead, bytes_of, matrices
from solutions.speculative import ConfidentDrafter
from tests.common.checkpoints import write_tiny
from tests.common.commands import resize
from timed_generate import DEFAULT, STORY, TECHNIQUES
from timing.hf import HF_SIZES
from timing.table import BLOCK_SIZE, Bench, Prepare, kv_bytes
from timing.table.lossy import in_8_bits, loss_of
from timing.table.race import Lane
from timing.table.runs import BestBatches, Continuous, Rounds, Run
from timing.table.verify import verify
from timing.table.workloads import CHAT, EQUAL, KINDS, LENGTHS, RAGGED, SAMPLED, Workload

WHOLE_CHAT = timing.table.workloads.chat(GPTConfig(vocab_size=4096), timing.table.workloads.CHATS)
ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")
CONTEXT = 64
SPECULATIVE = "speculative", "ngram"
DRAFTED = *SPECULATIVE, "tree", "medusa", "lookahead", "jacobi"
ROWS = [name for name in DEFAULT if name != "medusa"]  # it needs heads, which this model lacks
CHATTING = "cached", "engine", "prefix"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny(folder, n_positions=CONTEXT, n_embd=32)
    return folder


def shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure a little memory only, and serve short requests, more of them than slots."""
    ragged = {"RAGGED_REQUESTS": 20, "RAGGED_PROMPT": (2, 8), "RAGGED_NEW": (2, 12)}
    chat = {"CHAT_SYSTEM": 16, "CHAT_QUESTION": 5, "CHAT_ANSWER": 4, "CHAT_TURNS": 3, "CHATS": 3}
    others = {"EQUAL_PROMPT": 6, "EQUAL_NEW": 5, "SAMPLED_NEW": 9}
    resize(monkeypatch, timing.table.workloads, **ragged, **chat, **others)
    resize(monkeypatch, timing.machine, BANDWIDTH_BYTES=2**20)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Leave torch's threads as they were, too."""
    shorten(monkeypatch)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def table(tiny, capsys):
    """Run the command and return what it printed, and the last line read as JSON.

    On the lengths alone, once each, unless told otherwise: the last one of an option counts.
    """

    def run(*args: str) -> tuple[str, dict]:
        first = ["--model", str(tiny), "--workloads", "lengths", "--repeats", "1"]
        timed_generate.main([*first, *args])
        printed = capsys.readouterr().out
        return printed, json.loads(printed.splitlines()[-1])

    return run


@pytest.fixture(scope="module")
def whole(tiny) -> tuple[str, dict]:
    """What is printed of all workloads and techniques, and the JSON, for several tests."""
    with pytest.MonkeyPatch.context() as monkeypatch, redirect_stdout(StringIO()) as out:
        shorten(monkeypatch)
        timed_generate.main(["--model", str(tiny), "--repeats", "1", "--tokens", "1,7", "--all"])
    *printed, result = out.getvalue().splitlines()
    return "\n".join(printed), json.loads(result)


def rows_of(result: dict, workload: str) -> dict[str, dict]:
    return {row["technique"]: row for row in result["rows"] if row["workload"] == workload}


def prepared(name: str, kind: str, folder: Path) -> Any:
    return TECHNIQUES[name][kind](Bench(folder, CPU))


def prompt_tokens(result: dict) -> int:
    return result["environment"]["prompt_tokens"]


# ----------------------------------------------------------------------------------- the table


@pytest.mark.parametrize("n", [1, 7])
def test_tokens_computed_and_kv_bytes_are_exact(whole, tiny, n):
    _, result = whole
    prompt, per_token = prompt_tokens(result), lab2.kv_bytes_per_token(read_config(tiny))
    for row in rows_of(result, f"{n} new tokens").values():
        if row["technique"] in ("naive", "hf-nocache"):
            assert row["tokens_computed"] == sum(range(prompt, prompt + n))
            assert row["kv_bytes"] == 0
        elif row["technique"] in DRAFTED:  # rejected drafts are computed too
            assert row["tokens_computed"] >= prompt + n - 1
            assert row["kv_bytes"] >= (prompt + n - 1) * per_token
        elif row["technique"] in ("engine", "int8", "window"):  # whole blocks
            blocks = -(-(prompt + n - 1) // BLOCK_SIZE)
            assert row["tokens_computed"] == prompt + n - 1
            assert row["kv_bytes"] == blocks * BLOCK_SIZE * per_token
        elif row["technique"] == "json-jump":  # the last tokens, if forced, are never computed
            assert prompt <= row["tokens_computed"] <= prompt + n - 1
            assert row["kv_bytes"] == row["tokens_computed"] * per_token
        elif row["technique"] == "serve":  # its engine is in another process
            assert row["tokens_computed"] is row["kv_bytes"] is None
        else:
            assert row["tokens_computed"] == prompt + n - 1
            assert row["kv_bytes"] == (prompt + n - 1) * per_token


def test_speedup_is_over_naive_on_the_same_workload_where_it_was_timed(table):
    _, result = table("--tokens", "2,5", "--techniques", "cached,naive")
    total = {(row["workload"], row["technique"]): row["total_s"] for row in result["rows"]}
    for row in result["rows"]:
        assert row["speedup"] == total[row["workload"], "naive"] / row["total_s"]
    _, result = table("--tokens", "3", "--techniques", "cached")
    assert [row["speedup"] for row in result["rows"]] == [None]


def test_one_token_has_no_tpot_and_no_mbu(whole):
    rows = rows_of(whole[1], "1 new tokens").values()
    assert {(row["tpot_s"], row["mbu"]) for row in rows} == {(None, None)}


def test_the_environment_says_what_was_measured_on(table, tiny):
    _, result = table("--tokens", "2", "--techniques", "naive", "--threads", "1")
    found = result["environment"]
    weights = sum(p.nbytes for p in GPT2LMHeadModel.from_pretrained(tiny).parameters())
    assert found["weight_bytes"] == weights - CONTEXT * 32 * 4  # but the position embeddings
    assert found["threads"] == 1
    assert found["repeats"] == 1
    assert found["torch"] == torch.__version__
    assert found["memory_bandwidth_bytes_per_s"] > 0
    assert found["device"] == "cpu"


@pytest.mark.parametrize(("cache", "marked"), [(2**30, True), (2**10, False), (None, False)])
def test_rows_whose_weights_fit_in_the_cache_are_marked(table, monkeypatch, cache, marked):
    monkeypatch.setattr(timed_generate, "last_level_cache", lambda device: cache)
    printed, result = table("--tokens", "3", "--techniques", "cached")
    assert [row["weights_fit_in_cache"] for row in result["rows"]] == [marked]
    assert ("%*" in printed) == ("* The weights fit" in printed) == marked


@pytest.mark.parametrize(
    "kinds", ["lengths", "ragged", "equal,lengths", "ragged,equal", "chat,ragged,equal"]
)
def test_files_are_written_of_whatever_was_timed(table, tmp_path, kinds):
    path, picture = tmp_path / "times.json", tmp_path / "times.png"
    args = "--tokens", "1", "--techniques", "cached", "--workloads", kinds
    printed, _ = table(*args, "--json", str(path), "--plot", str(picture))
    assert path.read_text().strip() == printed.splitlines()[-1]
    for file in (picture, tmp_path / "times-dark.png"):
        assert file.read_bytes().startswith(b"\x89PNG")


def test_alone_it_times_the_rows_that_tell_the_story_and_draws_them(
    tiny, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    timed_generate.main(["--model", str(tiny), "--repeats", "1", "--tokens", "7"])
    printed = capsys.readouterr().out
    rows = json.loads(printed.splitlines()[-1])["rows"]
    assert {row["technique"] for row in rows} == set(STORY)
    assert {row["workload"] for row in rows} == {"7 new tokens", "ragged"}
    assert {file.name for file in tmp_path.iterdir()} == {"timed.png", "timed-dark.png"}
    assert "timed.png" in printed


@pytest.mark.parametrize(
    ("kinds", "explained"), [("lengths", {"MBU"}), ("ragged", {"Used"}), ("chat", {"Used", "chat"})]
)
def test_the_legend_explains_the_columns_that_are_shown(table, kinds, explained):
    printed, _ = table("--workloads", kinds, "--tokens", "2", "--techniques", "cached")
    told = {"MBU": "MBU: ", "Used": "Used: ", "chat": "In a chat"}
    assert {name for name, words in told.items() if words in printed} == explained


@pytest.mark.slow
def test_as_a_command_it_warns_of_nothing_and_draws_no_bar_in_a_file(tiny):
    command = [sys.executable, ROOT / "timed_generate.py", "--model", tiny, "--tokens", "2,4"]
    command += ["--workloads", "lengths"]  # the others are of full size here
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0
    rows = [name for name in ROWS if LENGTHS in TECHNIQUES[name]]
    found = json.loads(done.stdout.splitlines()[-1])["rows"]
    assert [row["technique"] for row in found] == 2 * rows
    assert "run/s" not in done.stderr
    assert "warn" not in done.stderr.lower()


# ------------------------------------------------------------------------------------- measuring


def requests(prompts: list[int], new_tokens: list[int], kind: str = RAGGED) -> Workload:
    """Requests of these lengths, whose prompts are zeros."""
    return Workload(kind, kind, "", [[0] * n for n in prompts], new_tokens)


def timed_run(token_times: list[list[float]], kv_bytes: int = 0) -> Run:
    return Run([], 10.0, token_times, 0, kv_bytes, kv_bytes, batch=2)


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


# --------------------------------------------------------------------------------- many requests


def test_every_workload_is_served_by_the_techniques_that_can(whole):
    printed, result = whole
    kinds = {"1 new tokens": LENGTHS, "7 new tokens": LENGTHS, **{kind: kind for kind in KINDS[1:]}}
    found = [(row["workload"], row["technique"]) for row in result["rows"]]
    assert found == [
        (workload, name)
        for workload, kind in kinds.items()
        for name in ROWS
        if kind in TECHNIQUES[name]
    ]
    for row in result["rows"]:
        assert 0 < row["ttft_s"] <= row["total_s"]
        assert row["tok_per_s_min"] <= row["tok_per_s"] <= row["tok_per_s_max"]
        if row["workload"] == "7 new tokens":
            assert row["batch"] == 1
            assert (row["mbu"] or 0) > 0 or row["technique"] in (*DRAFTED, "json-jump", "serve")
        name = row["technique"]
        assert len(re.findall(rf"^ ?{name}[# ]", printed, re.MULTILINE)) >= 2
    assert "…" not in printed  # every cell is there in full
    assert "~" not in printed


def test_a_technique_runs_on_the_workloads_that_it_serves(tiny, capsys):
    args = ["--model", str(tiny), "--repeats", "1", "--techniques", "continuous,static"]
    timed_generate.main(args)
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    found = [(row["workload"], row["technique"]) for row in result["rows"]]
    assert found == [("ragged", "continuous"), ("ragged", "static"), ("equal", "static")]
    assert {row["speedup"] for row in result["rows"]} == {None}  # cached was verified, not timed


def test_the_work_for_ragged_requests_is_counted_exactly(whole, tiny):
    workload = timing.table.workloads.ragged(read_config(tiny))
    per_token = lab2.kv_bytes_per_token(read_config(tiny))
    useful = sum(len(p) + n - 1 for p, n in zip(workload.prompts, workload.new_tokens, strict=True))

    def padded(size: int) -> list[int]:
        """The cells of every batch of this size."""
        batches = [slice(first, first + size) for first in range(0, len(workload.prompts), size)]
        both = [(workload.prompts[batch], workload.new_tokens[batch]) for batch in batches]
        return [len(p) * (max(map(len, p)) + max(n) - 1) for p, n in both]

    rows = rows_of(whole[1], "ragged")
    for name, row in rows.items():
        assert row["requests"] == 20
        assert row["new_tokens"] == sum(workload.new_tokens)
        assert name == "serve" or row["kv_bytes"] <= row["kv_bytes_reserved"]
        assert row["speedup"] == rows["cached"]["total_s"] / row["total_s"]
        assert row["mbu"] is None
        if name in ("static", "hf"):
            cells = padded(row["batch"])
            assert row["tokens_computed"] == sum(cells)
            assert row["kv_bytes"] == max(cells) * per_token
    assert rows["cached"]["tokens_computed"] == rows["continuous"]["tokens_computed"] == useful
    assert rows["paged"]["tokens_computed"] >= useful  # more where a request was preempted
    assert rows["cached"]["kv_bytes"] == (workload.longest - 1) * per_token
    reserved = 16 * workload.longest * per_token
    assert rows["continuous"]["kv_bytes_reserved"] == reserved
    assert reserved - 16 * per_token < rows["paged"]["kv_bytes_reserved"] <= reserved
    assert [rows[name]["batch"] for name in ("cached", "static", "continuous")] == [1, 16, 16]
    assert rows["hf"]["batch"] in HF_SIZES
    model = lab2.CachedLMHead.from_pretrained(tiny)
    for name, loop in (("static", lab3.generate_static), ("continuous", lab3.generate_continuous)):
        served = loop(model, workload.prompts, workload.new_tokens, 16)
        assert rows[name]["used"] == lab3.utilisation(served.trace)
    assert rows["paged"]["used"] is None
    engine = rows["engine"]
    assert (engine["preemptions"], engine["batch"]) == (0, 20)
    assert 0 < engine["pool_used"] <= 1
    assert engine["ttft_s"] <= engine["ttft_p95_s"] <= engine["total_s"]
    assert engine["tpot_s"] <= engine["tpot_p95_s"]
    assert "engine, ragged: p50 / p95 of TTFT" in whole[0]


def test_equal_requests_waste_nothing_in_static_batches(whole):
    rows = rows_of(whole[1], "equal")
    assert {row["tokens_computed"] for row in rows.values()} == {16 * (6 + 5 - 1)}
    assert rows["engine"]["used"] is None  # it has no slots
    assert {row["used"] for name, row in rows.items() if name != "engine"} == {1.0}
    assert all(row["mbu"] > 0 for row in rows.values())


def test_ragged_requests_are_the_same_every_time_and_mostly_short():
    config = GPTConfig(vocab_size=100)
    workload = timing.table.workloads.ragged(config)
    assert workload == timing.table.workloads.ragged(config)
    generator = torch.Generator().manual_seed(0)
    drawn = timing.table.workloads.log_uniform((8, 128), 10_000, generator)
    assert (min(drawn), max(drawn)) == (8, 128)
    assert sorted(drawn)[5_000] == pytest.approx(32, abs=1)  # the geometric mean of the ends


@pytest.mark.parametrize("name", ["cached", "static", "continuous", "paged"])
def test_each_request_has_a_time_for_each_of_its_tokens(tiny, name):
    workload = timing.table.workloads.ragged(read_config(tiny))
    run = prepared(name, RAGGED, tiny).run(workload)
    assert [len(times) for times in run.token_times] == workload.new_tokens
    for times in run.token_times:
        assert run.start < times[0]
        assert times == sorted(set(times))  # no request gets two tokens in one forward


def test_in_a_batch_tokens_come_together_and_the_next_batch_waits(tiny):
    workload = requests([3, 1, 2], [2, 4, 1])
    batches = replace(prepared("static", RAGGED, tiny), size=2)
    first, second, third = batches.run(workload).token_times
    assert first == second[:2]
    assert third[0] > second[-1]


def test_newcomers_are_served_before_those_who_run(tiny):
    """Two slots, three requests: the third joins when the first has ended."""
    model = lab2.CachedLMHead.from_pretrained(tiny)

    def new_engine(model: Any, workload: Workload) -> lab3.ContinuousBatcher:
        return lab3.ContinuousBatcher(model, 2, workload.longest)

    engine = Continuous("", model, new_engine, kv_bytes.of_slots, 2)
    run = engine.run(requests([3, 3, 3], [1, 4, 2]))
    first, second, third = run.token_times
    assert first[0] < second[0] < third[0] < second[1] < second[2] == third[1] < second[3]
    assert run.notes["used"] == 7 / 8


def test_a_request_that_is_preempted_keeps_the_times_of_its_tokens(tiny):
    model = lab2.CachedLMHead.from_pretrained(tiny)
    engines = []

    def new_engine(model: Any, workload: Workload) -> lab4.PagedBatcher:
        engines.append(lab4.PagedBatcher(model, num_blocks=3, block_size=4, max_running=2))
        return engines[0]

    workload = requests([4, 4], [6, 6])
    run = Continuous("", model, new_engine, kv_bytes.of_blocks, 2).run(workload)
    assert engines[0].preemptions > 0
    assert [len(times) for times in run.token_times] == [6, 6]
    assert run.kv_bytes == run.kv_bytes_reserved  # the pool ran empty
    assert run.tokens_computed is not None
    assert run.tokens_computed > 2 * (4 + 6 - 1)


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


# ------------------------------------------------------------------------------------ speculation


@pytest.mark.parametrize("name", SPECULATIVE)
@pytest.mark.parametrize("kind", [LENGTHS, SAMPLED])
def test_the_tokens_of_a_round_come_together_and_are_counted(tiny, name, kind):
    [workload] = timing.table.workloads.new_workloads([kind], tiny, [20])
    technique = prepared(name, kind, tiny)
    assert isinstance(technique, Rounds)
    run = technique.run(workload)
    assert [len(times) for times in run.token_times] == workload.new_tokens
    rounds = [
        technique.rounds_of(technique.models, workload, number)
        for number in range(len(workload.prompts))
    ]
    for times, own in zip(run.token_times, rounds, strict=True):
        together = [len(list(group)) for _, group in itertools.groupby(times)]
        assert together == [len(round.new) for round in own]
        assert times == sorted(times)
    every = [round for own in rounds for round in own]
    drafted, accepted = sum(len(r.drafts) for r in every), sum(r.accepted for r in every)
    assert run.notes["acceptance"] == accepted / drafted
    prompts, passes = sum(len(prompt) for prompt in workload.prompts), len(every)
    assert run.notes["tokens_per_pass"] == sum(workload.new_tokens) / passes
    # The first pass of a request computes its prompt, every other one the newest token.
    assert run.tokens_computed == prompts + passes - len(rounds) + drafted


def test_a_draft_that_is_the_model_is_always_accepted(table, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(ConfidentDrafter, "least", 0.0)  # random models are never sure
    both = tmp_path / "twin", tmp_path / "twin-draft"
    for folder in both:
        shutil.copytree(tiny, folder)
    args = "--tokens", "15", "--techniques", "speculative"
    printed, result = table("--model", str(both[0]), *args)
    assert "up to 6 drafts from twin-draft, verified in one forward pass (lab 6)" in printed
    told = "speculative, 15 new tokens: 100% of the drafts accepted, 5.00 tokens per forward pass"
    assert told in printed
    assert result["rows"][0]["acceptance"] == 1
    assert result["rows"][0]["tokens_per_pass"] == 5


def test_without_a_draft_the_first_layers_of_the_model_are_it(table):
    printed, result = table("--tokens", "6", "--techniques", "cached,speculative")
    assert "up to 6 drafts from the model's first layers (1)" in printed
    cached, speculative = result["rows"]
    assert cached["acceptance"] is cached["tokens_per_pass"] is None
    assert speculative["acceptance"] is not None


def test_drawn_tokens_are_the_same_every_time_and_not_the_greedy_ones(tiny):
    [workload] = timing.table.workloads.new_workloads(["sampled"], tiny, [])
    technique = prepared("sampled", SAMPLED, tiny)
    first, again = (technique.run(workload).outputs for _ in range(2))
    assert first == again
    assert technique.run(replace(workload, temperature=0)).outputs != first
    assert len({tuple(ids[-9:]) for ids in first}) == len(first)


# ------------------------------------------------------------------------------------ repetition


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
    ("techniques", "options", "enough", "timed", "repeats"),
    [
        ("new", ["--repeats", "4"], 1e-9, [("new", 2), ("new", 3)] * 4, 4),  # as often as asked
        ("naive,new", ["--repeats", "2"], 1e-9, VERIFIED + OTHER_FIRST, 2),
        ("naive,new", [], math.inf, VERIFIED + OTHER_FIRST + VERIFIED, 3),  # thrice, in turns
        ("naive,new", [], 1e-9, [("new", 2), ("new", 3)], 1),  # the reference was timed at once
    ],
)
def test_each_row_is_verified_and_then_timed_until_it_is_enough(
    tiny, ran, monkeypatch, capsys, techniques, options, enough, timed, repeats
):
    monkeypatch.setattr(timing.table.measure, "ENOUGH_SECONDS", enough)
    names = ["--techniques", techniques, "--workloads", "lengths", "--tokens", "2,3"]
    timed_generate.main(["--model", str(tiny), *names, *options])
    assert ran == VERIFIED + timed
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {row["repeats"] for row in result["rows"]} == {repeats}


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
    monkeypatch.setattr(timed_generate, "SHORT_ONLY", {"hf-nocache": 2})
    _, result = table("--tokens", "2,3")
    found = [row["workload"] for row in result["rows"] if row["technique"] == "hf-nocache"]
    assert found == ["2 new tokens"]
    assert "hf-nocache" not in result["growth"]
    _, result = table("--tokens", "2,3", "--techniques", "hf-nocache")
    assert [row["new_tokens"] for row in result["rows"]] == [2, 3]


# -------------------------------------------------------------------------------------- saboteurs

Sabotage = Callable[[Prepare, Bench], Any]


def mistaken(wrong: Callable[[list[int], int], list[int]], call: int = 0) -> Sabotage:
    """The last request of a batch goes wrong, from this call on."""

    def prepare_it(prepare: Prepare, bench: Bench) -> Any:
        right: Any = prepare(bench)
        calls = []

        def generate(model, prompts, new_tokens):
            calls.append(prompts)
            *outputs, last = right.generate(model, prompts, new_tokens)
            return [*outputs, wrong(last, new_tokens[-1]) if len(calls) > call else last]

        return replace(right, generate=generate)

    return prepare_it


def changed(ids: list[int], place: int) -> list[int]:
    place %= len(ids)
    return [*ids[:place], (ids[place] + 1) % 4096, *ids[place + 1 :]]


def broken(lab: str, names: dict[str, Any]) -> Sabotage:
    """The lab has these in the place of its own."""

    def prepare_it(prepare: Prepare, bench: Bench) -> Any:
        module, other = fresh_copy(lab), bench.lab
        for path, thing in names.items():
            owner, _, name = path.rpartition(".")
            setattr(vars(module)[owner] if owner else module, name, thing)
        return prepare(replace(bench, lab=lambda name: module if name == lab else other(name)))

    return prepare_it


class Stale(lab2.KVCache):
    """It leaves a rejected draft in the place of the last token that it keeps."""

    def truncate(self, n: int):
        for stored in (self.keys, self.values):
            stored[:, :, :, n - 1] = stored[:, :, :, self.length - 1]
        super().truncate(n)


def alike(ids: list[int], size: int, salt: bytes) -> list[bytes]:
    """Hashes that take every text for any other of its length."""
    return [bytes([number]) for number in range(len(ids) // size)]


def mask(longer: int, more: int) -> dict[str, Any]:
    """A window that is longer than it should be, and begins with more of the first tokens."""

    def window_mask(queries, keys, window, sinks):
        return lab11.window_mask(queries, keys, window + longer, sinks + more)

    return {"window_mask": window_mask}


def forgetting(state: Any, scores: torch.Tensor, values: torch.Tensor) -> Any:
    """Of all tiles the last one is left."""
    return lab12.absorb(lab12.empty_state(state.weighted), scores, values)


def other_codes(part: str) -> Sabotage:
    """A kernel that doesn't do what the codes say."""

    def prepare_it(prepare: Prepare, bench: Bench) -> Any:
        row: Any = prepare(bench)
        model = deepcopy(row.model)  # other tests run the same one
        layer = model.get_submodule(part)
        layer.codes.copy_(layer.codes.roll(1, 0))
        return replace(row, model=model)

    return prepare_it


def closed(logits: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """The likeliest of several allowed tokens is forbidden, too."""
    best = lab14.constrain(logits, allowed).argmax(dim=-1, keepdim=True)
    several = allowed.sum(dim=-1, keepdim=True) > 1
    return lab14.constrain(logits, allowed & ~(several & (torch.arange(allowed.shape[1]) == best)))


def shortened(*args: Any) -> list[int]:
    return lab14.hold_back(*args)[:-1]


WRONG_MASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "a mask that closes too much": ("json", {"constrain": closed}),
    "a mask that closes too much, jumping": ("json-jump", {"constrain": closed}),
    "a jump that ends too early": ("json-jump", {"hold_back": shortened}),
}
LOST_TILE = {"absorb": forgetting, "TiledCache.tile": 3}
NAIVE = "does not generate what the naive model does"
REPLAY = "draws other tokens with its caches than without them"
MISTAKES: dict[str, tuple[Callable[[list[int], int], list[int]], str]] = {
    "wrong at the end": (lambda ids, limit: changed(ids, -1), NAIVE),
    "one too few": (lambda ids, limit: ids[:-1], "returned"),
    "changes the prompt": (lambda ids, limit: changed(ids, 0), NAIVE),
    "only new tokens": (lambda ids, limit: ids[-limit:], "returned"),
}
PLACES = {
    ("cached", LENGTHS): "40 new tokens",
    ("static", RAGGED): "request 15 of ragged",
    ("cached", CHAT): "request 0 of chat",
}
AT_THE_END = MISTAKES["wrong at the end"][0]
# A row, the kind of workload, what is broken, what the command must say when it stops. A lab's own
# saboteur is one line here.
SABOTEURS: dict[str, tuple[str, str, Sabotage, str]] = {
    **{
        f"{mistake}, {kind}": (row, kind, mistaken(wrong), f"{told}.* {place}")
        for mistake, (wrong, told) in MISTAKES.items()
        for (row, kind), place in PLACES.items()
    },
    # State that survives a run shows only in the next one.
    "wrong later": ("naive", LENGTHS, mistaken(AT_THE_END, call=1), NAIVE),
    **{
        f"stale {row}, {kind}": (row, kind, broken("speculative", {"KVCache": Stale}), told)
        for row in SPECULATIVE
        for kind, told in ((LENGTHS, NAIVE), (SAMPLED, REPLAY))
    },
    "other text": ("prefix", CHAT, broken("prefix_caching", {"block_hashes": alike}), NAIVE),
    **{
        f"other codes of {part}, {kind}": ("int8", kind, other_codes(part), NAIVE)
        for part in ("embedding", "transformer.h.1.mlp.c_fc")
        for kind in (LENGTHS, RAGGED)
    },
    **{
        f"window {other}, {kind}": ("window", kind, broken("kv_reduction", mask(*other)), NAIVE)
        for other in ((1, 0), (-1, 0), (0, -1))
        for kind in (LENGTHS, RAGGED)
    },
    **{
        f"{what} ({row})": (row, LENGTHS, broken("constrained", names), NAIVE)
        for what, (row, names) in WRONG_MASKS.items()
    },
    "a lost tile": ("tiled", RAGGED, broken("flash_attention", LOST_TILE), NAIVE),
}


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("saboteur", SABOTEURS)
def test_a_saboteur_is_never_timed(table, narrow, monkeypatch, capsys, saboteur):
    row, kind, sabotage, told = SABOTEURS[saboteur]
    monkeypatch.setitem(TECHNIQUES, "saboteur", {kind: partial(sabotage, TECHNIQUES[row][kind])})
    with pytest.raises(SystemExit) as stopped:
        table("--workloads", kind, "--tokens", "40", "--techniques", "saboteur")
    assert re.match(f"Stopped: saboteur {told}", str(stopped.value))  # a text exits with status 1
    assert "tok/s" not in capsys.readouterr().out


@pytest.mark.parametrize(("name", "kind"), [("naive", LENGTHS), ("cached", RAGGED)])
def test_the_reference_is_held_against_the_model_without_cache(table, monkeypatch, name, kind):
    wrong = partial(mistaken(AT_THE_END), TECHNIQUES[name][kind])
    monkeypatch.setitem(TECHNIQUES, name, {**TECHNIQUES[name], kind: wrong})
    with pytest.raises(SystemExit, match=f"{name} {NAIVE}"):
        table("--workloads", kind, "--tokens", "4")


# ----------------------------------------------------------------------------------- verification


class Scripted(nn.Module):
    """A model that gives the same logits at every position, whatever it reads."""

    def __init__(self, logits: list[float]):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits))

    def forward(self, inputs, position_ids):
        return self.logits.expand(*inputs.shape, -1)


TIED = [0.0, 10.0, 10.0 - 1e-4]


@pytest.mark.parametrize(
    ("ids", "logits", "told"),
    [
        ([0, 0, 1, 1, 1], [0.0, 1.0, 1.0], None),  # equal tokens need no excuse
        ([0, 0, 1, 2, 1], TIED, "position 3"),
        ([0, 0, 2, 1, 1], [-1000.0, -999.0, -999.05], "position 2"),  # relative to the logits
        ([0, 0, 2, 1, 1], [0.0, 0.1, 0.05], "Stopped"),
        ([0, 0, 2, 1, 0], TIED, "Stopped"),  # beyond a tie each token must still be a best one
    ],
)
def test_a_difference_is_excused_by_a_tie_alone(ids, logits, told):
    """Of a prompt of two tokens, 0 0, that the reference continued by 1 1 1."""
    try:
        found = verify("new", requests([2], [3]), [ids], [[0, 0, 1, 1, 1]], Scripted(logits))
    except SystemExit as stopped:
        found = str(stopped)
    assert found is told is None or told in (found or "")


def test_ties_of_several_requests_make_one_sentence():
    workload = requests([2, 2, 2], [1, 1, 1])
    outputs, model = [[0, 0, 2]] * 3, Scripted(TIED)
    told = verify("new", workload, outputs, [[0, 0, 1]] * 3, model)
    assert "request 0 of ragged" in told
    assert told.endswith("The same happened in 2 more requests.")


def test_a_tie_parts_the_later_turns_of_a_chat_too_and_is_told_once():
    workload = Workload(CHAT, CHAT, "", [[0, 0], [0]], [1, 1], turns=2)
    expected, model = [[0, 0, 1], [0, 0, 1, 0, 1]], Scripted(TIED)
    told = verify("new", workload, [[0, 0, 2], [0, 0, 2, 0, 1]], expected, model)
    assert "request 0 of chat: the first difference is at position 2" in told
    assert "more requests" not in told
    # An answer, what was before, none.
    for wrong in ([0, 0, 2, 0, 0], [0, 0, 0, 0, 1], [0, 0, 2, 0]):
        with pytest.raises(SystemExit, match="request 1 of chat"):
            verify("new", workload, [[0, 0, 2], wrong], expected, model)


def test_a_reference_is_what_the_model_picks_or_ties_with():
    workload, model = requests([2], [2]), Scripted(TIED)
    assert verify("cached", workload, [[0, 0, 1, 1]], None, model) is None
    told = verify("cached", workload, [[0, 0, 1, 2]], None, model)
    assert "position 3" in told


def test_a_tied_row_is_marked_and_the_tie_printed(table, monkeypatch):
    def tied(name, workload, outputs, expected, naive_model):
        return "cached, 3 new tokens: a tie." if name == "cached" else None

    monkeypatch.setattr(timing.table.verify, "verify", tied)
    printed, _ = table("--tokens", "3", "--techniques", "naive,cached")
    assert "cached~" in printed
    assert "naive~" not in printed
    assert "~ cached, 3 new tokens: a tie." in printed


# ------------------------------------------------------------------------------------------ mine


def keep(folder: Path, exercise: str, thing: Callable):
    lab, name = exercise.split(".", 1)
    (folder / lab).mkdir(parents=True, exist_ok=True)
    (folder / lab / f"{name}.py").write_text(inspect.getsource(inspect.unwrap(thing)))


@pytest.fixture
def kept(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("MINE_FOLDER", str(tmp_path / "mine"))
    return tmp_path / "mine"


def test_mine_is_what_the_checks_kept(table, kept):
    for exercise in ("kv_cache.KVCache.attend", "kv_cache.KVCache.truncate"):
        keep(kept, exercise, lab2.KVCache)
    printed, result = table("--tokens", "3", "--techniques", "naive", "--mine")
    assert [row["technique"] for row in result["rows"]] == ["naive", "mine"]
    assert "your KVCache (lab 2)" in printed


def test_with_nothing_solved_a_sentence_says_so_and_no_row_is_added(table, kept, tiny, capsys):
    printed, result = table("--tokens", "3", "--techniques", "naive", "--mine")
    assert [row["technique"] for row in result["rows"]] == ["naive"]
    assert printed.startswith("No exercise of yours has passed its check yet")
    assert "mine(" not in printed
    timed_generate.main(["--model", str(tiny), "--race", "--tokens", "2"])
    raced = capsys.readouterr().out
    assert raced.startswith("No exercise of yours has passed its check yet")
    assert raced.count("tok/s") == 2


NAIVE_LOOP, TUPLES = {"generate": ["generate"]}, {"kv_cache": ["generate_threaded"]}
CACHE, ROUNDS = {"kv_cache": ["KVCache"]}, {"speculative": ["generate_speculative"]}
ENGINE, CODES = {"engine": ["Engine"]}, {"quantization": ["absmax"]}
MANAGER, HASHES = ({"prefix_caching": [part]} for part in ("PrefixManager", "block_hashes"))
SLOTS, PAGES = {"batching": ["SlotCache"]}, {"paged_attention": ["PagedCache"]}
# What a learner has written, on which workload, what the row is called, which row does the same.
MINE: list[tuple[dict[str, list[str]], str, str, str]] = [
    ({}, LENGTHS, "reference's cached loop: no loop of yours has passed its check yet", "cached"),
    (NAIVE_LOOP, LENGTHS, "your generate (lab 1)", "naive"),
    (NAIVE_LOOP | TUPLES, LENGTHS, "your KV cache of tuples (lab 2)", "cached-concat"),
    (CACHE, LENGTHS, "your KVCache (lab 2)", "cached"),
    (CACHE | ROUNDS, LENGTHS, "your speculative decoding (lab 6)", "speculative"),
    (ROUNDS | ENGINE, LENGTHS, "your engine (lab 7)", "engine"),
    (ENGINE | CODES, LENGTHS, "your codes of 8 bits (lab 10)", "int8"),
    (NAIVE_LOOP, SAMPLED, "no sampler of yours has passed its check yet", "sampled"),
    ({"decoding": ["draw"]}, SAMPLED, "your sampling (lab 5)", "sampled"),
    ({"speculative": ["verify"]}, SAMPLED, "your speculative decoding (lab 6)", "speculative"),
    ({}, RAGGED, "many requests: the reference's static batches", "static"),
    ({"batching": ["pad_left"]}, RAGGED, "many requests: your static batches (lab 3)", "static"),
    ({"batching": ["generate_padded"]}, EQUAL, "your static batches (lab 3)", "static"),
    (SLOTS, RAGGED, "many requests: your continuous batching (lab 3)", "continuous"),
    (SLOTS | PAGES, RAGGED, "many requests: your paged attention (lab 4)", "paged"),
    ({"paged_attention": ["BlockManager"]}, RAGGED, "your paged attention (lab 4)", "paged"),
    (ENGINE | PAGES, RAGGED, "many requests: your engine (lab 7)", "engine"),
    (CODES, RAGGED, "many requests: your codes of 8 bits (lab 10)", "int8"),
    ({}, CHAT, "chats: the reference's engine", "engine"),
    (ENGINE, CHAT, "chats: your engine (lab 7)", "engine"),
    (MANAGER, CHAT, "chats: your prefix cache (lab 8)", "prefix"),
    (HASHES | ENGINE, CHAT, "chats: your prefix cache (lab 8)", "prefix"),
]
SAME_WORK = (
    *("batch", "tokens_computed", "kv_bytes", "kv_bytes_reserved", "weight_bytes", "used"),
    *("queried", "hits", "acceptance"),
)


@pytest.fixture
def written(monkeypatch) -> Callable[[dict[str, list[str]]], None]:
    """As if a learner had written these functions and classes of these labs, and nothing else."""

    def write(yours: dict[str, list[str]]):
        def mine(lab: str) -> Any:
            module, own = fresh_copy(lab), fresh_copy(lab)
            source = module_file(lab).read_text()
            exec(compile(source, f"my {lab}", "exec"), vars(own))
            vars(module).update({part: vars(own)[part] for part in yours.get(lab, [])})
            return module

        monkeypatch.setattr("autograder.check.mine", mine)
        monkeypatch.setattr(timed_generate, "has_solved", lambda: True)

    return write


@pytest.mark.in_turn(4)
@pytest.mark.parametrize(("yours", "kind", "about", "like"), MINE)
def test_mine_is_the_newest_that_is_written(table, written, yours, kind, about, like):
    written(yours)
    args = "--workloads", kind, "--tokens", "5", "--techniques", like, "--mine"
    printed, result = table(*args)
    assert about in printed
    theirs, mine = result["rows"]
    assert (theirs["technique"], mine["technique"]) == (like, "mine")
    assert {key: mine[key] for key in SAME_WORK} == {key: theirs[key] for key in SAME_WORK}
    assert result["losses"].get("mine") == result["losses"].get(like)


# ------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--techniques", "naive,cashed"], "Did you mean 'cached'?"),
        (["--techniques", "zzz"], "There are naive, cached-concat, cached, sampled, speculative, "),
        (["--peers", "ct2,lama.cpp"], "there is no engine 'lama.cpp'. Did you mean 'llama.cpp'?"),
        (["--workloads", "raged"], "there is no workload 'raged'. Did you mean 'ragged'?"),
        (
            ["--workloads", "ragged,equal", "--techniques", "static,naive"],
            "naive serves the workloads lengths, not ragged,equal",
        ),
        (
            ["--workloads", "equal,ragged", "--techniques", "paged"],
            "The workload equal is served by cached,static,engine,hf,mine, not by paged",
        ),
        (["--tokens", "16,x"], "'x' is not a whole number"),
        (["--tokens", ""], "'' is not a whole number"),
        (["--tokens", "0"], "'0' is not a whole number from 1 up"),
        (["--tokens", "4,64"], "--tokens 64 is too long"),
        (["--threads", "100000"], "is too many: this machine has"),
        (["--repeats", "1.5"], "'1.5' is not a whole number"),
        (["--device", "toaster"], "torch cannot use a device 'toaster' here"),
        (["--device", "meta"], "torch cannot use a device 'meta' here"),
        (["--json", "no/such/folder/times.json"], "cannot be written"),
        (["--plot", "."], "cannot be written"),
        (["--model", "no such model"], "There is no model 'no such model'"),
        (["--model", "tests"], "expected config.json"),
        (["--frobnicate"], "--frobnicate"),
    ],
)
def test_bad_input_is_refused_with_a_sentence_before_any_work(
    tiny, capsys, monkeypatch, args, sentence
):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(timed_generate, "memory_bandwidth", lambda device: pytest.fail("worked"))
    with pytest.raises(SystemExit) as stopped:
        timed_generate.main(["--model", str(tiny), *args])
    assert stopped.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert sentence in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("kind", "new"),
    [("ragged", "RAGGED_NEW"), ("equal", "EQUAL_NEW"), ("chat", "CHAT_SYSTEM")],
)
def test_a_context_too_short_for_the_requests_is_refused(table, monkeypatch, capsys, kind, new):
    monkeypatch.setattr(timing.table.workloads, new, (100, 100) if kind == "ragged" else 100)
    with pytest.raises(SystemExit):
        table("--workloads", kind)
    assert f"The workload {kind} needs a context of 1" in capsys.readouterr().err


def test_without_a_tokenizer_there_are_many_requests_alone_and_a_loss_is_unknown(
    tiny, tmp_path, table, capsys
):
    for name in ("config.json", "model.safetensors"):
        shutil.copy(tiny / name, tmp_path)
    model = "--model", str(tmp_path)
    with pytest.raises(SystemExit):
        table(*model)
    assert "has no tokenizer" in capsys.readouterr().err
    printed, result = table(*model, "--workloads", "ragged", "--techniques", "int8")
    assert prompt_tokens(result) is None
    assert "MB of weights instead of" in printed
    assert "loss: unknown." in printed
    assert result["losses"] == {}


@pytest.mark.needs("cuda")
def test_on_a_gpu_the_counts_are_the_same(table):
    techniques = ",".join(name for name in TECHNIQUES if name not in ("hf", "mine"))
    args = "--workloads", ",".join(KINDS), "--tokens", "4", "--techniques", techniques
    _, here = table(*args)
    _, there = table(*args, "--device", "cuda")
    for one, other in zip(here["rows"], there["rows"], strict=True):
        assert one["tokens_computed"] == other["tokens_computed"]
        assert one["kv_bytes"] == other["kv_bytes"]


# ------------------------------------------------------------------------------------------ chats


def test_chats_are_the_same_every_time_and_share_their_system_prompt():
    workload = timing.table.workloads.chat(GPTConfig(vocab_size=100), 3)
    assert workload == timing.table.workloads.chat(GPTConfig(vocab_size=100), 3)
    first, *others = workload.prompts[:3]
    assert all(prompt[:16] == first[:16] != prompt[16:] for prompt in others)
    assert [len(prompt) for prompt in workload.prompts] == [16 + 5] * 3 + [5] * 6
    assert len({tuple(prompt) for prompt in workload.prompts}) == 9


def test_of_48_turns_the_prefix_cache_finds_what_the_readme_says(tmp_path):
    write_tiny(tmp_path, n_positions=WHOLE_CHAT.longest, n_embd=32)
    run = prepared("prefix", CHAT, tmp_path).run(WHOLE_CHAT)
    # A step has room for the first turns of two chats and for 16 tokens of a third one's. The other
    # five come when the system prompt is known.
    found = 5 * 96
    found += sum(8 * ((120 + 56 * turn + 31) // 16 * 16) for turn in range(5))
    assert (run.notes["queried"], run.notes["hits"]) == (12_480, found) == (12_480, 10_592)
    # The last token of each answer is never computed.
    assert run.tokens_computed == 12_480 - found + 48 * 31
    assert run.notes["preemptions"] == 0


def test_rows_of_chats_are_counted_exactly_and_tell_what_was_found(whole, tiny):
    printed, result = whole
    per_token = lab2.kv_bytes_per_token(read_config(tiny))
    rows, ragged = rows_of(result, "chat"), rows_of(result, "ragged")
    prompts, answers, found = 3 * (21 + 30 + 39), 9 * 3, 3 * (16 + 32)
    for name, row in rows.items():
        assert (row["requests"], row["new_tokens"], row["mbu"]) == (9, 9 * 4, None)
        new = prompts - (found if name == "prefix" else 0)
        assert row["tokens_computed"] == new + answers
        assert row["batch"] == (1 if name == "cached" else 3)
        assert row["speedup"] == rows["cached"]["total_s"] / row["total_s"]
    for key in ("kv_bytes", "kv_bytes_reserved"):  # of all three chats at their ends
        assert rows["engine"][key] == 3 * 3 * BLOCK_SIZE * per_token
    assert rows["engine"]["hits"] is rows["cached"]["hits"] is None
    assert rows["engine"]["preemptions"] == 0
    assert "prefix, chat: 144 of 270 prompt tokens found in the prefix cache" in printed
    assert "prefix, ragged: 0 of" in printed
    assert ragged["prefix"]["tokens_computed"] == ragged["engine"]["tokens_computed"]


def test_a_later_turn_comes_when_the_one_before_has_ended():
    run = timed_run([[11.0, 12.0], [14.0, 20.0], [15.0, 16.0], [23.0, 24.0]])
    assert [request.ttft for request in run.metrics()] == [1, 4, 5, 13]
    assert [request.ttft for request in run.metrics(turns=2)] == [1, 4, 3, 3]
    workload = Workload(CHAT, CHAT, "", [[0]] * 4, [2] * 4, turns=2)
    assert timing.table.measure.new_row(workload, "engine", [run], 5000, MACHINE)["ttft_s"] == 3


SAYINGS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=9, max_size=9)


@settings(max_examples=20, deadline=None)
@given(SAYINGS, st.permutations(range(1, 10)))
def test_chats_go_on_from_their_own_answers_in_whatever_order_they_end(tiny, prompts, limits):
    """Three chats of three turns: those with short answers overtake the others."""
    workload = Workload(CHAT, CHAT, "", prompts, limits, turns=3)
    runs = [prepared(name, CHAT, tiny).run(workload) for name in CHATTING]
    texts = runs[0].outputs
    assert workload.longest == max(map(len, texts))
    for number, text in enumerate(texts):
        before = texts[number - 3] if number >= 3 else []
        assert text[: -limits[number]] == before + prompts[number]
    for run in runs:
        assert run.outputs == texts
        assert [len(times) for times in run.token_times] == limits
        assert all(request.ttft > 0 for request in run.metrics(turns=3))


# ---------------------------------------------------------------------------------- rounded weights


def in_codes(model: lab2.CachedLMHead) -> QuantizedLMHead:
    """Its layers multiply by the codes in plain sight."""
    return lab10.quantized(model, lab10.QuantizedLinear.from_linear)


def test_what_8_bits_are_held_against_has_the_weights_of_the_codes(tiny):
    exact = lab2.CachedLMHead.from_pretrained(tiny)
    before = {name: weight.clone() for name, weight in exact.state_dict().items()}
    naive, codes = in_8_bits(exact), in_codes(exact)
    assert torch.equal(naive.transformer.wte.weight, codes.embedding.weight)
    for name, linear in matrices(naive).items():
        layer: Any = codes.get_submodule(name)
        assert torch.equal(linear.weight, layer.codes * layer.scale)
        assert torch.equal(linear.bias, layer.bias)
    assert all(torch.equal(weight, before[name]) for name, weight in exact.state_dict().items())


def assert_marked(name: str, printed: str, result: dict):
    """On two workloads, and nothing else is; its loss is told."""
    lines = printed.splitlines()
    assert re.findall(r"^ ?([^\s#]+)#", printed, re.MULTILINE) == [name] * 2
    assert result["losses"].keys() == {name}
    loss = result["losses"][name]
    shown = f"{loss['bits']:+.4f} ± {loss['error']:.4f} bits per byte on 4 passages."
    assert any(line.startswith(f"# {name}: ") and line.endswith(shown) for line in lines)


def test_a_row_of_rounded_weights_is_marked_and_tells_what_it_loses(table, tiny):
    args = "--workloads", "lengths,ragged", "--tokens", "7", "--techniques", "engine,int8"
    printed, result = table(*args)
    assert_marked("int8", printed, result)
    assert "# int8, 7 new tokens: its weights are rounded." in printed
    exact, rounded = rows_of(result, "ragged").values()
    for key in ("batch", "tokens_computed", "kv_bytes", "kv_bytes_reserved"):
        assert rounded[key] == exact[key]
    codes = lab10.quantized(lab2.CachedLMHead.from_pretrained(tiny))
    assert rounded["weight_bytes"] == bytes_of(codes) - CONTEXT * 32 * 4
    assert rounded["weight_bytes"] < 0.3 * exact["weight_bytes"]


def test_a_loss_is_of_what_the_row_computes_with(tiny):
    """Here of a model that finds all tokens equally likely, and needs 12 bits for each of 4,096."""
    exact, scored = lab2.CachedLMHead.from_pretrained(tiny), CONTEXT // 2
    blank = deepcopy(exact)
    for weight in blank.transformer.ln_f.parameters():
        weight.data.zero_()
    texts, tokenizer = passages(length=CONTEXT)[:4], load_tokenizer(tiny)
    n_bytes = [len(tokenizer.decode(ids[-scored:]).encode()) for ids in texts]
    bits = bits_per_byte(logits_of(GPTLMHead.from_pretrained(tiny)), texts, scored=scored)
    expected = loss(torch.tensor([12 * scored / n for n in n_bytes]), bits)
    found = loss_of(blank, exact, tiny)
    assert found is not None
    assert found.bits == pytest.approx(expected.bits, rel=1e-4)
    assert found.error == pytest.approx(expected.error, rel=1e-3)


# ----------------------------------------------------------------------------------------- a window


@pytest.fixture
def narrow(monkeypatch):
    """A window that the short texts here are longer than, and tiles."""
    monkeypatch.setattr("course.lab11_kv_reduction.row.WINDOW", 6)
    monkeypatch.setattr("course.lab11_kv_reduction.row.SINKS", 2)
    monkeypatch.setattr(lab12.TiledCache, "tile", 3)


def test_a_window_is_marked_and_tells_what_it_loses(table, tiny, narrow):
    args = "--workloads", "lengths,ragged", "--tokens", "40", "--techniques", "engine,window"
    printed, result = table(*args)
    assert_marked("window", printed, result)
    assert "# window, 40 new tokens: a token sees at most 8. 0 of 1 texts equal" in printed
    scored, exact = CONTEXT // 2, lab2.CachedLMHead.from_pretrained(tiny)
    texts = passages(length=CONTEXT)[:4]

    def bits(window: int) -> torch.Tensor:
        def logits(ids: torch.Tensor) -> torch.Tensor:
            positions = torch.arange(ids.shape[1])[None]
            return exact(ids, positions, lab11.WindowCache(2, window, sinks=2))

        return bits_per_byte(logits, texts, scored=scored)

    expected, found = loss(bits(6), bits(CONTEXT)), result["losses"]["window"]
    assert found["bits"] == pytest.approx(expected.bits, rel=1e-3)
    assert found["error"] == pytest.approx(expected.error, rel=1e-3)
    engine, window = rows_of(result, "ragged").values()
    for key in ("batch", "tokens_computed", "kv_bytes_reserved", "weight_bytes"):
        assert window[key] == engine[key]
    # Of a text of 4 blocks the first one and two more: one that is full, and one that fills.
    engine, window = rows_of(result, "40 new tokens").values()
    assert window["kv_bytes"] / engine["kv_bytes"] == 3 / 4


def test_a_window_as_long_as_the_text_loses_nothing(table):
    printed, result = table("--tokens", "9", "--techniques", "window")
    assert "a token sees at most 68. 1 of 1 texts equal the reference's; 100% of" in printed
    assert result["losses"]["window"]["bits"] == pytest.approx(0, abs=1e-5)


# ----------------------------------------------------------------------------------------- in tiles


@pytest.mark.usefixtures("narrow")
def test_attention_in_tiles_is_exact_and_does_the_same_work(table):
    printed, result = table("--workloads", "ragged", "--techniques", "engine,tiled")
    assert "tiled#" not in printed
    engine, tiled = result["rows"]
    assert {key: tiled[key] for key in SAME_WORK} == {key: engine[key] for key in SAME_WORK}
    assert result["losses"] == {}


# ------------------------------------------------------------------------------------------ a race


@pytest.mark.parametrize("yours", [{}, CODES])  # in 8 bits it is held against 8 bits
def test_a_race_shows_three_texts_that_are_the_same(tiny, written, capsys, yours):
    written(yours)
    timed_generate.main(["--model", str(tiny), "--race", "--tokens", "2,6"])
    shown = capsys.readouterr().out
    for name in ("naive", "hf", "mine"):
        assert f" {name}: " in shown
    assert shown.count("tok/s") == 3


def test_a_lane_has_reached_what_had_come_by_then():
    run = Run([[7, 8, 9]], 10.0, [[10.5, 12.0]], 3, 0, 0, 1)
    lane = Lane.of("naive", run)
    assert lane.tokens == [8, 9]
    assert [lane.reached(moment) for moment in (0.0, 0.5, 1.9, 2.0)] == [0, 1, 1, 2]
    assert lane.title(1.0) == "naive: 1 of 2 tokens"
    assert lane.title(2.0) == "naive: 2.00 s, 1 tok/s"
