"""Records of what a driver saw of an attempt, and what most drivers do to see it."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from autograder.attempt.plain import kind_or_none, plain, without_addresses

Attempt = Callable[..., Any]  # a function; the class, where it is a method


class Seen(NamedTuple):
    """One thing that was seen: what it is, its value, and where it happened ("after step 2").

    `what` begins a sentence, and `where` follows it: "The output" "for token 3 of prompt 1".
    """

    what: str
    value: Any
    where: str = ""


def plain_records(seen: Iterable[Seen]) -> tuple[Seen, ...]:
    """What a driver saw as plain data, without addresses in its words."""
    return tuple(
        Seen(without_addresses(what), plain(value), without_addresses(where))
        for what, value, where in seen
    )


def in_order(value: Any) -> Any:
    """The same with the keys of all dicts in alphabetical order."""
    if isinstance(value, dict):
        return {key: in_order(value[key]) for key in sorted(value, key=str)}
    return [in_order(item) for item in value] if isinstance(value, list) else value


def said(what: str, value: Any, where: str = "") -> Seen:
    """A value in words; None stays as it is, because a `return` may be missing."""
    value = in_order(plain(value))
    return Seen(what, value if value is None else f"is {value!r}", where)


def things(count: int, found: Any, rule: str) -> Any:
    """What a function returned, if that is `count` things. Raises TypeError otherwise."""
    several = isinstance(found, (tuple, list))
    if several and len(found) == count:
        return found
    what = f"{len(found)} things" if several else kind_or_none(found)
    missing = " Is a `return` missing?" if found is None else ""
    raise TypeError(f"{rule}; this is {what}.{missing}")


def parts(found: Any, rule: str, *names: str) -> list[Seen]:
    """Each of the things that a function returned. Raises TypeError for another number of them."""
    return [Seen(*both) for both in zip(names, things(len(names), found, rule), strict=True)]


def integers(values: Any, what: str) -> list[int]:
    """The numbers that `what`, which an attempt called, was given. Raises TypeError for others."""
    if not hasattr(values, "__len__"):
        raise TypeError(f"{what} takes a list of numbers, not {kind_or_none(values)}.")
    if strange := [value for value in values if not hasattr(value, "__int__")]:
        raise TypeError(
            f"{what} takes a list of numbers; this one contains {kind_or_none(strange[0])}."
        )
    return [int(value) for value in values]


def as_it_was(what: str, now: Any, before: Any, where: str = "") -> Seen:
    """Whether something is unchanged; what is in it is shown nowhere."""
    return Seen(what, "is as it was" if now == before else "has been changed", where)


def form_of(value: Any) -> Any:
    """What a tensor is, in words; anything else as plain data, which `==` compares."""
    if not isinstance(value, Tensor):
        return plain(value)
    numbers = "floats" if value.is_floating_point() else f"the type {value.dtype}"
    return f"is a tensor of {numbers}, of shape {list(value.shape)}"


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


def tried(method: Callable[..., Any], *given: Any, error: str = "a ValueError") -> tuple[Any, str]:
    """What a method returned, and whether it refused what it was given.

    error: the name of the refusal. Its class may be the notebook's own, so its name must do.
    """
    try:
        return method(*given), "went through"
    except Exception as raised:
        if error.split()[-1] not in [kind.__name__ for kind in type(raised).__mro__]:
            raise
        return None, f"was refused with {error}"
