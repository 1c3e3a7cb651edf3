"""Lab 11, given: bits per byte of a text that is streamed through a cache.

A cache that forgets tokens changes the hidden states of all later ones. So the text goes through
the model and its cache token by token, as in decode.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gpt import load_tokenizer
from solutions.kv_cache import CachedLMHead
from solutions.quality.bits_per_byte import SCORED, Passage, bits_of


@torch.inference_mode()
def streamed_bits(
    model: CachedLMHead,
    new_cache: Callable[[], Any],
    texts: Sequence[Passage],
    scored: int = SCORED,
    chunk: int = 1,
    tokenizer: str = "fable",
) -> Float[Tensor, " passages"]:
    """Return the bits per byte of each passage, over its last `scored` tokens.

    All passages have the same length. They go through one cache as a batch, `chunk` tokens at a
    time; use a chunk of more than one only if the cache's output doesn't depend on it. The first
    token never counts, because nothing predicts it. tokenizer: the model whose tokenizer made the
    ids.
    """
    ids, kv_cache = torch.stack(tuple(texts)), new_cache()
    length = ids.shape[1] - 1
    if not 1 <= scored <= length or chunk < 1:
        raise ValueError(
            f"Of passages of {length + 1} tokens 1 to {length} can be scored, in chunks of 1 or "
            f"more; scored is {scored} and chunk is {chunk}."
        )
    predicted = streamed_logits(model, kv_cache, ids, chunk)
    return bits_of(predicted[:, -scored:], ids, load_tokenizer(tokenizer))


@torch.inference_mode()
def streamed_logits(
    model: Any, kv_cache: Any, ids: Int[Tensor, "passages seq"], chunk: int
) -> Float[Tensor, "passages seq-1 vocab"]:
    """Return the logits that predict each token but the first, computed `chunk` by `chunk`."""
    device, length = model.transformer.ln_f.weight.device, ids.shape[1] - 1
    predicted = []
    for start in range(0, length, chunk):
        positions = torch.arange(start, min(start + chunk, length), device=device)
        part = ids[:, start : start + len(positions)].to(device)
        predicted.append(model(part, positions.expand_as(part), kv_cache).cpu())
    return torch.cat(predicted, dim=1)
