"""Time every technique of the course on the same prompts, in one table.

    python timed_generate.py
    python timed_generate.py --techniques naive,cached --tokens 64,256,512 --plot times.png
    python timed_generate.py --mine          adds your own code from the labs

Every technique must first give the naive loop's tokens; only then is it timed. The last line of the
output is the whole result as JSON. A new technique is one entry in TECHNIQUES.
"""

import argparse
import difflib
import functools
import importlib.util
import inspect
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, Protocol, cast

import torch
import transformers
from jaxtyping import Int
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from tqdm import tqdm

from gpt import GPTLMHead, find_checkpoint, load_tokenizer, read_config
from solutions import generate as lab1
from solutions import kv_cache as lab2

PROMPT = "Once upon a time there was a king who had three daughters, and the youngest"
HAIR = 1e-4  # two logits this close, relative to the largest one, are a tie in float32
BANDWIDTH_BYTES = 512 * 2**20  # read to measure the memory: far more than a cache holds


# ---------------------------------------------------------------------- what runs, and on what


@dataclass(frozen=True)
class Workload:
    """What is asked of every technique: continue this prompt by so many tokens."""

    name: str
    input_ids: Int[Tensor, "batch seq"]
    new_tokens: int


@dataclass(frozen=True)
class Run:
    """What one technique did with one workload.

    token_times: when each new token (of every row) was there, in seconds, on `start`'s clock.
    tokens_computed: how many tokens went through the model, all forwards together.
    kv_bytes: size of the keys and values held at the end.
    """

    output_ids: Int[Tensor, "batch seq_and_new"]
    start: float
    token_times: list[float]
    tokens_computed: int
    kv_bytes: int

    @property
    def metrics(self) -> lab1.Metrics:
        return lab1.metrics(self.start, self.token_times)


class Prepared(Protocol):
    """A technique with its weights loaded: what every row of the table has to offer."""

    @property
    def about(self) -> str:
        """Its one line under the table."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that a decode step reads."""

    def run(self, workload: Workload) -> Run:
        """Do the workload once."""


@dataclass(frozen=True)
class Loop:
    """A generation loop around one model, where each forward gives one token.

    generate: called as generate(model, input_ids, new_tokens), returns prompt and new tokens.
    kv_bytes: called with the arguments and the output of the last forward.
    """

    about: str
    model: nn.Module
    generate: Callable[[Any, Tensor, int], Tensor]
    kv_bytes: Callable[[Sequence[Any], Any], int]

    @property
    def weight_bytes(self) -> int:
        """Every weight but the position embeddings, of which a decode step reads one row."""
        weights = self.model.named_parameters()
        return sum(weight.nbytes for name, weight in weights if not name.endswith("wpe.weight"))

    def run(self, workload: Workload) -> Run:
        """Generate, and watch the model from outside: no loop has to be written for the stopwatch.

        A token's time is the end of the forward that gave its logits; it is picked right after. A
        hook costs microseconds where a forward costs milliseconds. On an accelerator the clock
        waits for the forward to end, as whoever reads the token would.
        """
        device = workload.input_ids.device
        token_times: list[float] = []
        counts: list[int] = []
        last: list[Any] = []

        def count(embedding: nn.Module, args: tuple[Tensor]) -> None:
            counts.append(args[0].numel())

        def note(model: nn.Module, args: tuple[Any, ...], kwargs: dict, output: Any) -> None:
            synchronize(device)
            token_times.append(time.perf_counter())
            last[:] = [(*args, *kwargs.values()), output]

        hooks = [
            self.model.get_submodule("transformer.wte").register_forward_pre_hook(count),
            self.model.register_forward_hook(note, with_kwargs=True),
        ]
        synchronize(device)
        start = time.perf_counter()
        output_ids = self.generate(self.model, workload.input_ids, workload.new_tokens)
        for hook in hooks:
            hook.remove()
        return Run(output_ids, start, token_times, sum(counts), self.kv_bytes(*last))


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


# ------------------------------------------------------------------------------- the techniques


def no_kv_bytes(args: Sequence[Any], output: Any) -> int:
    return 0


def threaded_kv_bytes(args: Sequence[Any], output: Any) -> int:
    _logits, kv_cache = output
    return sum(keys.nbytes + values.nbytes for keys, values in kv_cache)


def object_kv_bytes(args: Sequence[Any], output: Any) -> int:
    return next(arg.bytes_held for arg in args if hasattr(arg, "bytes_held"))


