"""How an attempt is run and judged, whatever the exercise: shown on the two of lab 1."""

import itertools
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from autograder.attempt.around import lending
from autograder.attempt.failure import WAITED, TookTooLong
from autograder.attempt.plain import NUMBER_TYPES, Strange, plain
from autograder.attempt.records import Seen
from autograder.attempt.tensors import as_in_an_engine
from autograder.exercises import exercises
from autograder.judging import interrupt
from autograder.judging import judge as judge_module
from autograder.judging.catalogue import pairs
from autograder.judging.exercise import ONCE_MORE
from autograder.judging.interrupt import interrupted
from autograder.judging.judge import (
    CHANGES_BY_ITSELF,
    NOT_ATTEMPTED,
    PASSED,
    STILL_RAISES,
    WRONG,
    changed_part,
    judge,
)
from autograder.notebook.verdict import verdict_card
from autograder.text.reference import ROOT
from solutions.generate import Metrics, generate, metrics
from tests.common.attempts import as_attempt
from tests.common.starved import answered, either_way
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
    assert "stopped after 0 seconds of work. Does every loop end?" in judgement.message
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

    with pytest.raises(TookTooLong), interrupted(lambda: TookTooLong):
        stubborn()


def test_a_block_that_ends_as_it_is_stopped_leaves_no_late_exception(monkeypatch) -> None:
    monkeypatch.setattr(interrupt, "LOOK", 3e-4)
    threads, handler = threading.active_count(), signal.getsignal(signal.SIGURG)
    for offset in range(-20, 60):
        with suppress(TookTooLong), interrupted(lambda: TookTooLong):
            over = time.monotonic() + 3e-4 + offset * 1e-5
            while time.monotonic() < over:
                pass
        assert threading.active_count() == threads
        assert signal.getsignal(signal.SIGURG) == handler


TRACED = """
import sys
from contextlib import suppress
from autograder.attempt.failure import TookTooLong
from autograder.judging.interrupt import interrupted

for error in (None, TookTooLong):
    with suppress(TookTooLong), interrupted(lambda: error):
        while error:
            pass

def followed():
    sys.settrace(None)

sys.settrace(lambda *given: None)
followed()
"""


def test_a_debugger_works_after_an_attempt_was_stopped() -> None:
    command = [sys.executable, "-c", TRACED]
    assert subprocess.run(command, cwd=ROOT, check=False, timeout=60).returncode == 0


WAITS: dict[str, Callable[[], Any]] = {
    "sleeps": lambda: time.sleep(10**6),
    "a lock": lambda: [lock.acquire() for lock in [threading.Lock()] * 2],
    "an input": lambda: os.read(os.pipe()[0], 1),
    "a thread": lambda: Event().wait(),
    "sleeps again and again": lambda: deque(map(time.sleep, itertools.repeat(0.05))),
}


@pytest.mark.parametrize("name", WAITS)
def test_what_waits_in_vain_is_stopped_and_told(name: str, soon: None) -> None:
    def waiting(start: float, token_times: list[float]) -> None:
        WAITS[name]()

    judgement = judge(METRICS, waiting)
    assert (judgement.message, judgement.stopped) == (WAITED, True)


STARVED = """
import time
from autograder.exercises import exercises
from autograder.judging import judge

exercise = exercises()["generate.generate"]
judge.judge(exercise, exercise.reference)
judge.SECONDS = 1.0
print("ready", flush=True)
input()
began = time.monotonic()
print(judge.judge(exercise, exercise.reference).message, flush=True)
assert time.monotonic() - began > judge.SECONDS
input()
"""


