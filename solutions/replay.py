"""Lab 22: record once, replay often. What CUDA graphs and torch.compile do, and equal bits.

The host launches a step's operations one by one, and each launch costs time. A graph is a list of
operations on fixed memory, recorded once and sent as one launch. Its sizes are fixed, so batches
are padded. Compiled code is guarded: it is used again while what it was made for still holds.

Sources: NVIDIA, "CUDA C++ programming guide", on CUDA graphs; Ansel et al., "PyTorch 2", ASPLOS
2024 (guards); He et al., "Defeating nondeterminism in LLM inference", Thinking Machines 2025 (spans
of a fixed size).
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from solutions.flash_attention import Part, merge
from solutions.recorded.recorder import Recorder

# ------------------------------------------------------------------------- recorded and replayed


class Operation(NamedTuple):
    """One recorded operation.

    function(*inputs) computes its results anew and returns them, as a list. results: the memory
    where they belong, because later operations read them there.
    """

    function: Callable[..., list[Tensor]]
    inputs: Sequence[Any]
    results: list[Tensor]


class Graph:
    """A list of operations on fixed memory. out: the memory of what the recorded function returned.

    device: counts `launches`.
    """

    def __init__(self, device: Any, operations: Sequence[Operation], out: Tensor) -> None:
        self.device, self.operations, self.out = device, operations, out

    def replay(self) -> Tensor:
        """Run all operations again, in order, on what is in their memory now; return `out`.

        Results go into the memory of the recorded ones. All of it is a single launch.
        """
        ### BEGIN SOLUTION
        self.device.launches += 1
        for operation in self.operations:
            fresh = operation.function(*operation.inputs)
            for memory, numbers in zip(operation.results, fresh, strict=True):
                memory.copy_(numbers)
        return self.out
        ### END SOLUTION


class Device:
    """Records functions. kind: where static memory is. launches: of all graphs together."""

    def __init__(self, kind: str = "cpu") -> None:
        self.kind, self.launches = kind, 0

    def capture(self, function: Callable[[], Tensor]) -> Graph:
        """Run a function, and return the graph of its operations."""
        with Recorder(is_capturing=True) as recorder:
            out = function()
        return Graph(self, [Operation(*each) for each in recorder.recorded], out)


# ------------------------------------------------------------------------- graphs of some sizes


def ladder(most: int) -> list[int]:
    """Return the batch sizes to record: 1, 2, 4, then every 8, and `most` itself. Ascending."""
    ### BEGIN SOLUTION
    return [size for size in (1, 2, 4, *range(8, most, 8)) if size < most] + [most]
    ### END SOLUTION


def rows_computed(batches: Sequence[int], sizes: Sequence[int]) -> int:
    """Count the rows that are computed for batches of so many rows, with graphs of these sizes.

    A batch takes the smallest size that has room for it. Where there is none, it runs without a
    graph, and isn't padded. sizes: ascending.
    """
    ### BEGIN SOLUTION
    return sum(next((size for size in sizes if size >= rows), rows) for rows in batches)
    ### END SOLUTION


Step = Callable[[Tensor, Tensor, Tensor], Tensor]  # ids, positions, tables


class Graphs:
    """A decode step, recorded for some numbers of rows, over memory that all sizes share.

    step(ids, positions, tables) returns the last hidden states of its rows: each row writes the
    keys and values of its token into the pool, and attends by its block table. sizes: the numbers
    of rows. width: the blocks of the longest text. scratch: a block that no request has.
    """

    def __init__(
        self, device: Any, step: Step, sizes: Sequence[int], width: int, scratch: int
    ) -> None:
        self.sizes, self.scratch = sorted(sizes), scratch
        most = self.sizes[-1]
        self.ids = torch.zeros(most, dtype=torch.int64, device=device.kind)
        self.positions = torch.zeros_like(self.ids)
        self.tables = self.ids.new_full((most, width), scratch)
        self.graphs = {}
        for size in reversed(self.sizes):  # the largest first: on a GPU, others reuse its memory
            rows = self.ids[:size], self.positions[:size], self.tables[:size]
            self.graphs[size] = device.capture(partial(step, *rows))

    def run(
        self,
        ids: Int[Tensor, " rows"],
        positions: Int[Tensor, " rows"],
        tables: Int[Tensor, "rows blocks"],
    ) -> Float[Tensor, "rows n_embd"] | None:
        """Replay the step for these rows in the smallest graph that has room; return their states.

        The graph reads `self.ids`, `self.positions` and `self.tables`. Its rows after the last of
        these are pads, and write into the scratch block only. `tables` may have fewer blocks than
        `self.tables`; what is in the others isn't used. The result is a copy, so it stays as it is.
        Returns None, and replays nothing, for more rows than the largest size has.
        """
        ### BEGIN SOLUTION
        rows = len(ids)
        if rows > self.sizes[-1]:
            return None
        size = self.sizes[bisect_left(self.sizes, rows)]
        self.ids[:rows], self.positions[:rows] = ids, positions
        self.tables[:rows, : tables.shape[1]] = tables
        self.tables[rows:size] = self.scratch
        return self.graphs[size].replay()[:rows].clone()
        ### END SOLUTION


# ---------------------------------------------------------------------------- code under guards

Guards = Sequence[Callable[..., bool]]


class Guarded:
    """A function whose code is made for arguments that were seen, and kept for others like them.

    trace(*args) returns guards and code: the code gives the function's result for all arguments for
    which each guard(*args) is true. eager(*args) is the function itself. limit: how many codes are
    kept, at most.
    """

    def __init__(
        self,
        trace: Callable[..., tuple[Guards, Callable[..., Any]]],
        eager: Callable[..., Any],
        limit: int = 8,
    ) -> None:
        self.trace, self.eager, self.limit = trace, eager, limit
        self.kept: list[tuple[Guards, Callable[..., Any]]] = []

    def run(self, *args: Any) -> Any:
        """Return the function's result, by the first kept code whose guards all hold.

        If there is none, trace the arguments, keep what comes of it at the end of `kept`, and run
        that code. If `limit` codes are kept already, take `eager` instead.
        """
        ### BEGIN SOLUTION
        for guards, code in self.kept:
            if all(guard(*args) for guard in guards):
                return code(*args)
        if len(self.kept) >= self.limit:
            return self.eager(*args)
        guards, code = self.trace(*args)
        self.kept.append((guards, code))
        return code(*args)
        ### END SOLUTION


# ------------------------------------------------------------------------ the same bits in a split

Task = Callable[[], Part]


def in_spans(
    worker: Callable[[int, int], Part],
    length: int,
    span: int,
    run: Callable[[Sequence[Task]], Iterable[tuple[int, Part]]],
) -> Part:
    """Attend with one query to `length` keys, in spans of `span` keys; return output and lse.

    `worker(first, last)` attends to the keys from `first` up to, but not including, `last`. The
    last span may be shorter. `run(tasks)` runs functions without arguments, in any order, and
    yields for each its place in the list and its result, as they end. Merge the parts in the order
    of the text, so that the bits don't depend on the order in which they end.
    """
    ### BEGIN SOLUTION
    starts = range(0, length, span)
    tasks = [partial(worker, first, min(first + span, length)) for first in starts]
    found = dict(run(tasks))
    outputs, lses = zip(*(found[place] for place in range(len(tasks))), strict=True)
    return merge(torch.stack(outputs), torch.stack(lses))
    ### END SOLUTION
