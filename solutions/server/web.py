"""What a server and a router have in common: errors that say what was wrong, the page, streams."""

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, JSONResponse, Response
from prometheus_client import Counter
from starlette.exceptions import HTTPException

from solutions.server.access import Access
from solutions.server.guard import Guard
from solutions.server.protocol import Refusal, error_response
from solutions.server.settings import Settings

LOOKS = ["GET", "HEAD"]  # methods that change nothing
PAGE = Path(__file__).with_name("page.html")


def plain_app(settings: Settings, lifespan: Any, responses: Counter) -> FastAPI:
    """Return an app without routes whose errors are all of OpenAI's form. responses: counts them.

    `app.state.stop` ends the server; `app.state.fault` is then a sentence that says why.
    """
    app = FastAPI(title="Inference workbook", lifespan=lifespan, docs_url=None, redoc_url=None,
                  openapi_url=None)  # fmt: skip
    app.state.stop, app.state.fault = lambda: None, None
    app.add_middleware(Guard, settings=settings)
    if settings.origins:  # a page of another origin asks before it calls, without a key
        app.add_middleware(
            CORSMiddleware, allow_origins=settings.origins, allow_methods=["*"],
            allow_headers=["*"], expose_headers=["retry-after", "x-request-id"],
        )  # fmt: skip
    app.add_middleware(Access, responses=responses, log=settings.log)

    @app.exception_handler(Refusal)
    async def refused(request: Request, refusal: Refusal) -> Response:
        return refusal.response

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        param, sentence = sentence_of(error)
        return error_response(400, sentence, param=param)

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        sentences = {
            400: unreadable(error.__cause__),
            404: "There is no such path.",
            405: "This path takes another method.",
        }
        sentence = sentences.get(error.status_code, "The request failed.")
        return error_response(error.status_code, sentence, headers=error.headers)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        return error_response(500, "The server failed on this request.")

    return app


def add_looks(app: FastAPI, service: Any) -> None:
    """Add the routes that change nothing: methods of a server's or a router's service, the page."""
    for path, endpoint in (
        ("/v1/models", service.models),
        ("/v1/models/{name:path}", service.model),
        ("/health", service.health),
        ("/metrics", service.figures),
        ("/", page),
    ):
        app.api_route(path, methods=LOOKS)(endpoint)
    app.get("/live")(service.live)


def unreadable(cause: BaseException | None) -> str:
    """Return a sentence about a body that can't be read as JSON, by the error that it gave."""
    if isinstance(cause, UnicodeDecodeError):
        return "The body isn't UTF-8."
    if isinstance(cause, RecursionError):
        return "The body is nested too deeply."
    if isinstance(cause, ValueError):
        return "The body has a number of too many digits."
    return "The request failed."


def sentence_of(error: RequestValidationError) -> tuple[str | None, str]:
    """Return which parameter of a body is wrong, and a sentence about the first thing that is."""
    first, body = error.errors()[0], error.body
    if isinstance(body, bytes):
        return None, "The body must be JSON, and its content type application/json."
    if not isinstance(body, dict):
        return None, "The body must be a JSON object."
    path = path_of(first["loc"][1:], body)
    if first["type"].startswith("union_tag"):  # the field by which the members of a union differ
        field = first["ctx"]["discriminator"].strip("'")
        known = first["ctx"].get("expected_tags")
        told = f"input should be one of {known}" if known else "it is missing"
        return f"{path}.{field}", f"`{path}.{field}`: {told}."
    if path.startswith(("prompt", "input")):
        param = first["loc"][1]
        return param, (
            f"`{param}` must be a text, a list of token ids, or a list of either, and not empty or "
            "too long."
        )
    subject = f"`{path}`{of_the_role(first['loc'], body)}"
    if first["type"] == "extra_forbidden":
        return path, f"{subject} would change the answer, and is not supported here."
    if first["type"] == "missing":
        return path, f"{subject} is missing."
    sentence = first["msg"].removeprefix("Value error, ")
    return path, f"{subject}: {sentence[0].lower()}{sentence[1:]}."


def path_of(place: Sequence[str | int], body: Any) -> str:
    """Return a place in a body as code writes it: `messages[1].content`.

    Names of pydantic's own, of the members of a union, are left out: the body has nothing there.
    """
    path = ""
    for step, part in enumerate(place):
        is_last = step == len(place) - 1
        if isinstance(part, int):
            path += f"[{part}]" if isinstance(body, list) else ""
        elif part != "[key]" and (is_last or (isinstance(body, dict) and part in body)):
            path += f".{part[:100]}" if path else part[:100]
        else:
            continue
        try:
            body = body[part]
        except (KeyError, IndexError, TypeError):
            body = None
    return path


def of_the_role(place: Sequence[str | int], body: dict[str, Any]) -> str:
    """Return whose message it is, for a place in one."""
    if len(place) < 4 or place[1] != "messages" or place[-1] == "role":
        return ""
    message = body["messages"][place[2]]
    role = message.get("role") if isinstance(message, dict) else None
    return f" (role {role[:20]!r})" if isinstance(role, str) else ""


@cache
def page_and_policy() -> tuple[str, str]:
    """Return the page, and a policy that allows only its own script and style."""
    html = PAGE.read_text(encoding="utf-8")
    hashes = {
        tag: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for tag, text in re.findall(r"<(script|style)>(.*?)</\1>", html, re.DOTALL)
    }
    policy = (
        "default-src 'none'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; "
        + "; ".join(f"{tag}-src 'sha256-{digest}'" for tag, digest in hashes.items())
    )
    return html, policy


async def page() -> Response:
    html, policy = page_and_policy()
    return HTMLResponse(html, headers={"content-security-policy": policy})


def health_response(status: str) -> Response:
    """Return the answer to a look at the health, which is well if it is "ok"."""
    if status == "ok":
        return JSONResponse({"status": status})
    return JSONResponse({"status": status}, 503, {"retry-after": "5"})


class Exposition(Response):
    """Figures for Prometheus."""

    media_type = "text/plain; version=0.0.4; charset=utf-8"


def view_event(data: dict[str, Any]) -> bytes:
    """Return an event of /live."""
    return f"data: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


class Events(Response):
    """A stream of server-sent events, which is closed as soon as its client has left."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__()
        del self.headers["content-length"]
        self.events = events

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await unless_left(receive, self.send_all(send))

    async def send_all(self, send: Any) -> None:
        """Send the events. They begin before anything is sent, because sending may have to wait.

        If it waits and the client leaves, events that haven't begun would also clean up nothing.
        """
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        async with aclosing(self.events) as events:
            event = await anext(events, b"")
            await send(start)
            while event:
                await send({"type": "http.response.body", "body": event, "more_body": True})
                event = await anext(events, b"")
        await send({"type": "http.response.body", "body": b""})


async def unless_left(receive: Any, work: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of `work`; cancel it, and return None, as soon as the client has left.

    Starlette only listens for that while it streams.
    """

    async def left() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(left())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)
