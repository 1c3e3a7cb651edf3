"""Where a decode step of an engine goes: its operations, Python between them, and the floor.

`timed_generate.py --profile engine` prints it. PyTorch's profiler notes when each operation begins
and ends. That takes time, too, so steps are also timed without it.
"""

from dataclasses import dataclass
from statistics import median

import torch
from rich.console import Console

from solutions.engine.engine import Output
from solutions.one_kernel import Machine, floor_ms, self_times
from timing.cores import OtherPrograms, disturb, disturbance
from timing.machine import fastest_seconds, forward_work, last_level_cache, measure_machine
from timing.operations import (
    ATTENTION,
    KERNEL,
    PRODUCTS,
    PYTHON,
    RECORDED,
    REST,
    Event,
    called_from_python,
    kind_of,
    length,
    name_kernel,
    record,
)
from timing.stopwatch import seconds
from timing.table import Bench, Prepare, Served, new_table, number
from timing.table.workloads import LENGTHS, Workload

FEWEST = 16  # new tokens: some steps warm up, and some are timed
CALLS = 1000  # of an operation on one number


@dataclass(frozen=True)
class Profile:
    """A decode step. events: of a recorded one. ms: the median without the profiler.

    bytes_read: weights, keys and values. others: cores that other programs kept busy.
    """

    events: list[Event]
    ms: float
    bytes_read: float
    flops: float
    machine: Machine
    others: float

    def floor_ms(self, calls: int = 0) -> float:
        return floor_ms(self.bytes_read, self.flops, calls, self.machine)


def profiled(name: str, rows: dict[str, Prepare], bench: Bench, workload: Workload) -> Profile:
    """Serve one request, and record one of its last steps.

    rows: the functions that prepare this row of the table. Raises ValueError if that isn't an
    engine's row, or if the request is too short, and NotTimed if the row can't be prepared.
    """
    prompt, new = workload.prompts[0], workload.new_tokens[0]
    if new < FEWEST:
        raise ValueError(
            f"--profile times steps before it records one: it needs --tokens {FEWEST} or more."
        )
    served = rows.get(LENGTHS, next(iter(rows.values())))(bench)
    if not isinstance(served, Served):
        raise ValueError(
            f"--profile records a step of the engine, and {name} runs without it. Name engine, "
            "int8, prefix or another row of the engine."
        )
    outputs: list[Output] = []
    engine = served.new_engine(served.model, workload, outputs.append)
    engine.submit(prompt, new)
    while not outputs:
        engine.step()  # the prompt
    with OtherPrograms() as others:
        times = [seconds(engine.step) for _ in range(new - 1 - RECORDED)]
    name_kernel(engine.runner)
    events = record(engine.step)
    work = forward_work(served.model, name, 1, 1e-3 * length(events))
    cached = engine.runner.kv_cache.cache.pool[:, :, 0, 0].nbytes * (len(prompt) + new - 1)
    ms = 1e3 * median(times[len(times) // 2 :])
    machine = measure_machine()
    limits = Machine(machine.bandwidth, machine.flops, seconds_per_call())
    return Profile(events, ms, work.bytes_read + cached, work.flops, limits, others.cores)


@torch.inference_mode()
def seconds_per_call() -> float:
    """Measure the seconds from one call of a small operation to the next one."""
    one = torch.zeros(1)

    def many() -> None:
        for _ in range(CALLS):
            one.add_(1)

    return fastest_seconds(many) / CALLS


# --------------------------------------------------------------------------------- what it prints


def show_profile(console: Console, name: str, found: Profile) -> None:
    times, python = self_times(found.events)
    whole, calls = 1e-3 * length(found.events), len(called_from_python(found.events))
    table = new_table(f"a decode step of {name}", ["calls", "ms", "share"])

    def add(row: str, calls: int | None, ms: float, of: float | None = None) -> None:
        share = "" if of is None else f"{ms / of:.0%}"
        table.add_row(row, "" if calls is None else f"{calls:,}", number(ms, 2), share)

    for kind in (PRODUCTS, ATTENTION, KERNEL, REST):
        both = [each for operation, each in times.items() if kind_of(operation) == kind]
        if both:
            add(kind, round(sum(n for n, _ in both)), 1e-3 * sum(own for _, own in both), whole)
    add(f"{PYTHON} between them", None, 1e-3 * python, whole)
    add("the recorded step", len(found.events), whole, whole)
    table.add_section()
    add("a step without the profiler", None, found.ms)
    add("its floor", None, found.floor_ms())
    add("its floor with the calls", calls, found.floor_ms(calls))
    console.print(table)
    machine = found.machine
    console.print(
        f"Python calls {calls:,} of the operations, and these call the others. The profiler takes "
        "time at each one, so a step without it is shorter.\n"
        f"Floors: {found.bytes_read / 1e6:.1f} MB of weights, keys and values at "
        f"{machine.bytes_per_second / 1e9:.1f} GB/s, and {1e6 * machine.seconds_per_call:.2f} µs "
        "for each call from Python."
    )
    cache = last_level_cache(torch.device("cpu"))
    if cache and found.bytes_read <= cache:
        console.print(
            "All this fits in the processor's cache, so a step may be faster than memory allows."
        )
    if disturb(found.others, torch.get_num_threads()):
        console.print(disturbance(found.others, "add --threads {}"))
