"""What the pictures are handed."""

from types import SimpleNamespace

import torch

from tests.samples import decode, of
from visuals import batching as visuals

PADDED = torch.tensor([[0, 1, 2], [0, 0, 3]])
IS_TOKEN = torch.tensor([[True, True, True], [False, False, True]])
POSITIONS = torch.tensor([[0, 1, 2], [0, 0, 0]])

# Four slots; S1 has 4 steps, S2 8, S3 3, S4 5; then S5 to S7 fill in.
STATIC = [
    *[[0, 1, 2, 3]] * 3,
    [0, 1, None, 3],
    [None, 1, None, 3],
    *[[None, 1, None, None]] * 3,
]
CONTINUOUS = [*[[0, 1, 2, 3]] * 3, [0, 1, 4, 3], [5, 1, 4, 3], *[[5, 1, 4, 6]] * 3]
SLOTS = SimpleNamespace(lengths=torch.tensor([7, 0, 5]), max_length=12)
STEP_SECONDS = {1: 0.004, 2: 0.005, 16: 0.010}

WIDE = [[(step // 5) * 16 + slot for slot in range(16)] for step in range(40)]

EXAMPLES = (
    of(visuals.show_padding, PADDED, IS_TOKEN, POSITIONS, decode),
    of(visuals.show_padded_mask, torch.ones(2, 1, 2, 3).tril(1).bool(), IS_TOKEN),
    of(visuals.timeline, STATIC),
    of(visuals.timelines, {"static": STATIC, "continuous": CONTINUOUS}),
    of(visuals.timelines, {"static": WIDE, "continuous": WIDE}),
    of(visuals.show_slots, SLOTS),
    of(visuals.throughput_and_latency, STEP_SECONDS, 16),
    of(visuals.explore_batch, STEP_SECONDS),
)
