"""The command that times the kernels: what it runs, and what it prints."""

import re
import sys
from pathlib import Path

import pytest
import torch

from gpt import Linear
from solutions.kv_cache import CachedLMHead, KVCache
from solutions.quantized_model import Int4Kernel, Int8Embedding, Int8Kernel, matrices
from tests.common.checkpoints import write_tiny
from timing import int8, stopwatch

SIZES = {"CACHED": 5, "PROMPT": 20, "SHAPES": ((32, 48), (64, 24)), "LARGEST": (32, 33)}


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small model, few repeats, and no option of pytest's."""
    write_tiny(tmp_path, n_positions=32, n_embd=32)
    monkeypatch.setattr(sys, "argv", ["int8"])
    monkeypatch.setattr(stopwatch, "MANY", 2)
    monkeypatch.setattr(int8, "MODEL", str(tmp_path))
    for name, value in SIZES.items():
        monkeypatch.setattr(int8, name, value)


@pytest.fixture
def model(tmp_path: Path) -> CachedLMHead:
    return CachedLMHead.from_pretrained(tmp_path)


def test_every_model_and_every_shape_has_its_times(capsys: pytest.CaptureFixture[str]) -> None:
    int8.main()
    about, models, shapes = capsys.readouterr().out.split("\n\n")
    assert "threads: " in about
    assert "medians of interleaved repeats" in about
    head, _, *rows, sizes = cells(models)
    assert head[1:] == [
        "float32", "int8", "int4", "int8, head in int8", "int4, head in int8",
    ]  # fmt: skip
    assert [row[0] for row in rows] == [
        "decode, batch of 1", "decode, batch of 8", "prefill of 20",
    ]  # fmt: skip
    assert sizes[0] == "MB of weights"
    exact, *_, smaller, smallest = map(float, sizes[1:])
    assert exact > smaller >= smallest
    head, _, *products = cells(shapes)
    assert head == ["one row times", "F.linear", "int8", "int4"]
    assert [row[0] for row in products] == ["32 x 48", "64 x 24", "32 x 33"]
    assert [row[3] == "-" for row in products] == [False, True, True]
    for cell in [cell for row in rows + products for cell in row[1:] if cell != "-"]:
        assert re.fullmatch(r"\d+\.\d{3}, \d+\.\dx", cell)


def cells(table: str) -> list[list[str]]:
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_the_models_differ_in_their_layers_and_the_exact_one_stays(model: CachedLMHead) -> None:
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    found = int8.models(model)
    widening = [made.get_submodule("transformer.h.0.mlp.c_fc") for made in found.values()]
    assert list(map(type, widening)) == [Linear, *[Int8Kernel, Int4Kernel] * 2]
    heads = [isinstance(made.transformer.wte, Int8Embedding) for made in found.values()]
    assert heads == [False, False, False, True, True]
    assert found["float32"] is model
    assert len(matrices(model)) == 8
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


@pytest.mark.parametrize(("batch", "start", "tokens"), [(1, 5, 1), (3, 5, 1), (1, 0, 20)])
def test_a_forward_is_the_same_as_often_as_it_is_called(
    model: CachedLMHead, batch: int, start: int, tokens: int
) -> None:
    run = int8.forward(model, batch, start, tokens)
    logits, again = run(), run()
    assert torch.equal(logits, again)
    assert logits.shape == (batch, tokens, 4096)
    if start == 0:
        kv_cache = KVCache(model.config, 1, tokens)
        ids = torch.arange(tokens)[None]
        torch.testing.assert_close(logits, model(ids, ids, kv_cache))
