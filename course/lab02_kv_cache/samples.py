"""What the pictures are handed."""

from types import SimpleNamespace

import torch

from tests.samples import of, randn
from visuals import kv_cache as visuals

QUERIES, KEYS, VALUES = ONE_HEAD = randn(3, 5, 4)
MASKS = {
    "prefill": torch.ones(1, 1, 5, 5).tril().bool(),
    "chunk": torch.ones(1, 1, 2, 5).tril(3).bool(),
}


def growing(*lengths: int) -> list[list[tuple[torch.Tensor, torch.Tensor]]]:
    """The caches of 2 layers with 2 heads of 64 numbers after some steps, 2 KB a token."""
    return [[(torch.zeros(1, 2, n, 64), torch.zeros(1, 2, n, 64))] * 2 for n in lengths]


def preallocated(filled: int, length: int) -> SimpleNamespace:
    """A cache of 2 layers with room for 8 tokens, 1 KB each."""
    keys = torch.zeros(2, 1, 1, 8, 64)
    keys[..., :filled, :] = 1
    return SimpleNamespace(keys=keys, values=keys.clone(), length=length, max_length=8)


LAYERS = [randn(3, 1, 2, 4, 8, seed=n) for n in range(3)]

EXAMPLES = (
    of(visuals.score_times_value, *ONE_HEAD, ["The", " king", "\n", "a", "b"], 2),
    of(visuals.explore_attention, LAYERS, ["a", "b", "c", "d"]),
    of(visuals.show_masks, MASKS),
    of(visuals.growing_cache, growing(3, 4, 5)),
    of(visuals.show_cache, preallocated(filled=6, length=2)),
    of(visuals.time_per_token, {"naive": [9, 0.001, 0.002], "cached": [9, 0.001, 0.001]}, 10),
)
