"""Lab 10, given: models with changed matrices, the inputs of the matrices, and kernels."""

import copy
import types
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from jaxtyping import BFloat16, Float, Int, Int8, UInt8
from torch import Tensor, nn

from gpt import GPTLMHead, Linear
from solutions.kv_cache import CachedLMHead, KVCache
from solutions.quality.bits_per_byte import Passage, logits_of

Matrix = Float[Tensor, "n_in n_out"]
Model = TypeVar("Model", bound=GPTLMHead)

PLANTED = 5, 77, 200  # channels of the twin's hidden states
FACTOR = 40.0

# ----------------------------------------------------------------------- a model's matrices


def matrices(model: GPTLMHead) -> dict[str, Linear]:
    """Return the linear layers of all blocks by name, without the embedding."""
    return {name: part for name, part in model.named_modules() if isinstance(part, Linear)}


def with_matrices(model: Model, change: Callable[[str, Matrix], Matrix]) -> Model:
    """Return a copy of the model with each matrix replaced by `change(name, weight)`."""
    copied = copy.deepcopy(model)
    for name, linear in matrices(copied).items():
        linear.weight.data = change(name, linear.weight.data).contiguous()
    return copied


@torch.inference_mode()
def inputs_of(
    model: GPTLMHead, texts: Sequence[Passage]
) -> dict[str, Float[Tensor, "tokens n_in"]]:
    """Return the inputs of each matrix while the model reads texts, all tokens in one tensor."""
    found: dict[str, list[Tensor]] = {name: [] for name in matrices(model)}

    def watch(name: str) -> Any:
        return lambda linear, inputs: found[name].append(inputs[0].flatten(0, 1))

    hooks = [part.register_forward_pre_hook(watch(n)) for n, part in matrices(model).items()]
    try:
        for ids in texts:
            logits_of(model)(ids[None])
    finally:
        for hook in hooks:
            hook.remove()
    return {name: torch.cat(parts) for name, parts in found.items()}


def with_activations(
    model: Model, multiply: Callable[[Float[Tensor, "tokens n_in"], str], Tensor]
) -> Model:
    """Return a copy that computes each product as `multiply(hidden, name)` and adds the bias."""
    copied = copy.deepcopy(model)
    for name, linear in matrices(copied).items():

        def forward(self: Linear, hidden: Tensor, name: str = name) -> Tensor:
            product = multiply(hidden.flatten(0, -2), name)
            return product.unflatten(0, hidden.shape[:-1]) + self.bias

        linear.forward = types.MethodType(forward, linear)  # type: ignore[method-assign]
    return copied


def norms_before(model: GPTLMHead) -> dict[str, nn.LayerNorm]:
    """Return the LayerNorm right before each matrix that has one, by the matrix's name."""
    found: dict[str, nn.LayerNorm] = {}
    blocks: Any = model.transformer.h
    for idx, block in enumerate(blocks):
        found[f"transformer.h.{idx}.attn.c_attn"] = block.ln_1
        found[f"transformer.h.{idx}.mlp.c_fc"] = block.ln_2
    return found


def planted_twin(model: Model, factor: float = FACTOR) -> Model:
    """Return a model of the same function with outliers in its activations, as large models have.

    Three channels of every LayerNorm before a matrix are multiplied by `factor`, and the matching
    rows of the matrix are divided by it.
    """
    twin, planted = copy.deepcopy(model), list(PLANTED)
    for name, norm in norms_before(twin).items():
        norm.weight.data[planted] *= factor
        norm.bias.data[planted] *= factor
        matrices(twin)[name].weight.data[planted] /= factor
    return twin


# ------------------------------------------------------------------------------ the kernels

STEP = 16  # the int8 kernel reads so many inputs at once, the int4 kernel makes so many outputs


def in_bfloat16(
    multiply: Callable[[BFloat16[Tensor, "rows n_in"]], BFloat16[Tensor, "rows n_out"]],
    hidden: Float[Tensor, "*rows n_in"],
) -> Float[Tensor, "*rows n_out"]:
    """Call a kernel, which takes [rows, n_in] in bfloat16, and return what `hidden` would give."""
    product = multiply(hidden.flatten(0, -2).to(torch.bfloat16))
    return product.view(*hidden.shape[:-1], product.shape[-1]).to(hidden.dtype)


class Int8Kernel(nn.Module):
    """A linear layer of 8-bit codes with PyTorch's kernel, which converts them while it reads them.

    The kernel takes activations in bfloat16 and codes as [n_out, n_in].
    """

    codes: Int8[Tensor, "n_out n_in"]
    scale: BFloat16[Tensor, " n_out"]
    bias: Float[Tensor, " n_out"]

    def __init__(
        self,
        codes: Int8[Tensor, "n_in n_out"],
        scale: Float[Tensor, "1 n_out"],
        bias: Float[Tensor, " n_out"],
    ) -> None:
        super().__init__()
        require_steps("8", "inputs", len(codes))
        self.register_buffer("codes", codes.T.contiguous())
        self.register_buffer("scale", scale[0].to(torch.bfloat16))
        self.register_buffer("bias", bias)

    def forward(self, hidden: Float[Tensor, "*rows n_in"]) -> Float[Tensor, "*rows n_out"]:
        return self.product()(hidden.flatten(0, -2)).view(*hidden.shape[:-1], len(self.bias))

    def product(self) -> Callable[[Float[Tensor, "rows n_in"]], Float[Tensor, "rows n_out"]]:
        """Return the product alone: in a small step, looking up a module's tensors takes longer."""
        codes, scale, bias = self.codes, self.scale, self.bias

        def product(rows: Float[Tensor, "rows n_in"]) -> Float[Tensor, "rows n_out"]:
            found = torch._weight_int8pack_mm(rows.to(torch.bfloat16), codes, scale)
            return torch.add(found, bias)  # in float32, as the bias

        return product


