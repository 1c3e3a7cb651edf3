"""Lab 10: quantization. Weights in 8 or 4 bits, because a decode step reads all of them.

The last part goes one step further and leaves weights out: pruning.

Each number becomes a small integer, its code, times a scale that many numbers share. The loss of
quality depends on which numbers share a scale, and on how the scale is chosen.

Weights are [n_in, n_out] here, as GPT-2 keeps them; most papers write [n_out, n_in]. An output
channel is a column.

Sources: Jacob et al., "Quantization and training of neural networks for efficient
integer-arithmetic-only inference", CVPR 2018; Dettmers et al., "LLM.int8()", NeurIPS 2022; Xiao et
al., "SmoothQuant", ICML 2023; Frantar et al., "GPTQ", ICLR 2023; Lin et al., "AWQ", MLSys 2024;
Frantar and Alistarh, "SparseGPT", ICML 2023; Mishra et al., "Accelerating sparse deep neural
networks", 2021 (two of four).
"""

from collections.abc import Callable, Sequence
from typing import Self

import torch
from jaxtyping import Bool, Float, Int8, UInt8
from torch import Tensor, nn

from gpt import Linear
from solutions.kv_cache import CachedLMHead
from solutions.quantized_model import Int4Kernel, Int8Embedding, Int8Kernel, QuantizedLMHead

OUTLIER = 6.0  # LLM.int8()'s threshold, section 3.2
GROUP = 32  # inputs that share a scale in 4 bits
DAMPING = 0.01  # GPTQ's, as a share of the mean of the Hessian's diagonal, section 3.3

# -------------------------------------------------------------------------------- codes and scales


def absmax(
    weight: Float[Tensor, "n_in n_out"], bits: int, dim: int | None = 0
) -> tuple[Int8[Tensor, "n_in n_out"], Float[Tensor, "#n_in #n_out"]]:
    """Return codes and scale, with weight ≈ codes * scale and code 0 for 0.

    dim: the dimension along which weights share a scale. 0: one scale per column (output channel),
    [1, n_out]. 1: one per row, [n_in, 1]. None: one for the whole matrix, [1, 1]. The codes are
    int8, from -last to last with last = 2^(bits - 1) - 1, and the largest magnitude of the weights
    that share a scale gets code last or -last. If these weights are all 0, their scale is 1. The
    scale has the dtype of the weights.
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
    """Return codes, scale and zero of each row, with groups ≈ (codes - zero) * scale.

    The codes go from 0 to last = 2^bits - 1 and cover the row's range, from its smallest number to
    its largest. A range that doesn't contain 0 is widened until it does. The scale is the width of
    the range divided by last, in the dtype of the groups. `zero` is the code of 0, rounded to an
    integer so that 0 comes back as 0. A row of zeros has a scale of 1.
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
    """Return the numbers that codes, scale and zero of `affine` stand for."""
    return (codes.to(scale.dtype) - zero) * scale


def in_groups(weight: Float[Tensor, "n_in n_out"], size: int) -> Float[Tensor, "groups size"]:
    """Split a matrix into rows for `affine`: each has `size` inputs of one output channel.

    Raises ValueError if `size` doesn't divide n_in.
    """
    if size < 1 or len(weight) % size:
        raise ValueError(
            f"Groups of {size} don't divide the {len(weight)} inputs of this matrix: choose a size "
            "that does."
        )
    return weight.T.reshape(-1, size)


def from_groups(groups: Float[Tensor, "groups size"], n_in: int) -> Float[Tensor, "n_in n_out"]:
    """Put the matrix together again that `in_groups` has split."""
    return groups.reshape(-1, n_in).T


def calibrate(
    values: Float[Tensor, " values"], bits: int, scales: Float[Tensor, " scales"]
) -> Float[Tensor, ""]:
    """Return the one of these scales with the smallest mean squared error of the values.

    The codes go from -last to last, as with `absmax`, and a value beyond the last code is clipped:
    it gets the last code. The result is a tensor without dimensions, one of `scales`.
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
    """Pack two codes of 4 bits into each byte of row i: row 2i in its low half, row 2i + 1 high.

    Raises ValueError if a code needs more than 4 bits, or if the number of rows is odd.
    """
    if len(codes) % 2 or (codes > 15).any():
        raise ValueError(
            f"Two codes go into a byte: the rows must be even in number, not {len(codes)}, and the "
            f"codes at most 15, not {int(codes.max())}."
        )
    ### BEGIN SOLUTION
    return codes[0::2] | (codes[1::2] << 4)
    ### END SOLUTION


def unpack(packed: UInt8[Tensor, "rows n_out"]) -> UInt8[Tensor, "2*rows n_out"]:
    """Return the codes that `pack` put into bytes, with the rows in their old order."""
    ### BEGIN SOLUTION
    return torch.stack([packed & 15, packed >> 4], dim=1).flatten(0, 1)
    ### END SOLUTION


# -------------------------------------------------------------------------------- weights alone


class QuantizedLinear(nn.Module):
    """A linear layer that holds 8-bit codes and one scale per output channel."""

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
        """Multiply by the weights, which are codes * scale, and add the bias.

        The layer keeps no floating-point matrix of weights between calls.
        """
        ### BEGIN SOLUTION
        return hidden @ self.codes.to(hidden.dtype) * self.scale + self.bias
        ### END SOLUTION


def int8_layer(linear: Linear) -> Int8Kernel:
    """Return a layer that calls PyTorch's int8 kernel, with the codes of `QuantizedLinear`."""
    layer = QuantizedLinear.from_linear(linear)
    return Int8Kernel(layer.codes, layer.scale, layer.bias)