@pytest.mark.slow
@either_way
def test_a_right_attempt_passes_without_processor_time(starve: Any) -> None:
    """The time for it passes several times over meanwhile."""
    answer, _ = answered(STARVED, starve)
    assert answer == "Right on every case.\n"


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


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_torch_has_one_thread_in_a_judgement_alone(error: Any, three_threads: None) -> None:
    found = []

    def counting(start: float, token_times: list[float]) -> Metrics:
        found.append(torch.get_num_threads())
        torch.set_num_threads(2)
        if error:
            raise error
        return metrics(start, token_times)

    with suppress(KeyboardInterrupt):
        judge(METRICS, counting)
    assert {*found} == {1}
    assert torch.get_num_threads() == 3


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


@pytest.mark.parametrize(
    ("name", "place", "told"),
    [
        ("batching.pad_left", "`prompts[0]`", "`prompts[0]`"),
        ("paged_attention.PagedCache.attend", "`forwards[0].queries`", "`queries`"),
        ("disaggregation.Leases.due", "`events[2][2]`", "something that `due` was given"),
        ("generate.generate", "a weight of `model`", "a weight of `model`"),
    ],
)
def test_what_has_changed_has_a_name_that_the_notebook_knows(name, place, told) -> None:
    assert exercises()[name].called(place) == told


def test_who_changes_what_it_is_handed_is_told_what() -> None:
    def sorts(start, token_times):
        token_times.append(token_times[-1])
        return metrics(start, token_times[:-1])

    def trains(model, input_ids, max_new_tokens, eos_token_id=None):
        model.transformer.wte.weight[0] = 0
        return generate(model, input_ids, max_new_tokens, eos_token_id)

    assert "but `token_times` is no longer what it was" in judge(METRICS, sorts).message
    assert "a weight of `model` is no longer" in judge(GENERATE, torch.no_grad()(trains)).message


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
    "torch's own, with no frame in between": (
        f"import torch\n{HEAD}    return torch.eye(2).to_sparse().logsumexp(0)\n",
        WRONG,
        "It raised NotImplementedError: Could not run 'aten::logsumexp",
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


def noisy_in_torch(start, token_times):
    return Metrics(float(torch.rand(())), None, 1.0, 1.0)


def remembering(start, token_times, times=[]):  # noqa: B006
    times += token_times
    return metrics(start, list(times))


def not_a_number(start, token_times):
    return replace(metrics(start, token_times), ttft=math.nan)


@pytest.mark.parametrize(
    ("attempt", "cause"),
    [
        (noisy, CHANGES_BY_ITSELF),
        (noisy_in_torch, CHANGES_BY_ITSELF),
        (remembering, CHANGES_BY_ITSELF),
        (not_a_number, "`ttft` is nan every time, in 6 cases."),
    ],
)
def test_a_result_that_changes_by_itself_is_told_as_such(attempt, cause):
    judgement = judge(METRICS, attempt)
    assert judgement.status == WRONG
    assert judgement.cause == cause


HELD: list[object] = []


def complaining(start, token_times):
    HELD.append(object())  # each at an address of its own
    raise ValueError(f"{HELD[-1]} is no time")


def showing(model, input_ids, max_new_tokens, eos_token_id=None):
    HELD.append(object())
    return [str(HELD[-1])]


def test_what_differs_in_an_address_alone_does_not_change_by_itself() -> None:
    judgement = judge(METRICS, complaining)
    assert judgement.message == "It raised ValueError: <object object> is no time"
    assert judgement.cause != CHANGES_BY_ITSELF
    assert judge(GENERATE, showing).cause != CHANGES_BY_ITSELF


IN_CONTAINERS: dict[str, Callable[[Tensor], Any]] = {
    "a list": lambda ids: [ids],
    "a list of rows": list,
    "a dict": lambda ids: {"ids": ids},
    "a tuple": lambda ids: (ids, torch.full((1, 4), math.nan)),
}


@pytest.mark.parametrize("kind", IN_CONTAINERS)
def test_tensors_in_a_container_are_compared_one_by_one(kind: str) -> None:
    def attempt(model, input_ids, max_new_tokens, eos_token_id=None):
        return IN_CONTAINERS[kind](generate(model, input_ids, max_new_tokens, eos_token_id))

    judgement = judge(GENERATE, attempt)
    assert f"should be a tensor of shape [1, 2], not {kind[:6].strip()}" in judgement.message
    assert judgement.cause != CHANGES_BY_ITSELF


def test_what_breaks_the_comparison_is_wrong_with_a_sentence() -> None:
    def breaks(got: Any, expected: Any) -> None:
        raise ZeroDivisionError("by zero")

    judgement = judge(replace(METRICS, compare=breaks), metrics)
    assert judgement.status == WRONG
    assert judgement.uncompared
    told = "The result can't be compared (ZeroDivisionError: by zero)."
    assert judgement.message == told


def test_what_nothing_explains_is_described() -> None:
    def doubled(start, token_times):
        return replace(metrics(start, token_times), ttft=2 * metrics(start, token_times).ttft)

    assert judge(METRICS, doubled).cause is None
    assert "`ttft` is" in judge(METRICS, doubled).message


def test_two_known_mistakes_at_once_are_both_told() -> None:
    both, code = next(pairs("generate.metrics"))
    assert both.sentence.startswith(f"Two things together. {METRICS.misconceptions[0].sentence} ")
    judgement = judge(METRICS, code)
    assert (judgement.cause, judgement.misconception) == (both.sentence, both.name)
    assert judgement.paragraphs == [f"Likely cause: {judgement.cause}", judgement.message]


class Silent(Exception):
    def __str__(self) -> str:
        raise GeneratorExit("no words")


class Nameless(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise GeneratorExit


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError(), "It raised ValueError."),
        (ValueError("  why  "), "It raised ValueError: why"),
        (Silent, "It raised Silent."),
        (Nameless, "It raised Nameless."),
        (NameError("what?", name=[]), "It raised NameError: what?"),  # type: ignore[arg-type]
        (ValueError("a" * 5000), f"It raised ValueError: {'a' * 1000}…"),
    ],
)
def test_every_exception_is_told(error: Exception | type[Exception], message: str) -> None:
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


