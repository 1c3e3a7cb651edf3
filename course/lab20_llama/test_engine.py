"""All that the earlier labs build serves a Llama: the text is always the naive loop's.

The engine's every step is verified as lab 7's tests do it, on random Llamas of each kind.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

from autograder.judging.random_models import normals
from course.lab09_disaggregation.test_solution import WatchedPolicy
from course.lab11_kv_reduction.test_swapping_engine import WatchedSwapping
from course.lab11_kv_reduction.test_window_engine import WatchedWindow
from gpt import GPTConfig
from solutions import generate as lab_1
from solutions import kv_cache as lab_2
from solutions.batching import generate_continuous, generate_static
from solutions.constrained import Automaton, PaddedRows, generate_constrained
from solutions.decoding import GREEDY, CachedRows, parallel_samples, stream
from solutions.disaggregation import StallFree, prefill_in_chunks
from solutions.engine.engine import Parts
from solutions.flash_attention import TiledCache
from solutions.fused_rope import FusedLlama
from solutions.kv_cache import ThreadedLMHead
from solutions.kv_reduction import (
    HeavyCache,
    HostPool,
    QuantizedCache,
    WindowCache,
    pool_heads,
    window_mask,
)
from solutions.kv_variants.grouped_model import grouped
from solutions.kv_variants.masked_cache import MaskedCache, last_and
from solutions.kv_variants.swapping_engine import swapping_engine
from solutions.kv_variants.window_engine import windowed_engine
from solutions.llama import Expanded, LlamaConfig, LlamaLMHead
from solutions.moe import split
from solutions.paged_attention import Family, branches, generate_paged
from solutions.parallel_decoding import Lookahead, ModelTree, generate_jacobi, generate_tree
from solutions.prefix_caching import PrefixManager
from solutions.quality.streamed import streamed_bits
from solutions.quantization import QuantizedLinear, quantized
from solutions.quantized_model import norms_before
from solutions.ranks.tensor_parallel import TensorParallelLMHead
from solutions.speculative import ModelDrafter, NgramDrafter, first_layers, generate_speculative
from tests.common.engines import CONFIGS
from tests.common.serving import (
    Load,
    OwnCache,
    Visit,
    hold_often,
    loads,
    serve_each,
    the_text_itself,
)
from timing.table import Anew

pytestmark = pytest.mark.usefixtures("short_stretches")

# --------------------------------------------------------------------------------- random Llamas

# No variant has a single KV head: a cache that knows no groups would broadcast it, and be right.
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 3.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 24,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "tied": {"n_head": 2, "group": 3},
    "untied": {"n_head": 3, "group": 2, "tied": False},
    "linear, norms of heads": {
        "n_head": 2,
        "group": 2,
        "qk_norm": True,
        "scaling": {"rope_type": "linear", "factor": 3.0},
    },
    "llama3, norms of heads, untied": {
        "n_head": 2,
        "group": 3,
        "qk_norm": True,
        "tied": False,
        "scaling": LLAMA3,
    },
}
SCALES = {"c_attn": 3.0, "attn.c_proj": 8.0, "mlp.c_proj": 4.0}  # as the random GPT-2s have


@cache
@torch.inference_mode(False)  # a drafter may be the first to ask, in the middle of a step
def llama_of(variant: str, config: GPTConfig, seed: int) -> Any:
    """Return a Llama as long, as deep and with as many tokens as a GPT-2, in float64."""
    shape = LlamaConfig(
        vocab_size=config.vocab_size,
        n_positions=config.n_positions,
        n_layer=config.n_layer,
        n_embd=32,
        n_inner=40,
        head_dim=8,
        rope_theta=20.0,
        **VARIANTS[variant],
    )
    normal, weights = normals(seed), {}
    for name, parameter in LlamaLMHead(shape).state_dict().items():
        is_gain = parameter.ndim == 1 and name.endswith("weight")
        n_in = parameter.shape[0] if "c_" in name else shape.n_embd if "output" in name else 1
        scale = next((s for part, s in SCALES.items() if part in name), 1.0) / n_in**0.5
        numbers = normal(parameter.shape)
        weights[name] = 1 + 0.3 * numbers if is_gain else scale * numbers
        if name.endswith("bias"):
            weights[name] = 0.1 * numbers
    model = LlamaLMHead.of(shape, weights)
    model.transformer.fused = FusedLlama
    return model


def naive(model: Any, prompt: list[int], limit: int, eos: int | None = None) -> list[int]:
    return lab_1.generate(model, torch.tensor([prompt]), limit, eos)[0].tolist()


# ------------------------------------------------------------------------------------- the engine


def another_llama(config: GPTConfig, seed: int) -> ModelDrafter:
    model: Any = Expanded(llama_of("tied", config, seed + 1))
    return ModelDrafter(model, config.n_positions)


@dataclass(frozen=True)
class LlamaLoad(Load):
    """A load for a Llama. change: what is done to the model. new_cache: the naive loop's."""

    variant: str = "tied"
    change: Callable[[Any], Any] = lambda model: model
    new_cache: Callable[[int], Any] = lambda _: None

    @property
    def model(self) -> Any:
        return self.change(llama_of(self.variant, self.config, self.seed))

    def naive(self, visit: Visit) -> list[int]:
        model = Anew(self.model, partial(self.new_cache, self.config.n_layer))
        return naive(model, visit.prompt, visit.limit, visit.eos)


