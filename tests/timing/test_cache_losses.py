"""The table of what a smaller KV cache loses."""

import re

import pytest
import torch

from tests.common.checkpoints import write_tiny
from tests.common.commands import resize, table_in
from timing import cache_losses
from timing.cache_losses import evenly, first_head


@pytest.mark.slow
def test_every_way_has_its_row(tmp_path, monkeypatch, capsys):
    write_tiny(tmp_path, n_positions=64, n_embd=32)
    sizes = {"LENGTH": 64, "SCORED": 16, "KEPT": (32, 16), "FEW": 40, "GROUP": 8, "RECENT": 8}
    options = "--passages", "2"
    resize(monkeypatch, cache_losses, *options, MODEL=str(tmp_path), FEWER_HEADS=(2, 1), **sizes)
    cache_losses.main()
    about, *tables = capsys.readouterr().out.strip().split("\n\n")
    assert "on the last 16 of 64 tokens of 2 passages" in about
    counts = {}
    for (title, *_), *rows in map(table_in, tables):
        counts[title] = len(rows)
        for name, lost, size in rows:
            assert name
            assert re.fullmatch(r"[+-]\d\.\d{4} ± \d\.\d{4}", lost)
            assert re.fullmatch(r"[\d,]+|–", size)
    assert counts == {
        "fewer tokens": 2 * 4,
        "40 tokens: which?": 5,
        "40 tokens: where?": 6,
        "fewer bits": 3 * 4,
        "fewer heads, without training": 2 * 2,
    }


def test_positions_are_spread_evenly(monkeypatch):
    monkeypatch.setattr(cache_losses, "LENGTH", 24)
    assert evenly(4) == [3, 9, 15, 21]
    assert evenly(1) == [12]


def test_the_first_head_of_a_group_stands_for_it():
    """Of columns q0 q1 k0 k1 v0 v1, with heads of one number."""
    weight, bias = torch.arange(12.0).view(2, 6), torch.arange(6.0)
    found = first_head(weight, bias, n_head=2, kv_heads=1)
    assert found[0].tolist() == [[0, 1, 2, 4], [6, 7, 8, 10]]
    assert found[1].tolist() == [0, 1, 2, 4]
