"""What the pictures are handed."""

import torch

from solutions.speculative import Round
from tests.samples import END, of, word
from visuals import speculative as visuals

ALL_ACCEPTED = Round([1, 2], 2, [1, 2, 3])
CORRECTION = Round([1, 2, 4], 1, [1, 3])
NO_DRAFT = Round([], 0, [5])
CUT = Round([1, END, 2, 4], 3, [1, END])


def expected_tokens(acceptance: float, k: int) -> float:
    """In place of a learner's function."""
    return 1 + acceptance * k


EXAMPLES = (
    of(visuals.show_rounds, "so", [ALL_ACCEPTED, CORRECTION], word),
    of(visuals.show_acceptance, ["a", "$", "\n"], [0.5, 0.2, 0.3], torch.tensor([0.1, 0.9, 0])),
    of(visuals.explore_acceptance, expected_tokens),
    of(visuals.tokens_a_round, expected_tokens, 0.5, 4),
    of(visuals.verify_costs, {4: 0.006, 1: 0.004, 2: 0.005}),
    of(visuals.speed_up_curves, {"shipped": [1, 1.4], "n-gram": [1, 0.9]}, {"shipped": {1: 2}}),
)
