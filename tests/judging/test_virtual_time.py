"""Attempts that wait: they are judged in virtual time, and none of them makes the judge wait."""

import asyncio
import textwrap
import threading
from contextlib import suppress
from typing import Any

import pytest

from autograder.exercises import exercises
from autograder.judging import judge as judge_module
from autograder.judging.judge import PASSED, WRONG, Judgement, judge
from solutions.simulated.clock import Endless, run
from tests.common.attempts import as_attempt
from tests.common.trials import cell

OPEN_LOOP = exercises()["serving.open_loop"]
POOL, FAILOVER = exercises()["serving.RequestPool.stream"], exercises()["serving.with_failover"]
ENDLESS, STUCK = "runs without end; expected: it comes to an end.", "waits for something that never"
STOPPED = "It was stopped after 0 seconds of work. Does every loop end?"


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_module, "SECONDS", 0.3)


def attempt(lines: str) -> Any:
    """An `open_loop` with these lines in its body."""
    body = textwrap.indent(textwrap.dedent(lines).strip(), "    ")
    source = f"import asyncio\n\nasync def open_loop(send, uniforms, rate):\n{body}\n"
    return cell(source)["open_loop"]


HANGS = {
    "it sleeps again and again": ("while True:\n    await asyncio.sleep(1)", ENDLESS),
    "it lets other tasks run": ("while True:\n    await asyncio.sleep(0)", ENDLESS),
    "it waits for nothing": ("await asyncio.Event().wait()", STUCK),
    "it waits for a thread": ("import time\nawait asyncio.to_thread(time.sleep, 1)", STUCK),
    "it refuses to be canceled": (
        """
        while True:
            try:
                await asyncio.sleep(1)
            except BaseException:
                pass
        """,
        ENDLESS,
    ),
    "it refuses to be canceled, and nothing comes": (
        """
        while True:
            try:
                await asyncio.Event().wait()
            except BaseException:
                pass
        """,
        STUCK,
    ),
    "a task of its own refuses to be canceled": (
        """
        async def stubborn():
            while True:
                try:
                    await asyncio.sleep(1)
                except BaseException:
                    pass
        tasks = [asyncio.create_task(stubborn())]
        return await tasks[0]
        """,
        ENDLESS,
    ),
    "it computes without end": ("while True:\n    pass", STOPPED),
    "a task of its own computes without end": (
        """
        async def busy():
            while True:
                pass
        return await asyncio.gather(busy(), busy())
        """,
        STOPPED,
    ),
}


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("name", HANGS)
def test_what_never_ends_is_told_and_leaves_nothing_behind(name: str, soon: None) -> None:
    lines, message = HANGS[name]
    threads = set(threading.enumerate())
    judgement = judge(OPEN_LOOP, attempt(lines))
    assert judgement.status == WRONG
    assert message in judgement.message
    for thread in set(threading.enumerate()) - threads:
        thread.join(10)  # a pool's thread has been told to end, and may need a moment
    assert set(threading.enumerate()) == threads


def test_the_line_of_an_endless_loop_is_told(soon: None) -> None:
    line = judge(OPEN_LOOP, attempt("n = 0\nwhile True:\n    n += 1")).line
    assert line is not None
    assert line.startswith(("line 5", "line 6"))


async def yields_forever(self: Any, request: Any) -> Any:
    while True:
        yield request


async def never_yields(self: Any, request: Any) -> Any:
    self.engine.submit(request)
    while True:
        with suppress(BaseException):
            await asyncio.sleep(1)
    yield request


@pytest.mark.slow
@pytest.mark.parametrize("stream", [yields_forever, never_yields])
def test_a_stream_without_end_is_told(stream: Any, soon: None) -> None:
    assert ENDLESS in judge(POOL, as_attempt(POOL, stream)).message


async def returns_a_list(*given: Any) -> list[int]:
    return [1]


def is_a_generator(*given: Any) -> Any:
    yield 1


async def is_an_async_generator(*given: Any) -> Any:
    yield 1


NO_WORD = "should be an `async def` "
FORMS = [
    (OPEN_LOOP, lambda *given: [1], f"{NO_WORD}that returns its result; a call of it gave a list."),
    (OPEN_LOOP, is_an_async_generator, "gave an async_generator."),
    (FAILOVER, lambda *given: None, f"{NO_WORD}with a `yield` for each of its results"),
    (FAILOVER, returns_a_list, "a call of it gave a list."),
    (FAILOVER, is_a_generator, "a call of it gave a generator."),
]


@pytest.mark.parametrize(("exercise", "function", "message"), FORMS)
def test_a_function_of_another_kind_is_told_what_it_should_be(exercise, function, message):
    assert message in judge(exercise, function).message


def test_a_notebook_whose_thread_runs_an_event_loop_can_judge(soon: None) -> None:
    """And it goes on in its own task afterwards, whatever has been stopped."""

    some = list(HANGS.values())[::4]

    async def notebook() -> list[Judgement]:
        own = asyncio.current_task()
        hangs = [attempt(lines) for lines, _ in some]
        judgements = [judge(OPEN_LOOP, each) for each in (OPEN_LOOP.reference, *hangs)]
        await asyncio.sleep(0)
        assert asyncio.current_task() is own
        return judgements

    right, *wrong = asyncio.run(notebook())
    assert right.status == PASSED
    for judgement, (_, message) in zip(wrong, some, strict=True):
        assert message in judgement.message


def test_a_clock_stops_after_so_many_turns_and_lets_tasks_clean_up() -> None:
    cleaned_up = []

    async def turns(count: int) -> int:
        try:
            for _ in range(count):
                await asyncio.sleep(0.5)
        finally:
            cleaned_up.append(count)
        return count

    assert run(turns(10), most_turns=50) == 10
    with pytest.raises(Endless, match="turned 50 times"):
        run(turns(1000), most_turns=50)
    assert cleaned_up == [10, 1000]
