"""The learner's own engine next to the reference's techniques, as this machine has timed them."""

from timing.kept_rows import COMPARABLE, Row, kept


def comparisons() -> list[tuple[Row, list[Row]]]:
    """Return the newest own row of each workload, with all rows of the same machine and workload,
    the slowest first."""
    rows = kept()
    own = {row["workload"]: row for row in rows if row["technique"] == "mine"}
    return [
        (mine, sorted((row for row in rows if are_same(row, mine)), key=lambda r: r["tok_per_s"]))
        for mine in own.values()
    ]


def are_same(row: Row, other: Row) -> bool:
    return all(row.get(name) == other.get(name) for name in COMPARABLE)
