"""What a notebook imports and an exercise doesn't need: checks, pictures, clocks. Here they do
nothing, whatever is asked of them."""

import builtins
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

IDLE = (
    *("IPython.display", "ipywidgets", "matplotlib", "mpl_toolkits", "nbdime", "pandas", "seaborn"),
    *("timing", "visuals", "autograder.check"),
)


class Idle:
    """Does nothing: call it, index it, go through it, enter it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Idle()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # A decorator without arguments leaves what it decorates as it is.
        return args[0] if len(args) == 1 and not kwargs and callable(args[0]) else Idle()

    def __getitem__(self, key: Any) -> Any:
        return Idle()

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        """Errors go through."""


class IdleModule(ModuleType):
    """Any module of it can be imported, and any name from it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__ = []  # so that it may have modules within

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Idle()


class CheckModule(IdleModule):
    """Instead of autograder.check, from which a notebook imports `mine`."""

    def mine(self, lab: str) -> ModuleType:
        """Grading uses the reference of earlier labs."""
        return import_module(f"solutions.{lab}")


class Finder(MetaPathFinder, Loader):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        idle = any(name == idle or name.startswith(f"{idle}.") for idle in IDLE)
        return ModuleSpec(name, self, is_package=True) if idle else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return (CheckModule if spec.name == "autograder.check" else IdleModule)(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing in it."""


def put_in_place() -> None:
    sys.meta_path.insert(0, Finder())
    for name in ("display", "get_ipython"):
        setattr(builtins, name, Idle())
