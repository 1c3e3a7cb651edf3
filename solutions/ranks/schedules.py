"""Lab 18, given: a pipeline's schedule, run on paper."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

Order = list[tuple[str, int]]  # what a stage does: ("F", 0) is the forward of microbatch 0
Step = tuple[int, str, int]  # the same, with the stage in front


class Run(NamedTuple):
    """One forward ("F") or backward ("B") of a microbatch through a stage, and when."""

    stage: int
    kind: str
    microbatch: int
    start: int
    end: int


@dataclass(frozen=True)
class Replay:
    """What became of a schedule. runs: in the order of their starts. live: for each stage, the most
    microbatches whose activations it held at once."""

    runs: list[Run]
    live: list[int]

    @property
    def makespan(self) -> int:
        """The time from the first start to the last end."""
        return max(run.end for run in self.runs)

    @property
    def idle(self) -> float:
        """The bubble: the share of all stages' time in which they wait."""
        busy = sum(run.end - run.start for run in self.runs)
        return 1 - busy / (len(self.live) * self.makespan)


def replay(schedule: Sequence[Order], forward: int = 1, backward: int = 2) -> Replay:
    """Run a schedule on paper: each stage does its next operation as soon as it can.

    A forward needs the one of the stage before, a backward the stage's own forward and the backward
    of the stage after it. Sending takes no time. forward, backward: how long one takes. Raises
    ValueError if the stages differ in what they do, or if none of them can go on.
    """
    require_schedule(schedule)
    stages, todo = len(schedule), [deque(order) for order in schedule]
    ends: dict[Step, int] = {}
    runs, free = [], [0] * stages
    while any(todo):
        heads = [(stage, *order[0]) for stage, order in enumerate(todo) if order]
        missing = {head: needs(*head, stages) - ends.keys() for head in heads}
        ready = [head for head in heads if not missing[head]]
        if not ready:
            raise ValueError(why_stuck(missing))
        for stage, kind, i in ready:
            start = max([free[stage], *(ends[one] for one in needs(stage, kind, i, stages))])
            free[stage] = ends[stage, kind, i] = start + (forward if kind == "F" else backward)
            runs.append(Run(stage, kind, i, start, free[stage]))
            todo[stage].popleft()
    return Replay(sorted(runs, key=lambda run: run.start), [most_live(o) for o in schedule])


def needs(stage: int, kind: str, i: int, stages: int) -> set[Step]:
    """Return what must have ended before this forward or backward can start."""
    if kind == "F":
        return {(stage - 1, "F", i)} if stage > 0 else set()
    return {(stage, "F", i), *([(stage + 1, "B", i)] if stage < stages - 1 else [])}


def most_live(order: Order) -> int:
    """Return the most microbatches between their forward and the end of their backward."""
    return max(accumulate(1 if kind == "F" else -1 for kind, _ in order))


def require_schedule(schedule: Sequence[Order]) -> None:
    microbatches = len(schedule[0]) // 2 if schedule else 0
    if microbatches < 1:
        raise ValueError("There is nothing to run: give at least one stage and one microbatch.")
    expected = sorted((kind, i) for kind in "FB" for i in range(microbatches))
    for stage, order in enumerate(schedule):
        if sorted(order) != expected:
            raise ValueError(
                f"Stage {stage} must do F and B of the microbatches 0 to {microbatches - 1}, each "
                f"once; its order is {order}."
            )


def why_stuck(missing: Mapping[Step, set[Step]]) -> str:
    """Return the sentence about a schedule in which each stage waits for another."""
    waits = []
    for (stage, kind, i), needed in missing.items():
        other, other_kind, j = min(needed)
        waits.append(
            f"stage {stage} has {kind}{i} next, which needs {other_kind}{j} of stage {other}"
        )
    return f"No stage can go on: {', and '.join(waits)}."
