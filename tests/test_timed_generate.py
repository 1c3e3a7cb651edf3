"""The timing table: what it counts, what it refuses, and that nothing wrong is ever timed."""

import inspect
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

import timed_generate
from gpt import read_config
from solutions import generate as lab1
from solutions import kv_cache as lab2
from timed_generate import TECHNIQUES, Loop, Run, Workload

ROOT = Path(__file__).resolve().parents[1]
CPU = torch.device("cpu")
CONTEXT = 64
ROW_KEYS = {
    "workload", "technique", "batch", "new_tokens", "tok_per_s", "ttft_s", "tpot_s",
    "tokens_computed", "kv_bytes", "speedup", "mbu",
}  # fmt: skip


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """A small random GPT-2 with large weights, so that no two best logits are close."""
    folder = tmp_path_factory.mktemp("tiny")
    for file in (ROOT / "models" / "fable").glob("tokenizer*"):
        shutil.copy(file, folder)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=4096, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=2,
        initializer_range=0.5, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Measure a little memory only, and leave torch's threads as they were."""
    monkeypatch.setattr(timed_generate, "BANDWIDTH_BYTES", 2**20)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def table(tiny, capsys):
    """Run the command and return what it printed, and the last line read as JSON."""

    def run(*args: str) -> tuple[str, dict]:
        timed_generate.main(["--model", str(tiny), "--repeats", "1", *args])
        printed = capsys.readouterr().out
        return printed, json.loads(printed.splitlines()[-1])

    return run


def prompt_tokens(result: dict) -> int:
    return result["environment"]["prompt_tokens"]


# ----------------------------------------------------------------------------------- the table


def test_default_techniques_are_timed_on_every_workload(table) -> None:
    _, result = table("--tokens", "8,4")
    found = [(row["new_tokens"], row["technique"]) for row in result["rows"]]
    names = ["naive", "cached-concat", "cached", "hf-nocache", "hf"]
    assert found == [(n, name) for n in (4, 8) for name in names]
    for row in result["rows"]:
        assert set(row) >= ROW_KEYS
        assert row["batch"] == 1
        assert row["tok_per_s_min"] <= row["tok_per_s"] <= row["tok_per_s_max"]
        assert 0 < row["ttft_s"] < row["total_s"]
        assert row["mbu"] > 0


def test_tokens_computed_and_kv_bytes_are_exact(table, tiny) -> None:
    _, result = table("--tokens", "1,7")
    prompt, per_token = prompt_tokens(result), lab2.kv_bytes_per_token(read_config(tiny))
    for row in result["rows"]:
        n = row["new_tokens"]
        if row["technique"] in ("naive", "hf-nocache"):
            assert row["tokens_computed"] == sum(range(prompt, prompt + n))
            assert row["kv_bytes"] == 0
        else:
            assert row["tokens_computed"] == prompt + n - 1
            assert row["kv_bytes"] == (prompt + n - 1) * per_token


def test_speedup_is_over_naive_on_the_same_workload(table) -> None:
    _, result = table("--tokens", "2,5", "--techniques", "cached,naive")
    total = {(row["workload"], row["technique"]): row["total_s"] for row in result["rows"]}
    for row in result["rows"]:
        assert row["speedup"] == total[row["workload"], "naive"] / row["total_s"]


def test_without_naive_there_is_no_speedup(table) -> None:
    _, result = table("--tokens", "3", "--techniques", "cached")
    assert [row["speedup"] for row in result["rows"]] == [None]


def test_one_token_has_no_tpot_and_no_mbu(table) -> None:
    _, result = table("--tokens", "1", "--techniques", "naive,hf")
    assert {(row["tpot_s"], row["mbu"]) for row in result["rows"]} == {(None, None)}


def test_the_table_fits_100_columns_and_names_every_row(table) -> None:
    printed, result = table("--tokens", "2,4")
    *text, _ = printed.splitlines()
    assert max(len(line) for line in text) <= 100
    for row in result["rows"]:
        assert any(row["workload"] in line for line in text)
        assert any(line.split()[:1] == [row["technique"]] for line in text)


