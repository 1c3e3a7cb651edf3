"""Drivers of lab 1."""

from collections.abc import Callable
from typing import Any

METRICS = ("ttft", "tpot", "latency", "throughput")


def generate(
    attempt: Callable[..., Any], requests: list[dict[str, Any]], model: Any
) -> list[dict[str, Any]]:
    """Serve the requests one after the other with one model.

    Brings back, for each, the ids and the prompt as it is after the last request.
    """
    all_ids = [
        attempt(model, r["input_ids"], r["max_new_tokens"], eos_token_id=r["eos_token_id"])
        for r in requests
    ]
    return [
        {"ids": ids, "prompt afterwards": r["input_ids"]}
        for ids, r in zip(all_ids, requests, strict=True)
    ]


def metrics(attempt: Callable[..., Any], start: float, token_times: list[float]) -> dict[str, Any]:
    """The four figures, without those that the result does not have."""
    result = attempt(start, token_times)
    return {name: getattr(result, name) for name in METRICS if hasattr(result, name)}
