"""Grading on a busy machine: what is right keeps its points, and what waits in vain is ended."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from autograder.attempt.failure import WAITED, Starved, TookTooLong, Waited
from autograder.grading.judge import oracle, turns
from autograder.grading.judge.jail import Jail, JailError
from autograder.grading.judge.near import Near
from autograder.grading.judge.oracle import grade_one
from autograder.grading.judge.results import Result
from autograder.grading.judge.secret import key_of
from autograder.grading.judge.submission import Submission
from autograder.grading.judge.turns import turn
from autograder.judging.interrupt import LOOK
from autograder.judging.patience import Patience
from tests.common.graded import lost
from tests.common.starved import answered, either_way
from tests.hostile.notebooks import LOOP, as_bytes, both, solved

IDLE = 0.6  # seconds


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle, "IDLE", IDLE)


@pytest.fixture
def turns_taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How the tries of an attempt run: together with others, or alone."""
    taken: list[str] = []

    @contextmanager
    def noted(alone: bool) -> Iterator[None]:
        taken.append("alone" if alone else "together")
        with turn(alone):
            yield

    monkeypatch.setattr(oracle, "turn", noted)
    return taken


def grade(content: bytes, jail: Jail) -> Result:
    submission = Submission("ada", "generate", content)
    return grade_one(submission, key_of(bytes(32), submission), jail)


RIGHT = as_bytes(solved("generate"))


# ------------------------------------------------------------------------------- what is right

GRADER = f"""
import torch
from autograder.grading.judge import oracle
from autograder.grading.judge.jail import Jail
from tests.common.graded import lost
from tests.grading.test_busy import RIGHT, grade

torch.set_num_threads(1)
oracle.IDLE = {IDLE}
with Jail(seconds=1.5) as jail:
    grade(RIGHT, jail)
    print("ready", flush=True)
    input()
    print(lost(grade(RIGHT, jail)), flush=True)
    input()
"""


@pytest.mark.needs("bwrap")
@pytest.mark.slow
@either_way
def test_a_right_solution_keeps_its_points_without_processor_time(
    starve: Callable[[int], AbstractContextManager[None]],
) -> None:
    """The time for it passes many times over meanwhile."""
    answer, seconds = answered(GRADER, starve)
    assert answer == "{}\n"
    assert seconds > 2 * IDLE


def slow(monkeypatch: pytest.MonkeyPatch, seconds: float, is_slow: Callable[[], bool]) -> None:
    """Answer the questions of an attempt late, as long as `is_slow()` says so."""
    answer = Near.answer

    def answer_late(near: Near, question: Any) -> None:
        if is_slow():
            time.sleep(seconds)
        answer(near, question)

    monkeypatch.setattr(Near, "answer", answer_late)


@pytest.mark.needs("bwrap")
def test_a_right_solution_keeps_its_points_with_a_slow_oracle(
    jail: Jail, soon: None, turns_taken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = iter([True] * 8)
    slow(monkeypatch, IDLE / 2, lambda: next(left, False))
    assert lost(grade(RIGHT, jail)) == {}
    assert (next(left, None), turns_taken) == (None, ["together"] * 2)


# ------------------------------------------------------------------------------- the second try


@pytest.mark.needs("bwrap")
@pytest.mark.parametrize("error", [Waited, Starved])
def test_what_a_clock_has_stopped_is_tried_once_more_alone(
    error: type[TookTooLong],
    jail: Jail,
    turns_taken: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def is_first() -> bool:
        return turns_taken == ["together"]

    slow(monkeypatch, 2 * LOOK, is_first)  # so that there is time for a look
    monkeypatch.setattr(Patience, "look", lambda patience: error if is_first() else None)
    result = grade(RIGHT, jail)
    assert (lost(result), result.remarks) == ({}, ())
    assert turns_taken == ["together", "alone", "together"]


@pytest.mark.needs("bwrap")
def test_what_starves_twice_is_not_graded(jail: Jail, monkeypatch: pytest.MonkeyPatch) -> None:
    slow(monkeypatch, 2 * LOOK, lambda: True)
    monkeypatch.setattr(Patience, "look", lambda patience: Starved)
    with pytest.raises(JailError, match=f"too busy: {LOOP} got hardly any processor time"):
        grade(RIGHT, jail)


WAITS = {
    "sleeps": "time.sleep(10 ** 6)",
    "waits for a lock": "lock = threading.Lock()\nlock.acquire()\nlock.acquire()",
    "asks while it sleeps": """
        for _ in range(100):
            model(input_ids, torch.arange(input_ids.shape[1]).expand_as(input_ids))
            time.sleep(0.2)
        """,
    "sleeps in a child": "if os.fork() == 0:\n    time.sleep(10 ** 6)\nos.wait()",
    "sleeps in a child that it has by vfork": """
        if ctypes.CDLL(None).vfork() == 0:
            time.sleep(10 ** 6)
        """,
}


@pytest.mark.needs("bwrap")
@pytest.mark.parametrize("name", WAITS)
def test_what_waits_in_vain_is_ended_and_told(
    name: str, jail: Jail, soon: None, turns_taken: list[str]
) -> None:
    result = grade(both(WAITS[name], "..."), jail)
    assert lost(result) == {LOOP: (WAITED,)}
    assert turns_taken == ["together", "alone", "together"]


@pytest.mark.needs("bwrap")
def test_what_works_without_end_is_not_tried_again(
    jail: Jail, turns_taken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jail, "seconds", 0.5)
    result = grade(both("while True:\n    pass", "..."), jail)
    assert "of work. Does every loop end?" in lost(result)[LOOP][0]
    assert turns_taken == ["together", "together"]


# ------------------------------------------------------------------------------------- its turns


@pytest.fixture
def enter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bool], Event]]:
    """Takes a turn in a thread, until the end; returns whether it has come. No one else has any."""
    monkeypatch.setattr(turns, "FOLDER", tmp_path)
    leave, threads = Event(), list[Thread]()

    def begin(alone: bool) -> Event:
        has_come = Event()

        def hold() -> None:
            with turn(alone):
                has_come.set()
                leave.wait()

        threads.append(Thread(target=hold))
        threads[-1].start()
        return has_come

    try:
        yield begin
    finally:
        leave.set()
        for thread in threads:
            thread.join()


def test_alone_means_that_no_other_runs_and_none_enters_before(
    enter: Callable[[bool], Event],
) -> None:
    assert all([enter(False).wait(60), enter(False).wait(60)])
    waits_alone = enter(True)
    assert not waits_alone.wait(0.2)
    assert not enter(False).wait(0.2)


def test_none_runs_beside_one_that_is_alone(enter: Callable[[bool], Event]) -> None:
    assert enter(True).wait(60)
    assert not enter(False).wait(0.2)
    assert not enter(True).wait(0.2)


@pytest.mark.parametrize(
    ("setting", "value", "alone"),
    [("LONGEST", 0.1, True), ("LONGEST", 0.1, False), ("FOLDER", Path("/dev/null"), True)],
    ids=["stopped, alone", "stopped, together", "no locks"],
)
def test_a_turn_comes_where_a_grader_was_stopped_in_its_own_and_where_there_are_no_locks(
    setting, value, alone, enter, monkeypatch
) -> None:
    assert enter(True).wait(60)
    monkeypatch.setattr(turns, setting, value)
    with turn(alone):
        pass
