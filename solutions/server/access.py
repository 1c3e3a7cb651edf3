"""What an operator sees of every request: its id, its status, and a line of the log if wanted."""

import json
import logging
import re
import secrets
import sys
import time
from datetime import UTC, datetime
from typing import Any

from prometheus_client import Counter

from solutions.server.guard import Receive, Scope, Send

GIVEN_ID = re.compile(rb"[\w.:-]{1,128}", re.ASCII)  # what a log may repeat
LEFT, FAILED = 499, 500  # of requests without an answer; the first one is nginx's


class Access:
    """ASGI middleware. Clients and replicas get the request's id, which is the client's own if it
    has sent one. responses: counts answers by their status.
    """

    def __init__(self, app: Any, responses: Counter, log: bool) -> None:
        self.app, self.responses, self.log = app, responses, new_log() if log else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status, size = time.monotonic(), LEFT, 0
        client_id = dict(scope["headers"]).get(b"x-request-id", b"")
        request_id = client_id if GIVEN_ID.fullmatch(client_id) else secrets.token_hex(8).encode()
        scope.setdefault("state", {})["request_id"] = request_id.decode()  # Ray leaves it out

        async def sent(message: Any) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                with_id = [*message["headers"], (b"x-request-id", request_id)]
                message = {**message, "headers": with_id}
            size += len(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, receive, sent)
        except Exception:
            status = FAILED
            raise
        finally:
            self.responses.labels(status).inc()
            if self.log is not None:
                self.log.info(line(scope, status, time.monotonic() - began, size))


def line(scope: Scope, status: int, seconds: float, size: int) -> str:
    """Return a request as JSON. Neither its text nor its key is in it."""
    return json.dumps(
        {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "id": scope["state"]["request_id"],
            "client": (scope["client"] or ("",))[0],
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "seconds": round(seconds, 4),
            "bytes": size,
        }
    )


def new_log() -> logging.Logger:
    """Return a log of bare lines on stderr, because replicas tell their address on stdout."""
    log = logging.getLogger("workbook.access")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.handlers = [logging.StreamHandler(sys.stderr)]
    return log
