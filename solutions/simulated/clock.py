"""An event loop in virtual time: a sleep takes no time, and two runs are equal.

When no task can go on, an event loop waits for the next timer. This one sets its clock to that time
instead. Sockets and threads know nothing of such a clock, so they can't be used with it.
"""

import asyncio
import contextvars
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


class Stuck(RuntimeError):
    """Every task waits for another one, so no time will ever be the next."""


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        selector: Any = self._selector  # type: ignore[attr-defined]
        poll = selector.select

        def skip(timeout: float | None = None) -> Any:
            if timeout is None:
                raise Stuck("Every task waits, and nothing is left that could wake one.")
            self.now += max(timeout, 0)
            return poll(0)

        selector.select = skip

    def time(self) -> float:
        return self.now


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in virtual time, from 0, and return its result.

    In a thread of its own, because the thread of a notebook has a running event loop already.
    """

    def in_thread() -> Result:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(work)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(contextvars.copy_context().run, in_thread).result()
