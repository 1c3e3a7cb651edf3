"""Lab 21, given: up to how many rows the kernel is the faster way.

It is measured as lab 7's products are: once for each kind of model, processor and number of
threads, for a few numbers of rows.
"""

import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from solutions.compiled.kernel import Kernel
from solutions.compiled.runner import KernelRunner
from solutions.compiled.steps import step
from solutions.compiled.weights import Weights
from solutions.compiler import cache_folder
from solutions.engine.products import Times, kept_or, processor
from solutions.engine.runner import Chunk, FastCache, Runner
from solutions.one_kernel import most_rows, rows_of
from solutions.paged_attention import BlockManager, PagedCache

SIZES = 1, 2, 4, 8, 16, 32  # rows
EVERY_STEP = 10**9  # rows
BEFORE = 64  # tokens of each row's text
BLOCK_SIZE = 16
ROUNDS = 3  # of which the shortest counts
PATIENCE = 6.0  # seconds for all of it
TIMES = cache_folder() / "times"  # of these sources: another kernel is measured anew


def kernel_runner(
    model: Any, usual: Runner, weights: Weights, folder: Path = TIMES
) -> KernelRunner:
    """Return a runner that takes the kernel as long as it is faster here than the usual way.

    folder: where later processes find the times.
    """
    times: Any = kept_or(lambda: measured(model, usual, weights), kind_of(weights), folder)
    return runner_of(model, usual, weights, most_rows(SIZES, times["kernel"], times["usual"]))


def runner_of(
    model: Any,
    usual: Runner,
    weights: Weights,
    rows: int,
    step: Callable[..., None] = step,
    rows_of: Callable[..., Any] = rows_of,
) -> KernelRunner:
    """Return a runner that takes the kernel for steps of up to so many rows."""
    pool = usual.kv_cache.cache.pool
    kernel = Kernel(model, pool, torch.get_num_threads(), weights, step)
    kernel.compile()
    return KernelRunner(usual, kernel, rows, rows_of)


def measured(
    model: Any, usual: Runner, weights: Weights, clock: Callable[[], float] = time.perf_counter
) -> Times:
    """Time both ways in turns on a pool of their own, up to the first size at which one is slower.

    On a slow machine the larger sizes are left out.
    """
    manager = BlockManager(max(SIZES) * (BEFORE // BLOCK_SIZE + 1), BLOCK_SIZE)
    weight = model.transformer.ln_f.weight
    cache = FastCache(PagedCache(model.config, manager, weight.device, weight.dtype))
    ways: dict[str, Runner] = {"usual": Runner(usual.transformer, usual.lm_head, cache)}
    ways["kernel"] = runner_of(model, ways["usual"], weights, max(SIZES))
    before = min(BEFORE, model.config.n_positions - 1)
    for request in range(max(SIZES)):
        manager.allocate(request, before + 1)
    times: Times = {"kernel": [], "usual": []}
    start = clock()
    for size in SIZES:
        batch = [Chunk(request, [request], before, 1) for request in range(size)]
        took: dict[str, list[float]] = {"kernel": [], "usual": []}
        for _ in range(ROUNDS):
            for name, way in ways.items():
                began = clock()
                way.forward(batch)
                took[name].append(clock() - began)
        for name in ways:
            times[name].append(min(took[name]))
        if times["kernel"][-1] > times["usual"][-1] or clock() - start > PATIENCE:
            break
    return times


def kind_of(weights: Weights) -> str:
    """Return what the times depend on."""
    matrices = weights.c_attn, weights.attn_proj, weights.c_fc, weights.mlp_proj, weights.head
    shapes = ", ".join(f"{each.weight.shape} of {each.weight.dtype}" for each in matrices)
    threads = torch.get_num_threads()
    used = f"torch {torch.__version__}; numba {version('numba')}"
    return f"{processor()}; threads: {threads}; {used}; weights: {shapes}"
