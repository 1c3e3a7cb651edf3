"""The learner's own engine next to the reference's techniques, as this machine has timed them."""

import html

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


def your_engine() -> str:
    if found := comparisons():
        return "".join(bars(mine, rows) for mine, rows in found)
    return (
        "<p>As soon as some of your code has passed, <code>make timed ARGS=--mine</code> in a "
        "terminal times it next to the reference's techniques. It takes two minutes, and the rows "
        "appear here.</p>"
    )


def bars(mine: Row, rows: list[Row]) -> str:
    longest = max(row["tok_per_s"] for row in rows) or 1
    lines = "".join(bar(row, row["tok_per_s"] / longest) for row in rows)
    about = ", ".join(html.escape(mine[key]) for key in ("workload", "processor", "model"))
    date = html.escape(mine["date"][:10])
    return f"<table class='bars'><caption>{about}, {date}</caption>{lines}</table>"


def bar(row: Row, share: float) -> str:
    is_mine = row["technique"] == "mine"
    name = "<b>your engine</b>" if is_mine else html.escape(row["technique"])
    return (
        f'<tr class="{"mine" if is_mine else ""}"><th scope="row">{name}</th>'
        f'<td><div style="width:{100 * share:.1f}%"></div></td>'
        f"<td>{row['tok_per_s']:,.0f} tok/s</td></tr>"
    )
