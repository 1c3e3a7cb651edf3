"""solutions/checkpoints/weights.py: each checkpoint of Llama's family computes what it shall."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from solutions.checkpoints.weights import read_checkpoint, tensor_of
from solutions.gguf.file import GGUF
from solutions.llama import LlamaLMHead
from tests.common.llamas import LLAMA3, VARIANTS, write_llama
from timing.peers.gguf_file import write_gguf

IDS = torch.randint(4096, (1, 250), generator=torch.Generator().manual_seed(1))


@torch.inference_mode()
def logits_of(path: Path) -> torch.Tensor:
    model = LlamaLMHead.of(*read_checkpoint(path))
    return model(IDS, torch.arange(IDS.shape[1]).expand_as(IDS))


@torch.inference_mode()
def assert_computes(path: Path, theirs: Any) -> None:
    ours, expected = logits_of(path), theirs(IDS).logits
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
    assert ours.argmax(-1).equal(expected.argmax(-1))


def edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_folder_of_the_hub(variant: str, tmp_path) -> None:
    assert_computes(tmp_path, write_llama(tmp_path, variant))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_gguf(variant: str, tmp_path) -> None:
    theirs, file = write_llama(tmp_path, variant), tmp_path / "model.gguf"
    write_gguf(tmp_path, file, "float32")
    assert_computes(file, theirs)


@pytest.mark.parametrize("variant", ["llama-biases", "qwen3-tied"])
def test_a_folder_in_shards(variant: str, tmp_path) -> None:
    theirs = write_llama(tmp_path, variant, max_shard_size="400KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert_computes(tmp_path, theirs)


@pytest.mark.parametrize("name", ["rope_type", "type"])
@pytest.mark.parametrize("variant", ["llama-linear", "llama-llama3", "qwen2"])
def test_a_config_of_transformers_4(variant: str, name: str, tmp_path) -> None:
    def in_old_words(config: dict[str, Any]) -> None:
        rope = config.pop("rope_parameters")
        config["rope_theta"], kind = rope.pop("rope_theta"), rope.pop("rope_type")
        config["rope_scaling"] = None if kind == "default" else {name: kind, **rope}

    theirs = write_llama(tmp_path, variant)
    edit(tmp_path / "config.json", in_old_words)
    assert_computes(tmp_path, theirs)


@pytest.mark.parametrize("precision", ["f16", "q8_0", "q4_1", "q4_0"])
def test_each_kind_of_block_is_read_as_the_gguf_package_reads_it(precision, tmp_path) -> None:
    write_llama(tmp_path)
    file = tmp_path / "model.gguf"
    write_gguf(tmp_path, file, precision)
    ours = GGUF(file)
    tensors = gguf.GGUFReader(file).tensors
    assert {tensor.name for tensor in tensors} == ours.tensors.keys()
    assert ours.kind("blk.1.ffn_up.weight").name == precision.upper()
    for tensor in tensors:
        expected = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        assert tensor_of(ours, tensor.name).equal(expected)


def test_the_window_is_all_that_the_model_sees(tmp_path) -> None:
    write_llama(tmp_path, "mistral-window")
    config, _ = read_checkpoint(tmp_path)
    assert config.n_positions == 256


def test_each_id_that_ends_a_text_is_read(tmp_path) -> None:
    write_llama(tmp_path)
    edit(tmp_path / "generation_config.json", lambda config: config.update(eos_token_id=[7, 0]))
    config, _ = read_checkpoint(tmp_path)
    assert (config.eos_token_ids, config.eos_token_id) == ((7, 0), 7)
    (tmp_path / "generation_config.json").unlink()
    assert read_checkpoint(tmp_path)[0].eos_token_ids == (0,)


YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "gemma": ({"model_type": "gemma2"}, "'gemma2'.*llama, mistral, qwen2, qwen3 are"),
    "gelu": ({"hidden_act": "gelu"}, "an MLP of another kind"),
    "mlp biases": ({"mlp_bias": True}, "an MLP of another kind"),
    "yarn": ({"rope_parameters": YARN}, "positions scaled by 'yarn'"),
    "another width": ({"hidden_size": 128}, r"is \[4096, 96\], not \[4096, 128\]"),
    "a layer more": ({"num_hidden_layers": 4}, "is None, not"),
    "a layer less": ({"num_hidden_layers": 2}, "not None"),
    "no width": ({"hidden_size": None}, "impossible sizes"),
    "no positions": ({"max_position_embeddings": 0}, "impossible sizes"),
    "half a layer": ({"num_hidden_layers": 1.5}, "impossible sizes"),
    "no object": ({"rope_parameters": 3}, "isn't the description of a model"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_another_model_is_refused_with_a_sentence(name: str, tmp_path) -> None:
    changes, sentence = REFUSED[name]
    write_llama(tmp_path)
    edit(tmp_path / "config.json", lambda config: config.update(changes))
    with pytest.raises(ValueError, match=sentence):
        read_checkpoint(tmp_path)


def test_a_gguf_of_another_kind_is_refused_with_a_sentence(tmp_path) -> None:
    write_llama(tmp_path)
    file = tmp_path / "model.gguf"
    for kind, sentence in [("gemma2", "architecture 'gemma2'"), ("llama", "no entry llama.feed")]:
        writer = gguf.GGUFWriter(file, kind)
        writer.add_context_length(8)
        writer.add_embedding_length(8)
        writer.add_head_count(1)
        writer.add_tensor("token_embd.weight", torch.zeros(4, 8).numpy())
        for write in (writer.write_header_to_file, writer.write_kv_data_to_file):
            write()
        writer.write_tensors_to_file()
        writer.close()
        with pytest.raises(ValueError, match=sentence):
            read_checkpoint(file)


@pytest.mark.parametrize("share", [0.0, 0.00001, 0.2, 0.7, 0.999])
def test_a_file_that_is_cut_off_is_refused_with_a_sentence(share: float, tmp_path) -> None:
    write_llama(tmp_path)
    file = tmp_path / "model.gguf"
    write_gguf(tmp_path, file, "float32")
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    with pytest.raises(ValueError, match="Download it again"):
        read_checkpoint(file)


def test_a_kind_of_block_that_is_not_read_is_named(tmp_path) -> None:
    write_llama(tmp_path)
    file = tmp_path / "model.gguf"
    write_gguf(tmp_path, file, "float32")
    opened = GGUF(file)
    opened.tensors["output.weight"] = opened.tensors["output.weight"]._replace(kind=14)
    with pytest.raises(ValueError, match=r"output.weight in blocks of kind 14.*Q8_0"):
        tensor_of(opened, "output.weight")


def test_a_shard_that_is_missing_is_named(tmp_path) -> None:
    write_llama(tmp_path, max_shard_size="400KB")
    missing = sorted(tmp_path.glob("*.safetensors"))[1]
    missing.unlink()
    with pytest.raises(ValueError, match=missing.name):
        read_checkpoint(tmp_path)


def test_llama3s_factors_are_the_same_from_both_files(tmp_path) -> None:
    write_llama(tmp_path, "llama-llama3")
    file = tmp_path / "model.gguf"
    write_gguf(tmp_path, file, "float32")
    from_hub, from_gguf = read_checkpoint(tmp_path)[0], read_checkpoint(file)[0]
    assert from_hub.scaling is not None
    assert from_hub.scaling["factor"] == LLAMA3["factor"]
    assert from_gguf.scaling is None
    assert from_gguf.rope_factors is not None
    assert max(from_gguf.rope_factors) == pytest.approx(LLAMA3["factor"])


def test_a_folder_with_a_gguf_is_read_unless_it_has_a_config(tmp_path) -> None:
    theirs, alone = write_llama(tmp_path), tmp_path / "alone"
    alone.mkdir()
    write_gguf(tmp_path, tmp_path / "zeros.gguf", "q4_0")
    assert_computes(tmp_path, theirs)
    shutil.move(tmp_path / "zeros.gguf", alone / "model.gguf")
    assert logits_of(alone).equal(logits_of(alone / "model.gguf"))
