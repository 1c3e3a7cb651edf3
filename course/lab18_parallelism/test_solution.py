"""The reference solution of lab 18: several ranks compute what one process computes.

In float64, for 1 to 4 ranks; calls and bytes are counted exactly.
"""

import copy
import itertools
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
from solutions.parallelism import (
    bytes_per_token,
    flat_shard,
    pipeline,
    shard,
    split_plan,
    timeline,
    wire_bytes,
)
from solutions.ranks.group import Group, in_turns
from solutions.ranks.nano_batches import Machine, Shape, WaitingWire, operations, run_parts
from solutions.ranks.schedules import replay
from solutions.ranks.sharded import Functions, block_gradients
from tests.common.engines import assert_same, model_of, normal
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
def test_a_ring_sends_the_fewest_bytes(size: int, n: int, seed: int) -> None:
    xs = torch.randint(-9, 9, (size, n), generator=torch.Generator().manual_seed(seed)).double()
    results, groups = run(size, lambda group: lab_18.ring_all_reduce(xs[group.rank], group))
    assert torch.equal(torch.stack(results), xs.sum(dim=0).expand(size, n))
    assert sum(group.sent["send"] for group in groups) == 2 * (size - 1) * n * 8
    for group in groups:
        assert group.calls == Counter(send=2 * (size - 1), recv=2 * (size - 1))


# --------------------------------------------------------------------------- tensor parallelism


@pytest.mark.parametrize("size", SIZES)
def test_cut_weights_are_held_once(size: int) -> None:
    parts = parts_of(CONFIG, size)
    for name, weight in model_of(GPTLMHead, CONFIG, 0).transformer.state_dict().items():
        held = [part[name] for part in parts]
        if "ln_" in name or name.startswith("wpe") or name.endswith("c_proj.bias"):
            assert all(torch.equal(one, weight) for one in held)
            continue
        assert all(one.untyped_storage().nbytes() * size == weight.nbytes for one in held)
        together = torch.cat(held, dim=0 if "c_proj" in name or "wte" in name else -1)
        assert torch.equal(together.flatten().sort()[0], weight.flatten().sort()[0])


@pytest.mark.parametrize("size", SIZES)
def test_a_rank_decodes_with_its_own_cache(size: int) -> None:
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


@given(sizes, st.integers(1, 3), st.sampled_from([1.0, 1e4]), st.integers(0, 9))
def test_a_logprob_costs_three_numbers_a_row(size: int, width: int, far: float, seed: int) -> None:
    logits = far * normal(seed, 6, size * width)
    targets = torch.randint(size * width, (6,))
    own = logits.chunk(size, dim=1)

    def work(group: Group) -> Tensor:
        return lab_18.vocab_parallel_logprob(own[group.rank], targets, group)

    results, groups = run(size, work)
    expected = logits.log_softmax(dim=1).gather(1, targets[:, None])[:, 0]
    assert_same_everywhere(results, expected)
    assert all(sum(group.sent.values()) <= 3 * 6 * 8 for group in groups)
    likeliest = in_turns(size, lambda g: lab_18.vocab_parallel_argmax(own[g.rank], g))
    assert all(torch.equal(ids, logits.argmax(dim=1)) for ids in likeliest)


# -------------------------------------------------------------------------------- whole models


@pytest.mark.parametrize("cut", ["tensor", "sequence"])
@pytest.mark.parametrize("size", SIZES)
def test_logits_and_bytes_are_as_promised(size: int, cut: str) -> None:
    parts, work = parts_of(CONFIG, size), getattr(lab_18, f"{cut}_parallel_logits")
    results, groups = run(size, lambda group: work(group, parts[group.rank], CONFIG, IDS))
    assert_same(torch.cat(results, dim=-1), logits_of(CONFIG, IDS))
    promised = IDS.numel() * bytes_per_token(CONFIG, size, itemsize=8)[cut]
    assert [wire_bytes(group) for group in groups] == pytest.approx([promised] * size)


def test_a_rank_holds_only_its_positions() -> None:
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
def test_schedules_differ_in_memory_alone(stages: int, count: int) -> None:
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


@pytest.mark.parametrize("size", SIZES)
def test_stages_send_one_hidden_state_a_token(size: int) -> None:
    model, texts = model_of(GPTLMHead, DEEP, 0), [IDS[:1, :7] % 16, IDS % 16]
    results, groups = run(size, lab_18.pipeline_logits, model, texts)
    for got, ids in zip(results[-1], texts, strict=True):
        assert torch.equal(got, logits_of(DEEP, ids))
    assert results[:-1] == [[]] * (size - 1)
    hop = bytes_per_token(DEEP, size, itemsize=8)["pipeline"] * sum(ids.numel() for ids in texts)
    assert [wire_bytes(group) for group in groups] == [hop] * (size - 1) + [0]


# ------------------------------------------------------------------------------- data parallelism


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


# ----------------------------------------------------------------------------- what is refused

ODD = GPTConfig(vocab_size=50, n_embd=24, n_head=12)
STAGES, PART = r"at least one stage and one|is \"gpipe\" or", torch.randn(3, 2)


