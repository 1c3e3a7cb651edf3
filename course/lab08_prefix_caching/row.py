"""Lab 8: the engine with a prefix cache."""

from course.lab07_engine.row import engine_of
from timing.table import Bench, Own, Rows, Served
from timing.table.workloads import CHAT, RAGGED


def prefix(bench: Bench) -> Served:
    about = "the engine with a prefix cache (lab 8)"
    return engine_of(bench, about, block_manager=bench.lab("prefix_caching").PrefixManager)


ROWS: Rows = {"prefix": dict.fromkeys([RAGGED, CHAT], prefix)}
METHODS = [f"PrefixManager.{name}" for name in ("match", "take_block", "admit", "publish")]
PARTS = ["block_hashes", *METHODS]
OWN = [Own("your prefix cache (lab 8)", "prefix_caching", PARTS, [CHAT], prefix)]
