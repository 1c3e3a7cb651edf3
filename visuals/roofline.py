"""The roofline of a machine: the speed that its memory and its arithmetic allow.

Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for
multicore architectures", Communications of the ACM 52(4), 2009. Arithmetic intensity is the number
of floating-point operations per byte read from memory. Left of the ridge, a computation is limited
by memory; right of it, by arithmetic.
"""

from collections.abc import Sequence

from matplotlib.ticker import FuncFormatter

from timing.machine import Machine, Work

# These have moved there, but earlier releases of labs 2, 3 and 4 import them from here.
from timing.machine import forward_work as forward_work
from timing.machine import measure_machine as measure_machine
from timing.machine import median_seconds as median_seconds
from visuals.style import BLUE, GRAY, GREEN, INK, ORANGE, PINK, Picture, new_figure, shared_look


@shared_look
def roofline(machine: Machine, works: Sequence[Work]) -> Picture:
    """Draw a machine's roofline and the measured computations as points, on logarithmic axes."""
    figure, (axes,) = new_figure(height=3.6)
    left = min([machine.ridge, *(work.intensity for work in works)]) / 4
    right = max([machine.ridge, *(work.intensity for work in works)]) * 4
    intensities = [left, machine.ridge, right]
    axes.plot(intensities, [machine.limit(i) / 1e9 for i in intensities], color=INK, linewidth=2)
    axes.axvline(machine.ridge, color=GRAY, linewidth=1, linestyle=":")
    for work, color in zip(works, (BLUE, ORANGE, GREEN, PINK), strict=False):
        point = work.intensity, work.speed / 1e9
        axes.plot(*point, "o", color=color, markersize=9)
        axes.annotate(work.label, point, (8, -10), textcoords="offset points")
    lowest = min([machine.limit(left), *(work.speed for work in works)]) / 1e9
    axes.set(xscale="log", xlim=(left, right), xlabel="arithmetic intensity, FLOPs per byte read")
    axes.set(yscale="log", ylim=(lowest / 2, machine.flops / 1e9 * 3), title="GFLOP per second")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    above = machine.flops / 1e9 * 1.5
    read = f"memory: {machine.bandwidth / 1e9:,.0f} GB/s"
    done = f"arithmetic: {machine.flops / 1e9:,.0f} GFLOP/s"
    axes.text(left * 1.2, above, read, fontsize=9)
    axes.text(right / 1.2, above, done, fontsize=9, ha="right")
    return figure
