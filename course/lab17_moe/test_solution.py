"""The reference solution of lab 17: experts in any order, on any rank, add up to the same layer."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Float
from torch import Tensor

from gpt import GPTConfig, GPTLMHead
from solutions import moe
from solutions.experts import layers, placement, splitting, teaching
from solutions.generate import generate as naive_generate
from solutions.kv_cache import CachedLMHead, generate
from solutions.moe import keep, moe_forward, route
from solutions.ranks.group import Group, in_turns
from tests.common.engines import CONFIGS, Work, assert_same, model_of, works

D = 6


class Counted:
    """An expert that counts its calls and its rows."""

    def __init__(self, number: int) -> None:
        self.weight = torch.randn(D, D, generator=torch.Generator().manual_seed(number)).double()
        self.calls: list[int] = []

    def __call__(self, rows: Float[Tensor, "rows d"]) -> Float[Tensor, "rows d"]:
        self.calls.append(len(rows))
        return torch.tanh(rows @ self.weight)


@st.composite
def routed(draw: st.DrawFn, least: int = 0) -> tuple[Tensor, Tensor, Tensor, int]:
    """Draw rows, weights, the different experts of each token, and how many experts there are."""
    experts = draw(st.integers(1, 5))
    tokens, k = draw(st.integers(least, 7)), draw(st.integers(1, experts))
    orders = [draw(st.permutations(range(experts))) for _ in range(tokens)]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    hidden = torch.randn(tokens, D, generator=generator).double()
    weights = torch.rand(tokens, k, generator=generator).double()
    return hidden, weights, torch.tensor(orders).long().view(tokens, experts)[:, :k], experts


def one_by_one(hidden: Tensor, weights: Tensor, chosen: Tensor, experts: Any) -> Tensor:
    rows = torch.zeros_like(hidden)
    for token, (own, numbers) in enumerate(zip(weights, chosen.tolist(), strict=True)):
        for weight, number in zip(own, numbers, strict=True):
            rows[token] += weight * experts[number](hidden[token : token + 1])[0]
    return rows


# --------------------------------------------------------------------------------- the router


@given(st.integers(1, 6), st.integers(0, 5), st.booleans(), st.floats(0.1, 100), st.data())
def test_a_token_takes_its_likeliest_experts(
    experts: int, tokens: int, renormalize: bool, scale: float, data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, experts))
    logits = torch.randn(tokens, experts, generator=torch.Generator().manual_seed(k)).double()
    weights, chosen = route(logits * scale, k, renormalize)
    probs = (logits * scale).softmax(dim=-1)
    assert chosen.tolist() == logits.argsort(dim=-1, descending=True)[:, :k].tolist()
    expected = probs.gather(1, chosen)
    if renormalize:
        expected = expected / expected.sum(dim=1, keepdim=True)
        torch.testing.assert_close(weights.sum(dim=1), torch.ones(tokens).double())
    torch.testing.assert_close(weights, expected)


@pytest.mark.parametrize("k", [0, -1, 4])
def test_k_is_at_most_the_number_of_experts(k: int) -> None:
    with pytest.raises(ValueError, match=rf"1 to 3 experts, .* not {k}"):
        route(torch.zeros(2, 3), k, renormalize=True)


@given(routed())
def test_dispatch_sorts_the_assignments_by_expert(drawn: Any) -> None:
    *_, chosen, experts = drawn
    order, counts = moe.dispatch(chosen, experts)
    numbers = chosen.flatten().tolist()
    assert order.tolist() == sorted(range(len(numbers)), key=lambda i: (numbers[i], i))
    assert counts.tolist() == [numbers.count(expert) for expert in range(experts)]


@pytest.mark.parametrize("wrong", [-1, 3])
def test_experts_are_numbered_from_0(wrong: int) -> None:
    chosen = torch.tensor([[0, wrong]])
    for refuse in (lambda: moe.dispatch(chosen, 3), lambda: keep(chosen, 3, 1)):
        with pytest.raises(ValueError, match="numbered 0 to 2"):
            refuse()


# ------------------------------------------------------------------------------ a layer of experts


@given(routed())
def test_experts_are_called_once_with_their_own_rows(drawn: Any) -> None:
    hidden, weights, chosen, count = drawn
    expected = one_by_one(hidden, weights, chosen, [Counted(i) for i in range(count)])
    experts = [Counted(i) for i in range(count)]
    torch.testing.assert_close(moe_forward(hidden, weights, chosen, experts), expected)
    numbers = chosen.flatten().tolist()
    assert all(len(expert.calls) <= 1 for expert in experts)
    assert [sum(expert.calls) for expert in experts] == [numbers.count(i) for i in range(count)]


@given(routed(least=1), st.data())
def test_a_token_depends_neither_on_its_place_nor_on_other_tokens(
    drawn: Any, data: st.DataObject
) -> None:
    hidden, weights, chosen, count = drawn
    experts = [Counted(i) for i in range(count)]
    whole = moe_forward(hidden, weights, chosen, experts)
    some = data.draw(st.lists(st.sampled_from(range(len(hidden))), min_size=1, unique=True))
    part = moe_forward(hidden[some], weights[some], chosen[some], experts)
    torch.testing.assert_close(part, whole[some])


def test_it_is_the_layer_of_mixtral() -> None:
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    torch.manual_seed(0)
    config = MixtralConfig(
        hidden_size=16, intermediate_size=24, num_local_experts=5, num_experts_per_tok=2
    )
    block = MixtralSparseMoeBlock(config).double().requires_grad_(False)
    for weight in block.parameters():
        weight.data = torch.randn_like(weight)
    hidden = torch.randn(2, 7, 16).double()

    def swiglu(number: int) -> Callable[[Tensor], Tensor]:
        gate, up = block.experts.gate_up_proj[number].chunk(2)
        down = block.experts.down_proj[number]
        return lambda rows: (F.silu(rows @ gate.T) * (rows @ up.T)) @ down.T

    rows = hidden.flatten(0, 1)
    logits = (rows @ block.gate.weight.T).float()  # Mixtral's router works in float32
    weights, chosen = route(logits, 2, renormalize=True)
    made = moe_forward(rows, weights, chosen, [swiglu(number) for number in range(5)])
    torch.testing.assert_close(made.view_as(hidden), block(hidden), rtol=1e-10, atol=1e-10)


# ----------------------------------------------------------------------- balance and capacity


@given(routed(least=1), st.data())
def test_the_balance_loss_and_its_gradient(drawn: Any, data: st.DataObject) -> None:
    *_, chosen, experts = drawn
    tokens = len(chosen)
    flags = data.draw(st.lists(st.booleans(), min_size=tokens, max_size=tokens).filter(any))
    real = torch.tensor(flags)
    logits = torch.randn(tokens, experts, generator=torch.Generator().manual_seed(tokens)).double()
    probs = logits.softmax(dim=-1).requires_grad_()
    loss = moe.balance_loss(probs, chosen, real)
    numbers = chosen[real].flatten().tolist()
    shares = torch.tensor([numbers.count(i) / len(numbers) for i in range(experts)]).double()
    torch.testing.assert_close(loss, experts * (shares * probs[real].mean(dim=0)).sum())
    loss.backward()
    assert probs.grad is not None
    expected = experts * shares * real[:, None] / sum(flags)
    torch.testing.assert_close(probs.grad, expected)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_balance_loss_is_1_if_all_is_even_and_the_number_of_experts_at_collapse(k: int) -> None:
    chosen = torch.stack([(torch.arange(8) + slot) % 4 for slot in range(k)], dim=1)
    real = torch.ones(8, dtype=torch.bool)
    assert moe.balance_loss(torch.full((8, 4), 0.25), chosen, real) == 1
    collapsed = F.one_hot(torch.zeros(8, dtype=torch.long), 4).float()
    assert moe.balance_loss(collapsed, torch.zeros(8, 1, dtype=torch.long), real) == 4
    with pytest.raises(ValueError, match="padding"):
        moe.balance_loss(collapsed, chosen, ~real)


@given(routed(), st.integers(0, 6))
def test_first_choices_come_before_second_ones(drawn: Any, most: int) -> None:
    *_, chosen, experts = drawn
    taken, expected = [0] * experts, torch.zeros_like(chosen, dtype=torch.bool)
    for slot in range(chosen.shape[1]):
        for token, expert in enumerate(chosen[:, slot].tolist()):
            expected[token, slot] = taken[expert] < most
            taken[expert] += 1
    assert torch.equal(keep(chosen, experts, most), expected)


def test_a_capacity_is_rounded_up_and_not_below_0() -> None:
    assert [moe.capacity(10, 2, 8, factor) for factor in (0, 1, 1.25, 2)] == [0, 3, 4, 5]
    with pytest.raises(ValueError, match="not -1"):
        keep(torch.tensor([[0]]), 1, -1)


def test_a_dropped_assignment_adds_nothing() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]] * 4)
    weights, chosen = moe.capped(moe.mixed, 1.0)(logits, 2)  # three assignments for each expert
    kept = torch.tensor([[True, True]] * 3 + [[False, False]])
    assert torch.equal(weights > 0, kept)
    torch.testing.assert_close(weights[:3], moe.mixed(logits, 2)[0][:3])
    assert torch.equal(chosen, moe.mixed(logits, 2)[1])


# --------------------------------------------------------------------- experts from a dense model


@given(st.integers(1, 4), st.integers(1, 4), st.randoms(use_true_random=False))
def test_the_parts_of_an_mlp_add_up_to_it(experts: int, width: int, rng: Any) -> None:
    neurons = [number % experts for number in range(experts * width)]
    rng.shuffle(neurons)
    generator = torch.Generator().manual_seed(width)
    shapes = [(D, len(neurons)), (len(neurons),), (len(neurons), D), (3, D)]
    w_in, b_in, w_out, rows = (torch.randn(s, generator=generator).double() for s in shapes)
    parts = moe.split_mlp(w_in, b_in, w_out, torch.tensor(neurons), experts)
    made = sum(F.gelu(rows @ i + b) @ o for i, b, o in zip(*parts, strict=True))
    torch.testing.assert_close(made, F.gelu(rows @ w_in + b_in) @ w_out)


@pytest.mark.parametrize("expert_of", [[0, 0, 1], [0, 0, 1, 1], [0, 1, 3], [-1, 0, 1]])
def test_experts_get_equal_parts(expert_of: list[int]) -> None:
    given = torch.randn(D, len(expert_of)), torch.randn(len(expert_of))
    with pytest.raises(ValueError, match=r"same number|numbered 0 to 2"):
        moe.split_mlp(*given, torch.randn(len(expert_of), D), torch.tensor(expert_of), 3)


def split_model(model: GPTLMHead, config: GPTConfig, seed: int, k: int) -> Any:
    texts = [torch.arange(config.n_positions) % config.vocab_size]
    return moe.split(model, 4, k, splitting.mlp_inputs(model_of(GPTLMHead, config, seed), texts))


@given(works(most=1))
def test_all_experts_together_give_the_tokens_of_the_naive_loop(work: Work) -> None:
    model = split_model(work.model, work.config, work.seed, k=4)
    made = generate(model, torch.tensor(work.prompts), work.limits[0], work.eos)
    assert made.tolist() == work.expected


@given(works(most=1), st.integers(1, 4))
def test_a_cache_changes_no_token_of_a_model_with_few_experts(work: Work, k: int) -> None:
    prompt, limit = torch.tensor(work.prompts), work.limits[0]
    naive = split_model(model_of(GPTLMHead, work.config, work.seed), work.config, work.seed, k)
    cached = split_model(work.model, work.config, work.seed, k)
    assert torch.equal(generate(cached, prompt, limit), naive_generate(naive, prompt, limit))


@torch.no_grad()
@pytest.mark.parametrize("config", CONFIGS)
def test_copies_of_an_mlp_are_the_dense_model_if_weights_add_up_to_1(config: GPTConfig) -> None:
    dense = model_of(GPTLMHead, config, 0)
    ids = torch.arange(10).view(2, 5)
    given = ids, torch.arange(5).expand(2, 5)
    assert_same(moe.upcycled(dense, copies=4, k=2)(*given), dense(*given))
    partly = moe.upcycled(dense, copies=4, k=2, choose=partial(route, renormalize=False))
    assert (partly(*given) - dense(*given)).abs().max() > 0.01


@torch.no_grad()
def test_choices_are_watched_and_the_dense_model_stays_as_it_is() -> None:
    config = CONFIGS[1]
    dense = model_of(CachedLMHead, config, 0)
    before = copy.deepcopy(dense.state_dict())
    model = split_model(dense, config, 0, k=2)
    with layers.watched(model) as steps:
        generate(model, torch.tensor([[1, 2, 3]]), 3)
        layers.take(model, 1)
        generate(model, torch.tensor([[1, 2, 3]]), 1)
    generate(model, torch.tensor([[1, 2, 3]]), 1)
    assert [tuple(step.shape) for step in steps] == [(2, 3, 2), (2, 1, 2), (2, 1, 2), (2, 3, 1)]
    assert all(torch.equal(before[name], weight) for name, weight in dense.state_dict().items())
    assert layers.touched(steps[1]) == 2
    assert layers.touched_at_random(8, 2, 1) == 2


def test_neurons_that_are_active_together_get_into_one_expert() -> None:
    together = torch.randn(64, 3, generator=torch.Generator().manual_seed(0)).abs()
    expert_of = splitting.cluster(together[:, [0, 1, 2, 2, 1, 0, 0, 2, 1]], 3)
    assert len({tuple(expert_of[own].tolist()) for own in ([0, 5, 6], [1, 4, 8], [2, 3, 7])}) == 3
    assert expert_of.bincount().tolist() == [3, 3, 3]
    scores = torch.tensor([[9.0, 1.0], [8.0, 7.0], [3.0, 2.0], [6.0, 0.0]])
    assert splitting.evenly(scores).tolist() == [0, 0, 1, 1]  # the best scores choose first


def test_the_balance_loss_evens_the_loads() -> None:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(512, 16, generator=generator)
    wanted = torch.tanh(inputs @ torch.randn(16, 16, generator=generator))
    busiest = []
    for alpha in (0.0, 1.0):
        layer = teaching.new_layer(16, 4, 8, 1, partial(route, renormalize=False), moe_forward)
        seen = teaching.teach(layer, inputs, wanted, moe.balance_loss, alpha, steps=150)
        assert seen.shape == (150, 4)
        assert teaching.unexplained(layer(inputs), wanted) < 1
        busiest.append(float(layers.loads(layer.chosen, 4).max()))
    assert busiest[1] < 0.35 < 0.4 < busiest[0]


# --------------------------------------------------------------------- experts on several ranks


def counted_rank(group: Group, owner: Tensor, hidden: Tensor, *rest: Any) -> Any:
    """Do one rank's work; return its rows, the group, and how many rows `local` got in a call."""
    weights, chosen, experts = rest
    own = torch.arange(len(hidden)).tensor_split(group.size)[group.rank]
    local, calls = moe.local_experts(group.rank, experts, owner), []

    def counting(rows: Tensor, *others: Tensor) -> Tensor:
        calls.append(len(rows))
        return local(rows, *others)

    made = moe.exchange(hidden[own], weights[own], chosen[own], owner, counting, group)
    return made, group, calls


