"""Lab 7's exercises: right answers in other styles pass, and what a student is told of wrong ones.

The misconceptions are tested with those of all labs, in test_exercises.py.
"""

import ast
from collections import Counter, OrderedDict, deque
from functools import partial
from typing import Any, NamedTuple

import pytest

from autograder.drivers.engine import logits_after
from autograder.exercises import exercises
from autograder.judge import PASSED, WRONG, judge
from solutions.engine.engine import Engine
from solutions.engine.runner import Chunk
from solutions.engine.scheduler import Scheduler
from solutions.paged_attention import OutOfBlocks
from tests.common.attempts import attempt_at
from tests.common.trials import seen_of, trials

EXERCISES = {e.name: e for e in exercises().values() if e.lab == "engine"}
SCHEDULE, STEP = "engine.Scheduler.schedule", "engine.Engine.step"
RIGHT: list[Any] = []
WRONGS: list[Any] = []  # each with something of what is said
wrong_at = partial(attempt_at, WRONGS)


# --------------------------------------------------------------------------------- the scheduler


@attempt_at(RIGHT, SCHEDULE, Scheduler)
def schedule_with_a_queue(self):
    plan, left, before = {}, self.token_budget, self.preemptions
    due = deque(self.running)
    while due and left:
        sequence = due.popleft()
        if sequence not in self.running:
            continue
        count = sequence.next_count(left)
        if not count:
            continue
        if not self.make_room(sequence, count):
            break
        plan[sequence.number] = count
        left -= count
    while left:
        if self.preemptions != before or not self.admit():
            return plan
        *_, newcomer = self.running
        plan[newcomer.number] = newcomer.next_count(left)
        left = self.token_budget - sum(plan.values())
    return plan


@attempt_at(RIGHT, SCHEDULE, Scheduler)
def schedule_counting_first(self):
    """Only the last ones are preempted, so that what those before them get stays the same."""
    counts: Counter[int] = Counter()
    for sequence in self.running:
        counts[sequence.number] = sequence.next_count(self.token_budget - counts.total())
    before = self.preemptions
    for sequence in tuple(self.running):
        if counts[sequence.number] and not self.make_room(sequence, counts[sequence.number]):
            counts[sequence.number] = 0
    for sequence in self.waiting:
        counts[sequence.number] = 0
    if self.preemptions == before:
        while counts.total() < self.token_budget and self.admit():
            newcomer = self.running[-1]
            counts[newcomer.number] = newcomer.next_count(self.token_budget - counts.total())
    return +counts


@attempt_at(RIGHT, SCHEDULE, Scheduler)
def schedule_with_its_own_preemption(self):
    plan: OrderedDict[int, int] = OrderedDict()
    preempted = False
    for sequence in self.running[:]:
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


class Share(NamedTuple):
    number: int
    tokens: int


@attempt_at(RIGHT, SCHEDULE, Scheduler)
def schedule_newcomers_before_the_plan_is_written(self):
    shares: list[Share] = []

    def left():
        return self.token_budget - sum(share.tokens for share in shares)

    def served(sequence):
        count = sequence.next_count(left())
        if count and self.make_room(sequence, count):
            shares.append(Share(sequence.number, count))

    before = self.preemptions
    for sequence in list(self.running):
        served(sequence)
    for _ in range(len(self.waiting)):
        if left() <= 0 or self.preemptions > before or not self.admit():
            break
        served(self.running[-1])
    return dict(reversed(shares))


@attempt_at(RIGHT, SCHEDULE, Scheduler)
def schedule_while_something_is_left(self):
    preemptions, left, plan = self.preemptions, self.token_budget, {}
    for sequence in list(self.running):
        if left <= 0:
            break
        count = sequence.next_count(left)
        if count > 0:
            try:
                has_room = self.make_room(sequence, count)
            except OutOfBlocks:
                has_room = False
            if has_room:
                left -= count
                plan |= {sequence.number: count}
    while self.preemptions == preemptions and left >= 1 and self.waiting:
        if self.admit() is False:
            break
        count = self.running[-1].next_count(left)
        left, plan = left - count, {**plan, self.running[-1].number: count}
    return plan


@wrong_at(SCHEDULE, Scheduler, "The plan of step 1 is None; expected: it is {}. Is a `return` miss")
def schedule_returns_nothing(self):
    Scheduler.schedule(self)


@wrong_at(SCHEDULE, Scheduler, "The plan of step 1 is []; expected: it is {}.")
def schedule_as_pairs(self):
    return list(Scheduler.schedule(self).items())


@wrong_at(SCHEDULE, Scheduler, "The plan of step 1 is {7: 1}; expected: it is {}.")
def schedule_for_a_stranger(self):
    return {**Scheduler.schedule(self), 7: 1}


@wrong_at(SCHEDULE, Scheduler, "The plan of step 1 is {0: 4}; expected: it is {0: 3}.")
def schedule_more_than_there_is(self):
    return {number: count + 1 for number, count in Scheduler.schedule(self).items()}


@wrong_at(SCHEDULE, Scheduler, "The plan of step 1 is {}; expected: it is {0: 3}.")
def schedule_and_clear(self):
    Scheduler.schedule(self)
    return {}


