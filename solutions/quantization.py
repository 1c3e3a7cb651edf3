"""Lab 10: quantization. Weights in 8 bits or 4, because decode reads every one for every token.

A number becomes a small whole number, its code, times a scale that it shares with others. Who
shares a scale, and what it is made for, decides what is lost.

Weights are [n_in, n_out] here, as GPT-2 keeps them; most papers write them [n_out, n_in]. An output
channel is a column.

Sources: Jacob et al., "Quantization and training of neural networks for efficient
integer-arithmetic-only inference", CVPR 2018; Dettmers et al., "LLM.int8()", NeurIPS 2022; Xiao et
al., "SmoothQuant", ICML 2023; Frantar et al., "GPTQ", ICLR 2023; Lin et al., "AWQ", MLSys 2024.
"""

from collections.abc import Callable
from typing import Self

import torch
from jaxtyping import Float, Int8, UInt8
from torch import Tensor, nn

from gpt import Linear
from solutions.kv_cache import CachedLMHead
from solutions.quantized_model import Int4Kernel, Int8Embedding, Int8Kernel, QuantizedLMHead

OUTLIER = 6.0  # LLM.int8()'s threshold, section 3.2
GROUP = 32  # inputs that share a scale in 4 bits
DAMPING = 0.01  # GPTQ's, of the mean of the Hessian's diagonal, section 3.3

# -------------------------------------------------------------------------------- codes and scales


def absmax(
    weight: Float[Tensor, "n_in n_out"], bits: int, dim: int | None = 0
) -> tuple[Int8[Tensor, "n_in n_out"], Float[Tensor, "#n_in #n_out"]]:
    """Codes and scale, with weight ≈ codes * scale and 0 at code 0.

    dim: over which one scale is shared: 0, each column has its own (an output channel); 1, each row
    has; None, the whole matrix has one. The scale is [1, n_out], [n_in, 1] or [1, 1]. Codes go from
    -(2^(bits - 1) - 1) to 2^(bits - 1) - 1, so that the largest of those who share gets the last of
    them. Zeros that share a scale have codes of 0, and a scale of 1.
    """
    require_numbers(weight, bits)
    ### BEGIN SOLUTION
    last = 2 ** (bits - 1) - 1
    peak = weight.abs().amax(dim=(0, 1) if dim is None else dim, keepdim=True)
    scale = torch.where(peak > 0, peak / last, 1.0)
    return (weight / scale).round().to(torch.int8), scale
    ### END SOLUTION


def affine(
    groups: Float[Tensor, "groups size"], bits: int
) -> tuple[UInt8[Tensor, "groups size"], Float[Tensor, "groups 1"], UInt8[Tensor, "groups 1"]]:
    """Codes, scale and zero of each row, with groups ≈ (codes - zero) * scale.

    Codes go from 0 to 2^bits - 1, over the row's range from its least to its largest number, which
    is widened where it doesn't hold 0. `zero` is the code of 0, a whole number, so that 0 comes
    back as 0. A row of zeros has a scale of 1.
    Source: Jacob et al., section 2.1.
    """
    require_numbers(groups, bits)
    ### BEGIN SOLUTION
    last = 2**bits - 1
    low = groups.amin(dim=1, keepdim=True).clamp(max=0)
    high = groups.amax(dim=1, keepdim=True).clamp(min=0)
    scale = torch.where(high > low, (high - low) / last, 1.0)
    zero = (-low / scale).round()
    codes = (groups / scale + zero).round().clamp(0, last)
    return codes.to(torch.uint8), scale, zero.to(torch.uint8)
    ### END SOLUTION


def from_affine(
    codes: UInt8[Tensor, "groups size"],
    scale: Float[Tensor, "groups 1"],
    zero: UInt8[Tensor, "groups 1"],
) -> Float[Tensor, "groups size"]:
    """The numbers that `affine` made codes of, as near as they come back."""
    return (codes.to(scale.dtype) - zero) * scale


def in_groups(weight: Float[Tensor, "n_in n_out"], size: int) -> Float[Tensor, "groups size"]:
    """A matrix as rows of `size` inputs of one output channel, for `affine`.

    Raises ValueError where `size` doesn't divide n_in.
    """
    if size < 1 or len(weight) % size:
        raise ValueError(
            f"Groups of {size} don't divide the {len(weight)} inputs of this matrix: take a size "
            "that does."
        )
    return weight.T.reshape(-1, size)


def from_groups(groups: Float[Tensor, "groups size"], n_in: int) -> Float[Tensor, "n_in n_out"]:
    """The matrix that `in_groups` took apart."""
    return groups.reshape(-1, n_in).T


