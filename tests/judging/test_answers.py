"""Right answers in another style pass; wrong ones are rejected, and their authors read why."""

from importlib import import_module

import pytest

from autograder.judging.judge import PASSED, WRONG
from autograder.text.lesson import lessons
from tests.common import attempts
from tests.common.attempts import Answer
from tests.common.trials import is_rejected, judged

for lesson in lessons().values():
    import_module(f"{lesson.package}.answers")


def every(answers: list[Answer]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("answer", answers, ids=lambda a: f"{a.exercise.name}-{a.name}")


@pytest.mark.slow
@pytest.mark.in_turn(24)
@every(attempts.RIGHT)
def test_a_right_answer_in_another_style_passes(answer: Answer) -> None:
    for seed in range(2):
        judgement = judged(answer.exercise, answer.attempt, seed)
        assert judgement.status == PASSED, (judgement.case, judgement.message)


@pytest.mark.slow
@pytest.mark.in_turn(24)
@every(attempts.WRONG)
def test_a_wrong_answer_is_rejected_and_its_author_reads_why(answer: Answer) -> None:
    judgement = judged(answer.exercise, answer.attempt)
    assert judgement.status == WRONG
    told = f"{judgement.message} {judgement.cause or ''}"
    assert [part for part in answer.said if part not in told] == [], told
    assert is_rejected(answer.exercise, answer.attempt, seed=1)
