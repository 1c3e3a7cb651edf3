"""Sample inputs for the pictures."""

from types import SimpleNamespace
from typing import Any

import torch

from solutions.decoding import Candidate
from tests.samples import END, of, word
from visuals import decoding as visuals

LOGITS = torch.tensor([1.0, 3.0, 2.0, 0.0])


def probs_with(*, temperature: float, top_k: int | None, top_p: float, min_p: float) -> Any:
    """Replaces a sampler: each setting changes the result."""
    probs = (LOGITS / max(temperature, 0.01)).softmax(dim=0)
    least = probs.sort(descending=True).values[min(top_k or 4, 4) - 1]
    kept = torch.where((probs >= least) & (probs >= min_p * probs.max()), probs, 0)
    kept = torch.where(probs >= min(1 - top_p, probs.max().item()), kept, 0)
    return kept / kept.sum()


BEAM_STEPS = [
    [Candidate(*one) for one in step]
    for step in (
        [(-1, 0, 6), (-1.25, 0, 5), (-3, 0, END), (-4, 0, 7)],  # END is too late to end a text
        [(-1.5, 1, 7), (-2, 0, END), (-2.5, 0, 5), (-3.5, 1, 3)],
        [(-1.75, 0, END), (-3.25, 1, 5), (-4.5, 0, 3), (-5, 1, END)],
    )
]


def search(steps: list[list[Candidate]], *best: int, width: int = 2, prompt: int = 1) -> Any:
    """A beam search. best: its best text, which has ended if END is its last token."""
    text, other = SimpleNamespace(ids=[*best]), SimpleNamespace(ids=[4, 6, 5])
    finished = [text] if best[-1] == END else []
    names = {"width": width, "prompt_length": prompt, "eos_token_id": END}
    return SimpleNamespace(
        beams=[other] if finished else [text], finished=finished, trace=steps, **names
    )


SEARCH = search(BEAM_STEPS, 4, 5, 7, END)

LONG_SEARCH = search([BEAM_STEPS[0][:2]] * 30, *[1] * 31, width=1)

EXAMPLES = (
    of(visuals.distributions, ["a", "b"], {str(n): [n / 10, 1 - n / 10] for n in range(6)}),
    of(visuals.explore_sampling, probs_with, word),
    of(visuals.before_and_after, torch.tensor([0.1, 0.9]), torch.tensor([0.0, 1]), word),
    of(visuals.show_repetition, [*"ab<d", *"xab<y"], 3),
    of(visuals.side_by_side, {"T < 1": "a\n  b & <i>c</i>", "T = 1": "d"}),
    of(visuals.show_tree, SEARCH, word),
    of(visuals.show_tree, search([], 4), word),
    of(visuals.show_tree, search([], *[4, 1] * 20, prompt=40), word),
    of(visuals.show_tree, LONG_SEARCH, word),
    of(visuals.sorting_costs, {"heap": 5120, "sort": 61000}, {"heap": 0.002, "sort": 0.003}),
)
