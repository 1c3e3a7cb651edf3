"""The app that serves an engine: its routes, its beginning and its end, and what the page shows."""

import asyncio
import base64
import sys
import time
from array import array
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from solutions.server.answers import Answer, Answers, Form, Outputs
from solutions.server.chats import ChatBody
from solutions.server.engine_process import EngineProcess
from solutions.server.engine_thread import EngineThread
from solutions.server.messages import AnswerLanguage, EngineFault
from solutions.server.metrics import Metrics, spread
from solutions.server.protocol import (
    AdapterBody,
    CompletionBody,
    EmbeddingBody,
    Refusal,
    error_response,
    head_of,
)
from solutions.server.requests import Body, Requests
from solutions.server.served_models import ServedAdapters
from solutions.server.settings import Labs, Settings, reference
from solutions.server.web import (
    Events,
    Exposition,
    add_looks,
    health_response,
    plain_app,
    unless_left,
    view_event,
)

LOOK_EVERY = 0.2  # seconds between two events of /live
OWNER = "inference-workbook"
DEAD = "The engine's process has ended by itself, so the server has stopped."


def new_app(
    settings: Settings, engine: EngineThread | EngineProcess, labs: Labs = reference
) -> FastAPI:
    """Return the app that serves an engine. labs: where the labs' parts come from."""
    service = Service(settings, engine, cache(labs))  # a learner's are checked at each call
    app = plain_app(settings, service.open, service.metrics.responses)
    app.state.service = service
    app.add_exception_handler(EngineFault, service.engine_fault)
    app.add_exception_handler(service.lab.ServiceError, service.service_error)
    app.post("/v1/completions")(service.completions)
    app.post("/v1/chat/completions")(service.chat)
    app.post("/v1/embeddings")(service.embeddings)
    app.post("/v1/load_lora_adapter")(service.load_adapter)
    app.post("/v1/unload_lora_adapter")(service.unload_adapter)
    add_looks(app, service)
    return app


