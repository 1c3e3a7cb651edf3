"""Rounded weights on the table: an engine over codes, what it is held against and what it loses."""

import functools
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn
from tqdm import tqdm

from gpt import GPTLMHead
from solutions.bits import LENGTH, Loss, loss, passages
from solutions.kv_cache import CachedLMHead, KVCache
from solutions.quantization import absmax
from solutions.quantized import with_matrices
from solutions.streamed import streamed_bits
from timing.runs import Run
from timing.served import Served
from timing.verify import COARSE_HAIR, verify
from timing.work import weight_bytes
from timing.workloads import Workload

PASSAGES = 4  # of the held-out text, on which the loss is measured


@dataclass(frozen=True)
class Rounded(Served):
    """An engine over a model of rounded weights, whose texts are not those of the reference.

    exact: the model before it was rounded. naive_model: without a cache, and with the weights that
    the codes stand for; each token must be its choice, up to a tie. loss: None where the model has
    no tokenizer for the passages.
    """

    exact: nn.Module
    naive_model: GPTLMHead
    loss: Loss | None

    def run(self, workload: Workload) -> Run:
        return replace(super().run(workload), exact=False)

    def verify(self, name: str, workload: Workload, run: Run) -> None:
        """Raises SystemExit where a token is not the naive model's, nor ties with it."""
        verify(name, workload, run.outputs, None, self.naive_model, COARSE_HAIR)

    @property
    def lost(self) -> str:
        """What its rounding wins and costs, in a sentence."""
        now, before = (weight_bytes(model) / 1e6 for model in (self.model, self.exact))
        loss = f"{self.loss} bits per byte on {PASSAGES} passages" if self.loss else "unknown"
        return f"{now:.1f} MB of weights instead of {before:.1f}; loss: {loss}."


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


def loss_of(model: CachedLMHead, exact: CachedLMHead, folder: Path) -> Loss | None:
    """What a model loses beside another one; None where there is no tokenizer."""
    try:
        return loss(bits_of(model, folder), bits_of(exact, folder))
    except (OSError, ValueError):
        return None


@functools.cache  # the exact model is that of several rows
def bits_of(model: CachedLMHead, folder: Path) -> Float[Tensor, " passages"]:
    length = min(LENGTH, model.config.n_positions)
    device = model.transformer.wpe.weight.device
    new_cache = functools.partial(KVCache, model.config, 1, length, device)
    texts = passages(model=str(folder), length=length)[:PASSAGES]
    found = [
        streamed_bits(model, new_cache, [text], length // 2, length, str(folder))
        for text in tqdm(texts, "bits per byte", leave=False)
    ]
    return torch.cat(found)
