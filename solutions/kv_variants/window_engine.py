"""Lab 11, given: an engine whose requests see the first tokens and the last ones.

Lab 7's engine stays as it is. Its manager gives back the blocks that no later query of their
request may see, as vLLM's does; its cache hides from each query what it may not see. A prompt is
let in whole, and shrinks once it has been computed; a text that grows takes no more blocks.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from solutions.engine.engine import Engine, Output, Parts, new_engine
from solutions.engine.managers import EngineManager
from solutions.engine.runner import FastCache
from solutions.kv_cache import CachedLMHead
from solutions.paged_attention import PagedCache

GONE = -1  # stands in a table for a block that was given back


class WindowManager(EngineManager):
    """Lab 4's manager, which gives blocks back behind the window. None of them is shared."""

    window, sinks = 1, 0  # `windowed_engine` sets an instance's own

    def publish(self, request: int, token_ids: Sequence[int], computed: int) -> None:
        """Give back the blocks that lie between the sinks and what the next query may see.

        Drafts may still be rejected: the next query can be the one behind the last sure token.
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
    """The engine's cache, where `visible` says what each query sees. What is gone it doesn't."""

    def __init__(
        self, cache: PagedCache, visible: Callable[[Tensor, Tensor], Bool[Tensor, "rows 1 new all"]]
    ) -> None:
        super().__init__(cache)
        self.visible = visible

    def places(self, block_tables: Tensor, every: Tensor) -> object:
        return super().places(block_tables.clamp(min=0), every)  # some block; the mask hides it

    def mask(self, new: Tensor, every: Tensor) -> Tensor:
        seen = self.visible(new, every)
        return self.cache.pool.new_zeros(seen.shape).masked_fill_(~seen, -torch.inf)


def windowed_engine(
    model: CachedLMHead,
    num_blocks: int,
    block_size: int,
    token_budget: int,
    max_running: int,
    on_output: Callable[[Output], None],
    window: int,
    sinks: int,
    window_mask: Callable[..., Bool[Tensor, "rows 1 new all"]],
    **drafts: Any,
) -> Engine:
    """Lab 7's engine, where a token sees the last `window` tokens and the first `sinks`.

    drafts: new_drafter and k, as there.
    """
    if window < 1 or sinks < 0:
        raise ValueError(
            f"A token sees itself at least; window is {window} and sinks {sinks}. Give a window of "
            "1 or more, and 0 sinks or more."
        )
    parts = Parts(block_manager=WindowManager)
    room = num_blocks, block_size, token_budget, max_running
    engine = new_engine(model, *room, on_output, parts=parts, **drafts)
    manager, runner = engine.scheduler.manager, engine.runner
    assert isinstance(manager, WindowManager)
    manager.window, manager.sinks = window, sinks
    visible = partial(window_mask, window=window, sinks=sinks)
    runner.kv_cache = WindowedCache(runner.kv_cache.cache, visible)
    return engine