class Int4Kernel(nn.Module):
    """A linear layer of 4-bit codes with PyTorch's kernel, in groups of inputs of one output."""

    packed: UInt8[Tensor, "n_out n_in/2"]
    scale_and_zero: BFloat16[Tensor, "groups n_out 2"]
    bias: Float[Tensor, " n_out"]

    def __init__(
        self,
        codes: UInt8[Tensor, "groups size"],
        scale: Float[Tensor, "groups 1"],
        zero: UInt8[Tensor, "groups 1"],
        bias: Float[Tensor, " n_out"],
    ) -> None:
        super().__init__()
        n_out, self.size = len(bias), codes.shape[1]
        require_steps("4", "outputs", n_out)
        # The kernel computes (code - 8) * scale + zero, where zero is a weight and not a code.
        zero_there = (8.0 - zero) * scale
        both = torch.stack([scale, zero_there], dim=-1).view(n_out, -1, 2).transpose(0, 1)
        as_int32 = codes.view(n_out, -1).to(torch.int32)
        self.register_buffer("packed", torch._convert_weight_to_int4pack_for_cpu(as_int32, 1))
        self.register_buffer("scale_and_zero", both.to(torch.bfloat16).contiguous())
        self.register_buffer("bias", bias)

    def forward(self, hidden: Float[Tensor, "*rows n_in"]) -> Float[Tensor, "*rows n_out"]:
        def multiply(rows: Tensor) -> Tensor:
            given = rows, self.packed, self.size, self.scale_and_zero
            return torch._weight_int4pack_mm_for_cpu(*given)

        return in_bfloat16(multiply, hidden).add_(self.bias)


def require_steps(bits: str, what: str, count: int) -> None:
    if count % STEP:
        raise ValueError(
            f"PyTorch's kernel for {bits} bits needs a multiple of {STEP} {what}, and {count} is "
            f"no multiple of {STEP}. Use QuantizedLinear, or a model of another width."
        )


class Int8Embedding(nn.Module):
    """The token embedding in 8 bits, with one scale per token; the head reads the same codes.

    Output n of the head is the product with row n of the embedding, so one scale serves both.
    """

    codes: Int8[Tensor, "vocab n_embd"]
    scale: Float[Tensor, "vocab 1"]
    kernels_scale: BFloat16[Tensor, " vocab"]

    def __init__(
        self, codes: Int8[Tensor, "vocab n_embd"], scale: Float[Tensor, "vocab 1"]
    ) -> None:
        super().__init__()
        require_steps("8", "inputs", codes.shape[1])
        self.register_buffer("codes", codes)
        self.register_buffer("scale", scale)
        self.register_buffer("kernels_scale", scale[:, 0].to(torch.bfloat16))

    @property
    def weight(self) -> Float[Tensor, "vocab n_embd"]:
        """Return the floating-point embedding, computed from the codes at each access."""
        return self.codes * self.scale

    def forward(self, ids: Int[Tensor, "*rows"]) -> Float[Tensor, "*rows n_embd"]:
        return self.codes[ids] * self.scale[ids]

    def logits(self, hidden: Float[Tensor, "*rows n_embd"]) -> Float[Tensor, "*rows vocab"]:
        def multiply(rows: Tensor) -> Tensor:
            return torch._weight_int8pack_mm(rows, self.codes, self.kernels_scale)

        return in_bfloat16(multiply, hidden)


class QuantizedLMHead(CachedLMHead):
    """A model with quantized layers instead of its matrices, and embedding and head in 8 bits."""

    def __init__(
        self,
        model: CachedLMHead,
        new_layer: Callable[[Linear], nn.Module],
        embedding: Int8Embedding,
    ) -> None:
        nn.Module.__init__(self)  # GPTLMHead's own would draw random weights in vain
        self.config, self.embedding = model.config, embedding
        self.output = getattr(model, "output", None)  # a head of its own stays as it is
        # What has a replacement is not copied: the floats of all layers together would fill memory.
        replaced = {id(linear): new_layer(linear) for linear in matrices(model).values()}
        replaced[id(model.transformer.wte)] = embedding
        self.transformer = copy.deepcopy(model.transformer, replaced)

    def forward(
        self,
        inputs: Int[Tensor, "batch q_len"],
        position_ids: Int[Tensor, "batch q_len"],
        kv_cache: KVCache,
    ) -> Float[Tensor, "batch q_len vocab"]:
        return self.lm_head(self.transformer(inputs, position_ids, kv_cache))

    def lm_head(self, hidden: Float[Tensor, "*rows n_embd"]) -> Float[Tensor, "*rows vocab"]:
        return self.embedding.logits(hidden) if self.output is None else self.output(hidden)


def bytes_of(model: nn.Module) -> int:
    """Return the bytes of all weights, codes and scales of the model."""
    return sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])
