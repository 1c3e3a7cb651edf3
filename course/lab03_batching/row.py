"""Lab 3: static and continuous batching."""

from typing import Any

from solutions.batching import ContinuousBatcher
from timing.table import SLOTS, Batches, Bench, Continuous, Own, Rows, kv_bytes
from timing.table.workloads import EQUAL, RAGGED, Workload


def static(bench: Bench) -> Batches:
    about = f"static batches of {SLOTS}, padded on the left (lab 3)"
    generate = bench.lab("batching").generate_padded
    return Batches(about, bench.quick(), generate, kv_bytes.of_object, SLOTS)


def continuous(bench: Bench) -> Continuous:
    lab = bench.lab("batching")

    def new_engine(model: Any, workload: Workload) -> ContinuousBatcher:
        return lab.ContinuousBatcher(model, SLOTS, workload.longest)

    about = f"continuous batching in {SLOTS} slots (lab 3)"
    return Continuous(about, bench.quick(), new_engine, kv_bytes.of_slots, SLOTS)


KINDS = RAGGED, EQUAL
ROWS: Rows = {"static": dict.fromkeys(KINDS, static), "continuous": {RAGGED: continuous}}
PADDED = "generate_padded", "pad_left", "padded_position_ids", "padded_mask"
SLOTTED = "SlotCache.attend", "ContinuousBatcher.step"
OWN = [
    Own("your static batches (lab 3)", "batching", PADDED, KINDS, static),
    Own("your continuous batching (lab 3)", "batching", SLOTTED, KINDS, continuous),
]
