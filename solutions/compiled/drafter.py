"""Lab 21, given: a draft model whose steps are a kernel's.

A small model's step is mostly calls, and drafting makes one step after the other: here a compiled
function costs least compared with what it saves.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from solutions.compiled.kernel import Kernel
from solutions.compiled.weights import Weights
from solutions.decoding import SamplingParams


class KernelDrafter:
    """Drafts the likeliest tokens of a draft model, as long as it is sure of all of them.

    Its keys and values lie in a pool with one block, which holds the whole text.
    """

    least = 0.3  # the product of the probabilities so far, below which no more is drafted

    def __init__(self, model: Any, weights: Weights | None = None) -> None:
        config = model.config
        heads = config.n_head, config.head_dim
        pool = torch.zeros(2, config.n_layer, 1, config.n_positions, *heads)
        self.kernel = Kernel(model, pool, weights=weights)
        self.vocab_size, self.computed = config.vocab_size, 0

    def propose(
        self, ids: Sequence[int], k: int, params: SamplingParams, generator: torch.Generator
    ) -> tuple[list[int], Float[Tensor, "drafts vocab"]]:
        """Return up to k drafts with probability 1 each, whatever the sampling parameters."""
        text, sure = list(ids), 1.0
        while len(text) < len(ids) + k and sure >= self.least:
            logits = self.logits_after(text)
            text.append(int(logits.argmax()))
            sure /= float(np.exp(logits - logits.max()).sum())
        drafts = torch.tensor(text[len(ids) :], dtype=torch.int64)
        return drafts.tolist(), F.one_hot(drafts, self.vocab_size).float()

    def logits_after(self, text: list[int]) -> Float[np.ndarray, " vocab"]:
        """Compute the tokens whose keys and values aren't in the pool yet."""
        ids = np.array(text[self.computed :], np.int64)
        positions = np.arange(self.computed, len(text))
        tables = np.zeros((len(ids), 1), np.int64)
        self.computed = len(text)
        _, [logits] = self.kernel(ids, positions, tables, np.array([len(ids) - 1]))
        return logits

    def truncate(self, n: int) -> None:
        """Forget the tokens from n on."""
        self.computed = min(self.computed, n)
