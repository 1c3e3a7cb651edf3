"""What a load is said to have been: the table, remarks on how far to trust it, and the plot."""

import argparse
import platform
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import takewhile
from math import ceil
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from timing.cores import usable_cores
from timing.load.runs import GOOD, Load, Unit
from timing.machine import processor_name
from timing.table import milliseconds, new_table, number

ENOUGH = 1000  # answers, below which a p99 rests on fewer than ten
LATE = 0.1  # of the SLO's TTFT: a generator that is later than this changes what it measures
UNSTEADY = 0.2  # of the requests in flight

Row = Mapping[str, Any]


def p99(row: Row) -> str:
    return milliseconds(row["ttft_p99_s"]) + ("*" if 0 < row["whole"] < ENOUGH else "")


COLUMNS: dict[str, Callable[[Row], str]] = {
    "sent": lambda row: str(row["sent"]),
    "whole": lambda row: str(row["whole"]),
    "refused": lambda row: str(row["refused"]),
    "failed": lambda row: str(row["failed"]),
    "req/s": lambda row: number(row["req_per_s"], 2),
    "tok/s": lambda row: number(row["tok_per_s"]),
    "TTFT p50": lambda row: milliseconds(row["ttft_p50_s"]),
    "p95": lambda row: milliseconds(row["ttft_p95_s"]),
    "p99": p99,
    "TPOT p50": lambda row: milliseconds(row["tpot_p50_s"], 2),
    "goodput": lambda row: number(row["goodput"], 2),
}


def environment() -> dict[str, Any]:
    """Return where the generator runs; a server on the same machine shares its cores with it."""
    return {
        "processor": processor_name(torch.device("cpu")),
        "cores": usable_cores(),
        "os": platform.platform(),
        "python": platform.python_version(),
        "httpx2": version("httpx2"),
    }


def show_environment(console: Console, found: Mapping[str, Any], args: argparse.Namespace) -> None:
    prompts, answers = ("-".join(map(str, ends)) for ends in (args.prompt_tokens, args.max_tokens))
    lengths = f"prompts of {prompts} tokens, answers of at most {answers}, log-uniform"
    console.print(
        f"The generator: {found['processor']}, cores: {found['cores']}; {found['os']}, Python "
        f"{found['python']}, httpx2 {found['httpx2']}. A server on the same machine shares its "
        f"cores.\nRequests: {'lengths of the trace' if args.trace else lengths}; seed {args.seed}; "
        f"each is given up after {args.deadline:g} s."
    )


def show_unit(console: Console, unit: Unit, slo: Any) -> None:
    console.print(
        f"With one request at a time, a step (its TPOT) takes {milliseconds(unit.step, 2)} ms, and "
        f"prompts are computed at {number(unit.prefill_rate)} tokens/s.\n"
        f"SLO: TTFT of at most {number(slo.ttft / unit.step, 0)} steps "
        f"({milliseconds(slo.ttft)} ms), TPOT of at most {number(slo.tpot / unit.step)} steps "
        f"({milliseconds(slo.tpot, 2)} ms)."
    )


def show_loads(console: Console, loads: Sequence[Load]) -> None:
    table = new_table("load", list(COLUMNS))
    for load in loads:
        row = load.row()
        table.add_row(load.name, *(cell(row) for cell in COLUMNS.values()))
    console.print(table)
    console.print(
        "Times are in milliseconds; TTFT counts from when a request was due. Goodput: requests per "
        "second that met the whole SLO."
    )
    for remark in remarks(loads):
        console.print(remark)


def remarks(loads: Sequence[Load]) -> Iterator[str]:
    """Yield what must be known to read the table."""
    if few := [load for load in loads if 0 < len(load.whole) < ENOUGH]:
        least = min(len(load.whole) for load in few)
        place = least - ceil(0.99 * least) + 1
        nearest = "the largest" if place == 1 else f"number {place} from the top"
        yield f"* The p99 of {least} answers is {nearest}; take {ENOUGH:,} answers or more."
    if not all(answer.has_usage for load in loads for answer in load.whole):
        yield "Without a usage from the server, tokens are its events with text, which may be less."
    for load in loads:
        yield from remarks_on(load)
    if not all(map(is_steady, loads)):
        yield (
            "Not steady: many requests had no answer yet when the last one came. Either the server "
            "falls behind this rate, or the run was too short to judge."
        )


def remarks_on(load: Load) -> Iterator[str]:
    for why, count in Counter(load.failures).most_common(3):
        yield f"{load.name}: {count} failed: {why}."
    yield (
        f"{load.name}: {load.in_flight:.1f} requests in flight on average; rate x mean latency is "
        f"{load.by_little:.1f} (Little's law){'' if is_steady(load) else ': not steady'}."
    )
    if is_late(load):
        yield (
            f"{load.name}: the generator sent a request {milliseconds(load.max_lag)} ms after it "
            f"was due, more than {LATE:.0%} of the SLO's TTFT. These times are the generator's as "
            "much as the server's: take a lower rate, or run it on another machine."
        )


def is_steady(load: Load) -> bool:
    return abs(load.in_flight - load.by_little) <= UNSTEADY * load.by_little


def is_late(load: Load) -> bool:
    return load.max_lag > LATE * load.slo.ttft


def knee(loads: Sequence[Load]) -> str:
    """Return a sentence about the highest rate at which nearly all requests are good.

    The loads are in the order of their rates.
    """
    kept = [*takewhile(lambda load: load.good_share >= GOOD, loads)]
    if not kept:
        return f"Even at {loads[0].name}, fewer than {GOOD:.0%} of the requests meet the SLO."
    if len(kept) == len(loads):
        return f"At {kept[-1].name}, {GOOD:.0%} of the requests or more still meet the SLO."
    return (
        f"The knee: up to {kept[-1].name}, {GOOD:.0%} of the requests or more meet the SLO. (The "
        "DistServe paper calls this rate the goodput.)"
    )


def plot(path: Path, loads: Sequence[Load]) -> None:
    """Draw throughput and goodput over the rate, and below them the TTFT."""
    import matplotlib

    matplotlib.use("Agg")  # a file is drawn; no display is needed
    from matplotlib import pyplot

    rates, rows = [load.rate for load in loads], [load.row() for load in loads]
    figure, (above, below) = pyplot.subplots(2, sharex=True, figsize=(7, 6), layout="constrained")
    above.plot(rates, rates, color="#8b949e", linestyle=":", label="as many as come")
    above.plot(rates, [row["req_per_s"] for row in rows], "o-", label="throughput")
    above.plot(rates, [row["goodput"] for row in rows], "s--", label="goodput")
    above.set_ylabel("requests per second")
    for p, style in ((50, "o-"), (95, "s--"), (99, "^:")):
        ttfts = [row[f"ttft_p{p}_s"] or float("nan") for row in rows]  # none where none is whole
        below.plot(rates, ttfts, style, label=f"p{p}")
    below.axhline(loads[0].slo.ttft, color="#8b949e", label="SLO")
    below.set(yscale="log", ylabel="TTFT in seconds", xlabel="requests that come per second")
    for axes in (above, below):
        axes.legend(frameon=False)
    figure.savefig(path, format="png", dpi=150)
    pyplot.close(figure)
