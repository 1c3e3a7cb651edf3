"""What the lab's Router and with_failover work on: replicas at URLs, their health, their answers.

A replica is any server that speaks OpenAI's API. Only paths that all of them have are used, and a
body is passed on as it came, so a replica may take parameters that the router doesn't know.
"""

import asyncio
import json
import re
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

import httpx2

from solutions.server.protocol import error_response

BLOCK = 64  # bytes of a prompt that are hashed together: some 16 tokens
MOST_HASHES = 1024  # of one prompt
MOST_KNOWN = 50_000  # hashes that are remembered of one replica
MOST_EVENT, MOST_ANSWER = 1_000_000, 16_000_000  # bytes
LATEST = 200  # streams whose times the page's percentiles are made of
CHECK_EVERY, CHECK_WITHIN = 1.0, 5.0  # seconds between two checks of health, and for one
FIRST_EVENT = 60.0  # seconds for the first event of a stream over all replicas; then between two
KEPT = 4.0  # seconds that an idle connection is kept: uvicorn closes one after 5
END_WITHIN = 0.5  # seconds from the last event to the end of a stream
WHOLE_ANSWER = 600.0  # seconds for an answer that isn't streamed

FULL = bytes(error_response(429, "No replica has room. Try again later.").body)  # if it says less
EVENT_END = re.compile(rb"\r?\n\r?\n")
ERROR_EVENT = re.compile(rb'^data: ?\{\s*"error"', re.MULTILINE)
FINISH_REASON = re.compile(rb'"finish_reason": ?"')


@dataclass
class Asked:
    """A request to pass on, and what is known of its answer when its first bytes are.

    status, answer_headers: the answer's; is_whole: whether its last bytes have come, too.
    refusal: a replica's latest 429, its body and its headers; refused_by: all that sent one.
    """

    path: str
    body: bytes
    headers: dict[str, str]
    hashes: list[bytes]
    is_stream: bool
    status: int = 200
    answer_headers: dict[str, str] = field(default_factory=dict)
    refusal: tuple[bytes, dict[str, str]] | None = None
    refused_by: set[str] = field(default_factory=set)
    is_whole: bool = False
    attempts: int = 0

    @property
    def seconds(self) -> float:
        """The deadline for the first bytes."""
        return FIRST_EVENT if self.is_stream else WHOLE_ANSWER


