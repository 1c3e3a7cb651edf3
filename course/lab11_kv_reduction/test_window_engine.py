"""Lab 11's engine with a window: the naive tokens under the mask, from few blocks."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from solutions.engine.limits import Limits
from solutions.engine.managers import GONE
from solutions.kv_cache import CachedLMHead
from solutions.kv_reduction import window_mask
from solutions.kv_variants.window_engine import windowed_engine
from tests.common.engines import CONFIGS, model_of
from tests.common.serving import Load, WatchedEngine, assert_texts, hold_often, loads, serve

pytestmark = pytest.mark.usefixtures("short_stretches")


class Hidden:
    """Stands for a cache where the text is computed at once, under a window."""

    def __init__(self, window: int, sinks: int, seq: int) -> None:
        self.seen = torch.tensor(
            [[k <= q and (k > q - window or k < sinks) for k in range(seq)] for q in range(seq)]
        )

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        scores = queries @ keys.transpose(2, 3) / keys.shape[3] ** 0.5
        return scores.masked_fill(~self.seen, -torch.inf).softmax(dim=-1) @ values


def naive(
    model: Any, prompt: list[int], limit: int, eos: int | None, window: int, sinks: int
) -> list[int]:
    """Greedily, everything computed again for each token."""
    ids, end = list(prompt), min(len(prompt) + limit, model.config.n_positions)
    while len(ids) < end and (eos is None or eos not in ids[len(prompt) :]):
        row = torch.tensor([ids])
        hidden = Hidden(window, sinks, len(ids))
        ids.append(int(model(row, torch.arange(len(ids))[None], hidden)[0, -1].argmax()))
    return ids


class WatchedWindow(WatchedEngine):
    def step(self) -> None:
        """What the next query may see is in a block, and nothing else is for longer than a step."""
        super().step()
        manager: Any = self.engine.scheduler.manager
        window, size = manager.window, manager.block_size
        for sequence in self.engine.scheduler.running:
            table, n = manager.tables[sequence.number], sequence.num_computed_tokens
            seen = [p for p in range(n) if p < manager.sinks or p > n - window]
            assert all(table[p // size] != GONE for p in seen)
            # accepted drafts are told of a step later
            late = {p // size for p in range(n) if p > n - window - self.engine.k}
            in_use = {place for place in range(n // size) if table[place] != GONE}
            assert in_use <= late | set(range(manager.blocks_for(manager.sinks)))


def test_the_engine_gives_the_naive_tokens_under_the_mask() -> None:
    def is_served(load: Load, window: int, sinks: int) -> dict[str, bool]:
        how: Any = {"window": window, "sinks": sinks, "window_mask": window_mask}
        make = partial(windowed_engine, **how)
        watched = serve(replace(load, watch=WatchedWindow, make=make))
        texts = [naive(load.model, v.prompt, v.limit, v.eos, window, sinks) for v in load.visits]
        assert_texts(watched, load, texts)
        return {
            "preempted": watched.engine.scheduler.preemptions > 0,
            "other than without a window": texts != [load.naive(visit) for visit in load.visits],
        }

    windows = st.sampled_from([1, 2, 3, 4, 5, 6, 20])  # at last one as long as all texts
    hold_often(0.1, is_served, loads(), windows, st.integers(0, 3))


@pytest.mark.parametrize(("window", "sinks"), [(0, 0), (-1, 2), (3, -1)])
def test_a_token_sees_itself(window: int, sinks: int) -> None:
    model = model_of(CachedLMHead, CONFIGS[1], 0)
    with pytest.raises(ValueError, match=f"window is {window} and sinks {sinks}"):
        windowed_engine(model, Limits(4, 2, 4, 1), print, window, sinks, window_mask)


def test_a_growing_text_takes_no_more_blocks() -> None:
    """Window 4 and 2 sinks in blocks of 2: one block for the sinks, and two that slide."""
    model, most = model_of(CachedLMHead, CONFIGS[2], 0), []
    engine = windowed_engine(model, Limits(10, 2, 8, 1), lambda _: None, 4, 2, window_mask)
    engine.submit([1, 2, 3], 17)
    while engine.has_work:
        engine.step()
        most.append(engine.scheduler.manager.used_blocks)
    assert max(most) == 3
    assert len(most) == 17
