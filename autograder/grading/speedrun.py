"""The speedruns of a class: each record's code in a sandbox, in turns with the reference.

Both engines have the same walls (judge/jail.py), each in a sandbox of its own, and each record gets
new ones. Prompts are drawn, tokens are verified and time is measured outside.
"""

import argparse
import json
import stat
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median
from subprocess import Popen
from typing import Any, NamedTuple

import torch

from autograder.grading.judge import jail as prison
from autograder.grading.judge.foreign import shown
from autograder.grading.judge.jail import COURSE, GIB, Jail
from autograder.grading.refused import Refused
from autograder.text.imports import files_used
from autograder.text.lesson import lessons
from autograder.text.reference import ROOT, importing
from timing.command_line import new_console
from timing.peers.worker import THREADS, WAITING, Worker
from timing.speedrun.record import enter, read_record, require_weights, verdict
from timing.speedrun.run import Start
from timing.table import new_table
from timing.threads import set_threads

MODEL = "fable"  # of all records, because ratios with different models can't be compared
CODE = Path("/code")  # in the sandbox
PROGRAM = "-P", "-m", "timing.speedrun.confined"
HEADERS = "score", "one request", "many requests"
MOST_BYTES = 1 << 20  # of a record
HOUR = 3600.0


class Row(NamedTuple):
    score: float  # 0 if the record is rejected
    student: str
    ratios: list[str]
    verdict: str


def speedrun(given: argparse.Namespace) -> int:
    """Run the records in a folder one after the other, and print the table, the best first."""
    records = list(records_in(given.folder))
    if not records:
        raise Refused(f"There is no record in {given.folder}: no file whose name ends in .json.")
    set_threads(given.threads)
    threads, console, rows = torch.get_num_threads(), new_console(), list[Row]()
    with suppress(KeyboardInterrupt), jail_for(threads) as jail:
        course = prison.staged(engine_files(), jail.folder / "engine")
        for number, (student, file) in enumerate(records, 1):
            console.print(f"{number} of {len(records)}: {shown(student)}")
            rows.append(run_record(student, file, threads, partial(Confined, jail, course)))
    table = new_table("", HEADERS)
    table.add_column("verdict")
    for row in sorted(rows, key=lambda row: -row.score):
        score = f"{row.score:.2f}" if row.score else "-"
        table.add_row(shown(row.student, 30), score, *row.ratios, shown(row.verdict, 400))
    console.print(table)
    return 0 if len(rows) == len(records) else 130


def records_in(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield each record after its student: ada.json is ada's, and so is ada/any/file.json."""
    for file in sorted(folder.rglob("*.json")):
        parts = file.relative_to(folder).parts
        if not any(part.startswith(".") for part in parts):
            yield parts[0].removesuffix(".json"), file


def run_record(student: str, file: Path, threads: int, start: Start) -> Row:
    """Run a record again. Whatever is in it, the outcome is a row."""
    try:
        found = file.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:
            raise ValueError(f"{file} isn't an ordinary file of at most 1 MB.")
        record = read_record(file)
        require_weights(record, file, MODEL)
        again, result = enter(MODEL, record["code"], threads, start)
        told = verdict(record, again)[1]
    except (SystemExit, ValueError) as reason:
        return Row(0.0, student, ["-", "-"], f"Rejected. {reason}")
    except Exception as error:  # an engine may answer anything
        return Row(0.0, student, ["-", "-"], f"Rejected. Its run failed: {error!r}")
    if again["environment"]["disturbed"]:
        told = f"Other programs were busy, so run it again. {told}"
    ratios = [f"{median(r):.2f} ({min(r):.2f}-{max(r):.2f})" for r in result.ratios.values()]
    return Row(again["score"]["mean"], student, ratios, told)


# ------------------------------------------------------------------------------------- the sandbox


def jail_for(threads: int) -> Jail:
    """Return the limits of one engine. Each thread reserves memory for its stack and its heap."""
    memory = 4 * GIB + threads * GIB // 4
    return Jail(seconds=HOUR * threads, memory=memory, processes=48 + 4 * threads)


def engine_files() -> set[Path]:
    """Return the files of the course that an engine needs: those of all labs, and no grading."""
    rooms = [lesson.package for lesson in lessons().values()]
    looked_up = [f"import {room}.cases, {room}.row" for room in rooms]
    texts = "course/*/*.md", "course/*/*.toml", "autograder/notebook/*.html"
    code = files_used(["import timing.speedrun.confined", *importing(lessons()), *looked_up])
    return code.union(*map(ROOT.glob, texts))


class Confined(Worker):
    """The process of one engine in a sandbox, where it sees the course, the models and its code."""

    def __init__(
        self, jail: Jail, course: Path, arguments: list[str], threads: int, log: Path
    ) -> None:
        self.jail, self.shown, self.group = jail, [(course, COURSE)], list[Path]()
        folder, number, *code = arguments
        inside = [str(COURSE / Path(folder).relative_to(ROOT)), number]
        for path in map(Path, code):
            self.shown.append((prison.readable(path), CODE))
            inside.append(str(CODE))
        user, limits = str(prison.new_user(jail)), json.dumps(jail.resources)
        super().__init__([*PROGRAM, user, limits, *inside], threads, log)

    def start(self, command: list[str], **options: Any) -> Popen:
        env = options.pop("env")
        variables = chain(*(("--setenv", name, env[name]) for name in (*THREADS, *WAITING)))
        walls = [*prison.walls(self.jail, *self.shown), *variables]
        process, self.group = prison.confined(self.jail, walls, command, **options)
        return process

    def close(self) -> None:
        super().close()
        while self.group:
            prison.removed(self.group.pop())
