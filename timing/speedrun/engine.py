"""The process of one engine: python -m timing.speedrun.engine FOLDER THREADS [CODE]

FOLDER is the model's. CODE is the folder with a learner's kept functions; without it, the engine is
the reference's. The first line on stdout says what runs; then each order on stdin is answered.
"""

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch

from timing.table import Bench, NotTimed, Prepared
from timing.table.workloads import LENGTHS, RAGGED, Workload
from timing.techniques import TECHNIQUES, written

REFERENCE = "engine"
SERVES = {LENGTHS: "one request", RAGGED: "many requests"}


def main(folder: str, threads: str, code: str = "") -> None:
    wire = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the learner's code prints must not reach the wire
    cast(TextIOWrapper, sys.stdout).reconfigure(
        line_buffering=True
    )  # or it would come after an error's message
    torch.set_num_threads(int(threads))
    bench, modules = Bench(Path(folder), torch.device("cpu")), dict[str, ModuleType]()

    def lab(name: str) -> ModuleType:
        from autograder import check  # it loads all exercises, and the reference needs none

        if name not in modules:
            modules[name] = check.mine(name)
        return modules[name]

    if code:
        os.environ["MINE_FOLDER"] = code
        made = {kind: newest_exact(lab, kind, bench) for kind in SERVES}
    else:
        made = {kind: (REFERENCE, TECHNIQUES[REFERENCE][kind](bench)) for kind in SERVES}
    about = [f"{SERVES[kind]}: {name}" for kind, (name, _) in made.items()]
    send(wire, {"about": about, "labs": list(modules)})
    for line in sys.stdin:
        order = json.loads(line)
        kind = LENGTHS if len(order["prompts"]) == 1 else RAGGED
        workload = Workload(kind, kind, "", order["prompts"], order["new_tokens"])
        outputs = made[kind][1].run(workload).outputs
        new = [ids[len(prompt) :] for ids, prompt in zip(outputs, workload.prompts, strict=True)]
        send(wire, {"outputs": new, "token_times": []})  # its own clock isn't asked


def send(wire: Any, answer: dict[str, Any]) -> None:
    print(json.dumps(answer), file=wire, flush=True)


def newest_exact(lab: Callable[[str], ModuleType], kind: str, bench: Bench) -> tuple[str, Prepared]:
    """Prepare the newest technique with a part of the learner's that rounds and hides nothing.

    Returns it after its name. Raises SystemExit with a sentence if there is none.
    """
    for own in written(lab, kind):
        with suppress(NotTimed):
            made = own.prepare(replace(bench, lab=lab))
            if made.lossy is None:
                return own.about, made
    sys.exit(f"nothing exact of yours serves {SERVES[kind]} yet; lab 7's engine serves both.")


if __name__ == "__main__":
    main(*sys.argv[1:])
