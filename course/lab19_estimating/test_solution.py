"""Estimates: every formula against a count, a published number, or a simulated service."""

import json
import math
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

from gpt import SHIPPED, GPTLMHead
from solutions.estimates.shapes import (
    CARDS,
    LIKE_LLAMA,
    MODELS,
    Machine,
    Shape,
    read_shape,
    shape_of,
    together,
)
from solutions.estimating import (
    LAWS,
    bootstrap,
    compute_optimal,
    experts_touched,
    fit_law,
    forward_flops,
    isoflop,
    kv_bytes,
    max_rate,
    parameters,
    plan,
    predicted_loss,
    ridge_batch,
    step_time,
    synthetic_runs,
    worth,
)
from solutions.serving import SLO, RequestPool, Served, goodput, open_loop
from solutions.simulated.clock import run
from solutions.simulated.service import SLOTS, STEP, TOKEN, Request, SimulatedEngine
from timing.work import weight_bytes

H100, LLAMA, MIXTRAL = CARDS["H100"], MODELS["Llama-3-8B"], MODELS["Mixtral-8x7B"]
SHAPES = st.sampled_from(list(MODELS.values()))


# ----------------------------------------------------------------------------------- parameters

SMALL = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4}
FEWER = {**SMALL, "intermediate_size": 24, "num_key_value_heads": 2}
EXPERTS = {"num_experts_per_tok": 2, "num_local_experts": 4}
QWEN: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 6}
QWEN = {**QWEN, "decoder_sparse_step": 2, "mlp_only_layers": [1]}
RANKS = {"q_lora_rank": 6, "kv_lora_rank": 5, "qk_nope_head_dim": 3, "qk_rope_head_dim": 2}
MANY = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1}
DENSE = {"moe_intermediate_size": 6, "n_shared_experts": 2, "first_k_dense_replace": 1}
LATENT = {**FEWER, "num_key_value_heads": 4, "v_head_dim": 7, "pad_token_id": None}
LATENT = {**LATENT, **RANKS, **MANY, **DENSE}
ALL_BIASES = {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}
CONFIGS = [
    AutoConfig.for_model(kind, **sizes)
    for kind, sizes in (
        ("gpt2", {"n_embd": 16, "n_layer": 3, "n_head": 4, "n_inner": 20}),
        ("opt", {**SMALL, "ffn_dim": 20, "word_embed_proj_dim": 16}),
        ("llama", FEWER),
        ("llama", {**FEWER, "head_dim": 6, **ALL_BIASES}),
        ("qwen2", FEWER),
        ("qwen3", {**FEWER, "head_dim": 6}),
        ("qwen3_moe", {**FEWER, "head_dim": 6, **QWEN}),
        ("phi3", {**FEWER, "pad_token_id": None}),  # is read as Llama's
        ("mixtral", {**FEWER, **EXPERTS}),
        ("deepseek_v3", LATENT),
        ("deepseek_v3", {**LATENT, "q_lora_rank": None}),
    )
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.model_type)
def test_parameters_are_those_of_transformers(config: Any, tmp_path):
    config.save_pretrained(tmp_path)
    shape = read_shape(tmp_path / "config.json")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    found = list(model.named_parameters())
    vectors = sum(weight.numel() for _, weight in found if weight.ndim == 1)
    head = sum(weight.numel() for name, weight in found if name == "lm_head.weight")
    count = parameters(shape)
    assert count["total"] == sum(weight.numel() for _, weight in found)
    assert (count["vectors"], count["head"]) == (vectors, head)


def test_the_shipped_model_is_read():
    assert read_shape(SHIPPED / "fable" / "config.json") == MODELS["fable"]
    count = parameters(MODELS["fable"])
    assert (count["matrices"], count["total"]) == (9_437_184, 10_788_352)


PUBLISHED = {  # parameters, and active ones, in billions
    "gpt2": (0.124, 0.124),  # its card on the hub
    "SmolLM2-135M": (0.1345, 0.1345),  # its card on the hub: 134,515,008 weights
    "OPT-13B": (12.85, 12.85),  # Zhang et al., 2022: "13B"
    "Llama-2-7B": (6.74, 6.74),  # these three: their cards on the hub
    "Llama-3-8B": (8.03, 8.03),
    "Llama-3-70B": (70.6, 70.6),
    "Mixtral-8x7B": (46.7, 12.9),  # Mistral AI, "Mixtral of experts", 2023
    "DeepSeek-V3": (671, 37.55),  # DeepSeek-AI, 2024: "671B total, 37B activated"
}


