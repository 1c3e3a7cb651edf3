"""The table of what makes the engine's step shorter."""

import pytest

from solutions.engine.runner import FastCache, FusedTransformer, Runner
from solutions.kv_cache import CachedLMHead
from solutions.paged_attention import PagedCache
from tests.common.commands import resize, table_in
from timing import levers


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    resize(monkeypatch, levers, STEPS=3, ROUNDS=1, REQUESTS=(1, 2))


def test_every_lever_has_a_row_and_a_time_for_each_number_of_requests(capsys):
    levers.main()
    table, *profiles = capsys.readouterr().out.split("\n\n| operation")
    head, *rows = table_in(table)
    assert head == ["", "1 decoding", "2 decoding"]
    assert [name for name, *_ in rows] == list(levers.LEVERS)
    assert all(float(time) > 0 for _, *times in rows for time in times)
    assert [printed.count("aten::") for printed in profiles] == [pytest.approx(6, abs=2)] * 2


def test_the_levers_differ_in_which_library_multiplies():
    *others, by_onednn, last = [new_runner_of(name) for name in levers.LEVERS]
    assert [products_of(runner) for runner in others] == ["modules", "modules", "usual"]
    assert [products_of(by_onednn), products_of(last)] == ["oneDNN", "parts"]
    assert isinstance(last.kv_cache, FastCache)


def new_runner_of(name: str) -> Runner:
    model = CachedLMHead.from_pretrained("fable")
    manager = levers.EngineManager(4, 4)
    weight = model.transformer.wte.weight
    return levers.LEVERS[name](model, PagedCache(model.config, manager, "cpu", weight.dtype))


def products_of(runner: Runner) -> str:
    if not isinstance(runner.transformer, FusedTransformer):
        return "modules"
    _, c_attn, *_ = runner.transformer.layers[0]
    return "usual" if c_attn.is_usual else "oneDNN" if c_attn.count == 1 else "parts"


def test_a_lever_that_changes_the_tokens_is_refused(monkeypatch):
    class Shifted(Runner):
        def forward(self, batch):
            return {n: part.roll(1, -1) for n, part in super().forward(batch).items()}

    def wrong(model: CachedLMHead, cache: PagedCache) -> Runner:
        right = levers.fused(model, FastCache(cache))
        return Shifted(right.transformer, right.lm_head, right.kv_cache)

    monkeypatch.setitem(levers.LEVERS, "a wrong one", wrong)
    with pytest.raises(SystemExit, match="a wrong one produces other tokens"):
        levers.main()