class RouterService:
    """Passes requests on to replicas. lab: the names of lab 13, the reference's or a learner's.

    pause: seconds before another replica is tried, for a cluster that is given as one URL several
    times, and that needs a moment to notice what has died in it.

    running: the requests that are being served, each with the timeout that can end it. counts: how
    many requests ended in each way, and how often another replica was tried. faults: of each one.
    """

    def __init__(self, urls: Sequence[str], lab: Any, pause: float = 0) -> None:
        self.urls, self.lab, self.pause = list(map(checked, urls)), lab, pause
        self.replicas = [lab.Replica(known=Recent()) for _ in urls]
        self.router = lab.Router(self.replicas)
        self.running: set[asyncio.Timeout] = set()
        self.counts, self.faults = Counter[str](), [0] * len(urls)
        self.latest_ttft: deque[float] = deque(maxlen=LATEST)
        self.is_draining = False
        self.began = time.monotonic()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Look after the replicas' health in the event loop that runs now."""
        kept = httpx2.Limits(max_connections=None, keepalive_expiry=KEPT)
        new = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
        async with (
            httpx2.AsyncClient(limits=kept, trust_env=False) as self.client,
            httpx2.AsyncClient(limits=new, trust_env=False) as self.new_client,
        ):
            tasks = [asyncio.create_task(self.watch(i)) for i in range(len(self.urls))]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, let the running ones end, and fail those that take longer."""
        self.is_draining = True
        latest = time.monotonic() + seconds
        while self.running and time.monotonic() < latest:
            await asyncio.sleep(0.02)
        for limit in self.running:
            limit.reschedule(0)  # which is long past, so it ends now
        while self.running and time.monotonic() < latest + 1:
            await asyncio.sleep(0.02)

    @contextmanager
    def counted(self, limit: asyncio.Timeout) -> Iterator[None]:
        """Count a request as running. limit: the timeout that ends it when draining takes long."""
        self.running.add(limit)
        try:
            yield
        finally:
            self.running.discard(limit)

    def seen(self) -> list[dict[str, Any]]:
        """Return the replicas as they are now, as plain data."""
        return [
            {
                "url": url,
                "is_healthy": replica.is_healthy,
                "load": replica.load,
                "served": replica.served,
                "faults": faults,
            }
            for url, replica, faults in zip(self.urls, self.replicas, self.faults, strict=True)
        ]

    # ---------------------------------------------------------------------------------- health

    def healthy(self) -> list[int]:
        return [index for index, replica in enumerate(self.replicas) if replica.is_healthy]

    async def watch(self, index: int) -> None:
        """Check a replica's health again and again, so that it also comes back by itself."""
        while True:
            if await self.is_well(index):
                self.replicas[index].is_healthy = True
            else:
                self.leave_out(index)
            await asyncio.sleep(CHECK_EVERY)

    async def is_well(self, index: int) -> bool:
        """Whether a replica answers in time. One that is draining or loading answers 503."""
        try:
            async with (
                asyncio.timeout(CHECK_WITHIN),
                self.opened("GET", f"{self.urls[index]}/health", timeout=None) as response,
            ):
                await bounded(response)
                return response.status_code < 500
        except (httpx2.HTTPError, TimeoutError, TooMuch):
            return False

    def leave_out(self, index: int) -> None:
        """Send a replica no request until it is well. It may have lost its prefix cache."""
        self.replicas[index].is_healthy = False
        self.replicas[index].known = Recent()

    async def get(self, index: int, path: str, headers: dict[str, str]) -> bytes | None:
        """Return what a replica tells; None if it doesn't, or not in time."""
        url, seconds = self.urls[index] + path, asyncio.timeout(CHECK_WITHIN)
        try:
            async with seconds, self.opened("GET", url, headers=headers) as response:
                body = await bounded(response)
                return body if response.status_code == 200 else None
        except (httpx2.HTTPError, TimeoutError, TooMuch):
            return None

    async def get_json(self, index: int, path: str, headers: dict[str, str]) -> Any:
        return json_object(await self.get(index, path, headers) or b"")

    async def events(
        self, index: int, path: str, headers: dict[str, str]
    ) -> AsyncGenerator[bytes, None]:
        """Yield the events of a stream that a replica may have beside OpenAI's API."""
        url, most = self.urls[index] + path, httpx2.Timeout(FIRST_EVENT, connect=CHECK_WITHIN)
        async with self.client.stream("GET", url, headers=headers, timeout=most) as response:
            if is_event_stream(response):
                async with aclosing(events(response.aiter_raw())) as found:
                    async for event in found:
                        yield event

    # --------------------------------------------------------------------------------- answers

    @asynccontextmanager
    async def opened(self, *request: str, **given: Any) -> AsyncIterator[httpx2.Response]:
        """Send a request and yield the response when its headers are there.

        A kept connection may have died unseen, which is no fault of the replica: then the request
        is sent again, on a new one. Raises httpx2.HTTPError.
        """
        is_new = False

        async def note(event: str, about: dict[str, Any]) -> None:
            nonlocal is_new
            is_new = is_new or event.startswith("connection.connect_tcp")

        async with AsyncExitStack() as stack:
            first = self.client.stream(*request, **given, extensions={"trace": note})
            try:
                response = await stack.enter_async_context(first)
            except (httpx2.NetworkError, httpx2.RemoteProtocolError):
                if is_new:
                    raise
                again = self.new_client.stream(*request, **given)
                response = await stack.enter_async_context(again)
            yield response

    def answer(self, asked: Asked) -> AsyncGenerator[bytes, None]:
        """Return the bytes of an answer. Its first replica is chosen when they are first awaited.

        Raises the lab's ServiceError if no replica is healthy, ReplicaFault and TimeoutError as
        `with_failover` does.
        """
        order = self.order(asked.hashes)
        stream: AsyncGenerator[bytes, None]
        stream = self.lab.with_failover(
            lambda index: self.attempt(index, asked), order, asked.seconds
        )
        return stream

    def order(self, hashes: list[bytes]) -> list[int]:
        """Return the healthy replicas, each picked by the lab's Router from those that are left."""
        left, order = list(range(len(self.replicas))), [self.router.pick(hashes)]
        left.remove(order[0])
        while any(self.replicas[i].is_healthy for i in left):
            others = self.lab.Router([self.replicas[i] for i in left])
            order.append(left.pop(others.pick(hashes)))
        return order

    async def attempt(self, index: int, asked: Asked) -> AsyncGenerator[bytes, None]:
        """Yield what one replica answers: whole events, or the whole of another answer.

        Raises the lab's ReplicaFault if the replica failed. The client's own errors (4xx) are
        answers. A 429 is kept, and is a fault, because another replica may have room.
        """
        if not self.replicas[index].is_healthy or self.urls[index] in asked.refused_by:
            raise self.lab.ReplicaFault
        if asked.attempts:
            self.counts["failovers"] += 1
            await asyncio.sleep(self.pause)
        asked.attempts += 1
        self.router.begin(index, asked.hashes)
        try:
            async with self.opened(
                "POST",
                self.urls[index] + asked.path,
                content=asked.body,
                headers=asked.headers,
                timeout=httpx2.Timeout(asked.seconds, connect=CHECK_WITHIN),
            ) as response:
                self.require_answer(index, response.status_code)
                asked.status, asked.answer_headers = response.status_code, headers_of(response)
                chunks = response.aiter_raw()
                if is_event_stream(response):
                    async with aclosing(answer_events(chunks)) as pieces:
                        async for piece in pieces:
                            asked.is_whole = is_last(piece)
                            yield piece
                    await read_to_end(chunks)
                    return
                body = await bounded(response)
                if response.status_code == 429:
                    is_told = json_object(body) is not None
                    asked.refusal = body if is_told else FULL, asked.answer_headers
                    asked.refused_by.add(self.urls[index])
                    raise self.lab.ReplicaFault
                self.require_object(index, response.status_code, body)
                asked.is_whole = True
                yield body
        except BrokenAnswer:
            raise self.fault(index) from None
        except (httpx2.HTTPError, TooMuch):
            self.leave_out(index)
            raise self.fault(index) from None
        finally:
            self.router.end(index)

    def require_answer(self, index: int, status: int) -> None:
        if status in (502, 503):  # it is draining or loading, or a proxy before it finds none
            self.leave_out(index)
        if status != 200 and not 400 <= status < 500:
            raise self.fault(index)

    def require_object(self, index: int, status: int, body: bytes) -> None:
        """Raise a fault for a page of a proxy, say, or of another server on a wrong port."""
        if json_object(body) is None:
            if status == 200:
                self.leave_out(index)
            raise self.fault(index)

    def fault(self, index: int) -> Exception:
        """Count a replica's fault, and return it. What the replica said of it isn't passed on.

        An error of its engine doesn't make it unhealthy: the request may be the cause, and would
        make all replicas so, one after the other.
        """
        self.faults[index] += 1
        fault: Exception = self.lab.ReplicaFault()
        return fault


