"""Lab 9 in another style: chunks cut beforehand, kinds by their rank, tokens one by one."""

from itertools import groupby


def place_of(table, token, block_size):
    """In which block a token lies, and where in it."""
    entry, place = divmod(token, block_size)
    return table[entry], place


def rank(scheduler, sequence):
    """Requests that decode come first; those of equal rank keep their order."""
    return 0 if scheduler.decodes(sequence) else 1


@torch.inference_mode()
def prefill_in_chunks(model, kv_cache, ids, chunk):
    ### BEGIN SOLUTION
    last, everywhere = None, torch.arange(ids.size(1)).repeat(ids.size(0), 1)
    for tokens, places in zip(ids.split(chunk, 1), everywhere.split(chunk, 1), strict=True):
        last = model(inputs=tokens, position_ids=places, kv_cache=kv_cache).select(1, -1)
    return last
    ### END SOLUTION


class StallFree:
    def schedule(self):
        ### BEGIN SOLUTION
        counts, before = {}, self.preemptions

        def left():
            return self.token_budget - sum(counts.values())

        for sequence in sorted(self.running, key=lambda one: rank(self, one)):
            wanted = sequence.next_count(left())
            if wanted and self.make_room(sequence, wanted):
                counts[sequence.number] = wanted
        while left() and before == self.preemptions and self.admit():
            *_, newcomer = self.running
            counts[newcomer.number] = newcomer.next_count(left())
        return counts
        ### END SOLUTION


def token_gaps(trace, request):
    ### BEGIN SOLUTION
    gaps, gap = [], None
    for step in trace:
        if gap is not None:
            gap += sum(tokens for _, tokens, _ in step)
        for whose, _, sampled in step:
            if whose == request and sampled:
                gaps.append(gap)
                gap = 0
    return gaps[1:]
    ### END SOLUTION


def pack_kv(pool, table, start, end):
    ### BEGIN SOLUTION
    packed = pool.new_empty(*pool.shape[:2], end - start, *pool.shape[4:])
    for number, token in enumerate(range(start, end)):
        block, place = place_of(table, token, pool.shape[3])
        packed[:, :, number] = pool[:, :, block, place]
    return packed
    ### END SOLUTION


def unpack_kv(pool, table, start, kv):
    ### BEGIN SOLUTION
    size = pool.size(3)
    tokens = range(start, start + kv.size(2))
    for entry, group in groupby(tokens, key=lambda token: token // size):
        members = list(group)
        first, last = members[0], members[-1] + 1
        new = kv[:, :, first - start : last - start]
        pool[:, :, table[entry], first - entry * size : last - entry * size] = new
    ### END SOLUTION


def adopt(engine, number, message):
    sequence = message.sequence(number)
    ### BEGIN SOLUTION
    scheduler, computed = engine.scheduler, len(message.prompt)
    scheduler.running += [sequence]
    engine.sequences.update({number: sequence})
    memory = engine.runner.kv_cache.cache.pool
    unpack_kv(memory, scheduler.manager.tables[number], message.start, message.kv)
    scheduler.manager.publish(number, message.prompt, computed)
    sequence.num_computed_tokens = computed
    engine.gain(sequence, [message.first_token])
    ### END SOLUTION


class Leases:
    def due(self, now, confirmed):
        ### BEGIN SOLUTION
        freed = []
        for request in [*confirmed, *self.ends]:
            arrived = request in confirmed
            if request in self.ends and request not in freed:
                freed += [request] if arrived or self.ends[request] <= now else []
        self.ends = {r: end for r, end in self.ends.items() if r not in freed}
        return freed
        ### END SOLUTION
