"""The reference solution of lab 18: several ranks compute what one process computes.

In float64, for 1 to 4 ranks; calls and bytes are counted exactly.
"""

import copy
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gpt import GPTConfig, GPTLMHead
from solutions import parallelism as lab_18
from solutions.kv_cache import KVCache
from solutions.parallelism import bytes_per_token, pipeline, shard, wire_bytes
from solutions.ranks.group import Group, in_turns
from solutions.ranks.schedules import replay
from tests.common.engines import assert_same, model_of, naive
from timing.wire import Wire

CONFIG = GPTConfig(vocab_size=48, n_positions=16, n_embd=24, n_layer=2, n_head=12)
DEEP = GPTConfig(vocab_size=16, n_positions=12, n_embd=8, n_layer=12, n_head=2)
SIZES = range(1, 5)
IDS = torch.randint(CONFIG.vocab_size, (2, 12), generator=torch.Generator().manual_seed(0))

sizes = st.integers(1, 4)


def run(size: int, work: Callable[..., Any], *args: Any) -> tuple[list[Any], list[Group]]:
    """Return what each rank returns, and its group with the counts."""
    both = in_turns(size, lambda group: (work(group, *args), group))
    return [result for result, _ in both], [group for _, group in both]


def parts_of(config: GPTConfig, size: int) -> list[dict[str, Tensor]]:
    weights = model_of(GPTLMHead, config, 0).transformer.state_dict()
    return [shard(weights, rank, size, config) for rank in range(size)]


def logits_of(config: GPTConfig, ids: Tensor) -> Tensor:
    return model_of(GPTLMHead, config, 0)(ids, torch.arange(ids.shape[1]).expand_as(ids))


def assert_same_everywhere(results: list[Tensor], expected: Tensor) -> None:
    for result in results:
        assert_same(result, expected)
        assert torch.equal(result, results[0])


# ------------------------------------------------------------------------------------- the ring


@given(st.integers(1, 6), st.integers(0, 9), st.integers(0, 9))
def test_a_ring_sums_exactly_and_sends_the_fewest_bytes(size: int, n: int, seed: int) -> None:
    xs = torch.randint(-9, 9, (size, n), generator=torch.Generator().manual_seed(seed)).double()
    given_xs = xs.clone()
    results, groups = run(size, lambda group: lab_18.ring_all_reduce(xs[group.rank], group))
    assert torch.equal(torch.stack(results), given_xs.sum(dim=0).expand(size, n))
    assert torch.equal(xs, given_xs)
    assert sum(group.sent["send"] for group in groups) == 2 * (size - 1) * n * 8
    for group in groups:
        assert group.calls == Counter(send=2 * (size - 1), recv=2 * (size - 1))


# --------------------------------------------------------------------------- tensor parallelism


@pytest.mark.parametrize("size", SIZES)
def test_parts_hold_the_cut_weights_once_and_the_others_everywhere(size: int) -> None:
    parts = parts_of(CONFIG, size)
    for name, weight in model_of(GPTLMHead, CONFIG, 0).transformer.state_dict().items():
        held = [part[name] for part in parts]
        if "ln_" in name or name.startswith("wpe") or name.endswith("c_proj.bias"):
            assert all(torch.equal(one, weight) for one in held)
            continue
        assert all(one.untyped_storage().nbytes() * size == weight.nbytes for one in held)
        together = torch.cat(held, dim=0 if "c_proj" in name or "wte" in name else -1)
        assert torch.equal(together.flatten().sort()[0], weight.flatten().sort()[0])


def test_a_rank_has_the_queries_keys_and_values_of_its_heads() -> None:
    config = GPTConfig(vocab_size=4, n_embd=4, n_head=2)
    columns = torch.arange(12.0)
    weights = {"h.0.attn.c_attn.weight": columns.repeat(4, 1), "h.0.attn.c_attn.bias": columns}
    for rank, own in ((0, [0, 1, 4, 5, 8, 9]), (1, [2, 3, 6, 7, 10, 11])):
        for weight in shard(weights, rank, 2, config).values():
            assert (weight == torch.tensor(own)).all()


