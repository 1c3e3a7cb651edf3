"""Lab 21, given: an engine's runner that takes the kernel for steps of few rows."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from solutions.compiled.kernel import Kernel
from solutions.engine.runner import Chunk, Runner
from solutions.one_kernel import rows_of


class KernelRunner(Runner):
    """Takes the kernel for steps of up to `most_rows` new tokens, and otherwise the usual way.

    rows_of: a learner's, or the reference's.
    """

    def __init__(
        self,
        usual: Runner,
        kernel: Kernel,
        most_rows: int,
        rows_of: Callable[..., Any] = rows_of,
    ) -> None:
        super().__init__(usual.transformer, usual.lm_head, usual.kv_cache, usual.watcher)
        self.kernel, self.most_rows, self.rows_of = kernel, most_rows, rows_of

    @torch.inference_mode()
    def forward(self, batch: Sequence[Chunk]) -> dict[int, Float[Tensor, "wanted vocab"]]:
        """Run all chunks in one pass; return the wanted logits of each request, by its number."""
        if not 0 < sum(len(chunk.ids) for chunk in batch) <= self.most_rows:
            return super().forward(batch)
        ids, positions, tables, wanted = self.rows_of(batch, self.kv_cache.manager.tables)
        places = np.array([row for rows in wanted.values() for row in rows], np.int64)
        hidden, logits = self.kernel(ids, positions, tables, places)
        self.watcher.computed(list(batch), torch.from_numpy(hidden))
        parts = torch.from_numpy(logits).split([len(rows) for rows in wanted.values()])
        return dict(zip(wanted, parts, strict=True))
