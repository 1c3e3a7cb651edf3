"""Models with rounded weights: kernels compute what the codes say, and every loop the same text.

In float64, where the layers multiply by the codes in plain sight, texts are equal token for token.
The kernels take their inputs in bfloat16: there a token may part from the best one in a tie.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from gpt import GPTConfig, GPTLMHead, Linear
from solutions import kv_cache as lab_2
from solutions.engine.engine import Output, Parts, new_engine
from solutions.engine.limits import Limits
from solutions.kv_cache import CachedLMHead, KVCache
from solutions.paged_attention import PagedBatcher
from solutions.quality.bits_per_byte import CALIBRATION, logits_of, passages
from solutions.quantization import (
    GROUP,
    QuantizedLinear,
    absmax,
    affine,
    from_affine,
    from_groups,
    in_groups,
    int4_layer,
    int8_layer,
    quantized,
)
from solutions.quantized_model import (
    FACTOR,
    PLANTED,
    Int8Embedding,
    Int8Kernel,
    QuantizedLMHead,
    bytes_of,
    inputs_of,
    matrices,
    norms_before,
    planted_twin,
    with_activations,
    with_matrices,
)
from tests.common.engines import CONFIGS, model_of, prompts_of
from tests.common.serving import OwnCache
from timing.table.verify import COARSE_HAIR

KERNELS_TAKE = CONFIGS[:2]  # widths that are multiples of 16
SMALL = CONFIGS[1]
NAMES = [
    f"transformer.h.{layer}.{part}"
    for layer in range(SMALL.n_layer)
    for part in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
]
TEXTS = [torch.tensor([3, 14, 15, 9, 2]), torch.tensor([6]), torch.tensor([5, 35, 8])]
sizes = st.sampled_from([16, 32, 48, 80, 256, 1024])


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def linear(n_in: int, n_out: int, seed: int = 0) -> Linear:
    layer = Linear(n_in, n_out).requires_grad_(False)
    layer.weight.copy_(normal(n_in, n_out, seed=seed))
    layer.bias.copy_(normal(n_out, seed=seed + 1))
    return layer


def small() -> GPTLMHead:
    return model_of(GPTLMHead, SMALL, 0)


@cache
def fable() -> CachedLMHead:
    return CachedLMHead.from_pretrained("fable")


def assert_near(found: Tensor, expected: Tensor, share: float = 0.01) -> None:
    """Each row, by its length."""
    assert found.shape == expected.shape
    assert ((found - expected).norm(dim=-1) <= share * expected.norm(dim=-1)).all()


@pytest.fixture(autouse=True)
def untouched() -> Any:
    """The small model stays as it was, whatever a test does with it."""
    models = small(), model_of(CachedLMHead, SMALL, 0)
    before = [deepcopy(model.state_dict()) for model in models]
    yield
    for model, weights in zip(models, before, strict=True):
        assert all(w.equal(weights[name]) for name, w in model.state_dict().items())
        assert not any(part._forward_pre_hooks for part in model.modules())
        assert not any("forward" in vars(part) for part in model.modules())


# ----------------------------------------------------------------------------- a model's matrices


def test_a_copy_has_only_other_matrices() -> None:
    model, asked = small(), list[str]()

    def change(name: str, weight: Tensor) -> Tensor:
        asked.append(name)
        assert torch.equal(weight, matrices(model)[name].weight)
        return (2 * weight.T.contiguous()).T  # as `from_groups` returns them

    other = with_matrices(model, change)
    assert asked == NAMES
    for name, weight in model.state_dict().items():
        factor = 2 if name.removesuffix(".weight") in NAMES else 1
        assert torch.equal(other.state_dict()[name], factor * weight)
        assert other.state_dict()[name].is_contiguous()
    assert isinstance(with_matrices(fable(), lambda _, weight: weight), CachedLMHead)
    assert len(matrices(fable())) == 48


def test_inputs_are_what_each_matrix_multiplies() -> None:
    """Of all texts, token after token; a matrix and its inputs give what it gives."""
    found, model = inputs_of(small(), TEXTS), small()
    assert list(found) == NAMES
    for name, layer in matrices(model).items():
        assert found[name].shape == (9, layer.weight.shape[0])
    for index, (ids, start) in enumerate(zip(TEXTS, [0, 5, 6], strict=True)):
        alone = inputs_of(model, [ids])
        for name in NAMES:
            part = found[name][start : start + len(ids)]
            torch.testing.assert_close(part, alone[name], msg=f"{name}, text {index}")
    block: Any = model.transformer.h[0]
    embedded = model.transformer.embed(TEXTS[0][None], torch.arange(5)[None])
    torch.testing.assert_close(found[NAMES[0]][:5], block.ln_1(embedded)[0])


def test_products_go_through_what_is_given() -> None:
    model, seen = small(), list[tuple[str, tuple[int, ...]]]()

    def multiply(hidden: Tensor, name: str) -> Tensor:
        seen.append((name, tuple(hidden.shape)))
        return hidden @ matrices(model)[name].weight

    same = with_activations(model, multiply)
    ids = torch.stack([TEXTS[0], TEXTS[0].flip(0)])
    torch.testing.assert_close(logits_of(same)(ids[:1]), logits_of(model)(ids[:1]))
    positions = torch.arange(5).expand(2, -1)
    torch.testing.assert_close(same(ids, positions), model(ids, positions))
    widths = [weight.weight.shape[0] for weight in matrices(model).values()]
    assert seen == [
        (name, (tokens, width))
        for tokens in (5, 10)
        for name, width in zip(NAMES, widths, strict=True)
    ]
    none = with_activations(model, lambda hidden, name: 0 * multiply(hidden, name))
    assert not torch.allclose(logits_of(none)(ids[:1]), logits_of(model)(ids[:1]))


def test_a_norm_stands_before_two_of_four_matrices() -> None:
    model, found = small(), norms_before(small())
    blocks: Any = model.transformer.h
    assert list(found) == [name for name in NAMES if name.endswith(("c_attn", "c_fc"))]
    assert list(found.values()) == [norm for block in blocks for norm in (block.ln_1, block.ln_2)]


def test_the_twin_is_the_same_with_outliers() -> None:
    model, ids = fable(), passages(CALIBRATION, length=96)[:2]
    exact = GPTLMHead.from_pretrained("fable")
    twin = planted_twin(exact)
    for text in ids:
        logits, planted = (logits_of(each)(text[None]) for each in (exact, twin))
        assert (logits - planted).abs().max() <= 3e-5 * logits.abs().max()
    doubled = planted_twin(exact.double())
    logits = logits_of(exact)(ids[0][None])
    torch.testing.assert_close(logits_of(doubled)(ids[0][None]), logits, rtol=1e-11, atol=1e-11)
    before, after = inputs_of(exact, ids[:1]), inputs_of(doubled, ids[:1])
    others = [channel for channel in range(256) if channel not in PLANTED]
    for name in matrices(model):
        factor = FACTOR if name in norms_before(exact) else 1
        planted_inputs = after[name][:, list(PLANTED)]
        torch.testing.assert_close(planted_inputs, factor * before[name][:, list(PLANTED)])
        if factor != 1:
            torch.testing.assert_close(after[name][:, others], before[name][:, others])


def test_an_error_leaves_the_model_alone() -> None:
    def broken(hidden: Tensor, name: str) -> Tensor:
        raise RuntimeError("no product")

    with pytest.raises(RuntimeError, match="no product"):
        logits_of(with_activations(small(), broken))(TEXTS[0][None])
    with pytest.raises(ValueError, match="shorten the prompt"):
        inputs_of(small(), [torch.zeros(SMALL.n_positions + 1, dtype=torch.int64)])


# ------------------------------------------------------------------------------------ the kernels


@given(sizes, st.integers(1, 50), st.integers(0, 6), st.integers(0, 9))
def test_int8_kernel_is_the_quantized_layer(n_in, n_out, rows, seed):
    layer = QuantizedLinear.from_linear(linear(n_in, n_out, seed))
    kernel, hidden = (
        Int8Kernel(layer.codes, layer.scale, layer.bias),
        normal(2, rows, n_in, seed=seed + 2),
    )
    before = hidden.clone()
    product = kernel(hidden)
    assert product.dtype == hidden.dtype
    assert product.shape == (2, rows, n_out)
    assert_close_in_bfloat16(product, layer(hidden), hidden, layer.codes * layer.scale)
    assert torch.equal(hidden, before)
    assert torch.equal(kernel.codes.T, layer.codes)


def assert_close_in_bfloat16(
    found: Tensor, expected: Tensor, hidden: Tensor, weight: Tensor
) -> None:
    """Within 1% of what the product would be if nothing in it cancelled out."""
    assert ((found - expected).abs() <= 0.01 * (hidden.abs() @ weight.abs()) + 1e-6).all()


@pytest.mark.parametrize(("n_in", "n_out"), [(32, 16), (64, 48), (256, 768), (1024, 256)])
def test_int4_kernel_is_the_product_of_codes(n_in: int, n_out: int) -> None:
    layer = linear(n_in, n_out)
    grouped = affine(in_groups(layer.weight, GROUP), bits=4)
    weight, hidden = from_groups(from_affine(*grouped), n_in), normal(5, n_in)
    kernel = int4_layer(layer)
    assert_near(kernel(hidden), hidden @ weight + layer.bias)
    assert kernel.packed.nbytes == n_in * n_out // 2
    # Of one input alone, it is a row of the weights as they come back: half a step off, or less,
    # besides the 8 bits that bfloat16 has for a scale and a zero.
    one_each = kernel(torch.eye(n_in)) - layer.bias
    step = from_groups(grouped[1].expand(-1, GROUP), n_in)
    assert ((one_each - layer.weight).abs() <= step / 2 + 16 * step / 2**8).all()


@pytest.mark.parametrize("kernel", [int8_layer, int4_layer])
def test_a_row_doesnt_depend_on_the_other_rows(kernel):
    layer, hidden = kernel(linear(64, 48)), normal(9, 64)
    together = layer(hidden)
    for row, alone in zip(together, hidden, strict=True):
        assert torch.equal(row, layer(alone[None])[0])


@given(st.sampled_from([16, 32, 48]), st.integers(1, 40), st.integers(0, 9))
def test_embedding_and_head_share_codes(width: int, vocab: int, seed: int) -> None:
    weight = normal(vocab, width, seed=seed)
    weight[0] = 0
    embedding = Int8Embedding(*absmax(weight, 8, dim=1))
    codes, scale = absmax(weight, 8, dim=1)
    assert torch.equal(embedding.weight, codes * scale)
    ids = torch.arange(vocab).expand(2, -1)
    assert torch.equal(embedding(ids), (codes * scale)[ids])
    hidden = normal(2, 3, width, seed=seed + 1)
    logits = embedding.logits(hidden)
    assert logits.dtype == hidden.dtype
    assert logits.shape == (2, 3, vocab)
    assert_close_in_bfloat16(logits, hidden @ (codes * scale).T, hidden, (codes * scale).T)
    assert bytes_of(embedding) == vocab * (width + 4 + 2)


# ------------------------------------------------------------------------------- the whole model

Generate = Callable[[CachedLMHead, list[list[int]], list[int]], list[list[int]]]


@torch.no_grad()
def anew(model: CachedLMHead, prompts: list[list[int]], limits: list[int]) -> list[list[int]]:
    """The naive loop: every token is computed once more for each new one."""
    texts = []
    for prompt, limit in zip(prompts, limits, strict=True):
        ids = list(prompt)
        for _ in range(min(limit, model.config.n_positions - len(prompt))):
            ids.append(int(uncached_logits(model, ids)[-1].argmax()))
        texts.append(ids)
    return texts


def uncached_logits(model: CachedLMHead, ids: list[int]) -> Tensor:
    weight = model.transformer.wpe.weight
    kv_cache = KVCache(model.config, 1, len(ids), dtype=weight.dtype)
    return model(torch.tensor([ids]), torch.arange(len(ids))[None], kv_cache)[0]


def one_by_one(model: CachedLMHead, prompts: list[list[int]], limits: list[int]) -> Any:
    both = zip(prompts, limits, strict=True)
    return [lab_2.generate(model, torch.tensor([p]), limit)[0].tolist() for p, limit in both]


def paged(model: CachedLMHead, prompts: list[list[int]], limits: list[int]) -> Any:
    batcher = PagedBatcher(model, num_blocks=32, block_size=4, max_running=3)
    for prompt, limit in zip(prompts, limits, strict=True):
        batcher.submit(prompt, limit)
    batcher.run()
    return [batcher.outputs[number] for number in range(len(prompts))]


@dataclass
class ByEngine:
    parts: Parts = field(default_factory=Parts)

    def __call__(
        self, model: CachedLMHead, prompts: list[list[int]], limits: list[int]
    ) -> list[list[int]]:
        texts = [list(prompt) for prompt in prompts]

        def receive(output: Output) -> None:
            texts[output.request] += output.new_ids

        blocks = 32 + sum(map(len, prompts))
        # In some of its steps no prompt is computed to the end, and no logits are asked for.
        engine = new_engine(model, Limits(blocks, 4, 5, 4), receive, parts=self.parts)
        for prompt, limit in zip(prompts, limits, strict=True):
            engine.submit(prompt, limit)
        engine.run()
        return texts


engine, own_cache = ByEngine(), ByEngine(Parts(paged_cache=OwnCache))
LOOPS: list[Generate] = [one_by_one, paged, engine, own_cache]


@st.composite
def requests(draw: st.DrawFn) -> tuple[GPTConfig, int, list[list[int]], list[int]]:
    config, seed = draw(st.sampled_from(KERNELS_TAKE)), draw(st.integers(0, 3))
    prompts = draw(prompts_of(config, config.n_positions - 1))
    return config, seed, prompts, [draw(st.integers(1, 8)) for _ in prompts]


def in_codes(config: GPTConfig, seed: int) -> QuantizedLMHead:
    """In float64; the head alone is a kernel's."""
    return quantized(model_of(CachedLMHead, config, seed), QuantizedLinear.from_linear)


