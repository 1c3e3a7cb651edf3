"""An event loop in virtual time: a sleep takes no time, and two runs are equal.

When no task can go on, an event loop waits for the next timer. This one sets its clock to that time
instead. Sockets and threads know nothing of such a clock, so they can't be used with it.
"""

import asyncio
import math
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

Result = TypeVar("Result")
MORE_TURNS = 100  # in which tasks may end when they are canceled


class Stuck(RuntimeError):
    """Every task waits for another one, so no time will ever be the next."""


class Endless(RuntimeError):
    """The loop has turned as many times as it may, and some task still isn't done."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """turns: how many times it has looked for tasks that can go on."""

    def __init__(self, most_turns: float = math.inf) -> None:
        super().__init__()
        self.now, self.turns = 0.0, 0
        selector: Any = self._selector  # type: ignore[attr-defined]
        poll = selector.select

        def skip(timeout: float | None = None) -> Any:
            self.turns += 1
            if self.turns > most_turns:
                self.turns -= MORE_TURNS
                raise Endless(f"The event loop has turned {most_turns:,} times.")
            if timeout is None:
                raise Stuck("Every task waits, and nothing is left that could wake one.")
            self.now += max(timeout, 0)
            return poll(0)

        selector.select = skip

    def time(self) -> float:
        return self.now


def run(work: Coroutine[Any, Any, Result], most_turns: float = math.inf) -> Result:
    """Run a coroutine in virtual time, from 0, and return its result.

    A notebook's thread has a running event loop already, which is set aside meanwhile. Raises Stuck
    if every task waits, and Endless after `most_turns` turns of the loop.
    """
    with set_aside_loop(), asyncio.Runner(loop_factory=partial(VirtualLoop, most_turns)) as runner:
        return runner.run(work)


@contextmanager
def set_aside_loop() -> Iterator[None]:
    """Let another event loop run in this thread, inside a task of the one that runs now."""
    loop = asyncio._get_running_loop()
    task = asyncio.current_task(loop) if loop else None
    if loop and task:
        asyncio._leave_task(loop, task)
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)
        if loop and task:
            asyncio._enter_task(loop, task)
