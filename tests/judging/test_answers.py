"""Right answers in another style pass; wrong ones are rejected, and their authors read why."""

from importlib import import_module
from pkgutil import iter_modules

import pytest

from autograder.exercises import exercises
from autograder.judging.judge import PASSED, WRONG, drawn, judge
from tests import answers
from tests.common import attempts
from tests.common.attempts import Answer
from tests.common.trials import is_rejected

for lab in iter_modules(answers.__path__):
    import_module(f"tests.answers.{lab.name}")


def every(answers: list[Answer]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("answer", answers, ids=lambda a: f"{a.exercise}-{a.name}")


@every(attempts.RIGHT)
def test_a_right_answer_in_another_style_passes(answer: Answer) -> None:
    exercise = exercises()[answer.exercise]
    for seed in range(2):
        judgement = judge(exercise, answer.attempt, drawn(exercise, seed))
        assert judgement.status == PASSED, (judgement.case, judgement.message)


@every(attempts.WRONG)
def test_a_wrong_answer_is_rejected_and_its_author_reads_why(answer: Answer) -> None:
    exercise = exercises()[answer.exercise]
    judgement = judge(exercise, answer.attempt)
    assert judgement.status == WRONG
    told = f"{judgement.message} {judgement.cause or ''}"
    assert [part for part in answer.said if part not in told] == [], told
    assert is_rejected(exercise, answer.attempt, seed=1)
