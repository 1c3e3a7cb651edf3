"""The inputs of a row: a checkpoint, a device, and the reference's or a learner's labs."""

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

from gpt import GPTLMHead
from solutions import families
from solutions.engine.chosen_model import ChosenLMHead
from solutions.engine.products import PRODUCTS, Products
from solutions.kv_cache import CachedLMHead
from timing.table.lossy import ungrouped
from timing.table.runs import NotTimed, Prepared

SLOTS = 16
BLOCK_SIZE = 16


def reference(lab: str) -> ModuleType:
    return importlib.import_module(f"solutions.{lab}")


@functools.cache  # several rows run the same model
def load(model: Any, *given: Any) -> Any:
    return model.from_pretrained(*given)


@functools.cache
def load_family(folder: Path, device: torch.device) -> Any:
    return families.load_model(folder).to(device)


@functools.cache
def choose(model: Any, products: Products) -> Any:
    return ChosenLMHead(model, products).eval()


@dataclass(frozen=True)
class Bench:
    """lab: returns a lab's module, the reference's or one with a learner's own functions."""

    folder: Path
    device: torch.device
    lab: Callable[[str], ModuleType] = reference
    products: Products = PRODUCTS

    def load(self, model: Any = CachedLMHead) -> Any:
        """Load the checkpoint into a model of this class, by default one that takes a cache.

        In another family than GPT-2's one class is the naive model and takes a cache.
        """
        if families.is_gpt2(self.folder):
            return load(model, self.folder, self.device)
        if model not in (GPTLMHead, CachedLMHead):
            self.require_gpt2(f"{model.__name__} is made of GPT-2's blocks")
        return load_family(self.folder, self.device)

    def quick(self) -> Any:
        """Load a model that multiplies by `products`, for any cache of the labs."""
        return ungrouped(self.for_engine())

    def for_engine(self) -> Any:
        """Load the same for lab 7's engine, which shares a KV head among query heads (lab 20)."""
        return choose(self.load(), self.products)

    def require_gpt2(self, why: str) -> None:
        """Raise NotTimed, with the reason, for a model of another family."""
        if not families.is_gpt2(self.folder):
            raise NotTimed(f"{why}, and {self.folder.name} is of another family.")


Prepare = Callable[[Bench], Prepared]
Rows = dict[str, dict[str, Prepare]]


@dataclass(frozen=True)
class Own:
    """A technique that a learner may have written.

    parts: functions of the lab; if one of them is the learner's own, so is the technique.
    """

    about: str
    lab: str
    parts: Sequence[str]
    kinds: Sequence[str]
    prepare: Prepare


def is_learners(lab: ModuleType, part: str) -> bool:
    """Return whether a function of a lab's module, given by its path, isn't the reference's."""
    function = inspect.unwrap(attrgetter(part)(lab))
    assert lab.__file__ is not None
    return Path(function.__code__.co_filename).parent != Path(lab.__file__).parent
