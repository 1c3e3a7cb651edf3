"""models/train_heads.py: heads for a model that itself stays as it is."""

from pathlib import Path
from typing import Any

import pytest
import torch

from models import train_heads
from solutions.parallel.proposers import Heads
from tests.common.checkpoints import tale, write_tiny


@pytest.fixture(autouse=True)
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny model stands for fable."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    write_tiny(folder, n_positions=32, n_embd=16)
    monkeypatch.setattr(train_heads, "MODEL", str(folder))
    monkeypatch.setattr(train_heads, "CHECKPOINT_EVERY", 2)
    monkeypatch.setattr(train_heads, "PROMPT", 4)
    monkeypatch.setattr(train_heads, "NEW", 8)
    monkeypatch.setattr(train_heads, "HELD_OUT", 3)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "tales.txt"
    path.write_text(tale(900), encoding="utf-8")
    return path


def train(text: Path, out: Path, *options: str) -> Any:
    sizes = "--steps=5", "--batch=2", "--examples=6", "--heads=2"
    train_heads.report(
        train_heads.parse_arguments([str(text), "--out", str(out), *sizes, *options])
    )
    return Heads.from_pretrained(out).state_dict()


def test_trained_heads_are_written_and_their_hits_are_told(text, tmp_path, capsys):
    heads = train(text, tmp_path / "out")
    assert all(weight.any() for weight in heads.values())
    head_0, head_1 = capsys.readouterr().out.splitlines()
    assert head_0.startswith("head 0, 2 tokens ahead: ")
    assert head_1.startswith("head 1, 3 tokens ahead: ")


def test_an_interrupted_run_ends_with_the_same_heads(text, tmp_path, monkeypatch):
    whole, steps = train(text, tmp_path / "whole"), iter(range(4))
    loss = train_heads.heads_loss

    def interrupted(*given: Any) -> Any:
        if next(steps) == 3:
            raise KeyboardInterrupt
        return loss(*given)

    with monkeypatch.context() as patch:
        patch.setattr(train_heads, "heads_loss", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(text, tmp_path / "parts")
    resumed = train(text, tmp_path / "parts")
    assert all(torch.equal(resumed[name], weight) for name, weight in whole.items())


def test_another_run_is_not_continued(text, tmp_path):
    train(text, tmp_path / "out")
    with pytest.raises(SystemExit, match=r"belongs to a run with .*'lr': 0.004"):
        train(text, tmp_path / "out", "--lr=0.1")


def test_a_text_that_is_too_short(text, tmp_path):
    text.write_text(tale(9), encoding="utf-8")
    with pytest.raises(SystemExit, match=r"tales.txt is too short: the last 3% of it have"):
        train(text, tmp_path / "out")


@pytest.mark.parametrize("option", ["--steps=0", "--heads=0", "--lr=0", "--examples=0"])
def test_numbers_that_cannot_work(option, capsys):
    with pytest.raises(SystemExit):
        train_heads.parse_arguments(["tales.txt", "--out", "out", option])
    assert "must be above 0" in capsys.readouterr().err