@given(requests())
def test_every_loop_writes_the_naive_text(request: Any) -> None:
    config, seed, prompts, limits = request
    model = in_codes(config, seed)
    expected = anew(model, prompts, limits)
    assert [loop(model, prompts, limits) for loop in LOOPS] == [expected] * len(LOOPS)


@given(requests())
def test_kernels_give_best_or_tied_tokens(request: Any) -> None:
    config, seed, prompts, limits = request
    model = quantized(deepcopy(model_of(CachedLMHead, config, seed)).float())
    for loop in LOOPS:
        texts = loop(model, prompts, limits)
        for prompt, text in zip(prompts, texts, strict=True):
            assert text[: len(prompt)] == prompt
            assert_best_or_tied(model, text, len(prompt))


def assert_best_or_tied(model: CachedLMHead, ids: list[int], prompt: int) -> None:
    with torch.no_grad():
        logits = uncached_logits(model, ids[:-1])[prompt - 1 :]
    picked = logits.gather(-1, torch.tensor(ids[prompt:])[:, None])[:, 0]
    assert ((logits.amax(-1) - picked) <= COARSE_HAIR * logits.abs().amax(-1)).all()


def test_bytes_are_codes_scales_and_the_rest() -> None:
    """The head adds none: it reads the codes of the embedding."""
    config, matrices_of = fable().config, matrices(fable()).values()
    numbers = sum(layer.weight.numel() for layer in matrices_of)
    outputs = sum(len(layer.bias) for layer in matrices_of)
    norms = (2 * config.n_layer + 1) * 2 * config.n_embd * 4
    embeddings = (
        config.vocab_size * (config.n_embd + 4 + 2) + config.n_positions * config.n_embd * 4
    )
    around = norms + embeddings
    by_kernel, by_layer = (
        quantized(fable(), new) for new in (int8_layer, QuantizedLinear.from_linear)
    )
    assert bytes_of(by_kernel) == numbers + outputs * (2 + 4) + around
    assert bytes_of(by_layer) == numbers + outputs * (4 + 4) + around
    in_4_bits = quantized(fable(), int4_layer)
    assert bytes_of(in_4_bits) == numbers // 2 + numbers // GROUP * 4 + outputs * 4 + around
    assert bytes_of(fable()) == sum(weight.nbytes for weight in fable().parameters())


@pytest.mark.parametrize(
    "make",
    [
        lambda: int8_layer(linear(24, 16)),
        lambda: int4_layer(linear(32, 24)),
        lambda: Int8Embedding(*absmax(normal(5, 24), 8, dim=1)),
    ],
)
def test_widths_are_multiples_of_16(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(ValueError, match="24 is no multiple of 16"):
        make()
