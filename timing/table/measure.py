"""Verify and time the techniques, and make the rows of the table."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn
from tqdm import tqdm

from solutions import generate as lab1
from timing.table.runs import NOTES, NotTimed, OtherEngine, Prepared, Run
from timing.table.verify import Key, Verifier
from timing.table.workloads import Workload

REPEATS = 3
ENOUGH_SECONDS = 2.0
AGAIN = 2  # further runs of a row, if other programs disturbed all that it has

Plan = list[tuple[Workload, list[str]]]  # which techniques are timed on which workload
Runs = dict[Key, list[Run]]  # by workload and technique, one for each repeat
Row = dict[str, Any]


@dataclass(frozen=True)
class Measured:
    """The rows of the table, and the remarks about them.

    left_out: why a technique has no row.
    """

    rows: list[Row]
    verifier: Verifier
    left_out: dict[Key, str]


def measure_rows(
    plan: Plan,
    prepared: Mapping[tuple[str, str], Prepared],
    naive_model: nn.Module,
    environment: Mapping[str, Any],
    repeats: int | None = None,
) -> Measured:
    """Verify every technique, time it, and make its rows.

    prepared: by kind of workload and name.
    """
    verifier = Verifier(naive_model)
    runs, left_out = timed_runs(plan, prepared, verifier, repeats)
    rows = []
    for workload, names in plan:
        for name in names:
            if timed := runs.get((workload.name, name)):
                read = prepared[workload.kind, name].weight_bytes
                undisturbed = [run for run in timed if not run.is_disturbed]
                rows.append(new_row(workload, name, undisturbed or timed, read, environment))
    add_speedups(rows)
    return Measured(rows, verifier, left_out)


def timed_runs(
    plan: Plan,
    prepared: Mapping[tuple[str, str], Prepared],
    verifier: Verifier,
    repeats: int | None = None,
) -> tuple[Runs, dict[Key, str]]:
    """Return the timed runs of each row, and why a technique has none.

    The verified runs are the warm-up. Then the techniques take turns, and each repeat starts with a
    different one, so that a slow minute of the machine, or a warm cache, favors none of them.

    Without `repeats`, a row is timed up to REPEATS times, until its runs add up to ENOUGH_SECONDS.
    A reference's first run counts if it took that long. Rows without an undisturbed run are timed
    again at the end, when the other programs may have finished.

    Another engine that produces wrong tokens loses its row; one of ours stops everything.
    """
    runs: Runs = {}
    left_out: dict[Key, str] = {}

    def verified(workload: Workload, name: str) -> list[Run]:
        """Return one verified run, or none if the technique has lost its row."""
        key, technique = (workload.name, name), prepared[workload.kind, name]
        if key in left_out:
            return []
        try:
            return [verifier.run(workload, name, technique)]
        except (NotTimed, SystemExit) as failure:
            if isinstance(failure, SystemExit) and not isinstance(technique, OtherEngine):
                raise
            left_out[key] = str(failure).removeprefix("Stopped: ")
            verifier.forget(key)
            runs.pop(key, None)
            return []

    verifying = [
        (workload, name)
        for workload, names in plan
        for name in dict.fromkeys([workload.reference, *names])
    ]
    timing = [
        (workload, name)
        for repeat in range(repeats or REPEATS)
        for workload, names in plan
        for name in rotated(names, repeat)
    ]
    rows = [(workload, name) for workload, names in plan for name in names]
    with tqdm(
        total=len(verifying) + len(timing), unit="run", leave=False, disable=None
    ) as progress:
        for workload, name in verifying:
            progress.set_description(f"verify {name}, {workload.name}")
            first = verified(workload, name)
            if name == workload.reference and repeats is None and is_enough(first):
                runs[workload.name, name] = first
            progress.update()
        for workload, name in timing:
            progress.set_description(f"time {name}, {workload.name}")
            timed = runs.get((workload.name, name), [])
            if (repeats or not is_enough(timed)) and (run := verified(workload, name)):
                runs[workload.name, name] = [*timed, *run]
            progress.update()
        for workload, name in AGAIN * rows:
            timed = runs.get((workload.name, name), [])
            if timed and all(run.is_disturbed for run in timed):
                progress.set_description(f"time {name}, {workload.name}, again")
                timed += verified(workload, name)
    return runs, left_out


def is_enough(runs: Sequence[Run]) -> bool:
    return sum(run.seconds for run in runs) >= ENOUGH_SECONDS


def rotated(names: list[str], by: int) -> list[str]:
    first = by % len(names)
    return names[first:] + names[:first]


# ------------------------------------------------------------------------------------------ rows


def new_row(
    workload: Workload,
    name: str,
    runs: Sequence[Run],
    weight_bytes: int | None,
    environment: Mapping[str, Any],
) -> Row:
    """Return one row of the table: medians over the runs, in seconds and bytes."""
    first, tokens = runs[0], sum(workload.new_tokens)
    rates = [tokens / run.seconds for run in runs]
    metrics = [run.metrics(workload.turns) for run in runs]
    tpot = median_over(metrics, lambda request: request.tpot)
    cache = environment["last_level_cache_bytes"]
    return {
        "workload": workload.name,
        "technique": name,
        "batch": first.batch,
        "threads": environment["threads"],
        "requests": len(workload.prompts),
        "new_tokens": tokens,
        "repeats": len(runs),
        "disturbed": any(run.is_disturbed for run in runs),
        "other_programs_cores": statistics.median(run.others for run in runs),
        "tok_per_s": statistics.median(rates),
        "tok_per_s_min": min(rates),
        "tok_per_s_max": max(rates),
        "ttft_s": median_over(metrics, lambda request: request.ttft),
        "ttft_p95_s": median_over(metrics, lambda request: request.ttft, p95),
        "tpot_s": tpot,
        "tpot_p95_s": median_over(metrics, lambda request: request.tpot, p95),
        "total_s": statistics.median(run.seconds for run in runs),
        "tokens_computed": first.tokens_computed,
        "weight_bytes": weight_bytes,
        "kv_bytes": first.kv_bytes,
        "kv_bytes_reserved": first.kv_bytes_reserved,
        **dict.fromkeys(NOTES),
        **first.notes,
        "speedup": None,
        "speedup_over": workload.reference,
        "mbu": mbu(workload, first, tpot, weight_bytes, environment),
        "weights_fit_in_cache": bool(cache and weight_bytes) and weight_bytes <= cache,
    }


def p95(values: list[float]) -> float:
    """Return the smallest value that at least 95% of the values don't exceed."""
    return float(np.percentile(values, 95, method="inverted_cdf"))


