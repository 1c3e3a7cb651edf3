"""The operations of a step, as PyTorch's profiler records them, and their kinds (lab 21).

Because labs and pictures import this module, it imports no solution.
"""

import os
import re
from collections.abc import Callable, Iterable
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

QUIET = "KINETO_LOG_LEVEL", "9"  # otherwise the profiler's library writes lines of its own
RECORDED = 5  # steps, of which the shortest counts: other programs only ever add time

Event = tuple[str, float, float]  # name, start and end in microseconds

PRODUCTS, ATTENTION, KERNEL = "products", "attention", "one kernel"
REST, PYTHON = "rest of PyTorch", "Python"

# What computes. `linear` and `matmul` only choose one of these, so they belong to the rest.
COMPUTING = {
    PRODUCTS: r"(mm|mm_for_cpu|mv|_linear_pointwise)$",
    ATTENTION: r"_scaled_dot_product_\w*attention",
    KERNEL: rf"^{KERNEL}$",
}


def record(step: Callable[[], object]) -> list[Event]:
    """Run some steps under the profiler; return the operations of the shortest one."""
    return min((recorded(step) for _ in range(RECORDED)), key=length)


def recorded(step: Callable[[], object]) -> list[Event]:
    os.environ.setdefault(*QUIET)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        step()
    return [(e.name, e.time_range.start, e.time_range.end) for e in found.events()]


def length(events: list[Event]) -> float:
    """Return the µs from the first start to the last end."""
    return max(end for *_, end in events) - min(start for _, start, _ in events)


def name_kernel(runner: Any) -> None:
    """Let the profiler see the kernel of lab 21, which isn't one of PyTorch's operations."""
    if not hasattr(runner, "kernel"):
        return
    kernel = runner.kernel

    def named(*rows: Any) -> Any:
        with record_function(KERNEL):
            return kernel(*rows)

    runner.kernel = named


def kind_of(name: str) -> str:
    """Return the kind of an operation."""
    return next((kind for kind, rule in COMPUTING.items() if re.search(rule, name)), REST)


def called_from_python(events: Iterable[Event]) -> list[Event]:
    """Return the operations of a thread that no other operation calls, in order."""
    calls: list[Event] = []
    for call in sorted(events, key=lambda each: (each[1], -each[2])):
        if not calls or call[1] >= calls[-1][2]:
            calls.append(call)
    return calls
