"""Lab 9, given: what prefill, decode and the router say to one another.

each to the other      Hello: whose keys and values these are
router to prefill      Job: compute this prompt
prefill to decode      Ask: is there room; Piece: keys and values; Last: go on with it
decode to prefill      Granted: there is room; Confirmed: all has arrived; Refused: never
either to the router   Output; Lost: it must begin again; Refused; Holds: what is left after a death
to anybody             Forget: nobody waits for this

Whatever goes between the two sides may be lost. A key is used for one attempt at one request, so
that what comes too late is known to be late; who hears of a key that it doesn't know answers
Forget.
"""

from dataclasses import dataclass
from hashlib import sha256

import torch
from jaxtyping import Float
from torch import Tensor

from gpt import GPTLMHead
from solutions.decoding import GREEDY, SamplingParams
from solutions.engine.sequence import Sequence
from solutions.speculative import new_uniforms


def fingerprint(model: GPTLMHead) -> str:
    """What tells a model from any other: a hash of its shape and of all its weights."""
    whole = sha256(repr(model.config).encode())
    for name, weight in model.state_dict().items():
        whole.update(name.encode() + weight.cpu().contiguous().numpy().tobytes())
    return whole.hexdigest()[:16]


def generator_after(seed: int, drawn: int, params: SamplingParams) -> torch.Generator:
    """A request's generator when so many of its tokens have been drawn, a number for each."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(drawn if params != GREEDY else 0):
        new_uniforms(1, generator, generator.device)
    return generator


@dataclass(frozen=True)
class Prefilled:
    """A request whose prompt has been computed, for whoever decodes it.

    kv: the keys and values of its tokens from `start` on, up to the end of the prompt; those before
    have been sent already. end: how many tokens its text may have in all. drawn: how many numbers
    its generator has given, the one for the first token included.
    """

    prompt: list[int]
    first_token: int
    end: int
    start: int
    kv: Float[Tensor, "2 layers tokens heads head_dim"]
    eos_token_id: int | None = None
    params: SamplingParams = GREEDY
    seed: int = 0
    drawn: int = 1

    def sequence(self, number: int) -> Sequence:
        """It as an engine sees it, without its first new token."""
        generator = generator_after(self.seed, self.drawn, self.params)
        ids = list(self.prompt)
        return Sequence(
            number, ids, self.end, self.eos_token_id, params=self.params, generator=generator
        )


@dataclass(frozen=True)
class Hello:
    """Whose keys and values a side has: of which model, and their shape for one token."""

    fingerprint: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Job:
    """A prompt to be computed, under a key that no other job ever has.

    end: how many tokens its text may have in all. drawn: how many of the prompt's last tokens are
    the request's own, each drawn with a number of its generator.
    """

    key: int
    prompt: list[int]
    end: int
    eos_token_id: int | None = None
    params: SamplingParams = GREEDY
    seed: int = 0
    drawn: int = 0


@dataclass(frozen=True)
class Ask:
    """Is there room for this prompt, whose text may grow to `end` tokens?"""

    key: int
    prompt: list[int]
    end: int


@dataclass(frozen=True)
class Granted:
    """There is, and the keys and values of the first `start` tokens lie there already."""

    key: int
    start: int


@dataclass(frozen=True)
class Piece:
    """Keys and values of one layer, of the prompt's tokens from `start` on."""

    key: int
    layer: int
    start: int
    kv: Float[Tensor, "2 1 tokens heads head_dim"]


@dataclass(frozen=True)
class Last:
    """All has been sent: here is the rest."""

    key: int
    prefilled: Prefilled


@dataclass(frozen=True)
class Confirmed:
    """It has all arrived: the blocks on the other side are needed no more."""

    key: int


@dataclass(frozen=True)
class Forget:
    """Nobody waits for this any more."""

    key: int


@dataclass(frozen=True)
class Lost:
    """It is not here any more, and has not arrived there: if it is wanted, it begins again."""

    key: int


@dataclass(frozen=True)
class Refused:
    """It can never be served, and why: a sentence."""

    key: int
    why: str


@dataclass(frozen=True)
class Holds:
    """What a side still has after the other one was replaced."""

    keys: list[int]
