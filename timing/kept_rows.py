"""Keep the newest timed rows in work/.mine/timed.json, for the start page and the report.

It needs only the standard library.
"""

import json
import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from autograder.notebook import passed

Row = dict[str, Any]

RUN = "processor", "cores", "device", "model", "torch"  # what each row takes from its run
COMPARABLE = "processor", "cores", "device", "model", "workload"  # the same in rows to compare
SAME = *COMPARABLE, "technique"  # a newer row replaces an older one
TEXTS = "workload", "technique", "date", "processor", "model"


def file() -> Path:
    return passed.folder() / "timed.json"


def kept() -> list[Row]:
    """Return the kept rows, oldest first; none where there is no file or it can't be read.

    Each is a row of timed_generate.py's JSON with its date (ISO 8601), processor, cores, device,
    model and version of torch.
    """
    try:
        rows = json.loads(file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [row for row in rows if is_row(row)] if isinstance(rows, list) else []


def is_row(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and all(isinstance(row.get(name), str) for name in TEXTS)
        and isinstance(row.get("tok_per_s"), float)
        and row["tok_per_s"] > 0
    )


def keep(done: Row) -> None:
    """Add the rows of one finished run, and drop older rows of the same thing.

    done: timed_generate.py's JSON. A row `mine` that runs none of the learner's code isn't kept.
    Where the folder can't be written, nothing is kept.
    """
    run = {name: done["environment"].get(name) for name in RUN}
    run["date"] = datetime.now().astimezone().isoformat(timespec="seconds")
    new = [{**row, **run} for row in done["rows"] if not is_borrowed(row)]
    replaced = {key(row) for row in new}
    older = [row for row in kept() if key(row) not in replaced]
    with suppress(OSError):
        write([*older, *new])


def key(row: Row) -> str:
    return json.dumps([row.get(name) for name in SAME])


def is_borrowed(row: Row) -> bool:
    """Return whether it is the row `mine` of a learner none of whose code serves this workload."""
    return row["technique"] == "mine" and "the reference's " in row.get("about", "")


def write(rows: list[Row]) -> None:
    """Write the file at once, so that no reader finds half of it. Raises OSError."""
    file().parent.mkdir(parents=True, exist_ok=True)
    half = file().with_suffix(f".{os.getpid()}")
    half.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    os.replace(half, file())
