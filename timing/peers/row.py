"""Another engine as a row of the table."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

from solutions.families import read_config
from solutions.gguf.file import gguf_in
from timing.peers.catalogue import FLOAT32, PEERS
from timing.peers.worker import PeerFailed, Workers
from timing.table import ROUNDED, Bench, Lossy, NotTimed, OtherEngine, Rows, Run
from timing.table.workloads import EQUAL, LENGTHS, RAGGED, Workload

MOST_THREADS = 2
OF_GGUF = "llama.cpp"  # whose own format it is
SIZES = {LENGTHS: (1,), RAGGED: (8, 16, 32, 64), EQUAL: (8, 16)}  # requests at a time
TRIALS = 2  # for each number of threads and of requests at a time; the better one counts
TRIAL_TOKENS = 64  # new tokens with one prompt; with many, each request gets a quarter of its own


@dataclass(frozen=True)
class Choice:
    threads: int
    size: int


class PeerRow(OtherEngine):
    """One engine, with the number of threads and of requests at a time that a short trial chose."""

    def __init__(self, name: str, kind: str, workers: Workers, bench: Bench) -> None:
        self.name, self.peer, self.workers = name, PEERS[name], workers
        file = gguf_in(bench.folder)
        if file is not None and name != OF_GGUF:
            raise NotTimed("this model is a GGUF file, which only llama.cpp takes as it is.")
        self.folder = file or bench.folder
        self.loaded = self.peer.about if file is None else f"{self.peer.name}, on the same file"
        is_exact = file is None and self.peer.precision == FLOAT32
        self.lossy = None if is_exact else Lossy(ROUNDED)
        threads = range(1, min(MOST_THREADS, os.cpu_count() or 1) + 1)
        self.choices = [Choice(t, size) for t in threads for size in SIZES[kind]]
        self.best: Choice | None = None
        self.failure: PeerFailed | None = None

    @property
    def about(self) -> str:
        if self.best is None:
            return self.loaded
        tried = best_of(self.best.threads, [choice.threads for choice in self.choices])
        about = f"{self.loaded}, threads: {tried}"
        sizes = [choice.size for choice in self.choices]
        return about if max(sizes) == 1 else f"{about}, at a time: {best_of(self.best.size, sizes)}"

    def run(self, workload: Workload) -> Run:
        """Run the workload once, after a trial the first time. Raises PeerFailed."""
        if self.failure:
            raise self.failure
        self.best = self.best or self.tried(workload)
        return self.served(workload, self.best)

    def tried(self, workload: Workload) -> Choice:
        """Return the fastest choice. Numbers of threads that fail are skipped.

        Raises PeerFailed if all of them fail.
        """
        trial = self.trial(workload)
        seconds: dict[Choice, float] = {}
        failed: dict[int, PeerFailed] = {}  # by threads
        for choice in self.choices:
            if choice.threads in failed:
                continue
            try:
                runs = [self.served(trial, choice) for _ in range(TRIALS)]
                seconds[choice] = min(run.seconds for run in runs)
            except PeerFailed as failure:
                failed[choice.threads] = failure
        working = [choice for choice in seconds if choice.threads not in failed]
        if not working:
            self.failure = next(iter(failed.values()))
            raise self.failure
        return min(working, key=lambda choice: seconds[choice])

    def trial(self, workload: Workload) -> Workload:
        limits = [-(-n // 4) for n in workload.new_tokens]
        if workload.kind == LENGTHS:
            room = read_config(self.folder).n_positions - len(workload.prompts[0])
            limits = [min(TRIAL_TOKENS, room)]
        return replace(workload, new_tokens=limits)

    def served(self, workload: Workload, choice: Choice) -> Run:
        worker = self.workers.get(self.name, self.folder, choice.threads)
        new, token_times = worker.serve(workload.prompts, workload.new_tokens, choice.size)
        outputs = [[*p, *ids] for p, ids in zip(workload.prompts, new, strict=True)]
        unseen = None, None, None  # its computed tokens and the bytes of its KV cache
        return Run(outputs, 0.0, token_times, *unseen, choice.size, {"threads": choice.threads})


def best_of(best: int, tried: list[int]) -> str:
    every = sorted(set(tried))
    return str(best) if len(every) == 1 else f"{best} (best of {', '.join(map(str, every))})"


def peer_techniques(names: Iterable[str], workers: Workers) -> Rows:
    """Return these engines in the form of TECHNIQUES."""
    return {name: {kind: partial(PeerRow, name, kind, workers) for kind in SIZES} for name in names}