def hf_kv_bytes(args: Sequence[Any], output: Any) -> int:
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in output.past_key_values.layers)


def prepare_naive(folder: Path, device: torch.device) -> Loop:
    model = GPTLMHead.from_pretrained(folder, device)
    return Loop("the whole sequence at every step (lab 1)", model, lab1.generate, no_kv_bytes)


def prepare_cached_concat(folder: Path, device: torch.device) -> Loop:
    model = lab2.ThreadedLMHead.from_pretrained(folder, device)
    about = "KV cache of tuples, copied to grow at every step (lab 2)"
    return Loop(about, model, lab2.generate_threaded, threaded_kv_bytes)


def prepare_cached(folder: Path, device: torch.device) -> Loop:
    model = lab2.CachedLMHead.from_pretrained(folder, device)
    about = "KV cache in memory reserved once (lab 2)"
    return Loop(about, model, lab2.generate, object_kv_bytes)


def prepare_hf_nocache(folder: Path, device: torch.device) -> Loop:
    model = hf_model(folder, device)
    return Loop("transformers, use_cache=False", model, hf_generate(False), no_kv_bytes)


def prepare_hf(folder: Path, device: torch.device) -> Loop:
    model = hf_model(folder, device)
    return Loop("transformers, use_cache=True", model, hf_generate(True), hf_kv_bytes)


@functools.cache  # both rows of transformers run the same model
def hf_model(folder: Path, device: torch.device) -> nn.Module:
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    # Greedy and without an EOS, as the course's own loops run here, whatever the checkpoint says.
    model.generation_config = transformers.GenerationConfig(do_sample=False, pad_token_id=0)
    return model.eval().requires_grad_(False).to(device)


def hf_generate(use_cache: bool) -> Callable[[Any, Tensor, int], Tensor]:
    def generate(model: Any, input_ids: Tensor, new_tokens: int) -> Tensor:
        attention_mask = torch.ones_like(input_ids)
        return model.generate(
            input_ids,
            attention_mask=attention_mask,
            max_new_tokens=new_tokens,
            use_cache=use_cache,
        )

    return generate


def prepare_mine(folder: Path, device: torch.device) -> Loop:
    """The newest loop of which some part is the learner's own; `mine` prints which parts are."""
    from autograder.check import mine  # only --mine needs the autograder

    lab = mine("kv_cache")
    if is_learners(lab, lab.KVCache.attend):
        model = lab.CachedLMHead.from_pretrained(folder, device)
        return Loop("your KVCache (lab 2)", model, lab.generate, object_kv_bytes)
    threaded = lab.ThreadedAttention, lab.ThreadedBlock, lab.ThreadedModel, lab.ThreadedLMHead
    loop = lab.generate_threaded
    if any(is_learners(lab, part) for part in (loop, *(part.forward for part in threaded))):
        model = lab.ThreadedLMHead.from_pretrained(folder, device)
        return Loop("your KV cache of tuples (lab 2)", model, loop, threaded_kv_bytes)
    lab = mine("generate")
    if is_learners(lab, lab.generate):
        model = GPTLMHead.from_pretrained(folder, device)
        return Loop("your generate (lab 1)", model, lab.generate, no_kv_bytes)
    about = "the reference's cached loop: no loop of yours has passed its check yet"
    return replace(prepare_cached(folder, device), about=about)


def is_learners(lab: ModuleType, function: Callable) -> bool:
    return inspect.unwrap(function).__code__.co_filename != lab.__file__


TECHNIQUES: dict[str, Callable[[Path, torch.device], Prepared]] = {
    "naive": prepare_naive,
    "cached-concat": prepare_cached_concat,
    "cached": prepare_cached,
    "hf-nocache": prepare_hf_nocache,
    "hf": prepare_hf,
    "mine": prepare_mine,
}
DEFAULT = ["naive", "cached-concat", "cached", "hf-nocache", "hf"]


# --------------------------------------------------------------------------------- verification


