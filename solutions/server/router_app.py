"""The router's HTTP side: one address for many replicas, with the same API and the same page."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import httpx2
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from solutions.server.metrics import TIMES, response_counter, spread
from solutions.server.protocol import Refusal, error_response
from solutions.server.routing import CHECK_EVERY, Asked, RouterService, TooMuch, prompt_hashes
from solutions.server.settings import Settings
from solutions.server.web import LOOKS, Events, page_response, plain_app, unless_left

LOOK_EVERY = 0.2  # seconds between two events of /live
NO_ANSWER = "No replica could serve the request. Try again later."
TOO_LATE = "No replica has answered in time. Try again later."
BROKEN = "The replica that wrote this answer has failed."
SHUTTING_DOWN = "The server is shutting down."


def new_router_app(settings: Settings, urls: Sequence[str], lab: Any, pause: float = 0) -> FastAPI:
    """Return the app that passes requests on to the servers at `urls`. lab: lab 13's names.

    pause: seconds before a request is tried again. `app.state.router` is the service. Raises
    ValueError for an address that is none.
    """
    service = RouterService(urls, lab, pause)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with service.open():
            yield

    registry = CollectorRegistry()
    figures = Figures(service)
    registry.register(figures)
    ProcessCollector(registry=registry)
    app = plain_app(settings, lifespan, response_counter("router", registry))
    app.state.router, app.state.fault = service, None

    @app.post("/v1/completions")
    @app.post("/v1/chat/completions")
    @app.post("/v1/embeddings")
    async def write(body: dict[str, Any], request: Request) -> Response:
        if service.is_draining:
            raise Refusal(503, f"{SHUTTING_DOWN} Try another one.", retry_after=5)
        asked = Asked(
            request.url.path,
            await request.body(),
            {"content-type": "application/json", **passed_on(request)},
            prompt_hashes(body),
            is_stream=body.get("stream") is True,
        )
        return PassedOn(service, figures, asked)

    async def known_models(request: Request) -> dict[str, Any]:
        """Return the models of all replicas by their names. Raises Refusal if none answers."""
        headers, healthy = passed_on(request), service.healthy()
        told = await asyncio.gather(*(service.get_json(i, "/v1/models", headers) for i in healthy))
        lists = [one["data"] for one in told if one and "data" in one]
        if not lists:
            raise Refusal(503, NO_ANSWER, retry_after=5)
        return {model["id"]: model for models in lists for model in models}

    @app.api_route("/v1/models", methods=LOOKS)
    async def models(request: Request) -> Response:
        found = await known_models(request)
        return JSONResponse({"object": "list", "data": list(found.values())})

    @app.api_route("/v1/models/{name:path}", methods=LOOKS)
    async def model(name: str, request: Request) -> Response:
        found = await known_models(request)
        if name not in found:
            raise Refusal(404, f"No replica serves {name[:100]!r}.", "model_not_found", "model")
        return JSONResponse(found[name])

    @app.api_route("/health", methods=LOOKS)
    async def health() -> Response:
        if service.is_draining or not service.healthy():
            status = "draining" if service.is_draining else "no healthy replica"
            return JSONResponse({"status": status}, 503, {"retry-after": "5"})
        return JSONResponse({"status": "ok"})

    @app.api_route("/metrics", methods=LOOKS)
    async def metrics(request: Request) -> Response:
        text = generate_latest(await with_replicas(registry, service, passed_on(request)))
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/live")
    async def live(request: Request) -> Response:
        return Events(views(service, passed_on(request)))

    @app.api_route("/", methods=LOOKS)
    async def page() -> Response:
        return page_response()

    return app


def passed_on(request: Request) -> dict[str, str]:
    """Return the headers that replicas get: the client's API key as it came, and no compression."""
    key, request_id = request.headers.get("authorization"), request.state.request_id
    own = {"accept-encoding": "identity", "x-request-id": request_id}
    return {**own, **({"authorization": key} if key else {})}


