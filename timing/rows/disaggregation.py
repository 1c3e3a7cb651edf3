"""Lab 9: the engine, with prompts in chunks that fit beside the decodes."""

from timing.rows.bench import Bench, Rows
from timing.rows.engine import engine_of
from timing.table.served import Served
from timing.table.workloads import RAGGED

CHUNKED_BUDGET = 132  # what lab 9 measures with


def chunked(bench: Bench) -> Served:
    about = f"the engine with decodes first and {CHUNKED_BUDGET} tokens a step (lab 9)"
    scheduler = bench.lab("disaggregation").StallFree
    return engine_of(bench, about, CHUNKED_BUDGET, scheduler=scheduler)


ROWS: Rows = {"chunked": {RAGGED: chunked}}
