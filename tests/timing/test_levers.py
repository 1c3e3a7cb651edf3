"""The table of what makes the engine's step shorter."""

import re

import pytest

from solutions.engine.products import PRODUCTS, SIZES
from solutions.engine.runner import FastCache, FusedTransformer, PackedCache, Runner, new_runner
from solutions.kv_cache import CachedLMHead
from solutions.paged_attention import PagedCache
from tests.common.commands import resize, table_in
from timing import levers


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    resize(monkeypatch, levers, STEPS=3, ROUNDS=1, REQUESTS=(1, 2))


@pytest.fixture(autouse=True)
def ways(monkeypatch):
    times = {"F.linear": [2e-3] * len(SIZES), "parts": [1e-3] * len(SIZES)}
    monkeypatch.setattr(PRODUCTS, "times_of", lambda weights: times)


@pytest.mark.slow
def test_every_lever_has_a_row_and_a_time_for_each_number_of_requests(capsys):
    levers.main()
    parts = re.split(r"\n\n(?=all products|chosen|\| operation)", capsys.readouterr().out)
    table, ways, chosen, *profiles = parts
    head, *rows = table_in(table)
    assert head == ["", "1 decoding", "2 decoding"]
    assert [name for name, *_ in rows] == list(levers.LEVERS)
    assert all(float(time) > 0 for _, *times in rows for time in times)
    assert table_in(ways) == [
        ["", *map(str, SIZES)],
        ["F.linear", *["2.00"] * len(SIZES)],
        ["parts", *["1.00"] * len(SIZES)],
    ]
    assert chosen.startswith("chosen: parts\n")
    assert [printed.count("aten::") for printed in profiles] == [pytest.approx(6, abs=2)] * 2


def test_the_levers_differ_in_their_parts():
    runners = [new_runner_of(name) for name in levers.LEVERS]
    caches = [type(runner.kv_cache) for runner in runners]
    assert caches == [PackedCache, FastCache, FastCache, FastCache]
    assert [products_of(runner) for runner in runners] == [None, None, "by_linear", "by_parts"]


def new_runner_of(name: str) -> Runner:
    model = CachedLMHead.from_pretrained("fable")
    manager = levers.EngineManager(4, 4)
    weight = model.transformer.wte.weight
    return levers.LEVERS[name](model, PagedCache(model.config, manager, "cpu", weight.dtype))


def products_of(runner: Runner) -> str | None:
    """Return which way the last layer's products go; None for a model's modules."""
    if not isinstance(runner.transformer, FusedTransformer):
        return None
    *_, (*_, mlp_proj) = runner.transformer.layers
    return mlp_proj.products[0].__qualname__.split(".")[0]


def test_a_lever_that_changes_the_tokens_is_refused(monkeypatch):
    class Shifted(Runner):
        def forward(self, batch):
            return {n: part.roll(1, -1) for n, part in super().forward(batch).items()}

    def wrong(model: CachedLMHead, cache: PagedCache) -> Runner:
        right = new_runner(model, FastCache(cache))
        return Shifted(right.transformer, right.lm_head, right.kv_cache)

    monkeypatch.setitem(levers.LEVERS, "a wrong one", wrong)
    with pytest.raises(SystemExit, match="a wrong one produces other tokens"):
        levers.main()
