"""What the commands that measure have in common: their arguments, and where they print."""

import argparse
import importlib.util
import os
import sys
from pathlib import Path
from typing import NoReturn

from rich.console import Console


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One sentence, without the usage that would bury it."""
        self.exit(2, f"{self.prog}: {message}\n")


def whole_number(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 up.")
    return int(text)


def thread_count(text: str) -> int:
    threads, cores = whole_number(text), os.cpu_count() or 1
    if threads > cores:
        raise argparse.ArgumentTypeError(f"{threads} is too many: this machine has {cores} cores.")
    return threads


def writable_file(text: str) -> Path:
    path = Path(text)
    target = path if path.exists() else path.parent
    if path.is_dir() or not target.exists() or not os.access(target, os.W_OK):
        raise argparse.ArgumentTypeError(
            f"{text} cannot be written. Name a file in a folder that exists and is yours to write."
        )
    return path


def has_matplotlib() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def has_pictures() -> bool:
    """Return whether the labs' pictures can be drawn."""
    return has_matplotlib() and importlib.util.find_spec("ipywidgets") is not None


def plot_file(text: str) -> Path:
    if not has_matplotlib():
        raise argparse.ArgumentTypeError("it needs matplotlib: pip install matplotlib.")
    return writable_file(text)


def new_console() -> Console:
    width = None if sys.stdout.isatty() else 100
    return Console(width=width, highlight=False, markup=False, emoji=False)
