"""The engine's products: every way is F.linear's, the fastest is taken, and its times are kept."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import gpt
from solutions.engine import products
from solutions.engine.chosen_model import ChosenLinear, ChosenLMHead
from solutions.engine.engine import Output, new_engine
from solutions.engine.limits import Limits
from solutions.engine.products import SIZES, USUAL, WAYS, Linear, Products, in_words
from solutions.kv_cache import CachedLMHead, KVCache, generate

WEIGHTS = [torch.ones(6, 4), torch.ones(2, 4), torch.ones(6, 4)]


@pytest.fixture
def measuring(tmp_path) -> Products:
    """Choose by measuring, although other tests don't, and keep the times in a folder apart."""
    return Products(folder=tmp_path)


@pytest.fixture
def clock(monkeypatch) -> list[tuple[str, int]]:
    """Let "parts" be the fastest from 4 rows on, and F.linear below, whatever a real clock says.

    Returns what has been timed: each way and number of rows.
    """
    timed: list[tuple[str, int]] = []

    def seconds_of(made: list[Callable], inputs: list[torch.Tensor]) -> float:
        way, rows = made[0].__qualname__.split(".")[0], len(inputs[0])
        timed.append((way, rows))
        return {"by_linear": 2.0, "by_parts": 3.0 if rows < 4 else 1.0}.get(way, 4.0)

    monkeypatch.setattr(products, "seconds_of", seconds_of)
    return timed


PARTS_FROM_4 = tuple("parts" if size >= 4 else "F.linear" for size in SIZES)


# ------------------------------------------------------------------------------------ the products


@pytest.mark.parametrize("total", [0, 1, 2, 7, 40])
@pytest.mark.parametrize("n_out", [1, 6, 7, 12, 48])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_multiplies_as_f_linear_does(total: int, n_out: int, way: str) -> None:
    """The weight may lie transposed, as GPT-2's do."""
    generator = torch.Generator().manual_seed(0)
    weight, bias, hidden = (
        torch.randn(shape, generator=generator) for shape in ((n_out, 10), (n_out,), (total, 10))
    )
    for bias_or_none in (bias, None):
        wanted = F.linear(hidden, weight, bias_or_none)
        for laid_out in (weight, weight.T.contiguous().T):
            multiplied = Linear(laid_out, bias_or_none, (way,) * len(SIZES))(hidden)
            torch.testing.assert_close(multiplied, wanted)
            assert multiplied.is_contiguous()


@pytest.mark.parametrize(("rows", "way"), [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (999, -1)])
def test_a_choice_holds_up_to_the_next_size(monkeypatch, rows: int, way: int) -> None:
    made = {str(n): lambda weight, bias, n=n: lambda hidden: n for n in range(len(SIZES))}
    monkeypatch.setattr(products, "WAYS", made)
    linear = Linear(torch.ones(2, 3), choice=tuple(made))
    assert linear(torch.ones(rows, 3)) == range(len(SIZES))[way]


@torch.no_grad()
def test_the_plain_loops_model_multiplies_in_the_chosen_ways_too() -> None:
    """In float32; a copy in another dtype computes as lab 2's model does."""
    chosen = ChosenLMHead.from_pretrained("fable-draft", products=Products("parts"))
    plain = CachedLMHead.from_pretrained("fable-draft")
    products_made = [m for m in chosen.modules() if isinstance(m, gpt.Linear)]
    assert all(isinstance(m, ChosenLinear) for m in products_made)
    ids, positions = torch.randint(9, (2, 3)), torch.arange(3).expand(2, -1)
    for dtype in (torch.float32, torch.float64):
        logits = [
            model.to(dtype)(ids, positions, KVCache(model.config, 2, 3, dtype=dtype))
            for model in (copy.deepcopy(chosen), plain)
        ]
        exact = {"atol": 0, "rtol": 0} if dtype == torch.float64 else {"atol": 1e-3, "rtol": 1e-4}
        torch.testing.assert_close(*logits, **exact)


# -------------------------------------------------------------------------------------- the choice


def test_each_size_gets_the_fastest_way(measuring, clock) -> None:
    assert measuring.choice_for(WEIGHTS) == PARTS_FROM_4


def test_a_choice_in_words() -> None:
    assert in_words(PARTS_FROM_4) == "F.linear from 1, parts from 4 rows on"
    assert in_words(USUAL) == "F.linear"


def test_one_way_may_be_asked_for_without_measuring(clock) -> None:
    assert Products("oneDNN").choice_for(WEIGHTS) == ("oneDNN",) * len(SIZES)
    assert clock == []


def test_other_dtypes_are_multiplied_as_usual(measuring, clock) -> None:
    assert measuring.choice_for([weight.double() for weight in WEIGHTS]) == USUAL
    assert clock == []


def raises(weight, bias):
    raise NotImplementedError


def raises_later(weight, bias):
    def product(hidden):
        raise RuntimeError

    return product


def wrong_from_8_rows_on(weight, bias):
    return lambda hidden: F.linear(hidden, weight) * (1 + 0.01 * (len(hidden) > 7))