def verify(
    name: str,
    workload: Workload,
    ids: Int[Tensor, "batch seq_and_new"],
    expected_ids: Int[Tensor, "batch seq_and_new"],
    naive_model: nn.Module,
) -> str | None:
    """None where the tokens are the naive loop's; one sentence where float32 could not decide.

    After a first difference the two texts part, so from there on every token is held against what
    the naive model says about the technique's own text: it must be a best one, or tie with it.
    Raises SystemExit with a sentence where it is neither.
    """
    prompt = workload.input_ids.shape[1]
    if ids.shape != expected_ids.shape:
        sys.exit(
            f"Stopped: {name} returned ids of shape {list(ids.shape)} for {workload.name} "
            f"where naive returned {list(expected_ids.shape)}."
        )
    if torch.equal(ids, expected_ids):
        return None
    inputs = ids[:, :-1]
    position_ids = torch.arange(inputs.shape[1], device=ids.device).expand_as(inputs)
    with torch.no_grad():
        logits = naive_model(inputs, position_ids)[:, prompt - 1 :]
    picked = logits.gather(-1, ids[:, prompt:, None]).squeeze(-1)
    gaps = (logits.amax(-1) - picked) / logits.abs().amax(-1)  # [batch, new tokens]
    first = int((ids != expected_ids).any(0).nonzero()[0])
    if first < prompt or gaps.max() > HAIR:
        sys.exit(
            f"Stopped: {name} does not generate what naive does. For {workload.name} the "
            f"first difference is at position {first} (the prompt has {prompt} tokens), and its "
            f"choices are up to {gaps.max():.1e} from the best logit (a tie is {HAIR:.0e})."
        )
    return (
        f"{name}, {workload.name}: the first difference from naive is at position {first}, where "
        f"the two best logits are {gaps[:, first - prompt].max():.1e} apart: a tie in float32."
    )


# ----------------------------------------------------------------------------------- the machine


