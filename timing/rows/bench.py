"""What a row is prepared from: a checkpoint, a device, and somebody's labs."""

import functools
import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from solutions.kv_cache import CachedLMHead
from timing.table.runs import Prepared

SLOTS = 16
BLOCK_SIZE = 16


def reference(lab: str) -> ModuleType:
    return importlib.import_module(f"solutions.{lab}")


@functools.cache  # several rows run the same model
def load(model: Any, folder: Path, device: torch.device) -> Any:
    return model.from_pretrained(folder, device)


@dataclass(frozen=True)
class Bench:
    """lab: gives a lab's module, the reference's or one that holds a learner's own functions."""

    folder: Path
    device: torch.device
    lab: Callable[[str], ModuleType] = reference

    def load(self, model: Any = CachedLMHead) -> Any:
        """The checkpoint in a model of this class, by default one that takes a cache."""
        return load(model, self.folder, self.device)


Prepare = Callable[[Bench], Prepared]
Rows = dict[str, dict[str, Prepare]]


@dataclass(frozen=True)
class Own:
    """A technique of the course that a learner may have written.

    parts: functions of the lab; where one of them is the learner's own, so is the technique.
    """

    about: str
    lab: str
    parts: Sequence[str]
    kinds: Sequence[str]
    prepare: Prepare


def is_learners(lab: ModuleType, part: str) -> bool:
    """Whether a function of a lab's module, given by its path, is not the reference's."""
    function = inspect.unwrap(attrgetter(part)(lab))
    assert lab.__file__ is not None
    return Path(function.__code__.co_filename).parent != Path(lab.__file__).parent
