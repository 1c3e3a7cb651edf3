"""What each lever that shortens the engine's step wins, and where the remaining time goes.

    python -m timing.levers [--threads 1]

The engine decodes greedily, once with one request and once with sixteen; each row adds a lever. The
rows take turns and produce the same tokens; each figure is the median time of a step. The second
table has what the engine chose its products by: the time of each way to multiply. The last ones
give the share of each PyTorch operation in a step of the last row, by PyTorch's profiler.
docs/speed.md explains them.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import torch
import torch.nn.functional as F

from gpt import load_tokenizer
from solutions.engine.engine import Engine, Output
from solutions.engine.managers import EngineManager
from solutions.engine.products import PRODUCTS, SIZES, Products, in_words, weights_of
from solutions.engine.runner import FastCache, PackedCache, Runner, new_runner
from solutions.engine.scheduler import Scheduler
from solutions.kv_cache import CachedLMHead
from solutions.one_kernel import self_times
from solutions.paged_attention import PagedCache
from timing.operations import recorded
from timing.table.workloads import PROMPT
from timing.threads import parse_with_threads

STEPS, ROUNDS = 96, 3
REQUESTS = 1, 16
MOST = 8  # operations of a profile
BLOCK_SIZE = 16
USUAL = Products("F.linear")

Lever = Callable[[CachedLMHead, PagedCache], Runner]


def with_modules(model: CachedLMHead, kv_cache: PackedCache) -> Runner:
    lm_head = partial(F.linear, weight=model.transformer.wte.weight)
    return Runner(model.transformer, lm_head, kv_cache)


LEVERS: dict[str, Lever] = {
    "lab 2's modules over lab 4's cache": lambda m, c: with_modules(m, PackedCache(c)),
    "+ keys and values read where they lie": lambda m, c: with_modules(m, FastCache(c)),
    "+ weights without modules": lambda m, c: new_runner(m, FastCache(c), USUAL),
    "+ products in the fastest way": lambda m, c: new_runner(m, FastCache(c)),
}


def decoding(
    model: CachedLMHead, prompt: list[int], requests: int, lever: Lever
) -> tuple[Engine, list[Output]]:
    """Return an engine whose requests have been prefilled, and the list of its outputs."""
    length = len(prompt) + STEPS
    blocks = requests * -(-length // BLOCK_SIZE)
    manager = EngineManager(blocks, BLOCK_SIZE)
    weight = model.transformer.wte.weight
    cache = PagedCache(model.config, manager, weight.device, weight.dtype)
    outputs: list[Output] = []
    scheduler = Scheduler(manager, token_budget=blocks * BLOCK_SIZE, max_running=requests)
    engine = Engine(model.config, scheduler, lever(model, cache), outputs.append)
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
            for name, lever in LEVERS.items():
                engine, outputs = decoding(model, prompt, requests, lever)
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
    print_ways(model)
    for requests in REQUESTS:
        print(f"\n{requests} decoding\n\n| operation | of the time | calls per step |")
        print("|---|---:|---:|")
        for operation, share, calls in spent(model, prompt, requests):
            print(f"| {operation} | {share:.0%} | {calls:.0f} |")


def print_ways(model: CachedLMHead) -> None:
    """Print the times that the engine chooses its products by, and what it has chosen."""
    weights = weights_of(model)
    print("\nall products of a step, ms by the number of rows\n")
    print("| |" + "|".join(f" {size} " for size in SIZES) + "|")
    print("|---|" + "---:|" * len(SIZES))
    for way, times in (PRODUCTS.times_of(weights) or {}).items():
        print(f"| {way} |" + "|".join(f" {1e3 * seconds:.2f} " for seconds in times) + "|")
    print(f"\nchosen: {in_words(PRODUCTS.choice_for(weights))}")


def spent(
    model: CachedLMHead, prompt: list[int], requests: int
) -> Iterator[tuple[str, float, float]]:
    """Return the operations that take most time: names, shares of the total, and calls."""
    engine, _ = decoding(model, prompt, requests, list(LEVERS.values())[-1])
    steps: list[float] = []
    times, _ = self_times(recorded(lambda: steps.extend(seconds_of_steps(engine))))
    total = sum(own for _, own in times.values())
    for name, (calls, own) in sorted(times.items(), key=lambda item: -item[1][1])[:MOST]:
        yield name, own / total, calls / len(steps)


if __name__ == "__main__":
    main()
