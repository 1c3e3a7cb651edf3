"""The engine's matrix products, each made in the way that is the fastest on this machine.

A step with one token reads every weight to use it once; a step with many tokens computes. PyTorch
brings several ways to multiply, and no rule says which is the fastest for how many rows: on another
processor it is another one. So they are measured, as cuDNN and Triton do it: each way multiplies by
the weights of the model, for a few numbers of rows. That takes about a second, once for each kind
of model, processor and number of threads: files in the user's cache folder keep the times.

Another way to multiply by floats is one more entry of WAYS. Weights of another kind, as codes, are
a layer of their own, whose `product` returns how they are multiplied.
"""

import json
import math
import os
import platform
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from platformdirs import user_cache_path
from torch import Tensor

import gpt

SIZES = 1, 2, 4, 8, 16, 64, 256  # rows; each choice holds up to the next size
ROUNDS = 3  # of which the shortest counts: other programs only ever add time
PARTS = 4  # into which a weight is split
ENOUGH = 64 * 2**20  # bytes of weights: more than caches hold
LARGE = 16 * 2**20  # bytes of one weight, of which no more are timed
LONG = 0.2  # seconds, after which a way isn't timed again
PATIENCE = 6.0  # seconds for all of it, which takes less than one for the shipped model
TOLERANCE = 1e-4  # relative to the largest number of a product, in float32
KEPT = user_cache_path("inference-workbook") / "products"

Weight = Float[Tensor, "n_out n_in"]
Bias = Float[Tensor, " n_out"] | None
Product = Callable[[Float[Tensor, "rows n_in"]], Float[Tensor, "rows n_out"]]
Choice = tuple[str, ...]  # the name of a way, for each size
Times = dict[str, list[float]]  # for each way the seconds of a step's products, by size

# ----------------------------------------------------------------------------- the ways to multiply


def by_linear(weight: Weight, bias: Bias) -> Product:
    """F.linear, on the weights as they lie: for float32 on a CPU that is MKL."""
    return lambda hidden: F.linear(hidden, weight, bias)


def by_rows(weight: Weight, bias: Bias) -> Product:
    """F.linear on a copy in which the weights of one output lie together."""
    return by_linear(weight.contiguous(), bias)


def by_parts(weight: Weight, bias: Bias) -> Product:
    """A batched product with parts of the weight, which all threads read at the same time."""
    count = math.gcd(PARTS, len(weight))
    parts = weight.contiguous().unflatten(0, (count, -1))
    added = (weight.new_zeros(len(weight)) if bias is None else bias).view(count, -1, 1)

    def product(hidden: Float[Tensor, "rows n_in"]) -> Float[Tensor, "rows n_out"]:
        # Of one row the stride may be anything, and of most strides the product takes a slow way.
        rows = hidden.flatten().view(hidden.shape)
        columns = torch.baddbmm(added, parts, rows.T.expand(count, -1, -1))
        return columns.flatten(0, 1).T.contiguous()

    return product


def by_onednn(weight: Weight, bias: Bias) -> Product:
    """oneDNN, PyTorch's other library for products."""
    rows = weight.contiguous()
    return lambda hidden: onednn(hidden, rows, bias)


