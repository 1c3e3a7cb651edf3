"""The engine in a process of its own, which shares no interpreter lock with the event loop.

In a thread (engine_thread.py), the engine's Python and the event loop's take turns, and with many
streams that costs a third of the throughput. Here a pipe lies between them: requests and ids to
abort go one way, and a step's outputs and the latest view come back.
"""

from __future__ import annotations

import atexit
import contextlib
import signal
import threading
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from solutions.server.settings import Labs, Settings

if TYPE_CHECKING:  # PyTorch is imported by both processes at the same time, once this one has begun
    from solutions.server.engine_thread import Deliver, EngineThread, Facts
    from solutions.server.messages import Request


class EngineProcess:
    """What EngineThread is, in another process.

    deliver: called in a thread with the outputs of each step; `on_death` is called there if the
    process ends by itself. Raises ValueError for a model that can't be loaded.
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
        self.writing = threading.Lock()

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
        threading.Thread(target=self.listen, name="engine's outputs", daemon=True).start()

    def stop(self) -> None:
        self.is_stopped = True
        self.send(None)
        self.process.join(5)
        self.process.kill()
        atexit.unregister(self.process.kill)

    def submit(self, request: Request) -> None:
        self.send(request)

    def abort(self, request_id: str) -> None:
        self.send(request_id)

    def send(self, message: Request | str | None) -> None:
        # If the process has ended, `listen` has found out or soon will.
        with self.writing, contextlib.suppress(OSError):
            self.pipe.send(message)

    def listen(self) -> None:
        try:
            while True:
                outputs, view = self.pipe.recv()
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
        pipe.send(error)
        return
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
        while (message := pipe.recv()) is not None:
            engine.inbox.append(message)
            engine.wake.set()
    engine.is_stopped = True
    engine.wake.set()