def calibrate(
    values: Float[Tensor, " values"], bits: int, scales: Float[Tensor, " scales"]
) -> Float[Tensor, ""]:
    """Of these scales the one with which the values lose least, by their mean squared error.

    Codes are as `absmax` makes them, but a value beyond the last code gets that one: a smaller
    scale is finer for the many, and cuts off the few.
    """
    require_numbers(values, bits)
    ### BEGIN SOLUTION
    last = 2 ** (bits - 1) - 1
    codes = (values / scales[:, None]).round().clamp(-last, last)
    errors = (codes * scales[:, None] - values).square().mean(dim=1)
    return scales[errors.argmin()]
    ### END SOLUTION


# ---------------------------------------------------------------------------- two codes in a byte


def pack(codes: UInt8[Tensor, "n_in n_out"]) -> UInt8[Tensor, "n_in/2 n_out"]:
    """Codes of 4 bits, two in a byte: row 2i in the low half of row i, row 2i + 1 in the high half.

    Raises ValueError where a code needs more than 4 bits, or the rows are not even in number.
    """
    if len(codes) % 2 or codes.max() > 15:
        raise ValueError(
            f"Two codes go into a byte: the rows must be even in number, not {len(codes)}, and the "
            f"codes at most 15, not {int(codes.max())}."
        )
    ### BEGIN SOLUTION
    return codes[0::2] | (codes[1::2] << 4)
    ### END SOLUTION


def unpack(packed: UInt8[Tensor, "rows n_out"]) -> UInt8[Tensor, "2*rows n_out"]:
    """The codes that `pack` put into bytes."""
    ### BEGIN SOLUTION
    return torch.stack([packed & 15, packed >> 4], dim=1).flatten(0, 1)
    ### END SOLUTION


# -------------------------------------------------------------------------------- weights alone


class QuantizedLinear(nn.Module):
    """A linear layer that holds codes of 8 bits, and a scale for each output channel."""

    codes: Int8[Tensor, "n_in n_out"]
    scale: Float[Tensor, "1 n_out"]
    bias: Float[Tensor, " n_out"]

    def __init__(
        self,
        codes: Int8[Tensor, "n_in n_out"],
        scale: Float[Tensor, "1 n_out"],
        bias: Float[Tensor, " n_out"],
    ) -> None:
        super().__init__()
        for name, tensor in {"codes": codes, "scale": scale, "bias": bias}.items():
            self.register_buffer(name, tensor)

    @classmethod
    def from_linear(cls, linear: Linear) -> Self:
        return cls(*absmax(linear.weight.detach(), bits=8, dim=0), linear.bias.detach())

    def forward(self, hidden: Float[Tensor, "... rows n_in"]) -> Float[Tensor, "... rows n_out"]:
        """The product with the weights that codes and scale stand for, plus the bias.

        No matrix of weights is kept in floats.
        """
        ### BEGIN SOLUTION
        return hidden @ self.codes.to(hidden.dtype) * self.scale + self.bias
        ### END SOLUTION


def int8_layer(linear: Linear) -> Int8Kernel:
    """A kernel behind the codes of `QuantizedLinear`."""
    layer = QuantizedLinear.from_linear(linear)
    return Int8Kernel(layer.codes, layer.scale, layer.bias)


def int4_layer(linear: Linear) -> Int4Kernel:
    """A kernel behind the codes of `affine`, in groups of `GROUP`."""
    groups = in_groups(linear.weight.detach(), GROUP)
    return Int4Kernel(*affine(groups, bits=4), linear.bias.detach())


def quantized(
    model: CachedLMHead, new_layer: Callable[[Linear], nn.Module] = int8_layer
) -> QuantizedLMHead:
    """A copy of a model whose matrices are other layers, with embedding and head in 8 bits."""
    weight = model.transformer.wte.weight.detach()
    return QuantizedLMHead(model, new_layer, Int8Embedding(*absmax(weight, bits=8, dim=1)))


# ------------------------------------------------------------------------ weights and activations


def int8_matmul(
    hidden: Float[Tensor, "tokens n_in"],
    codes: Int8[Tensor, "n_in n_out"],
    scale: Float[Tensor, "1 n_out"],
) -> Float[Tensor, "tokens n_out"]:
    """The product of activations and weights that are both in 8 bits (W8A8).

    Each token's activations get codes by a scale of their own, whatever the other tokens are. The
    product is one of whole numbers, exact up to 2^31; both scales come after it.
    """
    ### BEGIN SOLUTION
    token_codes, token_scale = absmax(hidden, bits=8, dim=1)
    product = token_codes.to(torch.int32) @ codes.to(torch.int32)
    return product * token_scale * scale
    ### END SOLUTION


def split_outliers(
    hidden: Float[Tensor, "tokens n_in"],
    codes: Int8[Tensor, "n_in n_out"],
    scale: Float[Tensor, "1 n_out"],
    threshold: float = OUTLIER,
) -> Float[Tensor, "tokens n_out"]:
    """The same product, but columns of `hidden` with an outlier stay floats: LLM.int8().

    An outlier is at least `threshold` away from 0. Its column, for all tokens, is multiplied with
    the weights that the codes stand for; the other columns go through `int8_matmul`, whose scales
    know nothing of it.
    Source: Dettmers et al., section 3.2.
    """
    ### BEGIN SOLUTION
    outliers = (hidden.abs() >= threshold).any(dim=0)
    usual = int8_matmul(hidden.masked_fill(outliers, 0), codes, scale)
    return usual + hidden[:, outliers] @ (codes[outliers] * scale)
    ### END SOLUTION


