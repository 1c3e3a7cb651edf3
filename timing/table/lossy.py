"""Techniques that compute something else: what their texts are held against, and what is lost."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from tqdm import tqdm

from gpt import GPTLMHead
from solutions.kv_cache import CachedLMHead, KVCache
from solutions.quality.bits_per_byte import LENGTH, Loss, loss, passages
from solutions.quality.streamed import streamed_bits
from solutions.quantization import absmax
from solutions.quantized_model import with_matrices

PASSAGES = 4  # of the held-out text, on which the loss is measured


@dataclass(frozen=True)
class Lossy:
    """What there is to know of a technique whose texts are not the reference's.

    why: they are others, in a few words. naive_model: computes the same without the technique's
    cache; each token must be its choice, up to a tie of `hair`. There is none for an engine of
    others, whose weights nobody here knows. wins: what rounding or hiding is good for. loss: None
    where the model has no tokenizer for the passages.
    """

    why: str
    naive_model: nn.Module | None = None
    hair: float = 0.0
    wins: str = ""
    loss: Loss | None = None

    def __str__(self) -> str:
        """What it wins and costs."""
        loss = f"{self.loss} bits per byte on {PASSAGES} passages" if self.loss else "unknown"
        return f"{self.wins}; loss: {loss}."


# ------------------------------------------------------------------------------- naive models


def in_8_bits(model: GPTLMHead) -> GPTLMHead:
    """A copy with the weights that 8 bits a weight stand for, as lab 10's `quantized` has them."""

    def rounded(_: str, weight: Float[Tensor, "n_in n_out"]) -> Float[Tensor, "n_in n_out"]:
        codes, scale = absmax(weight, bits=8)
        return codes * scale

    copied = with_matrices(model, rounded)
    embedding = copied.transformer.wte.weight
    codes, scale = absmax(embedding.detach(), bits=8, dim=1)
    embedding.data = codes * scale
    return copied


class Anew(nn.Module):
    """A model that computes a whole text in each forward, through a cache of its own."""

    def __init__(self, model: CachedLMHead, new_cache: Callable[[], Any]) -> None:
        super().__init__()
        self.model, self.new_cache = model, new_cache

    def forward(
        self, inputs: Int[Tensor, "1 seq"], position_ids: Int[Tensor, "1 seq"]
    ) -> Float[Tensor, "1 seq vocab"]:
        return self.model(inputs, position_ids, self.new_cache())


# ------------------------------------------------------------------------------- what is lost


def loss_of(
    model: CachedLMHead,
    exact: CachedLMHead,
    folder: Path,
    new_cache: Callable[[], Any] | None = None,
) -> Loss | None:
    """What a model loses beside another one, which has lab 2's cache; so has it without another.

    None where there is no tokenizer.
    """
    try:
        return loss(bits_of(model, folder, new_cache), bits_of(exact, folder))
    except (OSError, ValueError):
        return None


@functools.cache  # the exact model is that of several rows
def bits_of(
    model: CachedLMHead, folder: Path, new_cache: Callable[[], Any] | None = None
) -> Float[Tensor, " passages"]:
    length = min(LENGTH, model.config.n_positions)
    device = model.transformer.wpe.weight.device
    new_cache = new_cache or functools.partial(KVCache, model.config, 1, length, device)
    texts = passages(model=str(folder), length=length)[:PASSAGES]
    found = [
        streamed_bits(model, new_cache, [text], length // 2, length, str(folder))
        for text in tqdm(texts, "bits per byte", leave=False)
    ]
    return torch.cat(found)
