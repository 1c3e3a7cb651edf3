"""Other engines on the table: chosen, verified, told of where they are missing or fail.

Stand-ins take the engines' places, so that this needs none of them; what is installed here is then
held against the naive loop, too.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import timed_generate
import timing.machine
import timing.peers.worker
import timing.table.workloads
from gpt import GPTLMHead, load_tokenizer, read_config
from solutions import generate as lab1
from tests.common.checkpoints import write_tiny
from tests.common.commands import resize
from tests.common.tools import ABSENCE
from timing.peers.catalogue import PEERS, Peer, missing
from timing.peers.row import PeerRow
from timing.peers.worker import PeerFailed, Worker, Workers
from timing.table import Bench, NotTimed
from timing.table.verify import difference
from timing.table.workloads import LENGTHS, RAGGED, Workload

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")
CONTEXT = 40
EOS = 0  # of the shipped tokenizer


def continued(model: GPTLMHead, prompt: list[int], limit: int) -> list[int]:
    return lab1.generate(model, torch.tensor([prompt]), limit)[0, len(prompt) :].tolist()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """A small random GPT-2 which writes its EOS in the middle of a text."""
    folder = tmp_path_factory.mktemp("tiny")
    model = write_tiny(folder, n_positions=CONTEXT, n_embd=64)
    written = continued(GPTLMHead.from_pretrained(folder), [5, 6, 7], 3)
    weights = model.transformer.wte.weight.data
    weights[EOS] = 1.5 * weights[written[2]]  # it takes that token's place
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def naive(tiny) -> GPTLMHead:
    return GPTLMHead.from_pretrained(tiny)


def peer_row(kind: str, folder: Path, workers: Any) -> PeerRow:
    return PeerRow("ct2", kind, workers, Bench(folder, CPU))


def requests(prompts: list[list[int]], new_tokens: list[int], kind: str = RAGGED) -> Workload:
    return Workload(kind, kind, "", prompts, new_tokens)


# ------------------------------------------------------------------------------- what is missing


def test_what_is_missing_on_a_device_is_told_with_what_would_install_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if "llama" in name else name)
    told = dict(missing("cpu"))
    for name in ("llama.cpp", "llama.cpp-q8"):
        assert told[name] == (
            "not installed. To install it: python -m pip install llama-cpp-python --constraint "
            "constraints.txt"
        )
    assert "GPU" in told["vllm"]
    assert "Llama" in told["gpt-fast"]
    assert set(told) == {"llama.cpp", "llama.cpp-q8", "vllm", "gpt-fast"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    told = dict(missing("cuda"))
    assert set(told) == {*PEERS, "gpt-fast"}
    assert "on the CPU" in told["ct2"]
    assert "pip install vllm" in told["vllm"]


# ------------------------------------------------------------------------- the engine's process


NOISY = """
import sys, types
from timing.peers import __main__ as process, catalogue, engine
class Noisy:
    def __init__(self, given):
        print("loading", given.folder.name, given.precision, given.threads)
    def serve(self, prompts, new_tokens, size):
        print("serving", size)
        outputs = [prompt[:n] for prompt, n in zip(prompts, new_tokens)]
        return engine.Served(100.0, outputs, [[100.5 + i for i in range(n)] for n in new_tokens])
