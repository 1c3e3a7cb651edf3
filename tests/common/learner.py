"""Do what a learner does in an unpacked bundle, and print the checks' answers as a line of JSON.

    python learner.py WISHES.json

Only the bundle may be on the path, nothing else of the course. WISHES: a lab, and sources of its
notebook: blank; solved; alone (for each exercise by name, only this one written); wrong (a list of
exercise, misconception, source).
"""

import contextlib
import io
import itertools
import json
import linecache
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from autograder import check as checking
from autograder.exercises import exercises
from autograder.judging.judge import judge
from autograder.text.reference import has_reference

warnings.simplefilter("error")
numbers = itertools.count(1)


def cell(source: str, names: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run a cell. Return its names."""
    file = f"<cell {next(numbers)}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    names = {"__name__": "__main__", **(names or {})}
    exec(compile(source, file, "exec"), names)
    return names


def said(function: Callable[..., Any], *given: Any) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        function(*given)
    return output.getvalue()


def checked(name: str, names: dict[str, Any]) -> tuple[str, str]:
    """Return the status of a check, and the text of its card."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            result = checking.check(name, names[exercises()[name].attempt_name])
    except checking.CheckFailed as failed:
        result = failed.result
    return result.status, result.message


@contextlib.contextmanager
def nothing_kept() -> Iterator[None]:
    """Inside the block, no exercise has passed yet."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MINE_FOLDER"] = folder
        try:
            yield
        finally:
            del os.environ["MINE_FOLDER"]


def main(wishes: dict[str, Any]) -> dict[str, Any]:
    lab = wishes["lab"]
    own = [name for name, exercise in exercises().items() if exercise.lab == lab]
    told: dict[str, Any] = {"exercises": list(exercises())}
    told["reference"] = has_reference(lab)
    blank = cell(wishes["blank"])
    told["blank"] = {name: checked(name, blank) for name in own}
    told["mine at first"] = said(checking.mine, lab)
    told["status at first"] = said(checking.status)
    told["hint"] = said(checking.hint, own[0], 3)
    told["alone"] = {}
    for name, source in wishes["alone"].items():
        with nothing_kept():
            told["alone"][name] = checked(name, cell(source))
    solved = cell(wishes["solved"])
    told["solved"] = {name: checked(name, solved) for name in own}
    told["mine"] = said(checking.mine, lab)
    told["status"] = said(checking.status)
    told["earlier"] = {
        other: said(checking.mine, other)
        for other in dict.fromkeys(e.lab for e in exercises().values())
        if other != lab
    }
    told["wrong"] = []
    for name, misconception, source in wishes["wrong"]:
        attempt = cell(source, solved)[exercises()[name].attempt_name]
        judgement = judge(exercises()[name], attempt)
        told["wrong"].append([name, misconception, judgement.status, judgement.misconception])
    told["files"] = [str(getattr(module, "__file__", None)) for module in sys.modules.values()]
    return told


if __name__ == "__main__":
    print(json.dumps(main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))))
