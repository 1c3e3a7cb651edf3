"""What is lent to an attempt in this process, with the same few names as over a wire."""

import copy
from collections.abc import Mapping
from typing import Any

from autograder.attempt.shown import ShownModel
from autograder.judging.exercise import Service


class Borrowed:
    """Something lent: an attempt can read and call the names that are listed, and set none.

    names: those of the attempt's notebook. An error is raised as the notebook's own class of that
    name, which the attempt may want to catch.
    """

    def __init__(self, lent: Service, names: Mapping[str, Any]) -> None:
        vars(self).update(_lent=lent, _names=names)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self._lent.lends.call:
            return lambda *args, **kwargs: self._called(name, args, kwargs)
        if name in self._lent.lends.read:
            return copy.deepcopy(getattr(self._lent, name))
        raise AttributeError(f"{name!r} can't be asked for.")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name!r} can't be asked for.")

    def _called(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        try:
            return getattr(self._lent, name)(*args, **kwargs)
        except Exception as error:
            own = self._names.get(type(error).__name__)
            if isinstance(own, type) and issubclass(own, Exception):
                raise own(*error.args) from None
            raise


def borrowed(lent: Service, names: Mapping[str, Any]) -> Any:
    """A model is handed over as it is: what can be read of it are copies."""
    return lent if isinstance(lent, ShownModel) else Borrowed(lent, names)
