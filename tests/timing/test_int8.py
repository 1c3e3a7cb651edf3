"""The command that times the kernels: what it runs, and what it prints."""

import re

import pytest
import torch

from gpt import Linear
from solutions.kv_cache import CachedLMHead, KVCache
from solutions.quantized_model import Int4Kernel, Int8Embedding, Int8Kernel, matrices
from tests.common.checkpoints import write_tiny
from tests.common.commands import resize, table_in
from timing import int8, stopwatch


@pytest.fixture
def model(tmp_path) -> CachedLMHead:
    write_tiny(tmp_path, n_positions=32, n_embd=32)
    return CachedLMHead.from_pretrained(tmp_path)


@pytest.mark.usefixtures("model")
def test_every_model_and_every_shape_has_its_times(tmp_path, monkeypatch, capsys):
    sizes = {"CACHED": 5, "PROMPT": 20, "SHAPES": ((32, 48), (64, 24)), "LARGEST": (32, 33)}
    resize(monkeypatch, int8, MODEL=str(tmp_path), **sizes)
    monkeypatch.setattr(stopwatch, "MANY", 2)
    int8.main()
    about, models, shapes = capsys.readouterr().out.split("\n\n")
    assert "threads: " in about
    head, *rows, sizes = table_in(models)
    kernels = ["int8", "int4"]
    assert head[1:] == ["float32", *kernels, *(f"{kernel}, head in int8" for kernel in kernels)]
    assert [row[0] for row in rows] == [
        *(f"decode, batch of {n}" for n in (1, 8)),
        "prefill of 20",
    ]
    assert sizes[0] == "MB of weights"
    exact, *_, smaller, smallest = map(float, sizes[1:])
    assert exact > smaller >= smallest
    head, *products = table_in(shapes)
    assert head == ["one row times", "F.linear", *kernels]
    assert [row[0] for row in products] == ["32 x 48", "64 x 24", "32 x 33"]
    assert [row[3] == "-" for row in products] == [False, True, True]
    for cell in [cell for row in rows + products for cell in row[1:] if cell != "-"]:
        assert re.fullmatch(r"\d+\.\d{3}, \d+\.\dx", cell)


def test_the_models_differ_in_their_layers_and_the_exact_one_stays(model):
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    found = int8.models(model)
    widening = [made.get_submodule("transformer.h.0.mlp.c_fc") for made in found.values()]
    assert list(map(type, widening)) == [Linear, *[Int8Kernel, Int4Kernel] * 2]
    heads = [isinstance(made.transformer.wte, Int8Embedding) for made in found.values()]
    assert heads == [False, False, False, True, True]
    assert found["float32"] is model
    assert len(matrices(model)) == 8
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


@pytest.mark.parametrize(("batch", "start", "tokens"), [(3, 5, 1), (1, 0, 20)])
def test_a_forward_is_the_same_as_often_as_it_is_called(model, batch, start, tokens):
    run = int8.forward(model, batch, start, tokens)
    logits, again = run(), run()
    assert torch.equal(logits, again)
    assert logits.shape == (batch, tokens, 4096)
    if start == 0:
        kv_cache = KVCache(model.config, 1, tokens)
        ids = torch.arange(tokens)[None]
        torch.testing.assert_close(logits, model(ids, ids, kv_cache))
