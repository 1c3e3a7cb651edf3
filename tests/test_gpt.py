"""gpt.py is GPT-2: its logits and greedy text equal transformers', and bad input is refused."""

import json
import pickle
import shutil
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
)

from gpt import GPTConfig, GPTLMHead, load_tokenizer, shipped_models
from solutions.generate import generate

SHIPPED = ["fable", "fable-draft", "fable-small"]
SMALL = {"vocab_size": 61, "n_positions": 24, "n_embd": 12, "n_layer": 2, "n_head": 3}
SHAPES = [
    SMALL,
    {"vocab_size": 7, "n_positions": 5, "n_embd": 1, "n_layer": 1, "n_head": 1},
    {"vocab_size": 101, "n_positions": 33, "n_embd": 35, "n_layer": 3, "n_head": 5},
    {"vocab_size": 40, "n_positions": 17, "n_embd": 21, "n_layer": 2, "n_head": 1},
    {**SMALL, "n_head": 12, "layer_norm_epsilon": 0.01, "n_inner": 48},
]


def random_gpt2(**settings) -> GPT2LMHeadModel:
    """A GPT-2 whose every weight is large, positions too, so that no mistake stays hidden."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, **settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    """The folder of a small GPT-2, for a test to load or to spoil."""
    random_gpt2(**SMALL).save_pretrained(tmp_path / "gpt2")
    return tmp_path / "gpt2"


def set_config(folder: Path, **changes) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def full_batch(config, rows: int = 2, length: int | None = None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    size = (rows, length or config.n_positions)
    return torch.randint(config.vocab_size, size, generator=generator)


@torch.no_grad()
def logits_of(model: GPTLMHead, ids: torch.Tensor) -> torch.Tensor:
    return model(ids, torch.arange(ids.shape[1]).expand_as(ids))


@torch.no_grad()
def relative_difference(model: GPTLMHead, reference: GPT2LMHeadModel, ids: torch.Tensor) -> float:
    expected = reference(ids, use_cache=False).logits
    return ((logits_of(model, ids) - expected).abs().max() / expected.abs().max()).item()


def transformers_greedy(reference: GPT2LMHeadModel, ids: torch.Tensor, new: int) -> torch.Tensor:
    reference.generation_config.eos_token_id = None
    mask = torch.ones_like(ids)
    return reference.generate(
        ids, attention_mask=mask, max_new_tokens=new, do_sample=False, pad_token_id=0
    )


# ------------------------------------------------------------------------ equal to transformers


@pytest.mark.parametrize("settings", SHAPES, ids=str)
def test_logits_and_greedy_ids_equal_transformers(tmp_path, settings):
    reference = random_gpt2(**settings)
    reference.save_pretrained(tmp_path)
    model = GPTLMHead.from_pretrained(tmp_path).double()
    reference.double()
    ids = full_batch(reference.config)
    assert relative_difference(model, reference, ids) < 1e-12

    prompt = ids[:, : ids.shape[1] // 3]
    new = ids.shape[1] - prompt.shape[1]
    expected = transformers_greedy(reference, prompt, new)
    torch.testing.assert_close(generate(model, prompt, new), expected, rtol=0, atol=0)


def test_logits_equal_transformers_at_the_shape_of_gpt2_itself(tmp_path):
    torch.manual_seed(0)
    reference = GPT2LMHeadModel(GPT2Config()).eval()
    reference.save_pretrained(tmp_path)
    model = GPTLMHead.from_pretrained(tmp_path)
    assert model.config == GPTConfig(eos_token_id=50256)
    assert sum(p.numel() for p in model.parameters()) == 124_439_808
    ids = full_batch(reference.config, rows=1, length=9)
    assert relative_difference(model.double(), reference.double(), ids) < 1e-12


def as_safetensors(weights: dict, folder: Path) -> None:
    save_file({name: w.contiguous() for name, w in weights.items()}, folder / "model.safetensors")


def as_bin(weights: dict, folder: Path) -> None:
    (folder / "model.safetensors").unlink(missing_ok=True)
    torch.save(weights, folder / "pytorch_model.bin")


@pytest.mark.parametrize("write", [as_safetensors, as_bin])
@pytest.mark.parametrize("prefix", ["transformer.", ""])
def test_every_layout_in_which_gpt2_was_ever_published_loads(checkpoint, write, prefix):
    expected = GPT2LMHeadModel.from_pretrained(checkpoint).eval().double()
    weights = {
        prefix + name.removeprefix("transformer."): weight
        for name, weight in GPT2LMHeadModel.from_pretrained(checkpoint).state_dict().items()
        if name != "lm_head.weight"
    }
    for layer in range(SMALL["n_layer"]):  # what checkpoints of 2019 carry along
        mask = torch.ones(SMALL["n_positions"], SMALL["n_positions"]).tril()[None, None]
        weights[f"{prefix}h.{layer}.attn.bias"] = mask
        weights[f"{prefix}h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    write(weights, checkpoint)
    model = GPTLMHead.from_pretrained(checkpoint).double()
    assert relative_difference(model, expected, full_batch(model.config)) < 1e-12


def test_a_bin_that_transformers_wrote_with_its_head_loads(checkpoint):
    reference = GPT2LMHeadModel.from_pretrained(checkpoint).eval()
    assert "lm_head.weight" in reference.state_dict()
    as_bin(reference.state_dict(), checkpoint)
    model = GPTLMHead.from_pretrained(checkpoint)
    assert relative_difference(model, reference, full_batch(model.config)) < 1e-5


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_models_equal_transformers(name):
    model = GPTLMHead.from_pretrained(name)
    reference = GPT2LMHeadModel.from_pretrained(Path("models") / name).eval()
    assert relative_difference(model, reference, full_batch(model.config)) < 1e-4

    model.double()
    prompt = load_tokenizer(name)("Once upon a time", return_tensors="pt").input_ids
    expected = transformers_greedy(reference.double(), prompt, 60)
    assert generate(model, prompt, 60).tolist() == expected.tolist()


def test_a_loaded_model_is_ready_for_inference_in_float32(checkpoint):
    half = {
        k: w.half() for k, w in GPT2LMHeadModel.from_pretrained(checkpoint).state_dict().items()
    }
    as_bin(half, checkpoint)
    model = GPTLMHead.from_pretrained(checkpoint)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not model.training


def test_a_subclass_loads_as_itself(checkpoint):
    class Mine(GPTLMHead):
        pass

    assert type(Mine.from_pretrained(str(checkpoint), device="cpu")) is Mine


def test_the_weights_keep_gpt2s_own_layout(checkpoint):
    attention: Any = GPTLMHead.from_pretrained(checkpoint).transformer.h[1].attn
    assert attention.idx == 1
    assert attention.c_attn.weight.shape == (12, 36)  # [in, out]


# ---------------------------------------------------------------------------------- from the hub


@pytest.fixture
def hub(monkeypatch, tmp_path, checkpoint):
    """A hub with one repository, `someone/gpt2`: the files of `checkpoint`. Lists what it gave."""
    cache, given = tmp_path / "cache", []

    def snapshot_download(name, allow_patterns):
        assert name == "someone/gpt2"
        cache.mkdir(exist_ok=True)
        for file in checkpoint.iterdir():
            if any(fnmatch(file.name, pattern) for pattern in allow_patterns):
                shutil.copy(file, cache)
                given.append(file.name)
        return str(cache)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    return given


def test_a_model_of_the_hub_loads_by_name(hub, checkpoint):
    as_bin_too = GPT2LMHeadModel.from_pretrained(checkpoint).state_dict()
    torch.save(as_bin_too, checkpoint / "pytorch_model.bin")
    model = GPTLMHead.from_pretrained("someone/gpt2")
    ids = full_batch(model.config)
    assert logits_of(model, ids).equal(logits_of(GPTLMHead.from_pretrained(checkpoint), ids))
    assert "pytorch_model.bin" not in hub  # one copy of the weights is enough


def test_an_old_model_of_the_hub_comes_as_a_bin(hub, checkpoint):
    reference = GPT2LMHeadModel.from_pretrained(checkpoint).eval()
    as_bin(reference.state_dict(), checkpoint)
    model = GPTLMHead.from_pretrained("someone/gpt2")
    assert relative_difference(model, reference, full_batch(model.config)) < 1e-5
    assert "pytorch_model.bin" in hub


# ------------------------------------------------------------------- checkpoints that are refused


def refusal(folder: Path | str) -> str:
    """The sentence with which a checkpoint is refused."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - each caller checks the sentence
        GPTLMHead.from_pretrained(folder)
    message = str(caught.value)
    assert len(message) < 500
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    "name", ["no-such-model", "someone/no-such-model", "/no/such/folder", "./folder", "models/a/b"]
)
def test_an_unknown_name_without_network_is_answered_with_the_shipped_models(monkeypatch, name):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = refusal(name)
    assert repr(name) in message
    assert all(shipped in message for shipped in shipped_models())
    assert "fable" in message
    with pytest.raises(ValueError, match="There is no model"):
        load_tokenizer(name)


