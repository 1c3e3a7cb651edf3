"""The chart that --plot draws: tokens per second, a bar for each technique."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from timing.table.measure import Plan, Row
from timing.table.verify import Verifier
from timing.table.workloads import LENGTHS, RAGGED, Workload

NAMES = {  # for readers who haven't seen the table; other rows keep their name
    "naive": "naive loop",
    "cached": "KV cache",
    "speculative": "speculative decoding",
    "ngram": "n-gram speculation",
    "continuous": "continuous batching",
    "paged": "paged attention",
    "engine": "the engine",
    "int8": "the engine, int8",
    "hf": "transformers",
    "hf-continuous": "transformers, continuous",
    "ct2": "CTranslate2",
    "ct2-int8": "CTranslate2, int8",
    "llama.cpp-q8": "llama.cpp, q8_0",
}
OURS, THEIRS = "#2f81f7", "#8b949e"  # both are legible on white and on black

LEGEND = (
    "tokens per second; × compares with the naive loop, or with one request at a time\n"
    "gray: other engines · hatched: rounded weights, so another text"
)
PAGES = ("white", "#1f2328"), ("#0d1117", "#e6edf3")  # background and ink


def draw_chart(
    path: Path, plan: Plan, rows: list[Row], verifier: Verifier, others: Collection[str]
) -> list[Path]:
    """Draw one panel for each workload, on a light page and on a dark one.

    others: the techniques that are other engines'. Returns the two files: `path`, and one next to
    it whose name ends in -dark.
    """
    import matplotlib

    matplotlib.use("Agg")  # a file is drawn; no display is needed
    from matplotlib import pyplot

    panels = [
        (workload, [row for row in rows if row["workload"] == workload.name])
        for workload, _ in plan
    ]
    bars = [len(panel) for _, panel in panels]
    files = [path, path.with_stem(f"{path.stem}-dark")]
    for file, (page, ink) in zip(files, PAGES, strict=True):
        inked = dict.fromkeys(["text.color", "ytick.color"], ink)
        with pyplot.rc_context({**inked, "hatch.color": page, "font.size": 13}):
            figure, all_axes = pyplot.subplots(
                nrows=len(bars),
                figsize=(7, 0.7 + 0.6 * len(bars) + 0.32 * sum(bars)),
                height_ratios=bars,
                layout="constrained",
                facecolor=page,
                squeeze=False,
            )
            for axes, (workload, panel) in zip(all_axes.flat, panels, strict=True):
                draw_bars(axes, panel, verifier, others)
                axes.set_title(title_of(workload), loc="left", fontsize=14, fontweight="bold")
            figure.supxlabel(LEGEND, fontsize=11, x=0.01, ha="left")
            figure.savefig(file, format="png", dpi=150)
            pyplot.close(figure)
    return files


def title_of(workload: Workload) -> str:
    if workload.kind == LENGTHS:
        return f"one request, {workload.name}"
    kind = "unequal" if workload.kind == RAGGED else workload.kind
    return f"{len(workload.prompts)} {kind} requests"


def draw_bars(axes: Any, rows: list[Row], verifier: Verifier, others: Collection[str]) -> None:
    """Draw the rows of one workload from top to bottom, hatched if their outputs may differ."""
    bars = axes.barh(
        [NAMES.get(row["technique"], row["technique"]) for row in rows],
        [row["tok_per_s"] for row in rows],
        color=[THEIRS if row["technique"] in others else OURS for row in rows],
    )
    for bar, row in zip(bars, rows, strict=True):
        bar.set_hatch("//" if (row["workload"], row["technique"]) in verifier.differing else "")
    axes.bar_label(bars, [label(row) for row in rows], padding=4)
    axes.invert_yaxis()
    axes.margins(x=0.25, y=0.02)
    axes.patch.set_visible(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set_xticks([])


def label(row: Row) -> str:
    """Return tokens per second, and the speed-up over the reference."""
    times = f"  {row['speedup']:.1f}×" if row["speedup"] and row["speedup"] != 1 else ""
    return f"{row['tok_per_s']:,.0f}{times}"
