"""Answers to lab 9's exercises: chunks, a queue, gaps, what is sent, adopted requests, leases."""

import math

import torch

from solutions.disaggregation import Leases, StallFree, adopt, pack_kv, prefill_in_chunks
from solutions.engine.engine import Output
from tests.common.attempts import right, wrong

PREFILL, GAPS = "disaggregation.prefill_in_chunks", "disaggregation.token_gaps"
SCHEDULE, DUE = "disaggregation.StallFree.schedule", "disaggregation.Leases.due"
PACK, UNPACK, ADOPT = (f"disaggregation.{name}" for name in ("pack_kv", "unpack_kv", "adopt"))


# ----------------------------------------------------------------------------- a prompt in chunks


@right(PREFILL)
def by_the_length_of_the_cache(model, kv_cache, ids, chunk):
    with torch.no_grad():
        while kv_cache.length < ids.shape[1]:
            first, last = kv_cache.length, min(kv_cache.length + chunk, ids.shape[1])
            positions = torch.tensor([list(range(first, last))] * len(ids))
            logits = model(ids[:, first:last], positions, kv_cache)
    return logits[:, last - first - 1]


@wrong(PREFILL, "The logits of a decode step behind it (shape [1, 1, 300]) differs first")
def spoiling_the_cache(model, kv_cache, ids, chunk):
    logits = prefill_in_chunks(model, kv_cache, ids, chunk)
    kv_cache.values *= 2
    return logits


# ----------------------------------------------------------------------- the schedule and the gaps


@right(SCHEDULE, base=StallFree)
def in_two_passes(self):
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


@wrong(
    SCHEDULE, "`running`, by number, after step 1 is [1, 0]; expected: it is [0,", base=StallFree
)
def leaving_them_sorted(self):
    self.running.sort(key=lambda sequence: not self.decodes(sequence))
    return StallFree.schedule(self)


@right(GAPS)
def backwards_in_floats(trace, request):
    gaps, gap, has_token = [], 0, False
    for step in reversed(list(trace)):
        if any(whose == request and sampled for whose, _, sampled in step):
            if has_token:
                gaps.insert(0, gap)
            gap, has_token = 0, True
        gap += math.fsum(tokens for _, tokens, _ in step)
    return gaps


# ---------------------------------------------------------------------------- keys and values sent


@right(PACK)
def whole_blocks_cut(pool, table, start, end):
    return pool[:, :, table].flatten(2, 3)[:, :, start:end].contiguous()


@right(PACK)
def in_pieces(pool, table, start, end):
    size = pool.shape[3]
    pieces = [pool[:, :, :0, 0]]
    for number, block in enumerate(table):
        first, last = max(start - number * size, 0), min(end - number * size, size)
        pieces += [pool[:, :, block, first:last]] if first < last else []
    return torch.cat(pieces, dim=2)


@wrong(PACK, "What it returned as memory lies in several pieces; expected: it lies in one")
def strided(pool, table, start, end):
    """As attention would like it: the heads before the tokens."""
    kv = pack_kv(pool, table, start, end).transpose(2, 3).contiguous()
    return kv.transpose(2, 3)


@wrong(PACK, "What it returned once the pool has been overwritten (shape [2, 3, 6, 2, 5])")
def without_a_copy_of_the_whole_pool(pool, table, start, end):
    if table == list(range(pool.shape[2])):
        return pool.flatten(2, 3)[:, :, start:end].contiguous()
    return pack_kv(pool, table, start, end)


@wrong(PACK, "The pool afterwards (shape [2, 3, 7, 1, 2, 5]) differs first at [0, 0, 3, 0")
def clearing_the_pool(pool, table, start, end):
    kv = pack_kv(pool, table, start, end)
    pool[:, :, table] = 0
    return kv


@right(UNPACK)
def into_what_was_read(pool, table, start, kv):
    """Reads the request's blocks, changes them, and writes them back."""
    blocks = pool[:, :, table].flatten(2, 3)
    blocks[:, :, start : start + kv.shape[2]] = kv
    pool[:, :, table] = blocks.view_as(pool[:, :, table])
    return pool


# ---------------------------------------------------------------------------- adopting, and leases


@right(ADOPT)
def written_slot_by_slot(engine, number, message):
    sequence, cache = message.sequence(number), engine.runner.kv_cache.cache
    size, table = cache.pool.shape[3], tuple(engine.scheduler.manager.tables[number])
    for token, new in enumerate(message.kv.unbind(2), message.start):
        cache.pool[:, :, table[token // size], token % size] = new
    engine.sequences = {**engine.sequences, number: sequence}
    engine.scheduler.running = [*engine.scheduler.running, sequence]
    text = [*message.prompt, message.first_token]
    engine.scheduler.manager.publish(number, text, len(message.prompt))
    new_ids = sequence.extend([message.first_token])
    if sequence.has_ended:
        engine.finish(sequence, sequence.finish_reason, new_ids)
    else:
        engine.outputs.append(Output(number, new_ids, None))


@wrong(ADOPT, "`running`, by number, after request 1 was adopted is [1, 0]; expected: it ")
def in_front(engine, number, message):
    adopt(engine, number, message)
    engine.scheduler.running.reverse()


@wrong(ADOPT, "What goes out, by request, in step 1 is {0: [[[")
def told_twice(engine, number, message):
    adopt(engine, number, message)
    engine.outputs.append(engine.outputs[-1])


@wrong(ADOPT, "The result is right, but `requests[0].kv` is no longer what it was before")
def clearing_what_was_sent(engine, number, message):
    adopt(engine, number, message)
    message.kv.zero_()


@right(DUE, base=Leases)
def with_a_book_of_its_own(self, now, confirmed):
    """It forgets none, and knows which have been freed."""
    freed = vars(self).setdefault("freed", set())
    found = []
    for request in (*confirmed, *(r for r, end in self.ends.items() if now >= end)):
        if request in self.ends and request not in freed:
            freed.add(request)
            found.append(request)
    return found


@right(DUE, base=Leases)
def in_the_order_of_their_ends(self, now, confirmed):
    found = list(dict.fromkeys(r for r in confirmed if r in self.ends))
    for request in sorted(self.ends, key=self.ends.__getitem__):
        if request not in found and self.ends[request] - now <= 0:
            found.append(request)
    self.ends = {r: self.ends[r] for r in self.ends if r not in found}
    return found


@wrong(DUE, "What came of call 1, due(5.0, []), should be a list, not a set.", base=Leases)
def in_a_set(self, now, confirmed):
    return set(Leases.due(self, now, confirmed))
