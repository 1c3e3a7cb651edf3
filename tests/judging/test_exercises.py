"""What holds for every exercise of every lab, whatever it asks for.

The catalogue serves as the tests of the grader: every misconception must be told from the right
solution and from every other.
"""

import ast
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import wraps
from itertools import combinations
from typing import Any

import pytest
import torch

from autograder.attempt.source import definitions
from autograder.judging import judge as judge_module
from autograder.judging.exercise import Exercise, Outcome
from autograder.judging.given import given_statements
from autograder.judging.judge import (
    NOT_ATTEMPTED,
    PASSED,
    WRONG,
    Here,
    Trial,
    coincide,
)
from autograder.judging.symptoms import MOST_WORDS
from autograder.text.reference import lab_module
from tests.common.attempts import as_attempt
from tests.common.trials import (
    EXERCISES,
    LABS,
    cases_of,
    cell,
    every_exercise,
    every_exercise_in_time,
    every_seed,
    frozen,
    is_rejected,
    judged,
    ran_out_of_time,
    skeleton,
    trials,
    with_wrong_neighbors,
)

every_lab = pytest.mark.parametrize("lab", LABS)


@every_lab
def test_the_exercises_are_those_that_the_solutions_mark(lab: str) -> None:
    assert {e.path for e in EXERCISES if e.lab == lab} == set(lab_module(lab).stretches) != set()


# ------------------------------------------------------------------------------- what is right


@every_seed
@every_exercise
def test_the_reference_passes(exercise: Exercise, seed: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        judgement = judged(exercise, exercise.reference, seed)
    assert judgement.status == PASSED, judgement


@every_exercise_in_time
def test_a_skeleton_is_not_attempted(exercise: Exercise) -> None:
    attempt = cell(skeleton(exercise.lab))[exercise.attempt_name]
    assert judged(exercise, attempt).status == NOT_ATTEMPTED


@every_exercise_in_time
def test_it_passes_while_every_other_one_of_its_lab_is_blank(exercise: Exercise) -> None:
    attempt = cell(skeleton(exercise.lab, keep=exercise.path))[exercise.attempt_name]
    judgement = judged(exercise, attempt)
    assert judgement.status == PASSED, judgement.message


@pytest.mark.slow
@pytest.mark.in_turn(24)
@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.soak)])
@every_exercise
def test_it_passes_beside_misconceptions_of_its_neighbors(exercise: Exercise, every: int) -> None:
    tried = 0
    for attempt, wrong in with_wrong_neighbors(exercise, every):
        assert not is_rejected(exercise, attempt), wrong
        tried += 1
    assert tried


