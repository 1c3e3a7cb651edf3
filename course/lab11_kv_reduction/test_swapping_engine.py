"""Lab 11's engine that swaps: the plain engine's tokens, each of them computed once."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from solutions.decoding import GREEDY, SamplingParams
from solutions.kv_cache import CachedLMHead
from solutions.kv_reduction import HostPool
from solutions.kv_variants.swapping_engine import FileStore, swapping_engine
from tests.common.engines import CONFIGS, model_of, naive
from tests.common.serving import (
    Load,
    WatchedEngine,
    hold_often,
    loads,
    numbers_of,
    serve_each,
)

pytestmark = pytest.mark.usefixtures("short_stretches")


class WatchedSwapping(WatchedEngine):
    """Who is preempted keeps what was computed of it, and comes back without being admitted."""

    def preempting(self, sequence: Any) -> None:
        story = self.stories[sequence.number]
        cached = story.cached
        super().preempting(sequence)
        story.cached, story.admitted = cached, story.admitted + 1

    def step(self) -> None:
        """Of those who wait, what was computed is in the host pool, and nothing else is."""
        super().step()
        scheduler: Any = self.engine.scheduler
        host = scheduler.host.store
        out = {s.number: s.num_computed_tokens for s in scheduler.waiting if s.num_computed_tokens}
        assert out.keys() <= host.keys() == scheduler.swapped.keys()
        assert host.keys() <= set(numbers_of(scheduler.waiting))
        for number, computed in out.items():
            assert computed <= host[number].shape[2] == scheduler.swapped[number]


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=1.0)])
def test_swapping_changes_no_text_and_computes_no_token_twice(params: SamplingParams) -> None:
    def is_served(load: Load) -> dict[str, bool]:
        make = partial(swapping_engine, host=HostPool())
        watched = serve_each(replace(load, watch=WatchedSwapping, make=make), params)
        assert not watched.engine.scheduler.host.store
        for story in watched.stories.values() if load.k == 0 else []:
            once = len(story.ids) - 1
            assert story.computed in (0, once) or story.reasons == ["abort"]
            assert story.computed <= once
        return {"preempted": watched.engine.scheduler.preemptions > 0}

    hold_often(0.2, is_served, loads())


def test_files_serve_as_a_host_pool(tmp_path: Path) -> None:
    """Four grow to 11 tokens in a pool for one, and what is preempted lies in files."""
    config, prompts = CONFIGS[1], [[3, 14, 15], [9, 2, 6], [5, 35, 8], [9, 7, 9]]
    room: Any = {"num_blocks": 4, "block_size": 3, "token_budget": 8, "max_running": 4}
    make = partial(swapping_engine, host=HostPool(FileStore(tmp_path / "kv")))
    watched, files = WatchedSwapping(model_of(CachedLMHead, config, 0), **room, make=make), []
    for prompt in prompts:
        watched.submit(prompt, 8)
    while watched.engine.has_work:
        watched.step()
        files.append(len(list((tmp_path / "kv").iterdir())))
    assert max(files) > files[-1] == 0
    for story, prompt in zip(watched.stories.values(), prompts, strict=True):
        assert story.ids == naive(config, 0, prompt, 8)
        assert story.computed == 10


def test_a_file_store_acts_like_a_dict(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "a" / "b")
    one, other = torch.randn(2, 3, dtype=torch.float64), torch.ones(2, 4)[:, ::2]
    store[10], store[2] = one, other
    assert list(store) == [2, 10]
    assert len(store) == 2
    assert torch.equal(store[10], one)
    assert torch.equal(store.pop(2), other)
    assert 2 not in store
    assert store.pop(2, None) is None
    with pytest.raises(KeyError):
        del store[2]
