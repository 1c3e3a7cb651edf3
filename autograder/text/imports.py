"""Which files of the project a piece of code uses, read from its imports.

Nothing is run: an import is a statement, or `import_module` with a name in quotes. A module that is
looked up by a name made at run time isn't seen: name it yourself.
"""

import ast
from collections.abc import Iterable, Set
from functools import cache
from pathlib import Path

from autograder.text.reference import ROOT


@cache
def imported(source: str) -> frozenset[str]:
    """Return the full names of everything that a module imports, anywhere in it."""
    found = set[str]()
    for node in ast.walk(ast.parse(source if "import" in source else "")):
        match node:
            case ast.Import():
                found |= {alias.name for alias in node.names}
            case ast.ImportFrom():
                assert node.level == 0, "a relative import"
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
            case ast.Call(func=ast.Name("import_module"), args=[ast.Constant(str(name))]):
                found.add(name)
    return frozenset(found)


@cache
def imports(file: Path) -> frozenset[str]:
    """Return the full names of everything that a file imports, anywhere in it."""
    return imported(file.read_text(encoding="utf-8"))


@cache
def files_named(name: str) -> frozenset[Path]:
    """Return the project's files that an import of this name runs."""
    found, place = set[Path](), ROOT
    for part in name.split("."):
        place /= part
        found |= {p for p in (place / "__init__.py", place.with_suffix(".py")) if p.exists()}
    return frozenset(found)


def files_used(sources: Iterable[str], without: Set[Path] = frozenset()) -> set[Path]:
    """Return the project's files that these sources import, and what those import, and so on.

    Files in `without` are left out, and so is what only they import.
    """
    found: set[Path] = set()
    names = {name for source in sources for name in imported(source)}
    while new := {file for name in names for file in files_named(name)} - found - without:
        found |= new
        names = {name for file in new for name in imports(file)}
    return found
