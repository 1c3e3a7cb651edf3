"""How an attempt is run and judged, whatever the exercise: shown on the two of lab 1."""

import math
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from autograder import judge as judge_module
from autograder.drivers.seen import Seen, Strange, lending, plain
from autograder.exercises import exercises
from autograder.failure import TookTooLong
from autograder.judge import (
    CHANGES_BY_ITSELF,
    NOT_ATTEMPTED,
    PASSED,
    STILL_RAISES,
    WRONG,
    changed_part,
    deadline,
    judge,
)
from solutions.generate import Metrics, generate, metrics
from tests.common.trials import cell, frozen

GENERATE, METRICS = exercises()["generate.generate"], exercises()["generate.metrics"]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_module, "SECONDS", 0.3)


# ------------------------------------------------------------------------------- it always ends


def test_a_loop_without_an_end_is_stopped_and_leaves_nothing_behind(soon: None) -> None:
    def endless(start: float, token_times: list[float]) -> Metrics:
        while True:
            with suppress(Exception):
                pass

    threads = threading.active_count()
    judgement = judge(METRICS, endless)
    assert judgement.status == WRONG
    assert "stopped after 0 seconds. Does every loop come to its end?" in judgement.message
    assert threading.active_count() == threads


def test_what_refuses_to_be_stopped_is_stopped_again() -> None:
    def stubborn() -> None:
        for _ in range(2):
            with suppress(TookTooLong):
                endless()
        endless()

    def endless() -> None:
        while True:
            pass

    with pytest.raises(TookTooLong), deadline(time.monotonic()):
        stubborn()


def test_a_block_that_ends_with_the_deadline_leaves_no_late_exception() -> None:
    threads = threading.active_count()
    for offset in range(-20, 60):
        over = time.monotonic() + 3e-4
        with suppress(TookTooLong), deadline(over):
            while time.monotonic() < over + offset * 1e-5:
                pass
        assert threading.active_count() == threads


def test_a_loop_without_an_end_that_asks_the_model_is_stopped_by_its_work() -> None:
    calls = 0

    def endless(model, input_ids, max_new_tokens, eos_token_id=None):
        nonlocal calls
        while True:
            calls += 1
            with suppress(Exception):
                model(input_ids, torch.arange(input_ids.shape[1]).expand_as(input_ids))

    judgement = judge(GENERATE, endless)
    assert judgement.status == WRONG
    assert "forward calls, several times what is needed. Does the loop" in judgement.message
    assert calls < 5000


# --------------------------------------------------------------------- it leaves all as it was


def test_what_an_attempt_changes_in_torch_is_put_back() -> None:
    def state() -> tuple[Any, ...]:
        grad, rng = torch.is_grad_enabled(), torch.get_rng_state().tolist()
        return torch.get_default_dtype(), torch.get_default_device(), grad, rng

    def meddling(start: float, token_times: list[float]) -> Metrics:
        torch.set_default_dtype(torch.float16)
        torch.set_default_device("meta")
        torch.set_grad_enabled(False)
        torch.manual_seed(3)
        return metrics(start, token_times)

    before = state()
    assert judge(METRICS, meddling).status == PASSED
    assert state() == before


def test_a_notebook_has_its_own_functions_back_even_after_an_error() -> None:
    notebook = cell("def helper():\n    return 1\n\ndef fails():\n    assert helper() == 1")
    fails, helper = notebook["fails"], notebook["helper"]
    with pytest.raises(AssertionError), lending(fails, {"helper": lambda: 2, "other": len}):
        fails()
    assert notebook["helper"] is helper
    assert "other" not in notebook


def test_ctrl_c_is_obeyed_and_leaving_the_process_is_wrong() -> None:
    def interrupted(start: float, token_times: list[float]) -> Metrics:
        raise KeyboardInterrupt

    def leaves(start: float, token_times: list[float]) -> Metrics:
        sys.exit(0)

    assert judge(METRICS, leaves).status == WRONG
    with pytest.raises(KeyboardInterrupt):
        judge(METRICS, interrupted)


