"""What was given with an exercise, and what its learner wrote."""

import ast
from types import FunctionType

from autograder.attempt.source import definitions, function_node, is_docstring, what_it_does
from autograder.text.reference import lab_module


def skeleton(lab: str, path: str) -> ast.Module:
    """The object around an exercise as it is given, with `pass` where the TODO is."""
    module = lab_module(lab)
    first = next(line for line in module.stretch(path) if line.strip())
    margin = first[: -len(first.lstrip())]
    return ast.parse(module.with_stretch(path, [f"{margin}pass"]))


def own_statements(lab: str, path: str, function: FunctionType) -> list[str]:
    """The statements of an exercise's function that the learner has written, not the given ones."""
    nodes = ast.walk(skeleton(lab, path))
    given = {ast.unparse(node) for node in nodes if isinstance(node, ast.stmt)}
    own = function_node(function)
    return [
        text
        for node in (own.body if own else [])
        if not is_docstring(node)
        and "NotImplementedError" not in (text := ast.unparse(node))
        and text not in given
    ]


def given_statements(lab: str, path: str) -> list[str]:
    """The given lines of an exercise's function that are needed, though its result doesn't show it.

    These are calls (`require_prompt(…)`), refusals (`if …: raise …`) and attributes that are set.
    """
    body = dict(definitions(skeleton(lab, path)))[path].body
    return [ast.unparse(node) for node in body if not is_docstring(node) and what_it_does(node)]