def int4_layer(linear: Linear) -> Int4Kernel:
    """Return a layer that calls PyTorch's int4 kernel, with `affine` codes in groups of `GROUP`."""
    groups = in_groups(linear.weight.detach(), GROUP)
    return Int4Kernel(*affine(groups, bits=4), linear.bias.detach())


def quantized(
    model: CachedLMHead, new_layer: Callable[[Linear], nn.Module] = int8_layer
) -> QuantizedLMHead:
    """Return a copy of the model with new layers for its matrices, embedding and head in int8."""
    weight = model.transformer.wte.weight.detach()
    return QuantizedLMHead(model, new_layer, Int8Embedding(*absmax(weight, bits=8, dim=1)))


# ------------------------------------------------------------------------ weights and activations


def int8_matmul(
    hidden: Float[Tensor, "tokens n_in"],
    codes: Int8[Tensor, "n_in n_out"],
    scale: Float[Tensor, "1 n_out"],
) -> Float[Tensor, "tokens n_out"]:
    """Multiply activations by weights, both as 8-bit codes (W8A8).

    Each token gets its own scale, as `absmax` makes it, so its result doesn't depend on the other
    tokens. The sums are sums of integers and exact up to 2^31. Then they are multiplied by both
    scales.
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
    """Multiply like `int8_matmul`, but columns of `hidden` with an outlier in floats: LLM.int8().

    An outlier has a magnitude of `threshold` or more. A column with an outlier is multiplied, for
    all tokens, by the weights that the codes stand for, codes * scale. The other columns go through
    `int8_matmul`, and the outliers must not influence their scales. `hidden` stays as it is.
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
    """Move outliers from the inputs of a matrix to its weights; return new gain, bias and weight.

    gain, bias: of the LayerNorm before the matrix. peaks: the largest magnitude of each input of
    the matrix. Gain and bias of input j are divided by s_j = peaks_j^alpha / (largest magnitude in
    row j)^(1 - alpha), and row j of the weights is multiplied by s_j, so the product stays the
    same. s_j is 1 where the peak or the whole row is 0.
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
    """Return int8 codes for the given scale, rounded so that the *outputs* change little.

    scale: one per column, or one per weight. hessian: inputs.T @ inputs over the calibration
    tokens. First, `DAMPING` times the mean of its diagonal is added to its diagonal. U is upper
    triangular, with U.T @ U the inverse of the damped Hessian. The rows are rounded in order. After
    row i, its error divided by U[i, i], times U[i, j], is subtracted from each later row j. The
    codes go from -last to last, as with `absmax`.
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
    """Return the factors s by which to multiply the rows of a matrix before rounding it (AWQ).

    Tries s = (mean |input|)^ratio for twenty ratios and returns the s with the smallest squared
    error of the outputs. The codes are then those of `weight * s`, and the numbers that they stand
    for are divided by s again.
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


# ------------------------------------------------------------------------------ weights left out


def keep_largest(scores: Float[Tensor, "n_in n_out"], share: float) -> Bool[Tensor, "n_in n_out"]:
    """Return which weights of a matrix stay when a share of them is set to 0.

    The round(share * n) weights with the smallest scores of the whole matrix go; of equal scores
    any may go. The magnitude of the weights is the simplest score.
    """
    ### BEGIN SOLUTION
    kept = torch.ones_like(scores, dtype=torch.bool)
    gone = scores.flatten().argsort()[: round(share * scores.numel())]
    kept.view(-1)[gone] = False
    return kept
    ### END SOLUTION


def two_of_four(scores: Float[Tensor, "n_in n_out"]) -> Bool[Tensor, "n_in n_out"]:
    """Return which weights stay in the pattern 2:4, which GPUs multiply faster.

    Of each four inputs in a row, 4i to 4i + 3, each output keeps two weights with the largest
    scores. n_in is a multiple of 4. Source: Mishra et al., section 3.
    """
    ### BEGIN SOLUTION
    fours = scores.T.reshape(-1, 4)
    best = fours.topk(2, dim=1).indices
    kept = torch.zeros_like(fours, dtype=torch.bool).scatter(1, best, True)
    return kept.reshape(scores.T.shape).T
    ### END SOLUTION


def compressed(
    weight: Float[Tensor, "n_in n_out"], kept: Bool[Tensor, "n_in n_out"]
) -> tuple[Float[Tensor, "n_in/2 n_out"], UInt8[Tensor, "n_in/8 n_out"]]:
    """Return the kept weights of a 2:4 matrix, and where they were, four of them in a byte.

    values: each output's kept weights, in their order. A place is the number of its input within
    its four, 0 to 3, in two bits: byte i has the places of values 4i to 4i + 3, the first one in
    its lowest bits. n_in is a multiple of 8.
    """
    ### BEGIN SOLUTION
    inputs = kept.T.nonzero()[:, 1].view(len(kept.T), -1).T
    places = (inputs % 4).view(-1, 4, inputs.shape[1])
    packed = places[:, 0] | places[:, 1] << 2 | places[:, 2] << 4 | places[:, 3] << 6
    return weight.gather(0, inputs), packed.to(torch.uint8)
    ### END SOLUTION


def expanded(
    values: Float[Tensor, "n_in/2 n_out"], places: UInt8[Tensor, "n_in/8 n_out"]
) -> Float[Tensor, "n_in n_out"]:
    """Return the matrix that `compressed` has made smaller, with 0 where a weight is missing."""
    n_in, n_out = 2 * len(values), values.shape[1]
    within = torch.stack([places >> bits & 3 for bits in (0, 2, 4, 6)], dim=1).flatten(0, 1)
    inputs = within.long() + 4 * (torch.arange(n_in // 2) // 2)[:, None]
    return values.new_zeros(n_in, n_out).scatter(0, inputs, values)


def sparse_gpt(
    weight: Float[Tensor, "n_in n_out"],
    hessian: Float[Tensor, "n_in n_in"],
    choose: Callable[[Float[Tensor, "rows n_out"]], Bool[Tensor, "rows n_out"]],
    block: int = 64,
) -> Float[Tensor, "n_in n_out"]:
    """Return the matrix with some weights 0 and others changed, so that *outputs* change little.

    U is made of the Hessian as for `gptq`, and the rows are taken in order. At the first row of
    each block of rows, `choose` gets the scores of the block, (left / U[i, i]) squared, with `left`
    as the earlier rows have changed it, and returns which weights stay. Setting a row's others to 0
    makes an error, which is spread over the later rows as GPTQ's is. The last block may be shorter.
    Source: Frantar and Alistarh, algorithm 1.
    """
    require_hessian(hessian, len(weight))
    ### BEGIN SOLUTION
    damping = DAMPING * hessian.diagonal().mean() * torch.eye(len(hessian))
    upper = torch.linalg.cholesky(torch.linalg.inv(hessian + damping), upper=True)
    left, diagonal = weight.to(upper.dtype, copy=True), upper.diagonal()[:, None]
    for i in range(len(left)):
        if i % block == 0:
            kept = choose((left[i : i + block] / diagonal[i : i + block]).square())
        error = left[i].masked_fill(kept[i % block], 0) / upper[i, i]
        left[i + 1 :] -= upper[i, i + 1 :, None] * error
        left[i] *= kept[i % block]
    return left.to(weight.dtype)
    ### END SOLUTION


def without_heads(
    weight: Float[Tensor, "n_embd 3*n_embd"],
    bias: Float[Tensor, " 3*n_embd"],
    out: Float[Tensor, "n_embd n_embd"],
    n_head: int,
    kept: Sequence[int],
) -> tuple[
    Float[Tensor, "n_embd 3*smaller"], Float[Tensor, " 3*smaller"], Float[Tensor, "smaller n_embd"]
]:
    """Return the weights of an attention layer with only these of its heads: smaller matrices.

    weight, bias: of the projection to queries, keys and values, in this order, and in each of them
    one head after the other. out: of the projection behind attention. The heads stay in the order
    of `kept`.
    """
    ### BEGIN SOLUTION
    columns = torch.arange(len(bias)).view(3, n_head, -1)[:, list(kept)].flatten()
    rows = torch.arange(len(out)).view(n_head, -1)[list(kept)].flatten()
    return weight[:, columns], bias[columns], out[rows]
    ### END SOLUTION


# -------------------------------------------------------------------------- checks of the input


def require_numbers(values: Tensor, bits: int) -> None:
    if not 2 <= bits <= 8:
        raise ValueError(f"Codes have 2 to 8 bits, not {bits}.")
    if values.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"Quantize from float32 or float64, not from {values.dtype}: there the scale itself "
            "would be rounded, and the largest weight could miss its code. Call .float() first."
        )
    if values.numel() == 0 or not values.isfinite().all():
        raise ValueError(
            "Only finite numbers can be quantized, one or more; these hold a NaN or an infinity, "
            f"or there are none (shape {list(values.shape)})."
        )


def require_hessian(hessian: Tensor, n_in: int) -> None:
    if hessian.shape != (n_in, n_in) or not (hessian.diagonal() > 0).any():
        raise ValueError(
            f"The Hessian of {n_in} inputs is [{n_in}, {n_in}] and has something on its diagonal; "
            f"this one is {list(hessian.shape)}. Was it summed over calibration tokens?"
        )