def in_codes(model: Any) -> Any:
    """In float64; of a tied model, the head alone is a kernel's."""
    return quantized(model, QuantizedLinear.from_linear)


WAYS: dict[str, dict[str, Any]] = {
    "fast path": {"parts": Parts()},
    "general path": {"parts": Parts(paged_cache=OwnCache)},
    "lab 8, prefix cache": {"parts": Parts(PrefixManager)},
    "lab 8, general path": {"parts": Parts(PrefixManager, OwnCache)},
    "lab 9, stall-free": {"parts": Parts(scheduler=StallFree), "watch": WatchedPolicy},
    "lab 10, codes": {"parts": Parts(), "change": in_codes},
    "lab 10, codes on the general path": {"parts": Parts(paged_cache=OwnCache), "change": in_codes},
    "lab 11, swapping": {
        "make": lambda *given, **named: swapping_engine(*given, host=HostPool(), **named),
        "watch": WatchedSwapping,
    },
    "lab 11, window": {
        "make": partial(windowed_engine, window=4, sinks=1, window_mask=window_mask),
        "watch": WatchedWindow,
        "new_cache": partial(MaskedCache, rule=last_and(4, 0)),
    },
    "lab 12, tiles": {"parts": Parts(paged_cache=TiledCache)},
}


@st.composite
def llama_loads(draw: st.DrawFn, way: str) -> LlamaLoad:
    """Draw a load whose requests often begin like another's prompt and answer."""
    variant = draw(st.sampled_from(list(VARIANTS)))

    def text(config: GPTConfig, seed: int, prompt: list[int], limit: int) -> list[int]:
        return naive(llama_of(variant, config, seed), prompt, limit)

    load = draw(loads(st.sampled_from([None, the_text_itself, another_llama]), text))
    return LlamaLoad(**{**vars(load), **WAYS[way], "variant": variant})


@pytest.mark.in_turn(3)
@pytest.mark.parametrize("way", WAYS)
def test_the_engine_serves_any_load_in_any_way(way: str) -> None:
    def is_served(load: LlamaLoad) -> dict[str, bool]:
        watched = serve_each(load)
        batches, manager = watched.batches, watched.engine.scheduler.manager
        return {
            "preempted": watched.engine.scheduler.preemptions > 0,
            "in chunks": any(c.wanted == 0 for batch in batches for c in batch),
            "verified": any(c.wanted > 1 for batch in batches for c in batch),
            "only chunks": any(all(c.wanted == 0 for c in batch) for batch in batches if batch),
            **({"found": manager.hits > 0} if isinstance(manager, PrefixManager) else {}),
        }

    hold_often(0.05, is_served, llama_loads(way))


def test_codes_leave_an_untied_head_as_it_is() -> None:
    model, hidden = llama_of("untied", CONFIGS[1], 0), normals(0)((3, 32))
    assert torch.equal(in_codes(model).lm_head(hidden), model.output(hidden))


