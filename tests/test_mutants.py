"""Mechanical mutants of every stretch: the cases tell them from the reference, all but a few.

Those few do the same by right. They are listed here with the reason; a row that no longer names a
mutant which passes is an error too.
"""

import pytest

from autograder import judge
from autograder.exercise import Exercise
from tests.common.mutants import attempt_of, mutants
from tests.common.trials import EXERCISES, every_exercise, is_rejected

EQUIVALENT = {
    "batching.generate_padded": {
        "config.n_positions - 1 -> config.n_positions - 2": (
            "a token at the last position fills the context: its row has ended, and what is "
            "computed along with the others doesn't count"
        ),
    },
}


@every_exercise
def test_every_mutant_is_rejected(exercise: Exercise, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "SECONDS", 5.0)
    made = {mutant.change: attempt_of(exercise, mutant) for mutant in mutants(exercise)}
    equivalent = EQUIVALENT.get(exercise.name, {})
    assert made
    for seed in range(3):
        passed = {name for name, wrong in made.items() if not is_rejected(exercise, wrong, seed)}
        assert sorted(passed - equivalent.keys()) == [], f"pass with seed {seed}; are they right?"
        assert sorted(equivalent.keys() - passed) == [], f"are rejected with seed {seed}: stale"


def test_the_table_names_exercises() -> None:
    assert set(EQUIVALENT) <= {exercise.name for exercise in EXERCISES}
