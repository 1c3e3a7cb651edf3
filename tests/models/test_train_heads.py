"""models/train_heads.py: heads for a model that itself stays as it is."""

from pathlib import Path

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
    sizes = {"PROMPT": 4, "NEW": 8, "HEADS": 2, "EXAMPLES": 6, "STEPS": 5, "BATCH": 2}
    for name, size in sizes.items():
        monkeypatch.setattr(train_heads, name, size)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "tales.txt"
    path.write_text(tale(900), encoding="utf-8")
    return path


def train(text: Path, out: Path) -> dict[str, torch.Tensor]:
    train_heads.report(text, out)
    return Heads.from_pretrained(out).state_dict()


def test_trained_heads_are_written_and_their_hits_are_told(text, tmp_path, capsys):
    heads = train(text, tmp_path / "out")
    assert all(weight.any() for weight in heads.values())
    head_0, head_1 = capsys.readouterr().out.splitlines()
    assert head_0.startswith("head 0, 2 tokens ahead: ")
    assert head_1.startswith("head 1, 3 tokens ahead: ")


def test_the_same_run_ends_with_the_same_heads(text, tmp_path):
    one, other = (train(text, tmp_path / name) for name in ("one", "other"))
    assert all(torch.equal(other[name], weight) for name, weight in one.items())


def test_a_text_that_is_too_short(text, tmp_path):
    text.write_text(tale(9), encoding="utf-8")
    with pytest.raises(SystemExit, match=r"tales.txt is too short: the last 3% of it have"):
        train(text, tmp_path / "out")
