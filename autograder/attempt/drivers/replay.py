"""Drivers of lab 22: recorded programs, graphs over a pool of blocks, guards, spans of keys."""

from collections.abc import Callable, Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from autograder.attempt.lent import handle, opaque, sealed
from autograder.attempt.records import Attempt, Seen, one_call, things
from autograder.attempt.tensors import snapshot

# ------------------------------------------------------------------------- recorded and replayed


class Operation(NamedTuple):
    """As the notebook's own."""

    function: Callable[..., list[Tensor]]
    inputs: list[Tensor]
    results: list[Tensor]


def add_in_place(memory: Tensor, numbers: Tensor) -> list[Tensor]:
    memory += numbers
    return []


KINDS: dict[str, Callable[..., list[Tensor]]] = {
    "add": lambda one, other: [one + other],
    "twice": lambda numbers: [2 * numbers],
    "both": lambda one, other: [one + other, one - other],
    "in place": add_in_place,
}


def replay(
    attempt: Attempt,
    memory: Float[Tensor, "arrays n"],
    program: list[tuple[str, list[int], list[int]]],
    out: int,
    rounds: list[Float[Tensor, " n"]],
) -> list[Seen]:
    """Replay a program several times. memory: as recording has left it.

    program: kind, inputs and results of each operation, by their places in the memory. rounds: what
    is copied into the first array before each replay.
    """
    arrays, ran = list(memory.clone()), list[int]()

    def noted(number: int, kind: str) -> Callable[..., list[Tensor]]:
        def function(*inputs: Tensor) -> list[Tensor]:
            ran.append(number)
            return KINDS[kind](*inputs)

        return sealed(function)

    operations = [
        Operation(noted(number, kind), [arrays[i] for i in inputs], [arrays[i] for i in results])
        for number, (kind, inputs, results) in enumerate(program, start=1)
    ]
    device = SimpleNamespace(launches=0)
    graph, seen = attempt(device, operations, arrays[out]), list[Seen]()
    for number, numbers in enumerate(rounds, start=1):
        arrays[0].copy_(numbers)
        ran.clear()
        where = f"in replay {number}"
        found = graph.replay()
        seen.append(Seen("The list of operations that ran", list(ran), where))
        seen.append(Seen("What it returned", snapshot(found), where))
        seen.append(Seen("The memory of all operations", torch.stack(arrays), where))
        seen.append(Seen("`launches`", device.launches, f"after replay {number}"))
    return seen


ladder = one_call(__name__, "ladder", "What it returned", "most")
rows_computed = one_call(__name__, "rows_computed", "What it returned", "batches sizes")

# ------------------------------------------------------------------------- graphs over a pool


