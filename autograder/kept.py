"""What a learner's passed checks leave behind, in work/.mine, and getting it back: `mine`.

One file an exercise, work/.mine/kv_cache/KVCache.attend.py, holding the definition that passed and
whatever of the learner's own it uses. Nothing there is ever removed; only a passed check writes.
"""

import ast
import contextlib
import inspect
import io
import linecache
import os
import symtable
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from autograder.exercise import PASSED, Exercise
from autograder.exercises import exercises

ROOT = Path(__file__).resolve().parents[1]
Definition = ast.FunctionDef | ast.ClassDef

NO_SOURCE = "# This exercise passed, but its source could not be found.\n"


def folder() -> Path:
    """Where passed code is kept; the environment variable MINE_FOLDER puts it elsewhere."""
    return Path(os.environ.get("MINE_FOLDER", ROOT / "work" / ".mine"))


def graded() -> bool:
    """Whether nbgrader runs this: then nothing is kept, and `mine` is the reference."""
    return "NBGRADER_EXECUTION" in os.environ


def kept_file(exercise: Exercise) -> Path:
    return folder() / exercise.lab / (exercise.name.removeprefix(exercise.lab + ".") + ".py")


def is_kept(exercise: Exercise) -> bool:
    return not graded() and kept_file(exercise).exists()


# -------------------------------------------------------------------------------------- keeping


def keep(exercise: Exercise, attempt: Any) -> None:
    """Write down the code of an attempt that passed."""
    if graded():
        return
    source = source_of(attempt, set(vars(reference_module(exercise.lab))))
    if source is None:
        source = NO_SOURCE
    elif attempt.__name__ != exercise.attempt_name:
        source += f"\n\n{exercise.attempt_name} = {attempt.__name__}\n"
    path = kept_file(exercise)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")


def source_of(attempt: Any, given: set[str]) -> str | None:
    """The definition of a function or class, below those of its own that it uses.

    `given` are names that will be there anyway. None where Python can't say where the code stands.
    """
    function = function_of(attempt)
    if function is None:
        return None
    pieces: list[str] = []
    seen = set(given) - {attempt.__name__}

    def add(name: str, value: Any) -> None:
        seen.add(name)
        piece = statement(name, value, attempt.__module__)
        if piece is None:
            return
        for used in global_names(piece):
            if used in function.__globals__ and used not in seen:
                add(used, function.__globals__[used])
        pieces.append(piece)

    add(attempt.__name__, attempt)
    return "\n\n\n".join(pieces) + "\n" if pieces else None


def statement(name: str, value: Any, own_module: str) -> str | None:
    """The code that gives `name` its value; None for a value that has none (a model, a tensor)."""
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {name}"
    if value is None or isinstance(value, (bool, int, float, str, tuple)):
        return f"{name} = {value!r}"
    module = getattr(value, "__module__", None)
    if module == own_module:
        return definition(value)
    if module and getattr(value, "__name__", None):
        return f"from {module} import {value.__name__} as {name}"
    return None


def definition(thing: Any) -> str | None:
    """The text of a function's or class's definition, as it stands in its file or cell."""
    function = function_of(thing)
    if function is None:
        return None
    node = definition_around(function, thing.__name__)
    if node is None:
        return None
    lines = linecache.getlines(function.__code__.co_filename)
    return "".join(lines[first_line(node) - 1 : node.end_lineno]).rstrip()


def function_of(thing: Any) -> FunctionType | None:
    """The function itself, without its decorators, or a function whose code stands in a class."""
    for member in vars(thing).values() if isinstance(thing, type) else [thing]:
        function = inspect.unwrap(getattr(member, "fget", getattr(member, "__func__", member)))
        if isinstance(function, FunctionType) and definition_around(function, thing.__name__):
            return function
    return None


def definition_around(function: FunctionType, name: str) -> Definition | None:
    """The definition of `name`, at the top level of a file or cell, in which a function stands."""
    source = "".join(linecache.getlines(function.__code__.co_filename))
    try:
        body = ast.parse(source).body
    except SyntaxError:  # a cell with magics that Python itself can't read
        return None
    line = function.__code__.co_firstlineno
    for node in (node for node in body if isinstance(node, Definition)):
        if node.name == name and first_line(node) <= line <= (node.end_lineno or line):
            return node
    return None


def first_line(node: Definition) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def global_names(source: str) -> list[str]:
    """The global names that a piece of source refers to, sorted."""

    def names(table: symtable.SymbolTable) -> Iterator[str]:
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (symbol.is_global() or table.get_type() == "module"):
                yield symbol.get_name()
        for child in table.get_children():
            yield from names(child)

    return sorted(set(names(symtable.symtable(source, "kept", "exec"))))


# ------------------------------------------------------------------------------ getting it back


def reference_module(lab: str) -> ModuleType:
    """A fresh copy of a lab's reference, whose names can be replaced; the original stays."""
    path = ROOT / "solutions" / f"{lab}.py"
    module = ModuleType(f"mine.{lab}")
    module.__file__ = str(path)
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), vars(module))
    return module


def mine(lab: str) -> ModuleType:
    """A lab's module made of the learner's own passed code, and the reference where there is none.

    Prints which is which. Kept code is checked again before it is handed out, so code that lacks
    something here, or was overtaken by a later version of the lab, does no harm.
    """
    objects: dict[str, list[Exercise]] = {}
    for exercise in exercises().values():
        if exercise.lab == lab:
            objects.setdefault(exercise.attempt_name, []).append(exercise)
    if not objects:
        labs = dict.fromkeys(f'"{exercise.lab}"' for exercise in exercises().values())
        raise ValueError(f"There is no lab {lab!r}; the labs are {', '.join(labs)}.")

    module = reference_module(lab)
    yours, reference = [], []
    for name, group in objects.items():
        kept = [kept_file(exercise) for exercise in group if is_kept(exercise)]
        newest_first = sorted(kept, key=lambda path: path.stat().st_mtime, reverse=True)
        if not kept:
            reference.append(name)
        elif len(kept) < len(group):
            reference.append(f"{name} (partly open)")
        elif any(replaced(module, name, group, path) for path in newest_first):
            yours.append(name)
        else:
            reference.append(f"{name} (what is kept in {newest_first[0]} does not pass here)")
    print(
        f'mine("{lab}"): yours: {", ".join(yours) or "nothing yet"}; '
        f"from the reference: {', '.join(reference) or 'nothing'}."
    )
    return module


def replaced(module: ModuleType, name: str, group: list[Exercise], path: Path) -> bool:
    """Put kept code in place of the reference's; take it back unless it passes every exercise."""
    before = dict(vars(module))
    silence = io.StringIO()  # the learner's own prints have been seen when the check passed
    try:
        with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
            exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), vars(module))
            attempt = vars(module)[name]
            defined = attempt is not before[name]
            if defined and all(e.judge(attempt).status == PASSED for e in group):
                return True
    except (Exception, SystemExit):
        pass  # whatever is wrong with it, the reference takes its place
    vars(module).clear()
    vars(module).update(before)
    return False
