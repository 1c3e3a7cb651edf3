"""What is seen of a router and its replicas: figures for Prometheus, and the page's live view."""

import asyncio
import json
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing, suppress
from typing import Any

import httpx2
from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from solutions.router.replicas import CHECK_EVERY, Replicas
from solutions.server.metrics import LATEST, TIMES, response_counter, spread

Headers = dict[str, str]


class Figures(Collector):
    """The router's own metrics, collected when Prometheus asks for them.

    counts: how many requests ended in each way, and how often another replica was tried.
    """

    def __init__(self, replicas: Replicas) -> None:
        self.replicas, self.counts = replicas, Counter[str]()
        self.latest_ttft: deque[float] = deque(maxlen=LATEST)
        self.began = time.monotonic()
        options: Any = {"registry": None, "buckets": TIMES}
        about = "From a request to the first event of its stream"
        self.ttfts = Histogram("router_time_to_first_token_seconds", about, **options)
        about = "From a request to the end of its whole answer"
        self.latencies = Histogram("router_request_latency_seconds", about, **options)
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        self.responses = response_counter("router", self.registry)

    def ttft(self, seconds: float) -> None:
        self.latest_ttft.append(seconds)
        self.ttfts.observe(seconds)

    def collect(self) -> Iterator[Metric]:
        yield from self.ttfts.collect()
        yield from self.latencies.collect()
        about = "Requests that were whole, refused, failed, broken, or left by their client"
        ended = CounterMetricFamily("router_requests", about, labels=["status"])
        for status in ("whole", "refused", "failed", "broken", "left"):
            ended.add_metric([status], self.counts[status])
        yield ended
        about = "Times that another replica was tried"
        yield CounterMetricFamily("router_failovers", about, self.counts["failovers"])
        for kind, name, about, value in (
            (CounterMetricFamily, "served", "Requests that the replica was sent", "served"),
            (CounterMetricFamily, "faults", "Of them, those that it failed", "faults"),
            (GaugeMetricFamily, "load", "Of them, those that it is serving", "load"),
            (GaugeMetricFamily, "healthy", "Whether the replica is healthy", "is_healthy"),
        ):
            family = kind(f"router_replica_{name}", about, labels=["replica", "url"])
            for number, row in enumerate(self.replicas.rows(), start=1):
                family.add_metric([str(number), row["url"]], row[value])
            yield family

    async def exposition(self, headers: Headers) -> bytes:
        """Return the router's metrics and those of its replicas, each with the label `replica`."""
        texts = await self.replicas.get_all("/metrics", headers)
        families = {family.name: family for family in self.registry.collect()}
        for index, text in texts:
            with suppress(ValueError):  # it has no figures, or another form of them
                for family in [*text_string_to_metric_families(text.decode())]:
                    same = families.setdefault(
                        family.name, Metric(family.name, family.documentation, family.type)
                    )
                    for sample in family.samples:
                        labels = {**sample.labels, "replica": str(index + 1)}
                        same.samples.append(sample._replace(labels=labels))
        joined = CollectorRegistry()
        joined.register(Joined(families.values()))
        return generate_latest(joined)


class Joined(Collector):
    """Figures that have been collected already."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self.families = families

    def collect(self) -> Iterable[Metric]:
        return self.families


# ----------------------------------------------------------------------------------- the live view


class LiveView:
    """The replicas, and their engines as if they were one. latest: each engine's view, by index."""

    def __init__(self, replicas: Replicas, figures: Figures, headers: Headers) -> None:
        self.replicas, self.figures, self.headers = replicas, figures, headers
        self.latest: dict[int, Any] = {}

    async def states(self, every: float) -> AsyncGenerator[dict[str, Any], None]:
        """Yield what the page shows, every so many seconds."""
        urls = self.replicas.urls
        tasks = [asyncio.create_task(self.follow(urls.index(url))) for url in dict.fromkeys(urls)]
        try:
            while True:
                yield {
                    **merged(self.latest),
                    "seconds": time.monotonic() - self.figures.began,
                    "ttft": spread(self.figures.latest_ttft),
                    "replicas": self.replicas.rows(),
                    "failovers": self.figures.counts["failovers"],
                }
                await asyncio.sleep(every)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def follow(self, index: int) -> None:
        """Keep a replica's latest view, as long as it has one of our form."""
        while True:
            with suppress(httpx2.HTTPError, ValueError):
                async with aclosing(self.replicas.events(index, "/live", self.headers)) as events:
                    async for data in events:
                        view = json.loads(data)
                        if "pool" in view:
                            self.latest[index] = view
            self.latest.pop(index, None)
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
            for text in view[name]:
                blocks = [first + block for block in text["blocks"]]
                whole[name].append({**text, "blocks": blocks, "replica": index})
        pool["block_size"] = view["pool"]["block_size"]
        pool["refs"] += view["pool"]["refs"]
        pool["cached"] += [first + block for block in view["pool"]["cached"]]
        whole |= {name: whole[name] + view[name] for name in SUMS}
        whole |= {name: view.get(name) for name in ("model", "technique", "chats")}
    tpots = [seconds for view in views.values() for seconds in view["tpot"]["latest"]]
    return {**whole, "pool": pool, "tpot": spread(tpots)}
