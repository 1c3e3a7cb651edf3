"""How long something takes: warmed up, repeated, and in turns where several are compared."""

import time
from collections.abc import Callable, Hashable, Mapping
from statistics import median
from typing import TypeVar

import torch

Name = TypeVar("Name", bound=Hashable)

MANY, FEW = 9, 5  # runs: to know what is usual, and to see once what is possible


def synchronize(device: str | torch.device) -> None:
    """Wait for the device: an accelerator returns before its work is done."""
    if torch.device(device).type != "cpu":
        torch.accelerator.synchronize(device)


def seconds(run: Callable[[], object], device: str | torch.device = "cpu") -> float:
    """How long one run takes."""
    synchronize(device)
    start = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - start


def fastest_seconds(run: Callable[[], object], device: str | torch.device = "cpu") -> float:
    """The best of five, after one to warm up: a limit is what is reached when nothing disturbs."""
    run()
    return min(seconds(run, device) for _ in range(FEW))


def median_seconds(run: Callable[[], object], device: str | torch.device = "cpu") -> float:
    """The middle of nine, after one to warm up: what usually happens."""
    return median_seconds_of({"": run}, device)[""]


def median_seconds_of(
    runs: Mapping[Name, Callable[[], object]], device: str | torch.device = "cpu"
) -> dict[Name, float]:
    """The same of several runs, to compare them: {name: run} to {name: seconds}.

    They take turns, so that a slow moment of the machine meets all of them.
    """
    for run in runs.values():
        run()
    rounds = [[seconds(run, device) for run in runs.values()] for _ in range(MANY)]
    return {
        name: median(times) for name, times in zip(runs, zip(*rounds, strict=True), strict=True)
    }