CHANGES = [
    ({"x": torch.ones(2)}, {"x": torch.ones(2)}, None),
    ({"x": torch.ones(2)}, {"x": torch.zeros(2)}, "`x`"),
    ({"x": torch.ones(2)}, {"x": torch.ones(2, 1)}, "`x`"),
    ({"x": torch.ones(2)}, {"x": torch.ones(2, dtype=torch.int64)}, "`x`"),
    ({"x": [[1], [2, 3]]}, {"x": [[1], [2, 3, 4]]}, "`x[1]`"),
    ({"x": [[1], [2, 3]]}, {"x": [[1], None]}, "`x[1]`"),
    ({"x": [1, 2]}, {"x": [1, torch.zeros(2)]}, "`x[1]`"),
    ({"x": [1, 2]}, {"x": (1, 2)}, "`x`"),
    ({"x": 1}, {"x": True}, "`x`"),
    ({"x": [{"y": (1, "a")}]}, {"x": [{"y": (1, "b")}]}, "`x[0].y[1]`"),
    ({"x": [{"y": 1}]}, {"x": [{"z": 1}]}, "`x[0].y`"),
    ({"x": [{"y": 1}]}, {"x": ["y"]}, "`x[0]`"),
]


@pytest.mark.parametrize(("before", "now", "where"), CHANGES)
def test_the_first_place_that_has_changed_is_named(before: Any, now: Any, where: str) -> None:
    assert changed_part(now, before) == where


def test_who_changes_what_it_is_handed_is_told_what() -> None:
    def sorts(start, token_times):
        token_times.append(token_times[-1])
        return metrics(start, token_times[:-1])

    def trains(model, input_ids, max_new_tokens, eos_token_id=None):
        model.transformer.wte.weight[0] = 0
        return generate(model, input_ids, max_new_tokens, eos_token_id)

    assert "but `token_times` is no longer what it was" in judge(METRICS, sorts).message
    assert "the weights of `model`" in judge(GENERATE, torch.no_grad()(trains)).message


# ----------------------------------------------------------------------- attempted, or not yet

HEAD = "from solutions.generate import Metrics\n\ndef metrics(start, token_times):\n"
OWN = "    n = len(token_times)\n"
RAISE = '    raise NotImplementedError("This TODO is not written yet.")\n'

ATTEMPTED = {
    "nothing yet": (HEAD + RAISE, NOT_ATTEMPTED, "There is no code here yet."),
    "a docstring and a note": (HEAD + '    """Figures."""\n    # Hm.\n' + RAISE, NOT_ATTEMPTED, ""),
    "the line was left below": (HEAD + OWN + RAISE, WRONG, STILL_RAISES),
    "the return was forgotten": (HEAD + "    Metrics(0, 0, 0, 0)\n" + RAISE, WRONG, STILL_RAISES),
    "in one branch": (
        HEAD + "    if len(token_times) > 1:\n    " + RAISE + "    return Metrics(0, 0, 0, 0)\n",
        WRONG,
        STILL_RAISES,
    ),
    "in a function of its own": (
        f"def gaps(times):\n{RAISE}\n{HEAD}    return gaps(token_times)\n",
        WRONG,
        "It raised NotImplementedError: This TODO is not written yet.",
    ),
    "torch's own": (
        f"import torch\n{HEAD}    return torch.nn.Module()(start)\n",
        WRONG,
        'missing the required "forward" function',
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTEMPTED)
def test_not_attempted_is_what_has_no_code_of_its_own(name: str) -> None:
    source, status, message = ATTEMPTED[name]
    judgement = judge(METRICS, cell(source)["metrics"])
    assert judgement.status == status
    assert message in judgement.message


# -------------------------------------------------------------------------- whatever it does

NOISE = random.Random(0)


def noisy(start, token_times):
    return Metrics(NOISE.random(), None, 1.0, 1.0)


def remembering(start, token_times, times=[]):  # noqa: B006
    times += token_times
    return metrics(start, list(times))


def not_a_number(start, token_times):
    return replace(metrics(start, token_times), ttft=math.nan)


@pytest.mark.parametrize(
    ("attempt", "cause"),
    [(noisy, CHANGES_BY_ITSELF), (remembering, CHANGES_BY_ITSELF), (not_a_number, None)],
)
def test_a_result_that_changes_by_itself_is_told_as_such(
    attempt: Callable[..., Any], cause: str | None
) -> None:
    judgement = judge(METRICS, attempt)
    assert judgement.status == WRONG
    assert judgement.cause == cause


def test_what_nothing_explains_is_described_and_two_mistakes_are_a_perhaps() -> None:
    def doubled(start, token_times):
        return replace(metrics(start, token_times), ttft=2 * metrics(start, token_times).ttft)

    (upside_down,) = next(
        m for m in METRICS.misconceptions if m.name == "throughput_upside_down"
    ).attempts()

    def both(start, token_times):
        wrong = upside_down(start, token_times)
        return wrong if len(token_times) < 40 else replace(wrong, tpot=0.0)

    assert judge(METRICS, doubled).cause is None
    assert "`ttft` is" in judge(METRICS, doubled).message
    assert judge(METRICS, upside_down).sure
    assert judge(METRICS, both).cause == judge(METRICS, upside_down).cause
    assert not judge(METRICS, both).sure


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError(), "It raised ValueError."),
        (ValueError("  why  "), "It raised ValueError: why"),
        (Silent(), "It raised Silent."),
    ],
)
def test_every_exception_is_told(error: Exception, message: str) -> None:
    def fails(start, token_times):
        raise error

    assert judge(METRICS, fails).message == message