sys.modules["timing.peers.noisy"] = types.SimpleNamespace(Noisy=Noisy)
catalogue.PEERS["noisy"] = catalogue.Peer("Noisy", "noisy.Noisy", {}, "int8")
process.main("noisy", "some/folder", "2", "scratch")
"""


def test_orders_are_answered_by_seconds_from_the_start_and_prints_stay_off_the_wire(tmp_path):
    worker = Worker([sys.executable, "-c", NOISY], 2, tmp_path / "log")
    assert worker.serve([[3, 9], [5]], [2, 1], 4) == ([[3, 9], [5]], [[0.5, 1.5], [0.5]])
    assert worker.serve([[1]], [1], 1) == ([[1]], [[0.5]])
    worker.close()
    printed = (tmp_path / "log").read_text().splitlines()
    assert printed[:3] == ["loading folder int8 2", "serving 4", "serving 1"]


def worker_of(code: str, folder: Path, threads: int = 1) -> Worker:
    ready = "import json, os, sys, time; print('{}', flush=True); sys.stdin.readline()"
    return Worker([sys.executable, "-c", f"{ready}\n{code}"], threads, folder / "log")


def test_the_threads_are_set_before_anything_is_imported(tmp_path):
    tell = "print(json.dumps({'outputs': dict(os.environ), 'token_times': []}))"
    told: Any = worker_of(tell, tmp_path, threads=2).serve([], [], 1)[0]
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        assert told[name] == "2"
    assert told["OMP_WAIT_POLICY"] == "passive"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("sys.exit('no such kernel')", "ended: no such kernel"),
        ("raise ValueError('no such kernel')", "ended: ValueError: no such kernel"),
        ("os._exit(3)", "exit status 3, without a message"),
        ("print('loaded', file=sys.stderr); os.abort()", "ended: signal SIGABRT"),
        ("time.sleep(600)", "stopped after 1 seconds without an answer"),
    ],
)
def test_an_engine_that_dies_or_hangs_is_gone_and_says_why(tmp_path, monkeypatch, code, reason):
    worker = worker_of(code, tmp_path)
    if "sleep" in code:
        monkeypatch.setattr(timing.peers.worker, "ANSWER_SECONDS", 1)
    with pytest.raises(PeerFailed, match=reason):
        worker.serve([[1]], [1], 1)
    assert worker.process.poll() is not None
    worker.close()  # once more does no harm


def test_an_engine_that_cannot_load_is_started_once(tiny, monkeypatch):
    starts = []

    def start(*arguments):
        starts.append(arguments)
        raise PeerFailed("libengine.so is missing")

    monkeypatch.setattr(timing.peers.worker, "Worker", start)
    with Workers() as workers:
        for _ in range(2):
            with pytest.raises(PeerFailed, match="libengine"):
                workers.get("ct2", tiny, 1)
    assert len(starts) == 1


# --------------------------------------------------------------------------------- the best choice


class Paced:
    """In place of Workers: engines whose seconds a token are given by threads and size."""

    def __init__(self, pace):
        self.pace, self.asked = pace, []

    def get(self, name, folder, threads):
        self.threads = threads
        return self

    def serve(self, prompts, new_tokens, size):
        self.asked.append((self.threads, size, new_tokens))
        pace = self.pace(self.threads, size)
        times = [[pace * (i + 1) for i in range(n)] for n in new_tokens]
        return [[1] * n for n in new_tokens], times


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr("timing.peers.row.MOST_THREADS", 4)
    monkeypatch.setitem(PEERS, "ct2", replace(PEERS["ct2"], modules={"json": "pytest"}))


@pytest.mark.usefixtures("two_cores")
def test_the_best_threads_and_size_are_found_once_by_a_short_trial(tiny):
    paced = Paced(lambda threads, size: abs(size - 16) + threads)
    row = peer_row(RAGGED, tiny, paced)
    workload = requests([[1], [2]], [8, 9])
    run = row.run(workload)
    assert (run.notes["threads"], run.batch) == (1, 16)
    trials = 2 * [(t, size, [2, 3]) for t in (1, 2) for size in (8, 16, 32, 64)]
    assert sorted(paced.asked[:-1]) == sorted(trials)
    assert paced.asked[-1] == (1, 16, [8, 9])
    row.run(workload)
    assert paced.asked[-2] == paced.asked[-1]
    assert "threads: 1 (best of 1, 2), at a time: 16 (best of 8, 16, 32, 64)" in row.about


@pytest.mark.usefixtures("two_cores")
def test_for_one_prompt_the_trial_is_as_long_whatever_is_asked_for(tiny):
    paced = Paced(lambda threads, size: 1 / threads)
    row = peer_row(LENGTHS, tiny, paced)
    run = row.run(requests([[1] * 10], [3], LENGTHS))
    assert (run.notes["threads"], run.batch) == (2, 1)
    assert paced.asked[0] == (1, 1, [CONTEXT - 10])
    assert {threads for threads, *_ in paced.asked} == {1, 2}  # no more than there are cores
    assert "threads: 2 (best of 1, 2)" in row.about
    assert "at a time" not in row.about


@pytest.mark.usefixtures("two_cores")
def test_threads_that_fail_are_passed_over_unless_all_do(tiny):
    def pace(threads, size):
        if threads in failing:
            raise PeerFailed(f"{threads} threads fail")
        return 1

    failing, paced = {2}, Paced(pace)
    assert peer_row(RAGGED, tiny, paced).run(requests([[1]], [4])).notes["threads"] == 1
    assert sum(threads == 2 for threads, *_ in paced.asked) == 1
    failing = {1, 2}
    row = peer_row(RAGGED, tiny, paced)
    for _ in range(2):
        with pytest.raises(PeerFailed, match="1 threads fail"):
            row.run(requests([[1]], [4]))


@pytest.mark.usefixtures("two_cores")
def test_a_gguf_is_taken_as_it_is_by_llama_cpp_and_by_no_other(tmp_path, monkeypatch):
    monkeypatch.setitem(PEERS, "llama.cpp", replace(PEERS["ct2"], title="llama.cpp"))
    bench = Bench(tmp_path / "model.gguf", CPU)
    row = PeerRow("llama.cpp", RAGGED, None, bench)
    assert row.folder == bench.folder
    assert row.lossy is not None  # its weights are the file's, and it computes on their codes
    assert row.about.endswith("on the same file")
    with pytest.raises(NotTimed, match=r"only llama\.cpp takes"):
        PeerRow("ct2", RAGGED, None, bench)


# ------------------------------------------------------------------------------- rounded weights


def test_how_far_rounded_weights_differ_is_told():
    workload = requests([[9, 9], [9]], [4, 4])
    expected = [[9, 9, 1, 2, 3, 4], [9, 1, 2, 3, 4]]
    told = difference("q8", workload, [[9, 9, 1, 2, 3, 4], [9, 1, 2, 0, 4]], expected)
    assert "1 of 2 texts equal the reference's" in told
    assert "75% of the new tokens come before the first difference" in told
    assert "2 of 2 texts" in difference("q8", workload, expected, expected)


@pytest.mark.parametrize("wrong", [[9, 9, 1, 2, 3], [9, 8, 1, 2, 3, 4]])
def test_rounded_weights_excuse_no_other_prompt_or_length(wrong):
    with pytest.raises(SystemExit, match="Stopped: q8"):
        difference("q8", requests([[9, 9]], [4]), [wrong], [[9, 9, 1, 2, 3, 4]])


# -------------------------------------------------------------------------------------- the table

STAND_IN = """
import json, os, sys, time
name, known = sys.argv[1], json.load(open(os.environ["CONTINUATIONS"]))
if name == "unloadable":
    sys.exit("libengine.so is missing")
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    order = json.loads(line)
    if name == "dying" and len(order["prompts"]) > 1:
        sys.exit("out of memory")
    if name == "hanging":
        time.sleep(600)
    outputs = [known[str(p)][:n] for p, n in zip(order["prompts"], order["new_tokens"])]
    if name in ("wrong", "rounded"):
        outputs[0][-1] = (outputs[0][-1] + 1) % 4096
    times = [[0.001 * (i + 1) for i in range(len(output))] for output in outputs]
    print(json.dumps({"outputs": outputs, "token_times": times}), flush=True)