class Service:
    """One model behind one engine."""

    def __init__(
        self, settings: Settings, engine: EngineThread | EngineProcess, labs: Labs
    ) -> None:
        self.settings, self.engine, self.lab = settings, engine, labs("serving")
        self.metrics = Metrics(settings.name)
        self.adapters = ServedAdapters(settings, engine, labs)
        self.requests = Requests(settings, labs, engine.facts, self.metrics, self.adapters)
        self.answers = Answers(engine, labs, self.requests, self.metrics)
        self.is_draining = False
        self.began = time.monotonic()

    # --------------------------------------------------------------------- beginning and end

    @asynccontextmanager
    async def open(self, app: FastAPI) -> AsyncIterator[None]:
        """Serve in the event loop that runs now."""
        loop = asyncio.get_running_loop()

        def on_death() -> None:
            app.state.fault = DEAD
            self.is_draining = True
            loop.call_soon_threadsafe(self.answers.fail, EngineFault())
            loop.call_soon_threadsafe(app.state.stop)

        def deliver(outputs: Outputs) -> None:
            loop.call_soon_threadsafe(self.answers.receive, outputs)

        self.engine.deliver = deliver
        self.engine.on_death = on_death
        self.engine.start()
        yield
        self.requests.languages.reader.shutdown(wait=False, cancel_futures=True)
        self.engine.stop()

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, let the running ones end, and fail those that take longer."""
        self.is_draining, running = True, self.answers.running
        latest = time.monotonic() + seconds
        while running and time.monotonic() < latest:
            await asyncio.sleep(0.02)
        for request_id in self.answers.pool.queues:
            self.engine.abort(request_id)
        self.answers.fail(self.lab.ServiceError("The server is shutting down."))
        while running and time.monotonic() < latest + 1:
            await asyncio.sleep(0.02)

    async def engine_fault(self, request: Request, error: Exception) -> Response:
        return error_response(500, "The server failed on this request.")

    async def service_error(self, request: Request, error: Exception) -> Response:
        return error_response(503, str(error), retry_after=5)

    # ------------------------------------------------------------------------------- requests

    async def completions(self, body: CompletionBody, request: Request) -> Response:
        return await self.written(body, request, "text_completion", self.answers.completion)

    async def chat(self, body: ChatBody, request: Request) -> Response:
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        return await self.written(body, request, kind, partial(self.answers.chat, body))

    async def written(self, body: Body, request: Request, kind: str, form: Form) -> Response:
        """Return the answer to a body, as events or whole."""
        language = None
        if body.is_bound:
            language = await unless_left(request.receive, self.requests.languages.of(body))
            if language is None:
                raise Refusal(400, "The client has left.")
        answer = self.admitted(body, language)
        head = head_of(kind, answer.id, body.model)
        if body.stream:
            return Events(self.answers.events(answer, form, head))
        pieces = await unless_left(request.receive, self.answers.whole(answer))
        choices = [form(piece) for piece in pieces or []]
        return JSONResponse({**head, "choices": choices, "usage": answer.usage()})

    async def embeddings(self, body: EmbeddingBody, request: Request) -> Response:
        answer = self.admitted(body.as_completion, is_embedding=True)
        await unless_left(request.receive, self.answers.whole(answer))
        used = {"prompt_tokens": answer.prompt_tokens, "total_tokens": answer.prompt_tokens}
        data = [
            {"object": "embedding", "index": index, "embedding": encoded(body, embedding)}
            for index, embedding in sorted(answer.embeddings.items())
        ]
        return JSONResponse({"object": "list", "data": data, "model": body.model, "usage": used})

    def admitted(
        self, body: Body, language: AnswerLanguage | None = None, is_embedding: bool = False
    ) -> Answer:
        """Admit a body's texts, and return the answer that will hold them. Raises Refusal."""
        if self.is_draining:
            raise Refusal(503, "The server is shutting down. Try another one.", retry_after=5)
        texts = self.requests.texts_of(body, language, is_embedding)
        self.requests.admit(texts)
        return self.answers.new(body, texts)

    async def load_adapter(self, body: AdapterBody) -> dict[str, Any]:
        try:
            matrices = await asyncio.to_thread(self.adapters.read, body.lora_name)
        except ValueError as error:
            raise Refusal(400, str(error), param="lora_name") from None
        self.adapters.add(body.lora_name, matrices)
        return await self.model(f"{self.settings.name}:{body.lora_name}")

    async def unload_adapter(self, body: AdapterBody) -> dict[str, Any]:
        removed = await self.model(f"{self.settings.name}:{body.lora_name}")
        self.adapters.drop(body.lora_name)
        return {"id": removed["id"], "object": "model", "deleted": True}

    # -------------------------------------------------------------------------- what is looked at

    async def models(self) -> dict[str, Any]:
        return {"object": "list", "data": [await self.model(name) for name in self.adapters.models]}

    async def model(self, name: str) -> dict[str, Any]:
        found = {"id": name, "object": "model", "created": 0, "owned_by": OWNER}
        is_base = self.adapters.find(name) is None
        return found if is_base else {**found, "parent": self.settings.name}

    async def health(self) -> Response:
        is_hung = time.monotonic() > self.engine.heard + self.settings.silent
        if self.is_draining:
            return health_response("draining")
        return health_response("the engine hangs" if is_hung else "ok")

    async def figures(self) -> Response:
        return Exposition(self.metrics.exposition(self.engine.view))

    async def live(self) -> Response:
        return Events(self.views())

    async def views(self) -> AsyncGenerator[bytes, None]:
        """Yield what the page shows of the engine, as events."""
        metrics, totals = self.metrics, self.metrics.totals
        while not self.is_draining:
            yield view_event(
                {
                    "model": self.settings.name,
                    "technique": self.settings.technique,
                    "seconds": time.monotonic() - self.began,
                    **self.engine.view,
                    "n_positions": self.engine.facts.context,
                    "chats": self.requests.template is not None,
                    "thinks": self.requests.thinks,
                    "prompt_tokens": totals["prompt"],
                    "cached_tokens": totals["cached"],
                    "completion_tokens": totals["completion"] + totals["aborted"],
                    "refused": totals["refused"],
                    "tokens_per_second": metrics.per_second(),
                    "ttft": spread(metrics.latest_ttft),
                    "tpot": spread(metrics.latest_tpot),
                }
            )
            await asyncio.sleep(LOOK_EVERY)


def encoded(body: EmbeddingBody, embedding: list[float]) -> list[float] | str:
    """Return an embedding as numbers, or as the bytes of 32-bit floats in base64."""
    if body.encoding_format == "float":
        return embedding
    floats = array("f", embedding)
    if sys.byteorder == "big":
        floats.byteswap()
    return base64.b64encode(floats).decode()
