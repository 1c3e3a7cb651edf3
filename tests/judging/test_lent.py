"""What an attempt is lent by a driver leads it to nothing of the driver's."""

import functools
from collections import deque
from collections.abc import Iterator, Mapping
from inspect import unwrap
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any

import pytest

from autograder.attempt.lent import handle, sealed
from autograder.attempt.shown import ShownModel
from autograder.judging.borrowed import Borrowed
from autograder.judging.exercise import Driver, Exercise
from autograder.judging.judge import drawn, run_all
from tests.common.trials import every_exercise_in_time

DRIVERS = "autograder.attempt.drivers."
OWN = "autograder", "solutions", "gpt", "tests"  # the packages whose classes are looked into
OVER_THE_WIRE = Borrowed, ShownModel  # in a grade; test_lending.py shows what can be had of them
CASES = 3  # every third case of an exercise is enough


# ---------------------------------------------------------------- what attributes and cells lead to


def reached(*roots: Any) -> Iterator[Any]:
    """Yield all that things lead to without frames, the garbage collector and a module's names."""
    known: dict[int, Any] = {}
    left = list(roots)
    while left:
        thing = left.pop()
        if id(thing) not in known and not isinstance(thing, OVER_THE_WIRE):
            known[id(thing)] = thing
            left += next_to(thing)
            yield thing


def next_to(thing: Any) -> list[Any]:
    if isinstance(thing, FunctionType):
        cells = [cell.cell_contents for cell in thing.__closure__ or () if not is_empty(cell)]
        return [*cells, *(thing.__defaults__ or ()), *vars(thing).values()]
    if isinstance(thing, (MethodType, BuiltinMethodType)):
        return [thing.__self__, getattr(thing, "__func__", None)]
    if isinstance(thing, functools.partial):
        return [thing.func, *thing.args, *thing.keywords.values()]
    if isinstance(thing, type):
        return [*thing.__bases__, *vars(thing).values()] if is_own(thing) else []
    found = [type(thing), *(vars(thing).values() if hasattr(thing, "__dict__") else [])]
    found += [getattr(thing, name) for name in slots_of(type(thing)) if hasattr(thing, name)]
    if isinstance(thing, Mapping):
        found += [*thing.keys(), *thing.values()]
    elif isinstance(thing, (list, tuple, set, frozenset, deque)):
        found += thing
    elif isinstance(thing, (staticmethod, classmethod)):
        found.append(thing.__func__)
    elif isinstance(thing, property):
        found += [thing.fget, thing.fset]
    elif isinstance(thing, Iterator) and type(thing).__module__ == "builtins":
        found += [part for part in thing.__reduce__() if not isinstance(part, str)]
    return found


def is_empty(cell: Any) -> bool:
    try:
        return cell.cell_contents is None
    except ValueError:
        return True


def is_own(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in OWN


def slots_of(kind: type) -> list[str]:
    found = [vars(cls).get("__slots__", ()) for cls in kind.__mro__ if is_own(cls)]
    return [name for names in found for name in ([names] if isinstance(names, str) else names)]


def is_of_a_driver(thing: Any) -> bool:
    """Whether it is a driver's own function, with the cells and the names that a driver uses."""
    return isinstance(thing, FunctionType) and thing.__module__.startswith(DRIVERS)


# --------------------------------------------------------------------------------- all exercises


def looking(exercise: Exercise, found: set[str]) -> Any:
    """The reference, which notes the driver's functions that its arguments lead to."""
    right, method = exercise.reference, exercise.path.rpartition(".")[2]
    function = getattr(right, method) if isinstance(right, type) else right

    @functools.wraps(function)
    def look(*args: Any, **named: Any) -> Any:
        things = filter(is_of_a_driver, reached(args, named))
        found.update(f"{thing.__module__}.{thing.__qualname__}" for thing in things)
        return function(*args, **named)

    if isinstance(right, type):
        return type(right.__name__, (right,), {method: look, "__module__": right.__module__})
    return look


@every_exercise_in_time
def test_nothing_that_an_attempt_holds_leads_into_its_driver(exercise: Exercise) -> None:
    """So no count and no note of what it did can be changed by way of what was lent to it."""
    found: set[str] = set()
    cases = drawn(exercise)[::CASES]
    drivers: list[Driver] = [d for d in (exercise.driver, exercise.as_built) if d]
    for driver in drivers:
        outcomes = run_all(exercise, driver, looking(exercise, found), cases)
        assert [o.failure.told for o in outcomes if o.failure] == []
    assert found == set()


# ------------------------------------------------------------------------------ the two wrappers


class Shelf:
    def __init__(self) -> None:
        self.books, self.asked = ["one"], 0

    def ask(self, name: str, times: int = 1) -> str:
        self.asked += times
        return name * times


def test_a_sealed_function_works_and_leads_nowhere() -> None:
    shelf = Shelf()
    ask = sealed(shelf.ask)
    assert (ask("a"), ask("b", times=2), shelf.asked) == ("a", "bb", 3)
    with pytest.raises(TypeError, match="ask"):
        ask()
    assert unwrap(ask) is ask
    assert all(thing is not shelf for thing in reached(ask))


def test_a_handle_shows_what_is_listed_and_nothing_else() -> None:
    shelf = Shelf()
    held = handle(shelf, "books ask")
    held.books.clear()
    assert (held.ask("a"), held.books, shelf.asked) == ("a", ["one"], 1)
    for name in ("asked", "__dict__", "other"):
        with pytest.raises(AttributeError, match=r"can't be asked for|no attribute"):
            getattr(held, name)
    for change in (object.__setattr__, setattr):
        with pytest.raises(AttributeError):
            change(held, "asked", 0)
    assert all(thing is not shelf for thing in reached(held))
