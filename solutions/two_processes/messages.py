"""Lab 9, given: the messages between the prefill side, the decode side and the router.

side to side           Hello: which model's keys and values a side has
router to prefill      Job: compute this prompt
prefill to decode      Ask: is there room; Piece: keys and values; Last: continue the request
decode to prefill      Granted: there is room; Confirmed: all has arrived; Refused: never
either to the router   Output; Lost: it must begin again; Refused; Holds: what is left after a crash
to either side         Forget: this is not needed any more

Any message between the two sides may be lost. A key is used for one attempt at one request, so a
message that comes too late can be recognized. A side answers Forget to a key that it doesn't know.
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
    """Hash a model's shape and all its weights, to distinguish it from any other model."""
    whole = sha256(repr(model.config).encode())
    for name, weight in model.state_dict().items():
        whole.update(name.encode() + weight.cpu().contiguous().numpy().tobytes())
    return whole.hexdigest()[:16]


def generator_after(seed: int, drawn: int, params: SamplingParams) -> torch.Generator:
    """Make a request's generator in its state after `drawn` sampled tokens, one number for each."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(drawn if params != GREEDY else 0):
        new_uniforms(1, generator, generator.device)
    return generator


@dataclass(frozen=True)
class Prefilled:
    """A request whose prompt has been computed, for the side that decodes it.

    first_token: its first new token, sampled from the prompt's last logits. kv: the keys and values
    of the tokens from `start` up to the end of the prompt; those before `start` have been sent
    already. end: how many tokens its text may have in all. drawn: how many numbers its generator
    has given, including the one for the first token.
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
        """Make the request for an engine, under this number, without its first new token."""
        generator = generator_after(self.seed, self.drawn, self.params)
        ids = list(self.prompt)
        return Sequence(
            number, ids, self.end, self.eos_token_id, params=self.params, generator=generator
        )


@dataclass(frozen=True)
class Hello:
    """Which model's keys and values a side has, and their shape for one token."""

    fingerprint: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Job:
    """A prompt to be computed, under a key that no other job ever gets.

    end: how many tokens its text may have in all. drawn: how many of the prompt's last tokens the
    request has sampled itself, each with one number of its generator.
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
    """Asks for room for this prompt, whose text may grow to `end` tokens."""

    key: int
    prompt: list[int]
    end: int


@dataclass(frozen=True)
class Granted:
    """There is room, and the keys and values of the first `start` tokens are there already."""

    key: int
    start: int


@dataclass(frozen=True)
class Piece:
    """Keys and values of one layer, for the prompt's tokens from `start` on."""

    key: int
    layer: int
    start: int
    kv: Float[Tensor, "2 1 tokens heads head_dim"]


@dataclass(frozen=True)
class Last:
    """All keys and values have been sent; the rest of the request comes with this."""

    key: int
    prefilled: Prefilled


@dataclass(frozen=True)
class Confirmed:
    """Everything has arrived: the other side can free its blocks."""

    key: int


@dataclass(frozen=True)
class Forget:
    """This attempt is not needed any more."""

    key: int


@dataclass(frozen=True)
class Lost:
    """The attempt is no longer here, and has not arrived there: start it again if it is needed."""

    key: int


@dataclass(frozen=True)
class Refused:
    """The request can never be served. why: a sentence."""

    key: int
    why: str


@dataclass(frozen=True)
class Holds:
    """The attempts that a side still has after the other side was replaced."""

    keys: list[int]
