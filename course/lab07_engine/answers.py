"""Answers to lab 7's exercises: the scheduler, and the engine's step."""

from typing import NamedTuple

from solutions.engine.engine import Engine
from solutions.engine.runner import Chunk
from solutions.engine.scheduler import Scheduler
from tests.common.attempts import right, wrong

# --------------------------------------------------------------------------------- the scheduler


@right(Scheduler.schedule)
def with_its_own_preemption(self):
    plan, preempted = {}, False
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
    return dict(reversed(plan.items()))


@wrong(Scheduler.schedule, "The plan of step 1 is {0: 6, 1: 2}", "are counted before `admit`")
def counting_before_admission(self):
    plan, preemptions = {}, self.preemptions
    for sequence in list(self.running):
        count = sequence.next_count(self.token_budget - sum(plan.values()))
        if count and self.make_room(sequence, count):
            plan[sequence.number] = count
    while self.waiting and self.preemptions == preemptions:
        first = self.waiting[0]
        count = first.next_count(self.token_budget - sum(plan.values()))
        if count == 0 or not self.admit():
            break
        plan[first.number] = count
    return plan


@wrong(Scheduler.schedule, "The plan of step 1 is {7: 1}; expected: it is {}.")
def with_a_stranger(self):
    return {**Scheduler.schedule(self), 7: 1}


@wrong(Scheduler.schedule, "`drafts`, by request, after step 1 is {0: []}; expected: it is")
def dropping_the_drafts(self):
    plan = Scheduler.schedule(self)
    for sequence in self.running:
        sequence.drafts = []
    return plan


@wrong(Scheduler.schedule, "is {0: 3}; expected: it is {0: 0}.")
def counting_at_once(self):
    plan = Scheduler.schedule(self)
    for sequence in self.running:
        sequence.num_computed_tokens += plan.get(sequence.number, 0)
    return plan


@wrong(Scheduler.schedule, "The number of blocks, by request, after step 1 is {0: 2}; expected")
def reserving_one_more(self):
    plan = Scheduler.schedule(self)
    for sequence in self.running:
        self.manager.grow(sequence.number, len(sequence.text) + self.manager.block_size)
    return plan


# ------------------------------------------------------------------------------------ the engine


def own_chunk(sequence, tokens):
    start, end = sequence.num_computed_tokens, sequence.num_computed_tokens + tokens
    wanted = len([place for place in range(start, end) if place >= len(sequence.ids) - 1])
    return Chunk(sequence.number, (sequence.ids + sequence.drafts)[start:end], start, wanted)


class OwnOutput(NamedTuple):
    request: int
    new_ids: list[int]
    finish_reason: str | None


@right(Engine.step)
def with_its_own_chunks_and_gain(self):
    self.take_in()
    plan = dict(self.scheduler.schedule())
    logits = self.runner.forward(own_chunk(self.sequences[r], n) for r, n in plan.items())
    self.trace.append([])
    for request, tokens in plan.items():
        sequence = self.sequences[request]
        sequence.num_computed_tokens = computed = sequence.num_computed_tokens + tokens
        self.scheduler.manager.publish(request, tuple(sequence.ids), computed)
        self.trace[-1].append([request, tokens, sequence.has_caught_up])
        if not sequence.has_caught_up:
            continue
        with self.ending_at_errors(sequence):
            new_ids = sequence.extend(self.choose(sequence, logits[request]))
        if sequence.has_ended:
            self.finish(sequence, sequence.finish_reason, new_ids)
        else:
            sequence.draft(self.k)
            self.on_output(OwnOutput(request, new_ids, None))
    while self.outputs:
        self.on_output(self.outputs.popleft())


@wrong(Engine.step, "What goes out, by request, in step 2 is {}; expected: it is {0: [[")
def keeping_its_outputs(self):
    on_output, self.on_output = self.on_output, lambda output: None
    Engine.step(self)
    self.on_output = on_output


@wrong(Engine.step, "What the runner receives, by request, in step 2 is {0: {'ids': [")
def changing_the_drafts(self):
    Engine.step(self)
    for sequence in self.sequences.values():
        sequence.drafts = [token + 1 for token in sequence.drafts]
