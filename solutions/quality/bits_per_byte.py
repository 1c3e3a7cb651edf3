"""What a model loses: the bits that it needs for a byte of text, beside those of another model.

The passages are from the part of the training text that no training has seen, and from the part
that it has (models/README.md). Passages differ from one another far more than two models do on the
same passage: so a loss is the mean of differences, passage by passage, with its standard error.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from gpt import SHIPPED, GPTLMHead, load_tokenizer

HELD_OUT, CALIBRATION = (SHIPPED / "text" / f"{name}.txt" for name in ("held_out", "calibration"))
LENGTH, SCORED = 1024, 512  # tokens of a passage, and how many of them count, the last ones
Passage = Int[Tensor, " text"]
Logits = Callable[[Int[Tensor, "1 seq"]], Float[Tensor, "1 seq vocab"]]


def passages(file: Path = HELD_OUT, model: str = "fable", length: int = LENGTH) -> list[Passage]:
    """The token ids of each passage of a file, cut to `length`. An empty line ends a passage."""
    tokenizer = load_tokenizer(model)
    texts = file.read_text(encoding="utf-8").strip().split("\n\n")
    found = [tokenizer(text, verbose=False)["input_ids"][:length] for text in texts]
    return [torch.tensor(ids) for ids in found]


def logits_of(model: GPTLMHead) -> Logits:
    """A model as a function of the tokens alone."""
    return lambda ids: model(ids, torch.arange(ids.shape[1])[None])


@torch.inference_mode()
def bits_per_byte(
    logits: Logits, texts: Iterable[Passage], model: str = "fable", scored: int = SCORED
) -> Float[Tensor, " passages"]:
    """For each passage, the bits for one byte of its last `scored` tokens, given those before.

    Nothing predicts the first token, so at most all others count.
    """
    tokenizer = load_tokenizer(model)
    found = [bits_of(logits(ids[None, :-1])[:, -scored:], ids[None], tokenizer) for ids in texts]
    return torch.cat(found)


def bits_of(
    predicted: Float[Tensor, "passages scored vocab"],
    texts: Int[Tensor, "passages seq"],
    tokenizer: Any,
) -> Float[Tensor, " passages"]:
    """The same of logits that there are already, those that predict the last tokens of each."""
    wanted = texts[:, -predicted.shape[1] :]
    nats = F.cross_entropy(predicted.transpose(1, 2), wanted, reduction="none").sum(dim=1)
    n_bytes = [len(tokenizer.decode(ids).encode()) for ids in wanted.tolist()]
    return nats / math.log(2) / torch.tensor(n_bytes)


@dataclass(frozen=True)
class Loss:
    """More bits for a byte than the model compared with; error: the standard error of that."""

    bits: float
    error: float

    def __str__(self) -> str:
        return f"{self.bits:+.4f} ± {self.error:.4f}"


def loss(measured: Float[Tensor, " passages"], compared: Float[Tensor, " passages"]) -> Loss:
    """How much more one model needs than another, on the same passages, two or more."""
    if len(measured) < 2:
        raise ValueError("One passage says nothing of how sure a loss is. Give two or more.")
    difference = (measured - compared).double()
    return Loss(float(difference.mean()), float(difference.std() / len(difference) ** 0.5))
