"""The app that serves an engine: routes, streamed and whole answers, and what the page shows."""

import asyncio
import base64
import json
import sys
import time
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from solutions.server.engine_process import EngineProcess
from solutions.server.engine_thread import EngineThread
from solutions.server.messages import EngineFault
from solutions.server.metrics import spread
from solutions.server.protocol import (
    ChatBody,
    CompletionBody,
    EmbeddingBody,
    Refusal,
    error_response,
    head_of,
)
from solutions.server.service import Answer, Piece, Service, joined
from solutions.server.settings import Labs, Settings, reference
from solutions.server.web import LOOKS, Events, page_response, plain_app, unless_left

LOOK_EVERY = 0.2  # seconds between two events of /live
OWNER = "inference-workbook"


def new_app(
    settings: Settings,
    lab: Any,
    engine: EngineThread | EngineProcess,
    labs: Labs = reference,
) -> FastAPI:
    """Return the app that serves an engine. lab: lab 13's names; labs: where lab 14's are from."""
    service = Service(settings, lab, engine, labs)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start(died)
        yield
        service.stop()

    def died() -> None:
        app.state.fault = "The engine's process has ended by itself, so the server has stopped."
        app.state.stop()

    app = plain_app(settings, lifespan, service.metrics.responses)
    app.state.service = service
    served = {"id": settings.name, "object": "model", "created": 0, "owned_by": OWNER}

    @app.exception_handler(EngineFault)
    async def fault(request: Request, error: Exception) -> Response:
        return error_response(500, "The server failed on this request.")

    @app.exception_handler(lab.ServiceError)
    async def told(request: Request, error: Exception) -> Response:
        return error_response(503, str(error), retry_after=5)

    async def admitted(body: CompletionBody | ChatBody, request: Request) -> Answer:
        """Admit a request, with the form of its answer if it asks for one."""
        if body.answer_schema is None:
            return service.admit(body)
        schema = await unless_left(request.receive, service.schema_of(body))
        if schema is None:
            raise Refusal(400, "The client has left.")
        return service.admit(body, schema)

    @app.post("/v1/completions")
    async def completions(body: CompletionBody, request: Request) -> Response:
        answer = await admitted(body, request)
        head = head_of("text_completion", answer.id, body.model)
        if body.stream:
            return EventStream(service, answer, completion_choices(service, answer), head)
        pieces = await unless_left(request.receive, whole(service, answer))
        choices = [service.completion_choice(piece) for piece in pieces or []]
        return JSONResponse({**head, "choices": choices, "usage": answer.usage()})

    @app.post("/v1/chat/completions")
    async def chat(body: ChatBody, request: Request) -> Response:
        answer = await admitted(body, request)
        if body.stream:
            head = head_of("chat.completion.chunk", answer.id, body.model)
            return EventStream(service, answer, chat_choices(service, answer), head)
        head = head_of("chat.completion", answer.id, body.model)
        pieces = await unless_left(request.receive, whole(service, answer))
        choices = [service.chat_choice(piece, is_whole=True) for piece in pieces or []]
        return JSONResponse({**head, "choices": choices, "usage": answer.usage()})

    @app.post("/v1/embeddings")
    async def embeddings(body: EmbeddingBody, request: Request) -> Response:
        answer = service.admit(body.as_completion, is_embedding=True)
        await unless_left(request.receive, whole(service, answer))
        used = {"prompt_tokens": answer.prompt_tokens, "total_tokens": answer.prompt_tokens}
        data = [
            {"object": "embedding", "index": index, "embedding": encoded(body, embedding)}
            for index, embedding in sorted(answer.embeddings.items())
        ]
        return JSONResponse({"object": "list", "data": data, "model": body.model, "usage": used})

    @app.api_route("/v1/models", methods=LOOKS)
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [served]}

    @app.api_route("/v1/models/{name:path}", methods=LOOKS)
    async def model(name: str) -> dict[str, Any]:
        service.require_model(name)
        return served

    @app.api_route("/health", methods=LOOKS)
    async def health() -> Response:
        if service.is_draining:
            return JSONResponse({"status": "draining"}, 503, {"retry-after": "5"})
        if time.monotonic() > service.engine.heard + settings.silent:
            return JSONResponse({"status": "the engine hangs"}, 503, {"retry-after": "5"})
        return JSONResponse({"status": "ok"})

    @app.api_route("/metrics", methods=LOOKS)
    async def metrics() -> Response:
        text = service.metrics.exposition(service.engine.view)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/live")
    async def live() -> Response:
        return Events(views(service))

    @app.api_route("/", methods=LOOKS)
    async def page() -> Response:
        return page_response()

    return app


# ---------------------------------------------------------------------------------------- answers


async def whole(service: Service, answer: Answer) -> list[Piece]:
    async with aclosing(service.write(answer)) as written:
        return joined([piece async for piece in written])


def encoded(body: EmbeddingBody, embedding: list[float]) -> list[float] | str:
    """Return an embedding as numbers, or as the bytes of 32-bit floats in base64."""
    if body.encoding_format == "float":
        return embedding
    floats = array("f", embedding)
    if sys.byteorder == "big":
        floats.byteswap()
    return base64.b64encode(floats).decode()


async def completion_choices(service: Service, answer: Answer) -> AsyncGenerator[Any, None]:
    async with aclosing(service.write(answer)) as written:
        async for piece in written:
            yield service.completion_choice(piece)


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
