"""Drivers of lab 1."""

from collections.abc import Callable
from typing import Any

from autograder.drivers.seen import Seen

FIGURES = ("ttft", "tpot", "latency", "throughput")


def generate(attempt: Callable[..., Any], requests: list[dict[str, Any]], model: Any) -> list[Seen]:
    """Serve the requests one after the other with one model."""
    returned = [attempt(model, **request) for request in requests]
    several = len(requests) > 1
    return [
        Seen("What it returned", ids, f"of prompt {number}" if several else "")
        for number, ids in enumerate(returned, 1)
    ]


def metrics(attempt: Callable[..., Any], start: float, token_times: list[float]) -> list[Seen]:
    """The four figures, or what came in their place."""
    found = attempt(start, token_times)
    missing = [f"`{name}`" for name in FIGURES if not hasattr(found, name)]
    if len(missing) == len(FIGURES):
        return [Seen("What it returned", found)]
    whole = (
        f"lacks {', '.join(missing)}" if missing else "is Metrics(ttft, tpot, latency, throughput)"
    )
    figures = [Seen(f"`{name}`", getattr(found, name)) for name in FIGURES if not missing]
    return [Seen("What it returned", whole), *figures]
