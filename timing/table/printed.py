"""What timed_generate.py prints: the machine, the tables, and what their headers mean."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from timing.cores import disturbance
from timing.table.measure import ENOUGH_SECONDS, REPEATS, Plan, Row
from timing.table.runs import Prepared
from timing.table.verify import Verifier
from timing.table.workloads import CHAT, LENGTHS


def show_environment(console: Console, found: dict[str, Any], plan: Plan) -> None:
    sampled = any(workload.temperature for workload, _ in plan)
    cache = found["last_level_cache_bytes"]
    repeats = f"medians of {found['repeats']} interleaved repeats"
    if found["repeats"] is None:
        enough = f"(fewer once timed for {ENOUGH_SECONDS:.0f} s)"
        repeats = f"medians of up to {REPEATS} interleaved repeats {enough}"
    console.print(
        f"{found['model']}: {found['weight_bytes'] / 1e6:.1f} MB of weights in {found['dtype']}, "
        f"on {found['device']}\n"
        f"{found['processor']}, cores: {found['cores']}, threads: {found['threads']}, memory read "
        f"at {found['memory_bandwidth_bytes_per_s'] / 1e9:.1f} GB/s, last-level cache: "
        f"{f'{cache / 1e6:.1f} MB' if cache else 'unknown'}\n"
        f"{found['os']}, Python {found['python']}, torch {found['torch']}, transformers "
        f"{found['transformers']}\n"
        f"From lab 2 on, the rows multiply by {found['products']}.\n"
        f"Greedy{', except `sampled`' if sampled else ''}; {repeats}; outputs verified first."
    )


# -------------------------------------------------------------------------------------- the rows


def number(value: float | None, decimals: int = 1) -> str:
    """Format a value, with fewer decimals where they would mean nothing."""
    if value is None:
        return "-"
    return f"{value:,.{decimals if value < 100 else 0}f}"


def spread(row: Row) -> str:
    if row["repeats"] == 1:
        return "-"
    both = f"{number(row['tok_per_s_min'])}-{number(row['tok_per_s_max'])}"
    return both.replace(",", "")  # the widest column of a table that is to fit 100


def computed(row: Row) -> str:
    return "-" if row["tokens_computed"] is None else f"{row['tokens_computed']:,}"


def megabytes(row: Row) -> str:
    return "-" if row["kv_bytes"] is None else number(row["kv_bytes"] / 1e6, 2)


def held_and_reserved(row: Row) -> str:
    if row["kv_bytes"] is None:
        return "-"
    return f"{number(row['kv_bytes'] / 1e6)}/{number(row['kv_bytes_reserved'] / 1e6)}"


def milliseconds(seconds: float | None, decimals: int = 1) -> str:
    return number(None if seconds is None else seconds * 1e3, decimals)


def share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def mbu_cell(row: Row) -> str:
    is_marked = row["mbu"] is not None and row["weights_fit_in_cache"]
    return share(row["mbu"]) + ("*" if is_marked else "")


Column = Callable[[Row], str]
ONE_REQUEST: dict[str, Column] = {
    "tok/s": lambda row: number(row["tok_per_s"]),
    "min-max": spread,
    "TTFT ms": lambda row: milliseconds(row["ttft_s"]),
    "TPOT ms": lambda row: milliseconds(row["tpot_s"], 2),
    "computed": computed,
    "KV MB": megabytes,
    "speed-up": lambda row: f"{row['speedup']:.1f}x" if row["speedup"] else "-",
    "MBU": mbu_cell,
}
MANY_REQUESTS: dict[str, Column] = {
    "batch": lambda row: str(row["batch"]),
    **{header: ONE_REQUEST[header] for header in ("tok/s", "min-max", "TTFT ms", "TPOT ms")},
    "computed": ONE_REQUEST["computed"],
    "KV MB": held_and_reserved,
    "used": lambda row: share(row["used"]),
    "speed-up": ONE_REQUEST["speed-up"],
    "MBU": mbu_cell,
}


WORDS = {  # what the headers mean; tok/s, batch and speed-up need no explanation
    "TTFT ms": "TTFT: time to the first token, counted from the start.",
    "TPOT ms": "TPOT: time per output token after the first. Both are medians over the requests.",
    "computed": "Computed: all tokens that went through the model, including padding, finished "
    "rows and rejected drafts.",
    "KV MB": "KV: keys and values at the peak; with many requests held / reserved.",
    "used": "Used: the share of slots, over all steps, that served a request.",
    "MBU": "MBU: memory-bandwidth utilization, the share of the measured bandwidth that it takes "
    "to read the weights and the KV cache once per step.",
}


def new_table(first: str, headers: Sequence[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column(first, no_wrap=True)
    for header in headers:
        table.add_column(header, justify="right", no_wrap=True)
    return table


def show_rows(
    console: Console, rows: list[Row], columns: dict[str, Column], verifier: Verifier
) -> None:
    table = new_table("", list(columns))
    workload = None
    for row in rows:
        if row["workload"] != workload:
            workload = row["workload"]
            table.add_section()
            table.add_row(workload, style="bold")
        key = workload, row["technique"]
        mark = "~" if key in verifier.ties else "#" if key in verifier.differing else ""
        mark += "!" if row["disturbed"] else ""
        table.add_row(row["technique"] + mark, *(cell(row) for cell in columns.values()))
    console.print(table)


def tables(plan: Plan, rows: list[Row]) -> list[tuple[list[Row], dict[str, Column]]]:
    """One table for one request, one for many; columns without any number are left out."""
    alone = {workload.name for workload, _ in plan if workload.kind == LENGTHS}
    one = [row for row in rows if row["workload"] in alone]
    many = [row for row in rows if row["workload"] not in alone]
    return [
        (own, {name: cell for name, cell in columns.items() if {cell(row) for row in own} != {"-"}})
        for own, columns in ((one, ONE_REQUEST), (many, MANY_REQUESTS))
        if own
    ]


def show_tables(console: Console, plan: Plan, rows: list[Row], verifier: Verifier) -> None:
    for shown, columns in tables(plan, rows):
        show_rows(console, shown, columns, verifier)
    for row in rows:
        if row["acceptance"] is not None:
            console.print(
                f"{row['technique']}, {row['workload']}: {row['acceptance']:.0%} of the drafts "
                f"accepted, {row['tokens_per_pass']:.2f} tokens per forward pass"
            )
        if row["preemptions"] is not None and row["requests"] > 1:
            console.print(served(row))
        if row["hits"] is not None:
            console.print(
                f"{row['technique']}, {row['workload']}: {row['hits']:,} of {row['queried']:,} "
                "prompt tokens found in the prefix cache"
            )
    for tie in verifier.ties.values():
        console.print(f"~ {tie}")
    for differing in verifier.differing.values():
        console.print(f"# {differing}")
    for name, lossy in verifier.lossy.items():
        console.print(f"# {name}: {lossy}")
    if others := [row["other_programs_cores"] for row in rows if row["disturbed"]]:
        console.print(f"! {disturbance(max(others), 'add --threads {}')}")
    if any(row["tokens_computed"] is None for row in rows):
        console.print("-: the work and memory of another process can't be seen from outside.")
    if any(mbu_cell(row).endswith("*") for row in rows):
        console.print(
            "* The weights fit in the processor's cache, so they need not be read from memory at "
            "every step: MBU means little here and may exceed 100%."
        )


def served(row: Row) -> str:
    """Return what an engine did, beyond the medians of the table."""
    ttft, tpot = (
        f"{milliseconds(row[f'{name}_s'])} / {milliseconds(row[f'{name}_p95_s'])} ms"
        for name in ("ttft", "tpot")
    )
    return (
        f"{row['technique']}, {row['workload']}: p50 / p95 of TTFT {ttft}, of TPOT {tpot}; "
        f"{row['preemptions']} preemptions; {row['pool_used']:.0%} of the pool held on average"
    )


def show_words(
    console: Console, plan: Plan, rows: list[Row], prepared: dict[tuple[str, str], Prepared]
) -> None:
    """What the rows, the workloads and the columns of the table are."""
    kinds = {workload.name: workload.kind for workload, _ in plan}
    shown = [(row["technique"], kinds[row["workload"]]) for row in rows]
    for name, about in dict.fromkeys((name, prepared[kind, name].about) for name, kind in shown):
        console.print(f"{name:<16}{about}")
    console.print()
    for kind, workload in {workload.kind: workload for workload, _ in plan}.items():
        console.print(f"{kind:<16}{workload.about}; speed-up over {workload.reference}")
    headers = {header for _, columns in tables(plan, rows) for header in columns}
    words = [sentence for header, sentence in WORDS.items() if header in headers]
    if CHAT in kinds.values():
        words.append("In a chat, TTFT counts from the end of the previous turn.")
    console.print("\n" + " ".join(words))


def show_missing(console: Console, missing: Mapping[str, str]) -> None:
    """Print which rows are not on the table, each with the reason."""
    if missing:
        console.print("\nNot on the table:")
    for name, reason in missing.items():
        console.print(f"{name:<16}{reason}", soft_wrap=True)  # a command in it can be copied


def show_growth(
    console: Console, powers: dict[str, dict[str, float | None]], lengths: list[int]
) -> None:
    *_, last_but_one, last = lengths
    table = new_table(
        "cost grows with new tokens to the power",
        [f"time, {lengths[0]} to {last}", f"time, {last_but_one} to {last}", "computed"],
    )
    for name, found in powers.items():
        table.add_row(name, *(number(value, 2) for value in found.values()))
    console.print(table)
    console.print(
        "1 is linear, 2 is quadratic, fitted to the rows above. The prompt and the fixed cost of a "
        "step count at every length, so short texts stay below the power that long texts approach."
    )
