"""What the cases and drivers of labs 7 to 13 promise, one by one."""

import ast
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from autograder.attempt.drivers.engine import logits_after
from autograder.attempt.drivers.flash_attention import Holding
from autograder.attempt.drivers.prefix_caching import Beginnings, nodes_of, served, told_of
from autograder.attempt.drivers.quantization import bytes_in
from autograder.exercises import exercises
from autograder.judging.draws import model_seed
from autograder.judging.exercise import Exercise
from autograder.lending.slow_memory import MOVED
from solutions.flash_attention import State, count_traffic
from solutions.prefix_caching import PrefixManager, RadixTree, choose_next
from solutions.quantization import (
    absmax,
    affine,
    calibrate,
    from_affine,
    gptq,
    int8_matmul,
    split_outliers,
)
from tests.common.trials import cases_of, every_exercise, trials

EXERCISES = exercises()
seeds = pytest.mark.parametrize("seed", range(3))


@pytest.mark.slow
@pytest.mark.in_turn(4)
@seeds
@every_exercise
def test_rounding_decides_nothing(exercise: Exercise, seed: int) -> None:
    """What is looked at is 0 throughout, or large beside the errors of float64."""
    trial = trials(exercise, seed)[0]
    for value in [seen.value for outcome in trial.expected for seen in outcome.seen]:
        if isinstance(value, Tensor) and value.is_floating_point():
            finite = value[value.isfinite()].abs()
            assert not finite.any() or finite.max() > 1e-6


# ------------------------------------------------------------------------------ the engine, lab 7


def test_what_follows_a_text_depends_on_every_token_and_its_place() -> None:
    text = [5, 9, 60, 2]
    likeliest = int(logits_after(text, 7).argmax())
    changed = [[*text[:n], text[n] + 1, *text[n + 1 :]] for n in range(4)]
    others = [*changed, text[::-1], text[1:], text[:-1], [0, *text]]
    assert likeliest not in [int(logits_after(other, 7).argmax()) for other in others]


# -------------------------------------------------------------------------- prefix caching, lab 8


@seeds
def test_what_a_newcomer_finds_is_prescribed_as_a_right_match_finds_it(seed: int) -> None:
    """After the last step each request holds the same blocks, by hand and as built."""
    by_hand, as_built = trials(EXERCISES["prefix_caching.PrefixManager.admit"], seed)
    for one, other in zip(by_hand.expected, as_built.expected, strict=True):
        for what in ("`tables`", "`ref_counts`", "`free_blocks`", "`queried` and `hits`"):
            last = [[s.value for s in each.seen if s.what == what][-1] for each in (one, other)]
            assert last[0] == last[1]


def test_a_tree_is_looked_at_though_it_is_none() -> None:
    """Circles come to an end, and what is no node is named."""
    tree: Any = RadixTree()
    tree.insert([1, 2, 3], [10, 20, 30])
    node, _ = tree.walk([1])
    node.children[1] = node
    node.children[9] = "text"
    told = [(what, value) for what, value, _ in told_of(nodes_of(tree), "")]
    assert ("The node at [1]", "has children under [1, 2, 9]") in told
    assert ("The node at [1], once more,", "is a str") in told
    assert ("The node at [1, 1]", "has children under [1, 2, 9], and another parent") in told
    assert len(nodes_of(tree)) == 5


POLICIES: dict[str, Callable[..., int]] = {
    "first come": lambda matched, waited, patience: 0,
    "with patience": choose_next,
    "the longest match": lambda matched, waited, patience: choose_next(matched, waited, 99),
}


@seeds
def test_a_queue_tells_the_policies_apart(seed: int) -> None:
    """One queue at least is served otherwise by each of them, and the longest match saves work."""
    cases = cases_of(EXERCISES["prefix_caching.choose_next"], seed)
    queues = [case.data["queue"] for case in cases if case.data["queue"]]
    computed: Counter[str] = Counter()
    orders = set()
    for name, policy in POLICIES.items():
        results = [served(policy, **queue) for queue in queues]
        computed[name] = sum(tokens.value for tokens, _, _ in results)
        orders.add(str([order.value for _, _, order in results]))
    assert computed["the longest match"] < computed["with patience"] < computed["first come"]
    assert len(orders) == 3


@given(st.lists(st.integers(0, 2), max_size=9), st.integers(3, 9))
def test_a_queue_finds_what_a_manager_would(groups: list[int], num_blocks: int) -> None:
    """Texts of three blocks, two of which their group has in common."""
    cache, manager = Beginnings(num_blocks, 4), PrefixManager(num_blocks, 4)
    for number, group in enumerate(groups):
        text = [*range(100 * group, 100 * group + 8), *range(1000 + 4 * number, 1004 + 4 * number)]
        assert cache.match(text) == 4 * len(manager.match(text))
        assert cache.match(text[:8]) == 4 * len(manager.match(text[:8]))
        cache.serve(text)
        assert manager.admit(0, text) % 4 == 0
        manager.publish(0, text, len(text))
        manager.free(0)


