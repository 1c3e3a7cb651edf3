"""The picture that --plot draws."""

from pathlib import Path
from typing import Any

import torch

from timing.table.measure import Plan, Row, Runs, by_technique
from timing.table.workloads import LENGTHS

Style = dict[str, Any]  # of a technique: the same in every panel


def plot(path: Path, plan: Plan, rows: list[Row], results: Runs) -> None:
    """Total time against new tokens and every step of the longest text; bars for many requests."""
    import matplotlib

    matplotlib.use("Agg")  # a file is drawn; no display is needed
    from matplotlib import pyplot

    alone = [workload.name for workload, _ in plan if workload.kind == LENGTHS]
    many = [workload.name for workload, _ in plan if workload.kind != LENGTHS]
    styles: dict[str, Style] = {
        name: {"label": name, "color": f"C{i}", "linestyle": "--" if name[:2] == "hf" else "-"}
        for i, name in enumerate(by_technique(rows))
    }
    mosaic = [["total", "step"]] if alone else []
    mosaic += [[many[i], many[min(i + 1, len(many) - 1)]] for i in range(0, len(many), 2)]
    figure, panels = pyplot.subplot_mosaic(
        mosaic, figsize=(11, 4.2 * len(mosaic)), layout="constrained"
    )
    if alone:
        draw_total(panels["total"], [row for row in rows if row["workload"] in alone], styles)
        draw_steps(panels["step"], alone[-1], results, styles)
    for name in many:
        draw_bars(panels[name], [row for row in rows if row["workload"] == name], styles)
    for axes in panels.values():
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)
        axes.grid(color="0.92")
    figure.savefig(path, format="png", dpi=150)
    pyplot.close(figure)


def draw_total(axes: Any, rows: list[Row], styles: dict[str, Style]) -> None:
    from matplotlib.ticker import LogLocator

    for name, own in by_technique(rows).items():
        lengths = [row["new_tokens"] for row in own]
        axes.plot(lengths, [row["total_s"] for row in own], marker="o", **styles[name])
    axes.set(xscale="log", yscale="log", xlabel="new tokens", ylabel="seconds", title="Total time")
    lengths = sorted({row["new_tokens"] for row in rows})
    axes.set_xticks(lengths, [str(length) for length in lengths], minor=False)
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    axes.legend(frameon=False)


def draw_steps(axes: Any, longest: str, results: Runs, styles: dict[str, Style]) -> None:
    for name in styles:
        if runs := results.get((longest, name)):
            times = torch.tensor([run.token_times[0] for run in runs], dtype=torch.float64)
            steps = times.diff(dim=1).median(dim=0).values * 1e3
            axes.plot(range(2, len(steps) + 2), steps, linewidth=1.2, **styles[name])
    axes.set(xlabel="new token", ylabel="milliseconds", title=f"Each step of {longest}")
    axes.set_ylim(bottom=0)


def draw_bars(axes: Any, rows: list[Row], styles: dict[str, Style]) -> None:
    names, rates = zip(*((row["technique"], row["tok_per_s"]) for row in rows), strict=True)
    bars = axes.bar(names, rates, width=0.6, color=[styles[name]["color"] for name in names])
    axes.bar_label(bars, [f"{rate:,.0f}" for rate in rates], padding=2)
    title = f"{rows[0]['requests']} {rows[0]['workload']} requests"
    axes.set(ylabel="tokens per second", title=title)
    axes.margins(y=0.1)
