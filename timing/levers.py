"""What each lever that shortens the engine's step wins, and where the remaining time goes.

    python -m timing.levers [--threads 1]

The engine decodes greedily, once with one request and once with sixteen; each row adds a lever. The
rows take turns and produce the same tokens; each figure is the median time of a step. The second
table gives the share of each PyTorch operation in a step of the last row, by PyTorch's profiler.
docs/speed.md explains both.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

from gpt import load_tokenizer
from solutions.engine import runner
from solutions.engine.engine import Engine, Output
from solutions.engine.managers import EngineManager
from solutions.engine.runner import FastCache, FusedTransformer, Linear, PackedCache, Runner
from solutions.engine.scheduler import Scheduler
from solutions.kv_cache import CachedLMHead
from solutions.paged_attention import PagedCache
from timing.table.workloads import PROMPT
from timing.threads import parse_with_threads

STEPS, ROUNDS = 96, 3
REQUESTS = 1, 16
MOST = 8  # operations of a profile
BLOCK_SIZE = 16

NewRunner = Callable[[CachedLMHead, PagedCache], Runner]


def with_modules(model: CachedLMHead, kv_cache: PackedCache) -> Runner:
    return Runner(model.transformer, partial(F.linear, weight=weight_of(model)), kv_cache)


def fused(model: CachedLMHead, kv_cache: PackedCache) -> Runner:
    return Runner(FusedTransformer(model), Linear(weight_of(model)), kv_cache)


def fused_with(constant: str, value: int, model: CachedLMHead, kv_cache: PackedCache) -> Runner:
    """Replace one of the runner's constants for a while."""
    with patch.object(runner, constant, value):
        return fused(model, kv_cache)


def weight_of(model: CachedLMHead) -> torch.Tensor:
    return model.transformer.wte.weight


LEVERS: dict[str, NewRunner] = {
    "lab 2's modules over lab 4's cache": lambda m, c: with_modules(m, PackedCache(c)),
    "+ keys and values read where they lie": lambda m, c: with_modules(m, FastCache(c)),
    "+ weights without modules": lambda m, c: fused_with("HAS_ONEDNN", False, m, FastCache(c)),
    "+ products by oneDNN": lambda m, c: fused_with("PARTS", 1, m, FastCache(c)),
    "+ one token by parts of the weight": lambda m, c: fused(m, FastCache(c)),
}


def decoding(
    model: CachedLMHead, prompt: list[int], requests: int, new_runner: NewRunner
) -> tuple[Engine, list[Output]]:
    """Return an engine whose requests have been prefilled, and the list of its outputs."""
    length = len(prompt) + STEPS
    blocks = requests * -(-length // BLOCK_SIZE)
    manager = EngineManager(blocks, BLOCK_SIZE)
    weight = model.transformer.wte.weight
    cache = PagedCache(model.config, manager, weight.device, weight.dtype)
    outputs: list[Output] = []
    scheduler = Scheduler(manager, token_budget=blocks * BLOCK_SIZE, max_running=requests)
    engine = Engine(model.config, scheduler, new_runner(model, cache), outputs.append)
    for _ in range(requests):
        engine.submit(prompt, STEPS)
    engine.step()  # the prompts
    return engine, outputs


def seconds_of_steps(engine: Engine) -> list[float]:
    seconds = []
    while engine.has_work:
        start = time.perf_counter()
        engine.step()
        seconds.append(time.perf_counter() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(prog="timing.levers", description=__doc__)
    parse_with_threads(parser)
    model = CachedLMHead.from_pretrained("fable")
    prompt = load_tokenizer("fable")(PROMPT).input_ids
    taken: dict[tuple[str, int], list[float]] = {}
    for _ in range(1 + ROUNDS):  # the first one warms up
        for requests in REQUESTS:
            first = None
            for name, new_runner in LEVERS.items():
                engine, outputs = decoding(model, prompt, requests, new_runner)
                seconds = seconds_of_steps(engine)
                first = first or outputs
                if outputs != first:
                    raise SystemExit(f"{name} produces other tokens.")
                taken.setdefault((name, requests), []).append(median(seconds))
    print(f"fable, {torch.get_num_threads()} threads, ms per step\n")
    print("| |" + "|".join(f" {n} decoding " for n in REQUESTS) + "|")
    print("|---|" + "---:|" * len(REQUESTS))
    for name in LEVERS:
        cells = [f" {1e3 * median(taken[name, n][1:]):.2f} " for n in REQUESTS]
        print(f"| {name} |" + "|".join(cells) + "|")
    for requests in REQUESTS:
        print(f"\n{requests} decoding\n\n| operation | of the time | calls per step |")
        print("|---|---:|---:|")
        for operation, share, calls in spent(model, prompt, requests):
            print(f"| {operation} | {share:.0%} | {calls:.0f} |")


def spent(
    model: CachedLMHead, prompt: list[int], requests: int
) -> Iterator[tuple[str, float, float]]:
    """Return the operations that take most time: names, shares of the total, and calls."""
    engine, _ = decoding(model, prompt, requests, list(LEVERS.values())[-1])
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        count = len(seconds_of_steps(engine))
    events = sorted(profiled.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    for event in events[:MOST]:
        yield event.key, event.self_cpu_time_total / total, event.count / count


if __name__ == "__main__":
    main()
