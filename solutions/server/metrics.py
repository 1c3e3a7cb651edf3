"""What a server counts: for Prometheus, and for the page."""

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

LATEST = 200  # requests whose times the page's percentiles are made of
SHOWN = 60  # of them that the page draws one by one
WINDOW = 1.0  # seconds over which the page's tokens per second are counted
TIMES = [
    round(step * 10.0**power, 4) for power in range(-3, 2) for step in (1, 1.5, 2, 3, 4, 6, 8)
]  # 1 ms to 80 s, each at most half more than the one before
LENGTHS = [2**power for power in range(17)]
CODES = 200, 400, 401, 403, 404, 405, 408, 413, 429, 431, 499, 500, 503
STATUSES = "whole", "refused", "failed", "left"
KINDS = "prompt", "cached", "completion", "aborted"


class Metrics:
    """What Prometheus collects of one server. model: the name that is served.

    Where a figure means what vLLM's does, it has vLLM's name and labels, so that boards and tools
    for vLLM show it. Every label begins at 0: a rate misses what a counter is born with.
    """

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.model = model

        def new(kind: Any, name: str, about: str, labels: Sequence[str] = (), **more: Any) -> Any:
            figure = kind(name, about, ["model_name", *labels], registry=self.registry, **more)
            return figure if labels else figure.labels(model)

        def times(name: str, about: str) -> Histogram:
            return new(Histogram, f"vllm:{name}_seconds", about, buckets=TIMES)

        def lengths(name: str, about: str) -> Histogram:
            return new(Histogram, f"vllm:{name}_tokens", about, buckets=LENGTHS)

        self.responses = response_counter("workbook", self.registry)
        about = "Requests that were whole, refused, failed, or left by their client"
        self.requests = new(Counter, "workbook_requests", about, ["status"])
        about = "Tokens of prompts, of prompts and found in the cache, of whole answers, of others"
        self.all_tokens = new(Counter, "workbook_tokens", about, ["kind"])
        self.blocks = new(Gauge, "workbook_blocks", "Blocks of the pool", ["state"])
        about = "Calls of tools that answers have begun, and those of them that were cut"
        self.calls = new(Counter, "workbook_calls", about, ["kind"])
        for labeled, values in (
            (self.requests, STATUSES),
            (self.all_tokens, KINDS),
            (self.calls, ("begun", "cut")),
        ):
            for value in values:
                labeled.labels(model, value)

        about = "Texts that have ended, by why they did"
        self.finished = new(Counter, "vllm:request_success", about, ["finished_reason"])
        for reason in "stop", "length", "abort":
            self.finished.labels(model, reason)
        self.ttfts = times("time_to_first_token", "From a request to its first token")
        self.tpots = times("request_time_per_output_token", "Mean time per token after the first")
        self.gaps = times("inter_token_latency", "Between the tokens of one step and of the next")
        self.latencies = times("e2e_request_latency", "From a request to its last token")
        self.queued = times("request_queue_time", "Until a text has blocks")
        self.prompts = lengths("request_prompt", "Tokens of a prompt")
        self.answers = lengths("request_generation", "Tokens of an answer")
        self.prompt_tokens = new(Counter, "vllm:prompt_tokens", "Tokens of admitted prompts")
        about = "Tokens that the engine has written, also those that no client got"
        self.generated = new(Counter, "vllm:generation_tokens", about)
        about = "Tokens of prompts that were looked for in the prefix cache"
        self.queried = new(Counter, "vllm:prefix_cache_queries", about)
        self.hits = new(Counter, "vllm:prefix_cache_hits", "Of them, those that were found")
        self.running = new(Gauge, "vllm:num_requests_running", "Texts that hold blocks")
        self.waiting = new(Gauge, "vllm:num_requests_waiting", "Texts that wait for blocks")
        self.usage = new(Gauge, "vllm:kv_cache_usage_perc", "The share of the blocks in use")
        self.preemptions = new(Counter, "vllm:num_preemptions", "Preempted texts")

        self.totals = dict.fromkeys([*KINDS, "refused"], 0)
        self.latest_ttft: deque[float] = deque(maxlen=LATEST)
        self.latest_tpot: deque[float] = deque(maxlen=LATEST)
        self.recent: deque[tuple[float, int]] = deque()
        self.preempted = 0

    def count(self, status: str) -> None:
        self.requests.labels(self.model, status).inc()
        if status == "refused":
            self.totals["refused"] += 1

    def tokens(self, kind: str, count: int) -> None:
        self.all_tokens.labels(self.model, kind).inc(count)
        self.totals[kind] += count
        if kind == "prompt":
            self.prompt_tokens.inc(count)

    def admitted(self, prompt: int, cached: int, queued: float) -> None:
        """Count a text's prompt: its tokens, those of them in the cache, the seconds it waited."""
        self.prompts.observe(prompt)
        self.queried.inc(prompt)
        self.hits.inc(cached)
        self.queued.observe(queued)

    def ended(self, reason: str | None, tokens: int, seconds: float) -> None:
        """Count a text that has ended, or that its client has left (None)."""
        self.finished.labels(self.model, reason or "abort").inc()
        if reason is not None:
            self.answers.observe(tokens)
            self.latencies.observe(seconds)

    def called(self, begun: int, cut: int) -> None:
        """Count the calls of a text that has ended."""
        self.calls.labels(self.model, "begun").inc(begun)
        self.calls.labels(self.model, "cut").inc(cut)

    def came(self, count: int) -> None:
        """Count new tokens of all texts, with the time at which they came."""
        self.generated.inc(count)
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
            self.blocks.labels(self.model, state).set(count)
        self.usage.set(states["used"] / len(refs))
        self.preemptions.inc(view["preemptions"] - self.preempted)
        self.preempted = view["preemptions"]
        return generate_latest(self.registry)


def response_counter(prefix: str, registry: CollectorRegistry) -> Counter:
    """Return what counts answers by their status."""
    counter = Counter(f"{prefix}_responses", "Answers of any kind", ["code"], registry=registry)
    for code in CODES:
        counter.labels(code)
    return counter


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Return times for the page: the newest ones, and their nearest-rank median and p95, if any."""
    p50 = p95 = None
    if values:
        p50, p95 = np.percentile(values, (50, 95), method="inverted_cdf").tolist()
    return {
        "p50": p50,
        "p95": p95,
        "count": len(values),
        "latest": [round(seconds, 4) for seconds in list(values)[-SHOWN:]],
    }
