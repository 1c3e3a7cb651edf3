"""Lab 19: as many slots as the estimate allows on this machine."""

from functools import cache
from typing import Any

import torch

from course.lab07_engine.row import ENGINE_SIZE
from solutions.batching import ContinuousBatcher
from solutions.estimates.shapes import Machine, read_shape
from timing import machine
from timing.table import Bench, Continuous, NotTimed, Rows, kv_bytes
from timing.table.workloads import RAGGED, RAGGED_NEW, RAGGED_PROMPT, Workload

SLOWER = 2  # times the TPOT of one request, at most
WIDTH = 4  # bytes of a number


@cache  # the measurement takes seconds
def measured(device: torch.device) -> machine.Machine:
    return machine.measure_machine(device)


def planned(bench: Bench) -> Continuous:
    """Prepare continuous batching in the slots of a plan. Memory has room for the engine's size."""
    file = bench.folder / "config.json"
    if not file.exists():
        raise NotTimed("its plan reads the config.json of a folder of the hub, and this is a GGUF.")
    lab, shape = bench.lab("estimating"), read_shape(file)
    tokens, speed = RAGGED_PROMPT[1] + RAGGED_NEW[1], measured(bench.device)
    room = lab.kv_bytes(shape, ENGINE_SIZE * tokens, WIDTH)
    memory = WIDTH * lab.parameters(shape)["total"] + room
    here = Machine(speed.flops, speed.bandwidth, memory)
    limit = SLOWER * lab.step_time(shape, here, 1, 1, tokens - 1, WIDTH)
    slots, _ = lab.plan(shape, here, tokens, WIDTH, limit)

    def new_engine(model: Any, workload: Workload) -> ContinuousBatcher:
        batching = bench.lab("batching")
        return batching.ContinuousBatcher(model, min(slots, workload.at_start), workload.longest)

    about = (
        f"continuous batching in {slots} slots: the plan for at most {SLOWER} times the TPOT of "
        "one request (lab 19)"
    )
    return Continuous(about, bench.quick(), new_engine, kv_bytes.of_slots, slots)


ROWS: Rows = {"planned": {RAGGED: planned}}
