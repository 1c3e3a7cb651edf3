"""Lab 3 in another style: rows as records, comprehensions for loops, attention row by row."""

from dataclasses import dataclass
from itertools import accumulate, chain
from statistics import fmean
from typing import NamedTuple


class Padded(NamedTuple):
    """One row of the rectangle."""

    ids: list[int]
    mask: list[bool]


def padded(prompt, length, pad_id):
    pads = length - len(prompt)
    return Padded([pad_id] * pads + list(prompt), [False] * pads + [True] * len(prompt))


def pad_left(prompts, pad_id=0):
    ### BEGIN SOLUTION
    length = max(map(len, prompts))
    rows = [padded(prompt, length, pad_id) for prompt in prompts]
    ids, masks = zip(*rows, strict=True)
    return torch.tensor(ids), torch.tensor(masks)
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


@dataclass
class Row:
    """A prompt of the batch, and how far it has come."""

    ids: list[int]
    most: int
    eos_token_id: int | None
    has_met_eos: bool = False

    @property
    def goes_on(self):
        return len(self.ids) < self.most and not self.has_met_eos

    def take(self, token):
        if self.goes_on:
            self.ids.append(token)
            self.has_met_eos = token == self.eos_token_id


def generate_padded(model, prompts, max_new_tokens, eos_token_id=None):
    config, weight = model.config, model.transformer.wte.weight
    require_requests(config, prompts, max_new_tokens, slots=len(prompts) or 1)
    input_ids, attention_mask = (padded.to(weight.device) for padded in pad_left(prompts))
    columns = input_ids.shape[1] + max(max_new_tokens)
    kv_cache = PaddedCache(config, attention_mask, columns, weight.device, weight.dtype)
    position_ids = padded_position_ids(attention_mask)
    ### BEGIN SOLUTION
    rows = [
        Row([*prompt], min(len(prompt) + new, config.n_positions), eos_token_id)
        for prompt, new in zip(prompts, max_new_tokens, strict=True)
    ]
    while any(row.goes_on for row in rows):
        newest = torch.argmax(model(input_ids, position_ids, kv_cache)[:, -1, :], dim=1)
        for row, token in zip(rows, newest.tolist(), strict=True):
            row.take(token)
        input_ids = newest.reshape(-1, 1)
        position_ids = torch.tensor([[len(row.ids) - 1] for row in rows])
    return [row.ids for row in rows]
    ### END SOLUTION


def utilisation(trace):
    ### BEGIN SOLUTION
    return fmean(1.0 if number is not None else 0.0 for number in chain.from_iterable(trace))
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
