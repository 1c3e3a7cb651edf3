"""Lab 11's engine that swaps: the plain engine's tokens, each of them computed once."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from solutions.decoding import GREEDY, SamplingParams
from solutions.engine import runner
from solutions.engine.engine import Engine, Output, new_engine
from solutions.kv_cache import CachedLMHead
from solutions.kv_reduction import HostPool
from solutions.kv_variants.swapping_engine import FileStore, swapping_engine
from tests.common.engines import CONFIGS, model_of, naive
from tests.common.serving import Load, drafters, loads


@pytest.fixture(autouse=True, scope="module")
def _short_stretches() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "STRETCH", 5)
        yield


def assert_books_are_kept(engine: Engine, host: HostPool) -> None:
    """Who waits holds no block; of whom something was computed, it is in the host pool."""
    scheduler: Any = engine.scheduler
    manager = scheduler.manager
    held = Counter(block for table in manager.tables.values() for block in table)
    numbers = range(manager.num_blocks)
    assert sorted([*held.elements(), *manager.free_blocks]) == list(numbers)
    assert manager.ref_counts == [held[block] for block in numbers]
    assert manager.tables.keys() == {sequence.number for sequence in scheduler.running}
    out = {s.number: s.num_computed_tokens for s in scheduler.waiting if s.num_computed_tokens}
    assert out.keys() <= host.store.keys() == scheduler.swapped.keys()
    assert host.store.keys() <= {sequence.number for sequence in scheduler.waiting}
    for number, computed in out.items():
        assert computed <= host.store[number].shape[2] == scheduler.swapped[number]


def serve(engine: Engine, load: Load, params: SamplingParams, host: HostPool | None) -> None:
    for number, visit in enumerate(load.visits):
        engine.submit(visit.prompt, visit.limit, params, number, visit.eos)
    while engine.has_work:
        engine.step()
        if host is not None:
            assert_books_are_kept(engine, host)


class Texts(dict[int, list[int]]):
    """What each request has got."""

    def __call__(self, output: Output) -> None:
        self.setdefault(output.request, []).extend(output.new_ids)


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=1.0)])
def test_swapping_changes_no_text_and_computes_no_token_twice(params: SamplingParams) -> None:
    happened: Counter[str] = Counter()

    @given(loads())
    def each_load(load: Load) -> None:
        plain, swapped, host = Texts(), Texts(), HostPool()
        drafter = drafters(load.kind, load.config, load.seed)
        given: Any = {**load.room, "new_drafter": drafter, "k": load.k}
        serve(new_engine(load.model, **given, on_output=plain), load, params, None)
        engine = swapping_engine(load.model, **given, on_output=swapped, host=host)
        serve(engine, load, params, host)
        assert swapped == plain
        assert not host.store
        computed: Counter[int] = Counter()
        for step in engine.trace:
            for request, tokens, _ in step:
                computed[request] += tokens
        for number, visit in enumerate(load.visits):
            new = len(swapped[number])
            once = len(visit.prompt) + new - 1 if new else 0
            assert computed[number] == once if load.k == 0 else computed[number] >= once
        happened["preempted"] += engine.scheduler.preemptions > 0

    each_load()
    assert happened["preempted"] > 20, happened


def test_aborted_requests_leave_nothing_behind() -> None:
    @given(loads(st.none()), st.integers(1, 12))
    def each_load(load: Load, when: int) -> None:
        host, texts = HostPool(), Texts()
        engine = swapping_engine(load.model, **load.room, on_output=texts, host=host)
        for visit in load.visits:
            engine.submit(visit.prompt, visit.limit)
        for _ in range(when):
            engine.step()
        for number in [*engine.sequences]:
            engine.abort(number)
        engine.step()
        assert not host.store
        assert not engine.sequences
        assert_books_are_kept(engine, host)

    each_load()


def test_files_serve_as_a_host_pool(tmp_path: Path) -> None:
    """Four grow to 11 tokens in a pool for one, and what is preempted lies in files."""
    config, prompts = CONFIGS[1], [[3, 14, 15], [9, 2, 6], [5, 35, 8], [9, 7, 9]]
    model, texts, files = model_of(CachedLMHead, config, 0), Texts(), []
    host = HostPool(FileStore(tmp_path / "kv"))
    engine = swapping_engine(model, 4, 3, 8, 4, texts, host)
    for prompt in prompts:
        engine.submit(prompt, 8)
    while engine.has_work:
        engine.step()
        files.append(len(list((tmp_path / "kv").iterdir())))
    assert max(files) > 0
    assert files[-1] == 0
    for number, prompt in enumerate(prompts):
        assert prompt + texts[number] == naive(config, 0, prompt, 8)
    assert sum(tokens for step in engine.trace for _, tokens, _ in step) == 4 * 10


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
