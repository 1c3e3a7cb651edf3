"""What it costs the grader to look at an attempt's results, and that it always comes to an end."""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
import torch

from autograder.exercises import exercises
from autograder.grading.judge import oracle
from autograder.grading.judge.jail import Jail, JailError
from autograder.grading.judge.oracle import There, Trying
from autograder.grading.judge.rebuild import rebuild
from autograder.grading.judge.secret import key_of
from autograder.grading.judge.submission import Submission
from autograder.judging.judge import WRONG, Judgement, ReferenceFails
from autograder.text.release import release_of
from tests.hostile.notebooks import as_bytes, solved

EXERCISE = exercises()["generate.metrics"]
HERS = Submission("ada", "generate", as_bytes(solved("generate")))


@pytest.fixture
def trying(monkeypatch: pytest.MonkeyPatch) -> Iterator[Trying]:
    monkeypatch.setattr(oracle, "JUDGING", 0.1)
    dtype = torch.get_default_dtype()
    yield Trying(HERS, rebuild(HERS, release_of(HERS.lab)), key_of(bytes(32), HERS), Jail())
    assert torch.get_default_dtype() == dtype


def judged(trying: Trying, monkeypatch: pytest.MonkeyPatch, judge: Callable[[], Any]) -> Judgement:
    monkeypatch.setattr(oracle, "judge", lambda *_: judge())
    return trying.judgement(EXERCISE, There(EXERCISE, trying))


def fails() -> None:
    torch.set_default_dtype(torch.float16)
    raise ValueError("not enough values to unpack")


def never_ends() -> None:
    torch.set_default_dtype(torch.float16)
    for _ in count():
        pass


def takes_all_memory() -> None:
    torch.empty(1 << 34, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("judge", "told"),
    [
        (fails, "The results can't be judged (ValueError: not enough values to unpack)."),
        (never_ends, "It was stopped: its results take too long to be judged."),
        (
            takes_all_memory,
            "It was stopped: its results take more memory than judging them may use.",
        ),
    ],
)
def test_what_judging_raises_about_a_submission_is_its_result(trying, judge, told, monkeypatch):
    judgement = judged(trying, monkeypatch, judge)
    assert (judgement.status, judgement.message) == (WRONG, told)
    assert trying.remarks == [f"{EXERCISE.name}: {told}"]  # for the instructor
    assert trying.spent > 0


@pytest.mark.parametrize("error", [JailError(), ReferenceFails(), OSError(), MemoryError()])
def test_for_what_has_another_cause_there_is_no_result(trying, error, monkeypatch):
    def judge() -> None:
        raise error

    monkeypatch.setattr(oracle, "machine_has_room", lambda: False)
    with pytest.raises(type(error)):
        judged(trying, monkeypatch, judge)
    assert trying.remarks == []
