"""The number of threads that torch uses: from a command line, and whether fewer would be faster."""

import argparse
import time
from statistics import mean

import torch

from timing.cores import usable_cores
from timing.stopwatch import seconds

LONGEST_SECONDS = 0.35  # for the comparison, after its fewest rounds
FEWEST_ROUNDS = 3
CLEARLY = 1.5  # times as long; less may be chance
WIDTH, MATRICES = 256, 12  # one product for each layer of fable: a small part of a decode step


def parse_with_threads(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse a command's arguments, and set torch's threads from --threads."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter  # its lines as they are written
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    set_threads(given.threads)
    return given


def set_threads(threads: int | None) -> None:
    """Set torch's threads. None: torch's own choice, if this process has a core for each."""
    cores = usable_cores()
    if threads or torch.get_num_threads() > cores:
        torch.set_num_threads(threads or cores)


def advise_threads() -> None:
    """Print advice if fewer threads than torch's current number are clearly faster, else nothing.

    Takes about a third of a second, longer if threads wait for one another. The number of threads
    stays as it was.
    """
    threads, cores = torch.get_num_threads(), usable_cores()
    if threads > cores:
        advise(
            cores,
            f"torch has {threads} threads, but this process may use {cores} of the processor's "
            "cores (hyper-threads of a core count once). A thread without a core makes the others "
            "wait.",
        )
    elif threads > 1:
        several, one = step_seconds(threads)
        if several >= CLEARLY * one:
            advise(
                1,
                f"A small step takes {1000 * several:.1f} ms with torch's {threads} threads and "
                f"{1000 * one:.1f} ms with one thread. That happens on a processor that is busy or "
                "shared.",
            )


def advise(threads: int, reason: str) -> None:
    print(
        f"{reason} With fewer threads this notebook is faster and its timings are steadier:\n"
        f"    torch.set_num_threads({threads})"
    )


def step_seconds(threads: int) -> tuple[float, float]:
    """Time a step like a decode step with `threads` threads and with one, taking turns.

    Returns means, not medians: threads wait only now and then, and each wait counts.
    """
    matrices = [torch.ones(WIDTH, 4 * WIDTH) for _ in range(MATRICES)]
    row = torch.ones(1, WIDTH)

    def step() -> None:
        for matrix in matrices:
            row @ matrix

    def timed(number: int) -> float:
        torch.set_num_threads(number)
        step()  # the first one with another number wakes threads
        return seconds(step)

    several: list[float] = []
    one: list[float] = []
    end = time.perf_counter() + LONGEST_SECONDS
    try:
        while len(one) < FEWEST_ROUNDS or time.perf_counter() < end:
            several.append(timed(threads))
            one.append(timed(1))
    finally:
        torch.set_num_threads(threads)
    return mean(several), mean(one)
