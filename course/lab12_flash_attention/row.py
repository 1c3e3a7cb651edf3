"""Lab 12: the engine with attention in tiles."""

from course.lab07_engine.row import engine_of
from timing.table import Bench, Rows, Served
from timing.table.workloads import RAGGED


def tiled(bench: Bench) -> Served:
    cache = bench.lab("flash_attention").TiledCache
    about = f"the engine with attention in tiles of {cache.tile} tokens (lab 12)"
    return engine_of(bench, about, paged_cache=cache)


ROWS: Rows = {"tiled": {RAGGED: tiled}}
