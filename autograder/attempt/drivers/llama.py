"""Drivers of lab 20: five parts of a model, blocks of a file, names, and a chat as ids."""

import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from autograder.attempt.lent import handle, sealed
from autograder.attempt.plain import kind_of_list, kind_or_none
from autograder.attempt.records import Attempt, Seen, form_of, one_call

Heads = Float[Tensor, "batch heads seq head_dim"]

# ---------------------------------------------------------------------------------- norm, rotation

rms_norm = one_call(__name__, "rms_norm", "What it returned", "hidden gain eps")
rotate = one_call(__name__, "rotate", "What it returned", "heads positions radians")


def frequencies(attempt: Attempt, head_dim: int, theta: float, **scaling: Any) -> list[Seen]:
    """Each pair by itself, because they differ by powers of ten.

    A case without `scaling` needs the attempt's default.
    """
    found = attempt(head_dim, theta, **scaling)
    seen = [Seen("What it returned", form_of(found))]
    if isinstance(found, Tensor) and found.shape == (head_dim // 2,):
        seen += [Seen(f"The frequency of pair {i}", n) for i, n in enumerate(found.tolist())]
        seen.append(Seen("The dtype of the frequencies", f"is {found.dtype}"))
    return seen


# -------------------------------------------------------------------------------------- attention


def attend_in_groups(
    attempt: Attempt,
    lent: str,
    queries: Heads,
    keys: Heads,
    values: Heads,
    mask: Bool[Tensor, "batch 1 q_len k_len"],
) -> list[Seen]:
    """lent: an `attend` that weighs by softmax, or one that takes the highest score alone."""
    given = list[tuple[int, int]]()

    def attend(queries: Heads, keys: Heads, values: Heads, mask: Any) -> Tensor:
        require_equal_heads(queries, keys, values, mask)
        given.append((keys.numel(), values.numel()))
        scores = (queries @ keys.mT / queries.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf)
        weights = scores.softmax(dim=-1)
        if lent == "highest":
            highest = weights.argmax(dim=-1, keepdim=True)
            weights = torch.zeros_like(weights).scatter_(-1, highest, 1.0)
        return weights @ values

    found = attempt(sealed(attend), queries, keys, values, mask)
    in_all = [sum(numbers) for numbers in zip(*given, strict=True)] or [0, 0]
    return [
        Seen("What it returned", found),
        Seen("The number of calls of `attend`", len(given)),
        Seen("The count of numbers in the keys that `attend` was given", in_all[0]),
        Seen("The count of numbers in the values that `attend` was given", in_all[1]),
    ]


def require_equal_heads(queries: Any, keys: Any, values: Any, mask: Any) -> None:
    """Raise ValueError for what an `attend` that knows no groups doesn't take."""
    if not all(isinstance(part, Tensor) and part.ndim == 4 for part in (queries, keys, values)):
        raise ValueError("attend takes queries, keys and values of four dimensions.")
    if not queries.shape[:2] == keys.shape[:2] == values.shape[:2]:
        shapes = ", ".join(str(list(part.shape)) for part in (queries, keys, values))
        raise ValueError(f"attend takes equal batches and heads, not {shapes}.")
    wanted = queries.shape[2], keys.shape[2]
    if not isinstance(mask, Tensor) or mask.ndim != 4 or mask.shape[2:] != wanted:
        shape = list(mask.shape) if isinstance(mask, Tensor) else mask
        raise ValueError(
            f"attend takes a mask of [batch, 1, {wanted[0]}, {wanted[1]}] for {wanted[0]} queries "
            f"and {wanted[1]} keys, not {shape}."
        )


# -------------------------------------------------------------------------------------------- MLP


def swiglu(
    attempt: Attempt,
    hidden: Float[Tensor, "*rows n_embd"],
    wide: Float[Tensor, "n_embd 2*n_inner"],
    narrow: Float[Tensor, "n_inner n_embd"],
) -> list[Seen]:
    """The two layers are products with these matrices."""
    calls = {"gate_up": 0, "down": 0}

    def gate_up(hidden: Tensor) -> Tensor:
        calls["gate_up"] += 1
        return hidden @ wide

    def down(neurons: Tensor) -> Tensor:
        calls["down"] += 1
        return neurons @ narrow

    found = attempt(hidden, sealed(gate_up), sealed(down))
    counts = [Seen(f"The number of calls of `{name}`", count) for name, count in calls.items()]
    return [Seen("What it returned", found), *counts]


# ------------------------------------------------------------------------------ from file to model


def dequantize(attempt: Attempt, raw: Tensor, kind: str) -> list[Seen]:
    """Each block by itself, because a small one counts as much as a large one."""
    found = attempt(raw, kind)
    seen = [Seen("What it returned", form_of(found))]
    if isinstance(found, Tensor) and found.shape == (len(raw), 32):
        seen += [Seen(f"Block {i}", block) for i, block in enumerate(found)]
    return seen


def from_gguf(
    attempt: Attempt, tensors: dict[str, Tensor], heads: int, kv_heads: int, kind: str
) -> list[Seen]:
    found = attempt(tensors, heads, kv_heads, kind)
    if not isinstance(found, Mapping):
        return [Seen("What it returned", f"is {kind_or_none(found)}")]
    weights = [Seen(f"`{name}`", found[name]) for name in sorted(found, key=str)]
    names = Seen("The list of names", sorted(map(str, found)))
    return [Seen("What it returned", "is a dict"), names, *weights]


# ----------------------------------------------------------------------------------------- a chat


def chat_ids(
    attempt: Attempt, messages: list[dict[str, str]], control: dict[str, int], first: int
) -> list[Seen]:
    """The tokenizer that is lent knows no control tokens. Line breaks in a row are one token."""

    def encode(text: str) -> list[int]:
        if not isinstance(text, str):
            raise TypeError(f"encode takes a text, not {text!r}.")
        return [first + number_of(piece) for piece in re.findall(r"\n+|[^\n]", text)]

    tokenizer = handle(SimpleNamespace(encode=encode), "encode")
    ids = attempt(messages, tokenizer, control)
    return [Seen("What it returned", kind_of_list(ids)), Seen("The list of ids", ids)]


def number_of(piece: str) -> int:
    """Line breaks in a row have the numbers below the first letter."""
    return len(piece) if piece[0] == "\n" else ord(piece)
