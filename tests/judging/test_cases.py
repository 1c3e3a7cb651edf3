"""What the cases of the exercises hold: what they tell apart, and what they reach.

First what holds in every lab, then what one lab's cases promise, under its name.
"""

import ast
from functools import wraps
from inspect import signature
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from autograder.attempt.records import Seen
from autograder.exercises import exercises
from autograder.judging.compare import same_seen
from autograder.judging.draws import LOOP, small_model
from autograder.judging.exercise import Exercise
from autograder.judging.judge import judge
from autograder.judging.random_models import random_model, random_weights
from autograder.lending.services import CountedModel
from autograder.text.reference import lab_module
from gpt import GPTConfig, GPTLMHead
from solutions.generate import generate
from tests.common.attempts import as_attempt, own_function
from tests.common.trials import (
    EXERCISES,
    cases_of,
    cell,
    every_exercise,
    is_rejected,
    seen_of,
    trials,
)

# ------------------------------------------------------------------------- what is handed over

# Of these the driver hands over copies: what becomes of them is the attempt's own affair.
COPIED = {
    "kv_reduction.WindowCache.attend": {"queries", "keys", "values"},
    "kv_reduction.ChannelKeys.append": {"keys"},
    "flash_attention.backward_tile": {"keys", "values"},
}


@pytest.mark.slow
@pytest.mark.in_turn(4)
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


@pytest.mark.in_turn(4)
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


# The result of the first is shown as Python writes it, and numpy's numbers look different. That of
# the second are keys of a dict, which lists can't be.
EXACT_TYPES = {"prefix_caching.RadixTree.evict", "tokenizer.train"}


@pytest.mark.slow
@pytest.mark.in_turn(4)
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
    *("generate.metrics", "speculative.expected_tokens", "speculative.speed_up"),
    *("kv_reduction.window_mask", "flash_attention.count_traffic", "estimating.max_rate"),
}
FUNCTIONS = [exercise for exercise in EXERCISES if not isinstance(exercise.reference, type)]


@pytest.mark.in_turn(4)
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
    ("serving.sse", "Call 1 of `usage`"): ["after 0 choices", "after 3 choices"],
    ("serving.sse", "The cancellation"): ["reaches the choices at 0.25 s"],
    ("serving.RequestPool.stream", "The end"): ["CancelledError", "OtherError", "client leaves"],
    ("serving.Router.pick", "The request"): ["is refused with a ServiceError"],
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


# ----------------------------------------------------------------------- lab 1: models worth asking


def test_a_counted_model_counts_and_returns_what_the_model_does() -> None:
    model = small_model(GPTLMHead)
    ids = torch.arange(6).view(2, 3)
    position_ids = torch.arange(3).expand_as(ids)
    counted = CountedModel(model)
    assert torch.equal(counted(ids, position_ids), model(ids, position_ids))
    counted(ids[:, :1], position_ids=position_ids[:, :1])
    assert counted.counts() == {"forward calls": 2, "tokens computed": 8}


@pytest.mark.parametrize(
    "config", [LOOP, GPTConfig(32, 12, 16, 1, 2), GPTConfig(40, 20, 24, 3, 3)], ids=str
)
def test_greedy_output_of_a_random_model_depends_on_all_that_it_should(config: GPTConfig) -> None:
    """On the positions and on the first token: else errors in either would stay hidden."""
    distinct = position_counts = first_counts = 0
    for seed in range(8):
        model = random_model(GPTLMHead, config, seed)
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(config.vocab_size, (4, 4), generator=generator)
        out, other = generate(model, ids, 6), ids.clone()
        other[:, 0] = (other[:, 0] + 1) % config.vocab_size
        position_ids = torch.arange(9).expand(4, 9)
        best, shifted = (model(out[:, :-1], shift + position_ids).argmax(-1) for shift in (0, 1))
        distinct += sum(len({*row}) for row in out[:, 4:].tolist())
        position_counts += int((best != shifted).any(dim=1).sum())
        first_counts += int((generate(model, other, 6)[:, 4:] != out[:, 4:]).any(dim=1).sum())
    assert distinct > 3 * 8 * 4
    assert position_counts == 8 * 4
    assert first_counts > 0.8 * 8 * 4


def test_random_weights_follow_from_the_seed_and_are_float64() -> None:
    weights, again, other = (random_weights(LOOP, seed) for seed in (0, 0, 1))
    assert all(weight.dtype == torch.float64 for weight in weights.values())
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    assert not torch.equal(weights["transformer.wte.weight"], other["transformer.wte.weight"])


# ---------------------------------------------------------------------------- lab 3: the line shown


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


# ------------------------------------------------------------------ lab 5: rounding decides nothing


OF_LOGITS = [
    e for e in FUNCTIONS if e.lab == "decoding" and "logits" in signature(e.driver).parameters
]


@pytest.mark.parametrize("exercise", OF_LOGITS, ids=lambda e: e.name)
def test_a_case_is_the_same_in_float32_and_in_float64(exercise: Exercise) -> None:
    for case in chain.from_iterable(cases_of(exercise, seed) for seed in range(5)):
        single, double = (
            exercise.driver(exercise.reference, **{**case.data, "logits": logits})
            for logits in (case.data["logits"].float(), case.data["logits"].double())
        )
        assert same_seen(in_float64(single), in_float64(double)) is None, case.label


def in_float64(seen: list[Seen]) -> list[Seen]:
    """So that numbers alone are compared."""
    return [
        s._replace(value=s.value.double() if isinstance(s.value, Tensor) else s.value) for s in seen
    ]
