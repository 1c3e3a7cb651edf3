"""Lab 11, given: rows of numbers as codes of a few bits, packed into whole bytes.

Each row has a scale and a zero (lab 10's `affine`). The memory is really saved: a byte holds four
codes of 2 bits, or two of 4 bits.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from solutions.quantization import affine, from_affine

BITS = 2, 4, 8  # a byte holds a whole number of such codes


class Codes:
    """Numbers as codes of `bits` bits. Each row (the last dimension) has its own scale and zero.

    packed: [..., bytes], the codes. scale, zero: [..., 1].
    """

    def __init__(self, numbers: Float[Tensor, "*rows size"], bits: int) -> None:
        require_packable(numbers.shape[-1], bits)
        rows, self.bits = numbers.shape[:-1], bits
        codes, scale, zero = affine(numbers.flatten(0, -2), bits)
        self.packed = packed(codes, bits).view(*rows, -1)
        self.scale, self.zero = scale.view(*rows, 1), zero.view(*rows, 1)

    def read(self) -> Float[Tensor, "*rows size"]:
        """Return the numbers that the codes stand for."""
        (numbers,) = read_all([self])
        return numbers

    @property
    def tensors(self) -> tuple[Any, ...]:
        """All tensors held: codes, scales and zeros."""
        return self.packed, self.scale, self.zero

    def extend(self, other: "Codes") -> None:
        """Append the rows of other Codes along dimension 2, the tokens."""
        both = zip(self.tensors, other.tensors, strict=True)
        self.packed, self.scale, self.zero = (torch.cat(pair, dim=2) for pair in both)

    def reorder(self, rows: Int[Tensor, " new_batch"]) -> None:
        self.packed, self.scale, self.zero = (kept[rows] for kept in self.tensors)


def read_all(several: Sequence[Codes]) -> Float[Tensor, "several *rows size"]:
    """Return the numbers of several Codes at once; all have the same shape and number of bits."""
    kept = zip(*(codes.tensors for codes in several), strict=True)
    together, scale, zero = (torch.stack(parts) for parts in kept)
    numbers = unpacked(together, several[0].bits)
    rows = (part.flatten(0, -2) for part in (numbers, scale, zero))
    return from_affine(*rows).view(numbers.shape)


def require_packable(size: int, bits: int) -> None:
    """Raise ValueError unless `size` codes of `bits` bits fill whole bytes."""
    if bits not in BITS or size < 1 or size * bits % 8:
        raise ValueError(
            f"{size} codes of {bits} bits don't fill whole bytes. Choose "
            f"{', '.join(map(str, BITS))} bits, and rows whose length is a multiple of 8."
        )


def require_recent(recent: int) -> None:
    """Raise ValueError if the number of recent tokens is negative."""
    if recent < 0:
        raise ValueError(f"The number of recent tokens must be 0 or more; it is {recent}.")


def packed(codes: UInt8[Tensor, "rows size"], bits: int) -> UInt8[Tensor, "rows bytes"]:
    """Pack several codes into each byte, the first one into its lowest bits."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=codes.device)
    return (codes.unflatten(-1, (-1, len(shifts))) << shifts).sum(dim=-1, dtype=torch.uint8)


def unpacked(held: UInt8[Tensor, "*rows bytes"], bits: int) -> UInt8[Tensor, "*rows size"]:
    """Return the codes that `packed` put into bytes."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=held.device)
    return (held[..., None] >> shifts & 2**bits - 1).flatten(-2)
