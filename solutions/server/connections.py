"""uvicorn, with a limit for clients that stall and an end that waits for running requests."""

import asyncio
import contextlib
import errno
import socket
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from solutions.server.settings import Settings

MOST_HEAD = 65_536  # bytes of a request's target and headers
MOST_HEADERS = 100
NO_ADDRESS = errno.EADDRNOTAVAIL, socket.EAI_NONAME
UNREADABLE = 400, "The request isn't valid HTTP."
TOO_LATE = 408, "The rest of the request hasn't come in time."
TOO_LARGE = 431, f"A request has at most {MOST_HEADERS} headers and {MOST_HEAD:,} bytes of them."


class PatientProtocol(HttpToolsProtocol):
    """Bounds a request's head, and the time to send a request or to read an answer.

    A request that can't be read gets an error in its turn, after the answers to those before it,
    and the connection ends. The app answers it: `scope["state"]["fault"]` is what to say.
    """

    idle: float
    stalled: float
    reading: asyncio.TimerHandle | None = None  # runs while a request isn't whole
    writing: asyncio.TimerHandle | None = None  # runs while the client reads nothing
    is_in_head = is_broken = False
    size = unseen = 0  # bytes of the head: known ones, and those that the parser holds back
    fault = UNREADABLE

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # so that any unread byte starts the timer
        self.await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self.request_is_here()
        self.resume_writing()
        super().connection_lost(exc)

    # ---------------------------------------------------------------------------------- times

    def await_request(self) -> None:
        if self.reading is None:
            self.reading = self.loop.call_later(self.idle, self.give_up)

    def request_is_here(self) -> None:
        if self.reading is not None:
            self.reading.cancel()
        self.reading = None

    def give_up(self) -> None:
        """End a connection whose request isn't whole in time, or that has never sent one."""
        self.reading = None
        if self.is_in_head or self.is_in_body:
            self.refuse(TOO_LATE)
        else:
            self.transport.abort()

    @property
    def is_in_body(self) -> bool:
        cycle = self.cycle
        return cycle is not None and cycle.more_body and not cycle.response_complete

    def pause_writing(self) -> None:
        super().pause_writing()
        self.writing = self.loop.call_later(self.stalled, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.writing is not None:
            self.writing.cancel()
        self.writing = None

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        super()._start_asgi_task(cycle, app)
        if cycle.more_body and not self.is_broken:  # nothing was read while it waited for its turn
            self.await_request()

    # --------------------------------------------------------------------------------- requests

    def data_received(self, data: bytes) -> None:
        if self.is_broken:
            return
        self.unseen += len(data)
        super().data_received(data)
        if self.is_in_head and self.unseen > MOST_HEAD:
            self.refuse(TOO_LARGE)
        elif self.cycle is not None and self.cycle.response_complete:
            self.await_request()  # not even a line break may keep a connection open for ever

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.is_in_head, self.size, self.unseen = True, 0, 0
        self.request_is_here()  # a connection may have waited for its first request
        self.await_request()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self.count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self.count(len(name) + len(value))

    def count(self, size: int) -> None:
        """Count bytes of the head. What is raised in here ends the parser's work."""
        self.size, self.unseen = self.size + size, 0
        if self.size > MOST_HEAD or len(self.headers) > MOST_HEADERS:
            self.fault = TOO_LARGE
            raise ValueError

    def on_headers_complete(self) -> None:
        self.is_in_head = False
        super().on_headers_complete()
        if self.pipeline:
            self.request_is_here()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.request_is_here()

    def send_400_response(self, msg: str) -> None:
        self.refuse(self.fault)

    def refuse(self, fault: tuple[int, str]) -> None:
        """Answer the newest request with an error, and read nothing more."""
        self.is_broken = True
        self.request_is_here()
        if self.is_in_head or not self.is_in_body:
            self.begin_unreadable()
        self.cycle.scope["state"]["fault"] = fault
        self.cycle.message_event.set()

    def on_response_complete(self) -> None:
        """After an error, wait a little before closing: with unread bytes, that would lose it."""
        super().on_response_complete()
        if self.is_broken and self.cycle.response_complete and not self.transport.is_closing():
            self.transport.write_eof()

    def begin_unreadable(self) -> None:
        """Let a request that has no head be answered like any other."""
        if not self.is_in_head:
            super().on_message_begin()
        self.is_in_head, before = False, self.cycle
        self.scope |= {"method": "", "path": "", "raw_path": b"", "query_string": b""}
        self.headers.clear()
        self.cycle = RequestResponseCycle(
            scope=self.scope, transport=self.transport, flow=self.flow, logger=self.logger,
            access_logger=self.access_logger, access_log=False, expect_100_continue=False,
            default_headers=self.server_state.default_headers, message_event=asyncio.Event(),
            keep_alive=True, on_response=self.on_response_complete,
        )  # fmt: skip
        if before is None or before.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:
            self.pipeline.appendleft((self.cycle, self.app))


class DrainingServer(uvicorn.Server):
    """Ends in two steps: at the first signal it drains, at the second it breaks off what runs."""

    def __init__(self, app: Any, settings: Settings, drain: Any) -> None:
        protocol = type(
            "Protocol", (PatientProtocol,), {"idle": settings.idle, "stalled": settings.stalled}
        )
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol,
                access_log=False,
                log_level="error",
                server_header=False,
                backlog=2048,
                timeout_graceful_shutdown=3,
                ws="none",
            )
        )
        self.drain, self.seconds = drain, settings.drain

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.begin_to_stop()

    def begin_to_stop(self) -> None:
        """Drain, then stop. May be called from any thread."""
        seconds, self.seconds = self.seconds, 0.0
        asyncio.run_coroutine_threadsafe(self.finish(seconds), self.loop)

    async def finish(self, seconds: float) -> None:
        await self.drain(seconds)
        self.should_exit = True


def listening(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free one. Raises ValueError if it can't listen."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        if getattr(error, "errno", None) in NO_ADDRESS:
            sentence = f"{host} isn't an address of this machine: give --host one."
            raise ValueError(sentence) from error
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
