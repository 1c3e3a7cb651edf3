"""Lab 9: the engine with chunked prefill."""

from course.lab07_engine.row import engine_of
from timing.table import Bench, Rows, Served
from timing.table.workloads import RAGGED

CHUNKED_BUDGET = 132  # as in lab 9


def chunked(bench: Bench) -> Served:
    about = f"the engine with decodes first and {CHUNKED_BUDGET} tokens per step (lab 9)"
    scheduler = bench.lab("disaggregation").StallFree
    return engine_of(bench, about, CHUNKED_BUDGET, scheduler=scheduler)


ROWS: Rows = {"chunked": {RAGGED: chunked}}
