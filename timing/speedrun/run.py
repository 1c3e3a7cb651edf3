"""Run a learner's engine and the reference in turns, verify their tokens, and compare their times.

Prompts are drawn for each round, after the learner's code has been loaded. So it can't know a
prompt, nor keep an answer from an earlier round.
"""

import hashlib
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean, median
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import torch
from tqdm import trange

from gpt import GPTLMHead
from timing.cores import SHORTEST, SPARE
from timing.peers.worker import PeerFailed, Worker
from timing.table import Bench, Ids, Run, Verifier
from timing.table.workloads import LENGTHS, Workload, fitting, ragged, random_prompts

COMMAND = [sys.executable, "-m", "timing.speedrun.engine"]
MINE, REFERENCE = NAMES = "mine", "reference"
ROUNDS = 5  # besides the first one, which warms up
PROMPT, NEW = 16, 256  # tokens of the request that runs alone
WEIGHTS = ".safetensors", ".bin", ".gguf"

Times = dict[str, dict[str, list[float]]]  # seconds of each round, by workload and engine


@dataclass(frozen=True)
class Result:
    """times: of the rounds. tokens: new ones, by workload. about: what of the learner's ran.

    labs: whose code was loaded. others: the most cores that other programs kept busy in a round.
    """

    times: Times
    tokens: dict[str, int]
    about: list[str]
    labs: list[str]
    others: float

    @property
    def ratios(self) -> dict[str, list[float]]:
        """How many times as fast the learner's engine is, by workload and round."""
        return {
            workload: [
                theirs / own for own, theirs in zip(both[MINE], both[REFERENCE], strict=True)
            ]
            for workload, both in self.times.items()
        }

    @property
    def score(self) -> dict[str, float]:
        """The median ratio of each workload, and their geometric mean.

        A slow minute of the machine affects both engines of a round.
        """
        medians = {workload: median(ratios) for workload, ratios in self.ratios.items()}
        return {**medians, "mean": geometric_mean(medians.values())}

    def tok_per_s(self, workload: str, name: str) -> float:
        return self.tokens[workload] / median(self.times[workload][name])


def draw_workloads(config: Any, seed: int) -> list[Workload]:
    """Return one request, and many of unequal lengths. The seed draws all prompts' ids.

    Lengths are the same for each seed, so all rounds are the same work.
    """
    generator = torch.Generator().manual_seed(seed)
    many = ragged(config)
    alone, *prompts = random_prompts([PROMPT, *map(len, many.prompts)], config, generator)
    one = Workload(LENGTHS, "one request", "", [alone], [NEW])
    unequal = replace(many, name=f"{len(prompts)} unequal requests", prompts=prompts)
    return [fitting(one, config), unequal]


def start_engine(arguments: list[str], threads: int, log: Path) -> Worker:
    """Start the process of one engine. arguments: of timing.speedrun.engine."""
    return Worker([*COMMAND, *arguments], threads, log)


Start = Callable[[list[str], int, Path], Worker]


def run(folder: Path, code: Path, threads: int, start: Start = start_engine) -> Result:
    """Run a learner's kept functions against the reference.

    folder: the model's. code: the folder of the functions. Raises ValueError if the model's context
    is too short, and SystemExit with a sentence if the engine fails or its tokens are wrong.
    """
    bench = Bench(folder, torch.device("cpu"))
    naive_model, before = bench.load(GPTLMHead), digest(folder)
    draw_workloads(naive_model.config, 0)  # refuses a short context before any engine is loaded
    arguments = [str(folder.resolve()), str(threads)]
    workers: dict[str, Worker] = {}
    with TemporaryDirectory() as logs:
        try:
            # The reference first: no learner's code runs while it is loaded.
            workers[REFERENCE] = start(arguments, threads, Path(logs, REFERENCE))
            workers[MINE] = start([*arguments, str(code)], threads, Path(logs, MINE))
            result = in_turns(workers, naive_model)
        except PeerFailed as failure:
            sys.exit(f"Stopped: an engine has failed: {failure}")
        finally:
            for worker in workers.values():
                worker.close()
    if digest(folder) != before:
        sys.exit("Stopped: the model's files have changed during the run.")
    return result


def in_turns(workers: Mapping[str, Worker], naive_model: Any) -> Result:
    times: Times = {}
    tokens, others, vocab_size = {}, 0.0, naive_model.config.vocab_size
    for number in trange(ROUNDS + 1, unit="round", leave=False, disable=None):
        for workload in draw_workloads(naive_model.config, secrets.randbits(63)):
            verifier = Verifier(naive_model)
            for name in NAMES if number % 2 else NAMES[::-1]:
                done = verifier.run(workload, name, Turn(name, workers, vocab_size))
                if number:
                    times.setdefault(workload.name, {}).setdefault(name, []).append(done.seconds)
                    others = max(others, done.others)
            tokens[workload.name] = sum(workload.new_tokens)
    greeting = workers[MINE].greeting
    return Result(times, tokens, greeting["about"], greeting["labs"], others)


@dataclass(frozen=True)
class Turn:
    """One engine's turn, in the form of a row of the table. Its clock runs here."""

    about: str
    workers: Mapping[str, Worker]
    vocab_size: int
    lossy = weight_bytes = None

    def run(self, workload: Workload) -> Run:
        """Raises SystemExit if the learner's engine works while the reference has its turn."""
        before, size = used(self.workers[MINE]), len(workload.prompts)
        start = time.perf_counter()
        new, _ = self.workers[self.about].serve(workload.prompts, workload.new_tokens, size)
        end = time.perf_counter()
        busy = used(self.workers[MINE]) - before
        if self.about == REFERENCE and busy > SHORTEST + SPARE * (end - start):
            sys.exit("Stopped: mine keeps the processor busy during the reference's turn.")
        require_ids(self.about, workload, new, self.vocab_size)
        outputs = [[*p, *ids] for p, ids in zip(workload.prompts, new, strict=True)]
        return Run(outputs, start, [[end]], None, None, None, size)


def used(worker: Worker) -> float:
    """Return the processor time of an engine's process and its children so far, in seconds."""
    process = psutil.Process(worker.process.pid)
    return sum(sum(each.cpu_times()[:4]) for each in (process, *process.children(recursive=True)))


def require_ids(name: str, workload: Workload, new: Sequence[Ids], vocab_size: int) -> None:
    """Raise SystemExit unless there is an answer to each request, made of the model's tokens."""
    if len(new) != len(workload.prompts):
        sys.exit(
            f"Stopped: {name} answered {len(new)} of {len(workload.prompts)} requests of "
            f"{workload.name}."
        )
    if any(token not in range(vocab_size) for ids in new for token in ids):
        sys.exit(
            f"Stopped: {name} returned tokens for {workload.name} that the model doesn't have."
        )


def digest(folder: Path) -> str:
    """Return the SHA-256 of a model's configuration and weights."""
    files = [folder] if folder.is_file() else sorted(folder.iterdir())
    found = hashlib.sha256()
    for file in files:
        if file.name == "config.json" or file.suffix in WEIGHTS:
            found.update(file.read_bytes())
    return found.hexdigest()
