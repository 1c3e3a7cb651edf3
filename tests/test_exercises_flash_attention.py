"""Lab 12's exercises: right answers in other styles pass, and what a student is told of wrong ones.

The misconceptions are tested with those of all labs, in test_exercises.py.
"""

import math
import sys
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autograder.draws import model_seed
from autograder.drivers.flash_attention import Holding
from autograder.exercise import Exercise
from autograder.exercises.flash_attention import EXERCISES as ALL
from autograder.judge import PASSED, WRONG, judge
from autograder.lending.slow_memory import MOVED
from solutions.flash_attention import (
    State,
    absorb,
    backward_tile,
    count_traffic,
    empty_state,
    finish,
    flash_attention,
    hide_later_keys,
    merge,
    paged_decode,
    split_decode,
)
from tests.common.attempts import attempt_at
from tests.common.trials import trials

EXERCISES: dict[str, Exercise] = {exercise.name: exercise for exercise in ALL}
TRAFFIC, ABSORB, FLASH, MERGE, SPLIT, PAGED, BACKWARD = EXERCISES
RIGHT: list[Any] = []
WRONGS: list[Any] = []  # each with something of what is said
wrong_at = partial(attempt_at, WRONGS)


# ------------------------------------------------------------------------------------------ counts


@attempt_at(RIGHT, TRAFFIC)
def traffic_query_by_query(q_len, k_len, head_dim, block_q, block_k):
    tiled = q_len * head_dim + q_len * (head_dim + 1)
    for query in range(q_len):
        is_last = query == q_len - 1 or (query + 1) % block_q == 0
        sees = query + 1 + k_len - q_len
        if is_last and sees > 0:
            tiled += 2 * head_dim * min(math.ceil(sees / block_k) * block_k, k_len)
    return 2 * head_dim * (q_len + k_len) + 4 * q_len * k_len, tiled


@attempt_at(RIGHT, TRAFFIC)
def traffic_key_by_key(q_len, k_len, head_dim, block_q, block_k):
    tensors = {"queries": q_len, "keys": k_len, "values": k_len, "output": q_len}
    naive = sum(length * head_dim for length in tensors.values())
    tiled = tensors["queries"] * head_dim + tensors["output"] * (head_dim + 1)
    for start in range(0, q_len, block_q):
        last_seen = min(start + block_q, q_len) - 1 + k_len - q_len
        for key in range(k_len):
            first_of_tile = key - key % block_k
            tiled += 2 * head_dim * (first_of_tile <= last_seen)
    return [naive + 4 * q_len * k_len, tiled]


@wrong_at(TRAFFIC, None, "count_traffic returns two numbers; this is None. Is a `return` missing?")
def traffic_without_a_return(q_len, k_len, head_dim, block_q, block_k):
    count_traffic(q_len, k_len, head_dim, block_q, block_k)


@wrong_at(TRAFFIC, None, "The count of the naive way is 21; expected 24.")
def traffic_that_forgets_to_write_the_weights(q_len, k_len, head_dim, block_q, block_k):
    naive, tiled = count_traffic(q_len, k_len, head_dim, block_q, block_k)
    return naive - 3 * q_len * k_len, tiled


# ------------------------------------------------------------------------------ the running softmax


@attempt_at(RIGHT, ABSORB)
def absorb_by_the_lse_of_the_tile(state, scores, values):
    """The tile alone first, then what it makes of the state."""
    peak, total, weighted = state
    own = scores.max(dim=-1).values
    new = torch.where(own > peak, own, peak)
    shown = new.nan_to_num(neginf=0.0)
    weights = (
        F.softmax(scores, dim=-1).nan_to_num(0) * (scores.logsumexp(-1) - shown).exp()[..., None]
    )
    before = (peak - shown).exp()
    total = total.mul(before) + weights.sum(dim=-1)
    return new, total, weighted.mul(before[..., None]) + weights.matmul(values)


@attempt_at(RIGHT, ABSORB)
def absorb_key_by_key(state, scores, values):
    peak, total, weighted = (part.clone() for part in state)
    for key, column in enumerate(scores.unbind(dim=-1)):
        new = torch.maximum(peak, column)
        is_blind = new == -math.inf
        kept = torch.where(is_blind, 1.0, (peak - new).exp())
        weight = torch.where(is_blind, 0.0, (column - new).exp())
        peak, total = new, total * kept + weight
        weighted = (
            weighted * kept[..., None] + weight[..., None] * values[..., key, :][..., None, :]
        )
    return State(peak, total, weighted)


@wrong_at(ABSORB, None, "absorb returns a State; this is 2 things.")
def absorb_without_the_peak(state, scores, values):
    return absorb(state, scores, values)[1:]