def checked(url: str) -> str:
    """Return the address of a replica without a path. Raises ValueError if it is none."""
    parts = urlsplit(url)
    is_plain = parts.path.rstrip("/") in ("", "/v1") and not (parts.query or parts.username)
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain:
        raise ValueError(
            f"{url!r} isn't the address of a server. Give one such as http://127.0.0.1:8001."
        )
    return f"{parts.scheme}://{parts.netloc}"


# ---------------------------------------------------------------------------------- prompt hashes


def prompt_hashes(asked: dict[str, Any]) -> list[bytes]:
    """Hash each full block of a prompt's text together with all blocks before it, as lab 8 does.

    The text is JSON: the messages of a chat, the characters of a prompt, or its token ids. Of
    several prompts it is the first. It needn't be valid, because the replica judges that.
    """
    given = asked.get("messages") or asked.get("prompt")
    if isinstance(given, list) and given and isinstance(given[0], str | list):
        given = given[0]
    text = json.dumps(given)[1:-1].encode()  # the next message of a chat comes before the bracket
    hashes, before = [], b""
    for end in range(BLOCK, min(len(text), MOST_HASHES * BLOCK) + 1, BLOCK):
        before = sha256(before + text[end - BLOCK : end]).digest()
        hashes.append(before)
    return hashes


