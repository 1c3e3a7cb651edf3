"""Which adapters a server has: read from a folder at its start, and loaded or dropped by requests.

A version counts how often an adapter was loaded under its name. A request keeps the version with
which it came, so running ones end as they began.
"""

from collections import Counter
from typing import Any

from solutions.families import find_checkpoint, read_config
from solutions.server.protocol import Refusal
from solutions.server.settings import Labs, Settings


class ServedAdapters:
    """The adapters of a server. engine: gets each that is loaded, and is told which to forget."""

    def __init__(self, settings: Settings, engine: Any, labs: Labs) -> None:
        self.base, self.folder, self.engine, self.labs = (
            settings.name,
            settings.adapters,
            engine,
            labs,
        )
        self.versions: dict[str, int] = {}
        self.loads = Counter[str]()
        if self.folder is not None:
            self.config = read_config(find_checkpoint(settings.model))
            if not self.folder.is_dir():
                raise ValueError(f"There is no folder {self.folder}, from which to load adapters.")
            for path in sorted(self.folder.iterdir()):
                if path.is_dir():
                    self.add(path.name, self.read(path.name))

    def read(self, name: str) -> Any:
        """Return an adapter's matrices. Raises ValueError if they can't be read.

        The name is a folder's in the one that was given at the start: clients name no paths.
        """
        from solutions.adapted.files import read_adapter  # only now: an earlier lab's copy has none

        if self.folder is None or name not in {path.name for path in self.folder.iterdir()}:
            raise ValueError(f"There is no adapter {name[:100]!r} in the folder of --adapters.")
        return read_adapter(self.folder / name, self.config)

    def add(self, name: str, matrices: Any) -> None:
        """Serve an adapter from now on, in place of the one that has had this name."""
        from solutions.adapted.adapter import Adapter

        self.loads[name] += 1
        self.engine.submit(Adapter(name, self.loads[name], matrices))
        self.drop(name)
        self.versions[name] = self.loads[name]

    def drop(self, name: str) -> None:
        """Take no more requests for an adapter. Those that run go on."""
        if name in self.versions:
            self.engine.submit((name, self.versions.pop(name)))

    def find(self, model: str) -> tuple[str, int] | None:
        """Return the adapter that a request's model names; None for the base. Raises Refusal."""
        try:
            if self.folder is not None:
                name, version = self.labs("adapters").served(model, self.base, self.versions)
                return None if name is None else (name, version)
            if model != self.base:
                raise LookupError(f"The model {model[:100]!r} isn't served here; {self.base!r} is.")
            return None
        except LookupError as error:
            raise Refusal(404, str(error), "model_not_found", "model") from None

    @property
    def models(self) -> list[str]:
        return [self.base, *(f"{self.base}:{name}" for name in self.versions)]
