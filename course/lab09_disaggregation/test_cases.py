"""Lab 9: an adopted request."""

import ast

from autograder.exercises import exercises
from tests.common.trials import trials


def test_what_is_adopted_is_never_prefilled_here() -> None:
    """Of a request that isn't preempted, decode computes all new tokens but the last."""
    (trial,) = trials(exercises()["disaggregation.adopt"])
    case, outcome = trial.cases[1], trial.expected[1]
    assert case.label == "three new tokens"
    told = [s.value for s in outcome.seen if s.what == "What the runner is asked for, by request,"]
    steps = [ast.literal_eval(what.removeprefix("is ")) for what in told]
    chunks = [chunk for step in steps for chunk in step.values()]
    assert [(chunk["start"], len(chunk["ids"])) for chunk in chunks] == [(5, 1), (6, 1)]