def memory_bandwidth(device: torch.device) -> float:
    """Bytes a second that this machine reads from memory: the best of several long sums."""
    numbers = torch.ones(BANDWIDTH_BYTES // 4, device=device)

    def seconds() -> float:
        synchronize(device)
        start = time.perf_counter()
        numbers.sum()
        synchronize(device)
        return time.perf_counter() - start

    return numbers.nbytes / min(seconds() for _ in range(10))


def last_level_cache(device: torch.device) -> int | None:
    """Bytes of the processor's last-level caches together, None where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).L2_cache_size
    if sys.platform == "darwin":
        found = sysctl("hw.l3cachesize") or sysctl("hw.perflevel0.l2cachesize")
        return int(found) if found else None
    sizes: dict[tuple[int, str], int] = {}  # cores that share a cache list the same one
    for path in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cache/index*/size"):
        level = int(path.with_name("level").read_text())
        cores = path.with_name("shared_cpu_list").read_text()
        sizes[level, cores] = int(path.read_text().strip().removesuffix("K")) * 1024
    top = max((level for level, _ in sizes), default=None)
    return sum(size for (level, _), size in sizes.items() if level == top) or None


def processor_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if sys.platform == "darwin":
        return sysctl("machdep.cpu.brand_string")
    if Path("/proc/cpuinfo").exists():
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def sysctl(name: str) -> str:
    """What macOS says about itself, "" where it knows no such thing."""
    return subprocess.run(["sysctl", "-n", name], capture_output=True, text=True).stdout.strip()


def environment(
    args: argparse.Namespace, prompt_tokens: int, weight_bytes: int
) -> dict[str, str | int | float | None]:
    return {
        "model": args.model,
        "weight_bytes": weight_bytes,
        "dtype": "float32",
        "device": str(args.device),
        "processor": processor_name(args.device),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bandwidth_bytes_per_s": memory_bandwidth(args.device),
        "last_level_cache_bytes": last_level_cache(args.device),
        "os": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "prompt_tokens": prompt_tokens,
        "repeats": args.repeats,
    }


# ------------------------------------------------------------------------------------ measuring

Results = dict[tuple[str, str], list[Run]]  # by workload and technique, one run for each repeat
Row = dict[str, Any]


def measure(
    workloads: list[Workload], prepared: dict[str, Prepared], names: list[str], repeats: int
) -> tuple[Results, dict[tuple[str, str], str]]:
    """Verify every technique, then time those of `names`; return the timed runs and the ties.

    `prepared` has naive first; the others are held against it. The verified runs are the warm-up.
    Then the techniques take turns, and each repeat starts with another one, so that a slow minute
    of the machine, or a warm cache, favours none of them.
    """
    verifying = [(workload, name) for workload in workloads for name in prepared]
    timing = [
        (workload, name)
        for repeat in range(repeats)
        for workload in workloads
        for name in rotated(names, repeat)
    ]
    naive_model = cast(Loop, prepared["naive"]).model
    expected: dict[str, Tensor] = {}
    results: Results = {}
    ties: dict[tuple[str, str], str] = {}
    with tqdm(verifying + timing, unit="run", leave=False) as progress:
        for done, (workload, name) in enumerate(progress):
            stage = "verify" if done < len(verifying) else "time"
            progress.set_description(f"{stage} {name}, {workload.name}")
            run = prepared[name].run(workload)
            expected_ids = expected.setdefault(workload.name, run.output_ids)
            tie = verify(name, workload, run.output_ids, expected_ids, naive_model)
            if tie:
                ties[workload.name, name] = tie
            if stage == "time":
                results.setdefault((workload.name, name), []).append(run)
    return results, ties


def rotated(names: list[str], by: int) -> list[str]:
    first = by % len(names)
    return names[first:] + names[:first]


def new_row(
    workload: Workload, name: str, runs: list[Run], weight_bytes: int, environment: dict[str, Any]
) -> Row:
    """One line of the table: medians over the runs, in seconds and bytes."""
    measured = [run.metrics for run in runs]
    batch, prompt = workload.input_ids.shape
    n, kv_bytes = workload.new_tokens, runs[0].kv_bytes
    rates = [batch * metrics.throughput for metrics in measured]
    tpots = [metrics.tpot for metrics in measured if metrics.tpot is not None]
    tpot = statistics.median(tpots) if tpots else None
    # The decode steps attend to prompt + 1 up to prompt + n - 1 tokens, the number held at the end.
    bytes_per_step = weight_bytes + kv_bytes * (prompt + n / 2) / (prompt + n - 1)
    cache = environment["last_level_cache_bytes"]
    return {
        "workload": workload.name,
        "technique": name,
        "batch": batch,
        "new_tokens": n,
        "tok_per_s": statistics.median(rates),
        "tok_per_s_min": min(rates),
        "tok_per_s_max": max(rates),
        "ttft_s": statistics.median(metrics.ttft for metrics in measured),
        "tpot_s": tpot,
        "total_s": statistics.median(metrics.latency for metrics in measured),
        "tokens_computed": runs[0].tokens_computed,
        "kv_bytes": kv_bytes,
        "speedup": None,
        "mbu": bytes_per_step / tpot / environment["memory_bandwidth_bytes_per_s"]
        if tpot
        else None,
        "weights_fit_in_cache": cache is not None and weight_bytes <= cache,
    }


def add_speedups(rows: list[Row]) -> None:
    """Over naive on the same workload; it stays None where naive was not timed."""
    naive = {row["workload"]: row["total_s"] for row in rows if row["technique"] == "naive"}
    for row in rows:
        if row["workload"] in naive:
            row["speedup"] = naive[row["workload"]] / row["total_s"]


def growth(rows: list[Row]) -> dict[str, dict[str, float]]:
    """The powers with which a technique's cost grows with the new tokens: 1 linear, 2 quadratic.

    Each is the slope of the least-squares line through the logarithms; `total_time_last_two` is the
    one between the two longest workloads alone. Empty where there is only one length.
    """
    powers = {}
    for name, own in by_technique(rows).items():
        if len(own) > 1:
            powers[name] = {
                "total_time": power(own, "total_s"),
                "total_time_last_two": power(own[-2:], "total_s"),
                "tokens_computed": power(own, "tokens_computed"),
            }
    return powers


def power(rows: list[Row], cost: str) -> float:
    lengths = [math.log(row["new_tokens"]) for row in rows]
    return statistics.linear_regression(lengths, [math.log(row[cost]) for row in rows]).slope


def by_technique(rows: list[Row]) -> dict[str, list[Row]]:
    names = dict.fromkeys(row["technique"] for row in rows)
    return {name: [row for row in rows if row["technique"] == name] for name in names}


# --------------------------------------------------------------------------------------- showing


def show_environment(console: Console, found: dict[str, Any]) -> None:
    cache = found["last_level_cache_bytes"]
    console.print(
        f"{found['model']}: {found['weight_bytes'] / 1e6:.1f} MB of weights in {found['dtype']}, "
        f"on {found['device']}\n"
        f"{found['processor']}, cores: {found['cores']}, threads: {found['threads']}, memory read "
        f"at {found['memory_bandwidth_bytes_per_s'] / 1e9:.1f} GB/s, last-level cache: "
        f"{f'{cache / 1e6:.1f} MB' if cache else 'unknown'}\n"
        f"{found['os']}, Python {found['python']}, torch {found['torch']}, transformers "
        f"{found['transformers']}\n"
        f"Greedy, batch 1, a prompt of {found['prompt_tokens']} tokens; medians of "
        f"{found['repeats']} interleaved repeats; outputs verified first."
    )


def new_table(first: str, headers: Sequence[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for header in headers:
        table.add_column(header, justify="right", no_wrap=True)
    return table


def show_rows(console: Console, rows: list[Row], ties: dict[tuple[str, str], str]) -> None:
    headers = "tok/s", "min-max", "TTFT ms", "TPOT ms", "computed", "KV MB", "speed-up", "MBU"
    table = new_table("", headers)
    workload = None
    for row in rows:
        if row["workload"] != workload:
            workload = row["workload"]
            table.add_section()
            table.add_row(workload, style="bold")
        table.add_row(
            row["technique"] + (" ~" if (workload, row["technique"]) in ties else ""),
            f"{row['tok_per_s']:,.1f}",
            f"{row['tok_per_s_min']:,.1f}-{row['tok_per_s_max']:,.1f}",
            f"{row['ttft_s'] * 1e3:,.1f}",
            f"{row['tpot_s'] * 1e3:,.2f}" if row["tpot_s"] else "-",
            f"{row['tokens_computed']:,}",
            f"{row['kv_bytes'] / 1e6:,.2f}",
            f"{row['speedup']:,.1f}x" if row["speedup"] else "-",
            (f"{row['mbu']:.0%}" if row["mbu"] else "-") + "*" * row["weights_fit_in_cache"],
        )
    console.print(table)
    for tie in ties.values():
        console.print(f"~ {tie}")
    if any(row["weights_fit_in_cache"] for row in rows):
        console.print(
            "* The weights fit in the processor's cache, so memory need not be read at every step: "
            "MBU says little here and may pass 100%."
        )


def show_words(console: Console, names: list[str], prepared: dict[str, Prepared]) -> None:
    for name in names:
        console.print(f"{name:<15}{prepared[name].about}")
    console.print(
        "\nTTFT: time to the first token. TPOT: time for each one after it. Computed: tokens that "
        "went through the model. KV: keys and values held at the end. MBU: the share of the "
        "measured memory bandwidth that reading weights and KV cache once a step takes up."
    )


def show_growth(console: Console, powers: dict[str, dict[str, float]], lengths: list[int]) -> None:
    *_, last_but_one, last = lengths
    table = new_table(
        "cost grows with new tokens to the power",
        [f"time, {lengths[0]} to {last}", f"time, {last_but_one} to {last}", "computed"],
    )
    for name, found in powers.items():
        table.add_row(name, *(f"{value:.2f}" for value in found.values()))
    console.print(table)
    console.print(
        "1 is linear, 2 quadratic, fitted to the rows above. The prompt and the fixed cost of a "
        "step count at every length, so short texts fit below the power that long ones tend to."
    )


def plot(path: Path, rows: list[Row], results: Results) -> None:
    """Total time against new tokens, and every step of the longest workload."""
    import matplotlib

    matplotlib.use("Agg")  # a file is drawn; no display is needed
    from matplotlib import pyplot
    from matplotlib.ticker import LogLocator

    figure, (total, step) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    longest = rows[-1]["workload"]
    for name, own in by_technique(rows).items():
        style: dict[str, Any] = {"label": name, "linestyle": "--" if name.startswith("hf") else "-"}
        lengths = [row["new_tokens"] for row in own]
        total.plot(lengths, [row["total_s"] for row in own], marker="o", **style)
        times = torch.tensor([run.token_times for run in results[longest, name]]) * 1e3
        steps = times.diff(dim=1).median(dim=0).values
        step.plot(range(2, len(steps) + 2), steps, linewidth=1.2, **style)
    total.set(xscale="log", yscale="log", xlabel="new tokens", ylabel="seconds", title="Total time")
    total.set_xticks(lengths, [str(length) for length in lengths], minor=False)
    total.set_xticks([], minor=True)
    total.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    total.yaxis.set_major_formatter("{x:g}")
    total.yaxis.set_minor_formatter("")
    total.legend(frameon=False)
    step.set(xlabel="new token", ylabel="milliseconds", title=f"Each step of {longest}")
    step.set_ylim(bottom=0)
    for axes in (total, step):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="0.92")
    figure.savefig(path, format="png", dpi=150)
    pyplot.close(figure)


# ------------------------------------------------------------------------------ the command line


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One sentence, without the usage that would bury it."""
        self.exit(2, f"{self.prog}: {message}\n")


def whole_number(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 up.")
    return int(text)


def length_list(text: str) -> list[int]:
    return sorted({whole_number(part) for part in text.split(",")})


def technique_list(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in TECHNIQUES:
            near = difflib.get_close_matches(name, TECHNIQUES, n=1)
            meant = f" Did you mean {near[0]!r}?" if near else ""
            raise argparse.ArgumentTypeError(
                f"there is no technique {name!r}.{meant} There are {', '.join(TECHNIQUES)}."
            )
    return names


def thread_count(text: str) -> int:
    threads, cores = whole_number(text), os.cpu_count() or 1
    if threads > cores:
        raise argparse.ArgumentTypeError(f"{threads} is too many: this machine has {cores} cores.")
    return threads


def usable_device(text: str) -> torch.device:
    try:
        device = torch.device(text)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:  # a torch built without CUDA asserts
        found = torch.accelerator.current_accelerator(check_available=True)
        usable = f"cpu or {found.type}" if found else "cpu"
        raise argparse.ArgumentTypeError(
            f"torch cannot use a device {text!r} here. Take {usable}."
        ) from error
    return device


def writable_file(text: str) -> Path:
    path = Path(text)
    target = path if path.exists() else path.parent
    if path.is_dir() or not target.exists() or not os.access(target, os.W_OK):
        raise argparse.ArgumentTypeError(
            f"{text} cannot be written. Name a file in a folder that exists and is yours to write."
        )
    return path


def plot_file(text: str) -> Path:
    if importlib.util.find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError("it needs matplotlib: pip install matplotlib.")
    return writable_file(text)


def new_parser() -> Parser:
    parser = Parser(
        prog="timed_generate.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", default="fable", help="a shipped model, a folder, or a GPT-2 of the hub (fable)")
    add("--tokens", type=length_list, default=[16, 64, 256], help="new tokens (16,64,256)")
    add("--techniques", type=technique_list, default=DEFAULT, help=f"of {','.join(TECHNIQUES)}")
    add("--mine", action="store_true", help="add your own code, as the labs' checks kept it")
    add("--device", type=usable_device, default=torch.device("cpu"), help="cpu, cuda, mps (cpu)")
    add("--threads", type=thread_count, help="processor threads (torch's own choice)")
    add("--repeats", type=whole_number, default=3, help="timed runs of each technique (3)")
    add("--json", type=writable_file, metavar="FILE", help="write the last line there, too")
    add("--plot", type=plot_file, metavar="FILE", help="draw the times there, as PNG")
    return parser


def new_workloads(folder: Path, lengths: list[int], device: torch.device) -> list[Workload]:
    """One prompt, continued by each length. Raises ValueError where the context is too short."""
    n_positions = read_config(folder).n_positions
    try:
        input_ids = load_tokenizer(folder)(PROMPT, return_tensors="pt").input_ids.to(device)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{folder} has no tokenizer: copy the model's tokenizer files there."
        ) from error
    room = n_positions - input_ids.shape[1]
    if lengths[-1] > room:
        raise ValueError(
            f"--tokens {lengths[-1]} is too long: this model's context of {n_positions} has room "
            f"for {room} behind the prompt of {input_ids.shape[1]} tokens."
        )
    return [Workload(f"{n} new tokens", input_ids, n) for n in lengths]


def main(argv: Sequence[str] | None = None) -> None:
    parser = new_parser()
    args = parser.parse_args(argv)
    names = list(dict.fromkeys([*args.techniques, *["mine"][: args.mine]]))
    if args.threads:
        torch.set_num_threads(args.threads)
    try:
        folder = find_checkpoint(args.model)
        workloads = new_workloads(folder, args.tokens, args.device)
        needed = dict.fromkeys(["naive", *names])
        prepared = {name: TECHNIQUES[name](folder, args.device) for name in needed}
    except ValueError as error:
        parser.error(str(error))

    width = None if sys.stdout.isatty() else 100
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    prompt_tokens = workloads[0].input_ids.shape[1]
    found = environment(args, prompt_tokens, prepared["naive"].weight_bytes)
    show_environment(console, found)
    results, ties = measure(workloads, prepared, names, args.repeats)
    rows = [
        new_row(workload, name, results[workload.name, name], prepared[name].weight_bytes, found)
        for workload in workloads
        for name in names
    ]
    add_speedups(rows)
    powers = growth(rows)

    show_rows(console, rows, ties)
    show_words(console, names, prepared)
    if powers:
        show_growth(console, powers, args.tokens)
    if args.plot:
        plot(args.plot, rows, results)
    line = json.dumps({"rows": rows, "environment": found, "growth": powers})
    if args.json:
        args.json.write_text(line + "\n")
    print(line)


if __name__ == "__main__":
    main()
