"""Lab 11, given: an engine whose requests see only the first tokens and the last ones.

Lab 7's engine stays unchanged. Its block manager frees the blocks that no later query of the
request may see, as vLLM's does; its cache masks the keys outside the window. A prompt first
gets blocks for all its tokens and loses those outside the window once it has been computed; from
then on the number of its blocks doesn't grow with the text.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from solutions.engine.engine import Engine, Output
from solutions.engine.limits import Limits, or_four_numbers
from solutions.engine.managers import GONE, EngineManager
from solutions.engine.runner import FastCache, new_runner
from solutions.engine.scheduler import Scheduler
from solutions.kv_cache import CachedLMHead
from solutions.paged_attention import PagedCache


class WindowManager(EngineManager):
    """The engine's manager, which also frees blocks outside the window. No block is shared."""

    def __init__(self, num_blocks: int, block_size: int, window: int, sinks: int) -> None:
        super().__init__(num_blocks, block_size)
        self.window, self.sinks = window, sinks

    def publish(self, request: int, token_ids: Sequence[int], computed: int) -> None:
        """Free the blocks between the sinks and the first key that the next query may see.

        Drafts may still be rejected, so the next query is the one after the last accepted token.
        """
        first_seen = min(computed, len(token_ids)) - self.window + 1
        table = self.tables[request]
        for place in range(self.blocks_for(self.sinks), max(first_seen, 0) // self.block_size):
            if table[place] != GONE:
                self.ref_counts[table[place]] = 0
                self.free_blocks.append(table[place])
                table[place] = GONE

    def free(self, request: int) -> None:
        self.tables[request] = [block for block in self.tables[request] if block != GONE]
        super().free(request)


class WindowedCache(FastCache):
    """The engine's cache with a mask: `visible` returns which keys each query sees.

    It must never show a key whose block has been freed.
    """

    def __init__(
        self, cache: PagedCache, visible: Callable[[Tensor, Tensor], Bool[Tensor, "rows 1 new all"]]
    ) -> None:
        super().__init__(cache)
        self.visible = visible

    def places(self, block_tables: Tensor, every: Tensor) -> object:
        return super().places(block_tables.clamp(min=0), every)  # any block: the mask hides it

    def mask(self, new: Tensor, every: Tensor) -> Tensor:
        seen = self.visible(new, every)
        return self.cache.pool.new_zeros(seen.shape).masked_fill_(~seen, -torch.inf)


@or_four_numbers
def windowed_engine(
    model: CachedLMHead,
    limits: Limits,
    on_output: Callable[[Output], None],
    window: int,
    sinks: int,
    window_mask: Callable[..., Bool[Tensor, "rows 1 new all"]],
    **drafts: Any,
) -> Engine:
    """Return lab 7's engine, in which a token sees the last `window` tokens and the first `sinks`.

    drafts: new_drafter and k, as in lab 7. Raises ValueError for a window of less than 1 token or
    a negative number of sinks.
    """
    if window < 1 or sinks < 0:
        raise ValueError(
            f"A window needs 1 token or more (a token sees itself), and sinks 0 or more; window is "
            f"{window} and sinks {sinks}."
        )
    manager = WindowManager(limits.num_blocks, limits.block_size, window, sinks)
    weight = model.transformer.wte.weight
    cache = PagedCache(model.config, manager, weight.device, weight.dtype)
    visible = partial(window_mask, window=window, sinks=sinks)
    runner = new_runner(model, WindowedCache(cache, visible))
    scheduler = Scheduler(manager, limits.token_budget, limits.max_running)
    return Engine(model.config, scheduler, runner, on_output, **drafts)
