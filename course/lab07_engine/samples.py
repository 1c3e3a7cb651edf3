"""What the pictures are handed."""

from types import SimpleNamespace

from tests.samples import of
from visuals import engine as visuals
from visuals.engine import Snapshot

# Request 0 decodes and drafts; 1 has a prompt in two chunks, is preempted and computed again; 2
# waits, comes in, and has once no tokens.
TRACE = [
    [(0, 2, True), (1, 6, False)],
    [(0, 1, True), (1, 3, True)],
    [(0, 5, True)],
    [(0, 1, True), (2, 3, True)],
    [(1, 4, False)],
    [(1, 6, True), (2, 1, True)],
]
SNAPSHOTS = [
    Snapshot((2,), {0: 1, 1: 3}),
    Snapshot((2,), {0: 1, 1: 3}),
    Snapshot((1, 2), {0: 2}),
    Snapshot((1,), {2: 1}),
    Snapshot((), {1: 3, 2: 1}),
    Snapshot((), {1: 3}),
]
RUNS = {
    8: SimpleNamespace(trace=TRACE, snapshots=SNAPSHOTS),
    64: SimpleNamespace(trace=TRACE[:2], snapshots=SNAPSHOTS[:2]),
}

EXAMPLES = (
    of(visuals.timeline, TRACE, SNAPSHOTS),
    of(visuals.timeline, TRACE, SNAPSHOTS, 400),
    of(visuals.explore_runs, "budget", RUNS, {8: "small", 64: "large"}),
    of(visuals.pool_and_queue, SNAPSHOTS, 5),
    of(visuals.show_latencies, [0.1, 0.2, 0.4], [0.01, None, 0.03]),
    of(visuals.show_latencies, [11.2, 13.9, 14.2], [12.5, None, 13.1]),
)
