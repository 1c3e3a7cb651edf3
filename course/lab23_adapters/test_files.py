"""Adapters in PEFT's files: what they add, whichever layers were trained, and what is refused."""

import json
import math

import pytest
import torch
from safetensors.torch import save_file

from autograder.judging.random_models import normals
from gpt import GPTConfig
from solutions.adapted.adapter import shapes_of
from solutions.adapted.files import CONFIG, WEIGHTS, read_adapter, write_adapter
from solutions.adapters import LowRank, merged
from solutions.gguf.config import LlamaConfig
from solutions.gguf.names import joined, our_name

GPT2 = GPTConfig(vocab_size=11, n_positions=8, n_embd=8, n_layer=2, n_head=2)
LLAMA = LlamaConfig(vocab_size=11, n_embd=8, n_inner=6, n_layer=2, n_head=2, group=3, head_dim=4)
LAYERS = {  # [n_out, n_in], as the hub has them
    "self_attn.q_proj": (24, 8),
    "self_attn.k_proj": (8, 8),
    "self_attn.v_proj": (8, 8),
    "self_attn.o_proj": (8, 24),
    "mlp.gate_proj": (6, 8),
    "mlp.up_proj": (6, 8),
    "mlp.down_proj": (8, 6),
}
SETTINGS = {"peft_type": "LORA", "r": 2, "lora_alpha": 5}


def write(folder, pairs, **settings):
    """Write pairs of (A, B) by layer as PEFT does."""
    folder.mkdir()
    tensors = {
        f"base_model.model.{layer}.lora_{side}.weight": matrix.contiguous()
        for layer, both in pairs.items()
        for side, matrix in zip("AB", both, strict=True)
    }
    save_file(tensors, folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps(SETTINGS | settings))
    return folder


@pytest.mark.parametrize("is_rs", [False, True])
@pytest.mark.parametrize(
    "trained",
    [LAYERS, ["self_attn.q_proj", "self_attn.v_proj"], ["self_attn.k_proj", "mlp.up_proj"]],
    ids=["all", "queries and values", "keys and neurons"],
)
def test_layers_that_are_joined_here_have_their_own_columns(tmp_path, trained, is_rs):
    normal = normals(0)
    plain = {
        f"model.layers.{number}.{layer}": normal(shape)
        for number in range(2)
        for layer, shape in LAYERS.items()
    }
    pairs = {
        name: (normal((2, weight.shape[1])).float(), normal((len(weight), 2)).float())
        for name, weight in plain.items()
        if any(name.endswith(layer) for layer in trained)
    }
    tuned, scale = dict(plain), 5 / (math.sqrt(2) if is_rs else 2)
    for name, (a, b) in pairs.items():
        tuned[name] = plain[name] + scale * (b @ a)
    found = read_adapter(write(tmp_path / "a", pairs, use_rslora=is_rs), LLAMA)
    ours, expected = (
        joined({our_name(f"{n}.weight"): weight for n, weight in weights.items()})
        for weights in (plain, tuned)
    )
    for name in shapes_of(LLAMA):
        weight = ours[f"transformer.{name}.weight"]
        got = merged(weight, found[name]) if name in found else weight
        assert (got - expected[f"transformer.{name}.weight"]).abs().max() < 1e-5


def test_what_is_written_is_read_again(tmp_path):
    normal = normals(1)
    adapter = {
        name: LowRank(normal((n_in, 2)).half().float(), normal((2, n_out)).half().float(), 5.0)
        for name, (n_in, n_out) in shapes_of(GPT2).items()
    }
    write_adapter(tmp_path / "a", adapter, "fable")
    found = read_adapter(tmp_path / "a", GPT2)
    assert found.keys() == adapter.keys()
    for name, (a, b, alpha) in adapter.items():
        assert found[name].a.equal(a)
        assert found[name].b.equal(b)
        assert found[name].alpha == alpha


@pytest.mark.parametrize(
    ("layer", "shapes", "settings", "why"),
    [
        ("transformer.wte", [(2, 8), (11, 2)], {}, "an adapter on transformer.wte"),
        ("model.layers.0.mlp.up_proj", [(2, 8), (6, 2)], {}, "on model.layers.0.mlp.up_proj"),
        ("transformer.h.2.mlp.c_fc", [(2, 8), (32, 2)], {}, "on transformer.h.2.mlp.c_fc"),
        ("transformer.h.0.mlp.c_fc", [(2, 8), (24, 2)], {}, r"not {'A': \[2, 8\], 'B': \[32, 2\]}"),
        (
            "transformer.h.0.mlp.c_fc",
            [(3, 8), (32, 3)],
            {},
            r"{'A': \[3, 8\], 'B': \[32, 3\]}, not",
        ),
        ("transformer.h.0.mlp.c_fc", [(2, 8), (32, 2)], {"use_dora": True}, "use_dora = True"),
        ("transformer.h.0.mlp.c_fc", [(2, 8), (32, 2)], {"bias": "all"}, "bias = 'all'"),
        ("transformer.h.0.mlp.c_fc", [(2, 8), (32, 2)], {"peft_type": "IA3"}, "peft_type = 'IA3'"),
        ("transformer.h.0.mlp.c_fc", [(2, 8), (32, 2)], {"r": "two"}, "isn't the description"),
    ],
)
def test_what_is_not_computed_here_is_refused_by_name(tmp_path, layer, shapes, settings, why):
    folder = write(tmp_path / "a", {layer: [torch.ones(shape) for shape in shapes]}, **settings)
    with pytest.raises(ValueError, match=why):
        read_adapter(folder, GPT2)


def test_another_kind_of_tensor_is_refused_by_name(tmp_path):
    folder = write(
        tmp_path / "a", {"transformer.h.0.mlp.c_fc": [torch.ones(2, 8), torch.ones(32, 2)]}
    )
    save_file(
        {"base_model.model.transformer.wte.lora_embedding_A": torch.ones(2)}, folder / WEIGHTS
    )
    with pytest.raises(ValueError, match="lora_embedding_A, which isn't one of"):
        read_adapter(folder, GPT2)