@pytest.mark.parametrize("wrong", [raises, raises_later, wrong_from_8_rows_on])
def test_a_way_that_is_missing_or_wrong_is_left_out(measuring, monkeypatch, clock, wrong) -> None:
    monkeypatch.setitem(products.WAYS, "parts", wrong)
    assert measuring.choice_for(WEIGHTS) == USUAL


def test_a_busy_machine_takes_f_linear_and_keeps_nothing(measuring, monkeypatch, clock) -> None:
    monkeypatch.setattr(products, "PATIENCE", 0.0)
    assert measuring.choice_for(WEIGHTS) == USUAL
    assert not list(measuring.folder.iterdir())


def test_measuring_draws_from_no_generator_of_others() -> None:
    before = torch.get_rng_state()
    assert products.measured(WEIGHTS) is not None
    assert torch.equal(torch.get_rng_state(), before)


def test_no_more_is_measured_than_caches_hold_and_one_of_each_shape(monkeypatch) -> None:
    monkeypatch.setattr(products, "ENOUGH", WEIGHTS[0].nbytes)
    assert [len(weight) for weight in products.enough_of(WEIGHTS)] == [6, 2]


def test_of_a_large_weight_a_slice_is_measured(monkeypatch) -> None:
    """The LM head of a large vocabulary would take all of the time."""
    monkeypatch.setattr(products, "LARGE", WEIGHTS[1].nbytes)
    assert [len(weight) for weight in products.enough_of(WEIGHTS)] == [2, 2, 2]


# ---------------------------------------------------------------------------------------- the file


@pytest.fixture
def kept(measuring, clock) -> Products:
    """Choose in a process that finds the times of WEIGHTS that an earlier one has kept."""
    Products(folder=measuring.folder).choice_for(WEIGHTS)
    clock.clear()
    return measuring


def test_the_next_process_reads_the_times(kept, clock) -> None:
    assert kept.choice_for(WEIGHTS) == PARTS_FROM_4
    assert clock == []


OTHER_MACHINES = {
    "processor": lambda: "another",
    "torch.get_num_threads": lambda: 77,
    "torch.__version__": "0.1",
}


@pytest.mark.parametrize("what", OTHER_MACHINES)
def test_times_of_another_machine_are_not_used(kept, clock, monkeypatch, what: str) -> None:
    monkeypatch.setattr(f"solutions.engine.products.{what}", OTHER_MACHINES[what])
    assert kept.choice_for(WEIGHTS) == PARTS_FROM_4
    assert clock != []


def test_times_of_other_shapes_are_not_used(kept, clock) -> None:
    kept.choice_for(WEIGHTS[:2])
    assert clock != []


BROKEN = [
    "",
    "[]",
    "null",
    '{"kind": "another", "times": {"F.linear": [1, 1, 1, 1, 1, 1, 1]}}',
    '{"times": {}}',
    '{"kind": KIND, "times": []}',
    '{"kind": KIND, "times": {}}',
    '{"kind": KIND, "times": {"F.linear": [1]}}',
    '{"kind": KIND, "times": {"F.linear": [1, 1, 1, 1, 1, 1, null]}}',
    '{"kind": KIND, "times": {"F.linear": [2, 2, 2, 2, 2, 2, 2], "new": [1, 1, 1, 1, 1, 1, 1]}}',
]


@pytest.mark.parametrize("content", BROKEN)
def test_a_file_that_is_of_no_use_is_written_anew(kept, clock, content: str) -> None:
    kind = products.kind_of(WEIGHTS)
    file = products.file_of(kind, kept.folder)
    right = file.read_text()
    file.write_text(content.replace("KIND", f'"{kind}"'))
    assert kept.choice_for(WEIGHTS) == PARTS_FROM_4
    assert clock != []
    assert file.read_text() == right


def test_where_nothing_can_be_written_each_process_measures(clock, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    assert Products(folder=tmp_path / "file" / "folder").choice_for(WEIGHTS) == PARTS_FROM_4


# -------------------------------------------------------------------------------------- the engine


@pytest.mark.parametrize("way", WAYS)
def test_the_engine_writes_the_same_text_in_every_way(way: str) -> None:
    """By the products that its model brings."""
    chosen = ChosenLMHead.from_pretrained("fable", products=Products(way))
    outputs: list[Output] = []
    engine = new_engine(chosen, Limits(32, 4, 16, 4), outputs.append)
    assert functions_of(engine.runner) == {WAYS[way](torch.ones(4, 4), None).__qualname__}
    model = CachedLMHead.from_pretrained("fable")
    prompts = [[15, 300, 7], list(range(100, 120)), [2000]]
    for prompt in prompts:
        engine.submit(prompt, 6)
    engine.run()
    for number, prompt in enumerate(prompts):
        new = [token for o in outputs if o.request == number for token in o.new_ids]
        assert generate(model, torch.tensor([prompt]), 6)[0].tolist() == prompt + new


def functions_of(runner: Any) -> set[str]:
    """Return the names of the functions that multiply by its layers and by its LM head."""
    parts = [part for layer in runner.transformer.layers for part in layer if callable(part)]
    return {f.__qualname__ for part in [*parts, runner.lm_head] for f in part.products}
