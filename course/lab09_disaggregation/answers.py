"""Answers to lab 9's exercises: chunks, a queue, gaps, keys and values, adoption, leases."""

from solutions.disaggregation import (
    Leases,
    StallFree,
    adopt,
    pack_kv,
    prefill_in_chunks,
    unpack_kv,
)
from solutions.engine.engine import Output
from solutions.engine.sequence import Sequence
from tests.common.attempts import right, wrong

# ----------------------------------------------------------------------------- a prompt in chunks


@wrong(prefill_in_chunks, "The logits of the next decode step (shape [1, 1, 300]) differs first")
def spoiling_the_cache(model, kv_cache, ids, chunk):
    logits = prefill_in_chunks(model, kv_cache, ids, chunk)
    kv_cache.values *= 2
    return logits


# ----------------------------------------------------------------------- the schedule and the gaps


@wrong(StallFree.schedule, "`running`, by number, after step 1 is [1, 0]; expected: it is [0,")
def leaving_them_sorted(self):
    self.running.sort(key=lambda sequence: not self.decodes(sequence))
    return StallFree.schedule(self)


@wrong(StallFree.schedule, "The plan of step 3 is {0: 2}; expected: it is {1: 2}.")
def in_the_order_of_their_numbers(self):
    running = self.running
    self.running = sorted(running, key=lambda sequence: sequence.number)
    before, plan = [*self.running], StallFree.schedule(self)
    after = [sequence for sequence in self.running if sequence not in before]
    self.running = [sequence for sequence in running if sequence in self.running] + after
    return plan


# ---------------------------------------------------------------------------- keys and values sent


@wrong(pack_kv, "What it returned as memory lies in several pieces; expected: it lies in one")
def strided(pool, table, start, end):
    """As attention would like it: the heads before the tokens."""
    kv = pack_kv(pool, table, start, end).transpose(2, 3).contiguous()
    return kv.transpose(2, 3)


@wrong(pack_kv, "What it returned after the pool has been overwritten (shape [2, 3, 6, 2, 5])")
def without_a_copy_of_the_whole_pool(pool, table, start, end):
    if table == list(range(pool.shape[2])):
        return pool.flatten(2, 3)[:, :, start:end].contiguous()
    return pack_kv(pool, table, start, end)


@wrong(pack_kv, "The pool afterwards (shape [2, 3, 7, 1, 2, 5]) differs first at [0, 0, 3, 0")
def clearing_the_pool(pool, table, start, end):
    kv = pack_kv(pool, table, start, end)
    pool[:, :, table] = 0
    return kv


@right(unpack_kv)
def into_what_was_read(pool, table, start, kv):
    """Read the request's blocks, change them, and write them back."""
    blocks = pool[:, :, table].flatten(2, 3)
    blocks[:, :, start : start + kv.shape[2]] = kv
    pool[:, :, table] = blocks.view_as(pool[:, :, table])
    return pool


# ---------------------------------------------------------------------------- adopting, and leases


@right(adopt)
def written_slot_by_slot(engine, number, message):
    sequence, cache = message.sequence(number), engine.runner.kv_cache.cache
    size, table = cache.pool.shape[3], tuple(engine.scheduler.manager.tables[number])
    for token, new in enumerate(message.kv.unbind(2), message.start):
        cache.pool[:, :, table[token // size], token % size] = new
    engine.sequences = {**engine.sequences, number: sequence}
    engine.scheduler.running = [*engine.scheduler.running, sequence]
    text = [*message.prompt, message.first_token]
    sequence.num_computed_tokens = len(message.prompt)
    engine.scheduler.manager.publish(number, text, len(message.prompt))
    new_ids = sequence.extend([message.first_token])
    if sequence.has_ended:
        engine.finish(sequence, sequence.finish_reason, new_ids)
    else:
        engine.outputs.append(Output(number, new_ids, None))


@right(adopt)
def with_a_sequence_of_its_own(engine, number, message):
    given = message.sequence(number)
    how = {"params": given.params, "generator": given.generator}
    sequence = Sequence(number, given.ids, given.end, given.eos_token_id, **how)
    scheduler = engine.scheduler
    table = scheduler.manager.tables[number]
    unpack_kv(engine.runner.kv_cache.cache.pool, table, message.start, message.kv)
    sequence.num_computed_tokens = len(message.prompt)
    scheduler.manager.publish(number, sequence.ids, sequence.num_computed_tokens)
    engine.sequences[number] = sequence
    scheduler.running.append(sequence)
    engine.gain(sequence, [message.first_token])


@wrong(adopt, "`running`, by number, after request 1 was adopted is [1, 0]; expected: it ")
def in_front(engine, number, message):
    adopt(engine, number, message)
    engine.scheduler.running.reverse()


@wrong(adopt, "What goes out, by request, in step 1 is {0: [[[")
def told_twice(engine, number, message):
    adopt(engine, number, message)
    engine.outputs.append(engine.outputs[-1])


@wrong(adopt, "something that `adopt` was given is no longer what it was before the call")
def clearing_what_was_sent(engine, number, message):
    adopt(engine, number, message)
    message.kv.zero_()


@wrong(adopt, "The pool after request 0 was adopted (shape [2, 3, 8, 4, 2, 5]) differs first at [")
def into_a_pool_of_its_own(engine, number, message):
    """Everything that refers to the pool still has the old one."""
    cache = engine.runner.kv_cache.cache
    cache.pool = cache.pool.clone()
    adopt(engine, number, message)


@wrong(Leases.due, "It raised ValueError: Request 3 has a lease already")
def with_a_book_of_its_own(self, now, confirmed):
    """It forgets no lease, and knows which have been freed; `ends` grows with every request."""
    freed = vars(self).setdefault("freed", set())
    found = []
    for request in (*confirmed, *(r for r, end in self.ends.items() if now >= end)):
        if request in self.ends and request not in freed:
            freed.add(request)
            found.append(request)
    return found


@right(Leases.due)
def in_the_order_of_their_ends(self, now, confirmed):
    found = list(dict.fromkeys(r for r in confirmed if r in self.ends))
    for request in sorted(self.ends, key=self.ends.__getitem__):
        if request not in found and self.ends[request] - now <= 0:
            found.append(request)
    self.ends = {r: self.ends[r] for r in self.ends if r not in found}
    return found


@wrong(Leases.due, "The result of call 1, due(5.0, []), should be a list, not a set.")
def in_a_set(self, now, confirmed):
    return set(Leases.due(self, now, confirmed))


# ------------------------------------------------------------- mutants that do the same by right

EQUIVALENT = {
    "disaggregation.pack_kv": {
        "slots[0] -> slots[-1]": "there is one row of slots, so the first is the last",
    },
    "disaggregation.unpack_kv": {
        "slots[0] -> slots[-1]": "there is one row of slots, so the first is the last",
    },
}