# -------------------------------------------------------------------------- the loops of other labs

Ids = list[int]
PROMPTS, NEW, LONGEST = [[3, 14, 15, 9, 2], [6], [5, 35, 8], [9, 2, 6]], 8, 20
of_each_variant = pytest.mark.parametrize("variant", VARIANTS)


@cache
def texts_of(variant: str) -> list[Ids]:
    model = llama_of(variant, CONFIGS[2], 0)
    return [naive(model, prompt, NEW) for prompt in PROMPTS]


def samples(model: Any, prompt: Ids) -> list[Ids]:
    generators = [torch.Generator(), torch.Generator()]
    return parallel_samples(CachedRows(model, prompt, LONGEST), prompt, NEW, GREEDY, generators)


def speculated(model: Any, drafter: Any, prompt: Ids) -> Ids:
    return generate_speculative(model, drafter, prompt, NEW, k=3).ids


ONE_BY_ONE: dict[str, Callable[[Any, Ids], Ids]] = {
    "lab 2": lambda m, prompt: lab_2.generate(m, torch.tensor([prompt]), NEW)[0].tolist(),
    "lab 4, forks": lambda m, prompt: branches(Family(m, prompt, 40, 2), prompt, NEW, 3)[0],
    "lab 5": lambda m, prompt: [*prompt, *stream(m, prompt, NEW, GREEDY, torch.Generator())],
    "lab 5, samples": lambda m, prompt: samples(m, prompt)[1],
    "lab 6": lambda m, prompt: speculated(m, ModelDrafter(m, LONGEST), prompt),
    "lab 6, n-grams": lambda m, prompt: speculated(m, NgramDrafter(m.config.vocab_size), prompt),
    "lab 15, Jacobi": lambda m, prompt: generate_jacobi(m, prompt, NEW, window=4).ids,
    "lab 15, lookahead": lambda m, prompt: generate_tree(m, Lookahead(3, 3, 2), prompt, NEW).ids,
    "lab 15, a tree": lambda m, prompt: generate_tree(m, ModelTree(m, 40, [2, 2]), prompt, NEW).ids,
}


@of_each_variant
@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_a_loop_for_one_text_serves_an_expanded_llama(name: str, variant: str) -> None:
    model = Expanded(llama_of(variant, CONFIGS[2], 0))
    assert [ONE_BY_ONE[name](model, prompt) for prompt in PROMPTS] == texts_of(variant)


def in_any_words(model: Any) -> list[Ids]:
    """Continue prompts under a format of one state that allows all tokens and never ends."""
    index = [dict.fromkeys(range(model.config.vocab_size), 0)]
    rows, automaton = PaddedRows(model, PROMPTS, NEW), Automaton([{}], frozenset({0}))
    new = generate_constrained(rows, automaton, index, NEW, eos=-1)
    return [[*prompt, *ids] for prompt, ids in zip(PROMPTS, new, strict=True)]


LIMITS = [NEW] * len(PROMPTS)
TOGETHER: dict[str, Callable[[Any], list[Ids]]] = {
    "lab 3, static": lambda m: generate_static(m, PROMPTS, LIMITS, slots=2).outputs,
    "lab 3, continuous": lambda m: generate_continuous(m, PROMPTS, LIMITS, slots=2).outputs,
    "lab 4": lambda m: generate_paged(m, PROMPTS, LIMITS, 9, block_size=2, max_running=3),
    "lab 14": in_any_words,
}


@of_each_variant
@pytest.mark.parametrize("name", TOGETHER)
def test_a_loop_for_a_batch_serves_an_expanded_llama(name: str, variant: str) -> None:
    assert TOGETHER[name](Expanded(llama_of(variant, CONFIGS[2], 0))) == texts_of(variant)


# Lab 11's caches, with a budget as large as the text.
CACHES: dict[str, Callable[[int], Any]] = {
    "window": lambda layers: WindowCache(layers, LONGEST),
    "heavy": lambda layers: HeavyCache(layers, budget=LONGEST, recent=1),
    "codes": lambda layers: QuantizedCache(layers, bits=4, group=4, recent=LONGEST),
}


