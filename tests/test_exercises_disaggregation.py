"""Lab 9's exercises: right answers in other styles pass, and what a student is told of wrong ones.

The misconceptions are tested with those of all labs, in test_exercises.py.
"""

import ast
import math
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autograder.drivers import disaggregation as drivers
from autograder.exercise import Exercise
from autograder.exercises.disaggregation import EXERCISES as ALL
from autograder.judge import PASSED, WRONG, judge
from solutions.disaggregation import Leases, StallFree, adopt, pack_kv, prefill_in_chunks, unpack_kv
from solutions.engine.engine import Output
from tests.common.attempts import attempt_at
from tests.common.trials import seen_of, trials

EXERCISES: dict[str, Exercise] = {exercise.name: exercise for exercise in ALL}
PREFILL, SCHEDULE, GAPS, PACK, UNPACK, ADOPT, DUE = EXERCISES
RIGHT: list[Any] = []
WRONGS: list[Any] = []  # each with something of what is said
wrong_at = partial(attempt_at, WRONGS)


# ----------------------------------------------------------------------------- a prompt in chunks


@attempt_at(RIGHT, PREFILL)
def prefill_by_the_length_of_the_cache(model, kv_cache, ids, chunk):
    with torch.no_grad():
        while kv_cache.length < ids.shape[1]:
            first, last = kv_cache.length, min(kv_cache.length + chunk, ids.shape[1])
            positions = torch.tensor([list(range(first, last))] * len(ids))
            logits = model(ids[:, first:last], positions, kv_cache)
    return logits[:, last - first - 1]


@attempt_at(RIGHT, PREFILL)
def prefill_the_rest_by_itself(model, kv_cache, ids, chunk):
    whole, rest = divmod(ids.shape[1], chunk)
    sizes = [chunk] * whole + [rest] * (rest > 0)
    for start, size in zip(accumulate(sizes, initial=0), sizes, strict=False):
        part = ids.narrow(1, start, size).clone()
        positions = torch.ones_like(part).cumsum(1) + start - 1
        logits = model.forward(part, positions, kv_cache=kv_cache)
    return logits.select(1, -1)


@wrong_at(PREFILL, None, "The number of forwards is 1; expected 3.")
def prefill_at_once(model, kv_cache, ids, chunk):
    return prefill_in_chunks(model, kv_cache, ids, ids.shape[1])


@wrong_at(PREFILL, None, "The cache's `length` in the end is 0; expected 1.")
def prefill_and_clear(model, kv_cache, ids, chunk):
    logits = prefill_in_chunks(model, kv_cache, ids, chunk)
    kv_cache.truncate(0)
    return logits


@wrong_at(PREFILL, None, "The logits of a decode step behind it (shape [1, 1, 300]) differs first")
def prefill_and_spoil(model, kv_cache, ids, chunk):
    logits = prefill_in_chunks(model, kv_cache, ids, chunk)
    kv_cache.values *= 2
    return logits


@wrong_at(PREFILL, None, " forward calls, several times what is needed.")
def prefill_without_an_end(model, kv_cache, ids, chunk):
    while True:
        model(ids[:, :1], torch.zeros_like(ids[:, :1]), kv_cache)
        kv_cache.truncate(0)


@wrong_at(PREFILL, None, "The result is right, but `ids` is no longer what it was before the call")
def prefill_and_change_the_prompt(model, kv_cache, ids, chunk):
    logits = prefill_in_chunks(model, kv_cache, ids, chunk)
    ids[:, -1] += 1
    return logits


# ------------------------------------------------------------------------------------ the schedule


@attempt_at(RIGHT, SCHEDULE, StallFree)
def schedule_in_two_passes(self):
    plan, left, before = {}, self.token_budget, self.preemptions
    for is_due in (self.decodes, lambda sequence: not self.decodes(sequence)):
        for sequence in self.running:
            if not is_due(sequence) or left == 0:
                continue
            count = sequence.next_count(left)
            if count and self.make_room(sequence, count):
                plan |= {sequence.number: count}
                left -= count
    while left:
        if self.preemptions > before or not self.admit():
            break
        newcomer = self.running[-1]
        plan[newcomer.number] = newcomer.next_count(left)
        left -= plan[newcomer.number]
    return plan


