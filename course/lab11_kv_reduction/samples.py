"""What the pictures are handed."""

import torch

from solutions.kv_reduction import window_mask
from tests.samples import of
from visuals import kv_reduction as visuals

WINDOW = [[0], [0, 1], [1, 2], [2, 3], [3, 4]]
HEAVY = [[0], [0, 1], [0, 2], [0, 2, 3], [0, 2, 4]]
MASS = torch.tensor([[0.001, 0.02], [0.0, 0.004], [0.5, 0.0001]])
EVEN = 1 / 768
CONTROLS = {
    "the first 4": (0.265, 0.012),
    "tokens 200 to 203": (0.383, 0.015),
    "none": (-0.01, 0.1),
}
CHANNELS = torch.tensor([[1.0, -3.0, 0.0, 2.0], [1.5, -4.0, 0.5, 2.5], [0.5, -2.0, -1.0, 6.0]])
BYTES = {
    "float32": {"keys and values": 24_576},
    "KIVI": {"codes": 1_536, "scales and zeros": 768.0, "recent tokens": 768},
    "groups of 1": {"codes": 6_144, "scales and zeros": 24_576},
}
PREEMPTED = {"recompute": (5_321, 0), "swap": (3_010, 45_678_912)}

MANY = {f"first {n} + window": [range(t + 1) for t in range(40)] for n in range(4)}

EXAMPLES = (
    of(visuals.kept_rows, {"window": WINDOW, "chosen": HEAVY}),
    of(visuals.kept_rows, MANY),
    of(visuals.first_token_mass, MASS, EVEN, CONTROLS),
    of(visuals.first_token_mass, torch.zeros(1, 1), EVEN, {"one": (0.0, 0.0)}),
    of(visuals.key_channels, CHANNELS),
    of(visuals.key_channels, torch.zeros(1, 1)),
    of(visuals.token_bytes, BYTES),
    of(visuals.token_bytes, {"all": {f"part {n}": 100 for n in range(5)}}),
    of(visuals.preemption, PREEMPTED),
    of(visuals.preemption, {"recompute": (0, 0), "swap": (0, 0)}),
    of(visuals.explore_window, window_mask),
)
