"""The router's HTTP side: one address for many replicas, with the same API and the same page."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from solutions.router.figures import Figures, LiveView
from solutions.router.prefixes import prompt_hashes
from solutions.router.relay import PassedOn, Relay
from solutions.router.replicas import Replicas, json_object
from solutions.server.protocol import Refusal, error_response
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
NO_ANSWER = "No replica could serve the request. Try again later."
TOO_LATE = "No replica has answered in time. Try again later."
BROKEN = "The replica that wrote this answer has failed."
SHUTTING_DOWN = "The server is shutting down."


def new_router_app(
    settings: Settings, urls: Sequence[str], labs: Labs = reference, pause: float = 0
) -> FastAPI:
    """Return the app that passes requests on to the servers at `urls`. labs: where lab 13 is from.

    pause: seconds before another replica is tried, for a cluster that is given as one URL several
    times, and that needs a moment to notice what has died in it. `app.state.router` is the service.
    Raises ValueError for an address that is none.
    """
    service = RouterService(urls, labs("serving"), pause)
    app = plain_app(settings, service.open, service.metrics.responses)
    app.state.router = service
    for path in "/v1/completions", "/v1/chat/completions", "/v1/embeddings":
        app.post(path)(service.write)
    add_looks(app, service)
    return app


class RouterService:
    """Passes requests on to replicas. lab: the names of lab 13, the reference's or a learner's.

    running: the requests that are being served, each with the timeout that can end it.
    """

    def __init__(self, urls: Sequence[str], lab: Any, pause: float) -> None:
        self.lab, self.pause = lab, pause
        self.replicas = Replicas(urls, lab)
        self.metrics = Figures(self.replicas)
        self.running: set[asyncio.Timeout] = set()
        self.is_draining = False

    # ---------------------------------------------------------------------- beginning and end

    @asynccontextmanager
    async def open(self, app: FastAPI) -> AsyncIterator[None]:
        async with self.replicas.watched():
            yield

    @contextmanager
    def counted(self, limit: asyncio.Timeout) -> Iterator[None]:
        """Count a request as running. limit: the timeout that ends it when draining takes long."""
        self.running.add(limit)
        try:
            yield
        finally:
            self.running.discard(limit)

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

    # --------------------------------------------------------------------------------- requests

    async def write(self, body: dict[str, Any], request: Request) -> Response:
        if self.is_draining:
            raise Refusal(503, f"{SHUTTING_DOWN} Try another one.", retry_after=5)
        passed_on = PassedOn(
            request.url.path,
            await request.body(),
            {"content-type": "application/json", **headers_for(request)},
            prompt_hashes(body),
            is_stream=body.get("stream") is True,
        )
        relay = Relay(passed_on, self.replicas, self.pause, self.metrics.counts)
        return RelayedAnswer(self, relay)

    # ------------------------------------------------------------------------- what is looked at

    async def known_models(self, request: Request) -> dict[str, Any]:
        """Return the models of all replicas by their names. Raises Refusal if none answers."""
        bodies = await self.replicas.get_all("/v1/models", headers_for(request))
        answers = [json_object(body) for _, body in bodies]
        lists = [answer["data"] for answer in answers if answer and "data" in answer]
        if not lists:
            raise Refusal(503, NO_ANSWER, retry_after=5)
        return {model["id"]: model for models in lists for model in models}

    async def models(self, request: Request) -> Response:
        models = await self.known_models(request)
        return JSONResponse({"object": "list", "data": list(models.values())})

    async def model(self, name: str, request: Request) -> Response:
        models = await self.known_models(request)
        if name not in models:
            raise Refusal(404, f"No replica serves {name[:100]!r}.", "model_not_found", "model")
        return JSONResponse(models[name])

    async def health(self) -> Response:
        if self.is_draining:
            return health_response("draining")
        return health_response("ok" if self.replicas.healthy() else "no healthy replica")

    async def figures(self, request: Request) -> Response:
        return Exposition(await self.metrics.exposition(headers_for(request)))

    async def live(self, request: Request) -> Response:
        return Events(self.views(LiveView(self.replicas, self.metrics, headers_for(request))))

    async def views(self, live_view: LiveView) -> AsyncGenerator[bytes, None]:
        async with aclosing(live_view.states(LOOK_EVERY)) as states:
            async for state in states:
                if self.is_draining:
                    return
                yield view_event(state)


def headers_for(request: Request) -> dict[str, str]:
    """Return the headers that replicas get: the client's API key as it came, and no compression."""
    key, request_id = request.headers.get("authorization"), request.state.request_id
    headers = {"accept-encoding": "identity", "x-request-id": request_id}
    return {**headers, **({"authorization": key} if key else {})}


class RelayedAnswer(Response):
    """An answer that a replica writes, sent as it comes. It is closed when its client leaves."""

    def __init__(self, service: RouterService, relay: Relay) -> None:
        super().__init__()
        self.service, self.relay, self.metrics = service, relay, service.metrics
        self.has_begun, self.arrived = False, time.monotonic()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        fault = await unless_left(receive, self.send_all(scope, receive, send))
        if self.relay.is_whole:  # even if the client has left since
            status = "whole" if self.relay.status == 200 else "refused"
            if status == "whole":
                self.metrics.latencies.observe(time.monotonic() - self.arrived)
        else:
            status = fault or "left"
        self.metrics.counts[status] += 1

    async def send_all(self, scope: Any, receive: Any, send: Any) -> str | None:
        """Send the answer, or why there is none. Return what an answer is that isn't whole."""
        service, lab = self.service, self.service.lab
        try:
            async with asyncio.timeout(None) as limit:
                with service.counted(limit):
                    await self.send_pieces(send)
        except (lab.ReplicaFault, lab.ServiceError, TimeoutError) as error:
            if self.has_begun:
                fault = lab.ServiceError(SHUTTING_DOWN if service.is_draining else BROKEN)
                last = lab.event(lab.error_body(fault)) + b"data: [DONE]\n\n"
                await send({"type": "http.response.body", "body": last})
                return "broken"
            await self.excuse(error)(scope, receive, send)
            return "refused" if self.relay.refusal else "failed"
        await send({"type": "http.response.body", "body": b""})
        return None

    async def send_pieces(self, send: Any) -> None:
        async with aclosing(self.relay.pieces()) as pieces:
            async for piece in pieces:
                if not self.has_begun:
                    await self.begin(send)
                await send({"type": "http.response.body", "body": piece, "more_body": True})

    async def begin(self, send: Any) -> None:
        self.has_begun = True
        if self.relay.request.is_stream:
            self.metrics.ttft(time.monotonic() - self.arrived)
        headers = [(k.encode(), v.encode()) for k, v in self.relay.headers.items()]
        await send({"type": "http.response.start", "status": self.relay.status, "headers": headers})

    def excuse(self, error: Exception) -> Response:
        """Return what a client is told that gets no answer at all."""
        if self.relay.refusal:
            body, headers = self.relay.refusal
            return Response(body, 429, headers)
        if isinstance(error, self.service.lab.ServiceError):
            return error_response(503, str(error), retry_after=1)
        sentence = TOO_LATE if isinstance(error, TimeoutError) else NO_ANSWER
        return error_response(503, sentence, retry_after=1)
