"""Measure time: with a warm-up, repeatedly, and in turns if several calls are compared.

Measurements that other programs disturb are made once more; if they go on, a line says so.
"""

import time
from collections.abc import Callable, Hashable, Mapping
from statistics import median
from typing import TypeVar

import torch

from timing.cores import OtherPrograms, disturb, disturbance

Found = TypeVar("Found")
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


def undisturbed(measure: Callable[[], Found]) -> Found:
    """Measure, and once more if other programs disturbed it. Prints a line if they do so again."""
    threads = torch.get_num_threads()
    for _ in range(2):
        with OtherPrograms() as others:
            found = measure()
        if not disturb(others.cores, threads):
            return found
    print(disturbance(others.cores, "first call torch.set_num_threads({})"))
    return found


def fastest_seconds(run: Callable[[], object], device: str | torch.device = "cpu") -> float:
    """Return the best of five runs after a warm-up: a limit is only reached undisturbed."""
    run()
    return undisturbed(lambda: min(seconds(run, device) for _ in range(FEW)))


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
    rounds = undisturbed(
        lambda: [[seconds(run, device) for run in runs.values()] for _ in range(MANY)]
    )
    return {
        name: median(times) for name, times in zip(runs, zip(*rounds, strict=True), strict=True)
    }
