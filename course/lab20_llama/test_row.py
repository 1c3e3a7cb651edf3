"""Its rows: a model of Llama's family beside a GPT-2, and a file's own codes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from course.lab20_llama import row as lab20
from solutions.families import load_model
from solutions.quantized_model import bytes_of
from tests.common.checkpoints import write_tiny
from tests.common.llamas import write_llama
from tests.common.timed import CONTEXT, assert_marked, rows_of
from timed_generate import TECHNIQUES
from timing.peers.gguf_file import write_gguf
from timing.table import Bench
from timing.table.workloads import LENGTHS, RAGGED

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(autouse=True)
def listed(monkeypatch) -> None:
    for name, row in lab20.ROWS.items():
        monkeypatch.setitem(TECHNIQUES, name, row)


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> Path:
    """A GPT-2 with a model of Llama's family beside it, for the same tokens."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("small", "small-llama"):
        (folder / name).mkdir()
    write_tiny(folder / "small", n_positions=CONTEXT, n_embd=32)
    write_llama(folder / "small-llama", max_position_embeddings=CONTEXT)
    return folder / "small"


@pytest.fixture(scope="module")
def coded(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("coded")
    write_llama(folder, "llama-tied")
    write_gguf(folder, folder / "model.gguf", "q4_1")
    return folder / "model.gguf"


ARGS = "--workloads", "lengths,ragged", "--tokens", "7", "--techniques"


def test_the_llama_beside_a_model_is_marked_and_tells_what_it_saves(table, both) -> None:
    printed, result = table("--model", str(both), *ARGS, "engine,llama")
    assert_marked("llama", printed, result)
    assert "# llama, 7 new tokens: another model." in printed
    gpt2, llama = rows_of(result, "ragged").values()
    assert llama["tokens_computed"] == gpt2["tokens_computed"]
    per_token = 2 * 3 * 2 * 32 * 4, 2 * 2 * 32 * 4  # both, layers, heads of 32 numbers, bytes
    assert "{:,} KV bytes a token, not {:,}".format(*per_token) in printed
    assert llama["kv_bytes"] / gpt2["kv_bytes"] == pytest.approx(per_token[0] / per_token[1], 0.3)


def test_the_files_own_codes_are_marked_and_tell_what_they_lose(table, coded) -> None:
    printed, result = table("--model", str(coded), *ARGS, "engine,codes")
    assert_marked("codes", printed, result)
    assert "# codes, 7 new tokens: its weights are rounded." in printed
    exact, codes = rows_of(result, "ragged").values()
    assert codes["weight_bytes"] == bytes_of(load_model(coded, codes=True))
    assert codes["kv_bytes"] == exact["kv_bytes"]


def test_without_what_they_need_they_are_left_out_with_a_sentence(table, both) -> None:
    llama = both.with_name("small-llama")
    _, result = table("--model", str(llama), *ARGS, "engine,llama,codes")
    assert {row["technique"] for row in result["rows"]} == {"engine"}
    told = result["not_timed"]
    assert "it compares a model with small-llama-llama, and there is none" in told["llama"]
    assert "isn't a GGUF file" in told["codes"]


def of_the_other_family(bench: Bench) -> Any:
    return replace(lab20.llama(bench), model=bench.load())


@pytest.mark.parametrize("kind", [LENGTHS, RAGGED])
def test_the_weights_of_the_model_beside_it_are_never_timed(kind, both, table, monkeypatch) -> None:
    monkeypatch.setitem(TECHNIQUES, "saboteur", {kind: of_the_other_family})
    args = "--workloads", kind, "--tokens", "40", "--techniques", "saboteur"
    with pytest.raises(SystemExit, match="saboteur does not generate what the naive model does"):
        table("--model", str(both), *args)
