"""What the cases of the exercises hold: what they tell apart, and what they reach.

What one lab's cases promise stands in `cases/`, under its name.
"""

import ast
from functools import wraps
from inspect import signature
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from autograder.exercises import exercises
from autograder.judging.exercise import Exercise
from tests.common.attempts import as_attempt, own_function
from tests.common.trials import (
    EXERCISES,
    every_exercise,
    is_rejected,
    seeds,
    seen_of,
    trials,
)

# ------------------------------------------------------------------------- what is handed over

# Of these the driver hands over copies: what becomes of them is the attempt's own affair.
COPIED = {
    "kv_reduction.WindowCache.attend": {"queries", "keys", "values"},
    "kv_reduction.ChannelKeys.append": {"keys"},
    "flash_attention.backward_tile": {"keys", "values"},
    "parallelism.gather_unit": {"shapes"},
    "parallelism.unit_backward": {"shapes"},
}


@pytest.mark.slow
@pytest.mark.in_turn(24)
@every_exercise
def test_what_is_handed_in_must_stay_as_it_was(exercise: Exercise) -> None:
    """The right solution, which then changes one of its arguments, is wrong."""
    passed = set()
    for name in signature(own_function(exercise)).parameters:
        attempt, was_changed = changing(exercise, name)
        if not is_rejected(exercise, attempt) and was_changed:
            passed.add(name)
    assert passed == COPIED.get(exercise.name, set())


def changing(exercise: Exercise, name: str) -> tuple[Any, list[bool]]:
    """An attempt that changes an argument, and a list that isn't empty once it has."""
    function, was_changed = own_function(exercise), list[bool]()

    def attempt(*given: Any, **named: Any) -> Any:
        result = function(*given, **named)
        match signature(function).bind(*given, **named).arguments.get(name):
            case Tensor() as tensor:
                was_changed.append(True)
                tensor.copy_(tensor == 0)
            case list(items):
                was_changed.append(True)
                items.append(items[-1] if items else 0)
        return result

    return as_attempt(exercise, attempt), was_changed


# What every case hands over, so that a default isn't asked for.
ALWAYS_GIVEN = {
    "prefix_caching.block_hashes": {"salt"},
    "prefix_caching.PrefixManager.match": {"salt"},
    "prefix_caching.PrefixManager.admit": {"salt", "num_drafts"},
    "quantization.absmax": {"dim"},
}


@pytest.mark.in_turn(24)
@every_exercise
def test_a_default_is_needed(exercise: Exercise) -> None:
    """The right solution, without the default of one parameter, is wrong."""
    parameters = signature(own_function(exercise)).parameters.values()
    optional = [each.name for each in parameters if each.default is not each.empty]
    passed = {name for name in optional if not is_rejected(exercise, insisting_on(exercise, name))}
    assert passed == ALWAYS_GIVEN.get(exercise.name, set())


def insisting_on(exercise: Exercise, name: str) -> Any:
    function = own_function(exercise)

    def attempt(*given: Any, **named: Any) -> Any:
        if name not in signature(function).bind(*given, **named).arguments:
            raise TypeError(f"missing 1 required argument: {name!r}")
        return function(*given, **named)

    return as_attempt(exercise, attempt)


# The result of the first is shown as Python writes it, and numpy's numbers look different. Those of
# the others have keys of a dict in them, which lists can't be.
EXACT_TYPES = {"prefix_caching.RadixTree.evict", "tokenizer.train", "parallelism.pipeline"}


@pytest.mark.slow
@pytest.mark.in_turn(24)
@every_exercise
def test_the_right_result_may_come_in_other_types(exercise: Exercise) -> None:
    """Numpy's numbers, and a list instead of a tuple. Tensors keep their dtype."""
    function = own_function(exercise)

    @wraps(function)
    def attempt(*given: Any, **named: Any) -> Any:
        return in_other_types(function(*given, **named))

    is_exact = is_rejected(exercise, as_attempt(exercise, attempt))
    assert is_exact == (exercise.name in EXACT_TYPES)


def in_other_types(value: Any) -> Any:
    match value:
        case int() if not isinstance(value, bool):
            return np.int64(value)
        case float():
            return np.float64(value)
        case list() | tuple() if type(value) in (list, tuple):
            return [in_other_types(item) for item in value]
    return value


# Of these no two cases have inputs of one shape and the same other numbers, and none has floats.
ALL_SHAPES_DIFFER = {
    *("one_kernel.floor_ms", "replay.ladder"),
    *("generate.metrics", "speculative.expected_tokens", "speculative.speed_up"),
    *("kv_reduction.window_mask", "flash_attention.count_traffic", "estimating.max_rate"),
    "flash_attention.alibi",  # it is given a number, and returns a function
}
FUNCTIONS = [exercise for exercise in EXERCISES if not isinstance(exercise.reference, type)]


