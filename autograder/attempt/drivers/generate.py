"""Drivers of lab 1."""

from typing import Any

from autograder.attempt.records import Attempt, Seen, one_by_one

FIGURES = ("ttft", "tpot", "latency", "throughput")


def generate(attempt: Attempt, requests: list[dict[str, Any]], model: Any) -> list[Seen]:
    return one_by_one(attempt, requests, model, "for prompt")


def metrics(attempt: Attempt, start: float, token_times: list[float]) -> list[Seen]:
    """The four metrics, or what was returned instead."""
    found = attempt(start, token_times)
    missing = [f"`{name}`" for name in FIGURES if not hasattr(found, name)]
    if len(missing) == len(FIGURES):
        return [Seen("What it returned", found)]
    whole = (
        f"lacks {', '.join(missing)}" if missing else "is Metrics(ttft, tpot, latency, throughput)"
    )
    figures = [Seen(f"`{name}`", getattr(found, name)) for name in FIGURES if not missing]
    return [Seen("What it returned", whole), *figures]
