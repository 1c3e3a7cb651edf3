"""What lab 10's kernels win in decode and lose in prefill, for fable and for single matrices.

    python -m timing.int8 [--threads 1]

First fable in lab 2's loop: a decode step of one request and of eight, and the prefill of one
prompt, with matrices in float32, 8 bits and 4 bits, then also with embedding and head in 8 bits.
Then one row times a matrix, in fable's shapes and in GPT-2's. The entries of a row take turns; each
figure is the median.
"""

import argparse
import copy
from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt import Linear
from solutions.kv_cache import CachedLMHead, KVCache
from solutions.quantization import int4_layer, int8_layer, quantized
from solutions.quantized_model import matrices
from timing.cores import usable_cores
from timing.machine import processor_name
from timing.stopwatch import median_seconds_of
from timing.threads import parse_with_threads
from timing.work import weight_bytes

MODEL = "fable"
CACHED, PROMPT = 64, 256  # tokens before a decode step, and of a prefill
BATCHES = 1, 8
IN_A_ROW = 32  # decode steps or products that are timed together, as a server makes them
SHAPES = (256, 768), (256, 1024), (1024, 256), (256, 4096), (768, 2304), (768, 3072), (3072, 768)
LARGEST = 768, 50257  # GPT-2's head
COLUMNS_OF_INT4 = 16  # its kernel takes multiples of these

NewLayer = Callable[[Linear], nn.Module]
KERNELS: dict[str, NewLayer] = {"int8": int8_layer, "int4": int4_layer}


# ------------------------------------------------------------------------------- a whole model


def with_layers(model: CachedLMHead, new_layer: NewLayer) -> CachedLMHead:
    """Return a copy with other layers; embedding and head stay as they are."""
    copied = copy.deepcopy(model)
    for name, linear in matrices(copied).items():
        copied.set_submodule(name, new_layer(linear))
    return copied


def models(model: CachedLMHead) -> dict[str, CachedLMHead]:
    found = {"float32": model}
    found |= {name: with_layers(model, kernel) for name, kernel in KERNELS.items()}
    for name, kernel in KERNELS.items():
        found[f"{name}, head in int8"] = quantized(model, kernel)
    return found


def forward(model: CachedLMHead, batch: int, start: int, tokens: int) -> Callable[[], Tensor]:
    """Return a function that runs one forward pass of new tokens after `start` cached ones."""
    kv_cache = KVCache(model.config, batch, start + tokens)
    ids = torch.arange(tokens).expand(batch, -1)
    positions = torch.arange(start, start + tokens).expand(batch, -1)

    @torch.inference_mode()
    def run() -> Tensor:
        kv_cache.length = start
        return model(ids, positions, kv_cache)

    return run


def seconds_of_each(runs: Mapping[str, Callable[[], Tensor]]) -> dict[str, float]:
    """Return seconds per run, where each run finds in the caches what the last one read.

    Taking turns, each would push the weights of the others out.
    """

    def many(run: Callable[[], Tensor]) -> None:
        for _ in range(IN_A_ROW):
            run()

    found = median_seconds_of({name: partial(many, run) for name, run in runs.items()})
    return {name: seconds / IN_A_ROW for name, seconds in found.items()}


def times_of_forwards(made: Mapping[str, CachedLMHead]) -> dict[str, dict[str, float]]:
    """Return seconds by what is computed, and by model."""

    def runs(*shape: int) -> dict[str, Callable[[], Tensor]]:
        return {name: forward(model, *shape) for name, model in made.items()}

    found = {f"decode, batch of {n}": seconds_of_each(runs(n, CACHED, 1)) for n in BATCHES}
    return found | {f"prefill of {PROMPT}": median_seconds_of(runs(1, 0, PROMPT))}


# ------------------------------------------------------------------------------- one matrix


def times_of_products(n_in: int, n_out: int) -> dict[str, float]:
    """Time one row times a matrix, by F.linear and by each kernel that takes its shape."""
    layer = Linear(n_in, n_out).requires_grad_(False)
    row, transposed = torch.randn(1, n_in), layer.weight.T.contiguous()
    runs = {"F.linear": partial(F.linear, row, transposed, layer.bias)}
    for name, kernel in KERNELS.items():
        if name != "int4" or n_out % COLUMNS_OF_INT4 == 0:
            runs[name] = partial(kernel(layer), row)
    with torch.inference_mode():
        return seconds_of_each(runs)


# ------------------------------------------------------------------------------- what it says


def table(header: str, rows: Mapping[str, Mapping[str, float]], columns: list[str]) -> None:
    """Print milliseconds, and the speed-up over the first column."""
    print(f"\n| {header} | " + " | ".join(columns) + " |")
    print("|---|" + "---:|" * len(columns))
    for name, times in rows.items():
        first = times[columns[0]]
        cells = [
            f"{1e3 * times[c]:.3f}, {first / times[c]:.1f}x" if c in times else "-" for c in columns
        ]
        print(f"| {name} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(prog="timing.int8", description=__doc__)
    parse_with_threads(parser)
    print(
        f"{processor_name(torch.device('cpu'))}, cores: {usable_cores()}, threads: "
        f"{torch.get_num_threads()}, torch {torch.__version__}\n"
        "Milliseconds, medians of interleaved repeats, and times as fast as the first column"
    )
    made = models(CachedLMHead.from_pretrained(MODEL))
    sizes = {name: f"{weight_bytes(model) / 1e6:.1f}" for name, model in made.items()}
    table(f"{MODEL}, {CACHED} tokens cached", times_of_forwards(made), list(made))
    print("| MB of weights | " + " | ".join(sizes.values()) + " |")
    shapes = [*SHAPES, LARGEST]
    products = {f"{n_in} x {n_out}": times_of_products(n_in, n_out) for n_in, n_out in shapes}
    table("one row times", products, ["F.linear", *KERNELS])


if __name__ == "__main__":
    main()