@pytest.mark.in_turn(24)
@pytest.mark.parametrize("exercise", FUNCTIONS, ids=lambda e: e.name)
def test_what_is_remembered_by_its_shape_is_wrong(exercise: Exercise) -> None:
    """A cache that survives from one call to the next, and looks at shapes and settings alone."""
    known: dict[str, Any] = {}

    def attempt(*given: Any, **named: Any) -> Any:
        key = str([shape_of(value) for value in (*given, *named.values())])
        if key not in known:
            known[key] = exercise.reference(*given, **named)
        return known[key]

    assert is_rejected(exercise, attempt) == (exercise.name not in ALL_SHAPES_DIFFER)


def shape_of(value: Any) -> Any:
    match value:
        case Tensor():
            return tuple(value.shape)
        case list() | tuple():
            return [shape_of(item) if isinstance(item, list) else "item" for item in value]
        case int() | float():
            return value
    return type(value)


# --------------------------------------------------------------------------- what cases reach

# Of what the reference is seen to do, by the exercise and the beginning of what is looked at: each
# of these comes in some case.
RARE = {
    ("engine.Scheduler.schedule", "`preemptions`"): ["2"],
    ("engine.Scheduler.schedule", "The plan"): ["is {}"],
    ("engine.Engine.step", "What goes out, by request,"): [
        *("[], 'abort'", "[], 'length'", "'stop'", ", None"),
    ],
    ("engine.Engine.step", "What is added to the trace"): [", False]", ", True]"],
    ("prefix_caching.PrefixManager.match", "`match("): ["is []", "is [0]", "is [0, 1]"],
    ("prefix_caching.PrefixManager.take_block", "`take_block("): ["was refused with OutOfBlocks"],
    ("prefix_caching.PrefixManager.admit", "`admit("): ["was refused with OutOfBlocks"],
    ("prefix_caching.PrefixManager.admit", "`ref_counts`"): ["[4, "],
    ("prefix_caching.PrefixManager.publish", "`cached`"): ["with the salt a"],
    ("prefix_caching.RadixTree.walk", "The length"): ["0", "1", "2"],
    ("prefix_caching.RadixTree.walk", "The number of known tokens"): ["0", "1", "2"],
    ("prefix_caching.RadixTree.evict", "The list of blocks"): ["is []"],
    ("prefix_caching.choose_next", "`choose_next("): ["was refused with a ValueError"],
    ("disaggregation.StallFree.schedule", "`preemptions`"): ["2"],
    ("disaggregation.StallFree.schedule", "The plan"): ["is {}"],
    ("disaggregation.adopt", "What goes out, by request,"): ["'stop'", "'length'", ", None"],
    ("disaggregation.adopt", "`running`, by number,"): ["is [0, 1]"],
    ("disaggregation.adopt", "`waiting`, by number,"): ["is [1]"],
    ("kv_reduction.HostPool.swap_in", "`swap_in` of request 0"): ["was refused with OutOfBlocks"],
    ("kv_reduction.WindowCache.attend", "`truncate(5)`"): ["was refused with a ValueError"],
    ("kv_reduction.WindowCache.attend", "`truncate(2)`"): ["went through"],
    ("kv_reduction.ChannelKeys.append", "The number of `groups`"): ["3"],
    ("kv_reduction.ChannelKeys.append", "`waiting`"): ["tensor([], size="],
    ("serving.sse", "Call 1 of `usage`"): ["after 0 choices", "after 3 choices"],
    ("serving.sse", "The cancellation"): ["reaches the choices at 0.25 s"],
    ("serving.RequestPool.stream", "The end"): ["CancelledError", "OtherError", "client leaves"],
    ("serving.Router.pick", "The request"): ["was refused with a ServiceError"],
    ("serving.with_failover", "The end"): ["TimeoutError", "ReplicaFault: third", "OtherError"],
}


@pytest.mark.parametrize(("name", "what"), RARE)
def test_the_cases_reach_what_is_rare(name: str, what: str) -> None:
    seen = [str(value) for value in seen_of(exercises()[name], what)]
    missing = [part for part in RARE[name, what] if not any(part in value for value in seen)]
    assert missing == []


@pytest.mark.parametrize("name", ["engine.Scheduler.schedule", "disaggregation.StallFree.schedule"])
def test_no_plan_is_larger_than_the_budget(name: str) -> None:
    (trial,) = trials(exercises()[name])
    for case, outcome in zip(trial.cases, trial.expected, strict=True):
        told = [seen.value for seen in outcome.seen if seen.what == "The plan"]
        plans = [ast.literal_eval(plan.removeprefix("is ")) for plan in told]
        assert len(plans) == case.data["steps"]
        assert max(sum(plan.values()) for plan in plans) <= case.data["token_budget"]


@pytest.mark.slow
@pytest.mark.in_turn(24)
@seeds
@every_exercise
def test_rounding_decides_nothing(exercise: Exercise, seed: int) -> None:
    """What is looked at is 0 throughout, or large beside the errors of float64."""
    trial = trials(exercise, seed)[0]
    for value in [seen.value for outcome in trial.expected for seen in outcome.seen]:
        if isinstance(value, Tensor) and value.is_floating_point():
            finite = value[value.isfinite()].abs()
            assert not finite.any() or finite.max() > 1e-6
