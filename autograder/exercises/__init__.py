"""The exercises, one module a lab: cards, hints, cases, references, comparison."""

from autograder.exercise import Exercise
from autograder.exercises import batching, generate, kv_cache, paged_attention

LABS = (generate, kv_cache, batching, paged_attention)


def exercises() -> dict[str, Exercise]:
    """Every exercise by its name, in the order of the course."""
    return {e.name: e for lab in LABS for e in lab.EXERCISES}
