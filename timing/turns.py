"""The time to the first token of each turn of a chat, with lab 8's prefix cache and without.

    python -m timing.turns [--threads 1]

The chats are those of the table's workload `chat`: first a single one, then all at the same time.
Prompts that share nothing show what the cache costs; the time of its hashes is measured by itself.
The goals: in a single chat, the first token of a later turn comes at least 4 times faster, and
prompts that share nothing take at most 3% longer than without the cache.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import torch

from gpt import GPTConfig, GPTLMHead, find_checkpoint, read_config
from solutions.prefix_caching import block_hashes
from timing.cores import usable_cores
from timing.machine import processor_name
from timing.stopwatch import median_seconds
from timing.table import BLOCK_SIZE, Bench, Run, Runs, Verifier, timed_runs, workloads
from timing.table.workloads import CHAT, EQUAL, Workload, chat, fitting, random_prompts
from timing.techniques import TECHNIQUES
from timing.threads import parse_with_threads

MODEL, CPU = "fable", torch.device("cpu")
REPEATS = 9
ENGINE, PREFIX = NAMES = ["engine", "prefix"]
DISTINCT_REQUESTS, DISTINCT_PROMPT, DISTINCT_NEW = 32, 256, 8


def chats(config: GPTConfig, count: int) -> Workload:
    name = "A single chat" if count == 1 else f"{count} chats at the same time"
    return replace(chat(config, count), name=name)


def distinct(config: GPTConfig) -> Workload:
    """Return prompts that share nothing, with few new tokens, so that prefill takes most time."""
    generator = torch.Generator().manual_seed(0)
    prompts = random_prompts([DISTINCT_PROMPT] * DISTINCT_REQUESTS, config, generator)
    about = f"{DISTINCT_REQUESTS} prompts of {DISTINCT_PROMPT} tokens, {DISTINCT_NEW} new"
    limits = [DISTINCT_NEW] * DISTINCT_REQUESTS
    return fitting(Workload(EQUAL, "Distinct prompts", about, prompts, limits), config)


def main() -> None:
    parser = argparse.ArgumentParser(prog="timing.turns", description=__doc__)
    parse_with_threads(parser)
    folder = find_checkpoint(MODEL)
    config = read_config(folder)
    bench = Bench(folder, CPU)
    made = {name: TECHNIQUES[name][CHAT](bench) for name in ("cached", *NAMES)}  # the reference too
    prepared = {(kind, name): made[name] for kind in (CHAT, EQUAL) for name in made}
    talks, others = [chats(config, 1), chats(config, workloads.CHATS)], distinct(config)
    plan = [(workload, NAMES) for workload in (*talks, others)]
    told = Verifier(bench.load(GPTLMHead))
    results, _ = timed_runs(plan, prepared, told, REPEATS)

    print(
        f"{MODEL} in float32, {processor_name(CPU)}, cores: {usable_cores()}, threads: "
        f"{torch.get_num_threads()}, torch {torch.__version__}\n"
        f"Medians of {REPEATS} interleaved repeats (least to most); outputs verified first."
    )
    for tie in told.ties.values():
        print(f"~ {tie}")
    for workload in talks:
        show_turns(workload, results)
    show_distinct(others, results)
    seconds = median_seconds(lambda: block_hashes(others.prompts[0], BLOCK_SIZE))
    print(f"Its hashes: {1e6 * seconds / DISTINCT_PROMPT:.2f} µs per prompt token.")


# ------------------------------------------------------------------------------------ what it says


def show_turns(workload: Workload, results: Runs) -> None:
    both = [results[workload.name, name] for name in NAMES]
    notes = both[1][0].notes
    found = f"found {notes['hits']:,} of {notes['queried']:,} prompt tokens"
    print(f"\n{workload.name}: TTFT in ms. {PREFIX} {found}.\n")
    print(f"| turn | prompt tokens | {ENGINE} | {PREFIX} | times as fast |")
    print("|---:|---:|---:|---:|---:|")
    for turn in range(workload.turns):
        without, cached = ([ttft(workload, turn, run) for run in runs] for runs in both)
        cells = [spread(without), spread(cached), f"{median(ratios(without, cached)):.1f}"]
        print(f"| {turn + 1} | {prompt_tokens(workload, turn)} | {' | '.join(cells)} |")


def prompt_tokens(workload: Workload, turn: int) -> int:
    """Return the length of the prompts in this turn, which is the same in all chats."""
    answers = sum(workload.new_tokens[: turn * workload.at_start : workload.at_start])
    before = workload.prompts[: turn * workload.at_start + 1 : workload.at_start]
    return sum(map(len, before)) + answers


def ttft(workload: Workload, turn: int, run: Run) -> float:
    """Return the median TTFT of a turn, in seconds from the end of the previous turn."""
    first = turn * workload.at_start
    requests = run.metrics(workload.turns)[first : first + workload.at_start]
    return median(request.ttft for request in requests)


def show_distinct(workload: Workload, results: Runs) -> None:
    without, cached = ([run.seconds for run in results[workload.name, name]] for name in NAMES)
    found = ratios(cached, without)
    print(
        f"\n{workload.name} ({workload.about}): {spread(without)} ms with {ENGINE}, "
        f"{spread(cached)} ms with {PREFIX}, {median(found):.3f} times as long "
        f"({min(found):.3f}-{max(found):.3f})."
    )


def ratios(ones: Sequence[float], others: Sequence[float]) -> list[float]:
    """Return the ratios repeat by repeat, because a slow minute of the machine affects both.

    Only one of them may have been timed again after the others; those repeats are left out.
    """
    return [one / other for one, other in zip(ones, others, strict=False)]


def spread(seconds: Sequence[float]) -> str:
    middle, least, most = (1e3 * choose(seconds) for choose in (median, min, max))
    return f"{middle:,.1f} ({least:,.1f}-{most:,.1f})"


if __name__ == "__main__":
    main()
