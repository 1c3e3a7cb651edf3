"""The bytes and operations of a forward pass, counted from the weights of its model."""

from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class Work:
    """One computation, counted and measured: a point under the roofline."""

    label: str
    flops: float
    bytes_read: float
    seconds: float

    @property
    def intensity(self) -> float:
        """The arithmetic intensity: floating-point operations per byte read."""
        return self.flops / self.bytes_read

    @property
    def speed(self) -> float:
        """Floating-point operations per second."""
        return self.flops / self.seconds


def weights_read(model: nn.Module) -> list[Tensor]:
    """Return the weights that a forward pass reads completely: all but the position embeddings.

    It reads only a few rows of those. Buffers count as weights: the codes and scales of lab 10.
    """
    named = [*model.named_parameters(), *model.named_buffers()]
    return [weight for name, weight in named if not name.endswith("wpe.weight")]


def weight_bytes(model: nn.Module) -> int:
    """Return the bytes of weights that a decode step reads."""
    return sum(weight.nbytes for weight in weights_read(model))


def forward_work(model: nn.Module, label: str, tokens: int, seconds: float) -> Work:
    """Count a forward pass of `tokens` tokens by its weights: 2 FLOPs per weight and token.

    Each weight is read once, however many tokens there are. Attention's own products and the KV
    cache are left out, because they are small compared with the weights. Biases are only added, not
    multiplied; counting them like the rest overstates the FLOPs by a few thousandths.
    """
    numbers = sum(weight.numel() for weight in weights_read(model))
    return Work(label, 2 * numbers * tokens, weight_bytes(model), seconds)
