"""What the pictures are handed."""

from collections import deque
from types import SimpleNamespace

from solutions.memory import MemoryUse
from tests.samples import of
from visuals import paged_attention as visuals

USES = {
    "longest": MemoryUse(0.2, 0.3, 0.4, 0.1, running=7),
    "paged": MemoryUse(0.97, 0.01, 0, 0.02, running=30.42),
}


def block_manager() -> SimpleNamespace:
    """Request 5 was forked into request 6, which has copied the last block; a pool of 4, of 2."""
    tables, lengths = {5: [3, 1], 6: [3, 0]}, {5: 3, 6: 4}
    counts = {"ref_counts": [1, 1, 0, 2], "free_blocks": deque([2])}
    return SimpleNamespace(num_blocks=4, block_size=2, tables=tables, lengths=lengths, **counts)


BLOCK_WORDS = {5: ["an", "old", "king"], 6: ["an", "old", "queen", "\n", "not yet"]}
HELD = [{0: 1, 1: 2}, {0: 2, 1: 2}, {0: 2}, {1: 3, 2: 1}, {2: 1}]

EMPTY_POOL = vars(block_manager()) | {"tables": {}, "lengths": {}, "ref_counts": [0] * 4}
BEFORE, AFTER = (
    visuals.snapshot(block_manager(), BLOCK_WORDS, what) for what in ("before", "after")
)

EXAMPLES = (
    of(visuals.memory_card, {"weights": 26, "cache": 12, "the rest": 2}),
    of(visuals.memory_bars, USES),
    of(visuals.block_size_costs, {1: 1.0, 16: 0.985}, {1: 480.0, 16: 30.5}),
    of(visuals.show_blocks, block_manager(), BLOCK_WORDS, "after the copy"),
    of(visuals.show_blocks, SimpleNamespace(**EMPTY_POOL), {}),
    of(visuals.draw_snapshot, BEFORE),
    of(visuals.step_through, [BEFORE, AFTER]),
    of(visuals.show_schedule, HELD, 4),
    of(
        visuals.show_pages,
        SimpleNamespace(page_tokens=4, max_tokens=20, mapped=[3, 2], tokens=[9, 0]),
    ),
)