class Pool:
    """A device whose graphs are a tiny decode step: store each row's id, and add up its text.

    rows: that replays have computed.
    """

    kind = "cpu"

    def __init__(self, blocks: int, block_size: int) -> None:
        self.slots = torch.zeros(blocks, block_size, dtype=torch.float64)
        self.rows = 0
        self.last: tuple[Tensor, Tensor, Tensor] | None = None

    def step(self, ids: Tensor, positions: Tensor, tables: Tensor) -> Tensor:
        self.last = ids, positions, tables
        return torch.zeros(len(ids), 2, dtype=torch.float64)

    def capture(self, function: Callable[[], Tensor]) -> Any:
        out, memory = function(), self.last
        assert memory is not None, "The step isn't called while it is recorded."

        def replay(_: Any) -> Tensor:
            self.rows += len(out)
            self.compute(*memory, out)
            return out

        return opaque("Graph", (), replay=replay)

    def compute(self, ids: Tensor, positions: Tensor, tables: Tensor, out: Tensor) -> None:
        size = self.slots.shape[1]
        for row, place in enumerate(positions.tolist()):
            self.slots[tables[row, place // size], place % size] = ids[row].double()
        for row, place in enumerate(positions.tolist()):
            text = self.slots[tables[row]].flatten()[: place + 1]
            weights = torch.arange(1, len(text) + 1, dtype=torch.float64)
            out[row] = torch.stack([(text * weights).sum(), text[-1]])


def run(
    attempt: Attempt,
    texts: list[dict[str, Any]],
    blocks: int,
    block_size: int,
    sizes: list[int],
    scratch: int,
) -> list[Seen]:
    """Compute texts token by token. Each has its ids, its blocks, and the step in which it starts.

    What was returned is looked at again after all steps.
    """
    pool = Pool(blocks, block_size)
    width = max(len(text["blocks"]) for text in texts)
    graphs = attempt(handle(pool, "kind capture"), sealed(pool.step), sizes, width, scratch)
    pool.slots.zero_()
    others = [block for block in range(blocks) if block != scratch]
    kept, seen = list[tuple[Any, Any]](), list[Seen]()
    for step, given in enumerate(steps_of(texts, block_size), start=1):
        pool.rows, where = 0, f"in step {step}"
        before = [each.clone() for each in given]
        found = graphs.run(*given)
        same = all(map(torch.equal, given, before))
        seen.append(Seen("What it was given", "is as it was" if same else "has changed", where))
        told = f"computes {pool.rows} row{'' if pool.rows == 1 else 's'}" if pool.rows else "waits"
        seen.append(Seen("The device", told, where))
        seen.append(Seen("What it returned", snapshot(found), where))
        seen.append(Seen("All blocks but the scratch block", pool.slots[others], where))
        kept.append((found, snapshot(found)))
    for step, (found, before) in enumerate(kept, start=1):
        same = not isinstance(found, Tensor) or torch.equal(found, before)
        told = "is as it was" if same else "has changed with a later replay"
        seen.append(Seen("What it returned", told, f"in step {step}, after all steps,"))
    return seen


def steps_of(texts: list[dict[str, Any]], block_size: int) -> Iterator[tuple[Tensor, ...]]:
    """Yield ids, positions and tables of each step, as lab 21's `rows_of` makes them."""
    for step in count():
        rows = [(text, step - text["start"]) for text in texts]
        rows = [(text, place) for text, place in rows if 0 <= place < len(text["ids"])]
        if not rows:
            return
        tables = [text["blocks"][: place // block_size + 1] for text, place in rows]
        width = max(map(len, tables))
        yield (
            torch.tensor([text["ids"][place] for text, place in rows]),
            torch.tensor([place for _, place in rows]),
            torch.tensor([table + [0] * (width - len(table)) for table in tables]),
        )


# ---------------------------------------------------------------------------- code under guards


def guarded(attempt: Attempt, calls: list[tuple[str, int]], limit: int | None) -> list[Seen]:
    """Call a function with a kind and a number. Code that is made for both holds for this kind and
    for numbers that aren't smaller. limit: None takes the default.
    """
    traced, seen = list[str](), list[Seen]()

    def trace(kind: str, number: int) -> Any:
        traced.append(f"{kind}{number}")

        def code(*args: Any) -> str:
            return f"is of the code for {kind}{number}, run with {args[0]}{args[1]}"

        same_kind = sealed(lambda other, _: other == kind)
        return [same_kind, sealed(lambda _, other: other >= number)], sealed(code)

    def eager(kind: str, number: int) -> str:
        return f"is eager's, with {kind}{number}"

    given = [] if limit is None else [limit]
    function = attempt(sealed(trace), sealed(eager), *given)
    for number, (kind, value) in enumerate(calls, start=1):
        where = f"in call {number}, run({kind!r}, {value}),"
        traced.clear()
        seen.append(Seen("What it returned", function.run(kind, value), where))
        seen.append(Seen("The list of what was traced", list(traced), where))
        seen.append(Seen("The number of codes in `kept`", len(function.kept), where))
    return seen


# ------------------------------------------------------------------------ the same bits in a split


def in_spans(
    attempt: Attempt,
    query: Float[Tensor, "heads head_dim"],
    keys: Float[Tensor, "heads length head_dim"],
    values: Float[Tensor, "heads length head_dim"],
    span: int,
    orders: list[list[int]],
) -> list[Seen]:
    """orders: in which order the tasks run; those that it doesn't name come last."""
    asked, ran, seen = list[list[int]](), list[int](), list[Seen]()

    def worker(first: int, last: int) -> tuple[Tensor, Tensor]:
        asked.append([int(first), int(last)])
        scores = (keys[:, first:last] @ query[:, :, None])[:, :, 0] / query.shape[1] ** 0.5
        output = (scores.softmax(dim=1)[:, None] @ values[:, first:last])[:, 0]
        return output, scores.logsumexp(dim=1)

    results = list[Any]()
    for number, order in enumerate(orders, start=1):

        def run(tasks: Any, order: list[int] = order) -> Iterator[tuple[int, Any]]:
            listed = list(tasks)
            for place in sorted(range(len(listed)), key=(order + list(range(99))).index):
                ran.append(place)
                yield place, listed[place]()

        asked.clear()
        ran.clear()
        where = f"in order {number}" if len(orders) > 1 else ""
        found = attempt(sealed(worker), keys.shape[1], span, sealed(run))
        output, lse = things(2, found, "in_spans returns output and lse")
        results.append((snapshot(output), snapshot(lse)))
        seen.append(Seen("The list of spans", sorted(asked), where))
        seen.append(Seen("The number of tasks that `run` runs", len(ran), where))
        seen.append(Seen("The output", results[-1][0], where))
        seen.append(Seen("The lse", results[-1][1], where))
    same = all(map(equal, results, results[:1] * len(results)))
    told = "are the same" if same else "depend on the order in which the tasks end"
    return [*seen, Seen("The bits", told)]


def equal(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    return all(
        isinstance(a, Tensor) and isinstance(b, Tensor) and torch.equal(a, b)
        for a, b in zip(one, other, strict=True)
    )