class PassedOn(Response):
    """An answer that a replica writes, sent as it comes. It is closed when its client leaves."""

    def __init__(self, service: RouterService, figures: "Figures", asked: Asked) -> None:
        super().__init__()
        self.service, self.figures, self.asked = service, figures, asked
        self.has_begun, self.arrived = False, time.monotonic()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        fault = await unless_left(receive, self.send_all(scope, receive, send))
        if self.asked.is_whole:  # even if the client has left since
            status = "whole" if self.asked.status == 200 else "refused"
            if status == "whole":
                self.figures.latencies.observe(time.monotonic() - self.arrived)
        else:
            status = fault or "left"
        self.service.counts[status] += 1

    async def send_all(self, scope: Any, receive: Any, send: Any) -> str | None:
        """Send the answer, or why there is none. Return what an answer is that isn't whole."""
        service, lab = self.service, self.service.lab
        try:
            async with asyncio.timeout(None) as limit:
                with service.counted(limit):
                    await self.send_pieces(send)
        except (lab.ReplicaFault, lab.ServiceError, TimeoutError) as error:
            if self.has_begun:
                told = lab.ServiceError(SHUTTING_DOWN if service.is_draining else BROKEN)
                last = lab.event(lab.error_body(told)) + b"data: [DONE]\n\n"
                await send({"type": "http.response.body", "body": last})
                return "broken"
            await self.excuse(error)(scope, receive, send)
            return "refused" if self.asked.refusal else "failed"
        await send({"type": "http.response.body", "body": b""})
        return None

    async def send_pieces(self, send: Any) -> None:
        asked = self.asked
        async with aclosing(self.service.answer(asked)) as written:
            async for piece in written:
                if not self.has_begun:
                    self.has_begun = True
                    if asked.is_stream:
                        self.note_first_piece(time.monotonic() - self.arrived)
                    headers = [(k.encode(), v.encode()) for k, v in asked.answer_headers.items()]
                    start = {"status": asked.status, "headers": headers}
                    await send({"type": "http.response.start", **start})
                await send({"type": "http.response.body", "body": piece, "more_body": True})

    def note_first_piece(self, seconds: float) -> None:
        self.service.latest_ttft.append(seconds)
        self.figures.ttfts.observe(seconds)

    def excuse(self, error: Exception) -> Response:
        """Return what a client is told that gets no answer at all."""
        if self.asked.refusal:
            body, headers = self.asked.refusal
            return Response(body, 429, headers)
        if isinstance(error, self.service.lab.ServiceError):
            return error_response(503, str(error), retry_after=1)
        told = TOO_LATE if isinstance(error, TimeoutError) else NO_ANSWER
        return error_response(503, told, retry_after=1)


# ------------------------------------------------------------------------------------- what is seen


class Figures:
    """The router's own metrics, collected when Prometheus asks for them."""

    def __init__(self, service: RouterService) -> None:
        self.service = service
        given: Any = {"registry": None, "buckets": TIMES}
        about = "From a request to the first event of its stream"
        self.ttfts = Histogram("router_time_to_first_token_seconds", about, **given)
        about = "From a request to the end of its whole answer"
        self.latencies = Histogram("router_request_latency_seconds", about, **given)

    def collect(self) -> Iterator[Metric]:
        service = self.service
        yield from self.ttfts.collect()
        yield from self.latencies.collect()
        about = "Requests that were whole, refused, failed, broken, or left by their client"
        ended = CounterMetricFamily("router_requests", about, labels=["status"])
        for status in ("whole", "refused", "failed", "broken", "left"):
            ended.add_metric([status], service.counts[status])
        yield ended
        about = "Times that another replica was tried"
        yield CounterMetricFamily("router_failovers", about, service.counts["failovers"])
        for kind, name, about, value in (
            (CounterMetricFamily, "served", "Requests that the replica was sent", "served"),
            (CounterMetricFamily, "faults", "Of them, those that it failed", "faults"),
            (GaugeMetricFamily, "load", "Of them, those that it is serving", "load"),
            (GaugeMetricFamily, "healthy", "Whether the replica is healthy", "is_healthy"),
        ):
            family = kind(f"router_replica_{name}", about, labels=["replica", "url"])
            for number, seen in enumerate(service.seen(), start=1):
                family.add_metric([str(number), seen["url"]], seen[value])
            yield family


