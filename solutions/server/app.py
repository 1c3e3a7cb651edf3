"""The HTTP side: routes, streamed and whole answers, and errors that say what was wrong."""

import asyncio
import base64
import hashlib
import json
import logging
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException

from solutions.server.engine_process import EngineProcess
from solutions.server.engine_thread import EngineThread
from solutions.server.guard import Guard
from solutions.server.messages import EngineFault
from solutions.server.metrics import spread
from solutions.server.protocol import (
    ChatBody,
    CompletionBody,
    Refusal,
    error_response,
    head_of,
)  # fmt: skip
from solutions.server.service import Answer, Piece, Service, joined
from solutions.server.settings import Settings

PAGE = Path(__file__).with_name("page.html")
LOOK_EVERY = 0.2  # seconds between two events of /live
log = logging.getLogger("workbook")


def new_app(settings: Settings, lab: Any, engine: EngineThread | EngineProcess) -> FastAPI:
    """Return the app that serves an engine. lab: lab 13's names."""
    service = Service(settings, lab, engine)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start(died)
        yield
        service.stop()

    def died() -> None:
        app.state.fault = "The engine's process has ended by itself, so the server has stopped."
        app.state.stop()

    app = plain_app(settings, lifespan)
    app.state.service = service

    @app.exception_handler(EngineFault)
    async def fault(request: Request, error: Exception) -> Response:
        return error_response(500, "The server failed on this request.")

    @app.exception_handler(lab.ServiceError)
    async def told(request: Request, error: Exception) -> Response:
        return error_response(503, str(error), retry_after=5)

    @app.post("/v1/completions")
    async def completions(body: CompletionBody, request: Request) -> Response:
        answer = service.admit(body)
        head = head_of("text_completion", answer.id, body.model)
        if body.stream:
            return EventStream(service, answer, completion_choices(service, answer), head)
        pieces = await unless_left(request.receive, whole(service, answer))
        choices = [service.completion_choice(piece) for piece in pieces or []]
        return JSONResponse({**head, "choices": choices, "usage": answer.usage()})

    @app.post("/v1/chat/completions")
    async def chat(body: ChatBody, request: Request) -> Response:
        answer = service.admit(body)
        if body.stream:
            head = head_of("chat.completion.chunk", answer.id, body.model)
            return EventStream(service, answer, chat_choices(service, answer), head)
        head = head_of("chat.completion", answer.id, body.model)
        pieces = await unless_left(request.receive, whole(service, answer))
        choices = [service.chat_choice(piece, is_whole=True) for piece in pieces or []]
        return JSONResponse({**head, "choices": choices, "usage": answer.usage()})

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        name = service.settings.name
        served = {"id": name, "object": "model", "created": 0, "owned_by": "inference-workbook"}
        return {"object": "list", "data": [served]}

    @app.get("/health")
    async def health() -> Response:
        if service.is_draining:
            return JSONResponse({"status": "draining"}, 503, {"retry-after": "5"})
        return JSONResponse({"status": "ok"})

    @app.get("/metrics")
    async def metrics() -> Response:
        text = service.metrics.exposition(service.engine.view)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/live")
    async def live() -> Response:
        return Events(views(service))

    @app.get("/")
    async def page() -> Response:
        return page_response()

    return app


def plain_app(settings: Settings, lifespan: Any) -> FastAPI:
    """Return an app without routes whose errors are all of OpenAI's form.

    `app.state.stop` ends the server; `app.state.fault` is then a sentence that says why.
    """
    app = FastAPI(title="Inference workbook", lifespan=lifespan, docs_url=None, redoc_url=None,
                  openapi_url=None)  # fmt: skip
    app.state.stop, app.state.fault = lambda: None, None
    app.add_middleware(Guard, settings=settings)

    @app.exception_handler(Refusal)
    async def refused(request: Request, refusal: Refusal) -> Response:
        return error_response(
            refusal.status, str(refusal), refusal.code, refusal.param, refusal.retry_after
        )

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        param, told = sentence_of(error)
        return error_response(400, told, param=param)

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, error: HTTPException) -> Response:
        told = {404: "There is no such path.", 405: "This path takes another method."}
        return error_response(error.status_code, told.get(error.status_code, "The request failed."))

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        return error_response(500, "The server failed on this request.")

    return app


def sentence_of(error: RequestValidationError) -> tuple[str | None, str]:
    """Return which parameter of a body is wrong, and a sentence about the first thing that is."""
    first = error.errors()[0]
    place = [str(part) for part in first["loc"][1:]]
    if first["type"] == "json_invalid" or not place:
        return None, "The body must be a JSON object."
    if place[0] == "prompt":
        told = "must be a text, a list of token ids, or a list of either, and not empty or too long"
        return "prompt", f"`prompt` {told}."
    if first["type"] == "extra_forbidden":
        return place[0], f"`{place[0][:100]}` is not supported here."
    if first["type"] == "missing":
        return place[0], f"`{'.'.join(place)}` is missing."
    return place[0], f"`{place[0]}`: {first['msg'][0].lower()}{first['msg'][1:]}."


def page_response() -> Response:
    """Return the page, with a policy that allows only its own script and style."""
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
    return HTMLResponse(html, headers={"content-security-policy": policy})


# ---------------------------------------------------------------------------------------- answers


async def whole(service: Service, answer: Answer) -> list[Piece]:
    async with aclosing(service.write(answer)) as written:
        return joined([piece async for piece in written])


async def completion_choices(service: Service, answer: Answer) -> AsyncGenerator[Any, None]:
    offsets: dict[int, int] = {}
    async with aclosing(service.write(answer)) as written:
        async for piece in written:
            offset = offsets.get(piece.index, 0)
            offsets[piece.index] = offset + len(piece.text)
            yield service.completion_choice(piece, offset)


async def chat_choices(service: Service, answer: Answer) -> AsyncGenerator[Any, None]:
    async with aclosing(service.write(answer)) as written:
        async for piece in written:
            yield service.chat_choice(piece)


async def views(service: Service) -> AsyncGenerator[bytes, None]:
    """Yield what the page shows of the engine, as events."""
    while not service.is_draining:
        metrics = service.metrics
        totals = metrics.totals
        data = {
            "model": service.settings.name,
            "technique": service.settings.technique,
            "seconds": time.monotonic() - service.began,
            **service.engine.view,
            "n_positions": service.facts.n_positions,
            "prompt_tokens": totals["prompt"],
            "cached_tokens": totals["cached"],
            "completion_tokens": totals["completion"] + totals["aborted"],
            "refused": totals["refused"],
            "tokens_per_second": metrics.per_second(),
            "ttft": spread(metrics.latest_ttft),
            "tpot": spread(metrics.latest_tpot),
        }
        yield f"data: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
        await asyncio.sleep(LOOK_EVERY)


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
        start = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **start})
        async with aclosing(self.events) as events:
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


class EventStream(Events):
    """A streamed answer, made into events by the lab's `sse`."""

    def __init__(
        self, service: Service, answer: Answer, choices: AsyncGenerator[Any, None], head: Any
    ) -> None:
        usage: Callable[[], Any] | None = answer.usage if answer.body.include_usage else None
        super().__init__(service.lab.sse(choices, head, usage))
        self.choices = choices

    async def send_all(self, send: Any) -> None:
        async with aclosing(self.choices):  # `sse` needn't close what it reads
            await super().send_all(send)


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