def by_packed_onednn(weight: Weight, bias: Bias) -> Product:
    """oneDNN, on a copy of the weights in an order of its own."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous())
    return lambda hidden: onednn(hidden, packed, bias)


def onednn(hidden: Tensor, weight: Tensor, bias: Bias) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(hidden, weight, bias, "none", [], "")


WAYS: dict[str, Callable[[Weight, Bias], Product]] = {
    "F.linear": by_linear,
    "F.linear, rows": by_rows,
    "parts": by_parts,
    "oneDNN": by_onednn,
    "oneDNN, packed": by_packed_onednn,
}
USUAL: Choice = ("F.linear",) * len(SIZES)


class Linear:
    """F.linear, with the way that was chosen for the number of rows."""

    def __init__(self, weight: Weight, bias: Bias = None, choice: Choice = USUAL) -> None:
        made = {way: WAYS[way](weight, bias) for way in set(choice)}
        self.products = [made[way] for way in choice]

    def __call__(self, hidden: Float[Tensor, "rows n_in"]) -> Float[Tensor, "rows n_out"]:
        return self.products[max(bisect_right(SIZES, hidden.shape[0]) - 1, 0)](hidden)


# ------------------------------------------------------------------------------------ the choice


class Products:
    """How engines multiply: always in one way, or in the way that is the fastest for each size.

    way: what is always taken, so that results don't vary; None: all ways are timed. folder: where
    later processes find the times.
    """

    def __init__(self, way: str | None = None, folder: Path = KEPT) -> None:
        self.way, self.folder = way, folder
        self.known: dict[str, Times | None] = {}  # by the kind of weights

    def choice_for(self, weights: Sequence[Weight]) -> Choice:
        """Return the fastest way for each size; where nothing is timed, the same for all sizes."""
        times = self.times_of(weights)
        if times is None:
            return (self.way or "F.linear",) * len(SIZES)
        return tuple(min(times, key=lambda way: times[way][i]) for i in range(len(SIZES)))

    def times_of(self, weights: Sequence[Weight]) -> Times | None:
        """Return the times of all ways for these weights: known here, from the file, or measured.

        None on a GPU, for other dtypes than float32, on a busy machine, for no weights, and if one
        way is asked for.
        """
        are_usual = all(w.device.type == "cpu" and w.dtype == torch.float32 for w in weights)
        if self.way or not weights or not are_usual:
            return None
        kind = kind_of(weights)
        if kind not in self.known:
            self.known[kind] = kept_or(lambda: measured(weights), kind, self.folder, is_whole)
        return self.known[kind]


# Those of engines that aren't given any. The variable is for processes that are started by others.
PRODUCTS = Products(os.environ.get("PRODUCTS"))


def weights_of(model: gpt.GPTLMHead) -> list[Float[Tensor, "n_out n_in"]]:
    """Return the weights of layers, then of the LM head, without those with their own product."""
    layers = [m for m in model.modules() if isinstance(m, gpt.Linear) and not hasattr(m, "product")]
    head = [] if hasattr(model, "lm_head") else [head_of(model)]
    return [*(layer.weight.T for layer in layers), *head]


def head_of(model: Any) -> Float[Tensor, "vocab n_embd"]:
    """Return what the LM head scores with: the token embeddings, if it has no weight of its own."""
    return getattr(model, "head_weight", model.transformer.wte.weight)


def in_words(choice: Choice) -> str:
    """Say a choice in words: "parts from 1, oneDNN from 2 rows on"."""
    if len(set(choice)) == 1:
        return choice[0]
    starts = [i for i in range(len(SIZES)) if i == 0 or choice[i] != choice[i - 1]]
    return ", ".join(f"{choice[i]} from {SIZES[i]}" for i in starts) + " rows on"


choice_for, times_of, told = PRODUCTS.choice_for, PRODUCTS.times_of, in_words  # for lab 7's lesson

# ---------------------------------------------------------------------------------- the measuring


@torch.inference_mode()
def measured(weights: Sequence[Weight]) -> Times | None:
    """Time each way that multiplies as F.linear does; a way that isn't there is left out.

    The ways take turns, so that a slow moment of the machine affects all of them. None if it takes
    too long: the machine is busy, and the times would say nothing.
    """
    end = time.perf_counter() + PATIENCE
    weights = [weight.detach() for weight in enough_of(weights)]
    of_each_shape = {weight.shape: i for i, weight in enumerate(weights)}.values()
    made: dict[str, list[Product]] = {}
    for name, way in WAYS.items():
        with suppress(Exception):  # of whatever kind: then this machine doesn't have this way
            made[name] = [way(weight, None) for weight in weights]
    times: Times = {name: [] for name in made}
    generator = torch.Generator().manual_seed(0)  # its own, so no seed is used up
    for size in SIZES:
        inputs = [torch.randn(size, weight.shape[1], generator=generator) for weight in weights]
        usual = made["F.linear"]
        made = {
            name: linears
            for name, linears in made.items()
            if all(agree(linears[i], usual[i], inputs[i]) for i in of_each_shape)
        }
        seconds: dict[str, list[float]] = {name: [] for name in made}
        for _, name in product(range(ROUNDS), made):
            if sum(seconds[name]) < LONG:
                seconds[name].append(seconds_of(made[name], inputs))
            if time.perf_counter() > end:
                return None
        for name in made:
            times[name].append(min(seconds[name]))
    return {name: times[name] for name in made}


def enough_of(weights: Sequence[Weight]) -> list[Weight]:
    """Return as many weights as no cache holds, and one of each shape; of a large one, a slice."""
    enough: list[Weight] = []
    shapes: set[torch.Size] = set()
    for weight in weights:
        if weight.shape not in shapes or sum(one.nbytes for one in enough) < ENOUGH:
            shapes.add(weight.shape)
            enough.append(weight[: max(1, LARGE // weight[0].nbytes)])
    return enough


def agree(way: Product, usual: Product, hidden: Tensor) -> bool:
    """Whether a product is F.linear's, up to rounding. One that raises an error is not."""
    with suppress(Exception):
        multiplied, wanted = way(hidden), usual(hidden)
        most = TOLERANCE * float(wanted.abs().max())
        return float((multiplied - wanted).abs().max()) <= most
    return False


