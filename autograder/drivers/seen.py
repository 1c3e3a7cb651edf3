"""What a driver saw: records of plain data, which can be compared, shown and sent."""

import copy
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from inspect import unwrap
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
Attempt = Callable[..., Any]  # a function; the class, where it is a method
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


# Parts of a case that an engine allocates or computes as a whole. All others are slices there.
WHOLE = {"pool", "kv", "store", "state", "tiles", "outputs", "lses", "chosen", "weights"}


def as_in_an_engine(value: Any, whole: bool = False) -> Any:
    """A copy of a case's data, with its tensors laid out in memory as an engine makes them.

    So code that needs contiguous memory, as `view` does, raises here where an engine would raise.
    """
    if isinstance(value, Tensor):
        return value.clone(memory_format=torch.contiguous_format) if whole else laid_out(value)
    if type(value) is dict:
        return {k: as_in_an_engine(item, whole or k in WHOLE) for k, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(as_in_an_engine(item, whole) for item in value)
    return copy.deepcopy(value)


def laid_out(tensor: Tensor) -> Tensor:
    """A copy of a tensor that is a slice of a larger one.

    Floats of four dimensions or more are taken for queries, keys or values: a permuted slice of
    what `c_attn` returns, [batch, seq, 3 * n_embd]. In others the rows are a number apart, like
    the rows of `logits[:, -1]`.
    """
    if tensor.ndim < 2:
        return tensor.clone()
    if tensor.ndim >= 4 and tensor.is_floating_point():
        *batch, heads, seq, head_dim = tensor.shape
        projected = tensor.new_zeros(*batch, seq, 3, heads, head_dim)
        part = projected[..., 0, :, :].transpose(-3, -2)
    else:
        part = tensor.new_zeros(*tensor.shape[:-1], tensor.shape[-1] + 1)[..., :-1]
    return part.copy_(tensor)


class Seen(NamedTuple):
    """One thing that was seen: what it is, its value, and where it happened ("after step 2").

    `what` begins a sentence, and `where` follows it: "The output" "for token 3 of prompt 1".
    """

    what: str
    value: Any
    where: str = ""


class Strange(NamedTuple):
    """Replaces a value that is no plain data: what it is, in words ("a generator")."""

    kind: str

    def __repr__(self) -> str:
        return self.kind


def plain(value: Any) -> Any:
    """Plain data: numbers, text, None, tensors on the CPU, and lists, tuples, dicts of them.

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


def plain_records(seen: Iterable[Seen]) -> tuple[Seen, ...]:
    """What a driver saw as plain data, without addresses in its words."""
    return tuple(
        Seen(without_addresses(what), plain(value), without_addresses(where))
        for what, value, where in seen
    )


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


def things(count: int, found: Any, rule: str) -> Any:
    """What a function returned, if that is `count` things. Raises TypeError otherwise."""
    several = isinstance(found, (tuple, list))
    if several and len(found) == count:
        return found
    what = f"{len(found)} things" if several else "None" if found is None else kind_of(found)
    missing = " Is a `return` missing?" if found is None else ""
    raise TypeError(f"{rule}; this is {what}.{missing}")


def copied(value: Any) -> Any:
    """A copy of a list, because the attempt may change it later."""
    return list(value) if isinstance(value, list) else value


def snapshot(value: Any) -> Any:
    """A copy of a tensor, because its memory may change."""
    return value.clone() if isinstance(value, Tensor) else value


def form_of(value: Any) -> Any:
    """What a tensor is, in words; anything else as plain data, which `==` compares."""
    if not isinstance(value, Tensor):
        return plain(value)
    numbers = "floats" if value.is_floating_point() else f"the type {value.dtype}"
    return f"is a tensor of {numbers}, of shape {list(value.shape)}"


def place_of(memory: tuple[Tensor, Tensor], cache: Any) -> str:
    """Whether a cache's `keys` and `values` are still in the same memory."""
    both = zip(memory, (cache.keys, cache.values), strict=True)
    same = all(was.data_ptr() == now.data_ptr() and was.shape == now.shape for was, now in both)
    return "is the same as before" if same else "has been allocated again"


def uniforms_given(before: Tensor, generator: torch.Generator, most: int) -> int | None:
    """Count the uniforms that a generator has given since it was in the state `before`.

    Returns None if there are more than `most`, or if it has given other numbers.
    """
    again = torch.Generator()
    again.set_state(before)
    for count in range(most + 1):
        if torch.equal(again.get_state(), generator.get_state()):
            return count
        torch.rand(1, generator=again)
    return None


def tensors_in(thing: Any, inside: type | tuple[()] = (), depth: int = 12) -> Iterator[Tensor]:
    """The tensors that a value is or holds; also those in objects of the type `inside`."""
    if isinstance(thing, Tensor):
        yield thing
        return
    if isinstance(thing, Mapping):
        thing = list(thing.values())
    elif isinstance(thing, inside) and hasattr(thing, "__dict__"):
        thing = list(vars(thing).values())
    if depth and isinstance(thing, (list, tuple, set, deque)):
        for part in thing:
            yield from tensors_in(part, inside, depth - 1)


def float_type(data: Any) -> torch.dtype:
    """The dtype of the floats in a case, in which a driver builds what computes with them."""
    floats = (t.dtype for t in tensors_in(data) if t.is_floating_point())
    return next(floats, torch.float64)


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of all the memory that tensors are in, counted once; a slice keeps all of it alive."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def one_call(module: str, name: str, what: str, given: str) -> Callable[..., list[Seen]]:
    """The driver `name` of a module: makes one call, with what a case has by these names."""

    def driver(attempt: Attempt, **case: Any) -> list[Seen]:
        return [Seen(what, attempt(*(case[part] for part in given.split())))]

    driver.__module__, driver.__name__ = module, name
    return driver


def one_by_one(attempt: Attempt, requests: list[dict[str, Any]], model: Any, of: str) -> list[Seen]:
    """Serve the requests one after the other with one model."""
    returned = [attempt(model, **request) for request in requests]
    return [
        Seen("What it returned", ids, f"{of} {number}" if len(requests) > 1 else "")
        for number, ids in enumerate(returned, 1)
    ]


def is_out_of_blocks(error: Exception) -> bool:
    """OutOfBlocks may be a class of the attempt's notebook, so its name must do."""
    return "OutOfBlocks" in [kind.__name__ for kind in type(error).__mro__]


def tried(method: Callable[..., Any], *given: Any) -> tuple[Any, str]:
    """What a method returned, and whether it refused what it was given."""
    try:
        return method(*given), "went through"
    except ValueError:
        return None, "was refused with a ValueError"


def notebook_of(attempt: Any) -> dict[str, Any]:
    """The names of the notebook in which an attempt was written."""
    classes = attempt.__mro__ if isinstance(attempt, type) else ()
    members = [m for cls in classes for m in vars(cls).values()] or [attempt]
    found = (getattr(unwrap(member), "__globals__", None) for member in members if callable(member))
    return next((names for names in found if names is not None), {})


@contextmanager
def lending(attempt: Any, lent: Mapping[str, Any]) -> Iterator[None]:
    """Let an attempt find right solutions of other exercises under the names that it calls.

    While it runs, they replace the learner's own in its notebook, so that a mistake in one exercise
    costs one exercise. Then the learner's own are put back.
    """
    notebook = notebook_of(attempt)
    own = {name: notebook[name] for name in lent if name in notebook}
    notebook.update({name: lent[name] for name in own})
    try:
        yield
    finally:
        notebook.update(own)


def sealed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a callable that does what `function` does and shows nothing of it.

    A function of Python's own shows the cells and globals that it uses, and a method its object, so
    an attempt that is lent one could change what is counted there. A cache is a callable in C, and
    one without room keeps no result.
    """
    cached = lru_cache(maxsize=0)(function)
    vars(cached).clear()  # it also holds `function` itself
    return cached


def handle(thing: Any, names: str) -> Any:
    """Return a handle on a thing that a driver watches, for an attempt to hold instead of it.

    names: what may be called, and what may be read, as a copy. Any other name is an AttributeError,
    and nothing can be set, as with what is lent over the wire.
    """
    listed = names.split()

    def get(_: Any, name: str) -> Any:
        if name not in listed:
            raise AttributeError(f"{name!r} can't be asked for.")
        found = getattr(thing, name)
        return sealed(found) if callable(found) else copy.deepcopy(found)

    return opaque(type(thing).__name__, (), __getattr__=get)


def opaque(name: str, bases: tuple[type, ...], **methods: Callable[..., Any]) -> Any:
    """Return an object that has these methods, sealed, and in which nothing can be set."""

    def refuse(_: Any, name: str, value: Any) -> None:
        raise AttributeError(f"{name!r} can't be asked for.")

    own = {name: sealed(method) for name, method in {**methods, "__setattr__": refuse}.items()}
    return type(name, bases, {"__slots__": (), **own})()


UNUSED_SEED = 2**40 + 15  # no case hands over a generator with it


@contextmanager
def torch_as_it_is() -> Iterator[None]:
    """Put back what an attempt may change of torch: defaults, the random state, and the threads.

    An attempt that draws numbers of its own draws the same ones each time, so that its mistake can
    be recognized.
    """
    dtype, device, state = (
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.get_rng_state(),
    )
    grad, threads = torch.is_grad_enabled(), torch.get_num_threads()
    torch.manual_seed(UNUSED_SEED)
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_default_device(None if device.type == "cpu" else device)
        torch.set_rng_state(state)
        torch.set_grad_enabled(grad)
        torch.set_num_threads(threads)
