"""The operations of a step, as PyTorch's profiler records them, and their kinds (lab 21).

Because labs and pictures import this module, it imports no solution.
"""

import os
import re
from collections.abc import Callable, Iterable

from torch.profiler import ProfilerActivity, profile

QUIET = "KINETO_LOG_LEVEL", "9"  # otherwise the profiler's library writes lines of its own

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
    """Run a step under the profiler; return its operations."""
    os.environ.setdefault(*QUIET)
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        step()
    return [(e.name, e.time_range.start, e.time_range.end) for e in recorded.events()]


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