class Recent(set[bytes]):
    """The hashes that were added last: a replica's cache loses the oldest blocks, too."""

    def __init__(self) -> None:
        super().__init__()
        self.order: OrderedDict[bytes, None] = OrderedDict()

    def update(self, *hashes: Iterable[bytes]) -> None:
        """Add the hashes of one prompt, and drop the oldest. Of one prompt, the end goes first."""
        for block in reversed([block for some in hashes for block in some]):
            self.order[block] = None
            self.order.move_to_end(block)
            self.add(block)
        while len(self) > MOST_KNOWN:
            self.remove(self.order.popitem(last=False)[0])


# ------------------------------------------------------------------------- what replicas send


class TooMuch(Exception):
    """A replica has sent more than is kept of one answer or event."""


class BrokenAnswer(Exception):
    """A replica's stream has an error event, or ends before the answer does."""


async def bounded(response: httpx2.Response) -> bytes:
    """Return the body of an answer. Raises TooMuch."""
    body = b""
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > MOST_ANSWER:
            raise TooMuch
    return body


def json_object(body: bytes) -> Any:
    """Return the object that a body is in JSON; None if it is none."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


async def read_to_end(chunks: AsyncIterator[bytes]) -> None:
    """Read what follows the last event, so that the connection can be used again."""
    with suppress(TimeoutError, httpx2.HTTPError):
        async with asyncio.timeout(END_WITHIN):
            async for _ in chunks:
                pass


async def events(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield events as they come, one or more at a time, each whole: an error can follow any.

    Comments before the first event are held back, because they are no beginning of an answer.
    Raises TooMuch.
    """
    rest, has_begun = b"", False
    async for chunk in chunks:
        rest += chunk
        end = max((found.end() for found in EVENT_END.finditer(rest)), default=0)
        has_begun = has_begun or b"data:" in rest[:end]
        if end and has_begun:
            yield rest[:end]
            rest = rest[end:]
        if len(rest) > MOST_EVENT:
            raise TooMuch


async def answer_events(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield the events of one answer up to [DONE]. Raises BrokenAnswer and TooMuch.

    What an error event says isn't passed on. If an answer has finished, it may end without [DONE],
    which is then added: `transformers serve` leaves it out.
    """
    has_finished = False
    async with aclosing(events(chunks)) as found:
        async for event in found:
            if error := ERROR_EVENT.search(event):
                if b"data:" in event[: error.start()]:
                    yield event[: error.start()]
                raise BrokenAnswer
            yield event
            if is_last(event):
                return
            has_finished = has_finished or FINISH_REASON.search(event) is not None
    if not has_finished:
        raise BrokenAnswer
    yield b"data: [DONE]\n\n"


def is_last(event: bytes) -> bool:
    return event.rstrip().endswith(b"[DONE]")


def is_event_stream(response: httpx2.Response) -> bool:
    """Whether a replica sends events. Compressed ones can't be told apart."""
    is_plain = response.headers.get("content-encoding", "identity") == "identity"
    return is_plain and response.headers.get("content-type", "").startswith("text/event-stream")


def headers_of(response: httpx2.Response) -> dict[str, str]:
    """Return the headers of an answer that its client gets, too."""
    kind = "text/event-stream" if is_event_stream(response) else "application/json"
    after = response.headers.get("retry-after")
    return {"content-type": kind, **({"retry-after": after} if after else {})}