def seconds_of(products: list[Product], inputs: list[Tensor]) -> float:
    """Time all products, one after the other as in a step."""
    start = time.perf_counter()
    for multiply, hidden in zip(products, inputs, strict=True):
        multiply(hidden)
    return time.perf_counter() - start


# --------------------------------------------------------------------------------------- the file


def kind_of(weights: Sequence[Weight]) -> str:
    """Return what the times depend on: processor, threads, PyTorch's version, shapes of weights."""
    shapes = Counter(f"{n_out}x{n_in}" for n_out, n_in in (weight.shape for weight in weights))
    counts = ", ".join(f"{count} of {shape}" for shape, count in sorted(shapes.items()))
    threads = torch.get_num_threads()
    return f"{processor()}; threads: {threads}; torch {torch.__version__}; weights: {counts}"


def processor() -> str:
    """Return the processor's name, as far as the system tells it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def kept_or(
    measure: Callable[[], Times | None],
    kind: str,
    folder: Path,
    are_usable: Callable[[Times], bool] = bool,
) -> Times | None:
    """Return the times of this kind that the folder keeps, or measure them and keep them there."""
    file = file_of(kind, folder)
    times = read_times(file, kind)
    if times is None or not are_usable(times):
        times = measure()
        write_times(file, kind, times)
    return times


def file_of(kind: str, folder: Path) -> Path:
    return folder / f"{sha256(kind.encode()).hexdigest()[:16]}.json"


def read_times(file: Path, kind: str) -> Times | None:
    """Return the times that were kept for this kind; None if there are none that can be read."""
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        kept_kind, kept_times = kept["kind"], kept["times"]
        times = {way: [float(seconds) for seconds in kept_times[way]] for way in kept_times}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return times if kept_kind == kind else None


def is_whole(times: Times) -> bool:
    each = all(way in WAYS and len(times[way]) == len(SIZES) for way in times)
    return each and "F.linear" in times


def write_times(file: Path, kind: str, times: Times | None) -> None:
    """Keep the times; where nothing can be written, the next process measures again."""
    if times is None:
        return
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(f".{os.getpid()}")  # whoever reads meanwhile finds a whole file
        new.write_text(json.dumps({"kind": kind, "times": times}), encoding="utf-8")
        new.replace(file)
