"""Mechanical mutants of the stretches that students write, with one small change each.

The cases were not written with them in mind, so they show how much the cases detect.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from autograder.judging.exercise import Exercise
from autograder.text.reference import executed, lab_module

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult, ast.Mod: ast.FloorDiv,
}  # fmt: skip
# Keywords that are never changed: every tensor is on the CPU here, and `strict` only raises for
# unequal lengths, which don't occur.
NETS = "device", "strict"
SHOWN = ast.Call, ast.Compare, ast.BoolOp, ast.BinOp, ast.Subscript


@dataclass(frozen=True)
class Mutant:
    """change: the code before and after, "n > 1 -> n >= 1". source: the changed object's."""

    change: str
    source: str


def attempt_of(exercise: Exercise, mutant: Mutant) -> Any:
    return executed(mutant.source, vars(exercise.module), "<mutant>")[exercise.attempt_name]


def mutants(exercise: Exercise) -> Iterator[Mutant]:
    """Yield all mutants of an exercise's stretch. Changes with the same text are numbered."""
    module = lab_module(exercise.lab)
    around, stretch = module.objects[exercise.attempt_name], module.stretches[exercise.path]
    tree = ast.parse(module.text(around))
    seen: Counter[str] = Counter()
    for body, statement in statements(tree):
        if around.start + statement.lineno - 1 in stretch:
            for change in chain(dropped(body, statement), changed(statement, statement)):
                seen[change] += 1
                number = f" ({seen[change]})" if seen[change] > 1 else ""
                yield Mutant(change + number, ast.unparse(tree))


def statements(node: ast.AST) -> Iterator[tuple[list[ast.stmt], ast.stmt]]:
    """Yield every statement below a node, after the list that it is in."""
    for _, value in ast.iter_fields(node):
        for item in list(value) if isinstance(value, list) else []:
            if isinstance(item, ast.stmt):
                yield value, item
            if isinstance(item, ast.AST):
                yield from statements(item)


def dropped(body: list[ast.stmt], statement: ast.stmt) -> Iterator[str]:
    """Remove the statement, yield a description of the change, and put it back."""
    index = body.index(statement)
    body[index] = ast.Pass()
    yield f"{told(statement)} -> dropped"
    body[index] = statement


def changed(node: ast.AST, shown: ast.AST) -> Iterator[str]:
    """Change one thing after another below a node, but not in nested statements.

    Each time, yield `shown`, the expression around the change, before and after; then undo it.
    """
    for name, value in ast.iter_fields(node):
        for index, part in enumerate(list(value) if isinstance(value, list) else [value]):
            if not isinstance(part, ast.AST) or isinstance(part, ast.stmt) or is_net(part):
                continue
            before = told(part if isinstance(part, SHOWN) else shown)
            for variant in variants(part):
                put(node, name, index, variant)
                yield f"{before} -> {told(variant if isinstance(part, SHOWN) else shown)}"
                put(node, name, index, part)
            yield from changed(part, part if isinstance(part, SHOWN) else shown)


def is_net(node: ast.AST) -> bool:
    return isinstance(node, ast.keyword) and node.arg in NETS


def put(node: ast.AST, name: str, index: int, part: ast.AST) -> None:
    value = getattr(node, name)
    if isinstance(value, list):
        value[index] = part
    else:
        setattr(node, name, part)


def told(node: ast.AST) -> str:
    return ast.unparse(node).split("\n")[0]


def variants(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that may replace a node."""
    match node:
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield from (ast.Constant(value + 1), ast.Constant(value - 1))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.Slice(lower, upper, step):
            if lower:
                yield ast.Slice(None, upper, step)
            if upper:
                yield ast.Slice(lower, None, step)
        case ast.Call(func, arguments, keywords):
            for keyword in keywords:
                if not is_net(keyword):
                    others = [other for other in keywords if other is not keyword]
                    yield ast.Call(func, arguments, others)
        case _ if type(node) in SWAPPED:
            yield SWAPPED[type(node)]()
