"""Lab 20: parts keep their laws, and a reference shows slips that no loop shows."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from models.golden import golden
from solutions import kv_cache, llama
from solutions.families import load_model
from solutions.generate import generate
from solutions.llama import Expanded, LlamaLMHead, attend_in_groups, frequencies, rotate
from tests.common.llamas import write_llama
from timing.peers.gguf_file import write_gguf

SCALED: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
IDS = torch.randint(4096, (2, 17), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def model(tmp_path) -> LlamaLMHead:
    """A random model with groups of three, whose head_dim isn't its width / heads."""
    write_llama(tmp_path, rope_parameters=SCALED)
    loaded = load_model(tmp_path).double()
    assert (loaded.config.group, loaded.config.head_dim) == (3, 32)
    return loaded


def test_golden_numbers_are_those_of_the_model(tmp_path) -> None:
    write_llama(tmp_path / "hub")
    file = tmp_path / "model.gguf"
    write_gguf(tmp_path / "hub", file, "q8_0")
    model = load_model(file)
    for row in golden(file):
        ids = torch.tensor([row["ids"]])
        logits, top = model(ids, torch.arange(ids.shape[1])[None])[0, -1].topk(5)
        assert top.tolist() == row["top"]
        assert logits.tolist() == pytest.approx(row["logits"], abs=2e-4)


def logits_of(model: LlamaLMHead) -> Tensor:
    return model(IDS, torch.arange(17).expand_as(IDS))


def loops_agree(model: Any) -> bool:
    """Whether lab 2's loop gives the naive loop's tokens, for prompts of different length."""
    cached: Any = Expanded(model)
    return all(
        kv_cache.generate(cached, ids, 12).equal(generate(model, ids, 12))
        for ids in (IDS, IDS[:, :3])
    )


def neighbors(heads: Tensor, positions: Tensor, radians: Tensor) -> Tensor:
    halves = torch.cat([heads[..., 0::2], heads[..., 1::2]], dim=-1)
    turned = rotate(halves, positions, radians)
    return torch.stack(turned.chunk(2, dim=-1), dim=-1).flatten(-2)


def without_the_mean(hidden: Tensor, gain: Tensor, eps: float) -> Tensor:
    return F.rms_norm(hidden - hidden.mean(-1, keepdim=True), gain.shape, gain, eps)


def gates_last(hidden: Tensor, gate_up: Any, down: Any) -> Tensor:
    neurons, gates = gate_up(hidden).chunk(2, dim=-1)
    return down(F.silu(gates) * neurons)


def with_gelu(hidden: Tensor, gate_up: Any, down: Any) -> Tensor:
    gates, neurons = gate_up(hidden).chunk(2, dim=-1)
    return down(F.gelu(gates) * neurons)


# A function, what it is replaced by, and whether the first token's logits show it.
SLIPS: dict[str, tuple[str, Any, bool]] = {
    "pairs of neighbors": ("rotate", neighbors, False),
    "clockwise": ("rotate", lambda heads, at, radians: rotate(heads, at, -radians), False),
    "another theta": ("frequencies", lambda size, _, kind: frequencies(size, 1e4, kind), False),
    "scaling ignored": ("frequencies", lambda size, theta, _: frequencies(size, theta), False),
    "all slowed": ("frequencies", lambda size, theta, _: frequencies(size, theta) / 8, False),
    "gates last": ("swiglu", gates_last, True),
    "gelu": ("swiglu", with_gelu, True),
    "mean subtracted": ("rms_norm", without_the_mean, True),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_that_no_loop_shows_differs_from_a_reference(slip: str, model, monkeypatch):
    right = logits_of(model)
    assert loops_agree(model)
    name, wrong, shows_at_once = SLIPS[slip]
    monkeypatch.setattr(llama, name, wrong)
    assert loops_agree(model)
    off = (logits_of(model) - right).abs().amax(dim=(0, 2)) / right.abs().max()
    assert bool(off[0]) == shows_at_once
    assert off[16] > 0.01


def test_a_loop_shows_a_norm_over_several_tokens(model, monkeypatch) -> None:
    def over_all(hidden: Tensor, gain: Tensor, eps: float) -> Tensor:
        return hidden / (hidden.square().mean() + eps).sqrt() * gain

    monkeypatch.setattr(llama, "rms_norm", over_all)
    assert not loops_agree(model)


@pytest.mark.parametrize("distance", [0, 1, 250])
def test_a_product_depends_on_the_distance_and_no_length_changes(distance: int) -> None:
    query, key = torch.randn(2, 1, 1, 1, 16, generator=torch.Generator().manual_seed(0)).double()
    turn = partial(rotate, radians=frequencies(16, 100.0))
    products = []
    for position in (0, 3, 500):
        at = torch.tensor([[position]])
        turned, other = turn(query[None], at + distance), turn(key[None], at)
        products.append(float((turned * other).sum()))
        assert turned.norm() == pytest.approx(query.norm())
    assert products == pytest.approx(products[:1] * 3, abs=1e-3)
    assert turn(key[None], torch.tensor([[0]])).equal(key[None])


@pytest.mark.parametrize(("heads", "kv_heads"), [(9, 3), (8, 2), (4, 4), (4, 1)])
def test_the_fold_is_pytorchs_attention_in_groups(heads: int, kv_heads: int) -> None:
    generator = torch.Generator().manual_seed(heads)
    queries = torch.randn(2, heads, 3, 8, generator=generator).double()
    keys, values = torch.randn(2, 2, kv_heads, 7, 8, generator=generator).double()
    mask = torch.rand(2, 1, 3, 7, generator=generator) < 0.7
    mask[..., 0] = True
    attend = F.scaled_dot_product_attention
    expected = attend(queries, keys, values, mask, enable_gqa=True)
    torch.testing.assert_close(attend_in_groups(attend, queries, keys, values, mask), expected)
