"""Lab 7: the engine, made of the parts from labs 4 to 6."""

from collections.abc import Callable
from typing import Any

from solutions.engine.engine import Engine, Parts
from solutions.engine.limits import Limits
from solutions.paged_attention import PagedCache
from timing.table import BLOCK_SIZE, SLOTS, Bench, Own, Rows, Served, is_learners
from timing.table.workloads import CHAT, EQUAL, LENGTHS, RAGGED, Workload

ENGINE_SIZE, TOKEN_BUDGET = 64, 256  # requests at a time, and tokens in a step, at most


def engine(bench: Bench) -> Served:
    about = (
        f"the engine: up to {ENGINE_SIZE} requests at a time, blocks of {BLOCK_SIZE}, "
        f"{TOKEN_BUDGET} tokens per step (lab 7)"
    )
    return engine_of(bench, about)


def engine_of(bench: Bench, about: str, token_budget: int = TOKEN_BUDGET, **others: Any) -> Served:
    """Prepare the engine, which serves as many requests at a time as fit in its pool.

    others: parts that replace those of labs 4 to 6.
    """
    lab = bench.lab("engine")
    parts = parts_of(bench, **others)

    def new_engine(model: Any, workload: Workload, on_output: Callable) -> Engine:
        return lab.new_engine(model, limits_for(workload, token_budget), on_output, parts=parts)

    return Served(about, bench.for_engine(), new_engine, ENGINE_SIZE)


def parts_of(bench: Bench, **others: Any) -> Parts:
    labs = "paged_attention", "decoding", "speculative"
    paged, decoding, speculative = (bench.lab(lab) for lab in labs)
    found = {
        "block_manager": paged.BlockManager,
        "next_token_probs": decoding.next_token_probs,
        "verify": speculative.verify,
        "verify_greedy": speculative.verify_greedy,
    }
    # The reference's cache is replaced by the engine's own, whose attention is faster.
    is_own = is_learners(paged, "PagedCache.attend")
    found["paged_cache"] = paged.PagedCache if is_own else PagedCache
    return Parts(**{**found, **others})


def limits_for(workload: Workload, token_budget: int = TOKEN_BUDGET) -> Limits:
    """Return the limits of an engine for a workload.

    The pool gets the memory that the slots of `continuous` reserve, or less for few requests.
    """
    slots = min(SLOTS, workload.at_start)
    num_blocks = -(-slots * workload.longest // BLOCK_SIZE)
    return Limits(num_blocks, BLOCK_SIZE, token_budget, ENGINE_SIZE)


KINDS = LENGTHS, RAGGED, EQUAL, CHAT
ROWS: Rows = {"engine": dict.fromkeys(KINDS, engine)}
OWN = [Own("your engine (lab 7)", "engine", ["Scheduler.schedule", "Engine.step"], KINDS, engine)]