@given(routed(), st.integers(1, 4), st.data())
def test_experts_on_any_ranks_give_what_one_process_gives(
    drawn: Any, size: int, data: st.DataObject
) -> None:
    hidden, weights, chosen, count = drawn
    owner = torch.tensor([data.draw(st.integers(0, size - 1)) for _ in range(count)])
    experts = [Counted(i) for i in range(count)]
    expected = moe_forward(hidden, weights, chosen, experts)
    ranks = in_turns(size, counted_rank, owner, hidden, weights, chosen, experts)
    torch.testing.assert_close(torch.cat([made for made, *_ in ranks]), expected)
    needed = [owner[own].unique().tolist() for own in chosen]  # the ranks of each token
    homes = [r for r, own in enumerate(torch.arange(len(hidden)).tensor_split(size)) for _ in own]
    away = sum(rank != home for home, own in zip(homes, needed, strict=True) for rank in own)
    row, number = D * 8, chosen.shape[1] * 8  # bytes of a row, and of its weights or its experts
    sent = sum(group.sent["all_to_all"] for _, group, _ in ranks)
    assert sent == away * (2 * row + 2 * number)
    assert [len(calls) for *_, calls in ranks] == [1] * size
    assert sum(rows for *_, calls in ranks for rows in calls) == sum(map(len, needed))


