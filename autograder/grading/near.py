"""The trusted end of the wire: what an attempt may ask for, and how long it is waited for."""

import dataclasses
import socket
import time
from collections.abc import Callable, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from autograder.failure import TooMuchWork
from autograder.grading.jail import Sandbox
from autograder.sandbox.peer import Peer
from autograder.sandbox.wire import WireError

TICK = 0.25  # seconds between two looks at what a silent process does
IDLE = 10.0  # seconds without any work, after which nothing is expected any more
HURRY = 20  # times its processor time may pass on the clock: others want the processor too
MOST_QUESTIONS = 20_000  # of one run
MOST_NUMBERS, LARGEST = 1 << 15, 100_000  # handed over with a question


class Stopped(Exception):
    """Why an attempt was not waited for any longer."""


class Watch:
    """Looks at what a sandbox does while nothing comes from it. `used` is its processor time."""

    def __init__(self, sandbox: Sandbox, seconds: float) -> None:
        self.sandbox, self.seconds = sandbox, seconds
        self.idle = min(IDLE, seconds)
        self.start = self.busy = sandbox.used()
        self.began = self.since = time.monotonic()

    def look(self) -> None:
        """Raise Stopped where there is nothing to wait for."""
        now, used = time.monotonic(), self.sandbox.used()
        if used - self.start > 1.2 * self.seconds + 1 or now - self.began > HURRY * self.seconds:
            raise Stopped(
                f"It was stopped after {self.seconds:.0f} seconds. Does every loop come to its end?"
            )
        if used - self.busy > 0.02:
            self.busy, self.since = used, now
        elif now - self.since > self.idle:
            raise Stopped(
                "It was stopped: it waited for something that doesn't come (a lock, an input, a "
                "sleep without an end)."
            )


    def waited(self) -> float:
        """Seconds on the clock, of which nothing came for the last; 0 while it works."""
        return time.monotonic() - self.since


class Lent:
    """A right solution of another exercise, to be called from over there."""

    lends = frozenset({""})

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class Near(Peer):
    """The oracle's end. module: the lab's reference, whose small classes its functions take."""

    def __init__(self, connection: socket.socket, watch: Watch, module: ModuleType) -> None:
        super().__init__(connection)
        connection.settimeout(TICK)
        self.watch, self.module = watch, module
        self.questions = 0

    def tick(self) -> None:
        self.watch.look()

    def allows(self, thing: Any, verb: str, name: str) -> bool:
        return name in thing.lends and (name != "" or verb == "call")

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
                f"It was stopped after {MOST_QUESTIONS:,} calls of what it was lent, many times "
                "what is needed. Does every loop come to its end?"
            )
        require_modest(question)
        super().answer(question)


def require_modest(given: Any) -> None:
    """Raise WireError for more, or larger numbers, than any case would hand over."""
    if size_of(given) > MOST_NUMBERS:
        raise WireError("What was handed over is far more than what the case has.")


def size_of(given: Any) -> float:
    """How many numbers there are; without end where one of them is out of all proportion."""
    if isinstance(given, Tensor):
        whole = not given.is_floating_point() and given.dtype != torch.bool
        if whole and given.numel() and int(given.double().abs().max()) > LARGEST:
            return float("inf")
        return given.numel() + given.ndim
    if isinstance(given, (list, tuple, set)):
        return 1 + sum(map(size_of, given))
    if isinstance(given, Mapping):
        return 1 + sum(map(size_of, given.values()))
    if isinstance(given, SimpleNamespace) or dataclasses.is_dataclass(given):
        return 1 + size_of(vars(given))
    if isinstance(given, str):
        return 1 + len(given) / 8
    return float("inf") if isinstance(given, int) and abs(given) > LARGEST else 1
