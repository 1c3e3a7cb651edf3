"""The arguments of the pictures."""

import torch

from tests.samples import of
from visuals import replay as visuals

BATCHES, SIZES = [3, 8, 8, 6, 5, 2, 1, 12], [1, 2, 4, 8]
TABLES = torch.tensor([[4, 0, 7], [2, 7, 7], [7, 7, 7], [7, 7, 7]])
POSITIONS = torch.tensor([5, 2, 0, 0])
POOL = TABLES, 2, 8, 4, POSITIONS, 7

EXAMPLES = (
    of(visuals.show_launches, 12, 5.0),
    of(visuals.launches, 12, 5.0, 2.0),
    of(visuals.launches, 40, 5.0, 20.0),
    of(visuals.show_ladder, BATCHES, SIZES),
    of(visuals.show_ladder, list(range(1, 65)), [1, 2, 4, *range(8, 65, 8)]),
    of(visuals.show_pool, *POOL),
    of(visuals.show_pool, torch.zeros(1, 1, dtype=torch.int64), 1, 2, 4, torch.tensor([3]), 1),
)
