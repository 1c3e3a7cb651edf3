"""The source of an attempt: where it stands, what of it is the learner's own, which line failed."""

import ast
import inspect
import linecache
import traceback
from types import FunctionType
from typing import Any

from autograder.course.reference import Definition, first_line, lab_module


def function_of(thing: Any) -> FunctionType | None:
    """The function itself, without its decorators, or a function whose code stands in a class."""
    for member in vars(thing).values() if isinstance(thing, type) else [thing]:
        function = undecorated(member)
        if function is not None and definition_around(function, name_of(thing)):
            return function
    return None


def name_of(thing: Any) -> str:
    return str(getattr(thing, "__name__", ""))


def undecorated(member: Any) -> FunctionType | None:
    """The function in a property, a static method or under decorators; None where there is none."""
    member = getattr(member, "fget", None) or getattr(member, "__func__", member)
    function = inspect.unwrap(member) if callable(member) else None
    return function if isinstance(function, FunctionType) else None


def exercise_function(path: str, attempt: Any) -> FunctionType | None:
    """The function that an exercise judges: the attempt itself, or the method that `path` names."""
    for name in path.split(".")[1:]:
        attempt = inspect.getattr_static(attempt, name, None)
    return undecorated(attempt)


def definition(thing: Any) -> str | None:
    """The text of a function's or class's definition, as it stands in its file or cell."""
    function = function_of(thing)
    node = definition_around(function, name_of(thing)) if function else None
    if function is None or node is None:
        return None
    lines = linecache.getlines(function.__code__.co_filename)
    return "".join(lines[first_line(node) - 1 : node.end_lineno]).rstrip()


def definition_around(function: FunctionType, name: str) -> Definition | None:
    """The definition of `name`, at the top level of a file or cell, in which a function stands."""
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

    Of a class, that is in the method which the exercise asks for, if it came by there: the others
    may be given.
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


def own_statements(lab: str, path: str, function: FunctionType) -> list[str]:
    """What of an exercise's function the learner has written: the statements that weren't given."""
    module = lab_module(lab)
    first = next(line for line in module.stretch(path) if line.strip())
    margin = first[: -len(first.lstrip())]
    skeleton = module.with_stretch(path, [f"{margin}pass"])
    given = {
        ast.unparse(node) for node in ast.walk(ast.parse(skeleton)) if isinstance(node, ast.stmt)
    }
    own = function_node(function)
    return [
        text
        for node in (own.body if own else [])
        if not is_docstring(node)
        and "NotImplementedError" not in (text := ast.unparse(node))
        and text not in given
    ]


def function_node(function: FunctionType) -> ast.FunctionDef | None:
    """The definition of a function, wherever it stands in its file or cell."""
    line, nodes = function.__code__.co_firstlineno, ast.walk(parsed_file(function))
    own = [
        node
        for node in nodes
        if isinstance(node, ast.FunctionDef)
        and line in lines_of(node)
        and node.name == name_of(function)
    ]
    return own[-1] if own else None


def is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
