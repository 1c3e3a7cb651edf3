"""Verifying and timing, and what comes of it: the rows of the table."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from tqdm import tqdm

from solutions import generate as lab1
from timing.peers.row import PeerRow
from timing.peers.worker import PeerFailed
from timing.runs import Prepared, Run
from timing.verify import ROUNDED, difference, verify_replay
from timing.workloads import Workload

REPEATS = 3
ENOUGH_SECONDS = 2.0

Plan = list[tuple[Workload, list[str]]]  # which techniques are timed on which workload
Key = tuple[str, str]  # workload and technique
Results = dict[Key, list[Run]]  # one run for each repeat
Row = dict[str, Any]


@dataclass(frozen=True)
class Told:
    """Sentences about rows. ties: what float32 could not decide. differing: how far the tokens are
    the reference's where they need not be. lost: by technique, what those of ours lose. left_out:
    why an engine of others has no row.
    """

    ties: dict[Key, str] = field(default_factory=dict)
    differing: dict[Key, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    left_out: dict[Key, str] = field(default_factory=dict)


def measure(
    plan: Plan,
    prepared: dict[tuple[str, str], Prepared],
    naive_model: nn.Module,
    repeats: int | None = None,
) -> tuple[Results, Told]:
    """Verify every technique, then time it; return the timed runs and what is to be told of them.

    `prepared` is by kind of workload and name. The verified runs are the warm-up. Then the
    techniques take turns, and each repeat starts with another one, so that a slow minute of the
    machine, or a warm cache, favours none of them.

    Without `repeats`, a row is timed up to REPEATS times, until it has been for ENOUGH_SECONDS. A
    reference has nothing to wait for: a first run of its own that was long enough counts.

    An engine of others that fails, or gives other tokens, loses its row; one of ours stops it all.
    One of ours that computes something else is held against a naive model that does so, too.
    """
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
    expected: dict[str, list[list[int]]] = {}  # what each workload's reference returned
    results: Results = {}
    told = Told()

    def verified_run(workload: Workload, name: str) -> Run | None:
        """None for an engine of others that has no row."""
        key, technique = (workload.name, name), prepared[workload.kind, name]
        if not isinstance(technique, PeerRow):
            return verified(workload, name, technique.run(workload))
        if key in told.left_out:
            return None
        try:
            return verified(workload, name, technique.run(workload))
        except (PeerFailed, SystemExit) as failure:
            told.left_out[key] = str(failure).removeprefix("Stopped: ")
            for sentences in (results, told.ties, told.differing):
                sentences.pop(key, None)
            return None

    def verified(workload: Workload, name: str, run: Run) -> Run:
        key, wanted = (workload.name, name), expected.get(workload.name)
        tie = run.verify(name, workload, wanted, naive_model)
        if run.lossy:
            told.lost[name] = str(run.lossy)
        if wanted is not None and not run.exact:
            why = run.lossy.why if run.lossy else ROUNDED
            told.differing[key] = difference(name, workload, run.outputs, wanted, why)
        elif tie:
            told.ties[key] = tie
        return run

    with tqdm(total=len(verifying) + len(timing), unit="run", leave=False) as progress:
        for workload, name in verifying:
            progress.set_description(f"verify {name}, {workload.name}")
            if workload.temperature:
                verify_replay(name, workload, prepared[workload.kind, name])
            run = verified_run(workload, name)
            if run is not None and name == workload.reference:
                expected[workload.name] = run.outputs
                if repeats is None and is_enough([run]):
                    results[workload.name, name] = [run]
            progress.update()
        for workload, name in timing:
            progress.set_description(f"time {name}, {workload.name}")
            timed = results.get((workload.name, name), [])
            if repeats is not None or not is_enough(timed):
                run = verified_run(workload, name)
                if run is not None:
                    results[workload.name, name] = [*timed, run]
            progress.update()
    return results, told


def is_enough(runs: Sequence[Run]) -> bool:
    return sum(run.seconds for run in runs) >= ENOUGH_SECONDS


def rotated(names: list[str], by: int) -> list[str]:
    first = by % len(names)
    return names[first:] + names[:first]


# ------------------------------------------------------------------------------------------ rows


def new_row(
    workload: Workload,
    name: str,
    runs: list[Run],
    weight_bytes: int | None,
    environment: dict[str, Any],
) -> Row:
    """One line of the table: medians over the runs, in seconds and bytes."""
    first, tokens = runs[0], sum(workload.new_tokens)
    rates = [tokens / run.seconds for run in runs]
    metrics = [run.metrics(workload.turns) for run in runs]
    tpot = median_over(metrics, lambda request: request.tpot)
    cache = environment["last_level_cache_bytes"]
    return {
        "workload": workload.name,
        "technique": name,
        "batch": first.batch,
        "threads": first.threads or environment["threads"],
        "requests": len(workload.prompts),
        "new_tokens": tokens,
        "repeats": len(runs),
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
        "used": first.used,
        "preemptions": first.preemptions,
        "pool_used": first.pool_used,
        "queried": first.queried,
        "hits": first.hits,
        "acceptance": first.accepted / first.drafted if first.drafted else None,
        "tokens_per_pass": tokens / first.passes if first.drafted else None,
        "speedup": None,
        "speedup_over": workload.reference,
        "mbu": mbu(workload, first, tpot, weight_bytes, environment),
        "weights_fit_in_cache": bool(cache and weight_bytes) and weight_bytes <= cache,
    }


def p95(values: list[float]) -> float:
    """The least of the values that 95% of them don't pass."""
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]


