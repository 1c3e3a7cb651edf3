"""Plain data: numbers, text, bytes, tensors and lists of them, for an attempt's own objects."""

import re
from collections.abc import Mapping
from numbers import Integral
from operator import index
from types import GeneratorType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

MOST_ITEMS = 10_000  # of a value, in all its lists together
MOST_NUMBERS = 500_000  # ... in all its tensors, which are copied
MOST_CHARACTERS = 10_000  # of a text
DEEPEST = 16  # lists in lists
LONGEST_KEY = 61  # bits: from there on, numbers can be chosen that all have the same hash
NUMBER_TYPES = (  # of the tensors that can be compared, and sent
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class Strange(NamedTuple):
    """Replaces a value that is no plain data: what it is, in words ("a generator")."""

    kind: str

    def __repr__(self) -> str:
        return self.kind


def plain(value: Any) -> Any:
    """Plain data: numbers, text, bytes, None, tensors on the CPU, lists, tuples, dicts of them.

    Any other value of an attempt becomes a `Strange` that says what it was. Types are looked at,
    not `__class__`, and the result has only Python's and PyTorch's own types: nothing in it runs
    code of the attempt, however it is compared or shown.
    """
    try:
        return PlainData().of(value)
    except TooMuch as error:
        return Strange(f"{kind_of(value)} {error}")
    except Exception:  # its own methods fail
        return Strange(f"{kind_of(value)} that can't be read")


def in_numbers(value: Any) -> Any:
    """Plain data with each tensor of no dimension as its number: books may hold either."""
    value = plain(value)
    if isinstance(value, Tensor):
        return value.item() if value.ndim == 0 else value
    if type(value) in (list, tuple):
        return type(value)(in_numbers(item) for item in value)
    if type(value) is dict:
        return {key: in_numbers(item) for key, item in value.items()}
    return value


class TooMuch(Exception):
    """Why a value is too large to be compared; its kind comes before it in the sentence."""


class PlainData:
    """Make plain data of one value. items, numbers: how many of each it has had so far."""

    def __init__(self) -> None:
        self.items = self.numbers = 0

    def of(self, value: Any, depth: int = 0) -> Any:
        if depth > DEEPEST:
            raise TooMuch(f"nested more than {DEEPEST} deep")
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is Strange:
            return Strange(str.__str__(value.kind))
        if issubclass(kind, str):
            return plain_text(str.__str__(value))
        if kind is bytes and len(value) <= MOST_CHARACTERS:
            return value
        if issubclass(kind, (int, np.integer)):
            return plain_integer(index(value))
        if issubclass(kind, (float, np.floating)):
            return float(value)
        if issubclass(kind, np.bool_):
            return bool(value)
        if issubclass(kind, Tensor):
            return self.tensor(value)
        if kind is list or kind is tuple:
            self.count(len(value))
            return kind([self.of(item, depth + 1) for item in value])
        if issubclass(kind, Mapping):
            return dict(self.pair(key, item, depth + 1) for key, item in value.items())
        return Strange(kind_of(value))

    def count(self, items: int) -> None:
        self.items += items
        if self.items > MOST_ITEMS:
            raise TooMuch(f"with more than {MOST_ITEMS:,} items")

    def pair(self, key: Any, value: Any, depth: int) -> tuple[Any, Any]:
        self.count(1)  # one by one, because a class of its own may have items without end
        return self.key(key, depth), self.of(value, depth)

    def key(self, key: Any, depth: int) -> Any:
        found = self.of(key, depth)
        if isinstance(found, int) and found.bit_length() < LONGEST_KEY:
            return found
        return found if isinstance(found, str) else kind_of(key)

    def tensor(self, tensor: Tensor) -> Any:
        with torch._C.DisableTorchFunctionSubclass():  # a class of its own has methods of its own
            tensor = Tensor.detach(tensor)
            if type(tensor) is not Tensor:
                return Strange(kind_of(tensor))
            what = f"a tensor of shape {list(tensor.shape)}"
            if tensor.is_meta:
                return Strange(f"{what} that holds no numbers")
            if tensor.layout != torch.strided:
                return Strange(f"{what} in the layout {tensor.layout}")
            if tensor.dtype not in NUMBER_TYPES:
                return Strange(f"{what} of the type {tensor.dtype}")
            self.numbers += tensor.numel()
            if self.numbers > MOST_NUMBERS:
                return Strange(f"{what}, {tensor.numel():,} numbers")
            return tensor.cpu().clone()


def plain_text(text: str) -> Any:
    if len(text) > MOST_CHARACTERS:
        return Strange(f"a text of {len(text):,} characters")
    return without_addresses(text)


def without_addresses(text: str) -> str:
    """`<object at 0x7f…>` without the address, which differs from run to run."""
    return ADDRESS.sub("", text)


def plain_integer(number: int) -> Any:
    return number if number.bit_length() < 1024 else Strange("a number of over 300 digits")


def kind_of(value: Any) -> str:
    """What a value is, by its type: "a deque", "an object", "a generator expression"."""
    name = type(value).__name__
    if type(value) is GeneratorType and value.gi_code.co_name == "<genexpr>":
        name = "generator expression"
    return f"{'an' if name[:1] in 'aeiouAEIOU' else 'a'} {name}"


def kind_or_none(value: Any) -> str:
    return "None" if value is None else kind_of(value)


def is_int(value: Any) -> bool:
    """Numpy's integers are as good as Python's."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def kind_of_int(value: Any) -> str:
    return "an int" if is_int(value) else kind_of(value)


def kind_of_list(value: Any) -> str:
    """Whether a value is a list of ints, in words."""
    if not isinstance(value, list):
        return f"is {kind_of(value)}"
    odd = [kind_of(item) for item in value if not is_int(item)]
    return f"is a list with {odd[0]} in it" if odd else "is a list of ints"