def test_the_environment_says_what_was_measured_on(table, tiny) -> None:
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
def test_rows_whose_weights_fit_in_the_cache_are_marked(table, monkeypatch, cache, marked) -> None:
    monkeypatch.setattr(timed_generate, "last_level_cache", lambda device: cache)
    printed, result = table("--tokens", "3", "--techniques", "cached")
    assert [row["weights_fit_in_cache"] for row in result["rows"]] == [marked]
    assert ("%*" in printed) == marked
    assert ("* The weights fit" in printed) == marked


def test_files_are_written(table, tmp_path) -> None:
    path, picture = tmp_path / "times.json", tmp_path / "times.png"
    printed, _ = table("--tokens", "2,4", "--json", str(path), "--plot", str(picture))
    assert path.read_text().strip() == printed.splitlines()[-1]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_plot_of_one_token_is_drawn(table, tmp_path) -> None:
    picture = tmp_path / "times.png"
    table("--tokens", "1", "--techniques", "naive", "--plot", str(picture))
    assert picture.stat().st_size > 1000


@pytest.mark.slow
def test_as_a_command_it_shows_progress_and_warns_of_nothing(tiny) -> None:
    command = [sys.executable, ROOT / "timed_generate.py", "--model", tiny, "--tokens", "2,4"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0
    assert len(json.loads(done.stdout.splitlines()[-1])["rows"]) == 10
    assert "run/s" in done.stderr or "s/run" in done.stderr
    assert "warn" not in done.stderr.lower()


# ------------------------------------------------------------------------------------- measuring


def timed_run(token_times: list[float], kv_bytes: int = 0) -> Run:
    return Run(torch.zeros(1, 1), 10.0, token_times, 0, kv_bytes)


def test_a_row_holds_the_medians_and_the_bandwidth_share() -> None:
    workload = Workload("3 new tokens", torch.zeros(2, 4), 3)
    runs = [timed_run([10.0 + k, 10.0 + 2 * k, 10.0 + 3 * k], kv_bytes=600) for k in (1, 5, 2)]
    machine = {"last_level_cache_bytes": None, "memory_bandwidth_bytes_per_s": 1000}
    row = timed_generate.new_row(workload, "cached", runs, 5000, machine)
    assert (row["ttft_s"], row["tpot_s"], row["total_s"]) == (2, 2, 6)
    assert row["tok_per_s"] == pytest.approx(2 * 3 / 6)
    assert row["tok_per_s_min"] == pytest.approx(2 * 3 / 15)
    # Two decode steps read the keys and values of 5 and of 6 tokens; 6 tokens are 600 bytes.
    assert row["mbu"] == pytest.approx((5000 + 550) / 2 / 1000)


def test_growth_is_the_power_of_the_length() -> None:
    rows = [
        {"technique": name, "new_tokens": n, "total_s": n**p, "tokens_computed": 7 * n}
        for n in (16, 64, 256)
        for name, p in (("naive", 2), ("cached", 1))
    ]
    found = timed_generate.growth(rows)
    assert found["naive"]["total_time"] == pytest.approx(2)
    assert found["naive"]["total_time_last_two"] == pytest.approx(2)
    assert found["cached"]["total_time"] == pytest.approx(1)
    assert found["cached"]["tokens_computed"] == pytest.approx(1)


def test_growth_needs_two_lengths(table) -> None:
    printed, result = table("--tokens", "4", "--techniques", "naive")
    assert result["growth"] == {}
    assert "power" not in printed


def test_growth_is_printed(table) -> None:
    printed, result = table("--tokens", "4,16,32", "--techniques", "naive,cached")
    computed = {
        n: sum(range(prompt_tokens(result), prompt_tokens(result) + n)) for n in (4, 16, 32)
    }
    steepest = math.log(computed[32] / computed[4]) / math.log(32 / 4)
    assert result["growth"]["naive"]["tokens_computed"] == pytest.approx(steepest, rel=0.05)
    for name, powers in result["growth"].items():
        line = next(line for line in reversed(printed.splitlines()) if line.split()[:1] == [name])
        assert line.split()[1:] == [f"{power:.2f}" for power in powers.values()]


def test_every_repeat_starts_with_another_technique() -> None:
    assert timed_generate.rotated(["a", "b", "c"], 0) == ["a", "b", "c"]
    assert timed_generate.rotated(["a", "b", "c"], 4) == ["b", "c", "a"]


def test_each_timed_run_is_kept(table, tiny, monkeypatch) -> None:
    ran = []

    def prepare(folder: Path, device: torch.device) -> Loop:
        naive = timed_generate.prepare_naive(folder, device)

        def generate(model, input_ids, new_tokens):
            ran.append(new_tokens)
            return naive.generate(model, input_ids, new_tokens)

        return replace(naive, generate=generate)

    monkeypatch.setitem(TECHNIQUES, "new", prepare)
    _, result = table("--tokens", "2,3", "--techniques", "new", "--repeats", "4")
    assert ran == [2, 3] + [2, 3] * 4  # the verified runs, which warm up, and the repeats
    assert [row["technique"] for row in result["rows"]] == ["new", "new"]


# ----------------------------------------------------------------------------------- verification


def wrong_at_the_end(ids, new_tokens):
    ids[0, -1] = (ids[0, -1] + 1) % 4096
    return ids


def one_too_few(ids, new_tokens):
    return ids[:, :-1]


def changes_the_prompt(ids, new_tokens):
    ids[0, 0] = (ids[0, 0] + 1) % 4096
    return ids


def only_new_tokens(ids, new_tokens):
    return ids[:, -new_tokens:]


@pytest.mark.parametrize(
    "wrong", [wrong_at_the_end, one_too_few, changes_the_prompt, only_new_tokens]
)
def test_a_wrong_technique_is_never_timed(tiny, monkeypatch, capsys, wrong) -> None:
    def prepare(folder: Path, device: torch.device) -> Loop:
        cached = timed_generate.prepare_cached(folder, device)

        def generate(model, input_ids, new_tokens):
            return wrong(cached.generate(model, input_ids, new_tokens), new_tokens)

        return replace(cached, generate=generate)

    monkeypatch.setitem(TECHNIQUES, "mistaken", prepare)
    with pytest.raises(SystemExit) as stopped:
        timed_generate.main(["--model", str(tiny), "--tokens", "4", "--techniques", "mistaken"])
    assert str(stopped.value).startswith("Stopped: mistaken")  # a text exits with status 1
    assert "tok/s" not in capsys.readouterr().out


def test_a_technique_that_goes_wrong_later_stops_the_timing(tiny, monkeypatch) -> None:
    """State that survives a run shows only in the next one."""

    def prepare(folder: Path, device: torch.device) -> Loop:
        naive = timed_generate.prepare_naive(folder, device)
        calls = []

        def generate(model, input_ids, new_tokens):
            calls.append(new_tokens)
            ids = naive.generate(model, input_ids, new_tokens)
            return ids if len(calls) == 1 else wrong_at_the_end(ids, new_tokens)

        return replace(naive, generate=generate)

    monkeypatch.setitem(TECHNIQUES, "stateful", prepare)
    with pytest.raises(SystemExit, match="stateful does not generate"):
        timed_generate.main(["--model", str(tiny), "--tokens", "4", "--techniques", "stateful"])


class Scripted(nn.Module):
    """A model that gives the same logits at every position, whatever it reads."""

    def __init__(self, logits: list[float]) -> None:
        super().__init__()
        self.logits = torch.tensor(logits)

    def forward(self, inputs, position_ids):
        return self.logits.expand(*inputs.shape, -1)


def verify(ids: list[int], logits: list[float]) -> str | None:
    """Against a prompt of two tokens, 0 0, that naive continued by 1 1 1."""
    workload = Workload("3 new tokens", torch.tensor([[0, 0]]), 3)
    expected = torch.tensor([[0, 0, 1, 1, 1]])
    return timed_generate.verify("new", workload, torch.tensor([ids]), expected, Scripted(logits))


def test_equal_tokens_need_no_excuse() -> None:
    assert verify([0, 0, 1, 1, 1], [0.0, 1.0, 1.0]) is None


def test_a_tie_is_accepted_and_told() -> None:
    told = verify([0, 0, 1, 2, 1], [0.0, 10.0, 10.0 - 1e-4])
    assert told is not None
    assert "position 3" in told


def test_the_hair_is_relative_to_the_logits() -> None:
    assert verify([0, 0, 2, 1, 1], [-1000.0, -999.0, -999.05]) is not None
    with pytest.raises(SystemExit):
        verify([0, 0, 2, 1, 1], [0.0, 0.1, 0.05])


def test_beyond_a_tie_every_token_must_still_be_a_best_one() -> None:
    with pytest.raises(SystemExit):
        verify([0, 0, 2, 1, 0], [0.0, 10.0, 10.0 - 1e-4])


def test_a_tied_row_is_marked_and_the_tie_printed(table, monkeypatch) -> None:
    def tied(name, workload, ids, expected_ids, naive_model):
        return "cached, 3 new tokens: a tie." if name == "cached" else None

    monkeypatch.setattr(timed_generate, "verify", tied)
    printed, _ = table("--tokens", "3", "--techniques", "naive,cached")
    assert "cached ~" in printed
    assert "naive ~" not in printed
    assert "~ cached, 3 new tokens: a tie." in printed


# ------------------------------------------------------------------------------------------ mine


def keep(folder: Path, exercise: str, thing: Callable) -> None:
    lab, name = exercise.split(".", 1)
    (folder / lab).mkdir(parents=True, exist_ok=True)
    (folder / lab / f"{name}.py").write_text(inspect.getsource(inspect.unwrap(thing)))


@pytest.fixture
def kept(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("MINE_FOLDER", str(tmp_path / "mine"))
    return tmp_path / "mine"


def test_mine_is_the_reference_until_something_passed(table, kept) -> None:
    printed, result = table("--tokens", "3", "--techniques", "naive", "--mine")
    assert [row["technique"] for row in result["rows"]] == ["naive", "mine"]
    assert "no loop of yours has passed its check yet" in printed


def test_mine_is_the_generate_of_lab_1(table, kept) -> None:
    keep(kept, "generate.generate", lab1.generate)
    printed, result = table("--tokens", "3", "--techniques", "naive", "--mine")
    assert "your generate (lab 1)" in printed
    naive, mine = result["rows"]
    assert mine["tokens_computed"] == naive["tokens_computed"]


def test_mine_is_the_threaded_loop_of_lab_2(table, kept) -> None:
    keep(kept, "generate.generate", lab1.generate)
    keep(kept, "kv_cache.generate_threaded", lab2.generate_threaded)
    printed, result = table("--tokens", "3", "--techniques", "cached-concat", "--mine")
    assert "your KV cache of tuples (lab 2)" in printed
    concatenated, mine = result["rows"]
    assert mine["kv_bytes"] == concatenated["kv_bytes"] > 0


def test_mine_is_the_cache_of_lab_2(table, kept) -> None:
    for exercise in ("kv_cache.KVCache.attend", "kv_cache.KVCache.truncate"):
        keep(kept, exercise, lab2.KVCache)
    printed, result = table("--tokens", "3", "--techniques", "cached", "--mine")
    assert "your KVCache (lab 2)" in printed
    cached, mine = result["rows"]
    assert mine["kv_bytes"] == cached["kv_bytes"] > 0


# ------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--techniques", "naive,cashed"], "Did you mean 'cached'?"),
        (["--techniques", "zzz"], "There are naive, cached-concat, cached, hf-nocache, hf, mine."),
        (["--tokens", "16,x"], "'x' is not a whole number"),
        (["--tokens", ""], "'' is not a whole number"),
        (["--tokens", "0"], "'0' is not a whole number from 1 up"),
        (["--tokens", "-5"], "'-5' is not a whole number from 1 up"),
        (["--tokens", "4,64"], "--tokens 64 is too long"),
        (["--threads", "0"], "'0' is not a whole number from 1 up"),
        (["--threads", "100000"], "is too many: this machine has"),
        (["--repeats", "0"], "'0' is not a whole number from 1 up"),
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
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(timed_generate, "memory_bandwidth", lambda device: pytest.fail("worked"))
    with pytest.raises(SystemExit) as stopped:
        timed_generate.main(["--model", str(tiny), *args])
    assert stopped.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert sentence in printed.err
    assert printed.err.count("\n") == 1


def test_a_model_without_tokenizer_is_refused(tiny, tmp_path, capsys) -> None:
    for name in ("config.json", "model.safetensors"):
        shutil.copy(tiny / name, tmp_path)
    with pytest.raises(SystemExit):
        timed_generate.main(["--model", str(tmp_path)])
    assert "has no tokenizer" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_counts_are_the_same(table) -> None:
    _, here = table("--tokens", "4")
    _, there = table("--tokens", "4", "--device", "cuda")
    for one, other in zip(here["rows"], there["rows"], strict=True):
        assert one["tokens_computed"] == other["tokens_computed"]
        assert one["kv_bytes"] == other["kv_bytes"]