def median_over(
    runs: list[list[lab1.Metrics]],
    pick: Callable[[lab1.Metrics], float | None],
    over_requests: Callable[[list[float]], float] = statistics.median,
) -> float | None:
    """The median, or what else is asked for, over a run's requests; of these, over the runs."""
    found = []
    for run in runs:
        picked = [pick(request) for request in run]
        known = [seconds for seconds in picked if seconds is not None]
        found += [over_requests(known)] if known else []
    return statistics.median(found) if found else None


def mbu(
    workload: Workload,
    run: Run,
    tpot: float | None,
    weight_bytes: int | None,
    environment: dict[str, Any],
) -> float | None:
    """Bytes that a decode step must read, over those that the memory could have given meanwhile.

    None where requests are unequal: every step reads another amount, and prefills lie between; and
    where several tokens come of one reading.
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
    """Over the workload's reference; it stays None where that was not timed."""
    totals = {(row["workload"], row["technique"]): row["total_s"] for row in rows}
    for row in rows:
        reference = totals.get((row["workload"], row["speedup_over"]))
        row["speedup"] = reference / row["total_s"] if reference else None


# ---------------------------------------------------------------------------------------- growth


def growth(rows: list[Row]) -> dict[str, dict[str, float | None]]:
    """The powers with which a technique's cost grows with the new tokens: 1 linear, 2 quadratic.

    Each is the slope of the least-squares line through the logarithms; `total_time_last_two` is the
    one between the two longest workloads alone. Empty where there is only one length, and without
    a technique that was not timed on all of them.
    """
    powers: dict[str, dict[str, float | None]] = {}
    lengths = {row["new_tokens"] for row in rows}
    for name, own in by_technique(rows).items():
        if len(own) == len(lengths) > 1:
            powers[name] = {
                "total_time": power(own, "total_s"),
                "total_time_last_two": power(own[-2:], "total_s"),
                "tokens_computed": (
                    None if own[0]["tokens_computed"] is None else power(own, "tokens_computed")
                ),
            }
    return powers


def power(rows: list[Row], cost: str) -> float:
    lengths = [math.log(row["new_tokens"]) for row in rows]
    return statistics.linear_regression(lengths, [math.log(row[cost]) for row in rows]).slope


def by_technique(rows: list[Row]) -> dict[str, list[Row]]:
    names = dict.fromkeys(row["technique"] for row in rows)
    return {name: [row for row in rows if row["technique"] == name] for name in names}
