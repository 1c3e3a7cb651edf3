"""Run measuring commands on small sizes, and read the tables that they print."""

import sys
from types import ModuleType
from typing import Any

import pytest


def resize(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, *options: str, **sizes: Any
) -> None:
    """Set constants of a module, and its command's options instead of pytest's."""
    monkeypatch.setattr(sys, "argv", [module.__name__, *options])
    for name, value in sizes.items():
        monkeypatch.setattr(module, name, value)


def table_in(printed: str) -> list[list[str]]:
    """Return the cells of a Markdown table by row, header first, without the line below it."""
    lines = [line for line in printed.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return rows[:1] + rows[2:]
