"""The embedded models: they load offline, by gpt.py and by plain transformers, and are small."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from gpt import GPTConfig, GPTLMHead, load_tokenizer, shipped_models
from models import measure
from models.train import END_OF_TEXT
from solutions.generate import generate
from solutions.kv_cache import CachedLMHead

MODELS = Path(__file__).resolve().parent.parent / "models"
TARGET, DRAFT = "fable", "fable-draft"
BOTH = pytest.mark.parametrize("name", [TARGET, DRAFT])
WEB = "https://example.org/books?q=é, ½, 魔法, 🐺\t\r\n\n  end"
PROSE = "'Who are you?' said the  wolf.\nThe fox didn't answer: it was already gone."


def test_both_models_ship():
    assert set(shipped_models()) == {TARGET, DRAFT}


@BOTH
def test_it_is_stored_in_16_bits_and_loads_in_32(name):
    stored = load_file(MODELS / name / "model.safetensors")
    assert {weight.dtype for weight in stored.values()} <= {torch.float16, torch.bfloat16}
    assert json.loads((MODELS / name / "config.json").read_text())["dtype"] == "float32"
    assert {weight.dtype for weight in GPTLMHead.from_pretrained(name).parameters()} == {
        torch.float32
    }


def test_together_they_fit_in_the_repository():
    folders = [MODELS / TARGET, MODELS / DRAFT]
    assert all(folder.is_dir() for folder in folders)
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 30_000_000
    left_by_training = {file.name for file in files if file.suffix in (".pt", ".tmp", ".bin")}
    assert not left_by_training


PLAIN_TRANSFORMERS = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1]).eval()
inputs = tokenizer(sys.argv[2], return_tensors="pt")
with torch.no_grad():
    logits = model(**inputs).logits[0, -1].tolist()
dtype = str(model.dtype)
model.double()
ids = model.generate(
    **inputs, max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0
)
print(json.dumps({
    "type": type(model).__name__,
    "dtype": dtype,
    "ids": ids[0].tolist(),
    "text": tokenizer.decode(ids[0]),
    "logits": logits,
    "eos": [model.config.eos_token_id, tokenizer.eos_token_id],
}))
"""


@BOTH
def test_plain_transformers_loads_it_offline_and_writes_the_same_text(name):
    prompt = "Once upon a time there was a king"
    shown = subprocess.run(
        [sys.executable, "-c", PLAIN_TRANSFORMERS, str(MODELS / name), prompt],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert shown.returncode == 0, shown.stderr
    theirs = json.loads(shown.stdout.splitlines()[-1])
    assert (theirs["type"], theirs["dtype"]) == ("GPT2LMHeadModel", "torch.float32")

    model, tokenizer = GPTLMHead.from_pretrained(name), load_tokenizer(name)
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    logits = model(ids, torch.arange(ids.shape[1]).expand_as(ids))[0, -1]
    expected = torch.tensor(theirs["logits"])
    assert (logits - expected).abs().max() < 1e-4 * expected.abs().max()
    mine = generate(model.double(), ids, 24)[0]  # in float64 no rounding decides between two tokens
    assert mine.tolist() == theirs["ids"]
    assert tokenizer.decode(mine) == theirs["text"]
    assert theirs["eos"] == [tokenizer.eos_token_id] * 2


@BOTH
def test_its_tokenizer_is_lossless_and_fits_the_model(name):
    tokenizer, config = load_tokenizer(name), GPTLMHead.from_pretrained(name).config
    for text in (PROSE, WEB, "", " "):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer) == config.vocab_size
    assert tokenizer.model_max_length == config.n_positions == 1024
    assert tokenizer.eos_token == END_OF_TEXT
    assert tokenizer.eos_token_id == config.eos_token_id
    assert tokenizer.encode(END_OF_TEXT) == [config.eos_token_id]
    assert len(tokenizer.encode(PROSE)) < len(PROSE) / 2


def test_both_read_the_same_ids():
    ours, theirs = load_tokenizer(TARGET), load_tokenizer(DRAFT)
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.encode(PROSE + WEB) == theirs.encode(PROSE + WEB)


@BOTH
def test_it_has_read_fairy_tales(name):
    """Far better than chance, which is 12 bits a token, on a sentence that is in no book."""
    model, tokenizer = GPTLMHead.from_pretrained(name), load_tokenizer(name)
    text = "Then the king said to the princess that she must go into the forest and find the fox."
    ids = tokenizer(text, return_tensors="pt").input_ids
    logits = model(ids, torch.arange(ids.shape[1]).expand_as(ids))
    assert F.cross_entropy(logits[0, :-1], ids[0, 1:]) / math.log(2) < 7


@BOTH
def test_its_card_gives_data_recipe_figures_and_licence(name):
    card = (MODELS / name / "README.md").read_text(encoding="utf-8")
    for said in ("license:", "Project Gutenberg", "models/train.py", "bits per byte", "MB", "seed"):
        assert said in card
    assert "FILL" not in card
    parameters = sum(weight.numel() for weight in GPTLMHead.from_pretrained(name).parameters())
    assert f"{parameters:,}" in card


# ------------------------------------------------------------- models/measure.py, behind the cards


def random_model(seed: int, n_layer: int = 2) -> CachedLMHead:
    """A small model with large weights, in float64: any two of them choose different tokens."""
    torch.manual_seed(seed)
    config = GPTConfig(vocab_size=17, n_positions=48, n_embd=12, n_layer=n_layer, n_head=3)
    model = CachedLMHead(config).double().eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.normal_(std=0.5)
    return model


def as_naive(model: CachedLMHead) -> GPTLMHead:
    naive = GPTLMHead(model.config).double().eval().requires_grad_(False)
    naive.load_state_dict(model.state_dict())
    return naive


@pytest.mark.parametrize("drafts", [1, 2, 4])
def test_speculation_writes_what_the_target_alone_writes(drafts):
    target, draft = random_model(1), random_model(2, n_layer=1)
    prompt = torch.tensor([[3, 1, 4, 1, 5]])
    counts = measure.Speculation()
    ids = measure.speculate(target, draft, prompt, 20, drafts, counts)
    assert ids.equal(generate(as_naive(target), prompt, ids.shape[1] - 5))
    assert ids.shape[1] - 5 == counts.new_tokens == counts.accepted + counts.target_calls >= 20
    assert counts.proposed == drafts * counts.target_calls
    assert counts.accepted < counts.proposed


def test_a_draft_that_is_the_target_is_always_accepted():
    counts = measure.Speculation()
    measure.speculate(random_model(1), random_model(1), torch.tensor([[7]]), 20, 4, counts)
    assert (counts.proposed, counts.accepted, counts.target_calls) == (16, 16, 4)


@pytest.mark.parametrize("length", [2, 47, 48, 49, 64, 100, 112])
def test_bits_per_byte_scores_every_token_once_behind_enough_context(length):
    model = as_naive(random_model(1))
    tokens = torch.randint(17, (length,), generator=torch.Generator().manual_seed(0))
    stride = 16
    nats = 0.0
    for place in range(1, length):
        end = place + 1 if place < 48 else 48 + -(-(place - 47) // stride) * stride
        start = max(0, min(end, length) - 48) if place >= 48 else 0
        context = tokens[start:place].unsqueeze(0)
        logits = model(context, torch.arange(context.shape[1]).unsqueeze(0))[0, -1]
        nats += F.cross_entropy(logits, tokens[place]).item()
        assert place < 48 or place - start >= 48 - stride
    measured = measure.bits_per_byte(model, tokens, n_bytes=3 * length, stride=stride)
    assert measured == pytest.approx(nats / math.log(2) / (3 * length))
