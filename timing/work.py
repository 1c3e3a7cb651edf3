"""What a forward reads and computes, counted by the weights of its model."""

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
        """The arithmetic intensity: floating-point operations for each byte read."""
        return self.flops / self.bytes_read

    @property
    def speed(self) -> float:
        """Floating-point operations a second."""
        return self.flops / self.seconds


def weights_read(model: nn.Module) -> list[Tensor]:
    """Every weight but the position embeddings: a forward reads these whole, of them a few rows.

    Codes and scales, which are buffers (lab 10), are weights too.
    """
    named = [*model.named_parameters(), *model.named_buffers()]
    return [weight for name, weight in named if not name.endswith("wpe.weight")]


def weight_bytes(model: nn.Module) -> int:
    """Bytes of weights that a decode step reads."""
    return sum(weight.nbytes for weight in weights_read(model))


def forward_work(model: nn.Module, label: str, tokens: int, seconds: float) -> Work:
    """A forward of `tokens` tokens, counted by its weights: 2 FLOPs a weight and token.

    Each weight is read once, however many tokens there are. Attention's own products and the KV
    cache, small beside the weights, stay out; that a bias is added only, and not multiplied, is
    some thousandths.
    """
    numbers = sum(weight.numel() for weight in weights_read(model))
    return Work(label, 2 * numbers * tokens, weight_bytes(model), seconds)