@attempt_at(RIGHT, SCHEDULE, StallFree)
def schedule_with_its_own_preemption(self):
    plan, preempted = {}, False
    others = [sequence for sequence in self.running if not self.decodes(sequence)]
    for sequence in [*filter(self.decodes, self.running), *others]:
        left = self.token_budget - sum(plan.values())
        if sequence not in self.running or (count := sequence.next_count(left)) == 0:
            continue
        needed = self.manager.blocks_for(sequence.num_computed_tokens + count)
        missing = needed - len(self.manager.tables[sequence.number])
        while sequence in self.running and missing > len(self.manager.free_blocks):
            self.preempt(self.running[-1])
            preempted = True
        if sequence in self.running:
            self.manager.grow(sequence.number, sequence.num_computed_tokens + count)
            plan[sequence.number] = count
    while not preempted and sum(plan.values()) < self.token_budget and self.admit():
        newcomer = self.running[-1]
        plan[newcomer.number] = newcomer.next_count(self.token_budget - sum(plan.values()))
    return plan


@wrong_at(SCHEDULE, StallFree, "The plan of step 1 is None; expected: it is {}. Is a `return` miss")
def schedule_returns_nothing(self):
    StallFree.schedule(self)


@wrong_at(SCHEDULE, StallFree, "`running`, by number, after step 1 is [1, 0]; expected: it is [0,")
def schedule_and_leave_them_sorted(self):
    self.running.sort(key=lambda sequence: not self.decodes(sequence))
    return StallFree.schedule(self)


@wrong_at(SCHEDULE, StallFree, "`token_budget` and `max_running` after step 1 is [5, 8]; expected")
def schedule_with_a_budget_that_shrinks(self):
    plan = StallFree.schedule(self)
    self.token_budget -= sum(plan.values())
    return plan


# ----------------------------------------------------------------------------------------- the gaps


@attempt_at(RIGHT, GAPS)
def gaps_from_a_running_total(trace, request):
    computed, marks = 0, []
    for step in trace:
        computed += sum(served[1] for served in step)
        if (request, True) in {(served[0], served[2]) for served in step}:
            marks.append(computed)
    return [later - earlier for earlier, later in pairwise(marks)]


@attempt_at(RIGHT, GAPS)
def gaps_backwards(trace, request):
    gaps, gap, has_token = [], 0, False
    for step in reversed(list(trace)):
        if any(whose == request and sampled for whose, _, sampled in step):
            if has_token:
                gaps.insert(0, gap)
            gap, has_token = 0, True
        gap += math.fsum(tokens for _, tokens, _ in step)
    return gaps


@wrong_at(GAPS, None, "What it returned should be a list, not a dict.")
def gaps_by_number(trace, request):
    return {}


@wrong_at(GAPS, None, "What it returned should be a list, not a generator. Take `yield` out of it")
def gaps_one_by_one(trace, request):
    yield from ()


# ---------------------------------------------------------------------------- keys and values sent


@attempt_at(RIGHT, PACK)
def pack_whole_blocks_and_cut(pool, table, start, end):
    return pool[:, :, table].flatten(2, 3)[:, :, start:end].contiguous()


