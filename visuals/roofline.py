"""The roofline of this machine: what its memory allows, what its arithmetic allows.

Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for
multicore architectures", Communications of the ACM 52(4), 2009. Arithmetic intensity is the number
of floating-point operations for each byte read from memory. Left of the ridge a computation waits
for memory; right of it, for arithmetic.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import matplotlib.pyplot as plt
import torch
from matplotlib.ticker import FuncFormatter
from torch import nn

from visuals.style import BLUE, GREEN, GREY, INK, LOOK, ORANGE, PINK, Picture, new_figure


@dataclass(frozen=True)
class Machine:
    """bandwidth: bytes read from memory a second. flops: floating-point operations a second."""

    bandwidth: float
    flops: float

    @property
    def ridge(self) -> float:
        """The arithmetic intensity at which both limits meet, in FLOPs a byte."""
        return self.flops / self.bandwidth

    def limit(self, intensity: float) -> float:
        """FLOPs a second that the machine can reach at this intensity."""
        return min(self.flops, self.bandwidth * intensity)


@dataclass(frozen=True)
class Work:
    """One computation, measured: a point under the roofline."""

    label: str
    flops: float
    bytes_read: float
    seconds: float

    @property
    def intensity(self) -> float:
        return self.flops / self.bytes_read

    @property
    def speed(self) -> float:
        return self.flops / self.seconds


def measure_machine(device: str | torch.device = "cpu") -> Machine:
    """Measure both limits in about a second: sum 256 MB, multiply two 2,048 x 2,048 matrices."""
    numbers = torch.ones(64 * 2**20, device=device)
    matrix = torch.randn(2048, 2048, device=device)
    return Machine(
        bandwidth=numbers.nbytes / fastest_seconds(lambda: numbers.sum(), device),
        flops=2 * 2048**3 / fastest_seconds(lambda: matrix @ matrix, device),
    )


def forward_work(model: nn.Module, label: str, tokens: int, seconds: float) -> Work:
    """A forward of `tokens` tokens, counted by its matrices: 2 FLOPs a weight and token.

    Each matrix is read once, however many tokens there are. The position table is looked up, not
    multiplied, so it stays out; so do attention's own products and the KV cache, small beside it.
    """
    matrices = [
        weight
        for name, weight in model.named_parameters()
        if weight.ndim == 2 and not name.endswith("wpe.weight")
    ]
    numbers = sum(weight.numel() for weight in matrices)
    return Work(label, 2 * numbers * tokens, sum(weight.nbytes for weight in matrices), seconds)


def fastest_seconds(run: Callable[[], object], device: str | torch.device = "cpu") -> float:
    """The best of five: a limit is what the machine can do when nothing disturbs it."""
    return min(seconds(run, 5, device))


def median_seconds(run: Callable[[], object], device: str | torch.device = "cpu") -> float:
    """The middle of nine: what usually happens."""
    return median(seconds(run, 9, device))


def seconds(run: Callable[[], object], repeats: int, device: str | torch.device) -> list[float]:
    """How long each of `repeats` runs takes, after one to warm up."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        run()
        if torch.device(device).type != "cpu":
            torch.accelerator.synchronize()  # an accelerator returns before its work is done
        times.append(time.perf_counter() - start)
    return times[1:]


@plt.rc_context(LOOK)
def roofline(machine: Machine, works: Sequence[Work]) -> Picture:
    """The roof of a machine, with measured computations as points, on logarithmic axes."""
    figure, (axes,) = new_figure(height=3.6)
    left = min([machine.ridge, *(work.intensity for work in works)]) / 4
    right = max([machine.ridge, *(work.intensity for work in works)]) * 4
    intensities = [left, machine.ridge, right]
    axes.plot(intensities, [machine.limit(i) / 1e9 for i in intensities], color=INK, linewidth=2)
    axes.axvline(machine.ridge, color=GREY, linewidth=1, linestyle=":")
    for work, colour in zip(works, (BLUE, ORANGE, GREEN, PINK), strict=False):
        axes.plot(work.intensity, work.speed / 1e9, "o", color=colour, markersize=9)
        axes.annotate(
            work.label, (work.intensity, work.speed / 1e9), (8, -10), textcoords="offset points"
        )
    lowest = min([machine.limit(left), *(work.speed for work in works)]) / 1e9
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(left, right),
        ylim=(lowest / 2, machine.flops / 1e9 * 3),
        xlabel="arithmetic intensity, FLOPs per byte read",
        title="GFLOP per second",
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.text(
        left * 1.2,
        machine.flops / 1e9 * 1.5,
        f"memory reads {machine.bandwidth / 1e9:,.0f} GB/s",
        fontsize=9,
    )
    axes.text(
        right / 1.2,
        machine.flops / 1e9 * 1.5,
        f"arithmetic does {machine.flops / 1e9:,.0f} GFLOP/s",
        fontsize=9,
        ha="right",
    )
    return figure
