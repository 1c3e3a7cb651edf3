"""What a driver saw: records of plain data, so that they can be compared, shown and sent."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import unwrap
from numbers import Number
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

MOST_NUMBERS = 2_000_000  # of a tensor that is copied; a wide view of few numbers costs nothing
MOST_ITEMS = 100_000  # of a list


class Seen(NamedTuple):
    """One thing that was seen: what it is, its value, and where it happened ("after step 2").

    With `where` behind it, `what` begins a sentence: "The output" "for token 3 of prompt 1".
    """

    what: str
    value: Any
    where: str = ""


class Strange(NamedTuple):
    """Stands for a value that is no plain data: what it is, in words ("a generator")."""

    kind: str


def plain(value: Any) -> Any:
    """Plain data: numbers, text, None, tensors on the CPU, and lists, tuples, dicts of them.

    Whatever else an attempt may bring becomes a `Strange` that says what it was.
    """
    try:
        return plain_data(value)
    except Exception:  # its own methods fail, or it holds itself
        return Strange(kind_of(value))


def plain_data(value: Any) -> Any:
    if value is None or isinstance(value, (bool, str, float, Strange)):
        return value
    if isinstance(value, int):
        return value if value.bit_length() < 1024 else Strange("a number of over 300 digits")
    if isinstance(value, Tensor):
        return plain_tensor(value)
    if isinstance(value, (Number, np.bool_)) and hasattr(value, "item"):  # numpy's
        return plain_data(value.item())
    if isinstance(value, Mapping) and len(value) <= MOST_ITEMS:
        return {plain_key(key): plain_data(item) for key, item in value.items()}
    if type(value) in (list, tuple) and len(value) <= MOST_ITEMS:
        return type(value)(plain_data(item) for item in value)
    return Strange(kind_of(value))


def plain_key(key: Any) -> Any:
    return key if isinstance(key, (int, str)) else kind_of(key)


def plain_tensor(tensor: Tensor) -> Any:
    what = f"a tensor of shape {list(tensor.shape)}"
    if tensor.is_meta or tensor.layout != torch.strided:
        return Strange(f"{what} that holds no numbers")
    if tensor.numel() > MOST_NUMBERS:
        return Strange(f"{what}, {tensor.numel():,} numbers")
    return tensor.detach().cpu().clone()


def kind_of(value: Any) -> str:
    """What a value is, by its type: "a deque", "an object"."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def two_things(found: Any, rule: str) -> tuple[Any, Any]:
    """What a function returned, if it returned two things as it should. Raises TypeError."""
    if isinstance(found, (tuple, list)) and len(found) == 2:
        return found[0], found[1]
    several = isinstance(found, (tuple, list))
    what = f"{len(found)} things" if several else "None" if found is None else kind_of(found)
    missing = " Is a `return` missing?" if found is None else ""
    raise TypeError(f"{rule}; this is {what}.{missing}")


def copied(value: Any) -> Any:
    """A list as it is now, whatever the attempt may do with it later."""
    return list(value) if isinstance(value, list) else value


def uniforms_given(before: Tensor, generator: torch.Generator, most: int) -> int | None:
    """How many uniforms a generator has given since it was in the state `before`.

    None where these are more than `most`, or where it has given other numbers.
    """
    again = torch.Generator()
    again.set_state(before)
    for count in range(most + 1):
        if torch.equal(again.get_state(), generator.get_state()):
            return count
        torch.rand(1, generator=again)
    return None


def tried(method: Callable[..., Any], *given: Any) -> tuple[Any, str]:
    """What a method returned, and whether it refused what it was given."""
    try:
        return method(*given), "went through"
    except ValueError:
        return None, "was refused with a ValueError"


@contextmanager
def lending(attempt: Any, lent: Mapping[str, Any]) -> Iterator[None]:
    """Let an attempt find right solutions of other exercises under the names that it calls.

    For as long as it runs they stand in its notebook in place of the learner's own, so that a
    mistake in one exercise costs one exercise. Then the learner's own are back.
    """
    classes = attempt.__mro__ if isinstance(attempt, type) else ()
    members = [m for cls in classes for m in vars(cls).values()] or [attempt]
    found = (getattr(unwrap(member), "__globals__", None) for member in members if callable(member))
    notebook: dict[str, Any] = next((names for names in found if names is not None), {})
    own = {name: notebook[name] for name in lent if name in notebook}
    notebook.update({name: lent[name] for name in own})
    try:
        yield
    finally:
        notebook.update(own)


NOBODYS_SEED = 2**40 + 15  # no case hands over a generator with it


@contextmanager
def torch_as_it_is() -> Iterator[None]:
    """Put back what an attempt may change for everybody: defaults, and the random state.

    Who draws numbers of its own draws the same ones each time, so that its mistake is known again.
    """
    dtype, device, state = (
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.get_rng_state(),
    )
    grad = torch.is_grad_enabled()
    torch.manual_seed(NOBODYS_SEED)
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_default_device(None if device.type == "cpu" else device)
        torch.set_rng_state(state)
        torch.set_grad_enabled(grad)
