"""Lab 11: the engine with a sliding window and attention sinks."""

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

from course.lab07_engine.row import ENGINE_SIZE, limits_for
from solutions.engine.engine import Engine
from solutions.kv_reduction import WindowCache
from solutions.kv_variants.window_engine import windowed_engine
from timing.table import HAIR, Anew, Bench, Lossy, Rows, Served, loss_of
from timing.table.workloads import LENGTHS, RAGGED, Workload

WINDOW, SINKS = 64, 4


@functools.cache  # several workloads use the same model, and measuring a loss takes seconds
def in_a_window(bench: Bench, window: int, sinks: int) -> Lossy:
    """Measure the loss through the lab's cache."""
    model = bench.load()
    shape = model.config.n_layer, window, sinks
    why, wins = f"a token sees at most {window + sinks}", "blocks outside the window are freed"
    new_cache = partial(bench.lab("kv_reduction").WindowCache, *shape)
    lost = loss_of(model, model, bench.folder, new_cache)
    return Lossy(why, Anew(model, partial(WindowCache, *shape)), HAIR, wins, lost)


def window(bench: Bench) -> Served:
    """Prepare the engine with the lab's mask."""
    lab = bench.lab("kv_reduction")

    def new_engine(model: Any, workload: Workload, on_output: Callable) -> Engine:
        limits = limits_for(workload)
        return windowed_engine(model, limits, on_output, WINDOW, SINKS, lab.window_mask)

    about = f"the engine with a window of the last {WINDOW} tokens and the first {SINKS} (lab 11)"
    lossy = in_a_window(bench, WINDOW, SINKS)
    return Served(about, bench.for_engine(), new_engine, ENGINE_SIZE, lossy=lossy)


ROWS: Rows = {"window": dict.fromkeys([LENGTHS, RAGGED], window)}
