"""A server in threads of this process, for a notebook or a test."""

import threading
import time
from typing import Any, Self

from solutions.server.app import new_app
from solutions.server.connections import DrainingServer, listening
from solutions.server.engine_thread import EngineThread
from solutions.server.loaded import load
from solutions.server.settings import Labs, Settings, reference, with_lab


class RunningServer:
    """A server at `url`, until `stop`. app: what it serves."""

    def __init__(self, app: Any, settings: Settings, drain: Any) -> None:
        self.app, self.socket = app, listening("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.server = DrainingServer(app, settings, drain)
        self.thread = threading.Thread(
            target=self.server.run, args=([self.socket],), name="server", daemon=True
        )
        self.thread.start()
        while not self.server.started and self.thread.is_alive():
            time.sleep(0.005)

    def stop(self) -> None:
        """Let running requests end, then stop."""
        if self.thread.is_alive():
            self.server.begin_to_stop()
            self.thread.join()
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def serve_here(lab: Any = None, labs: Labs = reference, **settings: Any) -> RunningServer:
    """Start a server for a model, by default with the reference's pieces of every lab.

    lab: those of lab 13. labs: from a lab's name to its pieces. settings: those of `Settings`, for
    example model="fable" and technique="prefix".
    """
    labs = with_lab("serving", lab, labs) if lab else labs
    chosen = Settings(**settings)
    engine = EngineThread(load(chosen, labs))
    app = new_app(chosen, engine, labs)
    return RunningServer(app, chosen, app.state.service.drain)
