"""Lossy techniques: what their texts are verified against, and how much quality they lose."""

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
from solutions.families import load_tokenizer
from solutions.kv_cache import CachedLMHead, KVCache
from solutions.quality import bits_per_byte
from solutions.quality.bits_per_byte import HELD_OUT, LENGTH, Loss, loss
from solutions.quality.streamed import streamed_logits
from solutions.quantization import absmax
from solutions.quantized_model import with_matrices

PASSAGES = 4  # of the held-out text, on which the loss is measured


@dataclass(frozen=True)
class Lossy:
    """Facts about a technique whose output may differ from the reference's.

    why: the reason, in a few words. naive_model: computes the same without the technique's cache;
    each token must be this model's choice, up to a tie of `hair`. None for another engine, whose
    weights aren't accessible here. wins: what rounding or hiding tokens saves; empty if the
    model itself is exact. loss: None if the model has no tokenizer for the passages.
    """

    why: str
    naive_model: nn.Module | None = None
    hair: float = 0.0
    wins: str = ""
    loss: Loss | None = None

    def __str__(self) -> str:
        """Return what the technique saves and costs."""
        loss = f"{self.loss} bits per byte on {PASSAGES} passages" if self.loss else "unknown"
        return f"{self.wins}; loss: {loss}."


# ------------------------------------------------------------------------------- naive models


def in_8_bits(model: GPTLMHead) -> GPTLMHead:
    """Return a copy with weights rounded to 8 bits, as in lab 10's `quantized`."""

    def rounded(_: str, weight: Float[Tensor, "n_in n_out"]) -> Float[Tensor, "n_in n_out"]:
        codes, scale = absmax(weight, bits=8)
        return codes * scale

    copied = with_matrices(model, rounded)
    embedding = copied.transformer.wte.weight
    codes, scale = absmax(embedding.detach(), bits=8, dim=1)
    embedding.data = codes * scale
    return copied


class Anew(nn.Module):
    """A model that recomputes the whole text in each forward pass, through a fresh cache."""

    def __init__(self, model: CachedLMHead, new_cache: Callable[[], Any]) -> None:
        super().__init__()
        self.model, self.config, self.new_cache = model, model.config, new_cache

    def forward(
        self, inputs: Int[Tensor, "1 seq"], position_ids: Int[Tensor, "1 seq"]
    ) -> Float[Tensor, "1 seq vocab"]:
        return self.model(inputs, position_ids, self.new_cache())


def ungrouped(model: Any) -> Any:
    """Return the model for caches with as many heads of keys as of queries (lab 20)."""
    if getattr(model.config, "group", 1) == 1:
        return model
    from solutions.llama import Expanded

    return Expanded(model)


# ------------------------------------------------------------------------------- what is lost


def loss_of(
    model: CachedLMHead,
    exact: CachedLMHead,
    folder: Path,
    new_cache: Callable[[], Any] | None = None,
) -> Loss | None:
    """Return the bits per byte that `model` loses compared with `exact`.

    Both use lab 2's cache unless `new_cache` is given. None if there is no tokenizer.
    """
    try:
        return loss(bits_of(model, folder, new_cache), bits_of(exact, folder))
    except (OSError, ValueError):
        return None


@functools.cache  # several rows share the exact model
def bits_of(
    model: CachedLMHead, folder: Path, new_cache: Callable[[], Any] | None = None
) -> Float[Tensor, " passages"]:
    length = min(LENGTH, model.config.n_positions)
    device = model.transformer.ln_f.weight.device
    if new_cache is None:
        model = ungrouped(model)
        new_cache = functools.partial(KVCache, model.config, 1, length, device)
    tokenizer = load_tokenizer(folder)
    texts = bits_per_byte.texts_in(HELD_OUT)[:PASSAGES]
    found = []
    for text in tqdm(texts, "bits per byte", leave=False, disable=None):
        ids = torch.tensor([tokenizer.encode(text).ids[:length]])
        predicted = streamed_logits(model, new_cache(), ids, length)[:, -(length // 2) :]
        found.append(bits_per_byte.bits_of(predicted, ids, tokenizer))
    return torch.cat(found)