# ------------------------------------------------------------------- how tensors are handed over


def test_tensors_lie_in_memory_as_in_an_engine() -> None:
    data = {"keys": torch.randn(2, 3, 5, 4), "ids": [torch.arange(6).view(2, 3)], "n": (1, "a")}
    found = as_in_an_engine(data)
    assert frozen(found) == frozen(data)
    keys, (ids,) = found["keys"], found["ids"]
    assert keys.transpose(1, 2).view(2, 5, 12).shape == (2, 5, 12)  # as merging the heads does
    for tensor, shape in ((keys, (2, 3, 20)), (ids, (6,))):
        with pytest.raises(RuntimeError, match="view size is not compatible"):
            tensor.view(shape)
    assert ids.view(2, 3, 1).shape == (2, 3, 1)


NO_VIEWS: dict[str, Callable[..., Tensor]] = {
    "paged_attention.slot_mapping": lambda tables, positions, size: positions.view(-1),
    "batching.padded_mask": lambda mask, q_len: mask.view(-1),
    "batching.padded_position_ids": lambda mask: mask.view(-1),
}


@pytest.mark.parametrize("name", NO_VIEWS)
def test_a_view_that_an_engine_could_not_make_is_rejected(name: str) -> None:
    right, view = exercises()[name].reference, NO_VIEWS[name]

    def attempt(*given: Any) -> Any:
        view(*given)
        return right(*given)

    assert "view size is not compatible" in judge(exercises()[name], attempt).message


# ------------------------------------------------------------------- whatever is right but for one


def test_the_right_numbers_in_another_dtype_are_wrong_and_the_dtype_is_told() -> None:
    exercise = exercises()["decoding.apply_temperature"]
    right = exercise.reference
    for dtype in (torch.float32, torch.float64):
        judgement = judge(exercise, lambda *given, dtype=dtype: right(*given).to(dtype))
        assert judgement.status == WRONG
        assert f"has the right numbers in {dtype}" in judgement.message
        assert judgement.misconception == "other_dtype"


