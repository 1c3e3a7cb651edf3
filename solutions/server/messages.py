"""What the server's event loop and the engine's thread send each other."""

from dataclasses import dataclass, field

from solutions.decoding import SamplingParams
from solutions.server.formats import SentAutomaton


@dataclass(frozen=True)
class Request:
    """One text to write. logprobs: how many alternatives to report per token; None for nothing.
    automaton: of the language that the text must belong to; None for any text.
    """

    id: str
    prompt: list[int]
    max_new_tokens: int
    params: SamplingParams
    seed: int
    eos_token_id: int | None = None
    speculation: bool = False
    logprobs: int | None = None
    salt: bytes = b""
    automaton: SentAutomaton | None = None


@dataclass(frozen=True)
class TokenLogprob:
    """What the model thought of one token that it has written. top: the likeliest alternatives.

    is_drafted: whether it is a draft that was accepted.
    """

    logprob: float
    top: list[tuple[int, float]]
    is_drafted: bool


@dataclass(frozen=True)
class Output:
    """A request's new tokens from one step. With the first, cached: how many tokens of the prompt
    were in the cache; queued: seconds until it had blocks.
    """

    request: str
    new_ids: list[int]
    finish_reason: str | None
    logprobs: list[TokenLogprob] = field(default_factory=list)
    cached: int = 0
    queued: float = 0.0


class EngineFault(Exception):
    """A step of the engine has failed, and with it this request."""
