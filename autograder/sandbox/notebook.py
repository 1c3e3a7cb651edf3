"""What of a notebook an exercise needs: the statements behind one name, and nothing else.

A notebook is run top to bottom, but of its cells only those statements at the top level that the
attempt's name needs: its definition, the definitions and imports that those use, and so on. What a
learner tried out below a function, a picture, a model that is loaded: all that stays out of it, and
what goes wrong there costs nothing.
"""

import ast
import linecache
import re
import symtable
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from autograder.failure import TookTooLong

MAGIC = re.compile(r"^\s*[%!?]|=\s*[%!]|\?\s*$", re.MULTILINE)
# Magics for a whole cell whose code still defines what it defines.
RUN_AS_IT_IS = re.compile(r"\A\s*%%(?:time|capture|prun)\b.*\n")
CHANGING = {"setattr", "delattr"}


class NotDefined(Exception):
    """The notebook doesn't define what the exercise asks for; in words, with the reason."""


@dataclass(frozen=True)
class Statement:
    """One at the top level of a cell. binds: names that it defines or changes; uses: those that it
    looks up, functions' bodies included."""

    file: str
    node: ast.stmt
    binds: frozenset[str]
    uses: frozenset[str]


def run_for(wanted: str, cells: list[str], names: dict[str, Any]) -> None:
    """Run in `names` what a notebook's cells define `wanted` with.

    As in a notebook, an error ends its cell. Raises NotDefined if `wanted` then isn't there.
    """
    told: dict[str, str] = {}  # by cell: what ended it
    statements: list[Statement] = []
    for number, source in enumerate(cells, 1):
        file = f"<cell {number}>"
        linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
        try:
            statements += read(python_of(source), file)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            told[file] = f"{type(error).__name__}: {error}"
    if not any(wanted in s.binds for s in statements) and reason_for(wanted, cells, told):
        raise NotDefined(not_defined(wanted, cells, told))
    for statement in needed(wanted, statements):
        if statement.file in told:
            continue
        try:
            module = ast.Module([statement.node], [])
            exec(compile(module, statement.file, "exec"), names)
        except TookTooLong:
            raise
        except BaseException as error:
            told[statement.file] = f"{type(error).__name__}: {error}"
    if wanted not in names:
        raise NotDefined(not_defined(wanted, cells, told))


def not_defined(wanted: str, cells: list[str], told: dict[str, str]) -> str:
    if reason := reason_for(wanted, cells, told):
        return f"The cell that defines `{wanted}` did not run ({reason[:300]})."
    if told:
        first = next(iter(told.values()))[:300]
        return f"`{wanted}` is not defined: a cell above did not run ({first})."
    return f"The notebook defines no `{wanted}`."


def reason_for(wanted: str, cells: list[str], told: dict[str, str]) -> str | None:
    """What ended a cell that may define `wanted`."""
    files = (f"<cell {number}>" for number, source in enumerate(cells, 1) if wanted in source)
    return next((told[file] for file in files if file in told), None)


def read(source: str, file: str) -> Iterator[Statement]:
    """The statements of one cell. Raises SyntaxError where it is no Python."""
    compile(source, file, "exec")  # what `ast.parse` lets through: a `return` outside a function
    lines = source.splitlines()
    for node in ast.parse(source).body:
        first = min(part.lineno for part in [node, *getattr(node, "decorator_list", [])])
        text = "\n".join(lines[first - 1 : node.end_lineno])
        uses = global_names(ast.unparse(node) if ";" in text else text)
        yield Statement(file, node, frozenset(bound(node)), frozenset(uses))


def python_of(source: str) -> str:
    """A cell with its magics and shell commands as Python, so that it can be read."""
    if not MAGIC.search(source):
        return source
    from IPython.core.inputtransformer2 import TransformerManager

    return TransformerManager().transform_cell(RUN_AS_IT_IS.sub("\\n", source, count=1))


def needed(wanted: str, statements: list[Statement]) -> list[Statement]:
    """The statements that `wanted` needs, in their order; all of them if none defines it."""
    if not any(wanted in statement.binds for statement in statements):
        return statements
    names, taken = {wanted}, set[int]()
    while True:
        more = {
            number
            for number, statement in enumerate(statements)
            if number not in taken and (statement.binds & names or "*" in statement.binds)
        }
        if not more:
            return [statements[number] for number in sorted(taken)]
        taken |= more
        names |= {name for number in more for name in statements[number].uses}


def bound(node: ast.AST) -> Iterator[str]:
    """The names that a statement defines, or whose things it changes."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
            return
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            yield from ((alias.asname or alias.name.split(".")[0]) for alias in names)
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            yield name
        case (
            ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del())
        ):
            yield from root(node)
        case ast.Call(func=ast.Name(id=name), args=[first, *_]) if name in CHANGING:
            yield from root(first)
        case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            return
        case ast.MatchAs(name=str(name)) | ast.ExceptHandler(name=str(name)):
            yield name
    for child in ast.iter_child_nodes(node):
        yield from bound(child)


def root(node: ast.AST) -> Iterator[str]:
    """The name at the beginning of `cache.keys[0]`: what is changed with it."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id


def global_names(source: str) -> list[str]:
    """The global names that a piece of source refers to, sorted."""

    def names(table: symtable.SymbolTable) -> Iterator[str]:
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (symbol.is_global() or table.get_type() == "module"):
                yield symbol.get_name()
        for child in table.get_children():
            yield from names(child)

    return sorted(set(names(symtable.symtable(source, "kept", "exec"))))
