"""Labs 17 and 18, given: what one rank sees of the others, and all ranks in one thread.

A rank is one of `size` workers that run the same program, each with its own part of the data or of
the weights. Ranks share nothing: they exchange tensors with the calls of a `Group`. `in_turns` runs
the ranks in one thread, for checks and small experiments. It gives the same results in every run,
and it never hangs. `processes.py` has the same calls between real processes.

The calls are named as in torch.distributed, but they are functional: they return new tensors and
never change those they are given. Results share no memory with another rank's tensors, and no
gradient flows through a call.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from greenlet import GreenletExit, getcurrent, greenlet
from jaxtyping import Shaped
from torch import Tensor

Result = TypeVar("Result")
OPS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda stacked: stacked.sum(0, dtype=stacked.dtype),
    "max": lambda stacked: stacked.amax(0),
}

# What a program may use of its group; the rest belongs to what connects the ranks.
SHOWN = "rank size calls sent all_reduce all_gather reduce_scatter all_to_all send recv make"


class Stuck(RuntimeError):
    """No rank can go on: their calls don't match. The sentence has the call of each rank."""


class Group:
    """What one rank sees: its number, how many ranks there are, and the calls between them.

    A collective call (all but `send` and `recv`) is made by all ranks, in the same order.

    calls: how often this rank has made each kind of call. sent: for each kind of call, the bytes
    this rank has handed in for others. That is the whole tensor, or all parts together; only
    `all_to_all` doesn't count the part a rank keeps. `recv` sends nothing, and neither does a
    group of size 1. What crosses a wire depends on the algorithm as well: see `ring_bytes`.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.calls, self.sent = Counter[str](), Counter[str]()

    def all_reduce(self, x: Shaped[Tensor, "*shape"], op: str = "sum") -> Shaped[Tensor, "*shape"]:
        """Return the sum of all ranks' tensors, or their maximum (op "max"): the same on each."""
        if op not in OPS:
            raise ValueError(f'The op of an all_reduce is "sum" or "max", not {op!r}.')
        return self.make("all_reduce", [x], op=op)[0]

    def all_gather(self, x: Shaped[Tensor, "*shape"]) -> list[Shaped[Tensor, "*shape"]]:
        """Return the tensors of all ranks, by rank. Their shapes must be equal."""
        return self.make("all_gather", [x])

    def reduce_scatter(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the sum of all ranks' parts for this rank. Each rank hands in one part for every
        rank, all of the same shape."""
        return self.make("reduce_scatter", parts)[0]

    def all_to_all(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Hand in one part for every rank; return the parts that the ranks have for this one.

        Shapes may differ, and parts may be empty.
        """
        return self.make("all_to_all", parts)

    def send(self, x: Tensor, to: int) -> None:
        """Send x to another rank. Returns only when that rank has received it."""
        self.make("send", [x], to)

    def recv(self, like: Shaped[Tensor, "*shape"], source: int) -> Shaped[Tensor, "*shape"]:
        """Return what rank `source` sends. It must have the shape and type of `like`."""
        return self.make("recv", [like], source)[0]

    def make(
        self, kind: str, given: Sequence[Tensor], other: int | None = None, op: str = ""
    ) -> list[Tensor]:
        """Make a call, count it, and return its answer. Raises ValueError if it can't be right."""
        forms = [form_of(x) for x in given]
        if kind in ("reduce_scatter", "all_to_all") and len(forms) != self.size:
            raise ValueError(f"{kind} needs one part per rank, {self.size}; it got {len(forms)}.")
        alike = [x.dtype for x in given] if kind == "all_to_all" else forms
        if len(set(alike)) > 1:
            raise ValueError(f"The parts of {kind} differ: {', '.join(forms)}.")
        if other is not None and (other == self.rank or not 0 <= other < self.size):
            raise ValueError(f"{kind}: rank {self.rank} of {self.size} has no other rank {other}.")
        form = forms[0].partition(" [")[0] if kind == "all_to_all" else forms[0]  # or the type only
        call = Call(kind, f"{form} ({op})" if op else form, [x.detach() for x in given], other, op)
        self.calls[kind] += 1
        kept = given[self.rank].nbytes if kind == "all_to_all" else 0
        if self.size > 1 and kind != "recv":
            self.sent[kind] += sum(x.nbytes for x in given) - kept
        return self.answer(call)

    def answer(self, call: "Call") -> list[Tensor]:
        """Return what the call returns: new tensors, one or several."""
        raise NotImplementedError


def ring_bytes(kind: str, payload: int, size: int) -> float:
    """Return how many bytes one rank puts on the wire, on average, if the ranks form a ring.

    payload: what the rank has handed in, as counted in `Group.sent`. No algorithm sends less for an
    all-reduce (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
    workstations", 2009). NCCL's tests use the same factors (nccl-tests, doc/PERFORMANCE.md).
    """
    factors = {
        "all_reduce": 2 * (size - 1) / size,  # a reduce-scatter, then an all-gather
        "reduce_scatter": (size - 1) / size,
        "all_gather": size - 1,  # here the payload is only this rank's part
    }
    return payload * factors.get(kind, 1)


# ------------------------------------------------------------------------- calls, and their meaning


@dataclass
class Call:
    """One rank's call. form: what must be equal in the calls of all ranks, besides the kind."""

    kind: str
    form: str
    parts: list[Tensor]
    other: int | None  # the other rank of a send or recv
    op: str

    def __str__(self) -> str:
        peer = {"send": f" to rank {self.other}", "recv": f" from rank {self.other}"}
        return f"{self.kind} of {self.form}{peer.get(self.kind, '')}"


def form_of(x: Tensor) -> str:
    """Return a tensor's type and shape as text."""
    if not isinstance(x, Tensor):
        raise TypeError(f"Ranks exchange tensors; this is a {type(x).__name__}.")
    return f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)}"


