"""An engine with many adapters writes for each request what its merged model alone would write."""

import copy
from collections import defaultdict
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autograder.judging.random_models import normals
from course.lab20_llama.test_engine import VARIANTS, llama_of
from gpt import Linear
from solutions import adapters as lab
from solutions import generate as lab_1
from solutions import kv_cache as lab_2
from solutions.adapted.adapter import Adapter, merged_model, shapes_of
from solutions.adapted.engine import add_adapters, submit
from solutions.adapters import LowRank, gathered, in_segments, merged
from solutions.engine.engine import Engine, Parts, new_engine
from solutions.engine.integrity import check_integrity
from solutions.engine.limits import Limits
from solutions.engine.managers import EngineManager
from solutions.kv_cache import CachedLMHead
from solutions.prefix_caching import PrefixManager
from solutions.quantization import QuantizedLinear, quantized
from solutions.speculative import NgramDrafter
from tests.common.engines import CONFIGS, model_of

CONFIG = CONFIGS[1]
RANKS = 3, 1, 2
SYSTEM = [5, 6, 7, 8, 9, 10]  # a prompt that many requests begin with


def gpt2() -> Any:
    return model_of(CachedLMHead, CONFIG, 1)


def a_llama() -> Any:
    return llama_of(next(iter(VARIANTS)), CONFIG, 1)


def adapters_of(model: Any) -> list[Adapter | None]:
    """Return no adapter, and three of different ranks, strong enough to change most tokens."""
    made: list[Adapter | None] = [None]
    for number, rank in enumerate(RANKS):
        normal = normals(number)
        matrices = {
            name: LowRank(normal((n_in, rank)), 0.3 * normal((rank, n_out)), 1.5 * rank)
            for name, (n_in, n_out) in shapes_of(model.config).items()
        }
        made.append(Adapter(f"adapter {number}", 1, matrices))
    return made


class Visit(NamedTuple):
    prompt: list[int]
    new: int
    adapter: int
    pause: int  # steps before it comes


prompts = st.lists(st.integers(0, 47), min_size=1, max_size=5)
visits = st.builds(
    Visit,
    st.one_of(prompts, prompts.map(lambda rest: SYSTEM + rest)),
    st.integers(1, 5),
    st.integers(0, len(RANKS)),
    st.integers(0, 2),
)


class Family:
    """A model, its adapters, and the merged models, by the number of the adapter."""

    def __init__(self, model: Any) -> None:
        self.model, self.adapters = model, adapters_of(model)
        self.models = [
            merged_model(model, adapter.matrices if adapter else {}) for adapter in self.adapters
        ]

    def text(self, visit: Visit) -> list[int]:
        """Return what the merged model writes, without any engine."""
        model = self.models[visit.adapter]
        generate = lab_2.generate if isinstance(model, CachedLMHead) else lab_1.generate
        return generate(model, torch.tensor([visit.prompt]), visit.new)[0].tolist()


@pytest.fixture(params=[gpt2, a_llama], ids=["gpt2", "llama"], scope="module")
def family(request):
    return Family(request.param())


def assert_slots_are_held(engine: Engine) -> None:
    """Assert that slots are held by just the adapters of running requests."""
    check_integrity(engine.scheduler.manager)
    scheduler: Any = engine.scheduler
    running = [request.adapter for request in scheduler.running if request.adapter is not None]
    assert scheduler.slots.keys() == {request.number for request in scheduler.running}
    users = scheduler.cache.users
    assert {a: n for a, n in users.items() if n} == {a: running.count(a) for a in running}
    assert len(users) <= scheduler.cache.size
    assert users.keys() == scheduler.cache.slots.keys()


@given(
    coming=st.lists(visits, min_size=1, max_size=7),
    size=st.integers(1, 3),
    blocks=st.integers(8, 30),
    budget=st.integers(4, 20),
    add=st.sampled_from([gathered, in_segments]),
    manager=st.sampled_from([EngineManager, PrefixManager]),
    k=st.sampled_from([0, 2]),
)
def test_each_text_is_that_of_the_merged_model(
    family, coming, size, blocks, budget, add, manager, k
):
    written = defaultdict[int, list[int]](list)
    engine = new_engine(
        family.model,
        Limits(blocks, 2, budget, 4),
        lambda output: written[output.request].extend(output.new_ids),
        (lambda: NgramDrafter(CONFIG.vocab_size)) if k else None,
        k,
        Parts(block_manager=manager),
    )
    add_adapters(engine, size, SimpleNamespace(**vars(lab) | {"in_segments": add}))
    numbers = []
    for visit in coming:
        for _ in range(visit.pause):
            engine.step()
            assert_slots_are_held(engine)
        numbers.append(
            submit(engine, visit.prompt, visit.new, adapter=family.adapters[visit.adapter])
        )
    while engine.has_work:
        engine.step()
        assert_slots_are_held(engine)
    for number, visit in zip(numbers, coming, strict=True):
        assert visit.prompt + written[number] == family.text(visit)
    assert not any(engine.scheduler.cache.users.values())


def test_no_blocks_are_shared_between_adapters_or_versions():
    model = gpt2()
    first, second = adapters_of(model)[1:3]
    renewed = Adapter(first.name, 2, second.matrices)
    parts = Parts(block_manager=PrefixManager)
    engine = new_engine(model, Limits(40, 2, 20, 4), lambda output: None, parts=parts)
    add_adapters(engine, 2)
    manager: Any = engine.scheduler.manager
    found = []
    for adapter, salt in [
        (None, b""), (None, b""), (first, b""), (first, b""), (first, b"mine"), (second, b""),
        (renewed, b""), (renewed, b""),
    ]:  # fmt: skip
        before = manager.hits
        submit(engine, [*SYSTEM, 1], 1, adapter=adapter, salt=salt)
        engine.run()
        found.append(manager.hits - before)
    assert found == [0, 6, 0, 6, 0, 0, 0, 6]


def test_a_base_in_8_bits_serves_adapters_that_are_not_rounded():
    base = quantized(model_of(CachedLMHead, CONFIG, 1), QuantizedLinear.from_linear)
    adapter = adapters_of(base)[1]
    whole = copy.deepcopy(base)
    for name, added in adapter.matrices.items():
        rounded = whole.transformer.get_submodule(name)
        linear = Linear(*rounded.codes.shape).double()
        linear.weight.data = merged(rounded.codes * rounded.scale, added)
        linear.bias.data = rounded.bias
        whole.transformer.set_submodule(name, linear)
    texts = defaultdict[int, list[int]](list)
    engine = new_engine(base, Limits(40, 2, 20, 4), lambda o: texts[o.request].extend(o.new_ids))
    add_adapters(engine, 1)
    numbers = [submit(engine, SYSTEM, 6, adapter=its) for its in (adapter, None)]
    engine.run()
    for number, model in zip(numbers, (whole, base), strict=True):
        alone = lab_2.generate(model, torch.tensor([SYSTEM]), 6)[0].tolist()
        assert SYSTEM + texts[number] == alone
