"""Run a workload once with the engine, which reports when each token came."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from solutions.engine.engine import Engine, Output
from solutions.engine.runner import Chunk
from solutions.engine.watcher import Watcher, watch
from solutions.paged_attention import BlockManager
from timing.stopwatch import synchronize
from timing.table.runs import Ids, OneModel, Run
from timing.table.workloads import Workload


class HeldBlocks(Watcher):
    """Notes the share of the pool's blocks that is held during each forward pass."""

    def __init__(self, manager: BlockManager) -> None:
        self.manager, self.shares = manager, list[float]()

    def computed(self, chunks: list[Chunk], hidden: Any) -> None:
        self.shares.append(1 - len(self.manager.free_blocks) / self.manager.num_blocks)


@dataclass(frozen=True)
class Served(OneModel):
    """Requests served by an engine, at most `size` at a time.

    All arrive at the start, except a chat's later turns: each arrives when the previous one has
    finished. new_engine: called as new_engine(model, workload, on_output).
    """

    new_engine: Callable[[Any, Workload, Callable[[Output], None]], Engine]
    size: int

    def run(self, workload: Workload) -> Run:
        outputs: list[Ids] = [[] for _ in workload.prompts]
        token_times: list[list[float]] = [[] for _ in outputs]
        places: dict[int, int] = {}  # the engine's number of a request -> its place in the workload

        def submit(place: int) -> None:
            outputs[place] = workload.prompt(place, outputs)
            places[engine.submit(outputs[place], workload.new_tokens[place])] = place

        def note(output: Output) -> None:
            place = places[output.request]
            outputs[place] += output.new_ids
            token_times[place] += [time.perf_counter()] * len(output.new_ids)
            later = place + workload.at_start
            if output.finish_reason and later < len(outputs):
                submit(later)

        engine = self.new_engine(self.model, workload, note)
        synchronize(next(self.model.parameters()).device)
        start = time.perf_counter()
        for place in range(workload.at_start):
            submit(place)
        manager = engine.scheduler.manager
        held = HeldBlocks(manager)
        watch(engine, held)
        engine.run()
        reserved = engine.runner.kv_cache.cache.pool.nbytes
        return Run(
            outputs,
            start,
            token_times,
            sum(tokens for step in engine.trace for _, tokens, _ in step),
            round(max(held.shares) * reserved),
            reserved,
            min(self.size, workload.at_start),
            {
                "preemptions": engine.scheduler.preemptions,
                "pool_used": fmean(held.shares),
                "queried": getattr(manager, "queried", None),  # only lab 8's manager counts these
                "hits": getattr(manager, "hits", None),
            },
        )
