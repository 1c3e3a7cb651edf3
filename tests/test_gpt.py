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
from transformers import BertConfig, GPT2Config, GPT2LMHeadModel, LlamaConfig, OPTConfig

from gpt import GPTConfig, GPTLMHead, load_tokenizer, shipped_models
from solutions.generate import generate

SMALL = {"vocab_size": 61, "n_positions": 24, "n_embd": 12, "n_layer": 2, "n_head": 3}
SHAPES = [
    SMALL,
    {"vocab_size": 7, "n_positions": 5, "n_embd": 1, "n_layer": 1, "n_head": 1},
    {"vocab_size": 101, "n_positions": 33, "n_embd": 35, "n_layer": 3, "n_head": 5},
    {"vocab_size": 40, "n_positions": 17, "n_embd": 21, "n_layer": 2, "n_head": 1},
    {**SMALL, "n_head": 12, "layer_norm_epsilon": 0.01, "n_inner": 48},
]


def random_gpt2(**settings) -> GPT2LMHeadModel:
    """Return a GPT-2 with large random weights, also for positions, so that mistakes show."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, **settings)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    """The folder of a small GPT-2, for a test to load or to damage."""
    random_gpt2(**SMALL).save_pretrained(tmp_path / "gpt2")
    return tmp_path / "gpt2"


def change(folder: Path, files: dict[str, Any]) -> None:
    """Write files: bytes replace a file, a dict updates the existing JSON, None deletes."""
    for name, content in files.items():
        if content is None:
            (folder / name).unlink()
        elif isinstance(content, dict):
            config = json.loads((folder / name).read_text())
            (folder / name).write_text(json.dumps(config | content))
        else:
            (folder / name).write_bytes(content)


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
    reference.generation_config.eos_token_id = None
    greedy = {"max_new_tokens": new, "do_sample": False, "pad_token_id": 0}
    expected = reference.generate(prompt, attention_mask=torch.ones_like(prompt), **greedy)
    torch.testing.assert_close(generate(model, prompt, new), expected, rtol=0, atol=0)


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("write", "prefix", "has_head"),
    [
        *(
            (write, prefix, False)
            for write in (as_safetensors, as_bin)
            for prefix in ("transformer.", "")
        ),
        (as_bin, "transformer.", True),  # as transformers writes it
    ],
)
def test_every_layout_in_which_gpt2_was_ever_published_loads(checkpoint, write, prefix, has_head):
    expected = GPT2LMHeadModel.from_pretrained(checkpoint).eval().double()
    weights = {
        prefix + name.removeprefix("transformer."): weight
        for name, weight in GPT2LMHeadModel.from_pretrained(checkpoint).state_dict().items()
        if name != "lm_head.weight"
    }
    if has_head:
        weights["lm_head.weight"] = weights["transformer.wte.weight"]
    for layer in range(SMALL["n_layer"]):  # masks that checkpoints of 2019 contain
        mask = torch.ones(SMALL["n_positions"], SMALL["n_positions"]).tril()[None, None]
        weights[f"{prefix}h.{layer}.attn.bias"] = mask
        weights[f"{prefix}h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    write(weights, checkpoint)
    model = GPTLMHead.from_pretrained(checkpoint).double()
    assert relative_difference(model, expected, full_batch(model.config)) < 1e-12


def test_a_loaded_model_is_ready_for_inference_in_float32(checkpoint):
    half = {
        k: w.half() for k, w in GPT2LMHeadModel.from_pretrained(checkpoint).state_dict().items()
    }
    as_bin(half, checkpoint)

    class Mine(GPTLMHead):
        pass

    model: Any = Mine.from_pretrained(str(checkpoint), device="cpu")
    assert type(model) is Mine
    assert model.transformer.h[1].attn.idx == 1
    assert model.transformer.h[1].attn.c_attn.weight.shape == (12, 36)  # [in, out], as GPT-2's
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not model.training


# ---------------------------------------------------------------------------------- from the hub


@pytest.fixture
def hub(monkeypatch, tmp_path, checkpoint):
    """A hub whose one repository, `someone/gpt2`, has `checkpoint`'s files. Lists its downloads."""
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


@pytest.mark.parametrize("is_old", [False, True])
def test_a_model_of_the_hub_loads_by_name(hub, checkpoint, is_old):
    """An old model only has a .bin file; for a newer one, one copy of the weights is enough."""
    weights = GPT2LMHeadModel.from_pretrained(checkpoint).state_dict()
    torch.save(weights, checkpoint / "pytorch_model.bin")
    if is_old:
        (checkpoint / "model.safetensors").unlink()
    model = GPTLMHead.from_pretrained("someone/gpt2")
    ids = full_batch(model.config)
    assert logits_of(model, ids).equal(logits_of(GPTLMHead.from_pretrained(checkpoint), ids))
    assert ("pytorch_model.bin" in hub) == is_old


# ------------------------------------------------------------------- checkpoints that are refused


def refusal(folder: Path | str) -> str:
    """Return the message of the ValueError that refuses a checkpoint."""
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


