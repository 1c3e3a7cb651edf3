"""The arguments of the pictures."""

from typing import Any

import torch

from solutions.flash_attention import flash_attention, online_steps
from solutions.kernels.slow_memory import Memory
from tests.samples import of
from visuals import flash_attention as visuals

TILED, NAIVE, FAST_NUMBERS = {16: 2_000, 64: 500}, 5_000, {16: 30, 64: 1_200}
SCORES = torch.tensor([1.0, -2.0, 0.0, 3.0, 2.0, -1.0, 0.5])


def states_of(scores: torch.Tensor, block: int) -> list[tuple[Any, ...]]:
    return [tuple(state) for state in online_steps(scores, block)]


STATES = states_of(SCORES, 3)  # tiles of 3, 3 and 1; peaks 1, 3, 3


def loads_of(q_len: int, k_len: int, block_q: int, block_k: int) -> list[Any]:
    """What flash attention loads, and in which order."""
    memory = Memory(torch.randn(q_len, 2), torch.randn(k_len, 2), torch.randn(k_len, 2))
    flash_attention(memory, q_len, k_len, 2, block_q, block_k)
    return memory.trace


LENGTH_TIMES = {
    "naive": {128: 1.0, 512: 8.0, 2048: 100.0},
    "tiles": {2048: 30.0, 128: 3.0, 512: 7.0},
    "kernel": {128: 0.5, 512: 2.0, 2048: 9.0},
    "slow": {128: 2.0, 512: 7.5, 2048: 101.0},
}
PARTS = [(0, 6, 1.0), (6, 12, 3.0), (12, 16, -torch.inf)]

NOTHING_SEEN = torch.full((2,), -torch.inf)

KINDS = {2: [[1, 0, 0], [2, 1, 0], [2, 2, 1]], 3: [[1, 0], [2, 1]]}  # a causal mask, by the tile


SEEN = {"causal": 0.58, "all": 1.0}


def kinds_of(name: str, block: int) -> list[list[int]]:
    return KINDS[block] if name == "causal" else [[2] * len(line) for line in KINDS[block]]


EXAMPLES = (
    of(visuals.show_kinds, KINDS[2], 2),
    of(visuals.explore_kinds, kinds_of, SEEN, [2, 3]),
    of(visuals.traffic_bars, TILED, NAIVE, FAST_NUMBERS),
    of(visuals.online_softmax, SCORES, STATES, 3),
    of(visuals.online_softmax, NOTHING_SEEN, states_of(NOTHING_SEEN, 2), 2),
    *(
        of(visuals.tile_grid, loads_of(*sizes), *sizes)
        for sizes in ((9, 9, 2, 2), (17, 17, 1, 1), (9, 3, 2, 4))
    ),
    of(visuals.over_length, LENGTH_TIMES),
    of(visuals.over_length, {"naive": {128: 1.0}}),
    of(visuals.lanes, PARTS),
    of(visuals.walk, [4, 0, 2], [4, 0, 2], 8, 22, 6),
    of(visuals.walk, [20, 3, 13], [20, 3, 13], 16, 40, 30),
)
