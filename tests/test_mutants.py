"""Mechanical mutants of every stretch: the cases tell them from the reference, all but a few.

Those few do the same by right. They are listed here with the reason; a row that no longer names a
mutant which passes is an error too.
"""

import pytest

from autograder import judge
from autograder.exercise import Exercise
from tests.common.mutants import attempt_of, mutants
from tests.common.trials import EXERCISES, every_exercise, is_rejected

ON_THE_CPU = "every tensor is on the CPU here"

ONE_CACHE_A_LAYER = "`strict` is a net only: there is always one cache for each layer"

EQUIVALENT = {
    "generate.generate": {
        "torch.arange(ids.shape[1], device=ids.device) -> torch.arange(ids.shape[1])": ON_THE_CPU,
    },
    "kv_cache.ThreadedAttention.forward": {
        "torch.arange(keys.shape[2], device=hidden.device) -> torch.arange(keys.shape[2])": (
            ON_THE_CPU
        ),
    },
    "kv_cache.ThreadedModel.forward": {
        "zip(self.h, kv_cache, strict=True) -> zip(self.h, kv_cache)": ONE_CACHE_A_LAYER,
        "zip(self.h, kv_cache, strict=True) -> zip(self.h, kv_cache, strict=False)": (
            ONE_CACHE_A_LAYER
        ),
    },
    "kv_cache.generate_threaded": {
        (
            "torch.arange(computed, ids.shape[1], device=ids.device) -> "
            "torch.arange(computed, ids.shape[1])"
        ): ON_THE_CPU,
    },
}


@every_exercise
def test_every_mutant_is_rejected(exercise: Exercise, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "SECONDS", 2.0)
    made = list(mutants(exercise))
    passed = {m.change for m in made if not is_rejected(exercise, attempt_of(exercise, m))}
    equivalent = set(EQUIVALENT.get(exercise.name, {}))
    assert made
    assert sorted(passed - equivalent) == [], "these pass: wrong, or equivalent?"
    assert sorted(equivalent - passed) == [], "these rows are stale"


def test_the_table_names_exercises() -> None:
    assert set(EQUIVALENT) <= {exercise.name for exercise in EXERCISES}
