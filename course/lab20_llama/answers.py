"""Answers to lab 20's exercises: norms in 16 bits, folds, blocks, names, and chats."""

import torch
import torch.nn.functional as F

from solutions.llama import (
    attend_in_groups,
    chat_ids,
    dequantize,
    frequencies,
    from_gguf,
    rms_norm,
    rotate,
    swiglu,
)
from tests.common.attempts import right, wrong, wrong_result

wrong_result(
    frequencies,
    lambda found: found.double(),
    "The dtype of the frequencies is torch.float64; expected: it is torch.float32.",
)
wrong_result(
    frequencies,
    lambda found: torch.cat([found, found]),
    "What it returned is a tensor of floats, of shape [2]; expected: it is a tensor of floats",
)
wrong_result(dequantize, lambda numbers: numbers.flatten(), "of shape [32]; expected: it is")
wrong_result(
    from_gguf,
    lambda weights: list(weights.items()),
    "What it returned is a list; expected: it is a dict.",
)
wrong_result(chat_ids, lambda ids: torch.tensor([ids]), "What it returned is a Tensor; expected:")


@right(rms_norm)
def with_the_gain_before_rounding(hidden, gain, eps):
    wide = hidden.float() if hidden.dtype.itemsize == 2 else hidden
    return F.rms_norm(wide, gain.shape, gain.to(wide.dtype), eps).to(hidden.dtype)


@right(rotate)
def in_complex_numbers(heads, positions, radians):
    wide = heads.float() if heads.dtype.itemsize == 2 else heads
    first, second = (half.contiguous() for half in wide.chunk(2, dim=-1))
    angles = (positions.unsqueeze(-1) * radians).unsqueeze(1).to(wide.dtype)
    turned = torch.complex(first, second) * torch.complex(angles.cos(), angles.sin())
    return torch.cat([turned.real, turned.imag], dim=-1).to(heads.dtype)


@wrong(rotate, "Cosine and sine stay in float32, and so does the result")
def widened(heads, positions, radians):
    is_short = heads.dtype.itemsize == 2
    return rotate(heads.float() if is_short else heads, positions, radians)


@wrong(attend_in_groups, "It raised ValueError: attend takes equal batches and heads, not")
def with_heads_as_they_are(attend, queries, keys, values, mask):
    return attend(queries, keys, values, mask)


@wrong(attend_in_groups, "ValueError: attend takes queries, keys and values of four dimensions.")
def in_five_dimensions(attend, queries, keys, values, mask):
    queries = queries.unflatten(1, (keys.shape[1], -1))
    return attend(queries, keys[:, :, None], values[:, :, None], mask[:, :, None]).flatten(1, 2)


@wrong(swiglu, "The number of calls of `down` is 2; expected 1.")
def down_for_each_half(hidden, gate_up, down):
    gates, neurons = gate_up(hidden).chunk(2, dim=-1)
    active = F.silu(gates) * neurons
    middle = active.shape[-1] // 2
    left, right = active.clone(), active.clone()
    left[..., middle:], right[..., :middle] = 0, 0
    return down(left) + down(right)


@wrong(chat_ids, "The list of ids has ", "The answer isn't asked for")
def without_the_answer(messages, tokenizer, control):
    return chat_ids(messages, tokenizer, control)[: -1 - len("assistant\n")]


# ------------------------------------------------------------- mutants that do the same by right

EQUIVALENT = {
    "llama.frequencies": {
        (
            "torch.arange(0, head_dim, 2, dtype=torch.float32) -> torch.arange(0, head_dim, 2)"
        ): "whole numbers divided by a whole number are float32",
    },
}