GIVEN = """
from solutions.generate import Metrics, metrics as right

def metrics(start, token_times):
    {given}
    return right(start, token_times)
"""


def test_given_code_that_is_gone_is_told() -> None:
    refusal = 'if len(token_times) == 0:\n        raise ValueError("no time")'
    for lines, status in (("", WRONG), ("n = 0", WRONG), (refusal, PASSED)):
        judgement = judge(METRICS, cell(GIVEN.format(given=lines))["metrics"])
        assert judgement.status == status
        assert ("`if not token_times:` is gone" in judgement.message) == (status == WRONG)


def test_what_survives_until_the_first_inputs_come_once_more_is_told() -> None:
    known: dict[int, float] = {}

    def remembering(start, token_times):
        known[len(known)] = start
        found = metrics(start, token_times)
        return (
            found
            if len(known) <= len(METRICS.cases(torch.Generator()))
            else replace(found, ttft=found.ttft + 1)
        )

    judgement = judge(METRICS, remembering)
    assert judgement.case is not None
    assert judgement.case.label.endswith(ONCE_MORE)
    assert judgement.cause == CHANGES_BY_ITSELF


def test_an_argument_that_is_not_used_is_named() -> None:
    source = "from solutions.generate import *\n\ndef metrics(start, token_times):\n"
    attempt = cell(f"{source}    return Metrics(1.5, 2.5, 3.5, 0.1 * len(token_times))\n")[
        "metrics"
    ]
    judgement = judge(METRICS, attempt)
    assert judgement.paragraphs == ["`start` is never used in your function.", judgement.message]


# ------------------------------------------------------------------------------- plain values

ITSELF: list[Any] = []
ITSELF.append(ITSELF)


def counting() -> Iterator[int]:
    yield 0


class Endless(Mapping):
    def __getitem__(self, key: Any) -> Any:
        return key

    def __iter__(self) -> Iterator[int]:
        return itertools.count()

    def __len__(self) -> int:
        return 0


class Subclass(Tensor):
    """A tensor whose own methods can't be trusted."""

    @classmethod
    def __torch_function__(cls, *given: Any, **named: Any) -> Any:
        raise GeneratorExit


class Word(str):
    __eq__ = __hash__ = Subclass.__torch_function__


class Pretender:
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return bool


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
    (torch.eye(2).to_sparse(), Strange("a tensor of shape [2, 2] in the layout torch.sparse_coo")),
    (torch.ones(2).to(torch.cfloat), Strange("a tensor of shape [2] of the type torch.complex64")),
    (Subclass([1.0, 2.0]), torch.tensor([1.0, 2.0])),
    (
        torch.zeros(1).expand(2000, 3000),
        Strange("a tensor of shape [2000, 3000], 6,000,000 numbers"),
    ),
    ([object()], [Strange("an object")]),
    ({(1, 2): 3}, {"a tuple": 3}),
    (counting(), Strange("a generator")),
    ((number for number in range(3)), Strange("a generator expression")),
    (ITSELF, Strange("a list nested more than 16 deep")),
    ([0] * 300_000, Strange("a list with more than 10,000 items")),
    ([[0] * 1000] * 300, Strange("a list with more than 10,000 items")),
    (Endless(), Strange("an Endless with more than 10,000 items")),
    ("a" * 300_000, Strange("a text of 300,000 characters")),
    ("is [<object object at 0x7f0123456789>]", "is [<object object>]"),
    (Word("yes"), "yes"),
    (Pretender(), Strange("a Pretender")),
    ({np.int64(3): 1, 2**70: 2}, {3: 1, "an int": 2}),
]


@pytest.mark.parametrize(("value", "expected"), PLAIN, ids=[str(n) for n in range(len(PLAIN))])
def test_what_a_driver_saw_becomes_plain_data(value: Any, expected: Any) -> None:
    found = plain(value)
    assert type(found) is type(expected)
    assert frozen(found) == frozen(expected)