# ---------------------------------------------------------------------------- disaggregation, lab 9


def test_what_is_adopted_is_never_prefilled_here() -> None:
    """Of a request that isn't preempted, decode computes all new tokens but the last."""
    (trial,) = trials(EXERCISES["disaggregation.adopt"])
    case, outcome = trial.cases[1], trial.expected[1]
    assert case.label == "three new tokens"
    told = [s.value for s in outcome.seen if s.what == "What the runner is asked for, by request,"]
    steps = [ast.literal_eval(what.removeprefix("is ")) for what in told]
    chunks = [chunk for step in steps for chunk in step.values()]
    assert [(chunk["start"], len(chunk["ids"])) for chunk in chunks] == [(5, 1), (6, 1)]


# ----------------------------------------------------------------------------- quantization, lab 10


def off_half(steps: Tensor) -> float:
    """How far the nearest of these is from the middle between two codes."""
    return float((steps.abs() % 1 - 0.5).abs().min())


@seeds
def test_no_number_lies_between_two_codes_and_none_is_half_a_step_off(seed: int) -> None:
    for case in cases_of(EXERCISES["quantization.absmax"], seed):
        weight = case.data["weight"]
        codes, scale = absmax(**case.data)
        assert off_half(weight / scale) > 1e-3
        assert ((weight - codes * scale).abs() <= scale / 2).all()
    for case in cases_of(EXERCISES["quantization.affine"], seed):
        groups = case.data["groups"]
        codes, scale, zero = affine(**case.data)
        assert off_half(groups / scale) > 1e-3
        assert off_half(groups.amin(dim=1, keepdim=True).clamp(max=0) / scale) > 1e-3
        assert ((groups - from_affine(codes, scale, zero)).abs() <= scale / 2).all()


@seeds
def test_the_cases_reach_both_ends_of_the_codes(seed: int) -> None:
    found: dict[Any, set[int]] = defaultdict(set)
    for function in (absmax, affine):
        for case in cases_of(EXERCISES[f"quantization.{function.__name__}"], seed):
            codes, _, *zero = function(**case.data)
            found[function, case.data["bits"]] |= {*codes.flatten().tolist()}
            found["zero", case.data["bits"]] |= {int(z) for table in zero for z in table}
    for bits in (2, 3, 4, 8):
        first, last = 1 - 2 ** (bits - 1), 2**bits - 1
        assert {first, 0, -first} <= found[absmax, bits]
        assert {0, last} <= found[affine, bits]
        assert bits < 4 or {0, last} <= found["zero", bits]


@seeds
def test_the_best_scale_is_now_the_smallest_now_the_largest_and_often_between(seed: int) -> None:
    places: Counter[tuple[bool, bool]] = Counter()
    for case in cases_of(EXERCISES["quantization.calibrate"], seed):
        best, scales = calibrate(**case.data), case.data["scales"]
        places[bool((scales < best).any()), bool((scales > best).any())] += 1
    assert places[True, True] >= 5
    assert min(places[False, True], places[True, False]) >= 1


def test_all_memory_of_a_layer_counts_and_each_piece_once() -> None:
    layer: Any = nn.Linear(3, 2)
    assert bytes_in(layer) == 32
    layer.extra = nn.ModuleList([nn.Linear(2, 2, bias=False)])
    layer.again = [layer.weight, layer.weight.T, layer.weight[:1]]
    assert bytes_in(layer) == 48
    layer.first = {"row": (torch.zeros(10, 2)[:1],)}
    assert bytes_in(layer) == 128


@pytest.mark.parametrize("product", [int8_matmul, split_outliers])
@pytest.mark.parametrize("seed", range(5))
def test_no_activation_is_on_the_verge_of_another_code(product, seed):
    """Rounding errors, of float32 even, change the product by no more than themselves."""
    for case in cases_of(EXERCISES[f"quantization.{product.__name__}"], seed):
        hidden, *given = case.data.values()
        right, nearby = product(hidden, *given), product(hidden * (1 + 1e-7), *given)
        assert (nearby - right).abs().max() <= 1e-6 * right.abs().max(), case.label


@pytest.mark.parametrize("seed", range(5))
def test_no_weight_is_on_the_verge_of_another_code(seed: int) -> None:
    """Neither those that are rounded first nor those that have taken over errors."""
    for case in cases_of(EXERCISES["quantization.gptq"], seed):
        weight, *given = case.data.values()
        noise = 1 + 1e-6 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
        assert torch.equal(gptq(weight * noise, *given), gptq(weight, *given)), case.label


