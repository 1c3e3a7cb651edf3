"""What is lent: the names that an attempt may read and call, in this process and over the wire."""

import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from threading import Thread
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from autograder.attempt.worker import Child
from autograder.grading.judge.near import Lent, Near
from autograder.judging.borrowed import Borrowed, borrowed
from autograder.judging.exercise import Exercise, Service, Services
from autograder.judging.judge import PASSED, WRONG, drawn, judge
from autograder.lending.slow_memory import LentMemory
from solutions.flash_attention import flash_attention
from solutions.kernels.slow_memory import OutOfFastMemory
from tests.common.trials import EXERCISES

FLASH = next(e for e in EXERCISES if e.name == "flash_attention.flash_attention")


@cache
def all_lent() -> dict[str, Callable[[], Any]]:
    """Something of each class that is lent, for the first case of an exercise; functions too."""
    found: dict[str, Callable[[], Any]] = {"Lent": lambda: Lent(torch.zeros)}
    for exercise in EXERCISES:
        for lend in filter(None, (exercise.services, exercise.in_bundle)):
            for name, service in lend(data_of(exercise)).items():
                kind = type(service).__name__
                found[kind] = partial(lent_for, lend, exercise, name)
    return found


def lent_for(lend: Services, exercise: Exercise, name: str) -> Service:
    return lend(data_of(exercise))[name]


def data_of(exercise: Exercise) -> dict[str, Any]:
    return dict(drawn(exercise, 0)[0].data)


KINDS = [
    "CachePerSlot",
    "CountedModel",
    "Keeper",
    "Ledger",
    "Lent",
    "LentCache",
    "LentMemory",
    "ReferenceManager",
    "Writer",
]  # by name, because to find them draws a case of every exercise
every_lent = pytest.mark.parametrize("kind", KINDS)


@contextmanager
def here(thing: Service) -> Iterator[Any]:
    """As an attempt in this process has it."""
    yield Borrowed(thing, {})


@contextmanager
def over_the_wire(thing: Service) -> Iterator[Any]:
    """As an attempt in the sandbox has it."""
    with wire_to(thing) as (peer, number):
        yield peer.far(number)


@contextmanager
def wire_to(thing: Service) -> Iterator[tuple[Child, int]]:
    """The sandbox's end of a wire, and the number of the thing at the other end."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        near = Near(ours, ModuleType("reference"))
        side = Thread(target=near.receive, daemon=True)
        peer = Child(theirs)
        side.start()
        try:
            yield peer, near.share(thing)
        finally:
            peer.send("end", None)
            side.join()


both_ways = pytest.mark.parametrize("lending", [here, over_the_wire])


def names_of(thing: Any) -> set[str]:
    return {*dir(thing), "nothing", "_nothing"}


def refused() -> Any:
    return pytest.raises(AttributeError, match="can't be asked for")


# ------------------------------------------------------------------------------------ the list


def test_what_is_lent_is_found() -> None:
    assert sorted(all_lent()) == KINDS


@both_ways
@every_lent
def test_a_name_that_is_not_listed_is_as_if_it_were_not_there(kind: str, lending: Any) -> None:
    thing = all_lent()[kind]()
    own = names_of(thing) - thing.lends.read - thing.lends.call
    with lending(thing) as held:
        for name in own:
            with pytest.raises(AttributeError):
                getattr(held, name) if not name.startswith("__") else held.__getattr__(name)


@both_ways
@every_lent
def test_nothing_can_be_set_and_nothing_deleted(kind: str, lending: Any) -> None:
    thing = all_lent()[kind]()
    before = {name: id(value) for name, value in vars(thing).items()}
    with lending(thing) as held:
        for name in {*names_of(thing), *thing.lends.read, *thing.lends.call} - {""}:
            for value in (None, 99_999, print):
                with refused():
                    setattr(held, name, value)
            if not name.startswith("__"):  # Python's own are of the handle
                with pytest.raises(AttributeError):
                    delattr(held, name)
    assert {name: id(value) for name, value in vars(thing).items()} == before


@every_lent
def test_the_wire_refuses_whatever_else_is_asked(kind: str) -> None:
    thing = all_lent()[kind]()
    with wire_to(thing) as (peer, number):
        for name in names_of(thing) - thing.lends.call:
            with refused():
                peer.ask(number, "call", name, [], {})
        for name in names_of(thing) - thing.lends.call - thing.lends.read:
            with refused():
                peer.ask(number, "get", name)
        verbs: list[Any] = ["set", "delete", "", None, 1, ["get"], {"call": "load"}]
        for verb in verbs:
            with refused():
                peer.ask(number, verb, "load")


# ------------------------------------------------------------------------------- what is read


@both_ways
@every_lent
def test_what_is_read_is_a_copy(kind: str, lending: Any) -> None:
    thing = all_lent()[kind]()
    read = {name: getattr(thing, name) for name in thing.lends.read}
    before = {name: spelled(value) for name, value in read.items()}
    with lending(thing) as held:
        for name in read:
            found = getattr(held, name)
            assert (type(found), spelled(found)) == (type(read[name]), before[name])
            spoil(found)
    assert {name: spelled(getattr(thing, name)) for name in read} == before


def spelled(value: Any) -> str:
    return str(value.tolist() if isinstance(value, Tensor) else value)


def spoil(value: Any) -> None:
    """Change a value where it lies, and what it holds."""
    if isinstance(value, Tensor):
        value.fill_(77)
    elif isinstance(value, (list, deque)):
        value.append(77)
    elif isinstance(value, dict):
        for item in value.values():
            spoil(item)
        value[77] = 77


def test_an_error_comes_as_the_class_of_its_name_in_the_notebook() -> None:
    class OutOfFastMemory(Exception):
        """The notebook's own."""

    with pytest.raises(OutOfFastMemory, match="Load smaller tiles"):
        Borrowed(memory(), {"OutOfFastMemory": OutOfFastMemory}).load("queries", 0, 8)
    with pytest.raises(ValueError, match="is no tile"):
        Borrowed(memory(), {"ValueError": "no class"}).load("queries", 0, 9)