@pytest.mark.parametrize("owner", [[0, 2], [-1, 0]])
def test_an_owner_is_a_rank_of_the_group(owner: list[int]) -> None:
    tokens = torch.randn(2, D), torch.ones(2, 1), torch.tensor([[0], [1]])

    def no_share(rows: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        return rows

    with pytest.raises(ValueError, match="numbered 0 to 1"):
        in_turns(2, lambda group: moe.exchange(*tokens, torch.tensor(owner), no_share, group))


def test_a_hop_is_a_change_of_rank_between_layers() -> None:
    owner = torch.tensor([[0, 0, 1, 1], [1, 0, 1, 0], [0, 0, 1, 1]])
    assert moe.hops(torch.tensor([[0, 1, 0]]), owner) == 0
    assert moe.hops(torch.tensor([[0, 0, 0], [3, 2, 1]]), owner) == 3
    assert moe.hops(torch.empty(0, 3).long(), owner) == 0


@given(st.integers(1, 2), st.randoms(use_true_random=False))
def test_placement_follows_the_tokens(width: int, rng: Any) -> None:
    """Tokens that stay in one group of experts need no hop if the group is on one rank."""
    ranks, layers = 2, 4
    experts = ranks * width
    groups = [rng.sample(range(experts), experts) for _ in range(layers)]
    choices = [(token * ranks // 40, rng.randrange(width)) for token in range(40)]
    routes = torch.tensor([[g[rank * width + i] for g in groups] for rank, i in choices])
    owner = placement.by_affinity(routes, experts, ranks)
    assert all(counts.bincount().tolist() == [width] * ranks for counts in owner)
    assert moe.hops(routes, owner) <= moe.hops(routes, placement.in_order(layers, experts, ranks))
