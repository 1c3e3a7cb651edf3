"""What errors mean: each is raised here as a learner raises it."""

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

from autograder.attempt.failure import told
from autograder.exercises import exercises
from autograder.judging.errors import MEANINGS, meaning

ROWS = torch.tensor([[0.5, 2.0, 1.0], [3.0, 1.0, 0.0]])
EXERCISE = next(iter(exercises().values()))


def looping() -> None:
    books = {1: "a", 2: "b"}
    for key in books:
        del books[key]


def in_a_queue() -> None:
    queue = deque([1, 2])
    for _ in queue:
        queue.popleft()


def after_no_turn() -> int:
    for _ in []:
        found = 1
    return found


def itself() -> Any:
    return itself()


RAISING: dict[str, list[Callable[[], Any]]] = {
    "several_truth_values": [
        lambda: max(ROWS, 0),  # type: ignore[call-overload]
        lambda: ROWS > 0 and ROWS < 1,
        lambda: sorted([ROWS, ROWS]),  # type: ignore[type-var]
    ],
    "values_and_indices": [lambda: ROWS / ROWS.max(dim=-1), lambda: ROWS - ROWS.topk(2)],
    "list_times_a_fraction": [lambda: 0.5 * ROWS.max(dim=-1)],
    "indexed_like_a_tensor": [lambda: ROWS.topk(2)[:, -1:], lambda: [1, 2].__getitem__((0, 1))],
    "dimensions_of_an_index": [
        lambda: ROWS.gather(1, ROWS.argmax(dim=-1)),
        lambda: torch.zeros_like(ROWS).scatter(1, ROWS.argmax(dim=-1), ROWS),
    ],
    "changed_while_looping": [looping, in_a_queue],
    "nothing_to_choose_from": [lambda: max([]), lambda: min(())],
    "no_value_yet": [after_no_turn],
    "one_number_asked_for": [lambda: int(ROWS[0]), ROWS.item],
    "calls_itself": [itself],
    "not_called": [lambda: ROWS.tolist[0], lambda: list({}.values)],
    "no_such_number": [lambda: math.log(0.0), lambda: math.sqrt(-1.0)],
    "value_called": [lambda: len(ROWS)(), lambda: ROWS.shape[0](1), lambda: ROWS(0)],
    "two_dtypes": [
        lambda: torch.zeros_like(ROWS).scatter(1, torch.zeros(2, 1).long(), ROWS.double()),
        lambda: ROWS @ ROWS.T.double(),
    ],
}


@pytest.mark.parametrize(
    ("name", "raising"), [(name, each) for name, every in RAISING.items() for each in every]
)
def test_an_error_is_known_by_what_it_says(name: str, raising: Callable[[], Any]) -> None:
    said = "nothing"
    try:
        raising()
    except Exception as error:
        said = told(error, 1.0)
    found = meaning(EXERCISE, said)
    assert found is not None, said
    assert found.name == name


def test_every_meaning_has_an_example_and_other_errors_have_none() -> None:
    assert RAISING.keys() == MEANINGS.keys()
    assert meaning(EXERCISE, "It raised KeyError: 3") is None
