"""Lab 11's engine with a window: the naive tokens under the mask, from few blocks."""

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from solutions.engine import runner
from solutions.engine.engine import Engine, Output
from solutions.kv_cache import CachedLMHead
from solutions.kv_reduction import window_mask
from solutions.kv_variants.window_engine import GONE, windowed_engine
from tests.common.engines import CONFIGS, configs, model_of, seeds
from tests.common.serving import Load, drafters, loads


@pytest.fixture(autouse=True, scope="module")
def _short_stretches() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "STRETCH", 5)
        yield


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


def assert_books_are_kept(engine: Engine) -> None:
    """Each block has one holder, and what the next query may see is in a block."""
    manager: Any = engine.scheduler.manager
    held = Counter(b for table in manager.tables.values() for b in table if b != GONE)
    assert sorted([*held, *manager.free_blocks]) == list(range(manager.num_blocks))
    assert manager.ref_counts == [held[block] for block in range(manager.num_blocks)]
    assert set(held.values()) <= {1}
    for sequence in engine.scheduler.running:
        table, n = manager.tables[sequence.number], sequence.num_computed_tokens
        assert len(table) == manager.blocks_for(manager.lengths[sequence.number])
        seen = [p for p in range(n) if p < manager.sinks or p > n - manager.window]
        needed = {p // manager.block_size for p in seen}
        assert all(table[place] != GONE for place in needed)
        in_use = {place for place in range(n // manager.block_size) if table[place] != GONE}
        with_sinks = set(range(manager.blocks_for(manager.sinks)))
        assert in_use <= needed | with_sinks


def serve(load: Load, window: int, sinks: int) -> tuple[Engine, dict[int, list[int]]]:
    texts = {number: list(visit.prompt) for number, visit in enumerate(load.visits)}

    def receive(output: Output) -> None:
        texts[output.request] += output.new_ids

    drafter = drafters(load.kind, load.config, load.seed)
    room: Any = {**load.room, "new_drafter": drafter, "k": load.k}
    engine = windowed_engine(
        load.model,
        **room,
        on_output=receive,
        window=window,
        sinks=sinks,
        window_mask=window_mask,
    )
    for visit in load.visits:
        engine.submit(visit.prompt, visit.limit, eos_token_id=visit.eos)
    while engine.has_work:
        engine.step()
        assert_books_are_kept(engine)
    assert sorted(engine.scheduler.manager.free_blocks) == list(range(load.room["num_blocks"]))
    return engine, texts


def test_the_engine_gives_the_naive_tokens_under_the_mask() -> None:
    happened: Counter[str] = Counter()

    @given(loads(), st.integers(1, 6), st.integers(0, 3))
    def each_load(load: Load, window: int, sinks: int) -> None:
        engine, texts = serve(load, window, sinks)
        happened["preempted"] += engine.scheduler.preemptions > 0
        for number, visit in enumerate(load.visits):
            how = visit.limit, visit.eos, window, sinks
            assert texts[number] == naive(load.model, visit.prompt, *how)
            plain = load.naive(visit)
            happened["other than without a window"] += texts[number] != plain

    each_load()
    assert min(happened.values()) > 2, happened


@given(configs, seeds)
def test_a_window_as_long_as_the_text_changes_nothing(config: Any, seed: int) -> None:
    model, texts = model_of(CachedLMHead, config, seed), [[1, 2, 3], [7, 5]]
    received: dict[int, list[int]] = {0: [], 1: []}
    full = config.n_positions
    room = 2 * full, 1, 8, 4
    engine = windowed_engine(
        model, *room, lambda o: received[o.request].extend(o.new_ids), full, 0, window_mask
    )
    for text in texts:
        engine.submit(text, full)
    engine.run()
    for number, text in enumerate(texts):
        assert text + received[number] == naive(model, text, full, None, full, 0)


@pytest.mark.parametrize(("window", "sinks"), [(0, 0), (-1, 2), (3, -1)])
def test_a_token_sees_itself(window: int, sinks: int) -> None:
    model = model_of(CachedLMHead, CONFIGS[1], 0)
    with pytest.raises(ValueError, match=f"window is {window} and sinks {sinks}"):
        windowed_engine(model, 4, 2, 4, 1, lambda _: None, window, sinks, window_mask)


def test_a_growing_text_takes_no_more_blocks() -> None:
    """Window 4 and 2 sinks in blocks of 2: one block for the sinks, and two that slide."""
    model, most = model_of(CachedLMHead, CONFIGS[2], 0), []
    engine = windowed_engine(model, 10, 2, 8, 1, lambda _: None, 4, 2, window_mask)
    engine.submit([1, 2, 3], 17)
    while engine.has_work:
        engine.step()
        most.append(engine.scheduler.manager.used_blocks)
    assert max(most) == 3
    assert len(most) == 17
