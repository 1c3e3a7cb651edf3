"""What a call between two processes costs, and what that predicts for a tensor-parallel model.

    python -m timing.wire

The time of a call is modeled as alpha + beta * bytes: alpha is what every call costs, however
little it sends, and beta is the time per byte. Both are fitted to measured calls. Then a decode
step and a prefill are predicted: the time that each rank computes, measured without any exchange,
plus that of the calls and bytes that they count. Because labs import this module, it imports no
solution by itself; its functions are given a group.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from timing.cores import OtherPrograms, disturb
from timing.machine import processor_name

SIZES = [4**k for k in range(5, 13)]  # bytes of a call, 1 KB to 16 MB
REPEATS = 100  # calls of each size
RANKS, CONTEXT, STEPS = 2, 512, 15
DECODE, PREFILL = f"a decode step after {CONTEXT} tokens", f"a prefill of {CONTEXT} tokens"
MODEL, CPU = "fable", torch.device("cpu")


@dataclass(frozen=True)
class Wire:
    """The time of calls. alpha: seconds per call. beta: seconds per byte that a rank hands in.

    Source: Hockney, "The communication challenge for MPP", 1994.
    """

    alpha: float
    beta: float

    def seconds(self, calls: float, sent: float) -> float:
        return calls * self.alpha + sent * self.beta


def call_seconds(group: Any, kind: str, sizes: Sequence[int] = SIZES) -> dict[int, float]:
    """Return the mean time of a call, by its bytes: "all_reduce", or "send" between ranks 0 and 1.

    All ranks run this. It is the mean, because some calls take several times as long as most, when
    a process has to be woken up, and a forward pass pays for all of its calls.
    """

    def call(x: torch.Tensor) -> None:
        if kind == "all_reduce":
            group.all_reduce(x)
        elif group.rank == 0:
            group.send(x, 1)
            group.recv(x, 1)
        elif group.rank == 1:
            group.recv(x, 0)
            group.send(x, 0)

    found = {}
    for size in sizes:
        x = torch.ones(size // 4)
        call(x)  # so that all start together
        start = time.perf_counter()
        for _ in range(REPEATS):
            call(x)
        found[size] = (time.perf_counter() - start) / REPEATS / (2 if kind == "send" else 1)
    return found


def fitted(seconds: Mapping[int, float]) -> Wire:
    """Return the model with the least squares of relative errors, so that small calls count too."""
    sizes = torch.tensor(list(seconds), dtype=torch.float64)
    times = torch.tensor(list(seconds.values()), dtype=torch.float64)
    relative = torch.stack([1 / times, sizes / times], dim=1)
    return Wire(
        *torch.linalg.lstsq(relative, torch.ones_like(times)[:, None]).solution[:, 0].tolist()
    )


def step_seconds(group: Any, model: Any, kv_cache: Any, new: int) -> float:
    """Return the median time of a forward pass over `new` tokens on this rank's part."""
    positions = kv_cache.length + torch.arange(new)[None]
    times, length = [], kv_cache.length
    for _ in range(STEPS):
        kv_cache.truncate(length)
        group.all_reduce(torch.ones(1))  # so that all start together
        start = time.perf_counter()
        with torch.inference_mode():
            model.transformer(positions % 7, positions, kv_cache)
        times.append(time.perf_counter() - start)
    return median(times)


def steps(group: Any, functions: Any) -> dict[str, tuple[float, float, int, int]]:
    """Measure a decode step and a prefill: for each the seconds with the exchange and without it,
    the calls, and the bytes that this rank hands in."""
    from solutions.kv_cache import KVCache
    from solutions.ranks.group import Group
    from solutions.ranks.tensor_parallel import TensorParallelLMHead

    class Silent(Group):
        """Counts the calls, but exchanges nothing."""

        def answer(self, call: Any) -> list[Any]:
            return call.parts

    found = {}
    model = TensorParallelLMHead.from_pretrained(MODEL, group, functions)
    for name, context, new in (DECODE, CONTEXT, 1), (PREFILL, 0, CONTEXT):
        kv_cache, silent = KVCache(model.config, 1, context + new), Silent(group.rank, group.size)
        kv_cache.length = context
        exchanging = step_seconds(group, model, kv_cache, new)
        model.transformer.group, kv_cache.length = silent, context
        computing = step_seconds(group, model, kv_cache, new)
        model.transformer.group = group
        calls, sent = silent.calls.total() // STEPS, silent.sent.total() // STEPS
        found[name] = exchanging, computing, calls, sent
    return found


def main() -> None:
    from solutions import parallelism as lab
    from solutions.ranks.processes import Processes
    from solutions.ranks.tensor_parallel import Functions

    cut = Functions(lab.shard, lab.vocab_parallel_embedding, lab.tensor_parallel_block)
    print(f"{processor_name(CPU)}, {RANKS} processes with 1 thread each, torch {torch.__version__}")
    with OtherPrograms() as others, Processes(RANKS, is_checked=False) as ranks:
        wires = {}
        for kind in ("send", "all_reduce"):
            times = ranks.run(call_seconds, kind)[0]
            wires[kind] = wire = fitted(times)
            off = max(abs(wire.seconds(1, size) / times[size] - 1) for size in times)
            print(
                f"{kind}: {1e6 * wire.alpha:.0f} µs per call and {1e-9 / wire.beta:.2f} GB/s; the "
                f"model is off by up to {off:.0%}."
            )
            print("  " + ", ".join(f"{n // 1024:,} KB {1e6 * t:,.0f} µs" for n, t in times.items()))
        both = ranks.run(steps, cut)[0]
        with Processes(1, is_checked=False) as one:
            alone = one.run(steps, cut)[0]
    for name, (measured, computed, calls, sent) in both.items():
        wired = wires["all_reduce"].seconds(calls, sent)
        print(
            f"{name}: {1e3 * alone[name][0]:.2f} ms in one process. Predicted for {RANKS}: "
            f"{1e3 * computed:.2f} to compute + {1e3 * wired:.2f} for {calls} calls with {sent:,} "
            f"bytes = {1e3 * (computed + wired):.2f} ms; measured: {1e3 * measured:.2f} ms."
        )
    if disturb(others.cores, RANKS):
        print(f"Other programs kept {others.cores:.1f} cores busy: these times are too long.")


if __name__ == "__main__":
    from timing import wire  # by this name, the processes find its functions

    wire.main()