# -------------------------------------------------------------------------- flash attention, lab 12

FLASH = EXERCISES["flash_attention.flash_attention"]


def test_the_numbers_moved_are_those_that_were_counted() -> None:
    (trial,) = trials(FLASH)
    for case, outcome in zip(trial.cases, trial.expected, strict=True):
        sizes = [case.data[n] for n in ("q_len", "k_len", "head_dim", "block_q", "block_k")]
        _, tiled = count_traffic(*sizes)
        assert outcome.counts["memory"][MOVED] == math.prod(case.data["heads"]) * tiled


def test_what_is_in_slow_memory_is_no_part_of_the_case() -> None:
    """In grading other numbers lie there, and who knows the case knows none of them."""
    data = dict(trials(FLASH)[0].cases[0].data)
    assert not any(isinstance(value, Tensor) for value in data.values())
    here: Any = FLASH.services(data)["memory"]
    before = model_seed.set(bytes(32))
    there: Any = FLASH.services(data)["memory"]
    model_seed.reset(before)
    assert not torch.equal(here.load("keys", 0, 1), there.load("keys", 0, 1))


def test_what_is_held_is_what_names_lead_to() -> None:
    """Tensors of ten numbers, of which 16 may be held: views count once, and what is gone not."""
    holding = Holding(test_what_is_held_is_what_names_lead_to, most=0)

    def overflows(*things: Any) -> bool:
        holding.has_overflowed = False
        holding.look(sys._getframe())
        return holding.has_overflowed

    ten, other = torch.zeros(10).double(), torch.zeros(10).double()
    assert not overflows(ten, ten[None], [ten[:3]])
    assert not overflows(ten, torch.arange(50), other > 0)
    assert overflows(ten, other)
    assert overflows({"a": [ten]}, (3, State(other, other, other)))
    endless: list[Any] = [ten]
    endless.append(endless)
    assert not overflows(endless, torch.zeros(10).double().to_sparse())


# ------------------------------------------------------------------------------- serving, lab 13


@seeds
def test_no_percentile_is_on_the_verge_of_another_rank(seed: int) -> None:
    """Whether a rank is p / 100 * n or p * n / 100, it rounds up to the exact one."""
    for case in cases_of(EXERCISES["serving.percentile"], seed):
        p, n = case.data["p"], len(case.data["values"])
        exact = math.ceil(Fraction(str(p)) * n / 100)
        assert math.ceil(p / 100 * n) == math.ceil(p * n / 100) == exact, case.label


@seeds
def test_ttft_and_tpot_are_computed_exactly(seed: int) -> None:
    """So an answer that just meets the SLO meets it, in whatever order its times are subtracted."""
    for case in cases_of(EXERCISES["serving.goodput"], seed):
        for due, start, last, tokens, _ in case.data["served"]:
            if start is not None:
                assert Fraction(start) - Fraction(due) == Fraction(start - due)
                assert Fraction(last) - Fraction(start) == Fraction(last - start)
                gaps = max(tokens - 1, 1)
                assert (last - start) / gaps * gaps == last - start, case.label


@seeds
def test_a_request_is_admitted_by_tokens_as_by_seconds(seed: int) -> None:
    for case in cases_of(EXERCISES["serving.Admission.admit"], seed):
        target, rate = case.data["target_ttft"], case.data["prefill_rate"]
        for tokens in range(1, 1000):
            assert (tokens <= target * rate) == (tokens / rate <= target)


@seeds
def test_no_answer_comes_when_a_deadline_passes(seed: int) -> None:
    """A replica's first piece or fault comes a quarter of a second before or after it, at least."""
    for case in cases_of(EXERCISES["serving.with_failover"], seed):
        time = 0.0
        for replica in case.data["replicas"]:
            for what, value in case.data["scripts"][replica]:
                if what != "wait":
                    break
                time += value
            assert abs(time - case.data["deadline"]) >= 0.25, case.label
            if what != "fault":
                break


@seeds
def test_chats_end_with_no_load_and_their_turns_stay_on_a_replica(seed: int) -> None:
    (trial,) = trials(EXERCISES["serving.Router.pick"], seed)
    outcomes = {c.label: o for c, o in zip(trial.cases, trial.expected, strict=True)}
    last = outcomes["the turns of four chats"].seen[-1].value
    books = ast.literal_eval(last.removeprefix("are "))
    assert [load for load, _, _ in books] == [0, 0, 0]
    assert sum(served for _, served, _ in books) == 14
    assert sum(known for _, _, known in books) == 2 * 14
