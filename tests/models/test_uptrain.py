"""models/uptrain.py: grouped heads after a little training, beside a control that got the same."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gpt import load_tokenizer
from models import uptrain
from models.train import encode
from solutions.kv_cache import CachedLMHead
from solutions.kv_reduction import WindowCache, pool_heads
from solutions.kv_variants.grouped_model import grouped
from solutions.quality.bits_per_byte import Loss, passages
from tests.common.checkpoints import tale, write_tiny
from tests.common.engines import CONFIGS, assert_same, model_of

CONTEXT, HEADS = 32, 4
NOTHING = Loss(0.0, 0.0)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the tiny model that stands for fable."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    write_tiny(folder, n_positions=CONTEXT, n_embd=16, n_head=HEADS)
    monkeypatch.setattr(uptrain, "MODEL", str(folder))
    return folder


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "tales.txt"
    path.write_text(tale(300), encoding="utf-8")
    return path


def rows_of(model: Any, text: Path, *options: str) -> list[uptrain.Row]:
    args = uptrain.parse_arguments([str(text), "--steps=3", "--batch=2", *options])
    tokens = encode(load_tokenizer("fable"), text.read_text(encoding="utf-8"))
    return [*uptrain.rows(model, tokens, passages(length=CONTEXT), args)]


def report(text: Path, *options: str) -> None:
    uptrain.report(uptrain.parse_arguments([str(text), "--steps=2", "--batch=2", *options]))


def refusal(text: Path, *options: str) -> str:
    with pytest.raises(SystemExit) as caught:
        report(text, *options)
    return str(caught.value)


# ------------------------------------------------------------------------------- what is trained


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_a_whole_text_is_attended_to_as_through_a_cache(kv_heads: int) -> None:
    config = CONFIGS[1]
    model = grouped(model_of(CachedLMHead, config, 0), kv_heads, pool_heads)
    ids = torch.randint(config.vocab_size, (2, config.n_positions))
    positions = torch.arange(config.n_positions).expand_as(ids)
    through_cache = model(ids, positions, WindowCache(config.n_layer, config.n_positions))
    assert_same(uptrain.logits_of(model, ids), through_cache)


def test_training_changes_every_weight_and_makes_the_text_likelier(folder, text):
    model = grouped(CachedLMHead.from_pretrained(folder), 2, pool_heads)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    tokens = encode(load_tokenizer("fable"), text.read_text())
    stretches = tokens.unfold(0, CONTEXT, CONTEXT)[:5]
    bits = uptrain.bits_of(model, [*stretches])
    uptrain.uptrain(model, tokens, steps=20, lr=0.02, batch=8)
    assert (uptrain.bits_of(model, [*stretches]) < bits).all()
    assert not any(weight.equal(before[name]) for name, weight in model.named_parameters())
    assert not any(weight.requires_grad for weight in model.parameters())


def test_every_model_gets_the_same_windows_in_the_same_order(folder, text, monkeypatch):
    seen: list[Tensor] = []
    draw_windows = uptrain.draw_windows

    def watched(*arguments):
        seen.append(draw_windows(*arguments))
        return seen[-1]

    monkeypatch.setattr(uptrain, "draw_windows", watched)
    rows_of(CachedLMHead.from_pretrained(folder), text, "--kv-heads", "2", "1")
    control, two, one = seen[:3], seen[3:6], seen[6:]
    assert {tuple(windows.shape) for windows in seen} == {(2, CONTEXT + 1)}
    assert not control[0].equal(control[1])
    for others in (two, one):
        assert all(a.equal(b) for a, b in zip(control, others, strict=True))


# ------------------------------------------------------------------------------------- the table


def test_with_all_its_heads_a_model_is_its_own_control(folder, text):
    model = CachedLMHead.from_pretrained(folder)
    control, again, pooled = rows_of(model, text, "--kv-heads", str(HEADS), "1")
    assert control == again
    assert (control.kv_heads, control.pooled, control.beside_control) == (HEADS, NOTHING, NOTHING)
    assert control.after != NOTHING
    assert pooled.pooled.bits != 0
    beside = pooled.after.bits - control.after.bits
    assert pooled.beside_control.bits == pytest.approx(beside, abs=1e-5)


def test_the_same_command_gives_the_same_rows_and_leaves_the_model_as_it_was(folder, text):
    model = CachedLMHead.from_pretrained(folder)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    files = {file: file.read_bytes() for file in folder.iterdir()}
    assert rows_of(model, text) == rows_of(model, text)
    assert all(weight.equal(before[name]) for name, weight in model.named_parameters())
    assert not any(weight.requires_grad for weight in model.parameters())
    assert {file: file.read_bytes() for file in folder.iterdir()} == files


def test_the_table(text, capsys):
    report(text, "--kv-heads", "2", "1")
    printed, progress = capsys.readouterr()
    header, rule, *lines = printed.splitlines()
    named = "| KV heads | KB per token | pooled | after 2 steps | compared with the control |"
    assert header == named
    assert rule.count("|") == named.count("|")
    cells = [line.strip("| ").split(" | ") for line in lines]
    # Keys and values of 2 layers, 4 numbers a head, 4 bytes a number.
    assert [(name, size) for name, size, *_ in cells] == [
        ("4, the control", "0.25"),
        ("2", "0.125"),
        ("1", "0.0625"),
    ]
    assert cells[0][2] == cells[0][4] == "+0.0000 ± 0.0000"
    assert "uptraining" not in progress  # a bar is for terminals


def test_an_interrupt_loses_one_row(text, capsys, monkeypatch):
    uptrained = uptrain.uptrain
    done: list[int] = []

    def interrupted(*arguments):
        if len(done) == 2:
            raise KeyboardInterrupt
        uptrained(*arguments)
        done.append(1)

    monkeypatch.setattr(uptrain, "uptrain", interrupted)
    with pytest.raises(KeyboardInterrupt):
        report(text, "--kv-heads", "2", "1")
    _, _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines] == ["| 4, the control", "| 2"]


# ------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("kv_heads", ["3", "8", "0", "-2"])
def test_heads_that_cannot_be_shared_out(text, kv_heads):
    message = refusal(text, "--kv-heads", "2", kv_heads)
    assert message.startswith("--kv-heads: 4 query heads can't be divided evenly among")
    assert f"among {kv_heads} KV heads" in message


def test_a_text_that_is_too_short(tmp_path):
    (tmp_path / "short.txt").write_text(tale(3))
    message = refusal(tmp_path / "short.txt")
    assert "is too short" in message
    assert f"a window takes {CONTEXT + 1}" in message


@pytest.mark.parametrize("changed", [lambda held: held, lambda held: "_" + held.replace(" ", "\n")])
def test_a_text_that_holds_a_passage_where_it_would_be_trained_on(text, changed):
    """Whatever its line ends and marks. In the last 3%, which are left out, it does no harm."""
    passage = changed(load_tokenizer("fable").decode(passages(length=CONTEXT)[7]))
    books = tale(300)
    text.write_text(books[:900] + passage + books[900:], encoding="utf-8")
    assert "has a passage of held_out.txt in its first 97%" in refusal(text)
    text.write_text(books + passage, encoding="utf-8")
    report(text, "--kv-heads", "1")


@pytest.mark.parametrize("option", ["--steps=0", "--lr=0", "--lr=-1", "--batch=0"])
def test_numbers_that_cannot_work(text, option, capsys):
    with pytest.raises(SystemExit):
        uptrain.parse_arguments([str(text), option])
    assert "--steps, --lr and --batch must be above 0." in capsys.readouterr().err