def test_a_folder_without_weights(checkpoint):
    (checkpoint / "model.safetensors").unlink()
    message = refusal(checkpoint)
    assert "has no weights" in message
    assert "model.safetensors or pytorch_model.bin" in message


def test_a_folder_without_config(checkpoint):
    (checkpoint / "config.json").unlink()
    assert "has no configuration: expected config.json" in refusal(checkpoint)


def test_a_folder_without_tokenizer(checkpoint):
    with pytest.raises(ValueError, match=r"has no tokenizer: expected tokenizer\.json"):
        load_tokenizer(checkpoint)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "3", '"gpt2"', "\xff"])
def test_a_config_that_is_no_json_object(checkpoint, text):
    (checkpoint / "config.json").write_text(text, encoding="latin-1")
    assert "is not a JSON object" in refusal(checkpoint)


def tiny_bert() -> BertModel:
    return BertModel(
        BertConfig(
            vocab_size=9,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            intermediate_size=8,
        )
    )


def tiny_opt() -> OPTForCausalLM:
    return OPTForCausalLM(
        OPTConfig(
            vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, ffn_dim=8
        )
    )


def tiny_llama() -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=9,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            intermediate_size=8,
        )
    )


@pytest.mark.parametrize("make", [tiny_bert, tiny_opt, tiny_llama])
def test_a_checkpoint_that_is_not_gpt2(tmp_path, make):
    model = make()
    model.save_pretrained(tmp_path)
    message = refusal(tmp_path)
    assert f"model_type = {model.config.model_type!r}, where GPT-2 has 'gpt2'" in message


