"""The part of a notebook that an exercise needs: the statements for one name, and nothing else.

A notebook is run top to bottom, but of its cells only those statements at the top level that the
attempt's name needs: its definition, the definitions and imports that those use, and so on. What a
learner tried out below a function, a picture, a model that is loaded: all that stays out of it, and
what goes wrong there costs nothing.
"""

import __future__

import ast
import io
import linecache
import re
import symtable
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from autograder.attempt.failure import TookTooLong

MAGIC = re.compile(r"^\s*[%!?]|=\s*[%!]|\?\s*$", re.MULTILINE)
# Magics for a whole cell whose code still defines what it defines.
RUN_AS_IT_IS = re.compile(r"\A(\s*)%%(?:time|capture|prun)\b.*")
CHANGING = {"setattr", "delattr"}
READING = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


class NotDefined(Exception):
    """The notebook doesn't define what the exercise asks for; in words, with the reason."""


@dataclass(frozen=True)
class Statement:
    """One at the top level of a cell. binds: names that it defines or changes; uses: those that it
    looks up, functions' bodies included; of: the name of whose method it is a call, if it is one.
    """

    file: str
    node: ast.stmt
    binds: frozenset[str]
    uses: frozenset[str]
    of: str = ""


def run_for(wanted: str, cells: list[str], names: dict[str, Any]) -> None:
    """Run in `names` what a notebook's cells define `wanted` with.

    As in a notebook, an error ends its cell. Raises NotDefined if `wanted` then isn't there.
    """
    told: dict[str, str] = {}  # by cell: what ended it
    statements: list[Statement] = []
    for number, source in enumerate(cells, 1):
        file = f"<cell {number}>"
        linecache.cache[file] = len(source), None, io.StringIO(source).readlines(), file
        try:
            statements += read(python_of(source), file)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            told[file] = f"{type(error).__name__}: {error}"
    if not any(wanted in s.binds for s in statements) and reason_for(wanted, cells, told):
        raise NotDefined(not_defined(wanted, cells, told))
    flags = 0
    for statement in needed(wanted, statements):
        if statement.file in told:
            continue
        flags |= future(statement.node)
        try:
            module = ast.Module([statement.node], [])
            exec(compile(module, statement.file, "exec", flags, dont_inherit=True), names)
        except TookTooLong:
            raise
        except BaseException as error:
            if not statement.of:  # a call whose result isn't kept ends nothing
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
    """What ended a cell that defines `wanted`, by the look of it."""
    defines = re.compile(rf"^\s*(?:(?:async +)?def|class) +{wanted}\b|^{wanted} *=", re.MULTILINE)
    files = (f"<cell {number}>" for number, text in enumerate(cells, 1) if defines.search(text))
    return next((told[file] for file in files if file in told), None)


# ------------------------------------------------------------------------------- reading a cell


def read(source: str, file: str) -> Iterator[Statement]:
    """The statements of one cell. Raises SyntaxError where it is no Python."""
    # `ast.parse` lets through what this refuses: a `return` outside a function.
    compile(source, file, "exec", READING, dont_inherit=True)
    for node in ast.parse(source).body:
        uses = frozenset(global_names(ast.unparse(node)))
        yield Statement(file, node, frozenset(bound(node)), uses, method_of(node))


def python_of(source: str) -> str:
    """A cell as Python, without magics, shell commands and prompts, every line in its place."""
    if not MAGIC.search(source) and is_python(source):
        return source
    from IPython.core.inputtransformer2 import TransformerManager

    text = RUN_AS_IT_IS.sub(r"\1#", source, count=1)
    blank = len(text) - len(text.lstrip("\n"))
    return "\n" * blank + TransformerManager().transform_cell(text)


def is_python(source: str) -> bool:
    try:
        compile(source, "", "exec", READING, dont_inherit=True)
    except SyntaxError:
        return False
    return True


def future(node: ast.stmt) -> int:
    """What a `from __future__ import` asks of all that is compiled after it."""
    names = node.names if isinstance(node, ast.ImportFrom) and node.module == "__future__" else []
    features = [getattr(__future__, alias.name, None) for alias in names]
    return sum(feature.compiler_flag for feature in features if feature)


# ----------------------------------------------------------------------- which statements count


def needed(wanted: str, statements: list[Statement]) -> list[Statement]:
    """The statements that `wanted` needs, in their order; all of them if none defines it."""
    if not any(wanted in statement.binds for statement in statements):
        return statements
    imports = (s for s in statements if isinstance(s.node, (ast.Import, ast.ImportFrom)))
    imported = {name for statement in imports for name in statement.binds}
    names, taken = {wanted}, set[int]()
    while True:
        more = {
            number
            for number, statement in enumerate(statements)
            if number not in taken
            and (
                statement.binds & names
                or "*" in statement.binds
                or statement.of in names - imported - {wanted}
            )
        }
        if not more:
            return [statements[number] for number in sorted(taken)]
        taken |= more
        names |= {name for number in more for name in statements[number].uses}


def method_of(node: ast.stmt) -> str:
    """Of `table.append(3)`, table: a call for what it changes."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute() as function)):
            return next(root(function), "")
    return ""


def bound(node: ast.AST) -> Iterator[str]:
    """The names that a statement defines, or whose things it changes."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
            return
        case ast.ImportFrom(module="__future__"):
            yield "*"  # it holds for all that follows
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
        case ast.Lambda():
            return
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            for part in ast.walk(node):
                if isinstance(part, ast.NamedExpr):
                    yield from bound(part.target)
            return
        case ast.MatchAs(name=str(name)) | ast.ExceptHandler(name=str(name)):
            yield name
        case ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
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
    """The global names that a piece of source refers to, sorted.

    A class body that sets a name may have read it outside before.
    """

    def names(table: symtable.SymbolTable) -> Iterator[str]:
        for symbol in table.get_symbols():
            outside = symbol.is_global() or table.get_type() in ("module", "class")
            if symbol.is_referenced() and outside:
                yield symbol.get_name()
        for child in table.get_children():
            yield from names(child)

    return sorted(set(names(symtable.symtable(source, "kept", "exec"))))
