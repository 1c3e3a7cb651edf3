"""What a server may be told when it is started."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

Labs = Callable[[str], Any]  # from a lab's name to its module: the reference's, or a learner's

TECHNIQUES = ("engine", "prefix", "int8", "codes")
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def host_name(text: str) -> str:
    """Return a host's name or address as a Host header has it, in small letters, without a port.

    Raises ValueError if it is neither.
    """
    text = text.lower()
    if text.count(":") > 1 and not text.startswith("["):
        text = f"[{text}]"
    match = re.fullmatch(r"(\[[0-9a-f:.]+\]|[^][:/?#@\s]+)(:\d+)?", text)
    if not match:
        raise ValueError(f"{text!r} isn't a host's name. Give one such as lab.example.org.")
    return match[1]


def reference(lab: str) -> Any:
    return import_module(f"solutions.{lab}")


def with_lab(name: str, module: Any, labs: Labs = reference) -> Labs:
    """Return `labs` with another module for one of them."""
    return lambda lab: module if lab == name else labs(lab)


@dataclass(frozen=True)
class Settings:
    """model: a name or a folder. hosts: names of the server, besides those of this machine itself.
    origins: of pages on the web that may call it. log: whether each request is told on stderr.
    debug: whether the engine's blocks are checked after each step.
    kernel: whether narrow steps are one compiled function (lab 21). same_bits: whether all are, so
    that an answer doesn't depend on who else is served. adapters: the folder of the adapters that
    are served beside the model, each in a folder by its name (lab 23).
    pool_bytes: memory for keys and values. context: the longest text, in tokens; None for as long
    as model and pool allow. draft_tokens: drafted in a step, at most, for a request
    that asks for speculation. max_waiting: texts without a token. max_texts: in one request.

    In seconds: target_ttft, above which requests are refused; stalled, after which a client that
    doesn't read is dropped; idle, after which one is that sends no whole request; drain, for which
    running requests may go on after SIGTERM; silent, after which an engine that says nothing counts
    as hung.
    """

    model: str = "fable"
    technique: str = "engine"
    kernel: bool = False
    same_bits: bool = False
    adapters: Path | None = None
    threads: int | None = None
    api_key: str | None = None
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    log: bool = False
    debug: bool = False
    pool_bytes: int = 256_000_000
    context: int | None = None
    block_size: int = 16
    token_budget: int = 256
    max_running: int = 64
    draft_tokens: int = 6
    max_waiting: int = 1024
    max_body: int = 1_000_000
    max_texts: int = 16
    target_ttft: float = 20.0
    stalled: float = 30.0
    idle: float = 30.0
    drain: float = 30.0
    silent: float = 5.0

    @property
    def name(self) -> str:
        """The name by which clients ask for the model."""
        return Path(self.model).name

    def __post_init__(self) -> None:
        if self.technique not in TECHNIQUES:
            raise ValueError(
                f"There is no technique {self.technique!r}. Take one of {', '.join(TECHNIQUES)}."
            )
        if (self.kernel or self.same_bits) and find_spec("numba") is None:
            raise ValueError("The kernel needs numba. Install it: pip install numba")
        if (self.kernel or self.same_bits) and self.adapters is not None:
            raise ValueError("The kernel knows no adapters: leave out --adapters, or the kernel.")
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"An engine computes with 1 thread or more, not {self.threads}.")
        if self.pool_bytes < 1:
            raise ValueError("Keys and values need memory: take 1 MB or more.")
        if self.context is not None and self.context < 2:
            raise ValueError(f"A text has 2 tokens or more, so the context isn't {self.context}.")
        if not (self.target_ttft > 0 and self.drain >= 0):  # neither holds for NaN
            raise ValueError("A time is a number of seconds, and that of the TTFT is above 0.")
        for name in self.hosts:
            host_name(name)