def pairs(calls: Sequence[Call | None]) -> list[tuple[int, int, Call]]:
    """Return each send whose recv is waiting: its rank, the receiver's, and the call."""
    found = []
    for rank, call in enumerate(calls):
        if call and call.kind == "send" and call.other is not None:
            other = calls[call.other]
            if other and other.kind == "recv" and (other.other, other.form) == (rank, call.form):
                found.append((rank, call.other, call))
    return found


def is_collective(calls: Sequence[Call | None]) -> bool:
    """Whether all ranks make the same collective call."""
    made = [call for call in calls if call and call.other is None]
    return len(made) == len(calls) and len({(call.kind, call.form) for call in made}) == 1


def why_stuck(calls: Sequence[Call | None]) -> str:
    """Return the sentence about calls that don't match. None: the rank has returned."""
    states = [f"waits in {call}" if call else "has returned" for call in calls]
    waiting = [call for call in calls if call]
    kinds = {call.kind for call in waiting}
    if len(waiting) < len(calls):
        reason = "each call needs the other ranks, and a rank that has returned makes none."
    elif kinds <= {"send", "recv"}:
        reason = (
            "each send needs a recv of the same shape and type on the other rank, and it returns "
            "only after that."
        )
    elif len(kinds) > 1:
        reason = "all ranks must make the same collective calls, in the same order."
    else:
        reason = "in a collective call, shape, type and op must be the same on all ranks."
    listed = ", and ".join(f"rank {rank} {state}" for rank, state in enumerate(states))
    return f"R{listed[1:]}: {reason}"


# ------------------------------------------------------------------------------ ranks in one thread


class Turn(Group):
    """The group as one rank of `in_turns` sees it. `hub` switches to the ranks in turns."""

    def __init__(self, rank: int, size: int, hub: greenlet) -> None:
        super().__init__(rank, size)
        self.hub = hub
        self.call: Call | None = None  # the one that waits for its answer
        self.returned: list[Tensor] = []
        self.has_ended = False

    def answer(self, call: Call) -> list[Tensor]:
        """Switch to the other ranks, until the answer is there."""
        if self.has_ended:
            raise GreenletExit
        with torch.inference_mode(False):  # after it, this rank has its own modes again
            call.parts = [part.clone() for part in call.parts]
            self.call = call
            self.hub.switch()
        return self.returned


def in_turns(size: int, work: Callable[..., Result], *args: object) -> list[Result]:
    """Run `work(group, *args)` once for each rank, in one thread; return the results, by rank.

    A rank runs until it makes a call. Then it is the next rank's turn, until the call is answered.
    If no rank can go on, the call of the first one that waits raises Stuck. If `work` fails on one
    rank, its exception ends them all. The args are shared by all ranks, so `work` must not change
    them.
    """
    if size < 1:
        raise ValueError(f"There must be at least one rank; size is {size}.")
    hub = getcurrent()
    modes = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    turns = [Turn(rank, size, hub) for rank in range(size)]
    workers = [greenlet(partial(work, turn, *args)) for turn in turns]
    results: dict[int, Result] = {}
    try:
        while len(results) < size:
            running = [turn for turn in turns if turn.rank not in results]
            ready = [turn for turn in running if turn.call is None]
            if not ready:
                stuck = Stuck(why_stuck([turn.call for turn in turns]))
                workers[running[0].rank].throw(stuck)  # so the traceback shows where it waits
                raise stuck
            for turn in ready:
                with torch.inference_mode(modes[0]), torch.set_grad_enabled(modes[1]):
                    result = workers[turn.rank].switch()
                if workers[turn.rank].dead:
                    results[turn.rank] = result
            for turn, answer in answers(turns):
                turn.call, turn.returned = None, answer
    finally:
        for turn, worker in zip(turns, workers, strict=True):
            turn.has_ended = True
            with suppress(Exception):
                worker.throw()  # ends it if it still waits
    return [results[rank] for rank in range(size)]


def answers(turns: Sequence[Turn]) -> Iterator[tuple[Turn, list[Tensor]]]:
    """Yield each rank whose call can be answered now, with what the call returns there."""
    calls = [turn.call for turn in turns]
    made = [call for call in calls if call]
    for sender, receiver, call in pairs(calls):
        yield turns[sender], []
        yield turns[receiver], call.parts
    if not is_collective(calls):
        return
    for turn in turns:
        which = turn.rank if made[0].kind in ("reduce_scatter", "all_to_all") else 0
        parts = [call.parts[which].clone() for call in made]
        if made[0].kind in ("all_reduce", "reduce_scatter"):
            parts = [OPS[made[0].op or "sum"](torch.stack(parts))]
        yield turn, parts
