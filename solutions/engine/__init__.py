"""Lab 7: the engine. Read sequence, managers, scheduler, runner, engine, in this order."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """What engine.py defines, by a shorter name.

    It is looked up late: the file that answers the lab is absent where a student's engine runs.
    """
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(import_module("solutions.engine.engine"), name)
