"""One request, passed on to replicas until one of them answers.

Its body is passed on as it came, so a replica may take parameters that the router doesn't know.
"""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass

import httpx2

from solutions.router.replicas import (
    CHECK_WITHIN,
    Replicas,
    bounded,
    is_event_stream,
    json_object,
)
from solutions.server.events import TooMuch, whole_events
from solutions.server.protocol import error_response

FIRST_EVENT = 60.0  # seconds for the first event of a stream over all replicas; then between two
WHOLE_ANSWER = 600.0  # seconds for an answer that isn't streamed
END_WITHIN = 0.5  # seconds from the last event to the end of a stream

FULL = bytes(error_response(429, "No replica has room. Try again later.").body)  # if it says less
DONE = b"data: [DONE]\n\n"
ERROR_EVENT = re.compile(rb'^data: ?\{\s*"error"', re.MULTILINE)
FINISH_REASON = re.compile(rb'"finish_reason": ?"')


@dataclass(frozen=True)
class PassedOn:
    """A request to pass on. hashes: of its prompt."""

    path: str
    body: bytes
    headers: dict[str, str]
    hashes: list[bytes]
    is_stream: bool

    @property
    def seconds(self) -> float:
        """The deadline for the first bytes of the answer."""
        return FIRST_EVENT if self.is_stream else WHOLE_ANSWER


class BrokenAnswer(Exception):
    """A replica's stream has an error event, or ends before the answer does."""


class Relay:
    """The answer to a request, from the first replica that gives one.

    pause: seconds before another replica is tried. counts: of the router's failovers.

    status, headers: those of the answer, once its first bytes are here. is_whole: whether its last
    bytes have come, too. refusal: a replica's latest 429, its body and its headers; refused_by: the
    URLs of all that sent one.
    """

    def __init__(
        self, request: PassedOn, replicas: Replicas, pause: float, counts: Counter[str]
    ) -> None:
        self.request, self.replicas, self.lab = request, replicas, replicas.lab
        self.pause, self.counts = pause, counts
        self.attempts, self.is_whole = 0, False
        self.status, self.headers = 200, dict[str, str]()
        self.refusal: tuple[bytes, dict[str, str]] | None = None
        self.refused_by: set[str] = set()

    def pieces(self) -> AsyncGenerator[bytes, None]:
        """Return the bytes of the answer. Its first replica is chosen when they are first awaited.

        Raises the lab's ServiceError if no replica is healthy, ReplicaFault and TimeoutError as
        `with_failover` does.
        """
        order = self.replicas.order(self.request.hashes)
        pieces: AsyncGenerator[bytes, None]
        pieces = self.lab.with_failover(self.attempt, order, self.request.seconds)
        return pieces

    async def attempt(self, index: int) -> AsyncGenerator[bytes, None]:
        """Yield what one replica answers: whole events, or the whole of another answer.

        Raises the lab's ReplicaFault if the replica failed. The client's own errors (4xx) are
        answers.
        """
        replicas, request = self.replicas, self.request
        if not replicas.states[index].is_healthy or replicas.urls[index] in self.refused_by:
            raise self.lab.ReplicaFault
        if self.attempts:
            self.counts["failovers"] += 1
            await asyncio.sleep(self.pause)
        self.attempts += 1
        replicas.router.begin(index, request.hashes)
        most = httpx2.Timeout(request.seconds, connect=CHECK_WITHIN)
        options = {"content": request.body, "headers": request.headers, "timeout": most}
        try:
            async with (
                replicas.opened(index, "POST", request.path, **options) as response,
                aclosing(self.answer(index, response)) as pieces,
            ):
                async for piece in pieces:
                    yield piece
        except BrokenAnswer:
            raise replicas.fault(index) from None
        except (httpx2.HTTPError, TooMuch):
            replicas.leave_out(index)
            raise replicas.fault(index) from None
        finally:
            replicas.router.end(index)

    def answer(self, index: int, response: httpx2.Response) -> AsyncGenerator[bytes, None]:
        """Return the bytes of a response, which may turn out to be no answer."""
        self.require_answer(index, response.status_code)
        self.status, self.headers = response.status_code, headers_of(response)
        is_stream = is_event_stream(response)
        return self.streamed(response) if is_stream else self.read(index, response)

    def require_answer(self, index: int, status: int) -> None:
        if status in (502, 503):  # it is draining or loading, or a proxy before it finds none
            self.replicas.leave_out(index)
        if status != 200 and not 400 <= status < 500:
            raise self.replicas.fault(index)

    async def streamed(self, response: httpx2.Response) -> AsyncGenerator[bytes, None]:
        """Yield the events of one answer up to [DONE]. Raises BrokenAnswer and TooMuch.

        What an error event says isn't passed on. If an answer has finished, it may end without
        [DONE], which is then added: `transformers serve` leaves it out.
        """
        chunks, has_finished = response.aiter_raw(), False
        async with aclosing(whole_events(chunks)) as pieces:
            async for piece in pieces:
                if error := ERROR_EVENT.search(piece):
                    if b"data:" in piece[: error.start()]:
                        yield piece[: error.start()]
                    raise BrokenAnswer
                self.is_whole = piece.rstrip().endswith(b"[DONE]")
                yield piece
                if self.is_whole:
                    break
                has_finished = has_finished or FINISH_REASON.search(piece) is not None
        if not self.is_whole:
            if not has_finished:
                raise BrokenAnswer
            self.is_whole = True
            yield DONE
        await read_to_end(chunks)

    async def read(self, index: int, response: httpx2.Response) -> AsyncGenerator[bytes, None]:
        """Yield the body of an answer that isn't streamed. Raises TooMuch.

        A 429 is kept, and is a fault that isn't counted, because another replica may have room.
        """
        body = await bounded(response)
        is_object = json_object(body) is not None
        if response.status_code == 429:
            self.refusal = body if is_object else FULL, self.headers
            self.refused_by.add(self.replicas.urls[index])
            raise self.lab.ReplicaFault
        if not is_object:  # the page of a proxy, say, or of another server on a wrong port
            if response.status_code == 200:
                self.replicas.leave_out(index)
            raise self.replicas.fault(index)
        self.is_whole = True
        yield body


def headers_of(response: httpx2.Response) -> dict[str, str]:
    """Return the headers of an answer that its client gets, too."""
    kind = "text/event-stream" if is_event_stream(response) else "application/json"
    after = response.headers.get("retry-after")
    return {"content-type": kind, **({"retry-after": after} if after else {})}


async def read_to_end(chunks: AsyncIterator[bytes]) -> None:
    """Read what follows the last event, so that the connection can be used again."""
    with suppress(TimeoutError, httpx2.HTTPError):
        async with asyncio.timeout(END_WITHIN):
            async for _ in chunks:
                pass