# ------------------------------------------------------------------------------ the slow memory


def memory(fast_numbers: float = 20, head_dim: int = 4) -> LentMemory:
    queries, keys, values = torch.ones(3, 8, head_dim)
    return LentMemory(queries, keys, values, fast_numbers)


@both_ways
def test_a_result_is_what_was_stored(lending: Any) -> None:
    with lending(memory()) as held:
        for name in ("queries", "keys", "values"):
            with pytest.raises(ValueError, match="is no result: load it"):
                held.result(name)
        held.store("lse", 0, torch.zeros(8))
        assert held.result("lse").tolist() == [0.0] * 8


@both_ways
def test_what_looks_like_a_tensor_is_not_stored(lending: Any) -> None:
    class LooksLike:
        ndim, shape = 1, (8,)

        def new_full(self, shape: Any, value: float) -> Tensor:
            return torch.zeros(8)

    thing = memory()
    with lending(thing) as held, pytest.raises(TypeError, match="A tile is a tensor"):
        held.store("lse", 0, LooksLike())
    assert ("lse" in thing.tensors, thing.moved) == (False, 0)


@both_ways
def test_the_size_of_a_tile_is_no_number_that_overflows(lending: Any) -> None:
    """Four queries of 64 numbers are 0 in eight bits."""
    start, end = torch.tensor([0, 4], dtype=torch.uint8)
    thing = memory(fast_numbers=200, head_dim=64)
    with lending(thing) as held:
        with pytest.raises((OutOfFastMemory, RuntimeError), match="Load smaller tiles"):
            held.load("queries", start, end)
        assert held.load("queries", start, end // 4).shape == (1, 64)


# ------------------------------------------------------------------------------------ the watch


@both_ways
def test_a_watch_is_told_before_each_move_and_cannot_be_undone(lending: Any) -> None:
    thing, told = memory(), list[int]()
    with lending(thing) as held:
        held.watch(lambda: told.append(thing.moved))
        held.load("queries", 0, 1)
        held.store("output", 0, torch.zeros(1, 4))
        with pytest.raises(RuntimeError, match="watched already"):
            held.watch(lambda: None)
        with pytest.raises(ValueError, match="is no tile"):
            held.load("queries", 0, 9)
    assert told == [0, 4, 8]


def test_a_model_tells_what_each_forward_is_handed() -> None:
    model, told = all_lent()["CountedModel"](), list[Any]()
    ids = torch.zeros(1, 2, dtype=torch.int64)
    model.watch(lambda *given: told.append(given))
    with pytest.raises(TypeError):
        model(ids, ids, "no cache", "and more")
    assert told == [(ids, ids, "no cache", "and more")]


# ----------------------------------------------------------------------------- in the notebook


def plain_attention(memory: Any, q_len: int, k_len: int, *sizes: int) -> None:
    memory.fast_numbers = 99_999
    flash_attention(memory, q_len, k_len, sizes[0], q_len, k_len)


def with_a_look_at_the_count(memory: Any, *sizes: int) -> None:
    flash_attention(memory, *sizes)
    print(memory.moved)


def with_a_look_at_the_room(memory: Any, *sizes: int) -> None:
    assert memory.fast_numbers > 0
    flash_attention(memory, *sizes)


def test_a_check_refuses_what_a_grade_refuses() -> None:
    for attempt, name in ((plain_attention, "fast_numbers"), (with_a_look_at_the_count, "moved")):
        judgement = judge(FLASH, attempt)
        assert judgement.status == WRONG
        assert judgement.message == f"It raised AttributeError: '{name}' can't be asked for."
    assert judge(FLASH, with_a_look_at_the_room).status == PASSED


def test_a_model_is_handed_over_as_it_is() -> None:
    model = all_lent()["CountedModel"]()
    assert borrowed(model, {}) is model