@pytest.mark.parametrize(("name", "published"), PUBLISHED.items())
def test_totals_are_the_published_ones(name: str, published: tuple[float, float]):
    count = parameters(MODELS[name])
    assert (count["total"] / 1e9, count["active"] / 1e9) == pytest.approx(published, rel=4e-3)


def test_shapes_with_experts_are_read():
    for kind, name in (("deepseek_v3", "DeepSeek-V3"), ("mixtral", "Mixtral-8x7B")):
        assert shape_of(AutoConfig.for_model(kind).to_dict()) == MODELS[name]


# ---------------------------------------------------------------------------------------- FLOPs


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.model_type)
def test_flops_are_those_of_a_counter(config: Any):
    config._attn_implementation = config._experts_implementation = "eager"
    model, shape = AutoModelForCausalLM.from_config(config), shape_of(config.to_dict())
    cache = model(torch.tensor([[3, 1, 2, 5]]), use_cache=True).past_key_values
    with FlopCounterMode(display=False) as counter:
        model(torch.tensor([[3]]), past_key_values=cache)
    expanded = 0  # of latents: transformers makes keys and values of all cached tokens again
    if shape.latent_products:  # absorbed: 4 heads * (5 + 2 + 5); expanded: 4 heads * (3 + 2 + 7)
        assert shape.latent_products == 4 * 12
        expanded = 2 * 3 * 4 * 5 * 4 * (3 + 7)  # in 3 layers, of 4 tokens, from 5 numbers each
    assert forward_flops(shape, 1, 4) + expanded == counter.get_total_flops()


@given(SHAPES, st.integers(1, 300), st.integers(1, 300), st.integers(0, 5000))
def test_chunks_take_the_flops_of_one_prefill(shape, first, second, context):
    whole = forward_flops(shape, first + second, context)
    chunks = forward_flops(shape, first, context), forward_flops(shape, second, context + first)
    assert whole == sum(chunks)


# ---------------------------------------------------------------------------------- bytes and time


KV = {"OPT-13B": 819_200, "Llama-3-8B": 131_072, "DeepSeek-V3": 70_272}  # 800 KiB, 128 KiB, 70 KB


@pytest.mark.parametrize(("name", "published"), KV.items())
def test_kv_bytes_are_the_published_ones(name: str, published: int):
    assert kv_bytes(MODELS[name], 1, 2) == published
    assert kv_bytes(MODELS[name], 7, 4) == 14 * published


def test_a_step_reads_the_weights_and_the_cache():
    shape, reader = MODELS["fable"], Machine(math.inf, 1.0, 1)
    model = GPTLMHead.from_pretrained("fable")
    for batch, new, context in ((1, 1, 0), (3, 1, 9), (2, 5, 0)):
        cached = batch * kv_bytes(shape, context + new, 4)
        assert step_time(shape, reader, batch, new, context, 4) == weight_bytes(model) + cached


@given(SHAPES, st.integers(1, 500), st.integers(1, 64), st.integers(0, 4000))
def test_a_step_computes_or_reads(shape, batch, new, context):
    computing, reading = replace(H100, bandwidth=math.inf), replace(H100, flops=math.inf)
    parts = [step_time(shape, m, batch, new, context, 2) for m in (computing, reading)]
    assert step_time(shape, H100, batch, new, context, 2) == max(parts)
    assert parts[0] == batch * forward_flops(shape, new, context) / H100.flops


def test_a_batch_reads_touched_experts():
    reader = Machine(math.inf, 1.0, 1)
    count = parameters(MIXTRAL)
    one, many = (step_time(MIXTRAL, reader, b, 1, 0, 1) - kv_bytes(MIXTRAL, b, 1) for b in (1, 500))
    assert one == pytest.approx(count["active"] - count["embedding"])
    assert many == pytest.approx(count["total"] - count["embedding"])
    assert experts_touched(MIXTRAL, 2) == pytest.approx(3.5)
    assert experts_touched(LLAMA, 2) == 0


