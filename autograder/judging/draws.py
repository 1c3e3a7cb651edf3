"""What the cases of every lab are drawn from: random numbers, small models, configurations."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from functools import lru_cache, partial
from itertools import count
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from autograder.judging.random_models import Normals, normals, random_model, random_weights
from gpt import GPTConfig, GPTLMHead

# Heads, head_dim and layers differ from each other and from most batches, so that two dimensions
# that are confused don't fit; and head_dim is not the square of the heads.
LAYERS = GPTConfig(vocab_size=11, n_positions=16, n_embd=10, n_layer=3, n_head=2)
# More tokens than small numbers that Python keeps only once, so that `is` is no `==`.
# Its own EOS comes often, and ends nothing unless it is asked for.
EOS = 29
LOOP = GPTConfig(300, n_positions=16, n_embd=30, n_layer=2, n_head=3, eos_token_id=EOS)

T = TypeVar("T")
MOST_DRAWS = 20_000  # of one case, before it is said that no seed fits

OWN = 24  # a seed whose texts have token 0, EOS and many others, which not every seed gives

# For the weights of the small models, and for all else that an attempt only sees through what it
# is lent. For a grade it is a key that can't be guessed, so that the only way to use such a model
# is to call it, and that is counted.
model_seed: ContextVar[int | bytes] = ContextVar("model_seed", default=OWN)


def small_model(cls: Callable[[GPTConfig], Any]) -> Any:
    """A model for loops. Its greedy texts vary, and depend on every position and token."""
    return seeded_model(cls, model_seed.get())


@lru_cache(maxsize=8)
def seeded_model(cls: Callable[[GPTConfig], Any], seed: int | bytes) -> Any:
    if isinstance(seed, int):
        return random_model(cls, LOOP, seed)
    lively, frequent = lively_seed(seed)
    model = random_model(cls, LOOP, lively)
    wte = model.transformer.wte.weight
    for id, other in zip((0, EOS), frequent, strict=True):
        wte[[id, other]] = wte[[other, id]]
    return model


@lru_cache(maxsize=8)
def lively_seed(key: bytes) -> tuple[bytes, list[int]]:
    """A seed that follows from a key, and two tokens of its texts, to be renamed to 0 and to EOS.

    With some seeds a position alone decides what comes next; with this one the texts vary.
    """
    for number in count():
        seed = key + number.to_bytes(4, "big")
        texts = texts_of(seed)
        varied = all(len({new[step] for new in texts}) >= 40 for step in range(6))
        if varied and len(frequent := frequent_tokens(texts)) == 2:
            return seed, frequent
    raise AssertionError


def frequent_tokens(texts: list[list[int]]) -> list[int]:
    """Two tokens that come often, and not at once."""
    later = Counter(t for new in texts for t in {*new[1:4]} - {new[0], 0, EOS})
    return [t for t, times in later.most_common() if times <= len(texts) / 4][:2]


def texts_of(seed: bytes) -> list[list[int]]:
    """What a model makes of 256 prompts of three tokens: six new tokens each."""
    from solutions.kv_cache import CachedLMHead, generate

    prompts = prompt_ids(torch.Generator().manual_seed(0), 3, 256)
    return generate(random_model(CachedLMHead, LOOP, seed), prompts, 6)[:, 3:].tolist()


def hidden_normals(number: int) -> Normals:
    """Numbers that follow from one of a case's, and can't be worked out from it for a grade."""
    seed = model_seed.get()
    if isinstance(seed, int):
        return normals(seed + number)
    return normals(seed + b"hidden" + number.to_bytes(8, "big"))


def draw(generator: torch.Generator, low: int, high: int) -> int:
    """A whole number from low to high, both included."""
    return int(torch.randint(low, high + 1, (), generator=generator))


def normal(generator: torch.Generator, *shape: int) -> Float[Tensor, "..."]:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def prompt_ids(generator: torch.Generator, seq: int, batch: int = 1) -> Int[Tensor, "batch seq"]:
    return torch.randint(LOOP.vocab_size, (batch, seq), generator=generator)


def prompt_list(generator: torch.Generator, seq: int) -> list[int]:
    return prompt_ids(generator, seq)[0].tolist()


def until(wanted: Callable[[T], bool], drawn: Callable[[], T]) -> T:
    """Draw until one is as wanted, and return that."""
    for _ in range(MOST_DRAWS):
        if wanted(value := drawn()):
            return value
    raise RuntimeError(f"{MOST_DRAWS:,} draws, and none of them fits.")


def steps_in(words: str) -> list[tuple[Any, ...]]:
    """Steps from a case's words: "free 0, append 2|3" is free 0, then append 2, then append 3."""
    steps = [step.split() for step in words.split(", ") if step]
    return [
        tuple(map(number_or_word, [*before, last]))
        for *before, lasts in steps
        for last in lasts.split("|")
    ]


def number_or_word(word: str) -> int | float | str:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(word)
    return word


def weights_of(part: str, generator: torch.Generator) -> dict[str, Tensor]:
    """Random weights of one part of a LAYERS model, by the names that they have within it."""
    weights = random_weights(LAYERS, seed=draw(generator, 0, 10**6))
    return {n.removeprefix(part): w for n, w in weights.items() if n.startswith(part)}


Continued = tuple[list[int], list[int]]  # a prompt, and its new ids where nothing stops them


def continued(generator: torch.Generator, seq: int, new: int = 6) -> Iterator[Continued]:
    """Random prompts with what the small model makes of them, one after the other."""
    from solutions.generate import generate

    while True:
        for ids in generate(small_model(GPTLMHead), prompt_ids(generator, seq, 64), new).tolist():
            yield ids[:seq], ids[seq:]


def prompt_where(
    generator: torch.Generator, seq: int, wanted: Callable[[list[int], list[int]], bool]
) -> Continued:
    """A prompt for which wanted(its ids, the six new ids) holds, and the new ids."""
    return until(lambda both: wanted(*both), partial(next, continued(generator, seq)))
