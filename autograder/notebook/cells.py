"""Which names the notebook's cells have failed to define.

After a cell that failed, a name still has its older value, and a check would judge that. So IPython
reports after every cell whether it ran.
"""

import linecache
import re
from typing import Any

from autograder.attempt.source import undecorated

DEFINED = re.compile(r"^(?:async +)?(?:def|class) +(\w+)", re.MULTILINE)

failures: dict[str, str] = {}  # by name: what stopped the cell that should have defined it


def watch(shell: Any) -> None:
    """Have the shell report after every cell. Registering a second time changes nothing."""
    if note not in shell.events.callbacks["post_run_cell"]:
        shell.events.register("post_run_cell", note)


def note(result: Any) -> None:
    """Remember for every name that a cell defines whether the cell got so far."""
    error = result.error_before_exec or result.error_in_exec
    for name in DEFINED.findall(result.info.raw_cell or ""):
        if error is None or (result.error_before_exec is None and is_from(name, result)):
            failures.pop(name, None)
        else:
            failures[name] = f"{type(error).__name__}: {error}"


def is_from(name: str, result: Any) -> bool:
    """Whether the cell that was just run defines what a name now means."""
    from IPython import get_ipython

    thing = get_ipython().user_ns.get(name)
    members = vars(thing).values() if isinstance(thing, type) else [thing]
    functions = [function for member in members if (function := undecorated(member))]
    files = {function.__code__.co_filename for function in functions}
    cell = result.info.raw_cell.strip()
    return any("".join(linecache.getlines(file)).strip() == cell for file in files)
