"""Lab 3: the line that is shown to a student."""

import pytest

from autograder.exercises import exercises
from autograder.judging.judge import judge
from autograder.text.reference import lab_module
from tests.common.trials import cell


@pytest.mark.parametrize(
    ("misconception", "line"),
    [
        ("request_handed_to_retire", "self.retire(request)"),
        ("forward_of_nobody", "self.forward(veterans)"),
        ("a_slot_instead_of_a_list", "self.forward(slot)"),
    ],
)
def test_the_line_shown_stands_in_the_step_and_not_in_a_given_method(misconception, line):
    exercise = exercises()["batching.ContinuousBatcher.step"]
    (known,) = (m for m in exercise.misconceptions if m.name == misconception)
    names = cell(known.sources()[0], cell("\n".join(lab_module("batching").lines)))
    shown = judge(exercise, names["ContinuousBatcher"]).line
    assert shown is not None
    assert shown.endswith(line)