@pytest.mark.parametrize(
    "change",
    [
        {"activation_function": "relu"},
        {"tie_word_embeddings": False},
        {"add_cross_attention": True},
        {"scale_attn_weights": False},
        {"scale_attn_by_inverse_layer_idx": True},
        {"scale_attn_by_inverse_layer_idx": 48},
        {"n_inner": 47},
    ],
    ids=str,
)
def test_a_variant_of_gpt2_that_would_compute_other_logits(checkpoint, change):
    set_config(checkpoint, **change)
    ((key, value),) = change.items()
    assert f"{key} = {value!r}" in refusal(checkpoint)


@pytest.mark.parametrize("n_inner", [None, 48])
def test_the_usual_width_of_the_mlp_may_be_said_or_left_out(checkpoint, n_inner):
    set_config(checkpoint, n_inner=n_inner)
    assert GPTLMHead.from_pretrained(checkpoint).config.n_embd == 12


@pytest.mark.parametrize(
    "change",
    [{"n_head": 5}, {"n_head": 0}, {"n_layer": -1}, {"n_embd": "12"}, {"vocab_size": None}],
    ids=str,
)
def test_impossible_sizes(checkpoint, change):
    set_config(checkpoint, **change)
    assert "impossible sizes" in refusal(checkpoint)


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"n_embd": 24}, "h.0.attn.c_attn.bias is [36], not [72]"),
        ({"n_layer": 3}, "h.2.attn.c_attn.bias is absent, not [36]"),
        ({"n_layer": 1}, "h.1.attn.c_attn.bias is [36], not absent"),
        ({"vocab_size": 62}, "wte.weight is [61, 12], not [62, 12]"),
    ],
    ids=str,
)
def test_a_config_that_lies_about_the_weights(checkpoint, change, difference):
    set_config(checkpoint, **change)
    assert difference in refusal(checkpoint)


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x80\x02garbage", bytes(100)], ids=repr)
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_garbage_in_place_of_weights(checkpoint, name, content):
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / name).write_bytes(content)
    assert "cannot be read as weights" in refusal(checkpoint)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_download_that_was_cut_short(checkpoint, name):
    if name == "pytorch_model.bin":
        as_bin(GPT2LMHeadModel.from_pretrained(checkpoint).state_dict(), checkpoint)
    whole = (checkpoint / name).read_bytes()
    (checkpoint / name).write_bytes(whole[: len(whole) // 2])
    assert "cannot be read as weights" in refusal(checkpoint)


class Malicious:
    """Unpickling it creates a file, as it could do anything else."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self):
        return Path.touch, (self.victim,)


@pytest.mark.parametrize("dump", [torch.save, partial(pickle.dump, protocol=2)])
def test_a_pickle_is_never_executed(checkpoint, tmp_path, dump):
    (checkpoint / "model.safetensors").unlink()
    with (checkpoint / "pytorch_model.bin").open("wb") as file:
        dump({"wte.weight": Malicious(tmp_path / "executed")}, file)
    message = refusal(checkpoint)
    assert "holds other things than tensors" in message
    assert "weights_only" not in message  # torch's own message explains how to switch safety off
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("content", [[1, 2], {"step": 3, "model": {}}, {1: torch.ones(2)}], ids=str)
def test_a_bin_that_holds_something_else(checkpoint, content):
    as_bin(content, checkpoint)
    assert refusal(checkpoint).startswith(str(checkpoint / "pytorch_model.bin"))


# ------------------------------------------------------------------------ inputs that are refused


@pytest.fixture(scope="module")
def model() -> GPTLMHead:
    return GPTLMHead(GPTConfig(**SMALL)).eval()


@pytest.mark.parametrize("wrong", [61, 4000, -1])
def test_an_id_outside_the_vocabulary(model, wrong):
    with pytest.raises(ValueError, match=rf"token id {wrong} is outside .* 0 to 60\. Is the token"):
        logits_of(model, torch.tensor([[1, 2, wrong]]))


def test_more_tokens_than_positions(model):
    logits_of(model, torch.zeros(1, 24, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"position id 24 .* sees at most 24 tokens: shorten"):
        logits_of(model, torch.zeros(1, 25, dtype=torch.int64))


def test_a_position_below_zero(model):
    with pytest.raises(ValueError, match="position id -1 is outside"):
        model(torch.tensor([[1]]), torch.tensor([[-1]]))


@pytest.mark.parametrize(
    ("inputs", "position_ids"),
    [
        ([[1, 2]], [[0, 1, 2]]),
        ([[1, 2]], [[0]]),  # would broadcast, and be wrong in silence
        ([[1], [2]], [[0]]),
        ([[1]], [[0, 1, 2]]),  # all positions so far, beside one new token
        ([1, 2], [0, 1]),
        ([[1, 2]], [0, 1]),
        ([[]], [[]]),
        ([], []),
    ],
)
def test_shapes_that_disagree(model, inputs, position_ids):
    inputs, position_ids = torch.tensor(inputs), torch.tensor(position_ids)
    with pytest.raises(ValueError, match=r"must both be \[batch, seq\]"):
        model(inputs, position_ids)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_ids_that_are_no_whole_numbers(model, dtype):
    with pytest.raises(ValueError, match=f"A token id must be a whole number .* not {dtype}"):
        logits_of(model, torch.ones(1, 3, dtype=dtype))
