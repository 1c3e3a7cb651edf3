"""Lab 20, given: a GGUF's own 4-bit codes in PyTorch's int4 kernel, never rounded a second time.

A weight is code * d + m in Q4_1 and (code - 8) * d in Q4_0, with d and m for each 32 inputs of an
output. The kernel computes (code - 8) * scale + zero. So scale is d, and zero is m + 8 * d or 0,
both rounded to bfloat16. Embedding and head are rounded to 8 bits, as in lab 10.
"""

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from gpt import Linear
from solutions.checkpoints.weights import numbers_of, of_gguf, require_fitting, tensor_of
from solutions.engine.products import Product
from solutions.gguf.file import GGUF
from solutions.gguf.names import LINEAR, our_name
from solutions.llama import LlamaConfig, LlamaLMHead, from_gguf
from solutions.quantization import absmax
from solutions.quantized_model import (
    Int4Kernel,
    Int8Embedding,
    QuantizedLMHead,
    matrices,
    require_steps,
)

BLOCKS = {"Q4_0": 18, "Q4_1": 20}  # bytes of a block: d, perhaps m, and GROUP codes
GROUP = 32
SLICE = 1024  # rows of the embedding that are rounded at a time


class OwnCodes(Int4Kernel):
    """A linear layer of a file's codes. rows: the blocks of each output, as the file has them."""

    def __init__(
        self, rows: UInt8[Tensor, "n_out bytes"], kind: str, bias: Float[Tensor, " n_out"]
    ) -> None:
        nn.Module.__init__(self)
        n_out, self.size = len(rows), GROUP
        require_steps("4", "outputs", n_out)
        packed, scale, least = parts_of(rows, kind)
        both = torch.stack([scale, least + 8 * scale], dim=-1).transpose(0, 1).to(torch.bfloat16)
        as_int32 = torch.cat([packed & 15, packed >> 4], dim=-1).view(n_out, -1).to(torch.int32)
        self.register_buffer("packed", torch._convert_weight_to_int4pack_for_cpu(as_int32, 1))
        self.register_buffer("scale_and_zero", both.contiguous())
        self.register_buffer("bias", bias)

    def product(self) -> Product:
        """Return the product alone, for lab 7's fast path."""
        packed, both, bias = self.packed, self.scale_and_zero, self.bias

        def product(rows: Float[Tensor, "rows n_in"]) -> Float[Tensor, "rows n_out"]:
            rows = rows.to(torch.bfloat16)
            return torch.add(torch._weight_int4pack_mm_for_cpu(rows, packed, GROUP, both), bias)

        return product


def parts_of(
    rows: UInt8[Tensor, "n_out bytes"], kind: str
) -> tuple[
    UInt8[Tensor, "n_out groups 16"],
    Float[Tensor, "n_out groups"],
    Float[Tensor, "n_out groups"],
]:
    """Return the codes of each block, two in a byte, its scale, and what a code of 0 stands for."""
    blocks = rows.reshape(len(rows), -1, BLOCKS[kind])
    scales = blocks[..., :-16].contiguous().view(torch.float16).float()
    scale = scales[..., 0]
    return blocks[..., -16:], scale, scales[..., 1] if kind == "Q4_1" else -8 * scale