@pytest.mark.parametrize(
    ("size", "refused", "sentence"),
    [
        (1, lambda _: shard({}, 0, 5, ODD), "12 heads don't"),
        (1, lambda _: shard({}, 0, 6, ODD), "50 tokens"),
        (1, lambda _: shard({}, 2, 2, ODD), "no rank 2 of 2"),
        (1, lambda _: shard({}, 0, 0, ODD), "no rank 0"),
        (1, lambda _: pipeline(0, 4, "gpipe"), STAGES),
        (1, lambda _: pipeline(4, 0, "1f1b"), STAGES),
        (1, lambda _: pipeline(4, 4, "zero"), STAGES),
        *(
            (2, partial(lab_18.vocab_parallel_embedding, torch.tensor([0, n]), PART), f"id {n} is")
            for n in (-1, 6)
        ),
        *(
            (2, partial(lab_18.vocab_parallel_logprob, PART, torch.tensor([0, n, 0])), f"{n} is")
            for n in (-1, 4)
        ),
        (2, partial(lab_18.data_parallel_gradient, torch.zeros(3), 0), "No rank has a token"),
        (5, lambda g: lab_18.pipeline_logits(g, model_of(GPTLMHead, DEEP, 0), []), "12 layers"),
        (5, lambda g: lab_18.sequence_parallel_logits(g, {}, CONFIG, IDS), "12 positions don't"),
    ],
)
def test_refusals(size: int, refused: Callable[[Group], Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        in_turns(size, refused)


# ------------------------------------------------------------------- fully sharded data parallelism


@pytest.mark.parametrize("size", SIZES)
def test_cut_units_have_the_gradients_of_one_process_and_never_two_whole_blocks(size: int) -> None:
    model, ids = model_of(GPTLMHead, CONFIG, 0), IDS[:, :6].repeat(2, 1)
    own = Functions(flat_shard, lab_18.unit_forward, lab_18.unit_backward)
    found, groups = run(
        size, lambda group: block_gradients(group, model, ids[group.rank :: size], own)
    )
    results = [gradients for gradients, _ in found]
    block_numbers = sum(weight.numel() for weight in model.transformer.h[0].parameters())
    assert [most for _, most in found] == size * [block_numbers]
    copied = copy.deepcopy(model).requires_grad_()
    positions = torch.arange(5).expand(4, 5)
    with torch.enable_grad():
        logits = copied(ids[:, :-1], positions).flatten(0, 1)
        F.cross_entropy(logits, ids[:, 1:].flatten(), reduction="sum").backward()
    for parts, block in zip(zip(*results, strict=True), copied.transformer.h, strict=True):
        wanted = torch.cat([weight.grad.flatten() for weight in block.parameters()])
        assert_same(torch.cat(parts)[: len(wanted)], wanted)
    numbers = sum(-(-len(torch.cat(p)) // size) for p in zip(*results, strict=True))
    for group in groups:
        layers = CONFIG.n_layer
        assert group.calls == Counter(all_gather=2 * layers, reduce_scatter=layers)
        assert wire_bytes(group) == 3 * (size - 1) * numbers * 8


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), sizes)
def test_a_unit_is_gathered_as_it_was_cut(lengths: list[int], size: int) -> None:
    weights = [torch.randn(length) for length in lengths]
    shapes = [weight.shape for weight in weights]
    parts = [flat_shard(weights, size, rank) for rank in range(size)]
    assert all(len(part) == -(-sum(lengths) // size) for part in parts)
    results, _ = run(size, lambda group: lab_18.gather_unit(parts[group.rank], shapes, group))
    for result in results:
        assert all(map(torch.equal, result, weights))


# ----------------------------------------------------------------------------------- nano-batches

batches = st.lists(
    st.lists(st.tuples(st.sampled_from(["compute", "memory", "network"]), st.integers(1, 5))),
    max_size=4,
)


@given(batches)
def test_no_timeline_is_shorter_than_its_busiest_resource_and_its_longest_chain(batches) -> None:
    runs = timeline(batches)
    work = Counter[str]()
    for resource, seconds in (operation for batch in batches for operation in batch):
        work[resource] += seconds
    end = max([0, *(run.end for run in runs)])
    assert end >= max([0, *work.values(), *(sum(s for _, s in batch) for batch in batches)])
    assert end <= work.total()
    for resource in work:
        own = [run for run in runs if run.resource == resource]
        assert all(one.end <= other.start for one, other in itertools.pairwise(own))


@given(st.lists(st.integers(1, 99), max_size=12), st.integers(1, 5))
def test_each_request_is_in_one_nano_batch_and_none_is_much_larger(tokens, ways) -> None:
    parts = split_plan(tokens, ways)
    assert sorted(itertools.chain(*parts)) == list(range(len(tokens)))
    assert len(parts) == min(ways, len(tokens))
    sums = [sum(tokens[request] for request in part) for part in parts]
    for part, total in zip(parts, sums, strict=True):
        assert total - min(tokens[request] for request in part) <= min(sums)


def test_halves_read_the_weights_again_and_the_wire_takes_as_long_for_twice_the_calls() -> None:
    shape = Shape(layers=1, width=8, inner=16, kv_width=4, ranks=2)
    machine = Machine(flops=1e12, bandwidth=1.0, wire=1e12, alpha=1.0)
    whole, half = (operations(requests * [(1, 3)], shape, machine) for requests in (2, 1))
    for (resource, seconds), (_, in_half) in zip(whole, half, strict=True):
        assert in_half == pytest.approx(seconds / 2 if resource == "memory" else seconds)


def test_nano_batches_in_threads_compute_what_one_batch_does() -> None:
    model = model_of(GPTLMHead, CONFIG, 0)
    carried: list[int] = []

    def at_once(sent: int) -> float:
        carried.append(sent)
        return 0.0

    wire = WaitingWire(at_once)
    (whole,), _ = run_parts(model, [IDS], wire)
    halves, seconds = run_parts(model, list(IDS.chunk(2)), wire)
    assert_same(torch.cat(halves), whole)
    assert seconds > 0
    messages = 2 * CONFIG.n_layer
    assert carried == messages * [whole.nbytes] + 2 * messages * [whole.nbytes // 2]
