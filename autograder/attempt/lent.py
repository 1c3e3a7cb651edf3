"""What an attempt may hold of a driver's own things: enough to call, nothing to change."""

import copy
from collections.abc import Callable
from functools import lru_cache
from typing import Any


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
