"""Doing a workload once with the engine, which tells by itself when each token came."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from torch import nn

from solutions.engine import Engine, Output
from solutions.runner import Chunk
from timing.runs import Run
from timing.stopwatch import synchronize
from timing.work import weight_bytes
from timing.workloads import Workload


@dataclass(frozen=True)
class Served:
    """Requests that all come at once, and of which the engine serves `size` at a time at most.

    new_engine: called as new_engine(model, workload, on_output).
    """

    about: str
    model: nn.Module
    new_engine: Callable[[Any, Workload, Callable[[Output], None]], Engine]
    size: int

    @property
    def weight_bytes(self) -> int:
        return weight_bytes(self.model)

    def run(self, workload: Workload) -> Run:
        outputs = [list(prompt) for prompt in workload.prompts]
        token_times: list[list[float]] = [[] for _ in outputs]

        def note(output: Output) -> None:
            outputs[output.request] += output.new_ids
            token_times[output.request] += [time.perf_counter()] * len(output.new_ids)

        engine = self.new_engine(self.model, workload, note)
        synchronize(next(self.model.parameters()).device)
        start = time.perf_counter()
        for prompt, limit in zip(workload.prompts, workload.new_tokens, strict=True):
            engine.submit(prompt, limit)
        manager, forward = engine.scheduler.manager, engine.runner.forward
        shares: list[float] = []  # of the pool, held during each forward

        def watched(batch: Sequence[Chunk]) -> Any:
            shares.append(1 - len(manager.free_blocks) / manager.num_blocks)
            return forward(batch)

        engine.runner.forward = watched  # type: ignore[method-assign]
        engine.run()
        reserved = engine.runner.kv_cache.cache.pool.nbytes
        return Run(
            outputs,
            start,
            token_times,
            sum(tokens for step in engine.trace for _, tokens, _ in step),
            round(max(shares) * reserved),
            reserved,
            min(self.size, len(outputs)),
            used=None,
            preemptions=engine.scheduler.preemptions,
            pool_used=fmean(shares),
        )
