"""What the server's event loop and the engine's thread send each other."""

from dataclasses import dataclass, field
from typing import Literal

from solutions.decoding import SamplingParams
from solutions.server.adjusting import Adjustments

AdapterKey = tuple[str, int]  # name and version
Reads = Literal["nothing", "logprobs", "embedding"]


@dataclass(frozen=True)
class Calling:
    """Which calls a text may have, of the tools of lab 24.

    tools: the name and parameters of each that may be called, as JSON text; "" for none. is_free:
    whether the text may begin with words, and have no call. is_parallel: whether there may be
    several calls.
    """

    tools: str
    is_free: bool
    is_parallel: bool


AnswerLanguage = str | Calling  # a JSON schema as text, or what is said of calls


@dataclass(frozen=True)
class Thinking:
    """Thoughts before an answer. most: of their tokens. answer: what it must be written in."""

    most: int
    answer: AnswerLanguage | None


Language = AnswerLanguage | Thinking


@dataclass(frozen=True)
class TextRequest:
    """One text to write. logprobs: how many alternatives to report per token; None for nothing.
    other_ends: tokens that end it besides EOS. language: what it must be written in; None for any
    text. reads: what is asked of the prompt itself. adapter: its name and version; None for the
    base. shares: the id of the first of the texts that go on from the same prompt; None if nothing
    of it is kept for the others.
    """

    id: str
    prompt: list[int]
    max_new_tokens: int
    params: SamplingParams
    seed: int
    eos_token_id: int | None = None
    other_ends: tuple[int, ...] = ()
    speculation: bool = False
    logprobs: int | None = None
    stops: tuple[str, ...] = ()
    salt: bytes = b""
    language: Language | None = None
    adjustments: Adjustments | None = None
    reads: Reads = "nothing"
    adapter: AdapterKey | None = None
    shares: str | None = None


@dataclass(frozen=True)
class TokenLogprob:
    """What the model thought of one token of the text. top: the likeliest alternatives.

    is_drafted: whether it is a draft that was accepted.
    """

    logprob: float
    top: list[tuple[int, float]]
    is_drafted: bool = False


@dataclass(frozen=True)
class TextOutput:
    """A request's new tokens from one step.

    The first one also has what is known of the prompt. cached: how many of its tokens were found in
    the cache. queued: seconds until it had blocks. prompt_logprobs: of its tokens from the second
    on. embedding: the mean of its last hidden states.
    """

    request: str
    new_ids: list[int]
    finish_reason: str | None
    logprobs: list[TokenLogprob] = field(default_factory=list)
    cached: int = 0
    queued: float = 0.0
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    embedding: list[float] = field(default_factory=list)


class EngineFault(Exception):
    """A step of the engine has failed, and with it this request."""
