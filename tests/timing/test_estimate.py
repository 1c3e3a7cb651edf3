"""The command that prints a plan, and the row whose slots a plan has chosen."""

import json
import re
from types import SimpleNamespace

import pytest
import torch

from course.lab19_estimating import row as row
from gpt import SHIPPED
from solutions import estimating
from solutions.estimates.shapes import CARDS, MODELS
from tests.common.checkpoints import write_tiny
from timing import estimate
from timing.machine import Machine
from timing.table import Bench, workloads

MEASURED = Machine(bandwidth=1e10, flops=1e11)
CPU = torch.device("cpu")


@pytest.fixture
def plan_of(capsys):
    """Run the command, and return its lines by their names, and the text below the table."""

    def run(*args: str) -> dict[str, str]:
        estimate.main(args)
        table, _, below = capsys.readouterr().out.rpartition("Requests of ")
        lines = (re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in table.splitlines())
        return {**dict(line for line in lines if len(line) == 2), "below": below}

    return run


def test_the_plan_is_that_of_the_lab(plan_of):
    found = plan_of("Llama-3-8B", "--prompt", "2000", "--new", "500", "--tpot", "10")
    card = estimate.replace(CARDS["H100"], memory=72 * 10**9)
    batch, price = estimating.plan(MODELS["Llama-3-8B"], card, 2500, 2, 0.01)
    assert found["parameters"] == "8.03 billion"
    assert found["weights"] == "16.1 GB of 72.0 GB, 90% of the memory"
    assert found["KV cache"] == "131,072 bytes per token, 327.7 MB per request"
    assert found["largest batch"] == f"{batch} requests"
    assert found["10⁶ output tokens"] == f"${price:.3f}, without their prompts"
    assert float(found["TPOT, that batch"].split()[0]) <= 10
    assert "H100 SXM data sheet" in found["below"]


def test_a_model_that_needs_several_cards_gets_them(plan_of):
    found = plan_of("Mixtral-8x7B", "--card", "l4")
    assert found["parameters"] == "46.7 billion, 12.9 billion active per token"
    assert found["weights"].startswith("93.4 GB of 108.0 GB")  # of 5 cards
    assert plan_of("Mixtral-8x7B", "--cards", "8")["weights"].startswith("93.4 GB of 576.0 GB")


def test_a_limit_that_one_request_misses_is_told(plan_of):
    found = plan_of("Llama-3-8B", "--tpot", "1")
    assert found["largest batch"].startswith("0: one request alone")
    assert "decoding" not in found


def test_a_model_is_found_by_its_name_its_folder_and_its_file(plan_of, tmp_path):
    fable = SHIPPED / "fable"
    path = tmp_path / "other.json"
    path.write_bytes((fable / "config.json").read_bytes())
    found = [plan_of(str(name)) for name in ("fable", fable, path)]
    assert found[0] == found[1] == found[2]
    assert plan_of("fable-small")["parameters"] != found[0]["parameters"]


def test_this_machine_is_measured_and_has_no_price(plan_of, monkeypatch):
    monkeypatch.setattr(estimate, "measure_machine", lambda: MEASURED)
    found = plan_of("fable", "--card", "this")
    assert not {"10⁶ output tokens", "per joule", "10⁶ requests"} & found.keys()
    assert "numbers of 32 bits" in found["below"]
    assert "10⁶ requests" in plan_of("fable", "--card", "this", "--price", "2")


def test_mine_uses_the_learners_functions(plan_of, monkeypatch):
    own = SimpleNamespace(**{**vars(estimating), "max_rate": lambda *_: 12.5})
    monkeypatch.setattr("autograder.check.mine", lambda lab: own)
    assert plan_of("gpt2", "--mine")["with prompts"].startswith("at most 12.50 requests")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["gpt2", "--card", "H1000"], "there is no card 'H1000'. There are A100"),
        (["gpt2", "--width", "0"], "1, 2, 4 or 8 bytes, not '0'"),
        (["gpt2", "--cards", "0"], "'0' is not a whole number from 1 up"),
        (["gpt2", "--prompt", "9" * 20], "too many"),
        (["gpt2", "--tpot", "-1"], "'-1' is not a number above 0"),
        (["gpt2", "--prompt", "1000"], "gpt2 sees at most 1024 tokens"),
        (["Llama-3-70B", "--cards", "1"], "Llama-3-70B doesn't fit: take --cards 2"),
        (["no/such-model"], "There is no model 'no/such-model'"),
        (["wrong.json"], "9 of 8 experts"),
        (["."], "config.json is not a model's configuration (FileNotFoundError)"),
    ],
)
def test_what_cannot_be_planned_is_told_in_one_line(args, told, capsys, monkeypatch, tmp_path):
    sizes = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    experts = {"num_local_experts": 8, "num_experts_per_tok": 9, "intermediate_size": 4}
    config = {"model_type": "mixtral", **sizes, **experts}
    (tmp_path / "wrong.json").write_text(json.dumps(config), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(SystemExit):
        estimate.main(args)
    printed = capsys.readouterr()
    assert told in printed.err
    assert (printed.out, printed.err.count("\n")) == ("", 1)


def test_the_row_serves_in_the_slots_of_its_plan(tmp_path, monkeypatch):
    write_tiny(tmp_path, n_positions=64, n_embd=32)
    for name, size in (("RAGGED_REQUESTS", 6), ("RAGGED_PROMPT", (2, 8)), ("RAGGED_NEW", (2, 12))):
        monkeypatch.setattr(workloads, name, size)
    monkeypatch.setattr(row, "measured", lambda device: MEASURED)
    made = row.planned(Bench(tmp_path, CPU))
    assert 1 < made.size <= row.ENGINE_SIZE
    assert f" {made.size} slots" in made.about
    workload = workloads.ragged(made.model.config)
    ran = made.run(workload)
    assert [len(times) for times in ran.token_times] == workload.new_tokens