@of_each_variant
@pytest.mark.parametrize("name", CACHES)
def test_a_cache_that_knows_groups_serves_a_llama(name: str, variant: str) -> None:
    model = llama_of(variant, CONFIGS[2], 0)
    for prompt, text in zip(PROMPTS, texts_of(variant), strict=True):
        kv_cache, ids = CACHES[name](model.config.n_layer), list(prompt)
        logits = prefill_in_chunks(model, kv_cache, torch.tensor([prompt]), chunk=2)
        for position in range(len(prompt), len(text)):
            ids.append(int(logits.argmax()))
            newest = torch.tensor([[ids[-1]]]), torch.tensor([[position]])
            logits = model(*newest, kv_cache)[:, -1]
        assert ids == text


@torch.no_grad()
@of_each_variant
def test_a_window_hides_the_same_keys_as_a_mask(variant: str) -> None:
    model, ids = llama_of(variant, CONFIGS[2], 0), torch.arange(20)[None]
    window, masked = WindowCache(3, 4, sinks=1), MaskedCache(3, last_and(4, 0))
    for start in range(0, 20, 3):
        new = ids[:, start : start + 3], ids[:, start : start + 3]
        torch.testing.assert_close(model(*new, window), model(*new, masked), rtol=0, atol=1e-9)


def test_bits_of_a_streamed_text_do_not_depend_on_the_chunks() -> None:
    model, ids = llama_of("untied", CONFIGS[2], 0), torch.arange(20, 40)
    one, five = (streamed_bits(model, lambda: WindowCache(3, 4), [ids], 9, n) for n in (1, 5))
    torch.testing.assert_close(one, five)


# --------------------------------------------------------------------------------- what needs GPT-2

GPT2_ONLY = "gpt.py implements GPT-2 only"
ALONE: Any = None, None  # no group of ranks
# What is made of a GPT-2's own parts: the reason, the error's words, and what to try on a model and
# on its folder.
NEEDS_GPT2: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "lab 2's cache of tuples": (
        "its model is one of GPT-2's blocks, which return their caches",
        GPT2_ONLY,
        lambda _, folder: ThreadedLMHead.from_pretrained(folder),
    ),
    "lab 2's cache, without Expanded": (
        "it has as many heads of keys as of queries",
        "The expanded size of the tensor|must match",
        lambda model, _: lab_2.generate(model, torch.tensor([[1, 2]]), 1),
    ),
    "lab 6's first layers": (
        "a CachedLMHead is made of them, which has position embeddings",
        "no attribute 'layer_norm_epsilon'",
        lambda model, _: first_layers(model, 1),
    ),
    "lab 10's outliers": (
        "they are planted in biases of norms, too, and an RMSNorm has none",
        "no attribute 'bias'",
        lambda model, _: [norm.bias for norm in norms_before(model).values()],
    ),
    "lab 11's pooled heads": (
        "its heads are in groups already",
        "no attribute 'n_head'",
        lambda model, _: grouped(model, 1, pool_heads),
    ),
    "lab 17's parts of an MLP": (
        "half of what c_fc computes are gates, so its neurons aren't columns",
        "out of bounds",
        lambda model, _: split(model, 2, 1, [torch.ones(9, 32).double()] * 3),
    ),
    "lab 18's ranks": (
        "a part is cut by GPT-2's names, and its norms have biases",
        GPT2_ONLY,
        lambda _, folder: TensorParallelLMHead.from_pretrained(folder, *ALONE),
    ),
}


@pytest.mark.parametrize("what", NEEDS_GPT2)
def test_what_is_made_for_gpt2_refuses_a_llama(what: str, tmp_path: Any) -> None:
    """None of it computes something wrong in silence."""
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    why, message, run = NEEDS_GPT2[what]
    with pytest.raises((ValueError, RuntimeError, AttributeError, IndexError), match=message):
        pytest.fail(
            f"it works now: {run(llama_of('tied', CONFIGS[2], 0), tmp_path)}, although {why}"
        )
