"""Lab 18: the engine on a model that is cut over two processes."""

import atexit
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from course.lab07_engine.row import ENGINE_SIZE, limits_for
from gpt import GPTConfig, read_config
from solutions.engine.engine import Engine
from solutions.ranks.group import Group
from solutions.ranks.processes import Processes
from solutions.ranks.tensor_parallel import Functions, TensorParallelLMHead, new_engine
from timing.table import Absent, Bench, Prepared, Rows, Run, Served
from timing.table.workloads import RAGGED, Workload

RANKS = 2
SECONDS = 600.0  # for one run; the table has no use for a shorter limit


@dataclass(frozen=True)
class Cut:
    """The engine on all ranks. Each has a process with one thread; the first one's clock counts."""

    about: str
    folder: Path
    functions: Functions

    lossy = weight_bytes = None

    def run(self, workload: Workload) -> Run:
        runs = processes().run(serve, self.folder, self.functions, workload)
        held = sum(run.kv_bytes for run in runs)
        reserved = sum(run.kv_bytes_reserved for run in runs)
        notes = {**runs[0].notes, "threads": RANKS}
        return replace(runs[0], kv_bytes=held, kv_bytes_reserved=reserved, notes=notes)


def serve(group: Group, folder: Path, functions: Functions, workload: Workload) -> Any:
    """Serve the workload on this rank."""
    model = TensorParallelLMHead.from_pretrained(folder, group, functions)

    def made(model: Any, workload: Workload, on_output: Callable) -> Engine:
        return new_engine(model, limits_for(workload), on_output)

    return Served("", model, made, ENGINE_SIZE).run(workload)


@cache
def processes() -> Processes:
    """Return processes that stay for all runs, because starting them takes seconds."""
    ranks = Processes(RANKS, SECONDS, is_checked=False)
    atexit.register(ranks.close)
    return ranks


def tensor_parallel(bench: Bench) -> Prepared:
    if bench.device.type != "cpu":
        return Absent("its two processes compute on the processor.")
    bench.require_gpt2("the blocks of a GPT-2 are cut")
    if why := undivided(read_config(bench.folder)):
        return Absent(why)
    lab = bench.lab("parallelism")
    functions = Functions(lab.shard, lab.vocab_parallel_embedding, lab.tensor_parallel_block)
    about = f"the engine, its weights cut over {RANKS} processes with one thread each (lab 18)"
    return Cut(about, bench.folder, functions)


def undivided(config: GPTConfig) -> str | None:
    """Return why a model can't be cut, if it can't."""
    for what, number in (("heads", config.n_head), ("tokens of its vocabulary", config.vocab_size)):
        if number % RANKS:
            return f"this model's {number:,} {what} don't divide among {RANKS} processes."
    return None


ROWS: Rows = {"tensor-parallel": {RAGGED: tensor_parallel}}
