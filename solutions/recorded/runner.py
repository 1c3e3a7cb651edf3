"""Lab 22, given: an engine's runner that replays decode steps."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from solutions.engine.runner import Chunk, Runner
from solutions.one_kernel import rows_of


class GraphRunner(Runner):
    """Replays steps of few rows, one for each new token; wider ones go the usual way."""

    def __init__(self, usual: Runner, graphs: Any) -> None:
        super().__init__(usual.transformer, usual.lm_head, usual.kv_cache, usual.watcher)
        self.graphs = graphs

    @torch.inference_mode()
    def forward(self, batch: Sequence[Chunk]) -> dict[int, Float[Tensor, "wanted vocab"]]:
        """Run all chunks in one pass; return the wanted logits of each request, by its number."""
        if not batch:
            return {}
        *given, wanted = rows_of(batch, self.kv_cache.manager.tables)
        hidden = self.graphs.run(*map(torch.from_numpy, given))
        if hidden is None:
            return super().forward(batch)
        self.watcher.computed(list(batch), hidden)
        places = [row for rows in wanted.values() for row in rows]
        logits = self.lm_head(hidden[places]).split([len(rows) for rows in wanted.values()])
        return dict(zip(wanted, logits, strict=True))


def scratch_of(engine: Any) -> int:
    """Let an engine's block manager forget the last block, so that no request gets it; return it.

    No request may hold blocks yet.
    """
    manager = engine.scheduler.manager
    manager.num_blocks -= 1
    manager.ref_counts.pop()
    manager.free_blocks.remove(manager.num_blocks)
    return int(manager.num_blocks)
