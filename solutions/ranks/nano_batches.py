"""Lab 18, given: what a model's layers take on a GPU, and nano-batches on a real wire."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gpt import GPTLMHead

Operation = tuple[str, float]  # the resource that it keeps busy, and for how long


class Run(NamedTuple):
    """Operation number `step` of a nano-batch, and when it ran on its resource."""

    batch: int
    step: int
    resource: str
    start: float
    end: float


@dataclass(frozen=True)
class Shape:
    """A model of `layers` equal layers on `ranks` tensor-parallel ranks.

    width: of the hidden states; inner: of the gated MLP; kv_width: of keys, and of values;
    itemsize: bytes per number.
    """

    layers: int
    width: int
    inner: int
    kv_width: int
    ranks: int
    itemsize: int = 2


@dataclass(frozen=True)
class Machine:
    """What each rank computes (FLOPs per second), reads from its memory and sends (bytes per
    second). alpha: seconds per call."""

    flops: float
    bandwidth: float
    wire: float
    alpha: float


def operations(
    requests: Sequence[tuple[int, int]], shape: Shape, machine: Machine
) -> list[Operation]:
    """Return what a forward pass does on a rank, in order: six operations a layer.

    requests: the new tokens of each, and its tokens with those in the cache. A product takes as
    long as its arithmetic or as reading its weights, whichever is longer. Each half of a split
    batch reads the weights again.
    """
    tokens, number = sum(new for new, _ in requests), shape.itemsize

    def product(rows: int, columns: int) -> Operation:
        weights = rows * columns / shape.ranks
        seconds = max(2 * tokens * weights / machine.flops, weights * number / machine.bandwidth)
        return "compute", seconds

    cached = sum(2 * context * shape.kv_width * number for _, context in requests) / shape.ranks
    pairs = sum(new * (context - new) + new * (new + 1) / 2 for new, context in requests)
    reading = cached / machine.bandwidth
    computing = 4 * pairs * shape.width / shape.ranks / machine.flops
    attention = ("memory", reading) if reading >= computing else ("compute", computing)
    sent = 2 * (shape.ranks - 1) / shape.ranks * tokens * shape.width * number
    reduce = ("network", machine.alpha + sent / machine.wire)
    return shape.layers * [
        product(shape.width, shape.width + 2 * shape.kv_width),
        attention,
        product(shape.width, shape.width),
        reduce,
        product(shape.width, 3 * shape.inner),
        reduce,
    ]


# ------------------------------------------------------------------------------------ a real run


class WaitingWire:
    """Carries one message at a time. Its sender waits, as on a network, and computes nothing.

    seconds: how long a message takes, by its bytes.
    """

    def __init__(self, seconds: Callable[[int], float]) -> None:
        self.seconds, self.lock = seconds, threading.Lock()

    def carry(self, x: Tensor) -> None:
        with self.lock:
            time.sleep(self.seconds(x.nbytes))


def run_parts(
    model: GPTLMHead, parts: Sequence[Int[Tensor, "batch seq"]], wire: WaitingWire
) -> tuple[list[Float[Tensor, "batch seq n_embd"]], float]:
    """Run a forward pass over each nano-batch in a thread of its own; return them and the seconds.

    After each attention and each MLP the hidden states go over the wire, as they do with tensor
    parallelism. One nano-batch computes at a time: two threads on two cores would be two machines.
    """
    processor, gpt = threading.Lock(), model.transformer
    blocks: list[Any] = list(gpt.h)

    def forward(ids: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq n_embd"]:
        with torch.inference_mode():
            x = gpt.embed(ids, torch.arange(ids.shape[1]).expand_as(ids))
            for block in blocks:
                for norm, layer in ((block.ln_1, block.attn), (block.ln_2, block.mlp)):
                    with processor:
                        x = x + layer(norm(x))
                    wire.carry(x)
            return x

    with ThreadPoolExecutor(len(parts)) as threads:
        start = time.perf_counter()
        results = list(threads.map(forward, parts))
    return results, time.perf_counter() - start