def smooth(
    gain: Float[Tensor, " n_in"],
    bias: Float[Tensor, " n_in"],
    weight: Float[Tensor, "n_in n_out"],
    peaks: Float[Tensor, " n_in"],
    alpha: float = 0.5,
) -> tuple[Float[Tensor, " n_in"], Float[Tensor, " n_in"], Float[Tensor, "n_in n_out"]]:
    """A LayerNorm's gain and bias and the matrix behind it, which takes over the outliers.

    peaks: of each input of the matrix, how far it goes from 0. Input j is divided by s_j =
    peaks_j^alpha / (largest weight of row j)^(1 - alpha), and row j multiplied by it: the product
    is as before. Where the peak or the row is 0, nothing is moved (s_j = 1).
    Source: Xiao et al., section 4, equation 4.
    """
    ### BEGIN SOLUTION
    rows = weight.abs().amax(dim=1)
    factors = torch.where((peaks > 0) & (rows > 0), peaks**alpha / rows ** (1 - alpha), 1.0)
    return gain / factors, bias / factors, weight * factors[:, None]
    ### END SOLUTION


# --------------------------------------------------------------------- rounding that looks ahead


def gptq(
    weight: Float[Tensor, "n_in n_out"],
    hessian: Float[Tensor, "n_in n_in"],
    scale: Float[Tensor, "#n_in n_out"],
    bits: int,
) -> Int8[Tensor, "n_in n_out"]:
    """Codes for the given scale, rounded so that the *outputs* lose little.

    hessian: inputs.T @ inputs, summed over calibration tokens, [n_in, n_in]. To its diagonal
    `DAMPING` of the diagonal's mean is added. One row of the matrix after the other is rounded, and
    its error, divided by U[i, i], times U[i, j] is taken from each row j behind it. U is upper
    triangular, with U.T @ U the inverse of the Hessian. Codes are limited as `absmax`'s are.
    Source: Frantar et al., algorithm 1.
    """
    require_numbers(weight, bits)
    require_hessian(hessian, len(weight))
    ### BEGIN SOLUTION
    last = 2 ** (bits - 1) - 1
    damping = DAMPING * hessian.diagonal().mean() * torch.eye(len(hessian))
    upper = torch.linalg.cholesky(torch.linalg.inv(hessian + damping), upper=True)
    left, scale, codes = weight.to(upper.dtype, copy=True), scale.expand_as(weight), []
    for i, row in enumerate(left):
        codes.append((row / scale[i]).round().clamp(-last, last))
        error = (row - codes[i] * scale[i]) / upper[i, i]
        left[i + 1 :] -= upper[i, i + 1 :, None] * error
    return torch.stack(codes).to(torch.int8)
    ### END SOLUTION


def awq_scales(
    weight: Float[Tensor, "n_in n_out"], inputs: Float[Tensor, "tokens n_in"], bits: int
) -> Float[Tensor, " n_in"]:
    """By what to multiply the rows of a matrix before it is rounded: those that matter most, most.

    Of s = (mean |input|)^ratio the one, out of twenty ratios, with which the outputs lose least;
    the codes are then those of `weight * s`, and what they stand for is divided by s again.
    Source: Lin et al., section 3.2.
    """
    means, exact = inputs.abs().mean(dim=0).clamp(min=1e-8), inputs @ weight
    best, least = torch.ones_like(means), torch.inf
    for ratio in torch.arange(20) / 20:
        factors = means**ratio
        factors = factors / (factors.max() * factors.min()).sqrt()
        codes, scale = absmax(weight * factors[:, None], bits)
        rounded = codes * scale / factors[:, None]
        error = float((inputs @ rounded - exact).square().mean())
        if error < least:
            best, least = factors, error
    return best


# ------------------------------------------------------------------------------- what is refused


def require_numbers(values: Tensor, bits: int) -> None:
    if not 2 <= bits <= 8:
        raise ValueError(f"Codes of 2 to 8 bits can be made, not of {bits}.")
    if values.numel() == 0 or not values.isfinite().all():
        raise ValueError(
            "What is quantized must be finite numbers, one or more; among these is a NaN or an "
            f"infinity, or there is none (shape {list(values.shape)})."
        )


def require_hessian(hessian: Tensor, n_in: int) -> None:
    if hessian.shape != (n_in, n_in) or not (hessian.diagonal() > 0).any():
        raise ValueError(
            f"The Hessian of {n_in} inputs is [{n_in}, {n_in}] and has something on its diagonal; "
            f"this one is {list(hessian.shape)}. Was it summed over calibration tokens?"
        )
