"""uvicorn, with a limit for clients that stall and an end that waits for running requests."""

import asyncio
import contextlib
import socket
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from solutions.server.settings import Settings


class PatientProtocol(HttpToolsProtocol):
    """Cuts a connection that sends no whole request, or reads nothing, for too long."""

    idle: float
    stalled: float
    timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.cut_after(self.idle)

    def connection_lost(self, exc: Exception | None) -> None:
        self.cut_after(None)
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.cut_after(self.idle)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.cut_after(None)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.cut_after(self.stalled)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.cut_after(None)

    def cut_after(self, seconds: float | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = None
        if seconds is not None:
            self.timer = self.loop.call_later(seconds, self.transport.abort)


class DrainingServer(uvicorn.Server):
    """Ends in two steps: at the first signal it drains, at the second it stops at once."""

    def __init__(self, app: Any, settings: Settings, drain: Any) -> None:
        protocol = type(
            "Protocol", (PatientProtocol,), {"idle": settings.idle, "stalled": settings.stalled}
        )
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol,
                access_log=False,
                log_level="warning",
                server_header=False,
                backlog=2048,
                timeout_graceful_shutdown=3,
                ws="none",
            )
        )
        self.drain, self.seconds, self.is_draining = drain, settings.drain, False

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.is_draining:
            super().handle_exit(sig, frame)
        else:
            self.begin_to_stop()

    def begin_to_stop(self) -> None:
        """Drain, then stop. May be called from any thread."""
        self.is_draining = True
        asyncio.run_coroutine_threadsafe(self.finish(), self.loop)

    async def finish(self) -> None:
        await self.drain(self.seconds)
        self.should_exit = True


def listening(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free one. Raises ValueError if it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"The server can't listen on {host}, port {port}: {error}. Take another port with "
            "--port, or 0 for any that is free."
        ) from error


def allow_many_connections() -> None:
    """Raise the limit of open files, which counts connections too, as far as it may be raised."""
    with contextlib.suppress(ImportError, ValueError, OSError):  # there is none on Windows
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