@pytest.mark.parametrize(
    ("rank", "size", "sentence"),
    [(0, 5, "12 heads don't"), (0, 6, "50 tokens"), (2, 2, "no rank 2 of 2"), (0, 0, "no rank 0")],
)
def test_a_model_that_cannot_be_cut_is_refused(rank: int, size: int, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        shard({}, rank, size, GPTConfig(vocab_size=50, n_embd=24, n_head=12))


@pytest.mark.parametrize("layer", range(CONFIG.n_layer))
@pytest.mark.parametrize("size", SIZES)
def test_a_block_takes_two_all_reduces(size: int, layer: int) -> None:
    parts, hidden = parts_of(CONFIG, size), torch.randn(2, 7, CONFIG.n_embd).double()

    def work(group: Group) -> Tensor:
        return lab_18.tensor_parallel_block(hidden, parts[group.rank], layer, CONFIG, group)

    results, groups = run(size, work)
    expected = model_of(GPTLMHead, CONFIG, 0).transformer.h[layer](hidden)
    assert_same_everywhere(results, expected)
    for group in groups:
        assert group.calls == Counter(all_reduce=2)
        assert group.sent["all_reduce"] == (2 * hidden.nbytes if size > 1 else 0)


@pytest.mark.parametrize("size", SIZES)
def test_with_a_cache_of_its_heads_a_rank_decodes_token_by_token(size: int) -> None:
    parts, hidden = parts_of(CONFIG, size), torch.randn(1, 5, CONFIG.n_embd).double()
    config = GPTConfig(n_embd=CONFIG.n_embd // size, n_head=CONFIG.n_head // size, n_layer=1)

    def decode(group: Group) -> Tensor:
        kv_cache = KVCache(config, 1, 5, torch.device("cpu"), torch.float64)
        attend, part = partial(kv_cache.attend, 0), parts[group.rank]
        outputs = [
            lab_18.tensor_parallel_block(token, part, 0, CONFIG, group, attend)
            for token in hidden.split(1, dim=1)
        ]
        return torch.cat(outputs, dim=1)

    expected = model_of(GPTLMHead, CONFIG, 0).transformer.h[0](hidden)
    assert_same_everywhere(in_turns(size, decode), expected)


# ----------------------------------------------------------------------------- a cut vocabulary


@given(sizes, st.integers(1, 3), st.integers(0, 9))
def test_an_embedding_is_looked_up_where_it_is(size: int, width: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(size * width, 3, generator=generator).double()
    ids = torch.randint(len(table), (2, 5), generator=generator)
    own = table.chunk(size)
    results, groups = run(
        size, lambda group: lab_18.vocab_parallel_embedding(ids, own[group.rank], group)
    )
    assert all(torch.equal(result, table[ids]) for result in results)
    assert all(group.calls == Counter(all_reduce=1) for group in groups)


@given(sizes, st.integers(1, 3), st.sampled_from([1.0, 1e4]), st.integers(0, 9))
def test_a_logprob_costs_three_numbers_a_row(size: int, width: int, far: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = far * torch.randn(6, size * width, generator=generator).double()
    targets = torch.randint(size * width, (6,), generator=generator)
    own = logits.chunk(size, dim=1)

    def work(group: Group) -> Tensor:
        return lab_18.vocab_parallel_logprob(own[group.rank], targets, group)

    results, groups = run(size, work)
    expected = logits.log_softmax(dim=1).gather(1, targets[:, None])[:, 0]
    assert_same_everywhere(results, expected)
    assert all(sum(group.sent.values()) <= 3 * 6 * 8 for group in groups)
    likeliest = in_turns(size, lambda g: lab_18.vocab_parallel_argmax(own[g.rank], g))
    assert all(torch.equal(ids, logits.argmax(dim=1)) for ids in likeliest)


@pytest.mark.parametrize("wrong", [-1, 6])
def test_ids_outside_the_vocabulary_are_refused(wrong: int) -> None:
    ids, part = torch.tensor([[0, wrong]]), torch.randn(3, 2)
    with pytest.raises(ValueError, match=f"token id {wrong} is outside"):
        in_turns(2, lambda group: lab_18.vocab_parallel_embedding(ids, part, group))
    with pytest.raises(ValueError, match=f"target {wrong} is outside"):
        in_turns(2, lambda group: lab_18.vocab_parallel_logprob(part[:2], ids[0], group))


# -------------------------------------------------------------------------------- whole models


@pytest.mark.parametrize("cut", ["tensor", "sequence"])
@pytest.mark.parametrize("size", SIZES)
def test_the_logits_and_the_bytes_are_the_promised_ones(size: int, cut: str) -> None:
    parts, work = parts_of(CONFIG, size), getattr(lab_18, f"{cut}_parallel_logits")
    results, groups = run(size, lambda group: work(group, parts[group.rank], CONFIG, IDS))
    assert_same(torch.cat(results, dim=-1), logits_of(CONFIG, IDS))
    promised = IDS.numel() * bytes_per_token(CONFIG, size, itemsize=8)[cut]
    assert [wire_bytes(group) for group in groups] == pytest.approx([promised] * size)


@pytest.mark.parametrize("size", SIZES)
def test_greedy_decoding_gives_the_tokens_of_the_naive_loop(size: int) -> None:
    parts, prompt = parts_of(CONFIG, size), IDS[0, :5].tolist()

    def generate(group: Group) -> list[int]:
        ids = list(prompt)
        while len(ids) < CONFIG.n_positions:
            texts = torch.tensor([ids])
            logits = lab_18.tensor_parallel_logits(group, parts[group.rank], CONFIG, texts)
            ids += lab_18.vocab_parallel_argmax(logits[:, -1], group).tolist()
        return ids

    limit = CONFIG.n_positions - len(prompt)
    assert in_turns(size, generate) == [naive(CONFIG, 0, prompt, limit)] * size


def test_a_rank_holds_only_its_positions_between_layers() -> None:
    hidden, seen = torch.randn(2, 12, 3).double(), []

    def norm(own: Tensor) -> Tensor:
        seen.append(own.shape[1])
        return own * 2

    def layer(group: Group, normed: Tensor) -> Tensor:
        assert torch.equal(normed, hidden * 2)
        return normed * group.rank

    def work(group: Group) -> Tensor:
        own = hidden.chunk(3, dim=1)[group.rank]
        return lab_18.sequence_parallel(own, norm, partial(layer, group), group)

    assert_same(torch.cat(in_turns(3, work), dim=1), hidden + hidden * 2 * (0 + 1 + 2))
    assert seen == [4, 4, 4]


# --------------------------------------------------------------------------- pipeline parallelism


@pytest.mark.parametrize("count", range(1, 10))
@pytest.mark.parametrize("stages", range(1, 6))
def test_both_schedules_have_the_same_bubble_but_not_the_same_memory(
    stages: int, count: int
) -> None:
    for kind in ("gpipe", "1f1b"):
        played = replay(pipeline(stages, count, kind))
        assert played.makespan == 3 * (count + stages - 1)
        assert played.idle == pytest.approx((stages - 1) / (count + stages - 1))
        few = [min(stages - stage, count) for stage in range(stages)]
        assert played.live == (few if kind == "1f1b" else [count] * stages)


def test_what_no_stage_can_do_is_refused() -> None:
    first, last = pipeline(2, 2, "1f1b")
    gpipe_backwards = [("F", 0), ("F", 1), ("B", 1), ("B", 0)]
    assert replay([gpipe_backwards, gpipe_backwards]).makespan == 9
    with pytest.raises(ValueError, match="stage 0 has B0 next, which needs B0 of stage 1, and"):
        replay([[("F", 0), ("B", 0), ("F", 1), ("B", 1)], gpipe_backwards[:2] + last[1::2]])
    with pytest.raises(ValueError, match="Stage 1 must do F and B of the microbatches 0 to 1"):
        replay([first, last[:-1]])
    with pytest.raises(ValueError, match="nothing to run"):
        replay([])


@pytest.mark.parametrize("wrong", [(0, 4, "gpipe"), (4, 0, "1f1b"), (4, 4, "zero")])
def test_an_impossible_pipeline_is_refused(wrong: tuple[int, int, str]) -> None:
    with pytest.raises(ValueError, match=r"at least one stage and one|is \"gpipe\" or"):
        pipeline(*wrong)


@pytest.mark.parametrize("size", SIZES)
def test_stages_give_the_same_bits_and_send_one_hidden_state_a_token(size: int) -> None:
    model, texts = model_of(GPTLMHead, DEEP, 0), [IDS[:1, :7] % 16, IDS % 16]
    results, groups = run(size, lab_18.pipeline_logits, model, texts)
    for got, ids in zip(results[-1], texts, strict=True):
        assert torch.equal(got, logits_of(DEEP, ids))
    assert results[:-1] == [[]] * (size - 1)
    hop = bytes_per_token(DEEP, size, itemsize=8)["pipeline"] * sum(ids.numel() for ids in texts)
    assert [wire_bytes(group) for group in groups] == [hop] * (size - 1) + [0]


def test_layers_and_positions_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="12 layers don't divide among 5 stages"):
        in_turns(5, lab_18.pipeline_logits, model_of(GPTLMHead, DEEP, 0), [IDS % 16])
    with pytest.raises(ValueError, match="12 positions don't divide among 5 ranks"):
        in_turns(5, lab_18.sequence_parallel_logits, {}, CONFIG, IDS)


# ------------------------------------------------------------------------------- data parallelism


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(any), st.integers(0, 9))
def test_every_token_counts_the_same(counts: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    each = [torch.randn(n, 2, 3, generator=generator).double() for n in counts]

    def work(group: Group) -> Tensor:
        own = each[group.rank]
        return lab_18.data_parallel_gradient(own.sum(dim=0), len(own), group)

    results = in_turns(len(counts), work)
    assert all(torch.equal(result, results[0]) for result in results)
    torch.testing.assert_close(results[0], torch.cat(each).mean(dim=0), rtol=1e-12, atol=1e-12)


def test_a_mean_over_no_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="No rank has a token"):
        in_turns(2, lambda group: lab_18.data_parallel_gradient(torch.zeros(3), 0, group))


@pytest.mark.parametrize("size", SIZES)
def test_a_training_step_is_that_of_one_process(size: int) -> None:
    model = model_of(GPTLMHead, CONFIG, 0)
    texts = [IDS[0, :9], IDS[1, :4], IDS[1], IDS[0, :1]]  # the last one has no loss
    before = model.transformer.wte.weight.clone()
    results, groups = run(size, lab_18.data_parallel_step, model, texts, 0.1)
    alone = copy.deepcopy(model).requires_grad_()
    logits = [alone(ids[None, :-1], torch.arange(len(ids) - 1)[None])[0] for ids in texts[:3]]
    targets = torch.cat([ids[1:] for ids in texts])
    F.cross_entropy(torch.cat(logits), targets).backward()
    for name, weight in alone.named_parameters():
        stepped = [result.get_parameter(name).detach() for result in results]
        assert_same_everywhere(stepped, weight.detach() - 0.1 * weight.grad)
    assert torch.equal(model.transformer.wte.weight, before)
    weights = sum(weight.nbytes for weight in model.parameters())
    assert groups[0].sent["all_reduce"] == (weights + 8 if size > 1 else 0)


# --------------------------------------------------------------------------------- what it costs


def test_bytes_of_fable() -> None:
    fable = GPTConfig(vocab_size=5120, n_embd=256, n_layer=12, n_head=8)
    assert bytes_per_token(fable, 2) == {
        "data": 0,
        "tensor": 25 * 1024,
        "sequence": 25.5 * 1024,
        "pipeline": 1024,
    }
    assert bytes_per_token(fable, 4)["tensor"] == 1.5 * 25 * 1024
    assert not any(bytes_per_token(fable, 1).values())
    assert Wire(alpha=1e-5, beta=1e-9).seconds(25, 1e6) == pytest.approx(1.25e-3)
