"""Measure time: with a warm-up, repeatedly, and in turns if several calls are compared."""

import time
from collections.abc import Callable, Hashable, Mapping
from statistics import median
from typing import TypeVar

import torch

Name = TypeVar("Name", bound=Hashable)

MANY, FEW = 9, 5  # runs for a typical time, and for the fastest one


def synchronize(device: str | torch.device) -> None:
    """Wait for the device, because an accelerator returns before its work is done."""
    if torch.device(device).type != "cpu":
        torch.accelerator.synchronize(device)


def seconds(run: Callable[[], object], device: str | torch.device = "cpu") -> float:
    """Time one run."""
    synchronize(device)
    start = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - start


def fastest_seconds(run: Callable[[], object], device: str | torch.device = "cpu") -> float:
    """Return the best of five runs after a warm-up: a limit is only reached undisturbed."""
    run()
    return min(seconds(run, device) for _ in range(FEW))


def median_seconds(run: Callable[[], object], device: str | torch.device = "cpu") -> float:
    """Return the median of nine runs after a warm-up: the typical time."""
    return median_seconds_of({"": run}, device)[""]


def median_seconds_of(
    runs: Mapping[Name, Callable[[], object]], device: str | torch.device = "cpu"
) -> dict[Name, float]:
    """Return the median time of each of several runs, to compare them: {name: seconds}.

    They take turns, so that a slow moment of the machine affects all of them.
    """
    for run in runs.values():
        run()
    rounds = [[seconds(run, device) for run in runs.values()] for _ in range(MANY)]
    return {
        name: median(times) for name, times in zip(runs, zip(*rounds, strict=True), strict=True)
    }
