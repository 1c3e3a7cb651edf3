"""What the pictures are handed."""

import torch

from solutions.ranks.nano_batches import Run
from solutions.ranks.schedules import Replay, replay
from tests.samples import of
from visuals import parallelism as visuals

RING = [  # of two ranks: in part 0 they begin with 1 and 2, in part 1 with 4 and 8
    [1.0, 12.0],
    [8.0, 3.0],
]


def numbered(rows: int, columns: int) -> torch.Tensor:
    return torch.arange(rows * columns).view(rows, columns)


WHOLE = {
    "c_attn.weight": numbered(4, 12),
    "c_fc.weight": numbered(4, 16),
    "c_proj.weight": numbered(4, 4),
    "wpe.weight": numbered(3, 4),
    "mlp.c_proj.weight": numbered(16, 4),
}


def part(rank: int) -> dict[str, torch.Tensor]:
    """Return what one of two ranks holds: columns, rows or all; of c_fc rank 0 alone holds some."""
    columns = slice(2 * rank, 2 * rank + 2)
    return {
        "c_attn.weight": WHOLE["c_attn.weight"].view(4, 3, 4)[:, :, columns],
        "c_fc.weight": WHOLE["c_fc.weight"][:, : 8 - 8 * rank],
        "c_proj.weight": WHOLE["c_proj.weight"][columns],
        "wpe.weight": WHOLE["wpe.weight"],
        "mlp.c_proj.weight": WHOLE["mlp.c_proj.weight"].chunk(2)[rank],
    }


PARTS = [part(0), part(1)]


def run(stages: int, microbatches: int, kind: str) -> Replay:
    """Run all forwards, then all backwards; "1f1b": one microbatch after the other."""
    order = [(step, i) for step in "FB" for i in range(microbatches)]
    if kind == "1f1b":
        order = [(step, i) for i in range(microbatches) for step in "FB"]
    return replay([order] * stages)


TWO = {"gpipe": run(2, 3, "gpipe"), "1f1b": run(2, 3, "1f1b")}
PER_TOKEN = {"data": 0.0, "tensor": 25600.0, "sequence": 26112.0, "pipeline": 1024.0}
POINTS = {1024.0: 1e-4, 65536.0: 2e-4, 1048576.0: 1e-3}


# One operation on each resource for both nano-batches; they overlap in a staircase.
NANO_BATCHES = [
    Run(batch, step, resource, 2.0 * (batch + step), 2.0 * (batch + step + 1))
    for batch in range(2)
    for step, resource in enumerate(("compute", "network"))
]

EXAMPLES = (
    of(visuals.show_ring, RING),
    of(visuals.show_cuts, WHOLE, PARTS),
    of(visuals.show_pipelines, TWO),
    of(visuals.explore_pipeline, run),
    of(visuals.show_timelines, {"split": NANO_BATCHES}, "ms"),
    of(visuals.show_bytes, PER_TOKEN),
    of(visuals.wire_curve, 1e-4, 1e-9, POINTS),
)
