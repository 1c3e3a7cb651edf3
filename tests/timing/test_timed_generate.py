"""The command that times the techniques: what is chosen, printed, written and refused."""

import json
import shutil
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from transformers import GPT2LMHeadModel

import timed_generate
from gpt import GPTLMHead, load_tokenizer
from solutions import kv_cache as lab2
from solutions.quality.bits_per_byte import bits_per_byte, logits_of, loss, passages
from tests.common.timed import CONTEXT, ROWS
from timed_generate import STORY, TECHNIQUES
from timing.table import Run, loss_of
from timing.table.race import Lane
from timing.table.workloads import KINDS, LENGTHS

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.usefixtures("quick")


def test_a_technique_runs_on_the_workloads_that_it_serves(tiny, capsys):
    args = ["--model", str(tiny), "--repeats", "1", "--techniques", "continuous,static"]
    timed_generate.main(args)
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    found = [(row["workload"], row["technique"]) for row in result["rows"]]
    assert found == [("ragged", "continuous"), ("ragged", "static"), ("equal", "static")]
    assert {row["speedup"] for row in result["rows"]} == {None}  # cached was verified, not timed


def test_speedup_is_over_naive_on_the_same_workload_where_it_was_timed(table):
    _, result = table("--tokens", "2,5", "--techniques", "cached,naive")
    total = {(row["workload"], row["technique"]): row["total_s"] for row in result["rows"]}
    for row in result["rows"]:
        assert row["speedup"] == total[row["workload"], "naive"] / row["total_s"]
    _, result = table("--tokens", "3", "--techniques", "cached")
    assert [row["speedup"] for row in result["rows"]] == [None]


def test_the_environment_says_what_was_measured_on(table, tiny):
    one_way = "--threads", "1", "--products", "parts"
    _, result = table("--tokens", "2", "--techniques", "naive,engine", *one_way)
    found = result["environment"]
    weights = sum(p.nbytes for p in GPT2LMHeadModel.from_pretrained(tiny).parameters())
    assert found["weight_bytes"] == weights - CONTEXT * 32 * 4  # but the position embeddings
    assert (found["threads"], found["products"], found["repeats"]) == (1, "parts", 1)
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
@pytest.mark.in_turn(2)
def test_as_a_command_it_warns_of_nothing_and_draws_no_bar_in_a_file(tiny):
    command = [sys.executable, ROOT / "timed_generate.py", "--model", tiny, "--tokens", "2,4"]
    rows = [name for name in ROWS if LENGTHS in TECHNIQUES[name]]
    # The other workloads are of full size here.
    command += ["--workloads", "lengths", "--techniques", ",".join(rows)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0
    found = json.loads(done.stdout.splitlines()[-1])["rows"]
    assert [row["technique"] for row in found] == 2 * rows
    assert "run/s" not in done.stderr
    assert "warn" not in done.stderr.lower()


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


# ------------------------------------------------------------------------------------------- a race


@pytest.mark.parametrize(
    "yours", [{}, {"quantization": ["absmax"]}]
)  # in 8 bits it is held against 8 bits
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


# ---------------------------------------------------------------------------------------- bad input


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
            "The workload equal is served by cached,static,engine,llama,codes,kernel,",
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
    assert result["environment"]["prompt_tokens"] is None
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
