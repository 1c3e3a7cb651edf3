"""Lab 7: the engine.

Read limits, sequence, managers, scheduler, products, watcher, runner and engine, in turn.
"""

from importlib import import_module
from typing import Any

from solutions.engine.limits import or_four_numbers

__all__ = [
    *("chosen_model", "engine", "integrity", "limits", "managers", "products", "runner"),
    *("scheduler", "sequence", "watcher"),
]


def __getattr__(name: str) -> Any:
    """Return a name that engine.py defines, so that `solutions.engine` has it too.

    The file is imported late, because it holds the lab's answer and is absent in the sandbox. Labs
    take `new_engine` from here, so this one also takes the limits as older copies of them give it.
    """
    if name.startswith("__"):
        raise AttributeError(name)
    value = getattr(import_module("solutions.engine.engine"), name)
    return or_four_numbers(value) if name == "new_engine" else value
