"""What stands before the app: who may call it, and how much they may send.

A server on a laptop is within reach of every web page that its user opens. Such a page can't read
the answers of another origin, but it can send requests, and by DNS rebinding it can give the server
a name of its own. So the Host header must be a name of this machine, and a request that says it
comes from another origin is refused.

Source: Fetch Standard, section 3.1 (Origin); OWASP, "Cross-site request forgery prevention".
"""

import contextlib
import hmac
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from solutions.server.protocol import error_response
from solutions.server.settings import LOOPBACK, Settings, host_name

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


class Unread(Exception):
    """The body is longer than the server takes, or can't be read to its end."""


class Guard:
    """ASGI middleware. app: what it guards."""

    def __init__(self, app: Any, settings: Settings) -> None:
        self.app, self.settings = app, settings
        self.hosts = {*LOOPBACK, *map(host_name, settings.hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        has_started, size, refusal = False, 0, self.refusal(scope)

        async def answered(message: Any) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                message = {**message, "headers": [*message["headers"], *HEADERS]}
            await send(message)

        async def answered_by_app(message: Any) -> None:
            if has_started or refusal is None:  # else the app only says that it got no body
                await answered(message)

        async def received() -> Any:
            nonlocal size, refusal
            message = await receive()
            size += len(message.get("body", b""))
            refusal = self.fault(scope, size)
            if refusal is not None:
                raise Unread
            return message

        if refusal is None:
            with contextlib.suppress(Unread):
                await self.app(scope, received, answered_by_app)
        if refusal is not None and not has_started:
            await refusal(scope, receive, answered)

    def refusal(self, scope: Scope) -> Any:
        """Return the error that answers a request which must not reach the app, or None."""
        if fault := self.fault(scope):
            return fault
        headers = dict(scope["headers"])
        if [name for name, _ in scope["headers"]].count(b"host") > 1:
            return error_response(400, "A request has one Host header.")
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if re.sub(r":\d+$", "", host) not in self.hosts:
            sentence = f"The server isn't known as {host[:100]!r}. It can be, with --name."
            return error_response(403, sentence)
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        is_foreign = origin and origin not in (f"http://{host}", f"https://{host}")
        is_cross_site = headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site")
        if (is_foreign or is_cross_site) and origin not in self.settings.origins:
            return error_response(403, "Requests from pages of another origin are refused.")
        key, authorization = self.settings.api_key, headers.get(b"authorization", b"")
        is_open = key is None or scope["path"] in OPEN_PATHS
        if not (is_open or hmac.compare_digest(authorization, f"Bearer {key}".encode())):
            sentence = "The API key is missing or wrong."
            return error_response(
                401, sentence, "invalid_api_key", headers={"www-authenticate": "Bearer"}
            )
        length = headers.get(b"content-length", b"0")
        return self.fault(scope, int(length) if length.isdigit() else 0)

    def fault(self, scope: Scope, size: int = 0) -> Any:
        """Return the error that answers a request which can't be read to its end, or None.

        size: bytes of its body. They are counted as they come, because a length may be left out.
        """
        if sentence := scope.get("state", {}).get("fault"):
            return error_response(*sentence)
        if size > self.settings.max_body:
            return error_response(413, f"The body has more than {self.settings.max_body:,} bytes.")
        return None
