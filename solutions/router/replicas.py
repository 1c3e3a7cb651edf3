"""Replicas at URLs, what is known of their health and load, and how they are asked.

A replica is any server that speaks OpenAI's API. Only paths that all of them have are used.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx2

from solutions.router.prefixes import Recent
from solutions.server.events import TooMuch, data_of, whole_events

MOST_ANSWER = 16_000_000  # bytes
CHECK_EVERY, CHECK_WITHIN = 1.0, 5.0  # seconds between two checks of health, and for one
BETWEEN_EVENTS = 60.0  # seconds
KEPT = 4.0  # seconds that an idle connection is kept: uvicorn closes one after 5


class Replicas:
    """The servers at `urls`. lab: the names of lab 13, the reference's or a learner's.

    states: of each, as lab 13 has it. faults: how many requests each has failed.
    """

    def __init__(self, urls: Sequence[str], lab: Any) -> None:
        self.urls, self.lab = list(map(checked, urls)), lab
        self.states = [lab.Replica(known=Recent()) for _ in urls]
        self.router = lab.Router(self.states)
        self.faults = [0] * len(urls)

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
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

    def rows(self) -> list[dict[str, Any]]:
        """Return the replicas as they are now, as plain data."""
        return [
            {
                "url": url,
                "is_healthy": state.is_healthy,
                "load": state.load,
                "served": state.served,
                "faults": faults,
            }
            for url, state, faults in zip(self.urls, self.states, self.faults, strict=True)
        ]

    # ---------------------------------------------------------------------------------- health

    def healthy(self) -> list[int]:
        return [index for index, state in enumerate(self.states) if state.is_healthy]

    async def watch(self, index: int) -> None:
        """Check a replica's health again and again, so that it also comes back by itself."""
        while True:
            if await self.is_well(index):
                self.states[index].is_healthy = True
            else:
                self.leave_out(index)
            await asyncio.sleep(CHECK_EVERY)

    async def is_well(self, index: int) -> bool:
        """Whether a replica answers in time. One that is draining or loading answers 503."""
        status, _ = await self.look(index, "/health")
        return 0 < status < 500

    def leave_out(self, index: int) -> None:
        """Send a replica no request until it is well. It may have lost its prefix cache."""
        self.states[index].is_healthy = False
        self.states[index].known = Recent()

    def fault(self, index: int) -> Exception:
        """Count a replica's fault, and return it. What the replica said of it isn't passed on.

        An error of its engine doesn't make it unhealthy: the request may be the cause, and would
        make all replicas so, one after the other.
        """
        self.faults[index] += 1
        fault: Exception = self.lab.ReplicaFault()
        return fault

    def order(self, hashes: list[bytes]) -> list[int]:
        """Return the healthy replicas, each picked by the lab's Router from those that are left.

        Raises the lab's ServiceError if there is none.
        """
        left, order = list(range(len(self.states))), [self.router.pick(hashes)]
        left.remove(order[0])
        while any(self.states[i].is_healthy for i in left):
            others = self.lab.Router([self.states[i] for i in left])
            order.append(left.pop(others.pick(hashes)))
        return order

    # --------------------------------------------------------------------------------- requests

    @asynccontextmanager
    async def opened(
        self, index: int, method: str, path: str, **options: Any
    ) -> AsyncIterator[httpx2.Response]:
        """Send a request and yield the response when its headers are there.

        A kept connection may have died unseen, which is no fault of the replica: then the request
        is sent again, on a new one. Raises httpx2.HTTPError.
        """
        request, is_new = (method, self.urls[index] + path), False

        async def note(event: str, about: dict[str, Any]) -> None:
            nonlocal is_new
            is_new = is_new or event.startswith("connection.connect_tcp")

        async with AsyncExitStack() as stack:
            first = self.client.stream(*request, **options, extensions={"trace": note})
            try:
                response = await stack.enter_async_context(first)
            except (httpx2.NetworkError, httpx2.RemoteProtocolError):
                if is_new:
                    raise
                again = self.new_client.stream(*request, **options)
                response = await stack.enter_async_context(again)
            yield response

    async def look(
        self, index: int, path: str, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Return the status and the body of an answer; 0 and nothing if there is none in time."""
        options: Any = {"headers": headers, "timeout": None}
        try:
            async with (
                asyncio.timeout(CHECK_WITHIN),
                self.opened(index, "GET", path, **options) as response,
            ):
                return response.status_code, await bounded(response)
        except (httpx2.HTTPError, TimeoutError, TooMuch):
            return 0, b""

    async def get_all(self, path: str, headers: dict[str, str]) -> list[tuple[int, bytes]]:
        """Return the indexes of the healthy replicas, and what each tells; b"" for nothing."""
        indexes = self.healthy()
        looks = await asyncio.gather(*(self.look(i, path, headers) for i in indexes))
        bodies = [body if status == 200 else b"" for status, body in looks]
        return list(zip(indexes, bodies, strict=True))

    async def events(
        self, index: int, path: str, headers: dict[str, str]
    ) -> AsyncGenerator[bytes, None]:
        """Yield the data of a stream that a replica may have beside OpenAI's API."""
        url = self.urls[index] + path
        most = httpx2.Timeout(BETWEEN_EVENTS, connect=CHECK_WITHIN)
        async with self.client.stream("GET", url, headers=headers, timeout=most) as response:
            if is_event_stream(response):
                async with aclosing(whole_events(response.aiter_raw())) as pieces:
                    async for piece in pieces:
                        for data in data_of(piece):
                            yield data


def checked(url: str) -> str:
    """Return the address of a replica without a path. Raises ValueError if it is none."""
    parts = urlsplit(url)
    is_plain = parts.path.rstrip("/") in ("", "/v1") and not (parts.query or parts.username)
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain:
        raise ValueError(
            f"{url!r} isn't the address of a server. Give one such as http://127.0.0.1:8001."
        )
    return f"{parts.scheme}://{parts.netloc}"


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
        data = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def is_event_stream(response: httpx2.Response) -> bool:
    """Whether a replica sends events. Compressed ones can't be told apart."""
    is_plain = response.headers.get("content-encoding", "identity") == "identity"
    return is_plain and response.headers.get("content-type", "").startswith("text/event-stream")
