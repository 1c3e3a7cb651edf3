"""Lab 7: the engine. Read sequence, managers, scheduler, products, watcher, runner, engine."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """Return a name that engine.py defines, so that `solutions.engine` has it too.

    The file is imported late, because it holds the lab's answer and is absent in the sandbox.
    """
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(import_module("solutions.engine.engine"), name)
