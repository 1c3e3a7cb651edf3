"""The embedded models: they load offline, by gpt.py and by plain transformers, and are small."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel

from autograder.judging.random_models import random_model
from gpt import GPTConfig, GPTLMHead, load_tokenizer, shipped_models
from models import measure
from models.train import END_OF_TEXT
from solutions.decoding import GREEDY
from solutions.generate import generate
from solutions.kv_cache import CachedLMHead
from solutions.speculative import Round, expected_tokens, speed_up

MODELS = Path(__file__).resolve().parents[2] / "models"
TARGET, DRAFT, SMALL = "fable", "fable-draft", "fable-small"
SUMS = "sums"  # lab 25's, which knows no words
ALL = pytest.mark.parametrize("name", [TARGET, DRAFT, SMALL])
WEB = "https://example.org/books?q=é, ½, 魔法, 🐺\t\r\n\n  end"
PROSE = "'Who are you?' said the  wolf.\nThe fox didn't answer: it was already gone."


def test_the_models_ship():
    assert set(shipped_models()) == {TARGET, DRAFT, SMALL, SUMS}


@pytest.mark.parametrize("name", [TARGET, DRAFT, SMALL, SUMS])
def test_it_is_stored_in_16_bits_and_loads_in_32(name):
    stored = load_file(MODELS / name / "model.safetensors")
    assert {weight.dtype for weight in stored.values()} <= {torch.float16, torch.bfloat16}
    assert json.loads((MODELS / name / "config.json").read_text())["dtype"] == "float32"
    assert {weight.dtype for weight in GPTLMHead.from_pretrained(name).parameters()} == {
        torch.float32
    }


def test_together_they_fit_in_the_repository():
    folders = [MODELS / name for name in (TARGET, DRAFT, SMALL, SUMS)]
    assert all(folder.is_dir() for folder in folders)
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 30_000_000
    left_by_training = {file.name for file in files if file.suffix in (".pt", ".tmp", ".bin")}
    assert not left_by_training


PLAIN_TRANSFORMERS = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer

prompt, *folders = sys.argv[1:]
for folder in folders:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    inputs = tokenizer(prompt, return_tensors="pt")
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
PROMPT = "Once upon a time there was a king"


@pytest.fixture(scope="module")
def by_transformers():
    """What plain transformers makes of each model, all in one process: loading it takes longest."""
    names = TARGET, DRAFT, SMALL
    folders = [str(MODELS / name) for name in names]
    shown = subprocess.run(
        [sys.executable, "-c", PLAIN_TRANSFORMERS, PROMPT, *folders],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert shown.returncode == 0, shown.stderr
    lines = [line for line in shown.stdout.splitlines() if line.startswith("{")]
    return dict(zip(names, map(json.loads, lines), strict=True))


@pytest.mark.slow
@ALL
def test_plain_transformers_loads_it_offline_and_writes_the_same_text(name, by_transformers):
    theirs = by_transformers[name]
    assert (theirs["type"], theirs["dtype"]) == ("GPT2LMHeadModel", "torch.float32")

    model, tokenizer = GPTLMHead.from_pretrained(name), load_tokenizer(name)
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    logits = model(ids, torch.arange(ids.shape[1]).expand_as(ids))[0, -1]
    expected = torch.tensor(theirs["logits"])
    assert (logits - expected).abs().max() < 1e-4 * expected.abs().max()
    mine = generate(model.double(), ids, 24)[0]  # in float64 no rounding decides between two tokens
    assert mine.tolist() == theirs["ids"]
    assert tokenizer.decode(mine) == theirs["text"]
    assert theirs["eos"] == [tokenizer.eos_token_id] * 2


@ALL
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


def test_sums_reads_bytes_and_two_marks():
    tokenizer, model = load_tokenizer(SUMS), GPTLMHead.from_pretrained(SUMS)
    for text in (PROSE, WEB, "", " "):
        assert len(tokenizer.encode(text)) == len(text.encode())
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("27=<think>02</think>13<|endoftext|>")) == 10
    assert len(tokenizer) == model.config.vocab_size
    assert tokenizer.model_max_length == model.config.n_positions
    assert tokenizer.eos_token_id == model.config.eos_token_id
    card = (MODELS / SUMS / "README.md").read_text(encoding="utf-8")
    for said in ("license:", "models/train_sums.py", "seed", f"{model_size(model):,}"):
        assert said in card


def model_size(model: GPTLMHead) -> int:
    return sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize("name", [DRAFT, SMALL])
def test_drafts_read_the_same_ids(name):
    ours, theirs = load_tokenizer(TARGET), load_tokenizer(name)
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.encode(PROSE + WEB) == theirs.encode(PROSE + WEB)


@ALL
def test_it_has_read_fairy_tales(name):
    """Far better than chance, which is 12 bits a token, on a sentence that is in no book."""
    model, tokenizer = GPTLMHead.from_pretrained(name), load_tokenizer(name)
    text = "Then the king said to the princess that she must go into the forest and find the fox."
    ids = tokenizer(text, return_tensors="pt").input_ids
    logits = model(ids, torch.arange(ids.shape[1]).expand_as(ids))
    assert F.cross_entropy(logits[0, :-1], ids[0, 1:]) / math.log(2) < 7


@ALL
def test_its_card_gives_data_recipe_figures_and_license(name):
    card = (MODELS / name / "README.md").read_text(encoding="utf-8")
    for said in ("license:", "Project Gutenberg", "models/train.py", "bits per byte", "MB", "seed"):
        assert said in card
    assert "FILL" not in card
    parameters = sum(weight.numel() for weight in GPTLMHead.from_pretrained(name).parameters())
    assert f"{parameters:,}" in card


# ------------------------------------------------------------- models/measure.py, behind the cards


SIZES = GPTConfig(vocab_size=17, n_positions=48, n_embd=12, n_layer=2, n_head=3)


PROMPTS = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5]]


@pytest.fixture
def few_tokens(monkeypatch):
    monkeypatch.setattr(measure, "NEW_TOKENS", 12)
    monkeypatch.setattr(measure, "OWN_TEXT", 10)


@pytest.mark.usefixtures("few_tokens")
@pytest.mark.parametrize("params", [GREEDY, measure.SAMPLED])
def test_every_way_continues_every_prompt(params):
    target = random_model(CachedLMHead, SIZES, 1)
    drafts = {"other": random_model(CachedLMHead, SIZES, 2), "itself": target}
    tallies = measure.in_turns(target, measure.ways_of(target, drafts), PROMPTS, params, "")
    assert list(tallies) == ["plain", "other", "itself", "n-grams"]
    for tally in tallies.values():
        assert sum(len(done.new) for done in tally.rounds) == len(PROMPTS) * measure.NEW_TOKENS
        assert tally.tokens_per_call == pytest.approx(1 + tally.accepted / len(tally.rounds))
        assert tally.ties == 0
        assert tally.seconds > tally.drafting >= 0
        assert (tally.drafting > 0) == (tally is not tallies["plain"])
    assert (tallies["plain"].proposed, tallies["plain"].tokens_per_call) == (0, 1)
    assert tallies["itself"].accepted == tallies["itself"].proposed > 0
    assert tallies["itself"].acceptance == 1
    assert tallies["other"].acceptance < 1


@pytest.mark.usefixtures("few_tokens")
def test_greedy_plain_decode_is_that_of_lab_1():
    target = random_model(CachedLMHead, SIZES, 1)
    made, _ = measure.plain_decode(target)(PROMPTS[0], GREEDY, torch.Generator())
    expected = generate(
        random_model(GPTLMHead, SIZES, 1), torch.tensor(PROMPTS[:1]), measure.NEW_TOKENS
    )
    assert made.ids == expected[0].tolist()


@pytest.mark.usefixtures("few_tokens")
def test_another_greedy_text_stops_the_measurement():
    target = random_model(CachedLMHead, SIZES, 1)
    plain, other = (
        measure.plain_decode(random_model(CachedLMHead, SIZES, seed)) for seed in (1, 2)
    )
    with pytest.raises(SystemExit, match=r"with other the greedy output differs from token \d+ on"):
        measure.in_turns(target, {"plain": plain, "other": other}, PROMPTS, GREEDY, "")


def test_texts_may_part_where_two_logits_are_equal():
    target, prompt, twin = random_model(CachedLMHead, SIZES, 1), PROMPTS[0], 16
    expected = generate(random_model(GPTLMHead, SIZES, 1), torch.tensor([prompt]), 1)[0].tolist()
    assert twin not in expected
    weight = target.transformer.wte.weight
    weight[twin] = weight[expected[-1]]
    measure.require_tie(target, "draft", expected, [*prompt, twin])
    with pytest.raises(SystemExit, match="Stopped: with draft"):
        measure.require_tie(target, "draft", expected, [*prompt, 15])


def test_a_prediction_by_hand():
    """Of the drafts of 4 rounds, 3 + 1 + 0 are accepted and 2 rejected; one round had none."""
    k = measure.DRAFTS
    accepted = [(k, k), (k, 1), (k, 0), (0, 0)]
    rounds = [Round([7] * count, right, [7] * (right + 1)) for count, right in accepted]
    tally = measure.Tally(seconds=2.0, drafting=0.8, rounds=rounds)
    assert (tally.proposed, tally.accepted) == (3 * k, k + 1)
    assert tally.acceptance == (k + 1) / (k + 3)
    assert tally.tokens_per_call == (k + 5) / 4
    assert tally.tokens_per_second == (k + 5) / 2
    assert tally.seconds_a_draft == pytest.approx(0.8 / (3 * k))
    assert tally.seconds_a_pass == pytest.approx(1.2 / 4)
    tokens = 0.75 * expected_tokens(tally.acceptance, k) + 0.25
    assert tally.predicted_speed_up(step=0.25) == pytest.approx(tokens * 0.25 / (0.8 / 4 + 0.3))
    tally.rounds.pop()
    costs = tally.seconds_a_draft / 0.25, tally.seconds_a_pass / 0.25
    assert tally.predicted_speed_up(step=0.25) == pytest.approx(
        speed_up(tally.acceptance, k, *costs)
    )


def test_prompts_are_taken_from_the_whole_text():
    tokens = torch.arange(100)
    prompts = measure.prompts_of(tokens, 3)
    assert [prompt[0] for prompt in prompts] == [0, 34, 68]
    assert all(prompt == list(range(prompt[0], prompt[0] + 32)) for prompt in prompts)
    with pytest.raises(SystemExit, match="has 31 tokens, and a prompt takes 32"):
        measure.prompts_of(tokens[:31], 3)


@pytest.mark.usefixtures("few_tokens")
def test_it_measures_any_model_with_any_draft(tmp_path, monkeypatch, capsys):
    """A model of random weights, with the tokenizer of ours, and itself as the draft."""
    config = GPT2Config(vocab_size=4096, n_positions=256, n_embd=8, n_layer=3, n_head=2)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "small")
    load_tokenizer(TARGET).save_pretrained(tmp_path / "small")
    text = tmp_path / "text.txt"
    text.write_text(f"{PROSE}\n" * 100, encoding="utf-8")
    small = str(tmp_path / "small")
    monkeypatch.setattr(measure, "ROUNDS", 1)
    arguments = [str(text), "--target", small, "--drafts", small, "--prompts", "2"]
    monkeypatch.setattr(sys, "argv", ["measure.py", *arguments])
    measure.main()
    shown = capsys.readouterr().out
    for said in (
        "bits per byte",
        "T=5 / T=1",
        "2 held-out prompts",
        "temperature 0.8",
        "own, greedy",
    ):
        assert said in shown
    for draft in ("plain", "first 2 layers", "n-grams"):
        assert len(re.findall(rf"^  {draft} +[\d.]+", shown, re.MULTILINE)) == 3


@pytest.mark.parametrize("length", [2, 47, 48, 49, 64, 100, 112])
def test_bits_per_byte_scores_every_token_once_behind_enough_context(length):
    model = random_model(GPTLMHead, SIZES, 1)
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
