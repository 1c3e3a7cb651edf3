"""What a server counts: for Prometheus, and for the page."""

import math
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

LATEST = 200  # requests whose times the page's percentiles are made of
SHOWN = 60  # of them that the page draws one by one
WINDOW = 1.0  # seconds over which the page's tokens per second are counted
BUCKETS = [0.001 * 2**power for power in range(16)]  # 1 ms to 33 s


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        new: dict[str, Any] = {"registry": self.registry}
        about = "Requests that were whole, refused, failed, or left by their client"
        self.requests = Counter("workbook_requests", about, ["status"], **new)
        about = "Tokens of prompts, of prompts and found in the cache, of whole answers, of others"
        self.all_tokens = Counter("workbook_tokens", about, ["kind"], **new)
        new_times: dict[str, Any] = {"buckets": BUCKETS, **new}
        self.ttfts = Histogram("workbook_ttft_seconds", "Time to first token", **new_times)
        self.tpots = Histogram("workbook_tpot_seconds", "Time per output token", **new_times)
        self.running = Gauge("workbook_running", "Requests that hold blocks", **new)
        self.waiting = Gauge("workbook_waiting", "Requests that wait for blocks", **new)
        self.blocks = Gauge("workbook_blocks", "Blocks of the pool", ["state"], **new)
        self.preemptions = Counter("workbook_preemptions", "Preempted requests", **new)
        self.totals = dict.fromkeys(["prompt", "cached", "completion", "aborted", "refused"], 0)
        self.latest_ttft: deque[float] = deque(maxlen=LATEST)
        self.latest_tpot: deque[float] = deque(maxlen=LATEST)
        self.recent: deque[tuple[float, int]] = deque()
        self.preempted = 0

    def count(self, status: str) -> None:
        self.requests.labels(status).inc()
        if status == "refused":
            self.totals["refused"] += 1

    def tokens(self, kind: str, count: int) -> None:
        self.all_tokens.labels(kind).inc(count)
        self.totals[kind] += count

    def came(self, count: int) -> None:
        """Count new tokens of all texts, with the time at which they came."""
        now = time.monotonic()
        self.recent.append((now, count))
        while self.recent[0][0] < now - WINDOW:
            self.recent.popleft()

    def ttft(self, seconds: float) -> None:
        self.ttfts.observe(seconds)
        self.latest_ttft.append(seconds)

    def tpot(self, seconds: float) -> None:
        self.tpots.observe(seconds)
        self.latest_tpot.append(seconds)

    def per_second(self) -> float:
        now = time.monotonic()
        return sum(count for came, count in self.recent if came >= now - WINDOW) / WINDOW

    def exposition(self, view: dict[str, Any]) -> bytes:
        """Return all metrics as text for Prometheus. view: the engine's, from its last step."""
        refs, cached = view["pool"]["refs"], len(view["pool"]["cached"])
        free = refs.count(0)
        self.running.set(len(view["running"]))
        self.waiting.set(view["waiting_total"])
        states = {"used": len(refs) - free, "cached": cached, "free": free - cached}
        for state, count in states.items():
            self.blocks.labels(state).set(count)
        self.preemptions.inc(view["preemptions"] - self.preempted)
        self.preempted = view["preemptions"]
        return generate_latest(self.registry)


def spread(values: Iterable[float]) -> dict[str, Any]:
    """Return times for the page: the newest ones, and their nearest-rank median and p95, if any."""
    ordered = sorted(values)
    ranks = {f"p{p}": math.ceil(p * len(ordered) / 100) for p in (50, 95)}
    return {
        **{name: ordered[rank - 1] if ordered else None for name, rank in ranks.items()},
        "count": len(ordered),
        "latest": [round(seconds, 4) for seconds in list(values)[-SHOWN:]],
    }