CONFIG, WEIGHTS, BIN = "config.json", "model.safetensors", "pytorch_model.bin"
OTHER_LOGITS: list[dict[str, Any]] = [
    {"activation_function": "relu"},
    {"tie_word_embeddings": False},
    {"add_cross_attention": True},
    {"scale_attn_weights": False},
    {"scale_attn_by_inverse_layer_idx": True},
    {"scale_attn_by_inverse_layer_idx": 48},
    {"n_inner": 47},
]
IMPOSSIBLE: list[dict[str, Any]] = [
    {"n_head": 5},
    {"n_head": 0},
    {"n_layer": -1},
    {"n_embd": "12"},
    {"vocab_size": None},
]
REFUSED_ALONE: list[dict[str, Any]] = [
    *({"layer_norm_epsilon": value} for value in (None, "1e-5", -1e-5, float("nan"), [1e-5])),
    *({"eos_token_id": value} for value in ([0, 1], "0", 0.5)),
]
OTHER_SHAPES = [
    ({"n_embd": 24}, "h.0.attn.c_attn.bias is [36], not [72]"),
    ({"n_layer": 3}, "h.2.attn.c_attn.bias is absent, not [36]"),
    ({"n_layer": 1}, "h.1.attn.c_attn.bias is [36], not absent"),
    ({"vocab_size": 62}, "wte.weight is [61, 12], not [62, 12]"),
]
GARBAGE = [b"", b"garbage", b"\x80\x02garbage", bytes(100)]


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({WEIGHTS: None}, "has no weights: expected model.safetensors or pytorch_model.bin"),
        ({CONFIG: None}, "has no configuration: expected config.json"),
        *(
            ({CONFIG: text}, "is not a JSON object")
            for text in (b"", b"{", b"[]", b"[1, 2]", b'[["a", 1]]', b"3", b'"gpt2"', b"\xff")
        ),
        *(
            ({CONFIG: other.to_json_string().encode()}, f"model_type = {other.model_type!r}, where")
            for other in (BertConfig(), OPTConfig(), LlamaConfig())
        ),
        *(
            ({CONFIG: says}, f"{key} = {value!r}")
            for says in (*OTHER_LOGITS, *REFUSED_ALONE)
            for key, value in says.items()
        ),
        *(({CONFIG: says}, "impossible sizes") for says in IMPOSSIBLE),
        *(({CONFIG: says}, difference) for says, difference in OTHER_SHAPES),
        *(({WEIGHTS: content}, "cannot be read as weights") for content in GARBAGE),
        *(({WEIGHTS: None, BIN: content}, "cannot be read as weights") for content in GARBAGE),
    ],
    ids=repr,
)
def test_a_checkpoint_that_would_compute_something_else_is_refused(checkpoint, files, sentence):
    change(checkpoint, files)
    assert sentence in refusal(checkpoint)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("lm_head.weight", "lm_head.weight, the head, is not wte.weight"),
        ("wte.weight", "wte.weight is there with and without 'transformer.'"),
    ],
)
def test_a_weight_that_no_forward_pass_would_use_is_refused(checkpoint, name, sentence):
    weights = GPT2LMHeadModel.from_pretrained(checkpoint).state_dict()
    as_bin(weights | {name: weights["lm_head.weight"] + 1}, checkpoint)
    assert sentence in refusal(checkpoint)


def test_a_folder_without_tokenizer(checkpoint):
    with pytest.raises(ValueError, match=r"has no tokenizer: expected tokenizer\.json"):
        load_tokenizer(checkpoint)


@pytest.mark.parametrize("n_inner", [None, 48])
def test_the_usual_width_of_the_mlp_may_be_said_or_left_out(checkpoint, n_inner):
    change(checkpoint, {"config.json": {"n_inner": n_inner}})
    assert GPTLMHead.from_pretrained(checkpoint).config.n_embd == 12


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_download_that_was_cut_short(checkpoint, name):
    if name == "pytorch_model.bin":
        as_bin(GPT2LMHeadModel.from_pretrained(checkpoint).state_dict(), checkpoint)
    whole = (checkpoint / name).read_bytes()
    (checkpoint / name).write_bytes(whole[: len(whole) // 2])
    assert "cannot be read as weights" in refusal(checkpoint)


class Malicious:
    """Unpickling it creates a file; it could do anything else as well."""

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


WHOLE, BOTH = "token id must be a whole number .* not torch", r"must both be \[batch, seq\]"


@pytest.mark.parametrize(
    ("inputs", "position_ids", "sentence"),
    [
        ([[1, 61]], [[0, 1]], r"token id 61 is outside .* 0 to 60\. Is the token"),
        ([[4000, 1]], [[0, 1]], "token id 4000 is outside"),
        ([[1, -1]], [[0, 1]], "token id -1 is outside"),
        ([[0] * 25], [[*range(25)]], "position id 24 .* sees at most 24 tokens: shorten"),
        ([[1, 2]], [[0, -1]], "position id -1 is outside"),
        ([[1.0, 2.0]], [[0, 1]], f"{WHOLE}.float32"),
        ([[True, True]], [[0, 1]], f"{WHOLE}.bool"),
        ([[1, 2]], [[0, 1, 2]], BOTH),
        ([[1, 2]], [[0]], BOTH),  # would broadcast to a silently wrong result
        ([[1], [2]], [[0]], BOTH),
        ([[1]], [[0, 1, 2]], BOTH),  # all positions so far, but only one new token
        ([1, 2], [0, 1], BOTH),
        ([[1, 2]], [0, 1], BOTH),
        ([[]], [[]], BOTH),
        ([], [], BOTH),
    ],
)
def test_inputs_that_are_refused(inputs, position_ids, sentence):
    model = GPTLMHead(GPTConfig(**SMALL)).eval()
    logits_of(model, torch.zeros(1, 24, dtype=torch.int64))
    with pytest.raises(ValueError, match=sentence):
        model(torch.tensor(inputs), torch.tensor(position_ids))
