"""What the pictures of lab 14 are handed."""

import torch

from solutions.constrained import Automaton
from tests.samples import of
from visuals import constrained as visuals

# ha(ha)*!? and a state that loops: it has edges to the right, to the left and to itself
LAUGH = Automaton(
    [{ord("h"): 1}, {ord("a"): 2}, {ord("h"): 1, ord("!"): 3}, {ord("!"): 3}], frozenset({2, 3})
)
MASKS = {"one": torch.arange(4) == 2, "all": torch.ones(4, dtype=torch.bool)}

EXAMPLES = (
    of(visuals.show_automaton, LAUGH, "hah"),
    of(visuals.explore_walk, LAUGH, "haha!"),
    of(visuals.show_masks, MASKS),
    of(visuals.distortion, [" a", "$x$"], [0.9999, 0.0001], [0.25, 0.75]),
    of(visuals.allowed_mass, ["{", '"', " <b>"], [1e-9, 0.5, 1.0]),
    of(visuals.show_jumps, ["{", " <b>", "\n"], [True, False, False]),
    of(visuals.show_stack, ["[", "<b>"], ["[", ""], [(1, 2, 1), (1000, 0, 0)]),
)