"""


@pytest.fixture
def table(tiny, naive, tmp_path, monkeypatch, capsys):
    """Run the command with stand-ins of these names; return what it printed, and the JSON."""
    ragged = {"RAGGED_REQUESTS": 5, "RAGGED_PROMPT": (2, 8), "RAGGED_NEW": (2, 12)}
    resize(monkeypatch, timing.table.workloads, **ragged)
    resize(monkeypatch, timing.machine, BANDWIDTH_BYTES=2**20)
    config = read_config(tiny)
    [prompt] = load_tokenizer(tiny)([timing.table.workloads.PROMPT]).input_ids
    known = {
        str(p): continued(naive, p, CONTEXT - len(p))
        for p in [prompt, *timing.table.workloads.ragged(config).prompts]
    }
    (tmp_path / "known.json").write_text(json.dumps(known))
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    monkeypatch.setenv("CONTINUATIONS", str(tmp_path / "known.json"))
    monkeypatch.setattr(
        timing.peers.worker, "COMMAND", [sys.executable, str(tmp_path / "stand_in.py")]
    )
    monkeypatch.setattr("timing.peers.row.MOST_THREADS", 1)
    for name in list(PEERS):
        monkeypatch.delitem(PEERS, name)

    def run(*args: str, peers: list[str]) -> tuple[str, dict]:
        for name in peers:
            precision = "int8" if name == "rounded" else "float32"
            peer = Peer("Stand-in", "", {"json": "pytest"}, precision)
            monkeypatch.setitem(PEERS, name, peer)
        first = ["--model", str(tiny), "--repeats", "1", "--techniques", "cached", "--peers"]
        timed_generate.main([*first, *args])
        printed = capsys.readouterr().out
        return printed, json.loads(printed.splitlines()[-1])

    return run


@pytest.mark.slow
def test_peers_have_rows_like_every_other(table):
    args = "--workloads", "lengths,ragged", "--tokens", "4,8"
    printed, result = table(*args, peers=["right", "rounded"])
    found = [(row["workload"], row["technique"]) for row in result["rows"]]
    workloads = ("4 new tokens", "8 new tokens", "ragged")
    assert found == [(w, name) for w in workloads for name in ("cached", "right", "rounded")]
    for row in result["rows"]:
        if row["technique"] != "cached":
            assert row["tok_per_s"] > 0
            assert row["threads"] == 1
            assert row["tokens_computed"] is row["kv_bytes"] is row["mbu"] is None
    assert result["growth"]["right"]["tokens_computed"] is None
    assert result["growth"]["right"]["total_time"] == pytest.approx(1)
    *text, _ = printed.splitlines()
    assert max(len(line) for line in text if "pip install" not in line) <= 100
    assert "rounded#" in printed
    assert "right#" not in printed
    assert "# rounded, ragged: its weights are rounded. 4 of 5 texts equal" in printed
    assert "# rounded, 4 new tokens: its weights are rounded. 0 of 1 texts equal" in printed
    assert "can't be seen from outside" in printed


@pytest.mark.slow
def test_those_that_fail_have_no_row_and_stop_nothing(table, monkeypatch):
    monkeypatch.setattr(timing.peers.worker, "ANSWER_SECONDS", 3)
    failing = ["unloadable", "dying", "hanging", "wrong"]
    args = "--workloads", "lengths,ragged", "--tokens", "4"
    printed, result = table(*args, peers=[*failing, "right"])
    found = [(row["workload"], row["technique"]) for row in result["rows"]]
    assert found == [
        *(("4 new tokens", name) for name in ("cached", "dying", "right")),
        *(("ragged", name) for name in ("cached", "right")),
    ]
    told = result["not_timed"]
    assert told["unloadable"] == (
        "4 new tokens, ragged: its process ended: libengine.so is missing"
    )
    assert told["dying"] == "ragged: its process ended: out of memory"
    assert told["hanging"].startswith("4 new tokens, ragged: stopped after 3 seconds")
    assert "4 new tokens: wrong does not generate what the naive model does" in told["wrong"]
    assert "Llama" in told["gpt-fast"]
    for name, reason in told.items():
        assert sum(line.split()[:1] == [name] for line in printed.splitlines()) >= 1
        assert reason in printed
    assert "Stopped" not in printed


@pytest.mark.slow
def test_no_process_and_no_file_is_left(table, monkeypatch):
    made = []

    class Noted(Worker):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(timing.peers.worker, "Worker", Noted)
    table("--workloads", "lengths", "--tokens", "4", peers=["right"])
    [worker] = made
    assert worker.process.poll() is not None
    assert not worker.log.parent.exists()


@pytest.mark.slow
def test_only_chosen_peers_have_rows_or_are_told_missing(table, monkeypatch):
    monkeypatch.setitem(PEERS, "elsewhere", Peer("Not chosen", "", {}, needs_cuda=True))
    args = "--workloads", "lengths", "--tokens", "4", "--peers", "right,gpt-fast"
    _, result = table(*args, peers=["right", "unloadable"])
    assert [row["technique"] for row in result["rows"]] == ["cached", "right"]
    assert result["not_timed"].keys() == {"gpt-fast"}


def test_without_the_option_no_peer_is_told_missing(table, tiny, capsys):
    timed_generate.main(
        ["--model", str(tiny), "--workloads", "lengths", "--tokens", "2", "--techniques", "cached"]
    )
    printed = capsys.readouterr().out
    assert "Not on the table" not in printed
    assert json.loads(printed.splitlines()[-1])["not_timed"] == {}


def test_peers_where_none_would_run_are_refused(table, capsys):
    with pytest.raises(SystemExit):
        table("--workloads", "sampled", "--techniques", "sampled", peers=["right"])
    told = capsys.readouterr().err
    assert "--peers adds to the workloads lengths,ragged,equal, not to sampled" in told


# ------------------------------------------------------------------------------- the real engines


def with_its_needs(name: str) -> pytest.param:
    needed = [module for module in PEERS[name].modules if module in ABSENCE]
    needed += ["cuda"] if PEERS[name].needs_cuda else []
    return pytest.param(name, marks=[pytest.mark.needs(tool) for tool in needed])


@pytest.mark.slow
@pytest.mark.parametrize("name", [with_its_needs(name) for name in PEERS])
def test_a_real_engine_writes_what_the_naive_loop_writes(tiny, naive, name):
    prompts, limits = [[5, 6, 7], [8] * 9, [11], [12, 13], [14]], [6, 3, 9, 1, 12]
    expected = [continued(naive, p, n) for p, n in zip(prompts, limits, strict=True)]
    assert EOS in expected[0][:-1]  # and nothing ends there
    with Workers() as workers:
        for threads in range(1, min(2, os.cpu_count() or 1) + 1):
            worker = workers.get(name, tiny, threads)
            for size in (1, 2, 8):
                outputs, token_times = worker.serve(prompts, limits, size)
                assert list(map(len, outputs)) == list(map(len, token_times)) == limits
                for times in token_times:
                    assert times[0] > 0
                    assert times == sorted(times)
                if PEERS[name].precision == "float32":
                    assert outputs == expected


@pytest.mark.needs("gguf")
@pytest.mark.parametrize("precision", ["float32", "q8_0"])
def test_a_gguf_file_holds_the_model_and_its_tokenizer(tiny, naive, tmp_path, precision):
    import gguf

    path = tmp_path / "model.gguf"
    command = [sys.executable, "-m", "timing.peers.gguf_file", tiny, path, precision]
    subprocess.run(command, check=True, cwd=ROOT)
    reader = gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    config = naive.config
    assert fields["general.architecture"] == "gpt2"
    assert fields["gpt2.context_length"] == config.n_positions
    assert fields["gpt2.embedding_length"] == config.n_embd
    assert fields["gpt2.feed_forward_length"] == 4 * config.n_embd
    assert fields["gpt2.block_count"] == config.n_layer
    assert fields["gpt2.attention.head_count"] == config.n_head
    assert fields["gpt2.attention.layer_norm_epsilon"] == pytest.approx(config.layer_norm_epsilon)
    tokenizer = load_tokenizer(tiny)
    assert fields["tokenizer.ggml.tokens"] == tokenizer.convert_ids_to_tokens(range(4096))
    assert fields["tokenizer.ggml.merges"][0] == "Ġ t"
    assert fields["tokenizer.ggml.eos_token_id"] == EOS

    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT2, config.n_layer)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    weights = naive.transformer.state_dict()
    assert len(tensors) == len(weights)
    for name, weight in weights.items():
        tensor = tensors[names.get_name(name, try_suffixes=(".weight", ".bias"))]
        is_linear = weight.ndim == 2 and name.startswith("h.")
        found = torch.tensor(gguf.dequantize(tensor.data, tensor.tensor_type))
        rounded = precision == "q8_0" and weight.ndim == 2 and name != "wpe.weight"
        assert (tensor.tensor_type == gguf.GGMLQuantizationType.Q8_0) == rounded
        step = weight.abs().max() / 127 if rounded else 0
        assert ((weight.T if is_linear else weight) - found).abs().max() <= step
