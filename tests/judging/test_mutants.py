"""Mechanical mutants of every stretch: the cases tell them from the reference, all but a few.

Those few do the same by right. EQUIVALENT in a lab's answers.py lists them with the reason; a
row that no longer names a mutant which passes is an error too.
"""

from importlib import import_module

import pytest

from autograder.judging import judge
from autograder.judging.exercise import Exercise
from autograder.text.lesson import lessons
from tests.common.mutants import attempt_of, mutants
from tests.common.trials import EXERCISES, every_exercise, ran_out_of_time, trials

EQUIVALENT: dict[str, dict[str, str]] = {}
for lesson in lessons().values():
    EQUIVALENT |= getattr(import_module(f"{lesson.package}.answers"), "EQUIVALENT", {})


@pytest.mark.slow
@pytest.mark.in_turn(24)
@pytest.mark.parametrize("seeds", [1, pytest.param(5, marks=pytest.mark.soak)])
@every_exercise
def test_every_mutant_is_rejected(exercise: Exercise, seeds: int, monkeypatch) -> None:
    monkeypatch.setattr(judge, "SECONDS", 2.0)
    made = {mutant.change: attempt_of(exercise, mutant) for mutant in mutants(exercise)}
    equivalent = EQUIVALENT.get(exercise.name, {})
    assert made
    for seed in range(seeds):
        first, *others = trials(exercise, seed)
        told = {name: first.told_by(wrong) for name, wrong in made.items()}
        passed = {
            name
            for name, outcome in told.items()
            if outcome is None or not all(other.rejects(made[name]) for other in others)
        }
        unlisted = "\n".join(sorted(passed - equivalent.keys()))
        assert not unlisted, f"Add a case, or list as EQUIVALENT (seed {seed}):\n{unlisted}"
        assert sorted(equivalent.keys() - passed) == [], f"are rejected with seed {seed}: stale"
        made = {name: wrong for name, wrong in made.items() if not ran_out_of_time(told[name])}


def test_the_table_names_exercises() -> None:
    assert set(EQUIVALENT) <= {exercise.name for exercise in EXERCISES}
