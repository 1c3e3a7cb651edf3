"""Read a reference solution as text: a module's objects, and the stretches that students write.

The lesson build quotes this text, misconceptions are edits of it, and tests make mutants of it.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

from autograder.attempt.source import Function, definitions, first_line

ROOT = Path(__file__).resolve().parents[2]
SOLUTIONS = ROOT / "solutions"
BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
TODO = 'raise NotImplementedError("This TODO is not written yet.")'  # in place of a solution


class AuthorError(ValueError):
    """An error in a lesson, a module or a catalogue that its author can correct."""


@dataclass
class Module:
    """The text of one module. Spans are ranges of lines, counted from 0, without the end.

    objects: the span of each object at module level, with its decorators and the comments at its
    end. functions: the same for every function and method, by its path ("KVCache.attend").
    stretches: the lines between BEGIN and END SOLUTION, by the path of the function around them.
    """

    path: Path
    lines: list[str]
    objects: dict[str, range] = field(default_factory=dict)
    functions: dict[str, range] = field(default_factory=dict)
    stretches: dict[str, range] = field(default_factory=dict)

    def text(self, span: range) -> str:
        return "\n".join(self.lines[span.start : span.stop])

    def stretch(self, path: str) -> list[str]:
        span = self.stretches[path]
        return self.lines[span.start : span.stop]

    def with_function(self, path: str, lines: list[str]) -> str:
        """Return the source of the object around a function, with the function replaced."""
        around, function = self.objects[path.split(".")[0]], self.functions[path]
        before = self.lines[around.start : function.start]
        return "\n".join([*before, *lines, *self.lines[function.stop : around.stop]])

    def with_stretch(self, path: str, lines: list[str]) -> str:
        """Return the same source with other lines between BEGIN and END SOLUTION."""
        function, stretch = self.functions[path], self.stretches[path]
        before = self.lines[function.start : stretch.start]
        return self.with_function(
            path, [*before, *lines, *self.lines[stretch.stop : function.stop]]
        )


def read_module(path: Path) -> Module:
    """Read the module in a file, or in several files if this one is the last of them."""
    files = joined(path)
    for file in files[:-1]:
        read_module(file)  # so that an error names the line in its own file
    module = Module(path, [line for file in files for line in own_lines(file, files)])
    tree = ast.parse("\n".join(module.lines))
    for node in tree.body:
        for name in defined_names(node):
            module.objects[name] = span(node, module.lines)
    for name, node in definitions(tree):
        if isinstance(node, Function):
            module.functions[name] = span(node, module.lines)
    for inside, stretch in stretches(module):
        if inside in module.stretches:
            raise AuthorError(f"{path.name}: {inside} holds two solutions. Make them one stretch.")
        module.stretches[inside] = stretch
    return module


@cache
def parts_of(lab: str) -> tuple[str, ...]:
    """Return the files in `solutions` that make up a lab's module, in reading order.

    One has the lab's name. Where that is in a folder of the same name, the files beside it in which
    a student writes something belong to it, and come first: ("engine/scheduler", "engine/engine").
    """
    folder = SOLUTIONS / lab
    if not (folder / f"{lab}.py").exists():
        return (lab,)
    others = [file for file in sorted(folder.glob("*.py")) if file.stem != lab]
    marked = [file.stem for file in others if BEGIN in file.read_text(encoding="utf-8")]
    return tuple(f"{lab}/{name}" for name in (*marked, lab))


def module_files(labs: Iterable[str]) -> list[Path]:
    """Return the files of the modules of these labs, a lab's own file last."""
    return [SOLUTIONS / f"{part}.py" for lab in labs for part in parts_of(lab)]


def importing(labs: Iterable[str]) -> list[str]:
    """Return statements that import the modules of these labs, as text."""
    return [f"import {import_name(part)}" for lab in labs for part in parts_of(lab)]


def import_name(part: str) -> str:
    """Return the name to import a file of `solutions` by: "solutions.engine.scheduler"."""
    return f"solutions.{part.replace('/', '.')}"


def joined(path: Path) -> list[Path]:
    """Return the files that are read as one module; `path` is the last of them."""
    files = [path.with_name(f"{Path(part).name}.py") for part in parts_of(path.stem)]
    return [file for file in files if file == path or file.exists()]


def own_lines(file: Path, files: list[Path]) -> list[str]:
    """Return a file's lines; its imports from the other files of its module become blank lines."""
    text = file.read_text(encoding="utf-8")
    lines, others = text.splitlines(), set(map(import_name, parts_of(files[-1].stem)))
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and node.module in others:
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[number] = ""
    return lines


@cache
def lab_module(lab: str) -> Module:
    """Return the text of a lab's module."""
    return read_module(module_file(lab))


@cache
def has_reference(lab: str) -> bool:
    """Whether a lab's solutions are here; a bundle has only those of earlier labs.

    Of its own lab it has the module with TODOs.
    """
    file = module_file(lab)
    return file.exists() and TODO not in file.read_text(encoding="utf-8")


def module_file(lab: str) -> Path:
    """Return the file of a lab's module, or the last one of several."""
    return module_files([lab])[-1]


@cache
def module_of(lab: str) -> ModuleType:
    """Import a lab's module. Several files become one module with the names of all of them."""
    files = [import_module(import_name(part)) for part in parts_of(lab)]
    if len(files) == 1:
        return files[0]
    module = ModuleType(f"solutions.{lab}")
    for file in files:
        vars(module).update(vars(file))
    return module


def executed(source: str, names: Mapping[str, object], path: Path | str) -> dict[str, object]:
    """Run `source` in a copy of `names`, and return all names."""
    namespace = dict(names)
    exec(compile(source, str(path), "exec"), namespace)
    return namespace


def fresh_copy(lab: str) -> ModuleType:
    """Return a fresh copy of a lab's module; replacing its names doesn't change the original."""
    path = module_file(lab)
    module = ModuleType(f"mine.{lab}")
    module.__file__ = str(path)
    files = joined(path)
    for file in files:
        exec(compile("\n".join(own_lines(file, files)), str(file), "exec"), vars(module))
    return module


# --------------------------------------------------------------------- definitions and their lines


def defined_names(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def span(node: ast.stmt, lines: list[str]) -> range:
    """Return a node's lines, with indented comments after its last statement: END SOLUTION."""
    inside = " " * (node.col_offset + 1)
    last = end = node.end_lineno or node.lineno
    while end < len(lines) and (not lines[end].strip() or lines[end].startswith(inside)):
        end += 1
        if lines[end - 1].strip():
            last = end
    return range(first_line(node) - 1, last)


def stretches(module: Module) -> Iterator[tuple[str, range]]:
    """Yield each solution's lines, after the path of the function around it."""
    begin = None
    for number, line in enumerate(module.lines):
        where = f"{module.path.name}, line {number + 1}"
        if BEGIN in line:
            if begin is not None:
                raise AuthorError(f"{where}: the solution before this one has no {END}.")
            begin = number
        elif END in line:
            if begin is None:
                raise AuthorError(f"{where}: this {END} has no {BEGIN}.")
            yield function_around(module, begin), range(begin + 1, number)
            begin = None
    if begin is not None:
        raise AuthorError(f"{module.path.name}: the solution in line {begin + 1} has no {END}.")


def function_around(module: Module, line: int) -> str:
    """Return the path of the innermost function around a line."""
    around = [name for name, span in module.functions.items() if line in span]
    if not around:
        raise AuthorError(
            f"{module.path.name}, line {line + 1}: this solution is not in a function, so it has "
            "no exercise id. Put it into a function or a method."
        )
    return around[-1]
