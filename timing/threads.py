"""How many threads torch takes: those of a command line, and whether one would be quicker."""

import argparse
import time
from statistics import mean

import torch

from timing.stopwatch import seconds

LONGEST_SECONDS = 0.35  # that the comparison may take, beyond its fewest rounds
FEWEST_ROUNDS = 3
CLEARLY = 1.5  # times as long: less may be chance
WIDTH, MATRICES = 256, 12  # one product for each layer of fable: a small part of a decode step


def parse_with_threads(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """A command's arguments, --threads among them: so many torch takes from now on."""
    parser.add_argument("--threads", type=int)
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    return given


def advise_threads() -> None:
    """Say so where one thread is clearly quicker than torch's present number, and nothing else.

    Takes about a third of a second, longer where several threads wait for one another. Their number
    is afterwards what it was.
    """
    threads = torch.get_num_threads()
    if threads == 1:
        return
    several, one = step_seconds(threads)
    if advice := thread_advice(threads, several, one):
        print(advice)


def thread_advice(threads: int, several: float, one: float) -> str | None:
    """The advice for two times of one step, in seconds: with `threads` threads, and with one."""
    if several < CLEARLY * one:
        return None
    return (
        f"With torch's {threads} threads a small step takes {1000 * several:.1f} ms here, with one "
        f"thread {1000 * one:.1f} ms, as on a processor that is busy or lends you less than its "
        "cores. One thread makes this notebook quicker and its timings steadier:\n"
        "    torch.set_num_threads(1)"
    )


def step_seconds(threads: int) -> tuple[float, float]:
    """How long a step like one of decode takes with `threads` threads, and with one, in turns.

    Means, not medians: threads wait for one another only now and then, and each time counts.
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
