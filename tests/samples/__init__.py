"""What the pictures of each lab are handed in tests: small objects, easily checked by hand.

EXAMPLES, in the file of a lab, has every picture and explorer of it at least once.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


VOCABULARY = ["the", " king", " and", " queen", "\n", "$x$", " <b>fox</b>", "&"]


def decode(ids: list[int]) -> str:
    return "".join(VOCABULARY[token_id] for token_id in ids)


def word(token_id: int) -> str:
    return VOCABULARY[token_id]


END = 0  # the token that ends a text


class Example(NamedTuple):
    """A picture, and what it is handed."""

    draw: Callable[..., Any]
    handed: tuple[Any, ...]

    @property
    def name(self) -> str:
        return f"{self.draw.__module__.removeprefix('visuals.')}.{self.draw.__name__}"


def of(draw: Callable[..., Any], *handed: Any) -> Example:
    return Example(draw, handed)
