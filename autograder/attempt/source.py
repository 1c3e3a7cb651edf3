"""The source of an attempt: where it is, what the learner wrote, which line failed."""

import ast
import inspect
import linecache
import traceback
from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


def function_of(thing: Any) -> FunctionType | None:
    """The function itself, without its decorators, or a function whose code is in a class."""
    for member in vars(thing).values() if isinstance(thing, type) else [thing]:
        function = undecorated(member)
        if function is not None and definition_around(function, name_of(thing)):
            return function
    return None


def name_of(thing: Any) -> str:
    return str(getattr(thing, "__name__", ""))


def undecorated(member: Any) -> FunctionType | None:
    """The function in a property, a static method or under decorators; None if there is none."""
    member = getattr(member, "fget", None) or getattr(member, "__func__", member)
    function = inspect.unwrap(member) if callable(member) else None
    return function if isinstance(function, FunctionType) else None


def exercise_function(path: str, attempt: Any) -> FunctionType | None:
    """The function that an exercise judges: the attempt itself, or the method that `path` names."""
    for name in path.split(".")[1:]:
        attempt = inspect.getattr_static(attempt, name, None)
    return undecorated(attempt)


def definition(thing: Any) -> str | None:
    """The text of a function's or class's definition, from its file or cell."""
    function = function_of(thing)
    node = definition_around(function, name_of(thing)) if function else None
    if function is None or node is None:
        return None
    lines = linecache.getlines(function.__code__.co_filename)
    return "".join(lines[first_line(node) - 1 : node.end_lineno]).rstrip()


def definition_around(function: FunctionType, name: str) -> Definition | None:
    """The definition of `name` that holds a function, at the top level of a file or cell."""
    line = function.__code__.co_firstlineno
    for node in parsed_file(function).body:
        if isinstance(node, Definition) and node.name == name and line in lines_of(node):
            return node
    return None


def parsed_file(function: FunctionType) -> ast.Module:
    """The file or cell that holds a function; empty where Python can't read it, for its magics."""
    source = "".join(linecache.getlines(function.__code__.co_filename))
    try:
        return ast.parse(source)
    except SyntaxError:
        return ast.Module([], [])


def lines_of(node: Definition) -> range:
    return range(first_line(node), (node.end_lineno or node.lineno) + 1)


def own_line(error: BaseException, attempt: Any, path: str) -> str | None:
    """The last line of the learner's own code that an error passed through.

    In a class, a line of the exercise's own method if there is one: the other methods may be given.
    """
    function = function_of(attempt)
    if function is None:
        return None
    filename = function.__code__.co_filename
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == filename]
    method = exercise_function(path, attempt) if "." in path else None
    node = function_node(method) if method else None
    lines = [line for line in lines if node and line in lines_of(node)] or lines
    return f"line {lines[-1]}: {linecache.getline(filename, lines[-1]).strip()}" if lines else None


def function_node(function: FunctionType) -> Function | None:
    """The definition of a function, anywhere in its file or cell."""
    line, nodes = function.__code__.co_firstlineno, ast.walk(parsed_file(function))
    own = [
        node
        for node in nodes
        if isinstance(node, Function) and line in lines_of(node) and node.name == name_of(function)
    ]
    return own[-1] if own else None


def is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


# ------------------------------------------------------------------------- what was given with it


def lost_statements(given: Sequence[str], function: FunctionType) -> list[str]:
    """The given statements that a function has neither as they were nor in another form.

    Functions of the same notebook that it calls count as its own. An attribute that occurs nowhere
    else isn't missed: the notebook may be of an older release. Nothing is lost if Python can't find
    the source.
    """
    nodes = nodes_of(function, set())
    done = {what_it_does(node) for node in nodes}
    attributes = [n for n in ast.walk(parsed_file(function)) if isinstance(n, ast.Attribute)]
    known = {f"sets {attribute.attr}" for attribute in attributes}
    missing = {text: what_it_does(ast.parse(text).body[0]) for text in given if nodes}
    return [
        text
        for text, what in missing.items()
        if what not in done and (what in known or not str(what).startswith("sets "))
    ]


def nodes_of(function: FunctionType, known: set[FunctionType]) -> list[ast.AST]:
    """All parts of a function's definition, and of those that it calls by name."""
    known.add(function)
    own = function_node(function)
    nodes = list(ast.walk(own)) if own else []
    names = [node.id for node in nodes if isinstance(node, ast.Name)]
    called = [function.__globals__.get(name) for name in names]
    for other in [thing for thing in called if isinstance(thing, FunctionType)]:
        if other.__module__ == function.__module__ and other not in known:
            nodes += nodes_of(other, known)
    return nodes


def what_it_does(node: ast.AST) -> str | None:
    """Which function a statement calls, what it raises, which attribute it sets; else None."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) as call):
            return f"calls {name} {[a.value for a in call.args if isinstance(a, ast.Constant)]}"
        case ast.If(body=[ast.Raise() as refusal]) | (ast.Raise() as refusal):
            raised = refusal.exc.func if isinstance(refusal.exc, ast.Call) else refusal.exc
            return f"raises {ast.unparse(raised)}" if raised else None
        case (
            ast.Assign(targets=[ast.Attribute(attr=name)])
            | ast.AugAssign(target=ast.Attribute(attr=name))
        ):
            return f"sets {name}"
    return None


def unused_arguments(function: FunctionType) -> list[str]:
    """The arguments that a function never reads; none where its source isn't to be found."""
    own = function_node(function)
    nodes = list(ast.walk(own)) if own else []
    read = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    given = [*own.args.posonlyargs, *own.args.args, *own.args.kwonlyargs] if own else []
    whole = read & {"locals", "eval", "exec"}
    return [a.arg for a in given if a.arg not in read and a.arg != "self" and not whole]


# --------------------------------------------------------------------- definitions and their lines


def definitions(node: ast.AST, path: str = "") -> Iterator[tuple[str, Definition]]:
    """Yield every function and class with its path, outer ones first."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            name = f"{path}.{child.name}".removeprefix(".")
            yield name, child
            yield from definitions(child, name)
        else:
            yield from definitions(child, path)


def first_line(node: ast.stmt) -> int:
    """Return the line, counted from 1, where a definition or its first decorator begins."""
    decorators = getattr(node, "decorator_list", [])
    return min(part.lineno for part in [node, *decorators])
