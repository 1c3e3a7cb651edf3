"""The file of a speedrun: the learner's code as text, the machine, and the score."""

import json
import os
import platform
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console

from autograder.notebook.passed import is_kept, kept_file
from autograder.text.lesson import lessons
from solutions.families import find_checkpoint
from timing.cores import disturb, disturbance, usable_cores
from timing.machine import processor_name
from timing.speedrun.run import MINE, REFERENCE, Result, Start, digest, run, start_engine
from timing.table import new_table, number

Code = dict[str, dict[str, list[str]]]  # the lines of each exercise's code, by lab and name
Record = dict[str, Any]
PACKAGES = "torch", "numba"
CLOSE = 0.9  # of the score that a record claims: ratios of one machine vary by a few percent


# ------------------------------------------------------------------------------------------ code


def kept_code() -> Code:
    """Return the code that the labs' checks have kept, in each lab the oldest first."""
    code: Code = {}
    exercises = [(lab, name) for lab, lesson in lessons().items() for name in lesson.cards]
    kept = [(kept_file(name), lab, name) for lab, name in exercises if is_kept(name)]
    for file, lab, name in sorted(kept, key=lambda it: it[0].stat().st_mtime_ns):
        lines = file.read_text(encoding="utf-8").splitlines()
        code.setdefault(lab, {})[name.removeprefix(f"{lab}.")] = lines
    return code


def write_code(code: Code, folder: Path) -> None:
    """Write code as if the labs' checks had kept it in this folder."""
    for lab, functions in code.items():
        for age, (name, lines) in enumerate(functions.items()):
            file = folder / lab / f"{name}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("\n".join(lines) + "\n", encoding="utf-8")
            os.utime(file, (age, age))  # of several forms of a class, the newest one counts


# --------------------------------------------------------------------------------------- records


def enter(
    model: str, code: Code, threads: int, start: Start = start_engine
) -> tuple[Record, Result]:
    """Run code against the reference. Return its record, and the result of which it was made.

    Raises ValueError if there is no such model, and as `run` does.
    """
    folder = find_checkpoint(model)
    with TemporaryDirectory() as kept:
        write_code(code, Path(kept))
        result = run(folder, Path(kept), threads, start)
    record = {
        "model": model,
        "weights": digest(folder),
        "about": result.about,
        "environment": environment(threads, result.others),
        "score": {name: round(ratio, 3) for name, ratio in result.score.items()},
        "code": {lab: functions for lab, functions in code.items() if lab in result.labs},
    }
    return record, result


def environment(threads: int, others: float) -> Record:
    return {
        "date": date.today().isoformat(),
        "processor": processor_name(torch.device("cpu")),
        "cores": usable_cores(),
        "threads": threads,
        "disturbed": disturb(others, threads),
        "os": platform.platform(),
        "python": platform.python_version(),
        **{package: installed(package) for package in PACKAGES},
    }


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def read_record(file: Path) -> Record:
    """Read a record. Raises ValueError with a sentence if the file isn't one."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} can't be read as JSON: {error}.") from error
    require(isinstance(record, dict), file, "it isn't an object")
    for name in ("model", "weights"):
        require(isinstance(record.get(name), str), file, f"its {name} isn't a text")
    require(isinstance(record.get("environment"), dict), file, "it has no environment")
    score = record.get("score", "")
    is_measured = isinstance(score, dict) and isinstance(score.get("mean"), int | float)
    require(score is None or is_measured, file, "its score has no mean")
    code = record.get("code")
    require(isinstance(code, dict), file, "it has no code")
    for lab, functions in code.items():
        require(isinstance(functions, dict), file, f"its code of lab {lab} isn't an object")
        for name, lines in functions.items():
            known = lab in lessons() and f"{lab}.{name}" in lessons()[lab].cards
            require(known, file, f"there is no exercise {lab}.{name}")
            is_text = isinstance(lines, list) and all(isinstance(line, str) for line in lines)
            require(is_text, file, f"its code of {lab}.{name} isn't a list of lines")
    return record


def require(holds: bool, file: Path, problem: str) -> None:
    if not holds:
        raise ValueError(f"{file} isn't a record: {problem}.")


def require_weights(record: Record, file: Path, model: str) -> None:
    """Raise ValueError unless a record was made with the weights that this model has here."""
    if digest(find_checkpoint(model)) != record["weights"]:
        raise ValueError(f"{file} was made with other weights than {model} here.")


def write_record(record: Record, file: Path) -> None:
    file.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


# --------------------------------------------------------------------------------------- compared


def verdict(record: Record, again: Record) -> tuple[bool, str]:
    """Return whether a second run confirms a record, and a sentence about it."""
    measured = again["score"]["mean"]
    if record["score"] is None:
        return True, f"The record has no score yet; here it is {measured:.2f}."
    claimed = record["score"]["mean"]
    if measured >= CLOSE * claimed:
        return True, f"Confirmed: the record claims {claimed:.2f}, and here it is {measured:.2f}."
    processor = record["environment"].get("processor")
    return False, (
        f"Not confirmed here: the record claims {claimed:.2f} (on {processor}), and here it is "
        f"{measured:.2f}."
    )


def show(console: Console, record: Record, result: Result) -> None:
    table = new_table("", ["mine, tok/s", "reference, tok/s", "score"])
    for workload in result.times:
        rates = [number(result.tok_per_s(workload, name)) for name in (MINE, REFERENCE)]
        table.add_row(workload, *rates, f"{record['score'][workload]:.2f}")
    table.add_row("geometric mean", "", "", f"{record['score']['mean']:.2f}", style="bold")
    console.print(table)
    for about in record["about"]:
        console.print(about)
    if record["environment"]["disturbed"]:
        console.print(disturbance(result.others, "take --threads {}"))
