"""What the cases of the exercises hold: what they tell apart, and what they reach.

First what holds in every lab, then what one lab's cases promise, under its name.
"""

import ast
from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest
from torch import Tensor

from autograder.exercise import Exercise
from autograder.exercises import exercises
from tests.common.attempts import with_method
from tests.common.trials import EXERCISES, every_exercise, is_rejected, seen_of, trials

# ------------------------------------------------------------------------- what is handed over

# Of these the driver hands over copies: what becomes of them is the attempt's own affair.
COPIED = {
    "kv_reduction.WindowCache.attend": {"queries", "keys", "values"},
    "kv_reduction.ChannelKeys.append": {"keys"},
    "flash_attention.backward_tile": {"keys", "values"},
}


@every_exercise
def test_what_is_handed_in_must_stay_as_it_was(exercise: Exercise) -> None:
    """The right solution, which then changes one of its arguments, is wrong."""
    passed = set()
    for name in signature(own_function(exercise)).parameters:
        attempt, was_changed = changing(exercise, name)
        if not is_rejected(exercise, attempt) and was_changed:
            passed.add(name)
    assert passed == COPIED.get(exercise.name, set())


def own_function(exercise: Exercise) -> Callable[..., Any]:
    """What a student writes: the function, or the method of its class."""
    method = exercise.path.split(".")[1:]
    return getattr(exercise.reference, *method) if method else exercise.reference


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

    is_method = isinstance(exercise.reference, type)
    made = with_method(exercise.reference, exercise.name, attempt) if is_method else attempt
    return made, was_changed


# Of these no two cases have inputs of one shape and the same numbers beside them.
ALL_SHAPES_DIFFER = {
    *("generate.metrics", "speculative.expected_tokens", "speculative.speed_up"),
    *("disaggregation.prefill_in_chunks", "disaggregation.pack_kv", "disaggregation.unpack_kv"),
    *("kv_reduction.grouped_attention", "kv_reduction.pool_heads", "kv_reduction.window_mask"),
    *("flash_attention.count_traffic", "flash_attention.split_decode"),
}
FUNCTIONS = [exercise for exercise in EXERCISES if not isinstance(exercise.reference, type)]


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
    ("prefix_caching.PrefixManager.take_block", "`take_block("): ["is refused with OutOfBlocks"],
    ("prefix_caching.PrefixManager.admit", "`admit("): ["is refused with OutOfBlocks"],
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
