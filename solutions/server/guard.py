"""What stands before the app: who may call it, and how much they may send.

A server on a laptop is within reach of every web page that its user opens. Such a page can't read
the answers of another origin, but it can send requests, and by DNS rebinding it can give the server
a name of its own. So the Host header must be a name of this machine, and a request that says it
comes from another origin is refused.

Source: Fetch Standard, section 3.1 (Origin); OWASP, "Cross-site request forgery prevention".
"""

import hmac
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from solutions.server.protocol import error_response
from solutions.server.settings import LOOPBACK, Settings

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]
OPEN_PATHS = {"/", "/health"}  # without an API key


class TooLarge(Exception):
    """The body is longer than the server takes."""


class Guard:
    """ASGI middleware. app: what it guards."""

    def __init__(self, app: Any, settings: Settings) -> None:
        self.app, self.settings = app, settings
        self.hosts = {*LOOPBACK, *settings.hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        has_started = False

        async def sent(message: Any) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                message = {**message, "headers": [*message["headers"], *HEADERS]}
            await send(message)

        if refusal := self.refusal(scope):
            await refusal(scope, receive, sent)
            return
        try:
            await self.app(scope, self.limited(receive), sent)
        except TooLarge:
            if not has_started:
                await self.too_large()(scope, receive, sent)

    def refusal(self, scope: Scope) -> Any:
        """Return the error that answers a request which must not reach the app, or None."""
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        name = re.sub(r":\d+$", "", host)
        if name not in self.hosts:
            return error_response(403, "The server isn't known by the name in the Host header.")
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        is_foreign = origin and origin not in (f"http://{host}", f"https://{host}")
        if is_foreign or headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site"):
            return error_response(403, "Requests from pages of another origin are refused.")
        key, given = self.settings.api_key, headers.get(b"authorization", b"")
        is_open = key is None or scope["path"] in OPEN_PATHS
        if not (is_open or hmac.compare_digest(given, f"Bearer {key}".encode())):
            told = "The API key is missing or wrong."
            return error_response(
                401, told, "invalid_api_key", headers={"www-authenticate": "Bearer"}
            )
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self.settings.max_body:
            return self.too_large()
        return None

    def too_large(self) -> Any:
        most = self.settings.max_body
        return error_response(413, f"The body has more than {most:,} bytes.")

    def limited(self, receive: Receive) -> Receive:
        """Return a `receive` that counts the body's bytes, because a length may be left out."""
        count = 0

        async def received() -> Any:
            nonlocal count
            message = await receive()
            count += len(message.get("body", b""))
            if count > self.settings.max_body:
                raise TooLarge
            return message

        return received
