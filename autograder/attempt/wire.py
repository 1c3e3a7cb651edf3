"""Values as bytes: a JSON header and the raw numbers of its tensors. Never pickle.

A frame is two lengths, the header and the body. In the header, what JSON has is written as it is;
all else is an object with one key that says what it is. The numbers of the tensors are in the body,
one tensor after the other in the order of the header.

The reader of a frame believes nothing of it: lengths, depth, types and sizes are checked first.
"""

import json
import math
import struct
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autograder.attempt.plain import LONGEST_KEY, NUMBER_TYPES, Strange

LENGTHS = struct.Struct(">II")
MOST_HEADER, MOST_BODY = 2 << 20, 64 << 20  # bytes
DEEPEST = 24  # lists in lists
MOST_ITEMS = 200_000  # of a message, in all its lists, and tensors among them
MOST_KEYS = 4096  # of a message
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in NUMBER_TYPES}
SEQUENCES: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "deque": deque,
    "size": torch.Size,
}

# What takes an object that is no plain data to a JSON object, and back.
Away = Callable[[Any], dict[str, Any]]
Home = Callable[[str, Any], Any]


class WireError(ValueError):
    """What came over the wire is no message."""


def packed(value: Any, away: Away | None = None) -> bytes:
    """A value as a frame. `away` is asked for what is no plain data; without it, that is refused.

    Raises WireError for what can't be sent.
    """
    body: list[bytes] = []

    def as_json(value: Any, depth: int) -> Any:
        if depth > DEEPEST:
            raise WireError(f"Lists within lists, over {DEEPEST} deep, can't be sent.")
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, (bool, str)):
            return value
        if isinstance(value, int) and value.bit_length() > 1024:
            raise WireError("A number of over 300 digits can't be sent.")
        if isinstance(value, (int, float)):
            return int(value) if isinstance(value, int) else float(value)
        if isinstance(value, Tensor):
            dtype = str(value.dtype).removeprefix("torch.")
            if dtype not in DTYPES or value.layout != torch.strided or value.is_meta:
                raise WireError(f"A tensor of {value.dtype}, {value.layout}, can't be sent.")
            body.append(raw(value))
            return {"tensor": [dtype, list(value.shape)]}
        if type(value) is list:
            return [as_json(item, depth + 1) for item in value]
        if isinstance(value, Strange):
            return {"strange": value.kind}
        if type(value) is bytes:
            return {"bytes": value.hex()}
        for name, kind in SEQUENCES.items():
            if type(value) is kind:
                return {name: [as_json(item, depth + 1) for item in value]}
        if type(value) in (dict, Counter):
            pairs = [[as_json(k, depth + 1), as_json(item, depth + 1)] for k, item in value.items()]
            return {"dict" if type(value) is dict else "counter": pairs}
        if away is None:
            raise WireError(f"A {type(value).__name__} can't be sent.")
        return {key: as_json(item, depth + 1) for key, item in away(value).items()}

    header = json.dumps(as_json(value, 0)).encode()
    content = b"".join(body)
    if len(header) > MOST_HEADER or len(content) > MOST_BODY:
        raise WireError("This is too much to be sent at once.")
    return LENGTHS.pack(len(header), len(content)) + header + content


def raw(tensor: Tensor) -> bytes:
    # contiguous() would leave a single number the stride that it has, and then it is no view
    flat = tensor.detach().cpu().clone(memory_format=torch.contiguous_format).reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def lengths(start: bytes) -> tuple[int, int]:
    """How long header and body are. Raises WireError where they are longer than they may be."""
    header, body = LENGTHS.unpack(start)
    if header > MOST_HEADER or body > MOST_BODY:
        raise WireError(f"A message of {header:,} and {body:,} bytes is longer than any may be.")
    return header, body


def unpacked(header: bytes, body: bytes, home: Home | None = None) -> Any:
    """The value of a frame. `home` is asked for what is no plain data; without it, that is refused.

    Raises WireError for whatever isn't a message.
    """
    try:
        found = json.loads(header)
        reader = Reader(body, home)
        value = reader.value(found, 0)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise WireError(f"This is no message: {error}") from None
    if reader.at != len(body):
        raise WireError("A message has more numbers than its header says.")
    return value


class Reader:
    """Read the value of a header. at: bytes of the body read so far."""

    def __init__(self, body: bytes, home: Home | None) -> None:
        self.body, self.home, self.at = body, home, 0
        self.items = self.keys = 0

    def value(self, found: Any, depth: int) -> Any:
        self.items += 1
        if depth > DEEPEST or self.items > MOST_ITEMS:
            raise WireError("lists within lists, too deep or too many")
        if isinstance(found, list):
            return [self.value(item, depth + 1) for item in found]
        if not isinstance(found, dict):
            if isinstance(found, int) and found.bit_length() > 1024:
                raise WireError("a number of over 300 digits")
            return found
        if len(found) != 1:
            raise WireError("an object with one key is expected")
        ((kind, content),) = found.items()
        if kind == "tensor":
            return self.tensor(*content)
        if kind == "strange":
            return Strange(str(content))
        if kind == "bytes":
            return bytes.fromhex(content)
        if kind in ("dict", "counter"):
            self.keys += len(content)
            if self.keys > MOST_KEYS:
                raise WireError("too many keys")
            made = {self.key(key, depth + 1): self.value(item, depth + 1) for key, item in content}
            return made if kind == "dict" else Counter(made)
        if kind in SEQUENCES:
            made = SEQUENCES[kind]([self.value(item, depth + 1) for item in content])
            if kind == "size":
                made.numel()  # a number beyond 64 bits would only raise when it is used
            return made
        if self.home is None:
            raise WireError(f"nothing is known of {kind!r}")
        return self.home(kind, self.value(content, depth + 1))

    def key(self, found: Any, depth: int) -> Any:
        """A key of a dict, of which no student can choose thousands with one hash."""
        key = self.value(found, depth)
        if isinstance(key, int) and key.bit_length() < LONGEST_KEY:
            return key
        if key is None or isinstance(key, (str, bytes)):
            return key
        if isinstance(key, tuple) and all(isinstance(part, (str, bytes)) for part in key):
            return key
        raise WireError("a key is text, bytes, None, a tuple of them or a usual whole number")

    def tensor(self, dtype: str, shape: list[int]) -> Tensor:
        if dtype not in DTYPES or not isinstance(shape, list) or len(shape) > DEEPEST:
            raise WireError("no tensor that can be sent")
        if not all(type(size) is int and 0 <= size <= MOST_BODY for size in shape):
            raise WireError("a shape of whole numbers is expected")
        if math.prod(size for size in shape if size) > MOST_BODY:
            raise WireError("a shape beyond all measure")
        numbers = math.prod(shape)
        size = numbers * DTYPES[dtype].itemsize
        if size > len(self.body) - self.at:
            raise WireError("a tensor has fewer numbers than its shape says")
        part = bytearray(self.body[self.at : self.at + size])
        self.at += size
        if dtype == "bool" and part.strip(b"\x00\x01"):
            raise WireError("a truth value is 0 or 1")
        if not numbers:
            return torch.empty(shape, dtype=DTYPES[dtype])
        return torch.frombuffer(part, dtype=DTYPES[dtype]).reshape(shape)
