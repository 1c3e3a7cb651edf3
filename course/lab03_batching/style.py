"""Lab 3 in another style: rows that are due, comprehensions for loops, attention row by row."""

from itertools import accumulate, chain
from statistics import fmean


def pad_left(prompts, pad_id=0):
    ### BEGIN SOLUTION
    length = max(map(len, prompts))
    pads = [length - len(prompt) for prompt in prompts]
    ids = [[pad_id] * n + list(prompt) for n, prompt in zip(pads, prompts, strict=True)]
    return torch.tensor(ids), torch.tensor([[place >= n for place in range(length)] for n in pads])
    ### END SOLUTION


def padded_position_ids(attention_mask):
    ### BEGIN SOLUTION
    counted = [list(accumulate(row)) for row in attention_mask.int().tolist()]
    return torch.tensor([[max(0, number - 1) for number in row] for row in counted])
    ### END SOLUTION


def padded_mask(attention_mask, q_len):
    ### BEGIN SOLUTION
    batch, k_len = attention_mask.shape
    mask = torch.zeros(batch, 1, q_len, k_len, dtype=torch.bool)
    for row, is_token in enumerate(attention_mask):
        for query in range(q_len):
            column = k_len - q_len + query
            seen = mask[row, 0, query]
            seen[: column + 1] = is_token[: column + 1]
            seen[column] = True  # a pad sees itself, and nobody looks
    return mask
    ### END SOLUTION


def generate_padded(model, prompts, max_new_tokens, eos_token_id=None):
    config, weight = model.config, model.transformer.wte.weight
    require_requests(config, prompts, max_new_tokens, slots=len(prompts) or 1)
    input_ids, attention_mask = (padded.to(weight.device) for padded in pad_left(prompts))
    columns = input_ids.shape[1] + max(max_new_tokens)
    kv_cache = PaddedCache(config, attention_mask, columns, weight.device, weight.dtype)
    position_ids = padded_position_ids(attention_mask)
    ### BEGIN SOLUTION
    texts, full = [[*prompt] for prompt in prompts], config.n_positions
    ends = [min(len(t) + new, full) for t, new in zip(texts, max_new_tokens, strict=True)]
    due = [row for row, text in enumerate(texts) if len(text) < ends[row]]
    while due:
        newest = torch.argmax(model(input_ids, position_ids, kv_cache)[:, -1, :], dim=1)
        for row in due:
            texts[row] += [newest[row].item()]
        due = [r for r in due if len(texts[r]) < ends[r] and texts[r][-1] != eos_token_id]
        input_ids = newest.reshape(-1, 1)
        position_ids = torch.tensor([[len(text) - 1] for text in texts])
    return texts
    ### END SOLUTION


def utilisation(trace):
    ### BEGIN SOLUTION
    return fmean(1.0 if number is not None else 0.0 for number in chain.from_iterable(trace))
    ### END SOLUTION


def dynamic_batches(arrivals, limit, delay, seconds):
    ### BEGIN SOLUTION
    batches, waiting, coming, now, free = [], [], list(arrivals), 0, 0
    while coming or waiting:
        while coming and coming[0] <= now:
            waiting.append(coming.pop(0))
        if waiting and now >= free and (len(waiting) >= limit or now >= waiting[0] + delay):
            number = len(arrivals) - len(coming) - len(waiting)
            batches.append((now, number, min(limit, len(waiting))))
            waiting = waiting[limit:]
            free = now + seconds(batches[-1][2])
        else:
            events = [*coming[:1], free, *(arrival + delay for arrival in waiting[:1])]
            now = min(event for event in events if event > now)
    return batches
    ### END SOLUTION


class SlotCache:
    def select(self, slots, q_len):
        device = self.lengths.device
        self.slots = torch.tensor(slots, device=device)
        ### BEGIN SOLUTION
        starts = [self.lengths[slot].item() for slot in slots]
        self.positions = torch.stack([torch.arange(start, start + q_len) for start in starts])
        k_len = max(starts) + q_len
        self.mask = torch.ge(self.positions[:, None, :, None], torch.arange(k_len))
        return self.positions
        ### END SOLUTION

    def attend(self, layer, queries, keys, values):
        # a view of one layer, [slots, heads, max_length, head_dim] each
        all_keys, all_values = self.keys[layer], self.values[layer]
        ### BEGIN SOLUTION
        outputs = []
        for row, slot in enumerate(self.slots.tolist()):
            first, last = self.positions[row, [0, -1]].tolist()
            all_keys[slot, :, first : last + 1] = keys[row]
            all_values[slot, :, first : last + 1] = values[row]
            scores = torch.einsum("hqd,hkd->hqk", queries[row], all_keys[slot, :, : last + 1])
            scores = (scores / queries.size(-1) ** 0.5).masked_fill(
                ~self.mask[row, :, :, : last + 1], float("-inf")
            )
            weights = torch.softmax(scores, dim=2)
            outputs.append(torch.einsum("hqk,hkd->hqd", weights, all_values[slot, :, : last + 1]))
            if layer == self.keys.size(0) - 1:
                self.lengths[slot] = last + 1
        return torch.stack(outputs)
        ### END SOLUTION


class ContinuousBatcher:
    def admit(self):
        ### BEGIN SOLUTION
        free = [slot for slot in range(len(self.running)) if not self.running[slot]]
        given_away = []
        while free and self.waiting:
            given_away += [free.pop(0)]
            self.running[given_away[-1]] = self.waiting.popleft()
        return given_away
        ### END SOLUTION

    def step(self):
        ### BEGIN SOLUTION
        busy = {slot: request for slot, request in enumerate(self.running) if request is not None}
        for forward in [*([slot] for slot in self.admit()), list(busy)]:
            if len(forward) > 0:
                self.forward(forward)
        served = [None] * len(self.running)
        ended = []
        for slot, request in enumerate(self.running):
            match request:
                case None:
                    continue
                case _ if request.has_ended:
                    ended.append(slot)
            served[slot] = request.number
        self.trace += [served]
        for slot in ended:
            self.retire(slot)
        ### END SOLUTION
