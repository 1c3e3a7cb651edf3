"""A GGUF file: one file with the shape of a model, its tokenizer, its chat template, its weights.

Its layout lets llama.cpp map it into memory and compute on it as it is. Little-endian throughout:

    "GGUF", version, number of tensors, number of entries
    entries:  name, type, value                    (a text is its length and its bytes)
    tensors:  name, dimensions (the innermost first), kind, offset from the beginning of the data
    padding up to a multiple of the alignment, then the data

Source: ggml's `docs/gguf.md`; `ggml/src/ggml-common.h` for the kinds of blocks.
"""

import math
import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import UInt8
from torch import Tensor

SCALARS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}  # struct's letters, by type
TEXT, ARRAY = 8, 9


class Kind(NamedTuple):
    """How numbers are stored: in blocks of so many numbers in so many bytes."""

    name: str
    numbers: int
    size: int


KINDS = {
    0: Kind("F32", 1, 4),
    1: Kind("F16", 1, 2),
    2: Kind("Q4_0", 32, 18),
    3: Kind("Q4_1", 32, 20),
    8: Kind("Q8_0", 32, 34),
}


class Info(NamedTuple):
    """A tensor of the file: its shape, the outermost dimension first, and where its data begin."""

    shape: tuple[int, ...]
    kind: int
    offset: int


def gguf_in(path: Path) -> Path | None:
    """Return the GGUF file at this path, or in this folder if it has no config.json."""
    if path.suffix == ".gguf":
        return path
    files = [] if (path / "config.json").exists() else sorted(path.glob("*.gguf"))
    return files[0] if files else None


class GGUF:
    """entries: the metadata, by name. tensors: what is known of each tensor, by name.

    Raises ValueError, with what to do about it, if the file is none, or is cut off.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with open(path, "rb") as file:  # in memory it may be changed, in the file nothing is
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            self.read_header()
        except (ValueError, struct.error, UnicodeDecodeError, KeyError, OverflowError) as error:
            raise ValueError(
                f"{path} can't be read as a GGUF file of version 2 or 3: it is of another kind, or "
                f"damaged ({type(error).__name__}). Download it again."
            ) from error

    def read_header(self) -> None:
        self.position = 0
        magic, version, tensors, entries = self.take("4sIQQ")
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError(magic, version)
        self.entries: dict[str, Any] = {}
        for _ in range(entries):
            name = self.value(TEXT)
            (kind,) = self.take("I")
            self.entries[name] = self.value(kind)
        self.tensors = dict(self.tensor() for _ in range(tensors))
        alignment = self.entries.get("general.alignment", 32)
        self.start = -(-self.position // alignment) * alignment

    def take(self, letters: str) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{letters}", self.data, self.position)
        self.position += struct.calcsize(f"<{letters}")
        return values

    def value(self, kind: int) -> Any:
        if kind == TEXT:
            (size,) = self.take("Q")
            return self.take(f"{size}s")[0].decode("utf-8")
        if kind == ARRAY:
            inner, count = self.take("IQ")
            if inner in SCALARS:
                return list(self.take(f"{count}{SCALARS[inner]}"))
            return [self.value(inner) for _ in range(count)]
        return self.take(SCALARS[kind])[0]

    def tensor(self) -> tuple[str, Info]:
        name = self.value(TEXT)
        (dimensions,) = self.take("I")
        shape = self.take(f"{dimensions}Q")
        return name, Info(shape[::-1], *self.take("IQ"))

    def kind(self, name: str) -> Kind:
        """Return how a tensor is stored. Raises ValueError for a kind that isn't read here."""
        number = self.tensors[name].kind
        if number not in KINDS:
            raise ValueError(
                f"{self.path} stores {name} in blocks of kind {number}, which aren't read here. "
                "Take a file whose name ends in F32, F16, Q8_0, Q4_1 or Q4_0."
            )
        return KINDS[number]

    def blocks(self, name: str) -> UInt8[Tensor, "blocks bytes"]:
        """Return a tensor's bytes as they are, one row for each block.

        Raises ValueError if the file ends before them.
        """
        shape, _, offset = self.tensors[name]
        kind = self.kind(name)
        count, first = math.prod(shape) // kind.numbers, self.start + offset
        if first + count * kind.size > len(self.data):
            raise ValueError(f"{self.path} ends before {name} does. Download it again.")
        if count == 0:
            return torch.empty(0, kind.size, dtype=torch.uint8)
        raw = torch.frombuffer(self.data, dtype=torch.uint8, count=count * kind.size, offset=first)
        return raw.view(count, kind.size)