def median_over(
    runs: list[list[lab1.Metrics]],
    pick: Callable[[lab1.Metrics], float | None],
    over_requests: Callable[[list[float]], float] = statistics.median,
) -> float | None:
    """Return the median over the runs of each run's median (or other value) over its requests."""
    values = []
    for run in runs:
        picked = [pick(request) for request in run]
        known = [seconds for seconds in picked if seconds is not None]
        values += [over_requests(known)] if known else []
    return statistics.median(values) if values else None


def mbu(
    workload: Workload,
    run: Run,
    tpot: float | None,
    weight_bytes: int | None,
    environment: Mapping[str, Any],
) -> float | None:
    """Return the bytes a decode step must read, divided by what the memory can deliver in its time.

    None if requests are unequal, because every step then reads a different amount and prefills come
    between, and if one reading of the weights gives several tokens.
    """
    lengths = {len(prompt) for prompt in workload.prompts}
    limits = set(workload.new_tokens)
    if weight_bytes is None or run.kv_bytes is None or tpot is None:
        return None
    if len(lengths) > 1 or len(limits) > 1:
        return None
    (prompt,), (n,) = lengths, limits
    # The decode steps attend to prompt + 1 up to prompt + n - 1 tokens, the number at the peak.
    bytes_per_step = weight_bytes + run.kv_bytes * (prompt + n / 2) / (prompt + n - 1)
    return bytes_per_step / tpot / environment["memory_bandwidth_bytes_per_s"]


def add_speedups(rows: list[Row]) -> None:
    """Add the speed-up over the workload's reference, or None if that was not timed."""
    totals = {(row["workload"], row["technique"]): row["total_s"] for row in rows}
    for row in rows:
        reference = totals.get((row["workload"], row["speedup_over"]))
        row["speedup"] = reference / row["total_s"] if reference else None


# ---------------------------------------------------------------------------------------- growth


def growth(rows: list[Row]) -> dict[str, dict[str, float | None]]:
    """Return the powers with which cost grows with the new tokens: 1 is linear, 2 quadratic.

    Each is the slope of the least-squares line through the logarithms; `total_time_last_two` is the
    slope between the two longest workloads. Empty if there is only one length; a technique that was
    not timed on all lengths is left out.
    """
    powers: dict[str, dict[str, float | None]] = {}
    lengths = {row["new_tokens"] for row in rows}
    for name, by_length in by_technique(rows).items():
        if len(by_length) == len(lengths) > 1:
            powers[name] = {
                "total_time": power(by_length, "total_s"),
                "total_time_last_two": power(by_length[-2:], "total_s"),
                "tokens_computed": power(by_length, "tokens_computed"),
            }
    return powers


def power(rows: list[Row], cost: str) -> float | None:
    """Return the slope of a cost over the new tokens; None if the cost can't be seen."""
    if rows[0][cost] is None:
        return None
    lengths = [math.log(row["new_tokens"]) for row in rows]
    return statistics.linear_regression(lengths, [math.log(row[cost]) for row in rows]).slope


def by_technique(rows: list[Row]) -> dict[str, list[Row]]:
    names = dict.fromkeys(row["technique"] for row in rows)
    return {name: [row for row in rows if row["technique"] == name] for name in names}
