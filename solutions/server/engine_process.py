"""The engine in a process of its own, which shares no interpreter lock with the event loop.

In a thread (engine_thread.py), the engine's Python and the event loop's take turns, and with many
streams that costs a third of the throughput. Here a pipe lies between them: requests and ids to
abort go one way, and a step's outputs and the latest view come back.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from solutions.server.settings import Labs, Settings

if TYPE_CHECKING:  # PyTorch is imported by both processes at the same time, once this one has begun
    from solutions.server.engine_thread import Deliver, EngineThread, Facts

log = logging.getLogger("workbook")


class EngineProcess:
    """What EngineThread is, in another process.

    deliver: called in a thread with the outputs of each step; `on_death` is called there if the
    process ends by itself. Raises ValueError for a model that can't be loaded. No method waits for
    the engine.
    """

    def __init__(self, settings: Settings, labs: Labs) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve_pipe, args=(theirs, settings, labs))
        self.process.start()
        atexit.register(self.process.kill)
        theirs.close()
        self.deliver: Deliver = lambda outputs: None
        self.on_death: Callable[[], object] = lambda: None
        self.is_stopped = False
        self.outbox: SimpleQueue[Any] = SimpleQueue()

    def wait(self) -> None:
        """Wait until the model is loaded."""
        try:
            came = self.pipe.recv()
        except EOFError:
            raise ValueError("The engine's process has ended while it loaded the model.") from None
        if isinstance(came, ValueError):
            raise came
        self.facts: Facts
        self.facts, self.view = came

    def start(self) -> None:
        self.heard = time.monotonic()
        for work in self.send, self.listen:
            threading.Thread(target=work, name=f"engine: {work.__name__}", daemon=True).start()

    def stop(self) -> None:
        """End the process. It has nothing to lose, and may hang."""
        self.is_stopped = True
        self.process.kill()
        self.process.join(1)
        atexit.unregister(self.process.kill)

    def submit(self, message: Any) -> None:
        self.outbox.put(message)

    def abort(self, request_id: str) -> None:
        self.outbox.put(request_id)

    def send(self) -> None:
        """Write what is submitted to the pipe, which takes no more while the engine hangs."""
        from solutions.server.messages import EngineFault, TextRequest

        with contextlib.suppress(OSError):  # it has ended, which `listen` finds out
            while True:
                message = self.outbox.get()
                try:
                    self.pipe.send(message)
                except OSError:
                    raise
                except Exception:
                    log.exception("A request can't be sent to the engine.")
                    if isinstance(message, TextRequest):
                        self.deliver([(message.id, EngineFault())])

    def listen(self) -> None:
        try:
            while True:
                outputs, view = self.pipe.recv()
                self.heard = time.monotonic()
                if view is not None:
                    self.view = view
                if outputs:
                    self.deliver(outputs)
        except (EOFError, OSError):
            if not self.is_stopped:
                self.on_death()


def serve_pipe(pipe: Connection, settings: Settings, labs: Labs) -> None:
    """Run an engine whose requests come by a pipe, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C goes to the server, which then says when
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    from solutions.server.engine_thread import EngineThread
    from solutions.server.loaded import load

    try:
        engine = EngineThread(load(settings, labs), lambda outputs: send(outputs))
    except ValueError as error:
        with contextlib.suppress(OSError):  # the server was ended meanwhile
            pipe.send(error)
        return
    gc.freeze()  # what is loaded stays, so looking for garbage in it would only hold up a step
    sent: Any = None

    def send(outputs: Any) -> None:
        nonlocal sent
        view = engine.view if engine.view is not sent else None
        sent = engine.view
        with contextlib.suppress(OSError):  # the server was killed; `take_messages` finds out, too
            pipe.send((outputs, view))

    engine.on_view = lambda: send([])
    pipe.send((engine.facts, engine.view))
    threading.Thread(target=take_messages, args=(pipe, engine), daemon=True).start()
    engine.run()


def take_messages(pipe: Connection, engine: EngineThread) -> None:
    with contextlib.suppress(EOFError, OSError):  # the server was killed
        while True:
            engine.inbox.append(pipe.recv())
            engine.wake.set()
    engine.is_stopped = True
    engine.wake.set()
