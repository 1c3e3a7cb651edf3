"""The paths take as long as they say, and name what they leave out."""

import pytest

from autograder.text.lesson import lessons
from start.paths import PATHS

SHORT, DAY, EVENINGS, TERM, WHOLE = PATHS


def test_the_times_are_those_of_the_titles():
    assert SHORT.minutes <= 90
    assert DAY.minutes <= 8 * 60
    assert len(EVENINGS.sittings) == 5
    assert len(TERM.sittings) == 15
    assert len(WHOLE.sittings) <= 26
    assert all(lesson.minutes <= 5 * 60 for lesson in WHOLE.labs)


def test_a_path_of_whole_labs_takes_their_minutes():
    assert TERM.minutes == sum(lesson.minutes for lesson in TERM.labs)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.title)
def test_every_chosen_exercise_exists(path):
    for lab, chosen in path.only.items():
        assert len(path.exercises(lessons()[lab])) == len(chosen)


def test_every_lab_is_in_a_path_or_named_as_left_out():
    assert SHORT.left_out.startswith("labs 3–")
    assert EVENINGS.left_out.startswith("labs 5, 6, 8–")
    assert DAY.left_out.endswith("10 exercises of labs 3, 4, the written questions")
    assert TERM.left_out.startswith("labs 14–16")
    assert WHOLE.left_out.startswith("what is beyond in labs ")