@pytest.mark.parametrize(("shape", "context"), [(LLAMA, 0), (MIXTRAL, 100), (LLAMA, 250)])
def test_from_the_ridge_on_batches_compute(shape: Shape, context: int):
    found = int(ridge_batch(shape, H100, context, 2))
    waits = [
        step_time(shape, H100, batch, 1, context, 2)
        == batch * forward_flops(shape, 1, context) / H100.flops
        for batch in (found - 1, found)
    ]
    assert waits == [False, True]
    assert ridge_batch(LLAMA, H100, 2000, 2) == math.inf


# --------------------------------------------------------------------------------------- the plan


def fitting(shape: Shape, batch: int, context: int) -> int:
    return 2 * parameters(shape)["total"] + batch * kv_bytes(shape, context, 2)


def test_the_plan_fills_the_memory_to_the_byte():
    memory = fitting(LLAMA, 5, 1000)
    for change, expected in ((-1, 4), (0, 5), (1, 5)):
        machine = replace(H100, memory=memory + change)
        assert plan(LLAMA, machine, 1000, 2, math.inf)[0] == expected
    for memory in (fitting(LLAMA, 1, 1000) - 1, 1):
        assert plan(LLAMA, replace(H100, memory=memory), 1000, 2, math.inf) == (0, math.inf)


@given(SHAPES, st.integers(1, 3000), st.integers(1, 4), st.floats(1e-3, 1))
def test_no_larger_batch_keeps_both_limits(shape, context, width, limit):
    machine = together(H100, 20)
    batch, price = plan(shape, machine, context, width, limit)
    both = range(batch, batch + 2)
    used = [width * parameters(shape)["total"] + kv_bytes(shape, context * b, width) for b in both]
    seconds = [step_time(shape, machine, max(b, 1), 1, context - 1, width) for b in both]
    if batch:
        assert used[0] <= machine.memory
        assert seconds[0] <= limit
        assert price == pytest.approx(60 / 3600 * 1e6 * seconds[0] / batch)
    assert used[1] > machine.memory or seconds[1] > limit


# ------------------------------------------------------------------------------------- Little's law


def serve(rate: float, count: int, prompt: int, answer: int) -> list[Served]:
    """Load lab 13's simulated service with equal requests."""

    async def load() -> list[Served]:
        engine = SimulatedEngine()
        pool = RequestPool(engine)
        engine.deliver = pool.deliver

        async def send(i: int, due: float) -> Served:
            request = Request(f"request-{i}", prompt, answer)
            async for _ in pool.stream(request):
                pass
            return Served(due, request.first, request.last, request.tokens)

        dice = random.Random(0)
        return await open_loop(send, [dice.random() for _ in range(count)], rate)

    return run(load())


def test_goodput_collapses_beyond_max_rate():
    prompt, answer = 64, 32
    # In a batch of equal requests, each prompt is computed once while a request makes its answer.
    tpot = STEP + SLOTS * TOKEN + SLOTS * prompt * TOKEN / answer
    most = max_rate(SLOTS, tpot, tpot, answer)
    slo = SLO(ttft=1.0, tpot=2 * tpot)
    for share, good in ((0.7, 0.7), (1.4, 0.2)):
        served = serve(share * most, 800, prompt, answer)
        last = max(one.last or 0.0 for one in served)
        assert len(served) / last == pytest.approx(min(share, 1) * most, rel=0.06)
        assert goodput(served, slo, last) / most == pytest.approx(good, abs=0.05)


# ------------------------------------------------------------------------------------- scaling laws

BUDGETS = [10 ** (18 + i / 2) for i in range(6)]
EXPONENTS, SIZES = st.floats(0.2, 0.6), st.floats(0.1, 1)


@given(EXPONENTS, EXPONENTS, SIZES, SIZES)
def test_a_fit_without_noise_finds_the_law(alpha, beta, a, b):
    law = {"E": 1.5, "A": a * 1e9**alpha, "B": b * 1e10**beta, "alpha": alpha, "beta": beta}
    generator = torch.Generator().manual_seed(0)
    params, tokens = 10 ** (8 + 3 * torch.rand(2, 40, generator=generator, dtype=torch.float64))
    found = fit_law(params, tokens, predicted_loss(law, params, tokens))
    assert (found["alpha"], found["beta"]) == pytest.approx((alpha, beta), abs=2e-3)
    both = [predicted_loss(one, 10 * params, 10 * tokens) for one in (found, law)]
    torch.testing.assert_close(*both, rtol=1e-4, atol=0)


