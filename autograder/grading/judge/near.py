"""The trusted end of the wire: what an attempt may ask for."""

import dataclasses
import math
import socket
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from autograder.attempt.failure import TooMuchWork
from autograder.attempt.peer import Far, Message, Peer
from autograder.attempt.plain import Strange
from autograder.attempt.shown import ShownModel
from autograder.attempt.wire import WireError
from autograder.judging.exercise import Lends
from autograder.judging.interrupt import LOOK

MOST_QUESTIONS = 20_000  # of one run
LARGEST = 100_000  # of the numbers in a question that may be sizes
LARGEST_PRODUCT = 10_000_000  # of the largest of them and their number
MOST_FOR_A_MODEL, MOST_FOR_OTHERS = 1 << 15, 1 << 13  # numbers in all


class Lent:
    """A right solution of another exercise, which an attempt calls over the wire."""

    lends = Lends(call={""})

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class Near(Peer):
    """The oracle's end. module: the lab's reference, whose functions take its small classes."""

    def __init__(self, connection: socket.socket, module: ModuleType) -> None:
        super().__init__(connection)
        connection.settimeout(LOOK)
        self.module = module
        self.questions = 0
        self.numbers: dict[BaseException, int | None] = {}  # of errors that came over the wire

    def allows(self, thing: Any, verb: str, name: str) -> bool:
        return thing.lends.allows(verb, name)

    def made(self, name: str, fields: dict[str, Any]) -> Any:
        cls = getattr(self.module, name, None)
        if isinstance(cls, type) and (dataclasses.is_dataclass(cls) or hasattr(cls, "_fields")):
            try:
                return cls(**fields)
            except TypeError as error:
                raise WireError(f"no {name}: {error}") from None
        return SimpleNamespace(**fields)

    def answer(self, question: Any) -> None:
        self.questions += 1
        if self.questions > MOST_QUESTIONS:
            raise TooMuchWork(
                f"It was stopped after {MOST_QUESTIONS:,} calls of the functions it was given, far "
                "more than are needed. Does every loop end?"
            )
        super().answer(question)

    def ask(self, number: int, verb: str, name: str, *given: Any) -> Any:
        return measured(super().ask(number, verb, name, *given))

    def method_or_value(self, number: int, name: str) -> Any:
        return measured(super().method_or_value(number, name))

    def error(self, name: str, args: list[Any], number: int | None) -> BaseException:
        """Make the error, and note the number by which it is sent back as the same object."""
        found = super().error(name, args, number)
        self.numbers[found] = number
        return found

    def told(self, error: Exception) -> list[Any]:
        return [*super().told(error)[:2], self.numbers.get(error)]

    def done(self, thing: Any, verb: str, name: str, given: list[Any]) -> Message:
        """Refuse more or larger numbers than any case would pass."""
        is_model = isinstance(thing, ShownModel)
        if size_of(given) > (MOST_FOR_A_MODEL if is_model else MOST_FOR_OTHERS):
            raise WireError("It passes far more than what the case has.")
        return super().done(thing, verb, name, given)


def measured(found: Any) -> Any:
    """Return what an attempt's object gave back, unless it is too large to compute with here."""
    if not callable(found) and size_of(found) > MOST_FOR_A_MODEL:
        raise WireError("It returns far more than what the case has.")
    return found


@dataclasses.dataclass
class Extent:
    """How much is passed.

    numbers: in all. sizes, largest: the number and the largest of those that may be a size, which
    are whole numbers and single floats.
    """

    numbers: float = 0
    sizes: int = 0
    largest: float = 0

    @property
    def is_large(self) -> bool:
        return self.largest > LARGEST or self.largest * self.sizes > LARGEST_PRODUCT

    def add(self, given: Any) -> None:
        self.numbers += 1
        if isinstance(given, Tensor):
            self.numbers += given.numel() + given.ndim
            if not given.is_floating_point() and given.dtype != torch.bool and given.numel():
                self.note(given.numel(), float(given.double().abs().max()))
        elif isinstance(given, (str, bytes)):
            self.numbers += len(given) / 8
        elif isinstance(given, (int, float)):
            no_size = isinstance(given, float) and not math.isfinite(given)
            self.note(1, 0 if no_size else abs(given))
        elif isinstance(given, (list, tuple, deque)):
            self.add_all(given)
        elif isinstance(given, Mapping):
            self.add_all([*given, *given.values()])
        elif isinstance(given, SimpleNamespace) or dataclasses.is_dataclass(given):
            self.add_all(vars(given).values())
        elif not (given is None or isinstance(given, (Far, Strange)) or hasattr(given, "lends")):
            self.numbers = math.inf

    def add_all(self, things: Iterable[Any]) -> None:
        for thing in things:
            self.add(thing)

    def note(self, sizes: int, largest: float) -> None:
        self.sizes, self.largest = self.sizes + sizes, max(self.largest, largest)


def size_of(given: Any) -> float:
    """Return how many numbers there are; infinity if they are far too large."""
    extent = Extent()
    extent.add(given)
    return math.inf if extent.is_large else extent.numbers
