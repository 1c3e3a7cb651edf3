"""models/train.py: any text becomes a model that loads, in a run that may be interrupted."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from gpt import GPTLMHead, load_tokenizer
from models import train as training
from models import uptrain
from solutions.generate import generate
from tests.common.checkpoints import tale


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    monkeypatch.setattr(training, "TOKENS_PER_STEP", 128)
    monkeypatch.setattr(training, "CHECKPOINT_EVERY", 3)
    monkeypatch.setattr(training, "OWN_EXAMPLES", 8)


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "tales.txt"
    path.write_text(tale(300))
    return path


def run(text: Path, out: Path, *options: str) -> Path:
    """Train a tiny model for eight steps, unless `options` say otherwise."""
    small = ["--layers=1", "--width=16", "--heads=2", "--context=32", "--vocab=300", "--steps=8"]
    training.train(training.parse_arguments([str(text), f"--out={out}", *small, *options]))
    return out


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def same_weights(one: Path, other: Path) -> bool:
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(a[name].equal(b[name]) for name in a)


def refusal(*arguments) -> str:
    with pytest.raises(SystemExit) as caught:
        run(*arguments)
    return str(caught.value)


def test_it_writes_a_folder_that_gpt_and_transformers_load_alike(text, tmp_path, capfd):
    out = run(text, tmp_path / "out")
    printed, progress = capfd.readouterr()
    assert "bits/byte" in printed
    assert printed.count("Once upon a time") == 1
    assert "8/8" not in progress  # a bar is for terminals
    assert "longer than the specified maximum" not in printed + progress

    assert {weight.dtype for weight in weights(out).values()} == {torch.float16}
    theirs, mine = AutoModelForCausalLM.from_pretrained(out), GPTLMHead.from_pretrained(out)
    assert theirs.dtype == torch.float32
    assert (mine.config.n_positions, mine.config.vocab_size) == (32, 300)
    tokenizer = AutoTokenizer.from_pretrained(out)
    sentence = "The witch forgot the naïve fox.\n"
    assert tokenizer.decode(tokenizer.encode(sentence)) == sentence
    assert tokenizer.eos_token_id == mine.config.eos_token_id == theirs.config.eos_token_id
    ids = tokenizer(sentence, return_tensors="pt").input_ids
    logits = mine(ids, torch.arange(ids.shape[1]).expand_as(ids))
    torch.testing.assert_close(logits, theirs(ids).logits)


def test_it_learns(text, tmp_path, capsys):
    def held_out_nats(steps: int) -> float:
        run(text, tmp_path / str(steps), "--steps", str(steps), "--lr", "0.01")
        line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("held-out"))
        return float(line.split()[2])

    assert held_out_nats(60) < 0.7 * held_out_nats(1)


def test_the_same_seed_gives_the_same_model_and_another_seed_another(text, tmp_path):
    first, second = run(text, tmp_path / "1"), run(text, tmp_path / "2")
    assert same_weights(first, second)
    assert not same_weights(first, run(text, tmp_path / "3", "--seed", "2"))


@pytest.mark.parametrize("options", [(), ("--teacher", "teacher")], ids=["target", "draft"])
def test_an_interrupted_run_goes_on_to_the_same_weights(text, tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    run(text, Path("teacher"))
    whole = run(text, Path("whole"), *options)
    draw_windows = training.draw_windows
    steps_seen: list[tuple] = []

    def watched(*arguments):
        if len(steps_seen) == 4:
            raise KeyboardInterrupt
        steps_seen.append(arguments)
        return draw_windows(*arguments)

    monkeypatch.setattr(training, "draw_windows", watched)
    with pytest.raises(KeyboardInterrupt):
        run(text, Path("parts"), *options)
    monkeypatch.setattr(training, "draw_windows", draw_windows)
    assert not Path("parts/model.safetensors").exists()
    assert torch.load("parts/checkpoint.pt", weights_only=True)["step"] == 3

    parts = run(text, Path("parts"), *options)
    assert same_weights(whole, parts)
    assert not (parts / "checkpoint.pt").exists()


def test_a_draft_learns_from_the_target_and_shares_its_tokenizer(text, tmp_path):
    target = run(text, tmp_path / "target", "--layers", "2", "--vocab", "280")
    draft = run(text, tmp_path / "draft", "--teacher", str(target))
    assert (draft / "tokenizer.json").read_text() == (target / "tokenizer.json").read_text()
    assert GPTLMHead.from_pretrained(draft).config.vocab_size == 280
    assert load_tokenizer(draft).encode("The fox") == load_tokenizer(target).encode("The fox")
    other = run(text, tmp_path / "other", "--layers", "2", "--vocab", "280", "--seed", "2")
    from_another = run(text, tmp_path / "another", "--teacher", str(other))
    assert not same_weights(draft, from_another)


def test_distillation_is_zero_where_the_draft_agrees_and_kl_where_it_does_not():
    teacher = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    student = torch.tensor([[5.0, 5.0], [0.0, torch.log(torch.tensor(3.0))]])
    loss = training.distillation_loss(student, teacher)
    kl = 0.5 * torch.log(torch.tensor(2.0)) + 0.5 * torch.log(torch.tensor(2 / 3))
    torch.testing.assert_close(loss, kl / 2)  # the first row agrees; the loss is a mean of rows


def test_neither_tokenizer_nor_weights_see_what_is_held_out(text, tmp_path):
    whole = text.read_text()
    held_out = whole[int(len(whole) * 0.97) :]
    changed = tmp_path / "changed.txt"
    changed.write_text(whole.removesuffix(held_out) + ("zyzzyva " * len(held_out))[: len(held_out)])
    one, other = run(text, tmp_path / "1"), run(changed, tmp_path / "2")
    assert (one / "tokenizer.json").read_text() == (other / "tokenizer.json").read_text()
    assert same_weights(one, other)


def test_examples_are_stretches_of_the_text_that_follow_the_seed():
    tokens = torch.arange(1000)
    examples = training.draw_windows(tokens, 32, seed=1, batch=4)
    assert examples.shape == (4, 33)
    assert (examples.diff(dim=1) == 1).all()
    assert examples.equal(training.draw_windows(tokens, 32, seed=1, batch=4))
    assert not examples.equal(training.draw_windows(tokens, 32, seed=2, batch=4))


def test_the_teachers_own_text_is_what_it_says_greedily_behind_prompts(text, tmp_path):
    folder = run(text, tmp_path / "target")
    teacher, tokenizer = training.load_teacher(folder, 32)
    tokens = training.encode(tokenizer, text.read_text())
    own = training.own_text(teacher, tokens, 32, seed=1)
    assert own.shape == (8, 1 + 2)
    model = GPTLMHead.from_pretrained(folder)
    assert own.equal(generate(model, own[:, :1], 2))
    assert own.equal(training.own_text(teacher, tokens, 32, seed=1))


def test_a_text_that_is_too_short(tmp_path):
    for sentences in (0, 2):
        (tmp_path / "short.txt").write_text(tale(sentences))
        message = refusal(tmp_path / "short.txt", tmp_path / "out")
        assert "is too short" in message
        assert "--context 32" in message


def test_a_text_that_is_not_utf8_or_not_there(tmp_path):
    (tmp_path / "latin.txt").write_bytes("Der König".encode("latin-1"))
    assert "is not UTF-8 text" in refusal(tmp_path / "latin.txt", tmp_path / "out")
    assert "cannot be read" in refusal(tmp_path / "nothing.txt", tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--layers", "2"], "with layers = 1 instead of 2"),
        (["--heads", "4"], "with heads = 2"),
        (["--vocab", "290"], "with vocab = 300"),
    ],
)
def test_a_checkpoint_of_another_run(text, tmp_path, monkeypatch, options, named):
    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "held_out_loss", killed)  # it follows the first checkpoint
    with pytest.raises(KeyboardInterrupt):
        run(text, tmp_path / "out")
    message = refusal(text, tmp_path / "out", *options)
    assert "belongs to another run" in message
    assert named in message

    text.write_text(tale(300, seed=1))
    assert "with text hash = " in refusal(text, tmp_path / "out")


def test_settings_that_cannot_work(text, tmp_path):
    out = tmp_path / "out"
    assert "--vocab must be above 256" in refusal(text, out, "--vocab", "256")
    assert "must be a multiple of --heads 3" in refusal(text, out, "--heads", "3")
    assert "has no model" in refusal(text, out, "--teacher", str(tmp_path / "nobody"))
    teacher = run(text, tmp_path / "teacher")
    message = refusal(text, out, "--teacher", str(teacher), "--context", "64")
    assert "Pass --context 32 or less" in message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "said"),
    [
        (training, ["--out models/fable-draft", "--teacher"]),
        (uptrain, ["python models/uptrain.py books.txt", "--kv-heads"]),
    ],
)
def test_the_help_says_how_to_train(module, said):
    command = [sys.executable, module.__file__, "--help"]
    shown = subprocess.run(command, capture_output=True, text=True)
    assert shown.returncode == 0
    assert all(words in shown.stdout for words in said)