def load_own_codes(path: Path) -> QuantizedLMHead:
    """Load a GGUF of Llama's family; no matrix whose codes have 4 bits becomes floats on the way.

    Raises ValueError, with what to do, if there is none, or if the kernel can't take one.
    """
    file = GGUF(path)
    if not any(file.kind(name).name in BLOCKS for name in file.tensors if name[:4] == "blk."):
        raise ValueError(f"{path} has no codes of 4 bits. Load it as floats, or take a Q4_1 file.")
    config, names = of_gguf(file), [name for name in file.tensors if name != "rope_freqs.weight"]
    shapes = {name: torch.empty(file.tensors[name].shape, device="meta") for name in names}
    require_fitting(path, config, in_our_order(shapes, file, config))
    embedding = in_8_bits(file, "token_embd.weight")
    outside = [name for name in names if not name.startswith(("blk.", "token_embd"))]
    others, layers = {our_name(name): tensor_of(file, name) for name in outside}, {}
    for number in range(config.n_layer):
        modules, norms = layer_of(file, config, number)
        layers.update(modules)
        others.update(norms)
    with torch.device("meta"):  # none are drawn in vain
        model: Any = LlamaLMHead(config)
    model.load_state_dict(others, strict=False, assign=True)
    places = {linear: place for place, linear in matrices(model).items()}
    made = QuantizedLMHead(model, lambda linear: layers[places[linear]], embedding)
    return made.eval().requires_grad_(False)


def in_8_bits(file: GGUF, name: str) -> Int8Embedding:
    """Round as lab 10's `quantized` does, with the floats of a few rows at a time."""
    kind, vocab_size = file.kind(name).name, file.tensors[name].shape[0]
    parts = []
    for blocks in file.blocks(name).unflatten(0, (vocab_size, -1)).split(SLICE):
        rows = numbers_of(blocks.flatten(0, 1), kind).view(len(blocks), -1)
        parts.append(absmax(rows, bits=8, dim=1))
    codes, scale = (torch.cat(part) for part in zip(*parts, strict=True))
    return Int8Embedding(codes, scale)


def layer_of(
    file: GGUF, config: LlamaConfig, number: int
) -> tuple[dict[str, nn.Module], dict[str, Tensor]]:
    """Return a layer's matrices as modules, and its norms, by their places in the model."""
    weights, coded = rows_of_layer(file, config, number)
    modules: dict[str, nn.Module] = {}
    for matrix in LINEAR:
        place = f"transformer.h.{number}.{matrix}"
        weight, bias = weights.pop(f"{place}.weight"), weights.pop(f"{place}.bias").float()
        kind = coded.get(matrix)
        modules[place] = OwnCodes(weight.T, kind, bias) if kind else float_layer(weight, bias)
    return modules, weights


def rows_of_layer(
    file: GGUF, config: LlamaConfig, number: int
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return a layer's weights by their places in the model, and the kind of each matrix of codes.

    A matrix is made of codes if all its parts, q, k and v for example, are codes of one kind. Then
    its weight is the bytes of the blocks of each output, [bytes, n_out].
    """
    names = [name for name in file.tensors if name.startswith(f"blk.{number}.")]
    kinds: dict[str, set[str]] = {matrix: set() for matrix in LINEAR}
    for name in names:
        if name.endswith(".weight") and matrix_of(name):
            kinds[matrix_of(name)].add(file.kind(name).name)
    coded = {
        matrix: its.pop() for matrix, its in kinds.items() if len(its) == 1 and its < BLOCKS.keys()
    }
    rows = {
        name: file.blocks(name).view(file.tensors[name].shape[0], -1)
        if matrix_of(name) in coded and name.endswith(".weight")
        else tensor_of(file, name)
        for name in names
    }
    return in_our_order(rows, file, config), coded


def matrix_of(name: str) -> str:
    """Return which of LINEAR a tensor of the file is a part of; "" for a norm."""
    return next((matrix for matrix in LINEAR if matrix in our_name(name)), "")


def in_our_order(rows: dict[str, Tensor], file: GGUF, config: LlamaConfig) -> dict[str, Tensor]:
    """Order and join rows as lab 20's `from_gguf`, which takes bytes as well as numbers."""
    heads = config.n_head * config.group, config.n_head
    return from_gguf(rows, *heads, file.entries["general.architecture"])


def float_layer(weight: Float[Tensor, "n_in n_out"], bias: Float[Tensor, " n_out"]) -> Linear:
    with torch.device("meta"):
        layer = Linear(*weight.shape)
    layer.load_state_dict({"weight": weight, "bias": bias}, assign=True)
    return layer
