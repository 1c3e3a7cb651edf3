"""Lab 21, given: the kernel of a model, and the threads that run it together."""

import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64
from torch import Tensor

from solutions.compiled.steps import Room, Rows, Shape, step
from solutions.compiled.weights import Weights, weights_of
from solutions.compiler import announced

NEW = 0.1  # what the newest time weighs in a mean
PAUSES = 16, 512  # steps between two trials of the slower way: the fewest, and the most


class Trials:
    """Which of two ways is the faster one: both are timed while they serve.

    The slower one is tried again after a pause, which doubles while it stays the slower one.
    """

    def __init__(self) -> None:
        self.seconds: dict[bool, float] = {}
        self.pause = self.left = PAUSES[0]

    @property
    def best(self) -> bool:
        return min(self.seconds, key=self.seconds.__getitem__)

    def choose(self) -> bool:
        """Return the way that comes next."""
        if len(self.seconds) < 2:
            return not self.seconds
        self.left -= 1
        return self.best if self.left else not self.best

    def note(self, way: bool, seconds: float) -> None:
        """Remember how long a way took."""
        is_trial, before = not self.left, self.seconds.get(way, seconds)
        self.seconds[way] = seconds if is_trial else before + NEW * (seconds - before)
        if is_trial:
            self.pause = PAUSES[0] if self.best == way else min(2 * self.pause, PAUSES[1])
            self.left = self.pause


class Kernel:
    """Computes steps of a model on a paged pool.

    threads: at most; on a busy machine, where the others cost more than they help, one thread
    computes a step alone. The bits of a result don't depend on it. step: all of a step's work.
    """

    def __init__(
        self,
        model: Any,
        pool: Float32[Tensor, "2 layers blocks block_size heads head_dim"],
        threads: int = 1,
        weights: Weights | None = None,
        step: Callable[..., None] = step,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        config = model.config
        self.pool, self.weights = pool.flatten(-2).numpy(), weights or weights_of(model)
        is_gpt2 = self.weights.is_gpt2
        eps = config.layer_norm_epsilon if is_gpt2 else config.rms_norm_eps
        group = getattr(config, "group", 1)
        self.shape = Shape(config.n_head, group, config.head_dim, np.float32(eps), is_gpt2)
        self.others = ThreadPoolExecutor(max(1, threads - 1), thread_name_prefix="kernel")
        self.running: list[Future[None] | None] = [None] * (threads - 1)
        self.trials: dict[int, Trials] = defaultdict(Trials)  # by the number of rows
        self.step, self.clock = step, clock

    def __call__(
        self,
        ids: Int64[np.ndarray, " rows"],
        positions: Int64[np.ndarray, " rows"],
        tables: Int64[np.ndarray, "rows width"],
        wanted: Int64[np.ndarray, " wanted"],
    ) -> tuple[Float32[np.ndarray, "rows n_embd"], Float32[np.ndarray, "wanted vocab"]]:
        """Return the last hidden states of all rows, and the logits of the wanted ones."""
        angles = positions[:, None].astype(np.float32) * self.weights.radians
        rows = Rows(ids, positions, np.cos(angles), np.sin(angles), tables, wanted)
        # Fresh: a thread that comes late to a step must find its own step's memory, long over.
        room = self.room(len(ids), len(wanted))
        counters = np.zeros((2, 4 * len(self.weights.norms) + 2), np.int64)
        given = counters, rows, self.pool, self.shape, self.weights, room
        if not self.running:
            self.step(*given)
            return room.last, room.logits
        trials = self.trials[len(ids)]
        together, start = trials.choose(), self.clock()
        if together:
            self.wake(given)
        self.step(*given)
        trials.note(together, self.clock() - start)
        return room.last, room.logits

    def compile(self) -> None:
        """Compile the step, or fetch it from the disk, before anybody waits for it.

        The pool's first slot is written, so no request may be in it yet.
        """
        one = np.zeros(1, np.int64)
        with announced():
            self(one, one, one[None], one)
        self.trials.clear()

    def wake(self, given: tuple[Any, ...]) -> None:
        """Let the other threads join a step, except those that haven't begun an earlier one.

        One that has computed its part of the last step can't say so while this thread runs Python.
        """
        for i, other in enumerate(self.running):
            if other is None or other.running() or other.done():
                self.running[i] = self.others.submit(self.step, *given)

    def room(self, rows: int, wanted: int) -> Room:
        w = self.weights
        n_qkv, n_inner, vocab = (each.bias.shape[1] for each in (w.c_attn, w.c_fc, w.head))
        n_gates = 0 if w.gate is None else n_inner
        n_embd, n_mixed = w.wte.weight.shape[2], self.shape.heads * self.shape.group
        widths = n_embd, n_qkv, n_mixed * self.shape.head_dim, n_gates, n_inner, n_embd
        shapes = *((rows, width) for width in widths), (wanted, vocab)
        return Room(*(np.empty(shape, np.float32) for shape in shapes))
