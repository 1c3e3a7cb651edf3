"""Lab 21, given: a model's weights as the kernel reads them: all inputs of an output together.

The models are lab 2's, lab 20's, and both with lab 10's codes of 8 bits. `weights_of_codes` takes
the codes of 4 bits that a GGUF file has, without rounding them again.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Int8, UInt8
from torch import Tensor

from gpt import Linear
from solutions.gguf.file import GGUF, gguf_in
from solutions.gguf.names import LINEAR
from solutions.llama import radians_of
from solutions.own_codes import OwnCodes, parts_of, rows_of_layer
from solutions.quantized_model import Int8Embedding, Int8Kernel

TILE = 64  # outputs that are computed side by side


class Matrix(NamedTuple):
    """A linear layer of all layers: its weights are weight * scale.

    weight: [layers, n_out, n_in], in float32 with scales of 1, or codes of 8 bits.
    """

    weight: Float32[np.ndarray, "layers n_out n_in"] | Int8[np.ndarray, "layers n_out n_in"]
    scale: Float32[np.ndarray, "layers n_out"]
    bias: Float32[np.ndarray, "layers n_out"]


class Codes(NamedTuple):
    """A linear layer of all layers: its weights are code * scale + zero, in groups of 32 inputs.

    Outputs come in tiles, side by side; beyond n_out the last tile has zeros. weight: two codes of
    4 bits in each byte; 16 bytes are a group, whose first half has low bits.
    """

    weight: UInt8[np.ndarray, "layers tiles n_in/2 tile"]
    scale: Float32[np.ndarray, "layers tiles groups tile"]
    zero: Float32[np.ndarray, "layers tiles groups tile"]
    bias: Float32[np.ndarray, "layers n_out"]


class Weights(NamedTuple):
    """What differs between families is there, or has no numbers.

    wpe: [0, n_embd] in Llama's family. radians: of the rotation, none in GPT-2. norms: gain and
    bias, before attention and before the MLP. head_norms: gains for queries and keys. gate: of the
    MLP's neurons, None in GPT-2.
    """

    wte: Matrix
    wpe: Float32[np.ndarray, "positions n_embd"]
    radians: Float32[np.ndarray, " half"]
    norms: Float32[np.ndarray, "layers 2 2 n_embd"]
    head_norms: Float32[np.ndarray, "layers 0|2 head_dim"]
    c_attn: Matrix | Codes
    attn_proj: Matrix | Codes
    gate: Matrix | Codes | None
    c_fc: Matrix | Codes
    mlp_proj: Matrix | Codes
    last_norm: Float32[np.ndarray, "2 n_embd"]
    head: Matrix

    @property
    def is_gpt2(self) -> bool:
        return len(self.wpe) > 0


def weights_of(model: Any, path: Path | None = None) -> Weights:
    """Return the weights of a model. Those in float32 are copied, and are in memory twice then.

    path: where a model on a file's own codes comes from. Raises ValueError as `weights_of_codes`.
    """
    if any(isinstance(layer, OwnCodes) for layer in model.modules()):
        file = None if path is None else gguf_in(path)
        if file is None:
            raise ValueError("The kernel reads a model's own codes from its GGUF file: name it.")
        return weights_of_codes(model, GGUF(file))
    transformer = model.transformer
    blocks = list(transformer.h)
    attentions, mlps = [block.attn for block in blocks], [block.mlp for block in blocks]
    c_fc = matrix_of([mlp.c_fc for mlp in mlps])
    return assembled(
        model,
        matrix_of([transformer.wte]),
        matrix_of([attention.c_attn for attention in attentions]),
        matrix_of([attention.c_proj for attention in attentions]),
        c_fc,
        matrix_of([mlp.c_proj for mlp in mlps]),
    )


def weights_of_codes(model: Any, file: GGUF) -> Weights:
    """Return the weights of a model with the codes of 4 bits of its file, as they are there.

    model: what own_codes.py makes of the file. Raises ValueError if a linear layer doesn't have
    codes of one kind in all layers.
    """
    layers = [rows_of_layer(file, model.config, n) for n in range(model.config.n_layer)]
    made = []
    for matrix in LINEAR:
        kinds = {coded.get(matrix) for _, coded in layers}
        kind = kinds.pop()
        if kinds or kind is None:
            raise ValueError(f"{file.path} doesn't have 4-bit codes of one kind for all {matrix}.")
        names = [f"transformer.h.{n}.{matrix}" for n in range(len(layers))]
        named = [(rows, name) for (rows, _), name in zip(layers, names, strict=True)]
        blocks = [rows.pop(f"{name}.weight").T for rows, name in named]
        biases = [rows.pop(f"{name}.bias") for rows, name in named]
        made.append(codes_of(blocks, kind, biases))
    weights = assembled(model, matrix_of([model.transformer.wte]), *made)
    coded = {name: one for name, one in weights._asdict().items() if isinstance(one, Codes)}
    tiles: dict[str, Any] = {name: in_tiles(one) for name, one in coded.items()}
    return weights._replace(**tiles)


def codes_of(
    blocks: Sequence[UInt8[Tensor, "n_out bytes"]], kind: str, biases: Sequence[Tensor]
) -> Codes:
    """Return the codes of a layer of all layers, each output by itself."""
    parts = zip(*(parts_of(rows, kind) for rows in blocks), strict=True)
    packed, scale, zero = (np.stack([one.numpy() for one in part]) for part in parts)
    weight = packed.reshape(*packed.shape[:2], -1)
    return Codes(weight, scale, zero, np.stack([array_of(bias) for bias in biases]))


def in_tiles(codes: Codes) -> Codes:
    """Return codes whose outputs are each by itself, with those of a tile side by side."""

    def turned_tiles(part: np.ndarray) -> np.ndarray:
        layers, n_out, n = part.shape
        padded = np.pad(part, ((0, 0), (0, -n_out % TILE), (0, 0)))
        return np.ascontiguousarray(padded.reshape(layers, -1, TILE, n).swapaxes(2, 3))

    weight, scale, zero = map(turned_tiles, codes[:3])
    return Codes(weight, scale, zero, codes.bias)


def assembled(
    model: Any, wte: Matrix, c_attn: Any, attn_proj: Any, c_fc: Any, mlp_proj: Any
) -> Weights:
    """Put the matrices together with all that a model has beside them."""
    transformer, blocks = model.transformer, list(model.transformer.h)
    is_gpt2, n_out, head = hasattr(transformer, "wpe"), c_fc.weight.shape[1], head_of(model)
    if is_gpt2:
        wpe, radians = array_of(transformer.wpe.weight), np.zeros(0, np.float32)
        head_norms = np.zeros((len(blocks), 0, model.config.head_dim), np.float32)
    else:
        wpe = np.zeros((0, wte.weight.shape[2]), np.float32)
        radians = array_of(radians_of(model.config))
        gains = [[array_of(norm.weight) for norm in block.attn.norms] for block in blocks]
        head_norms = np.array(gains, np.float32).reshape(len(blocks), -1, model.config.head_dim)
    return Weights(
        wte=wte,
        wpe=wpe,
        radians=radians,
        norms=np.stack([[norm_of(block.ln_1), norm_of(block.ln_2)] for block in blocks]),
        head_norms=head_norms,
        c_attn=c_attn,
        attn_proj=attn_proj,
        gate=None if is_gpt2 else outputs(c_fc, 0, n_out // 2),  # the gates come first
        c_fc=c_fc if is_gpt2 else outputs(c_fc, n_out // 2, n_out),
        mlp_proj=mlp_proj,
        last_norm=norm_of(transformer.ln_f),
        head=wte if head is transformer.wte else matrix_of([head]),
    )


def head_of(model: Any) -> Any:
    """Return the LM head: a layer, a weight, or the module of the embedding if that is the head."""
    output = getattr(model, "output", None)
    if output is not None:
        return output
    weight, wte = getattr(model, "head_weight", None), model.transformer.wte
    return wte if weight is None or weight is wte.weight else weight


def outputs(matrix: Any, start: int, stop: int) -> Any:
    """Return a part of the outputs of a linear layer."""
    return type(matrix)(*(np.ascontiguousarray(part[:, start:stop]) for part in matrix))


def matrix_of(layers: Sequence[Any]) -> Matrix:
    """Return the same linear layer of all layers of the model, or its embedding."""
    bias = [getattr(layer, "bias", None) for layer in layers]
    if isinstance(layers[0], Int8Kernel | Int8Embedding):
        weight = np.stack([layer.codes.numpy() for layer in layers])
        scale = np.stack([array_of(layer.scale.flatten()) for layer in layers])
    else:
        weight = np.stack([array_of(turned(layer)) for layer in layers])
        scale = np.ones(weight.shape[:2], np.float32)
    zeros = np.zeros(weight.shape[1], np.float32)
    biases = np.stack([zeros if one is None else array_of(one) for one in bias])
    return Matrix(weight, scale, biases)


def turned(layer: Any) -> Float32[Tensor, "n_out n_in"]:
    """Return the weights of a layer as PyTorch's own layers have them; GPT-2's are [in, out]."""
    if isinstance(layer, Tensor):
        return layer
    return layer.weight.T if isinstance(layer, Linear) else layer.weight


def array_of(tensor: Tensor) -> np.ndarray:
    return np.ascontiguousarray(tensor.detach().float().numpy())


def norm_of(module: Any) -> np.ndarray:
    gain = array_of(module.weight)
    bias = getattr(module, "bias", None)
    return np.stack([gain, np.zeros_like(gain) if bias is None else array_of(bias)])
