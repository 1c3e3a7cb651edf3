"""The loss of a changed model: how many more bits per byte of text it needs than another model.

The held-out passages are from the part of the books that was not used for training, the calibration
passages from the part that was (models/README.md). Two passages differ far more than two models do
on one passage. So a loss is the mean of the differences, passage by passage, with its standard
error.
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
LENGTH, SCORED = 1024, 512  # tokens of a passage, and how many of the last ones count
Passage = Int[Tensor, " text"]
Logits = Callable[[Int[Tensor, "1 seq"]], Float[Tensor, "1 seq vocab"]]


def passages(file: Path = HELD_OUT, model: str = "fable", length: int = LENGTH) -> list[Passage]:
    """Return the token ids of a file's passages, cut to `length`."""
    tokenizer = load_tokenizer(model)
    found = [tokenizer(text, verbose=False)["input_ids"][:length] for text in texts_in(file)]
    return [torch.tensor(ids) for ids in found]


def texts_in(file: Path) -> list[str]:
    """Return a file's passages as text; empty lines divide them."""
    return file.read_text(encoding="utf-8").strip().split("\n\n")


def logits_of(model: GPTLMHead) -> Logits:
    """Return the model as a function of token ids only."""
    return lambda ids: model(ids, torch.arange(ids.shape[1])[None])


@torch.inference_mode()
def bits_per_byte(
    logits: Logits, texts: Iterable[Passage], model: str = "fable", scored: int = SCORED
) -> Float[Tensor, " passages"]:
    """Return the bits per byte of each passage, over its last `scored` tokens.

    The first token never counts, because nothing predicts it.
    """
    tokenizer = load_tokenizer(model)
    found = [bits_of(logits(ids[None, :-1])[:, -scored:], ids[None], tokenizer) for ids in texts]
    return torch.cat(found)


def bits_of(
    predicted: Float[Tensor, "passages scored vocab"],
    texts: Int[Tensor, "passages seq"],
    tokenizer: Any,
) -> Float[Tensor, " passages"]:
    """Return the bits per byte of texts, from the logits that predict the last tokens of each."""
    wanted = texts[:, -predicted.shape[1] :]
    nats = F.cross_entropy(predicted.transpose(1, 2), wanted, reduction="none").sum(dim=1)
    n_bytes = [len(tokenizer.decode(ids).encode()) for ids in wanted.tolist()]
    return nats / math.log(2) / torch.tensor(n_bytes)


@dataclass(frozen=True)
class Loss:
    """bits: how many more bits per byte than the other model. error: the standard error of bits."""

    bits: float
    error: float

    def __str__(self) -> str:
        return f"{self.bits:+.4f} ± {self.error:.4f}"


def loss(measured: Float[Tensor, " passages"], compared: Float[Tensor, " passages"]) -> Loss:
    """Return how much more one model needs than another, on the same two or more passages."""
    if len(measured) < 2:
        raise ValueError("The standard error of a loss needs two passages or more, not one.")
    difference = (measured - compared).double()
    return Loss(float(difference.mean()), float(difference.std() / len(difference) ** 0.5))
