"""Lab 4: continuous batching with paged attention."""

from typing import Any

from solutions.paged_attention import PagedBatcher
from timing.table import BLOCK_SIZE, SLOTS, Bench, Continuous, Own, Rows, kv_bytes
from timing.table.workloads import EQUAL, RAGGED, Workload


def paged(bench: Bench) -> Continuous:
    """Prepare a pool with the memory that the slots of `continuous` reserve, in whole blocks."""
    lab = bench.lab("paged_attention")

    def new_engine(model: Any, workload: Workload) -> PagedBatcher:
        num_blocks = SLOTS * workload.longest // BLOCK_SIZE
        return lab.PagedBatcher(model, num_blocks, BLOCK_SIZE, max_running=SLOTS)

    about = f"continuous batching with blocks of {BLOCK_SIZE}, at most {SLOTS} at a time (lab 4)"
    model = bench.quick()
    return Continuous(about, model, new_engine, kv_bytes.of_blocks, SLOTS, fixed_slots=False)


ROWS: Rows = {"paged": {RAGGED: paged}}
PARTS = "BlockManager.allocate", "slot_mapping", "PagedCache.attend", "PagedBatcher.make_room"
OWN = [Own("your paged attention (lab 4)", "paged_attention", PARTS, [RAGGED, EQUAL], paged)]
