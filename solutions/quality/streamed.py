"""Lab 11, given: bits for a byte of text that goes through a cache.

A cache that forgets changes the hidden states of all later tokens. So a text is streamed: token by
token it goes through the model and its cache, as decode does it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
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
    """For each passage, the bits for one byte of its last `scored` tokens, given those before.

    The passages are of one length; side by side they go through one cache, `chunk` tokens at a
    time. Only a cache whose answers don't depend on the chunks may be given more than one. Nothing
    predicts the first token. tokenizer: the model whose tokens they are.
    """
    ids, kv_cache = torch.stack(tuple(texts)), new_cache()
    length = ids.shape[1] - 1
    if not 1 <= scored <= length or chunk < 1:
        raise ValueError(
            f"Of passages of {length + 1} tokens 1 to {length} can be scored, in chunks of 1 or "
            f"more; scored is {scored} and chunk {chunk}."
        )
    device = model.transformer.wpe.weight.device
    predicted = []
    for start in range(0, length, chunk):
        positions = torch.arange(start, min(start + chunk, length), device=device)
        part = ids[:, start : start + len(positions)].to(device)
        predicted.append(model(part, positions.expand_as(part), kv_cache).cpu())
    return bits_of(torch.cat(predicted, dim=1)[:, -scored:], ids, load_tokenizer(tokenizer))