@wrong_at(
    ABSORB, None, "The result is right, but `state[1]` is no longer what it was before the call"
)
def absorb_in_place(state, scores, values):
    after = absorb(state, scores, values)
    state.total.copy_(after.total)
    return after


@wrong_at(
    ABSORB, None, "The result is right, but `tiles[0][0]` is no longer what it was before the call"
)
def absorb_and_shift_the_scores(state, scores, values):
    after = absorb(state, scores, values)
    scores -= 1
    return after


# ------------------------------------------------------------------------------------- tile by tile


@attempt_at(RIGHT, FLASH)
def flash_from_the_last_tile_on(memory, q_len, k_len, head_dim, block_q, block_k):
    for start in reversed(range(0, q_len, block_q)):
        end = min(start + block_q, q_len)
        queries = memory.load(name="queries", start=start, end=end)
        state = empty_state(queries)
        for first in reversed(range(0, k_len, block_k)):
            offset = k_len - q_len + start - first
            if offset + end - start - 1 < 0:
                continue
            keys, values = (
                memory.load(name, first, min(first + block_k, k_len)) for name in ("keys", "values")
            )
            scores = hide_later_keys(queries @ keys.mT * head_dim**-0.5, offset)
            state = absorb(state, scores, values)
        output, lse = finish(state)
        memory.store("lse", start, lse)
        memory.store("output", start, output)


@attempt_at(RIGHT, FLASH)
def flash_with_a_softmax_of_its_own(memory, q_len, k_len, head_dim, block_q, block_k):
    """It merges tiles by their lse, and of the last tile loads the keys alone that are seen."""
    for start in range(0, q_len, block_q):
        end = min(start + block_q, q_len)
        queries = memory.load("queries", start, end)
        output, lse = torch.zeros_like(queries), torch.full_like(queries[..., 0], -torch.inf)
        seen = end + k_len - q_len
        for first in range(0, seen, block_k):
            last = min(first + block_k, seen)
            scores = queries @ memory.load("keys", first, last).mT / head_dim**0.5
            behind = torch.arange(first, last) > torch.arange(start, end)[:, None] + k_len - q_len
            scores = scores.masked_fill(behind, -torch.inf)
            values = memory.load("values", first, last)
            own = torch.nan_to_num(scores.softmax(dim=-1)) @ values, scores.logsumexp(dim=-1)
            both = torch.stack([output, own[0]]), torch.stack([lse, own[1]])
            output, lse = merge(*both)
        memory.store("output", start, output)
        memory.store("lse", start, lse)


@wrong_at(FLASH, None, "Slow memory has queries, keys, values; there is no 'output'.")
def flash_that_returns(memory, q_len, k_len, head_dim, block_q, block_k):
    return torch.zeros(q_len, head_dim)


@wrong_at(FLASH, None, "The result is right, but 24 numbers were moved; 21 are enough.")
def flash_that_stores_more(memory, q_len, k_len, head_dim, block_q, block_k):
    flash_attention(memory, q_len, k_len, head_dim, block_q, block_k)
    memory.store("spare", 0, torch.zeros(q_len, 3))


@wrong_at(FLASH, None, "It was stopped after ")
def flash_without_an_end(memory, q_len, k_len, head_dim, block_q, block_k):
    while True:
        memory.load("queries", 0, q_len)


@wrong_at(
    FLASH, None, "What it keeps in tensors between loads grows to far more than a tile of each"
)
def flash_that_joins_values(memory, q_len, k_len, head_dim, block_q, block_k):
    """It loads tile by tile, and puts what it gets behind one another."""
    for start in range(0, q_len, block_q):
        end = min(start + block_q, q_len)
        queries = memory.load("queries", start, end)
        keys = values = queries[..., :0, :]
        for first in range(0, end + k_len - q_len, block_k):
            last = min(first + block_k, k_len)
            keys = torch.cat([keys, memory.load("keys", first, last)], dim=-2)
            values = torch.cat([values, memory.load("values", first, last)], dim=-2)
        state = empty_state(queries)
        if keys.shape[-2]:
            scores = queries @ keys.mT / head_dim**0.5
            state = absorb(state, hide_later_keys(scores, start + k_len - q_len), values)
        output, lse = finish(state)
        memory.store("output", start, output)
        memory.store("lse", start, lse)


@wrong_at(
    FLASH, None, "It raised OutOfFastMemory: Tiles of 4 queries and 5 keys take 118 numbers of fast"
)
def flash_in_large_tiles(memory, q_len, k_len, head_dim, block_q, block_k):
    flash_attention(memory, q_len, k_len, head_dim, block_q, 2 * block_k)


# --------------------------------------------------------------------------------------- in parts