def test_a_fit_is_the_same_in_any_unit_and_order():
    params, tokens, loss = synthetic_runs(LAWS["replication"], BUDGETS, 8, 0.01)
    found, order = fit_law(params, tokens, loss), torch.randperm(48)
    scaled = fit_law(params[order] / 1e6, tokens[order].float() / 1e9, loss[order])
    for name in ("E", "alpha", "beta"):
        assert scaled[name] == pytest.approx(found[name], rel=1e-3)


def test_resampled_fits_agree_on_the_loss():
    law, ratios = LAWS["replication"], []
    params, tokens = compute_optimal(law, 1e23)  # 300 times the largest budget
    for found in bootstrap(*synthetic_runs(law, BUDGETS, 10, 0.01), times=20):
        expected = predicted_loss(law, params, tokens)
        assert predicted_loss(found, params, tokens) == pytest.approx(expected, rel=0.05)
        best = compute_optimal(found, 1e23)
        ratios.append(best[1] / best[0])
    assert max(ratios) > 2 * min(ratios)


@pytest.mark.parametrize(
    ("name", "expected"), [("printed", 92.6), ("unrounded", 58.9), ("replication", 18.4)]
)
def test_tokens_per_parameter_of_known_laws(name: str, expected: float):
    params, tokens = compute_optimal(LAWS[name], 5.76e23)  # Chinchilla's budget
    assert tokens / params == pytest.approx(expected, abs=0.05)


@given(st.sampled_from(list(LAWS.values())), st.floats(1e15, 1e27))
def test_no_neighbor_of_the_optimum_is_better(law, flops):
    params, tokens = compute_optimal(law, flops)
    assert 6 * params * tokens == pytest.approx(flops, rel=1e-9)
    sizes = params * torch.tensor([0.99, 1.0, 1.01], dtype=torch.float64)
    assert isoflop(law, flops, sizes).argmin() == 1


# ----------------------------------------------------------------------------------- bad shapes


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model_type": "mamba"}, "'mamba' can't be read. There are deepseek_v3"),
        ({"model_type": "dbrx", **dict.fromkeys(LIKE_LLAMA, 8), "experts": 2}, "'dbrx' can't be"),
        ({"num_experts_per_tok": 9}, "9 of 4 experts"),
        ({"num_key_value_heads": 3}, "can't share 3 KV heads"),
        ({"num_hidden_layers": 0}, "layers = 0"),
        ({"hidden_size": 18, "head_dim": None}, "4 heads can't share a width of 18"),
        ({"intermediate_size": None}, "ff = None"),
    ],
)
def test_an_impossible_config_is_refused(changes: dict[str, Any], told: str, tmp_path):
    path, config = tmp_path / "config.json", {"model_type": "mixtral", **FEWER, **EXPERTS}
    path.write_text(json.dumps({**config, **changes}), encoding="utf-8")
    with pytest.raises(ValueError, match=told):
        read_shape(path)


@pytest.mark.parametrize("text", ["[1]", "{", '{"model_type": "llama"}', ""])
def test_what_is_no_config_is_refused(text: str, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"config\.json"):
        read_shape(path)


def test_several_cards_are_one_machine():
    eight = together(H100, 8)
    assert (eight.memory, eight.flops / H100.flops) == (640 * 10**9, 8)
    assert worth(eight, 5600) == {"joule": 1, "dollar": 3600 * 5600 / 24}


@pytest.mark.parametrize(
    ("refused", "given", "sentence"),
    [
        (forward_flops, (LLAMA, 0, 10), "at least one new token"),
        (max_rate, (0, 0.5, 0.1, 6), "number of slots"),
        (Machine, (1.0, 1.0, 0), "above 0"),
        *((fit_law, [*map(torch.ones, n)], "five runs or more") for n in ((4, 4, 4), (6, 5, 6))),
        (fit_law, [torch.zeros(6), *torch.ones(2, 6)], "above 0"),
    ],
)
def test_refusals(refused: Any, given: Any, sentence: str):
    with pytest.raises(ValueError, match=sentence):
        refused(*given)