def test_with_books_of_its_own_it_is_right_if_it_is_as_built() -> None:
    def by_hand(attempt: Callable[..., Any], **data: Any) -> list[Seen]:
        return [*METRICS.driver(attempt, **data), Seen("Its name", attempt.__name__)]

    def mine(start, token_times):
        return metrics(start, token_times)

    once = replace(METRICS, driver=by_hand)
    twice = replace(once, as_built=METRICS.driver)
    assert judge(once, metrics).status == PASSED
    assert "Its name mine" in judge(once, mine).message
    assert judge(twice, mine).status == PASSED
    assert judge(twice, not_a_number).status == WRONG


# ------------------------------------------------------------------------------- plain values

ITSELF: list[Any] = []
ITSELF.append(ITSELF)

PLAIN = [
    (3, 3),
    (True, True),
    (None, None),
    ([1, (2.5, "a")], [1, (2.5, "a")]),
    ({"a": [1], 2: None}, {"a": [1], 2: None}),
    (np.int64(3), 3),
    (np.float32(0.5), 0.5),
    (np.bool_(True), True),
    (np.zeros(2), Strange("a ndarray")),
    (deque([1]), Strange("a deque")),
    (10**300, 10**300),
    (10**5000, Strange("a number of over 300 digits")),
    (torch.zeros(2, 3, device="meta"), Strange("a tensor of shape [2, 3] that holds no numbers")),
    (torch.eye(2).to_sparse(), Strange("a tensor of shape [2, 2] that holds no numbers")),
    (
        torch.zeros(1).expand(2000, 3000),
        Strange("a tensor of shape [2000, 3000], 6,000,000 numbers"),
    ),
    ([object()], [Strange("an object")]),
    ({(1, 2): 3}, {"a tuple": 3}),
    ((number for number in range(3)), Strange("a generator")),
    (ITSELF, Strange("a list")),
]


@pytest.mark.parametrize(("value", "expected"), PLAIN, ids=[str(n) for n in range(len(PLAIN))])
def test_what_a_driver_saw_becomes_plain_data(value: Any, expected: Any) -> None:
    assert plain(value) == expected
    assert type(plain(value)) is type(expected)


def test_a_plain_tensor_shares_nothing_with_what_was_seen() -> None:
    seen = torch.ones(3, requires_grad=True)
    copy = plain(seen)
    seen.data.zero_()
    assert frozen(copy) == frozen(torch.ones(3))
    assert not copy.requires_grad