@wrong_at(
    SCHEDULE, Scheduler, "`drafts`, by request, after step 1 is {0: []}; expected: it is {0: ["
)
def schedule_and_drop_the_drafts(self):
    plan = Scheduler.schedule(self)
    for sequence in self.running:
        sequence.drafts = []
    return plan


@wrong_at(SCHEDULE, Scheduler, "is {0: 3}; expected: it is {0: 0}.")
def schedule_and_count_at_once(self):
    plan = Scheduler.schedule(self)
    for sequence in self.running:
        sequence.num_computed_tokens += plan.get(sequence.number, 0)
    return plan


@wrong_at(SCHEDULE, Scheduler, "The number of blocks, by request, after step 1 is {0: 2}; expected")
def schedule_and_reserve_one_more(self):
    plan = Scheduler.schedule(self)
    for sequence in self.running:
        self.manager.grow(sequence.number, len(sequence.text) + self.manager.block_size)
    return plan


# ------------------------------------------------------------------------------------ the engine


@attempt_at(RIGHT, STEP, Engine)
def step_with_chunks_of_its_own(self):
    self.take_in()
    plan, chunks = self.scheduler.schedule(), []
    for request in sorted(plan):
        sequence = self.sequences[request]
        start = sequence.num_computed_tokens
        end = start + plan[request]
        wanted = len([place for place in range(start, end) if place >= len(sequence.ids) - 1])
        chunks.append(Chunk(request, (sequence.ids + sequence.drafts)[start:end], start, wanted))
    logits = {}
    if chunks:
        logits = self.runner.forward(tuple(chunks))
    line, due = [], []
    for request in plan:
        sequence = self.sequences[request]
        sequence.num_computed_tokens += plan[request]
        known = list(sequence.ids)
        computed = min(len(known), sequence.num_computed_tokens)
        self.scheduler.manager.publish(request, known, computed)
        line.append((request, plan[request], bool(len(logits[request]))))
        if sequence.has_caught_up:
            due.append(sequence)
    self.trace.append(line)
    while due:
        sequence = due.pop()
        self.gain(sequence, self.choose(sequence, logits[sequence.number]))
    while self.outputs:
        self.on_output(self.outputs.popleft())


@attempt_at(RIGHT, STEP, Engine)
def step_with_its_own_gain(self):
    self.take_in()
    plan = dict(self.scheduler.schedule())
    logits = self.runner.forward(self.chunk(*both) for both in plan.items())
    self.trace.append([])
    for request, tokens in plan.items():
        sequence = self.sequences[request]
        sequence.num_computed_tokens = computed = sequence.num_computed_tokens + tokens
        self.scheduler.manager.publish(request, tuple(sequence.ids), computed)
        self.trace[-1].append([request, tokens, sequence.has_caught_up])
        if not sequence.has_caught_up:
            continue
        new_ids = sequence.extend(self.choose(sequence, logits[request]))
        if sequence.has_ended:
            self.finish(sequence, sequence.finish_reason, new_ids)
        else:
            sequence.draft(self.k)
            self.on_output(OwnOutput(request, new_ids, None))
    while self.outputs:
        self.on_output(self.outputs.popleft())


class OwnOutput(NamedTuple):
    """An output of one's own making."""

    request: int
    new_ids: list[int]
    finish_reason: str | None


@wrong_at(STEP, Engine, "What is added to the trace in step 1 is []; expected: it is [[]].")
def step_does_nothing(self):
    pass


@wrong_at(STEP, Engine, "What goes out, by request, in step 2 is {}; expected: it is {0: [[")
def step_keeps_its_outputs(self):
    on_output, self.on_output = self.on_output, lambda output: None
    Engine.step(self)
    self.on_output = on_output


@wrong_at(STEP, Engine, "What the runner is asked for, by request, in step 2 is {0: {'ids': [")
def step_changes_the_drafts(self):
    Engine.step(self)
    for sequence in self.sequences.values():
        sequence.drafts = [token + 1 for token in sequence.drafts]


@wrong_at(STEP, Engine, "It raised KeyError: 5")
def step_for_a_stranger(self):
    self.take_in()
    self.chunk(5, 1)


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
    outputs = " ".join(seen_of(EXERCISES[STEP], "What goes out, by request,"))
    for reason in ("[], 'abort'", "[], 'length'", "'stop'", ", None"):
        assert reason in outputs
    trace = " ".join(seen_of(EXERCISES[STEP], "What is added to the trace"))
    assert ", False]" in trace
    assert ", True]" in trace


def test_no_plan_is_larger_than_the_budget() -> None:
    (trial,) = trials(EXERCISES[SCHEDULE])
    for case, outcome in zip(trial.cases, trial.expected, strict=True):
        told = [seen.value for seen in outcome.seen if seen.what == "The plan"]
        plans = [ast.literal_eval(plan.removeprefix("is ")) for plan in told]
        assert len(plans) == case.data["steps"]
        assert max(sum(plan.values()) for plan in plans) <= case.data["token_budget"]


def test_what_follows_a_text_depends_on_every_token_and_its_place() -> None:
    text = [5, 9, 60, 2]
    likeliest = int(logits_after(text, 7).argmax())
    changed = [[*text[:n], text[n] + 1, *text[n + 1 :]] for n in range(4)]
    others = [*changed, text[::-1], text[1:], text[:-1], [0, *text]]
    assert likeliest not in [int(logits_after(other, 7).argmax()) for other in others]