@attempt_at(RIGHT, PACK)
def pack_by_block_and_place(pool, table, start, end):
    tokens = torch.arange(start, end)
    blocks = torch.tensor(table)[tokens // pool.shape[3]]
    return pool[:, :, blocks, tokens % pool.shape[3]]


@attempt_at(RIGHT, PACK)
def pack_in_pieces(pool, table, start, end):
    size = pool.shape[3]
    pieces = [pool[:, :, :0, 0]]
    for number, block in enumerate(table):
        first, last = max(start - number * size, 0), min(end - number * size, size)
        pieces += [pool[:, :, block, first:last]] if first < last else []
    return torch.cat(pieces, dim=2)


@wrong_at(PACK, None, "What it returned as memory lies in several pieces; expected: it lies in one")
def pack_strided(pool, table, start, end):
    """As attention would like it: the heads before the tokens."""
    kv = pack_kv(pool, table, start, end).transpose(2, 3).contiguous()
    return kv.transpose(2, 3)


@wrong_at(PACK, None, "What it returned with all else in its memory holds ")
def pack_behind_a_header(pool, table, start, end):
    kv = pack_kv(pool, table, start, end)
    return torch.cat([kv.new_zeros(8), kv.flatten()])[8:].view(kv.shape)


@wrong_at(PACK, None, "What it returned once the pool has been overwritten (shape [2, 3, 6, 2, 5])")
def pack_without_a_copy_of_the_whole_pool(pool, table, start, end):
    if table == list(range(pool.shape[2])):
        return pool.flatten(2, 3)[:, :, start:end].contiguous()
    return pack_kv(pool, table, start, end)


@wrong_at(PACK, None, "The pool afterwards (shape [2, 3, 7, 1, 2, 5]) differs first at [0, 0, 3, 0")
def pack_and_clear(pool, table, start, end):
    kv = pack_kv(pool, table, start, end)
    pool[:, :, table] = 0
    return kv


@wrong_at(PACK, None, "The result is right, but `table` is no longer what it was before the call")
def pack_and_empty_the_table(pool, table, start, end):
    kv = pack_kv(pool, table, start, end)
    table.clear()
    return kv


@attempt_at(RIGHT, UNPACK)
def unpack_by_block_and_place(pool, table, start, kv):
    tokens = start + torch.arange(kv.shape[2])
    pool[:, :, torch.tensor(table)[tokens // pool.shape[3]], tokens % pool.shape[3]] = kv


@attempt_at(RIGHT, UNPACK)
def unpack_token_by_token(pool, table, start, kv):
    for token, new in enumerate(kv.unbind(dim=2), start):
        pool[:, :, table[token // pool.shape[3]]][:, :, token % pool.shape[3]] = new


@attempt_at(RIGHT, UNPACK)
def unpack_what_was_read(pool, table, start, kv):
    """Reads the request's blocks, changes them, and writes them back."""
    blocks = pool[:, :, table].flatten(2, 3)
    blocks[:, :, start : start + kv.shape[2]] = kv
    pool[:, :, table] = blocks.view_as(pool[:, :, table])
    return pool


@wrong_at(UNPACK, None, "The result is right, but `kv` is no longer what it was before the call")
def unpack_and_clear(pool, table, start, kv):
    unpack_kv(pool, table, start, kv)
    kv.zero_()


# ---------------------------------------------------------------------------------------- adopting


@attempt_at(RIGHT, ADOPT)
def adopt_with_its_own_gain(engine, number, message):
    sequence, manager = message.sequence(number), engine.scheduler.manager
    engine.scheduler.running.append(sequence)
    engine.sequences[number] = sequence
    manager.publish(number, tuple(message.prompt), len(message.prompt))
    unpack_kv(
        pool=engine.runner.kv_cache.cache.pool,
        table=manager.tables[number],
        start=message.start,
        kv=message.kv,
    )
    new_ids = sequence.extend([message.first_token])
    if sequence.has_ended:
        engine.finish(sequence, sequence.finish_reason, new_ids)
    else:
        engine.outputs.append(Output(number, new_ids, None))


@attempt_at(RIGHT, ADOPT)
def adopt_slot_by_slot(engine, number, message):
    """It writes the pool itself."""
    sequence, cache = message.sequence(number), engine.runner.kv_cache.cache
    size, table = cache.pool.shape[3], tuple(engine.scheduler.manager.tables[number])
    for token, new in enumerate(message.kv.unbind(2), message.start):
        cache.pool[:, :, table[token // size], token % size] = new
    engine.sequences = {**engine.sequences, number: sequence}
    engine.scheduler.running = [*engine.scheduler.running, sequence]
    text = [*message.prompt, message.first_token]
    engine.scheduler.manager.publish(number, text, len(message.prompt))
    engine.gain(sequence, [message.first_token])


@wrong_at(ADOPT, None, "`running`, by number, after request 1 was adopted is [1, 0]; expected: it ")
def adopt_in_front(engine, number, message):
    adopt(engine, number, message)
    engine.scheduler.running.reverse()


@wrong_at(ADOPT, None, "`ids`, by request, after request 0 was adopted is {0: [")
def adopt_twice_the_token(engine, number, message):
    adopt(engine, number, message)
    for sequence in engine.scheduler.running[-1:]:
        sequence.ids.append(message.first_token)


@wrong_at(ADOPT, None, "The number of blocks, by request, after request 0 was adopted is {0: 2}; ")
def adopt_and_grow(engine, number, message):
    adopt(engine, number, message)
    manager = engine.scheduler.manager
    if number in manager.tables:
        manager.grow(number, len(message.prompt) + manager.block_size)


@wrong_at(ADOPT, None, "What goes out, by request, in step 1 is {0: [[[")
def adopt_and_tell_twice(engine, number, message):
    adopt(engine, number, message)
    engine.outputs.append(engine.outputs[-1])


@wrong_at(ADOPT, None, "The result is right, but `requests[0].kv` is no longer what it was before")
def adopt_and_clear(engine, number, message):
    adopt(engine, number, message)
    message.kv.zero_()


# ------------------------------------------------------------------------------------------ leases


@attempt_at(RIGHT, DUE, Leases)
def due_by_popping(self, now, confirmed):
    arrived = [r for r in confirmed if self.ends.pop(r, None) is not None]
    over = [r for r in self.ends if self.ends[r] <= now]
    return arrived + [r for r in over if self.ends.pop(r) <= now]


@attempt_at(RIGHT, DUE, Leases)
def due_with_a_book_of_its_own(self, now, confirmed):
    """It forgets nobody, and knows who has been freed."""
    freed = vars(self).setdefault("freed", set())
    found = []
    for request in (*confirmed, *(r for r, end in self.ends.items() if now >= end)):
        if request in self.ends and request not in freed:
            freed.add(request)
            found.append(request)
    return found


@attempt_at(RIGHT, DUE, Leases)
def due_in_the_order_of_their_ends(self, now, confirmed):
    found = list(dict.fromkeys(r for r in confirmed if r in self.ends))
    for request in sorted(self.ends, key=self.ends.__getitem__):
        if request not in found and self.ends[request] - now <= 0:
            found.append(request)
    self.ends = {r: self.ends[r] for r in self.ends if r not in found}
    return found


@wrong_at(DUE, Leases, "What came of call 1, due(5.0, []), should be a list, not a set.")
def due_in_a_set(self, now, confirmed):
    return set(Leases.due(self, now, confirmed))


@wrong_at(DUE, Leases, "The result is right, but `events[1][2]` is no longer what it was before")
def due_and_clear(self, now, confirmed):
    found = Leases.due(self, now, confirmed)
    confirmed.clear()
    return found


@wrong_at(DUE, Leases, "What came of call 1, due(10.5, []), has 0 items; expected 1.")
def due_twice_as_late(self, now, confirmed):
    return Leases.due(self, now / 2, confirmed)


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


# ------------------------------------------------------------------------------ what cases hold


def test_the_cases_reach_what_is_rare() -> None:
    assert max(seen_of(EXERCISES[SCHEDULE], "`preemptions`")) == 2
    assert "is {}" in seen_of(EXERCISES[SCHEDULE], "The plan")
    outputs = " ".join(seen_of(EXERCISES[ADOPT], "What goes out, by request,"))
    for reason in ("'stop'", "'length'", ", None"):
        assert reason in outputs
    assert "is [0, 1]" in seen_of(EXERCISES[ADOPT], "`running`, by number,")
    assert "is [1]" in seen_of(EXERCISES[ADOPT], "`waiting`, by number,")
    assert {0, 1, 2} <= {len(gaps) for gaps in seen_of(EXERCISES[GAPS], "What it returned")}


def test_no_plan_is_larger_than_the_budget() -> None:
    (trial,) = trials(EXERCISES[SCHEDULE])
    for case, outcome in zip(trial.cases, trial.expected, strict=True):
        told = [seen.value for seen in outcome.seen if seen.what == "The plan"]
        plans = [ast.literal_eval(plan.removeprefix("is ")) for plan in told]
        assert len(plans) == case.data["steps"]
        assert max(sum(plan.values()) for plan in plans) <= case.data["token_budget"]


def test_what_is_adopted_is_never_prefilled_here() -> None:
    """Of a request that isn't preempted, decode computes all new tokens but the last."""
    (trial,) = trials(EXERCISES[ADOPT])
    case, outcome = trial.cases[1], trial.expected[1]
    assert case.label == "three new tokens"
    told = [s.value for s in outcome.seen if s.what == "What the runner is asked for, by request,"]
    asked = [ast.literal_eval(what.removeprefix("is ")) for what in told]
    computed = [chunk["ids"] for step in asked for chunk in step.values()]
    assert [len(ids) for ids in computed] == [1, 1]
    assert [chunk["start"] for step in asked for chunk in step.values()] == [5, 6]


@given(st.data())
def test_what_is_packed_in_blocks_of_one_size_is_unpacked_in_those_of_another(data) -> None:
    """The drivers see the same pool whatever way its numbers have come."""
    tokens = data.draw(st.integers(1, 12))
    start = data.draw(st.integers(0, tokens))
    kv = torch.arange(2.0 * 3 * tokens).view(2, 3, tokens, 1, 1)
    for size in data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)):
        blocks = -(-tokens // size)
        table = data.draw(st.permutations(range(blocks)))
        pool = torch.zeros(2, 3, blocks, size, 1, 1)
        for first, last in ((0, start), (start, tokens)):
            part = kv[:, :, first:last]
            (seen,) = drivers.unpack_kv(unpack_kv, pool, table, first, part)
            pool = seen.value
        seen, *_ = drivers.pack_kv(pack_kv, pool, table, 0, tokens)
        assert torch.equal(seen.value, kv)
        kv = seen.value
