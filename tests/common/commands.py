"""Commands that measure, run on something small: their sizes, and the tables that they print."""

import sys
from types import ModuleType
from typing import Any

import pytest


def resize(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, *options: str, **sizes: Any
) -> None:
    """Constants of a module, and the options of its command in place of pytest's."""
    monkeypatch.setattr(sys, "argv", [module.__name__, *options])
    for name, value in sizes.items():
        monkeypatch.setattr(module, name, value)


def table_in(printed: str) -> list[list[str]]:
    """The cells of a Markdown table, row by row, its head first and without the line below that."""
    lines = [line for line in printed.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return rows[:1] + rows[2:]