def test_a_plain_tensor_shares_nothing_with_what_was_seen() -> None:
    seen = torch.ones(3, requires_grad=True)
    copy = plain(seen)
    seen.data.zero_()
    assert frozen(copy) == frozen(torch.ones(3))
    assert not copy.requires_grad


# ------------------------------------------------------------------- whatever may be returned


def refuses(*given: Any, **named: Any) -> Any:
    raise GeneratorExit("not with me")


ASKED = (
    *("__eq__", "__hash__", "__bool__", "__len__", "__iter__", "__repr__", "__str__", "__format__"),
    *("__getitem__", "__getattr__", "__index__", "__float__", "__lt__", "__contains__"),
)
TYPES = (*NUMBER_TYPES, torch.complex64, torch.uint16, torch.float8_e4m3fn, torch.quint8)
SHAPES = ((), (1,), (1, 2), (0, 3))


def ones(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if dtype == torch.quint8:
        return torch._empty_affine_quantized(shape, scale=0.1, zero_point=0, dtype=dtype)
    return torch.ones(shape).to(dtype)


# Made in the test alone: what goes wrong there is told by these names.
LEAVES: dict[str, Callable[[], Any]] = {
    **{f"ones {s}, {d}": partial(ones, s, d) for s in SHAPES for d in TYPES},
    **{f"np.ones {s}, {d}": partial(np.ones, s, d) for s in SHAPES for d in ("f8", "?", "c8", "O")},
    **{
        f"a hostile {base.__name__}": type("Hostile", (base,), dict.fromkeys(ASKED, refuses))
        for base in (object, list, str, int)
    },
    "what refuses its class": type("Hostile", (), {"__class__": property(refuses)}),
    "a sparse tensor": lambda: torch.eye(2).to_sparse(),
    "a meta tensor": lambda: torch.ones(1, 2, device="meta"),
    "a leaf": lambda: torch.ones(1, 2, requires_grad=True),
    "no numbers": lambda: torch.full((1, 2), math.nan),
    "a wide view": lambda: torch.zeros(1).expand(2000, 2000),
    "a tensor of a class of its own": lambda: Subclass([[1.0, 2.0]]),
    "numpy's": lambda: np.float32(1.5),
    "a set": lambda: {1, 2},
    "a class": lambda: Endless,
    "bytes": lambda: b"ab",
    "complex": lambda: 1j,
    "a generator expression": lambda: (number for number in range(3)),
    **{made.__name__: made for made in (counting, Endless, Pretender, object)},
}
KEYS = st.text(max_size=3) | st.integers()
VALUES = st.recursive(
    st.sampled_from(sorted(LEAVES)) | st.none() | st.booleans() | st.integers() | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=6,
)
KINDS = [
    *("generate.generate", "generate.metrics", "kv_cache.causal_mask", "kv_cache.KVCache.truncate"),
    *("batching.pad_left", "speculative.ngram_draft", "decoding.stop_at"),
    "prefix_caching.choose_next",
]


def made_of(recipe: Any) -> Any:
    match recipe:
        case str():
            return LEAVES[recipe]()
        case list() | tuple():
            return type(recipe)(map(made_of, recipe))
        case dict():
            return {key: made_of(value) for key, value in recipe.items()}
    return recipe


@pytest.mark.slow
@pytest.mark.in_turn(2)
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@given(st.sampled_from(KINDS), VALUES)
def test_whatever_is_returned_gets_a_judgement(name: str, recipe: Any) -> None:
    exercise, value = exercises()[name], made_of(recipe)

    def attempt(*given: Any, **named: Any) -> Any:
        return value

    judgement = judge(exercise, as_attempt(exercise, attempt))
    assert judgement.status == WRONG
    assert not judgement.uncompared
    assert judgement.message in repr(verdict_card(exercise, judgement))
