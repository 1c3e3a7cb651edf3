"""Lab 11, given: what a smaller cache costs, in bits that the model needs for a byte of text.

A cache that forgets changes the hidden states of all later tokens. So a text is streamed: token by
token it goes through the model and its cache, as decode does it. The same windows must be measured
with and without a cache: texts differ by more than caches do.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from solutions.kv_cache import CachedLMHead


@torch.inference_mode()
def bits_per_byte(
    model: CachedLMHead,
    ids: Int[Tensor, "windows seq"],
    n_bytes: Int[Tensor, " windows"],
    scored: int,
    make_cache: Callable[[], Any],
    chunk: int = 1,
) -> Float[Tensor, " windows"]:
    """Bits for a byte of the last `scored` tokens of each window, which are `n_bytes` bytes.

    Each window goes through a cache of its own row by `chunk` tokens at a time. Only a cache whose
    answers don't depend on the chunks may be given more than one.
    """
    windows, seq = ids.shape
    if not 1 <= scored < seq or chunk < 1:
        raise ValueError(
            f"Nothing predicts a window's first token, so 1 to {seq - 1} tokens of {seq} can be "
            f"scored, in chunks of 1 or more; scored is {scored} and chunk {chunk}."
        )
    kv_cache, nats = make_cache(), torch.zeros(windows, device=ids.device)
    for start in range(0, seq - 1, chunk):
        end = min(start + chunk, seq - 1)
        part, following = ids[:, start:end], ids[:, start + 1 : end + 1]
        positions = torch.arange(start, end, device=ids.device).expand_as(part)
        logits = model(part, positions, kv_cache)
        losses = F.cross_entropy(logits.transpose(1, 2), following, reduction="none")
        nats += losses[:, max(0, seq - scored - 1 - start) :].sum(dim=1)
    return nats / math.log(2) / n_bytes


def bytes_scored(
    tokenizer: Any, ids: Int[Tensor, "windows seq"], scored: int
) -> Int[Tensor, " windows"]:
    """How many bytes of text the last `scored` tokens of each window are."""
    texts = tokenizer.batch_decode(ids[:, -scored:], clean_up_tokenization_spaces=False)
    return torch.tensor([len(text.encode()) for text in texts])