class Joined(Collector):
    """Figures that have been collected already."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self.families = families

    def collect(self) -> Iterable[Metric]:
        return self.families


async def with_replicas(
    own: CollectorRegistry, service: RouterService, headers: dict[str, str]
) -> CollectorRegistry:
    """Return the router's figures and those of its replicas, each with the label `replica`."""
    indexes = service.healthy()
    told = await asyncio.gather(*(service.get(i, "/metrics", headers) for i in indexes))
    families = {family.name: family for family in own.collect()}
    for index, text in zip(indexes, told, strict=True):
        with suppress(ValueError):  # it has no figures, or another form of them
            for family in [*text_string_to_metric_families((text or b"").decode())]:
                found = families.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                for sample in family.samples:
                    labels = {**sample.labels, "replica": str(index + 1)}
                    found.samples.append(sample._replace(labels=labels))
    joined = CollectorRegistry()
    joined.register(Joined(families.values()))
    return joined


async def views(service: RouterService, headers: dict[str, str]) -> AsyncGenerator[bytes, None]:
    """Yield what the page shows, as events: the replicas, and their engines as if they were one."""
    latest: dict[int, Any] = {}
    following = [
        asyncio.create_task(follow(service, service.urls.index(url), headers, latest))
        for url in dict.fromkeys(service.urls)
    ]
    try:
        while not service.is_draining:
            data = {
                **merged(latest),
                "seconds": time.monotonic() - service.began,
                "ttft": spread(service.latest_ttft),
                "replicas": service.seen(),
                "failovers": service.counts["failovers"],
            }
            yield f"data: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
            await asyncio.sleep(LOOK_EVERY)
    finally:
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)


async def follow(
    service: RouterService, index: int, headers: dict[str, str], latest: dict[int, Any]
) -> None:
    """Keep a replica's latest view in `latest`, as long as it has one of our form."""
    while True:
        with suppress(httpx2.HTTPError, TooMuch, ValueError):
            async with aclosing(service.events(index, "/live", headers)) as events:
                async for event in events:
                    view = json.loads(event.splitlines()[-2].removeprefix(b"data: "))
                    if "pool" in view:
                        latest[index] = view
        latest.pop(index, None)
        await asyncio.sleep(CHECK_EVERY)


SUMS = (
    *("step", "waiting_total", "preemptions", "prefix_hits", "prompt_tokens"),
    *("completion_tokens", "refused", "tokens_per_second"),
)


def merged(views: dict[int, Any]) -> dict[str, Any]:
    """Join the views of replicas. Their blocks are numbered on, from one replica to the next."""
    pool: dict[str, Any] = {"block_size": 0, "refs": [], "cached": []}
    whole: dict[str, Any] = {"running": [], "waiting": [], **dict.fromkeys(SUMS, 0)}
    for index, view in sorted(views.items()):
        first = len(pool["refs"])
        for name in ("running", "waiting"):
            for seen in view[name]:
                blocks = [first + block for block in seen["blocks"]]
                whole[name].append({**seen, "blocks": blocks, "replica": index})
        pool["block_size"] = view["pool"]["block_size"]
        pool["refs"] += view["pool"]["refs"]
        pool["cached"] += [first + block for block in view["pool"]["cached"]]
        whole |= {name: whole[name] + view[name] for name in SUMS}
        whole |= {"model": view["model"], "technique": view["technique"]}
    tpots = [seconds for view in views.values() for seconds in view["tpot"]["latest"]]
    return {**whole, "pool": pool, "tpot": spread(tpots)}