@pytest.mark.slow
@pytest.mark.in_turn(24)
@every_exercise
def test_it_passes_with_something_that_cannot_be_copied(exercise: Exercise) -> None:
    right, lock = exercise.reference, threading.RLock()  # ranks in turns share a thread

    @wraps(right)
    def called(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return right(*args, **kwargs)

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        right.__init__(self, *args, **kwargs)
        self.lock = lock

    is_class = isinstance(right, type)
    attempt = type(right.__name__, (right,), {"__init__": made}) if is_class else called
    assert not is_rejected(exercise, attempt)


@every_exercise_in_time
def test_given_code_that_is_gone_is_missed(exercise: Exercise) -> None:
    whole = lab_module(exercise.lab).lines
    for given in given_statements(exercise.lab, exercise.path):
        body = dict(definitions(ast.parse("\n".join(whole))))[exercise.path].body
        node = next(statement for statement in body if ast.unparse(statement) == given)
        lines = [
            *whole[: node.lineno - 1],
            " " * node.col_offset + "pass",
            *whole[node.end_lineno :],
        ]
        attempt = cell("\n".join(lines))[exercise.attempt_name]
        assert judged(exercise, attempt).status == WRONG, given


# ------------------------------------------------------------------------------------- its cases


@every_exercise_in_time
def test_a_seed_draws_the_same_cases_again_and_each_has_its_label(exercise: Exercise) -> None:
    def drawn() -> list[Any]:
        return [(case.label, frozen(dict(case.data))) for case in cases_of(exercise, 7)]

    once = drawn()
    assert once == drawn()
    assert len({label for label, _ in once}) == len(once) >= 1


@every_exercise
def test_what_its_driver_puts_into_words_is_short_enough_to_be_read(exercise: Exercise) -> None:
    values = [record.value for right in trials(exercise)[0].expected for record in right.seen]
    assert all(len(value) <= MOST_WORDS for value in values if isinstance(value, str))


# --------------------------------------------------------------------------------- what is wrong


Form = tuple[str, int]  # a misconception's name, and the number of its form


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not end is not waited for."""
    monkeypatch.setattr(judge_module, "SECONDS", 2.0)


@every_exercise
def test_it_has_six_misconceptions_at_least_with_a_sentence_each(exercise: Exercise) -> None:
    known = exercise.misconceptions
    assert len(known) >= 6
    assert len({m.name for m in known}) == len({m.sentence for m in known}) == len(known)


def forms(exercise: Exercise) -> Iterator[tuple[Form, Any]]:
    """Every wrong solution of the catalogue, made afresh."""
    for misconception in exercise.misconceptions:
        for number, attempt in enumerate(misconception.attempts(), 1):
            yield (misconception.name, number), attempt


@every_exercise_in_time
def test_its_first_misconception_is_rejected(exercise: Exercise, soon: None) -> None:
    assert is_rejected(exercise, next(exercise.misconceptions[0].attempts()))


@pytest.mark.slow
@pytest.mark.in_turn(24)
@every_exercise
def test_every_misconception_is_diagnosed_as_itself(exercise: Exercise, soon: None) -> None:
    """It coincides with no other, and with itself when it is run again up to the first case in
    which it is wrong; it changes no case, and is rejected on other cases too."""
    trial = trials(exercise)[0]
    cases = [frozen(dict(case.data)) for case in trial.cases]
    first = {form: trial.outcomes(wrong) for form, wrong in forms(exercise)}
    same = [
        (one, other)
        for (one, got), (other, theirs) in combinations(first.items(), 2)
        if one[0] != other[0] and coincide_everywhere(exercise, got, theirs)
    ]
    assert same == [], "they do the same"
    for form, wrong in forms(exercise):
        before = trial.first_wrong(first[form])
        assert before is not None, f"{form} passes"
        if ran_out_of_time(before):
            continue
        after = trial.told_by(wrong)
        assert after is not None, f"{form} passes when it is run again"
        assert coincide(exercise, after, before), f"{form} differs from run to run"
        assert is_rejected(exercise, wrong, seed=1), f"{form} passes on other cases"
    assert [frozen(dict(case.data)) for case in trial.cases] == cases


@pytest.mark.soak
@every_exercise
def test_every_misconception_does_the_same_again_on_every_case(exercise, soon):
    trial = trials(exercise)[0]
    first, again = ({f: trial.outcomes(wrong) for f, wrong in forms(exercise)} for _ in range(2))
    changed = [f for f in first if not coincide_everywhere(exercise, first[f], again[f])]
    assert changed == []


def coincide_everywhere(exercise: Exercise, got: list[Outcome], theirs: list[Outcome]) -> bool:
    return all(coincide(exercise, *both) for both in zip(got, theirs, strict=True))


class Unspeakable:
    """Nothing can be said of it but its type."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")

    __str__ = __eq__ = __hash__ = __bool__ = __len__ = __repr__  # type: ignore[assignment]


def endless_list() -> list[Any]:
    inside: list[Any] = []
    inside.append(inside)
    return inside


ODD: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "text": lambda: "text",
    "a list": lambda: [1, 2],
    "a number": lambda: 3,
    "a number of 5,000 digits": lambda: 10**5000,
    "a number that is none": lambda: float("nan"),
    "a tensor": lambda: torch.zeros(2, 3),
    "a tensor in a tuple": lambda: (torch.ones(3, dtype=torch.bool), None),
    "a meta tensor": lambda: torch.zeros(2, 3, device="meta"),
    "a sparse tensor": lambda: torch.eye(3).to_sparse(),
    "a wide view": lambda: torch.zeros(1).expand(2000, 2000),
    "a generator": lambda: (number for number in range(3)),
    "a dict of odd things": lambda: {(1, 2): object(), "x": {1}},
    "a list in itself": endless_list,
    "what has no words": Unspeakable,
}


@pytest.mark.slow
@pytest.mark.in_turn(24)
@every_exercise
def test_whatever_is_returned_is_judged_with_a_sentence(exercise, soon, monkeypatch):
    trial = trials(exercise)[0]
    # The reference would run again for each of them, which takes most of the time.
    monkeypatch.setattr(judge_module, "right_outcomes", lambda *_: trial.expected)
    turn = EXERCISES.index(exercise) % 3  # a third of them each: the judge is the same for all
    for name, odd in list(ODD.items())[turn::3]:

        def attempt(*args: Any, odd: Callable[[], Any] = odd, **kwargs: Any) -> Any:
            return odd()

        here = Here(exercise, as_attempt(exercise, attempt))
        found = Trial.of(exercise, exercise.driver, here, trial.cases).judgement()
        assert found.status == WRONG, name
        assert len(found.message) > 10, name
