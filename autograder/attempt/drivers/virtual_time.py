"""What an attempt waits for, in virtual time: a call that may never end, and a stream.

So a stalled replica takes a moment, and what never ends is stopped after some thousand turns of the
event loop.
"""

import asyncio
import ctypes
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from inspect import isawaitable, iscoroutine
from typing import Any

from autograder.attempt.lent import sealed
from autograder.attempt.plain import Strange, kind_or_none, plain
from autograder.attempt.records import Seen
from solutions.simulated.clock import Endless, Stuck, run

MOST_TURNS = 10_000  # of the event loop: enough for one that looks every ms for 4 s


def in_virtual_time(work: Coroutine[Any, Any, None], name: str) -> Seen:
    """Run a coroutine in virtual time; return how it ends."""
    tasks: list[asyncio.Task[Any]] = []
    try:
        run(noting_tasks(work, tasks), MOST_TURNS)
        end = "comes to an end"
    except Stuck:
        end = "waits for something that never comes"
    except Endless:
        end = "runs without end"
    finally:
        for task in tasks:
            if not task.done():
                keep_forever(task)
    return Seen(f"`{name}`", end)


async def noting_tasks(work: Coroutine[Any, Any, None], tasks: list[asyncio.Task[Any]]) -> None:
    """Run a coroutine. Note all tasks, and print nothing of those that fail."""

    def new_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **named: Any) -> Any:
        tasks.append(asyncio.Task(coroutine, loop=loop, **named))
        return tasks[-1]

    virtual = asyncio.get_running_loop()
    virtual.set_exception_handler(sealed(lambda loop, context: None))
    virtual.set_task_factory(sealed(new_task))
    await virtual.create_task(work)


def keep_forever(task: asyncio.Task[Any]) -> None:
    """Never free a task that refuses to be canceled.

    Python would throw GeneratorExit into it. If its loop goes on after any exception, it would run
    then without end, because no `await` suspends it any more.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(task))


def now() -> float:
    return round(asyncio.get_running_loop().time(), 9)


def awaited(name: str, found: Any) -> Awaitable[Any]:
    if not isawaitable(found):
        raise TypeError(
            f"`{name}` should be an `async def` that returns its result; a call of it gave "
            f"{kind_or_none(found)}."
        )
    return found


async def stream_of(name: str, found: Any) -> Any:
    """What an async generator function returned. Without any `yield` in it, that is a coroutine."""
    if iscoroutine(found):
        found = await found
    if not hasattr(type(found), "__aiter__"):
        raise TypeError(
            f"`{name}` should be an `async def` with a `yield` for each of its results; a call of "
            f"it gave {kind_or_none(found)}."
        )
    return found


def shown(value: Any) -> Any:
    """A value as the end of a sentence."""
    value = plain(value)
    return value if value is None or isinstance(value, Strange) else f"is {value!r}"


TOLD = {"ServiceError", "ReplicaFault", "OtherError"}  # with their words
ENDS = TOLD | {"TimeoutError", "CancelledError"}


@dataclass
class Reader:
    """Reads a stream to its end, or leaves before.

    name, of: what a result is called. leaves: after so many seconds its task is canceled.
    closes_after: after so many results it closes the stream. pause: seconds that it takes for each.
    """

    name: str
    of: str = ""
    leaves: float | None = None
    closes_after: int | None = None
    pause: float = 0.0

    async def read(self, stream: Any, told: Callable[[Any], Any]) -> list[Seen]:
        """Return the results, each as `told` puts it, and the end, with their times."""
        seen: list[Seen] = []
        reading = asyncio.ensure_future(self.results(stream, told, seen))
        if self.leaves is not None:
            asyncio.get_running_loop().call_later(self.leaves, reading.cancel)
        try:
            end = await reading
        except (Exception, asyncio.CancelledError) as error:
            kind = type(error).__name__
            if kind not in ENDS:
                raise
            end = f"is {kind}: {error}" if kind in TOLD else f"is {kind}"
        return [*seen, Seen("The end", f"{end}, at {now()} s", self.of)]

    async def results(self, stream: Any, told: Callable[[Any], Any], seen: list[Seen]) -> str:
        async with aclosing(stream):
            while self.closes_after is None or len(seen) < self.closes_after:
                try:
                    result = await anext(stream)
                except StopAsyncIteration:
                    return "comes after the last one"
                words = f"{told(result)}, at {now()} s"
                seen.append(Seen(f"{self.name} {len(seen) + 1}", words, self.of))
                await asyncio.sleep(self.pause)
            return "comes when the client leaves"
