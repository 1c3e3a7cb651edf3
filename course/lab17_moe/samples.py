"""What the pictures are handed."""

import torch

from tests.samples import of
from visuals import moe as visuals

WORDS = [" the", " $x$", "\n"]
CHOSEN = torch.tensor([[2, 0], [0, 1], [2, 0]])  # two of four experts for each token
LOSSES = {"fitted": {2: 0.3, 4: 0.05, 3: 0.1}, "random": {4: 0.6}}
MEASURED, AT_RANDOM = {1: 2.0, 4: 3.5, 8: 4.5}, {1: 2.0, 4: 5.5, 8: 7.0}
HISTORY = {
    "alone": torch.tensor([[0.5, 0.5], [0.9, 0.1], [1.0, 0.0]]),
    "even": torch.tensor([[0.5, 0.5], [0.4, 0.6], [0.5, 0.5]]),
}
# With one place, the first choices of tokens 0 and 1 are kept, and the second one of token 1.
KEPT = {
    0.5: (1, torch.tensor([[True, False], [True, True], [False, False]])),
    2.0: (3, torch.ones(3, 2, dtype=torch.bool)),
}
ROUTES = torch.tensor([[0, 1, 3], [2, 0, 3], [1, 1, 1]])
OWNERS = {
    "in order": torch.tensor([[0, 0, 1, 1]] * 3),
    "mixed": torch.tensor([[0, 0, 1, 1], [1, 0, 0, 1], [1, 0, 1, 0]]),
}

EXAMPLES = (
    of(visuals.show_routes, WORDS, CHOSEN, 4),
    of(visuals.losses_by_experts, LOSSES),
    of(visuals.experts_touched, MEASURED, AT_RANDOM, 8),
    of(visuals.loads_in_training, HISTORY),
    of(visuals.explore_capacity, CHOSEN, KEPT, 4),
    of(visuals.capacity_at, CHOSEN, KEPT, 4, 0.5),
    of(visuals.show_hops, WORDS, ROUTES, OWNERS),
)