@attempt_at(RIGHT, MERGE)
def merge_two_at_a_time(outputs, lses):
    output, lse = outputs[0] * (lses[0] > -math.inf)[..., None], lses[0]
    for other, its in zip(outputs[1:], lses[1:], strict=True):
        both = torch.logaddexp(lse, its)
        shares = [(one - both).exp().nan_to_num(0)[..., None] for one in (lse, its)]
        output, lse = shares[0] * output + shares[1] * other, both
    return output, lse


@attempt_at(RIGHT, MERGE)
def merge_by_softmax(outputs, lses):
    weights = lses.softmax(dim=0).nan_to_num()
    return torch.einsum("p...,p...d->...d", weights, outputs), torch.logsumexp(lses, 0)


@wrong_at(MERGE, None, "merge returns output and lse; this is a Tensor.")
def merge_without_the_lse(outputs, lses):
    return merge(outputs, lses)[0]


@wrong_at(
    MERGE, None, "The result is right, but `outputs` is no longer what it was before the call"
)
def merge_and_clear(outputs, lses):
    output, lse = merge(outputs, lses)
    outputs.zero_()
    return output, lse


@attempt_at(RIGHT, SPLIT)
def split_evenly(worker, length, parts):
    """Parts that differ by a key at most."""
    parts = min(parts, length)
    ends = [part * length // parts for part in range(parts + 1)]
    both = [worker(*ends[part : part + 2]) for part in range(parts)]
    return merge(*(torch.stack(values) for values in zip(*both, strict=True)))


@attempt_at(RIGHT, SPLIT)
def split_from_the_end(worker, length, parts):
    size, outputs, lses = math.ceil(length / parts), [], []
    while length > 0:
        output, lse = worker(first=max(length - size, 0), last=length)
        outputs.append(output)
        lses.append(lse)
        length -= size
    return merge(torch.stack(outputs), torch.stack(lses))


@wrong_at(
    SPLIT, None, "The split gives key 0 to 2 workers; expected: it gives each key to one worker."
)
def split_and_try_again(worker, length, parts):
    worker(0, 1)
    return split_decode(worker, length, parts)


@wrong_at(SPLIT, None, "It raised ValueError: worker(0, 2) is no part of 1 keys.")
def split_beyond_the_end(worker, length, parts):
    return worker(0, length + 1)


# ----------------------------------------------------------------------------------- block by block


@attempt_at(RIGHT, PAGED)
def paged_with_a_mask(query, read_block, block_table, block_size, length):
    state = empty_state(query[:, None])
    for number in range(math.ceil(length / block_size)):
        keys, values = read_block(int(block_table[number]))
        scores = (keys * query[:, None]).sum(-1)[:, None] * query.shape[1] ** -0.5
        behind = number * block_size + torch.arange(block_size) >= length
        state = absorb(state, scores.masked_fill(behind, -torch.inf), values)
    return finish(state)[0].squeeze(1)


@attempt_at(RIGHT, PAGED)
def paged_from_the_last_block_on(query, read_block, block_table, block_size, length):
    last = (length - 1) // block_size
    outputs = lses = None
    for number in range(last, -1, -1):
        keys, values = read_block(block_table[number])
        held = length - last * block_size if number == last else block_size
        scores = torch.einsum("hd,hkd->hk", query, keys[:, :held]) / query.shape[1] ** 0.5
        own = (
            (scores.softmax(-1)[:, None] @ values[:, :held])[:, 0][None],
            scores.logsumexp(-1)[None],
        )
        if outputs is None:
            outputs, lses = own
        else:
            both = torch.cat([outputs, own[0]]), torch.cat([lses, own[1]])
            outputs, lses = (part[None] for part in merge(*both))
    return outputs[0]


@wrong_at(PAGED, None, "It raised ValueError: The pool has the blocks 0 to ")
def paged_by_slots(query, read_block, block_table, block_size, length):
    return read_block(block_table[0] * block_size + 100)


@wrong_at(
    PAGED, None, "What it keeps in tensors between two blocks grows to far more than a tile of each"
)
def paged_after_a_gather(query, read_block, block_table, block_size, length):
    needed = block_table[: math.ceil(length / block_size)]
    blocks = [[part[:, :] for part in read_block(block)] for block in needed]
    keys, values = (torch.cat(part, dim=1)[:, :length] for part in zip(*blocks, strict=True))
    scores = (query[:, None] @ keys.mT) / query.shape[1] ** 0.5
    return (scores.softmax(dim=-1) @ values)[:, 0]


@wrong_at(
    PAGED, None, "The result is right, but `block_table` is no longer what it was before the call"
)
def paged_and_empty_the_table(query, read_block, block_table, block_size, length):
    output = paged_decode(query, read_block, block_table, block_size, length)
    block_table.clear()
    return output


# ------------------------------------------------------------------------------------ the gradients


@attempt_at(RIGHT, BACKWARD)
def backward_by_einsum(queries, keys, values, output, lse, grad_output, offset):
    scores = torch.einsum("...id,...jd->...ij", queries, keys) / math.sqrt(queries.shape[-1])
    scores = hide_later_keys(scores, offset)
    weights = scores.sub(lse.nan_to_num(neginf=0)[..., None]).exp()
    of_weights = torch.einsum("...id,...jd->...ij", grad_output, values)
    delta = torch.einsum("...id,...id->...i", grad_output, output)
    of_scores = weights * of_weights - weights * delta[..., None]
    of_scores = of_scores / math.sqrt(queries.shape[-1])
    of_keys = torch.einsum("...ij,...id->...jd", of_scores, queries)
    of_values = torch.einsum("...ij,...id->...jd", weights, grad_output)
    return [of_scores @ keys, of_keys, of_values]


@attempt_at(RIGHT, BACKWARD)
def backward_by_autograd(queries, keys, values, output, lse, grad_output, offset):
    """What the tile adds to a loss, with the weights of all tiles, lets PyTorch do the rest."""
    with torch.enable_grad():
        scores = hide_later_keys(queries @ keys.mT, offset) / queries.shape[-1] ** 0.5
        weights = (scores - lse.nan_to_num(neginf=0)[..., None]).exp()
        own = [part.detach().requires_grad_() for part in (queries, keys)]
        again = own[0] @ own[1].mT / queries.shape[-1] ** 0.5
        slope = weights * (grad_output @ values.mT - (grad_output * output).sum(-1, keepdim=True))
        of_queries, of_keys = torch.autograd.grad((again * slope).sum(), own)
    return of_queries, of_keys, weights.transpose(-1, -2) @ grad_output


@wrong_at(BACKWARD, None, "backward_tile returns three gradients; this is 2 things.")
def backward_without_the_queries(queries, keys, values, output, lse, grad_output, offset):
    return backward_tile(queries, keys, values, output, lse, grad_output, offset)[1:]


@wrong_at(
    BACKWARD,
    None,
    "The result is right, but `grad_output` is no longer what it was before the call",
)
def backward_and_clear(queries, keys, values, output, lse, grad_output, offset):
    found = backward_tile(queries, keys, values, output, lse, grad_output, offset)
    if offset <= 0:
        grad_output.zero_()
    return found


# -------------------------------------------------------------------------------------- verdicts


@pytest.mark.parametrize(("exercise", "attempt"), RIGHT)
def test_a_right_answer_in_another_style_passes(exercise: str, attempt: Any) -> None:
    for seed in range(3):
        judgement = judge(EXERCISES[exercise], attempt, seed)
        assert judgement.status == PASSED, (judgement.case, judgement.message)


@pytest.mark.parametrize(("exercise", "attempt", "said"), WRONGS)
def test_what_is_said_of_a_wrong_one(exercise: str, attempt: Any, said: str) -> None:
    judgement = judge(EXERCISES[exercise], attempt)
    assert judgement.status == WRONG
    assert said in judgement.message


# ------------------------------------------------------------------------------- what cases hold


@pytest.mark.parametrize("exercise", EXERCISES)
def test_rounding_decides_nothing(exercise: str) -> None:
    """What is looked at is 0 throughout, or large beside the errors of float64."""
    for seed in range(5):
        (trial,) = trials(EXERCISES[exercise], seed)
        tensors = [s.value for o in trial.expected for s in o.seen if isinstance(s.value, Tensor)]
        for tensor in tensors:
            finite = tensor[tensor.isfinite()].abs()
            assert not finite.any() or finite.max() > 1e-6


def test_the_numbers_moved_are_those_that_were_counted() -> None:
    (trial,) = trials(EXERCISES[FLASH])
    for case, outcome in zip(trial.cases, trial.expected, strict=True):
        sizes = [case.data[n] for n in ("q_len", "k_len", "head_dim", "block_q", "block_k")]
        _, tiled = count_traffic(*sizes)
        assert outcome.counts["memory"][MOVED] == math.prod(case.data["heads"]) * tiled


def test_what_is_in_slow_memory_is_no_part_of_the_case() -> None:
    """In grading other numbers lie there, and who knows the case knows none of them."""
    exercise = EXERCISES[FLASH]
    data = dict(trials(exercise)[0].cases[0].data)
    assert not any(isinstance(value, Tensor) for value in data.values())
    here: Any = exercise.services(data)["memory"]
    before = model_seed.set(bytes(32))
    there: Any = exercise.services(data)["memory"]
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
