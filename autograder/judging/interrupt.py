"""Stop a block of code from outside, on every system and in any thread."""

import ctypes
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

LOOK = 0.25  # seconds between two looks
AGAIN = 0.5  # seconds after which it is raised again, where the block goes on
WAKE = getattr(signal, "SIGURG", None)  # which hardly a program uses, and which harms none


@contextmanager
def interrupted(look: Callable[[], type[BaseException] | None]) -> Iterator[None]:
    """Raise what `look()` returns in the block, and again until the block ends.

    A second thread looks and raises. In the main thread this also ends a sleep or the wait for a
    lock. A block inside another long call to C is stopped when that call returns.
    """
    thread = threading.get_ident()
    done, raised = threading.Event(), list[type[BaseException]]()

    def raise_there() -> None:
        error = ctypes.py_object(raised[-1])
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), error)

    def watch() -> None:
        wait = LOOK
        while not done.wait(wait):
            wait = LOOK
            if (error := look()) is not None:
                raised.append(error)
                raise_there()
                wake()
                wait = AGAIN

    watcher = threading.Thread(target=watch, daemon=True)
    with wakeable() as wake:
        try:
            watcher.start()  # within: on a busy machine, it may raise before this returns
            yield
        finally:
            try:
                done.set()
                watcher.join()
                # One may still be on its way, and there is room for one: here it comes. It isn't
                # taken back with None, after which Python 3.11 hangs in the first function that is
                # traced.
                while raised:
                    raise_there()
            except tuple(raised):  # at the last moment; the next one would come half a second later
                done.set()
                watcher.join()


@contextmanager
def wakeable() -> Iterator[Callable[[], Any]]:
    """Yield a function that ends the sleep of this thread, if it is the main one.

    Python handles signals there alone. The handler does nothing: before its first line, Python
    raises what was sent to the thread.
    """
    if WAKE is None or threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    thread, before = threading.get_ident(), signal.signal(WAKE, lambda *_: None)
    try:
        yield lambda: signal.pthread_kill(thread, WAKE)
    finally:
        signal.signal(WAKE, before or signal.SIG_DFL)
