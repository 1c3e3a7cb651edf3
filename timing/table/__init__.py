"""The table of timed_generate.py: what its rows are made of, and what becomes of them.

A row is a function of a Bench (checkpoint, device, labs) that returns something Prepared: Batches,
Rounds, Continuous or Served. A Workload is what it runs, and the result is a Run, watched from
outside. A Verifier lets no wrong Run be timed. Nothing here knows which rows there are, or which
other engines: timing/techniques.py and timing/peers/ do.
"""

from timing.table import kv_bytes, workloads
from timing.table.bench import BLOCK_SIZE, SLOTS, Bench, Own, Prepare, Rows, is_learners
from timing.table.lossy import Anew, Lossy, in_8_bits, loss_of
from timing.table.measure import REPEATS, Plan, Row, Runs, growth, measure_rows, timed_runs
from timing.table.plot import draw_chart
from timing.table.printed import (
    milliseconds,
    new_table,
    number,
    show_environment,
    show_growth,
    show_missing,
    show_tables,
    show_words,
)
from timing.table.race import show_race
from timing.table.runs import (
    Absent,
    Batches,
    BestBatches,
    Continuous,
    Ids,
    NotTimed,
    OtherEngine,
    Prepared,
    Rounds,
    Run,
    one_prompt_at_a_time,
)
from timing.table.served import Served
from timing.table.verify import COARSE_HAIR, HAIR, ROUNDED, Key, Verifier

__all__ = [
    "BLOCK_SIZE", "COARSE_HAIR", "HAIR", "REPEATS", "ROUNDED", "SLOTS", "Absent", "Anew", "Batches",
    "Bench", "BestBatches", "Continuous", "Ids", "Key", "Lossy", "NotTimed", "OtherEngine", "Own",
    "Plan", "Prepare", "Prepared", "Rounds", "Row", "Rows", "Run", "Runs", "Served", "Verifier",
    "draw_chart", "growth", "in_8_bits", "is_learners", "kv_bytes", "loss_of", "measure_rows",
    "milliseconds", "new_table", "number", "one_prompt_at_a_time", "over_http", "show_environment",
    "show_growth", "show_missing", "show_race", "show_tables", "show_words", "timed_runs",
    "workloads",
]  # fmt: skip
