"""Stop a block of code from outside, on every system and in any thread."""

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOOK = 0.05  # seconds between two looks
AGAIN = 0.5  # seconds after which it is raised again, where the block goes on


@contextmanager
def interrupted(error: type[BaseException], is_over: Callable[[], bool]) -> Iterator[None]:
    """Raise `error` in the block when `is_over()` says so, and again until the block ends.

    A second thread raises it. A block inside a long call to C is stopped when that call returns.
    """
    thread = ctypes.c_ulong(threading.get_ident())
    done, raised = threading.Event(), threading.Event()

    def raise_there() -> None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(error))

    def watch() -> None:
        wait = 0.0
        while not done.wait(wait):
            wait = LOOK
            if is_over():
                raised.set()
                raise_there()
                wait = AGAIN

    watcher = threading.Thread(target=watch, daemon=True)
    try:
        watcher.start()  # within: where it is over already, it raises at once
        yield
    finally:
        try:
            done.set()
            watcher.join()
            # One may still be on its way, and there is room for one: here it comes. It isn't taken
            # back with None, after which Python 3.11 hangs in the first function that is traced.
            while raised.is_set():
                raise_there()
        except error:  # at the last moment; the next one would come half a second later
            done.set()
            watcher.join()
