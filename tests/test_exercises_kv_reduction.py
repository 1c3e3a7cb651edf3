"""Lab 11's exercises: right answers in other styles pass, and what a student is told of wrong ones.

The misconceptions are tested with those of all labs, in test_exercises.py.
"""

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autograder.exercise import Exercise
from autograder.exercises.kv_reduction import EXERCISES as ALL
from autograder.judge import PASSED, WRONG, judge
from solutions.kv_reduction import (
    ChannelKeys,
    HostPool,
    WindowCache,
    grouped_attention,
    keep_heavy,
    pool_heads,
    window_mask,
)
from solutions.kv_variants.packed_rows import Codes
from tests.common.attempts import attempt_at
from tests.common.styles import names_in_another_style
from tests.common.trials import seen_of, trials

EXERCISES: dict[str, Exercise] = {exercise.name: exercise for exercise in ALL}
BYTES, GROUPED, POOL, MASK, ATTEND, HEAVY, APPEND, OUT, IN = EXERCISES
RIGHT: list[Any] = []
WRONGS: list[Any] = []  # each with something of what is said
wrong_at = partial(attempt_at, WRONGS)


# ------------------------------------------------------------------------- bytes, and fewer heads


@attempt_at(RIGHT, BYTES)
def bytes_from_a_tensor(config, kv_heads, bits=32, group=None):
    numbers = torch.empty(2, config.n_layer, kv_heads, config.head_dim, device="meta").numel()
    pairs = 0 if group is None else numbers / group
    return (numbers * bits + pairs * 32) * 0.125


@attempt_at(RIGHT, BYTES)
def bytes_as_a_tensor(config, kv_heads, bits=32, group=None):
    per_number = bits / 8 + (4 / group if group is not None else 0)
    return torch.tensor(2.0 * config.n_layer * config.head_dim * kv_heads * per_number)


@wrong_at(BYTES, None, "The number of bytes should be the number 64, not None. Is a `return` miss")
def bytes_printed(config, kv_heads, bits=32, group=None):
    return None


@attempt_at(RIGHT, GROUPED)
def attention_with_torch_s_own_groups(queries, keys, values, mask):
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=True)


@attempt_at(RIGHT, GROUPED)
def attention_folded_into_the_queries(queries, keys, values, mask):
    """The heads of a group stand behind one another, as if they were more tokens."""
    batch, heads, q_len, head_dim = queries.shape
    group = heads // keys.shape[1]
    folded = queries.reshape(batch, keys.shape[1], group * q_len, head_dim)
    mask = None if mask is None else mask.repeat(1, 1, group, 1)
    attended = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask)
    return attended.reshape(queries.shape)


@attempt_at(RIGHT, GROUPED)
def attention_head_by_head(queries, keys, values, mask):
    group = queries.shape[1] // keys.shape[1]
    outputs = []
    for head in range(queries.shape[1]):
        key, value = keys[:, head // group], values[:, head // group]
        scores = queries[:, head] @ key.transpose(1, 2) / key.shape[2] ** 0.5
        if mask is not None:
            scores = scores.where(mask[:, 0], -torch.inf)
        outputs.append(scores.softmax(dim=2) @ value)
    return torch.stack(outputs, dim=1)


@wrong_at(GROUPED, None, "The result is right, but `queries` is no longer what it was before")
def attention_that_scales_in_place(queries, keys, values, mask):
    attended = grouped_attention(queries, keys, values, mask)
    queries *= queries.shape[3] ** -0.5
    return attended


@attempt_at(RIGHT, POOL)
def pool_by_a_matrix(weight, bias, n_head, kv_heads):
    """Each new column is a mixture of old ones."""
    group, head_dim = n_head // kv_heads, weight.shape[0] // n_head
    mixture = torch.eye(kv_heads).repeat_interleave(group, dim=0) / group
    mixture = torch.kron(mixture.to(weight), torch.eye(head_dim).to(weight))
    blocks = torch.block_diag(torch.eye(weight.shape[0]).to(weight), mixture, mixture)
    return weight @ blocks, bias @ blocks


@attempt_at(RIGHT, POOL)
def pool_weight_and_bias_together(weight, bias, n_head, kv_heads):
    both = torch.cat([weight, bias[None]])
    queries, keys, values = both.tensor_split(3, dim=1)
    shape = len(both), kv_heads, n_head // kv_heads, -1
    keys, values = (part.reshape(shape).mean(2).reshape(len(both), -1) for part in (keys, values))
    found = torch.hstack([queries, keys, values])
    return [found[:-1], found[-1]]


@wrong_at(POOL, None, "pool_heads returns two tensors, weight and bias; this is a Tensor.")
def pool_the_weight_alone(weight, bias, n_head, kv_heads):
    return pool_heads(weight, bias, n_head, kv_heads)[0]


# --------------------------------------------------------------------------------------- a window


@attempt_at(RIGHT, MASK)
def mask_by_what_is_hidden(query_positions, key_positions, window, sinks):
    queries, keys = query_positions.unsqueeze(-1), key_positions.unsqueeze(-2)
    too_far = (keys <= queries - window) & (keys >= sinks)
    return ~((keys > queries) | too_far).unsqueeze(1)


@attempt_at(RIGHT, MASK)
def mask_in_two_parts(query_positions, key_positions, window, sinks):
    shape = *query_positions.shape, key_positions.shape[1]
    queries = query_positions[..., None].expand(shape)
    keys = key_positions[:, None].expand(shape)
    mask = (queries >= keys).logical_and(queries - window < keys)
    mask = mask.logical_or((queries >= keys).logical_and(keys.less(sinks)))
    return mask[:, None, :, :]


@wrong_at(MASK, None, "The mask holds integers; expected True and False.")
def mask_of_numbers(query_positions, key_positions, window, sinks):
    return window_mask(query_positions, key_positions, window, sinks).int()


@attempt_at(RIGHT, ATTEND, WindowCache)
def attend_by_places(self, layer, queries, keys, values):
    """Between the sinks and the window nothing is left, so places tell as much as positions."""
    if self.keys[layer] is not None:
        keys = torch.cat([self.keys[layer], keys], dim=2)
        values = torch.cat([self.values[layer], values], dim=2)
    places = torch.arange(keys.shape[2]).unsqueeze(0)
    new = places[:, -queries.shape[2] :]
    mask = window_mask(new, places, self.window, self.sinks)
    output = grouped_attention(queries, keys, values, mask)
    end = self.length + queries.shape[2]
    positions = [] if self.positions[layer] is None else self.positions[layer][0].tolist()
    positions += range(self.length, end)
    sinks, last = range(min(self.sinks, len(positions))), range(len(positions))[-self.window :]
    rows = sorted({*sinks, *last})
    self.keys[layer], self.values[layer] = keys[:, :, rows], values[:, :, rows]
    self.positions[layer] = torch.tensor(positions)[rows][None]
    if layer + 1 == len(self.keys):
        self.length = end
    return output


@attempt_at(RIGHT, ATTEND, WindowCache)
def attend_token_by_token(self, layer, queries, keys, values):
    """As decode would: each token is stored, attends and makes another one leave."""
    outputs, at = [], self.length
    for query, key, value in zip(*(p.split(1, 2) for p in (queries, keys, values)), strict=True):
        held = self.keys[layer], self.values[layer], self.positions[layer]
        new = key, value, torch.tensor([[at]])
        joined = [
            n if h is None else torch.cat([h, n], 2) for h, n in zip(held[:2], new[:2], strict=True)
        ]
        places = new[2] if held[2] is None else torch.cat([held[2], new[2]], 1)
        kept = (places[0] < self.sinks) | (places[0] > at - self.window)
        self.keys[layer], self.values[layer] = (part[:, :, kept] for part in joined)
        self.positions[layer] = places[:, kept]
        outputs.append(grouped_attention(query, self.keys[layer], self.values[layer], None))
        at += 1
    if layer == len(self.keys) - 1:
        self.length = at
    return torch.cat(outputs, dim=2)


@wrong_at(ATTEND, WindowCache, "The output of layer 0 in step 1 should be a tensor of shape [1, 2")
def attend_and_return_nothing(self, layer, queries, keys, values):
    WindowCache.attend(self, layer, queries, keys, values)


@wrong_at(ATTEND, WindowCache, "The memory of keys and values after step 3 is that of 6 rows a lay")
def attend_and_keep_the_texts_beside(self, layer, queries, keys, values):
    self.spare = [*vars(self).get("spare", []), keys, values]
    return WindowCache.attend(self, layer, queries, keys, values)


# ------------------------------------------------------------------------------------- heavy rows


@attempt_at(RIGHT, HEAVY)
def heavy_by_a_weight_beyond_all(mass, budget, recent):
    """The recent ones are made heavier than everything else."""
    protected = mass.clone()
    protected[:, mass.shape[1] - recent :] = torch.inf
    return protected.argsort(dim=1, descending=True)[:, :budget].sort(dim=1).values


@attempt_at(RIGHT, HEAVY)
def heavy_by_a_mask(mass, budget, recent):
    older = mass.shape[1] - recent
    kept = torch.ones_like(mass, dtype=torch.bool)
    for row, head in enumerate(mass):
        kept[row, head[:older].argsort()[: older - (budget - recent)]] = False
    return kept.nonzero()[:, 1].view(len(mass), budget)


@wrong_at(HEAVY, None, "The rows that are kept should be a tensor of shape [1, 1], not a list.")
def heavy_in_lists(mass, budget, recent):
    return keep_heavy(mass, budget, recent).tolist()


@wrong_at(HEAVY, None, "The result is right, but `mass` is no longer what it was before the call")
def heavy_that_protects_in_place(mass, budget, recent):
    rows = keep_heavy(mass, budget, recent)
    mass[:, -1:] = torch.inf
    return rows


# ------------------------------------------------------------------------------------------ codes


@attempt_at(RIGHT, APPEND, ChannelKeys)
def append_by_splitting(self, keys):
    joined = keys if self.waiting is None else torch.cat([self.waiting, keys], dim=2)
    ends = range(self.group, joined.shape[2] - self.recent + 1, self.group)
    *full, rest = joined.tensor_split([*ends], dim=2)
    self.groups.extend(Codes(part.permute(0, 1, 3, 2), self.bits) for part in full)
    self.waiting = rest.clone(memory_format=torch.contiguous_format)


@attempt_at(RIGHT, APPEND, ChannelKeys)
def append_what_still_fits(self, keys):
    """Fills up what waits, makes a group of its oldest, and goes on with what is left."""
    waiting = keys[:, :, :0].clone() if self.waiting is None else self.waiting
    while keys.shape[2]:
        missing = self.group + self.recent - waiting.shape[2]
        waiting = torch.cat([waiting, keys[:, :, :missing]], dim=2)
        keys = keys[:, :, missing:]
        if waiting.shape[2] == self.group + self.recent:
            oldest = waiting[:, :, : self.group]
            self.groups += [Codes(oldest.transpose(-1, -2).contiguous(), self.bits)]
            waiting = waiting[:, :, self.group :].clone()
    self.waiting = waiting


@wrong_at(APPEND, ChannelKeys, "`groups[0].packed` after 4 tokens")
def append_to_the_last_one(self, keys):
    """Channels in the other direction."""
    before = len(self.groups)
    ChannelKeys.append(self, keys)
    for codes in self.groups[before:]:
        codes.packed = codes.packed.flip(2)


# --------------------------------------------------------------------------------------- swapping


@attempt_at(RIGHT, OUT, HostPool)
def out_token_by_token(self, cache, request_id):
    manager, size = cache.manager, cache.pool.shape[3]
    rows: list[Tensor] = []
    for token in range(manager.lengths[request_id]):
        block = manager.tables[request_id][token // size]
        rows.append(cache.pool[:, :, block, token % size])
    self.store.update({request_id: torch.stack(rows, dim=2)})
    manager.free(request_id)


@attempt_at(RIGHT, OUT, HostPool)
def out_in_whole_blocks_and_cut(self, cache, request_id):
    blocks = torch.tensor(cache.manager.tables[request_id])
    kept = cache.pool.index_select(2, blocks).flatten(2, 3)
    kept = kept[:, :, : cache.manager.lengths[request_id]]
    self.store[request_id] = kept.clone(memory_format=torch.contiguous_format)
    cache.free(request_id=request_id)


@wrong_at(OUT, HostPool, "The memory of `store[0]` after request 0 was swapped out holds 240 numb")
def out_as_a_slice_of_whole_blocks(self, cache, request_id):
    blocks = cache.manager.tables[request_id]
    kept = cache.pool[:, :, blocks].flatten(2, 3)
    self.store[request_id] = kept[:, :, : cache.manager.lengths[request_id]]
    cache.free(request_id)


@attempt_at(RIGHT, IN, HostPool)
def in_block_by_block(self, cache, request_id):
    kv, size = self.store[request_id], cache.pool.shape[3]
    cache.manager.allocate(request_id=request_id, num_tokens=kv.shape[2])
    parts = kv.split(size, dim=2)
    for block, part in zip(cache.manager.tables[request_id], parts, strict=True):
        cache.pool[:, :, block, : part.shape[2]] = part
    self.store.pop(request_id)


@attempt_at(RIGHT, IN, HostPool)
def in_and_back_where_there_is_no_room(self, cache, request_id):
    kv = self.store.pop(request_id)
    try:
        cache.manager.allocate(request_id, kv.shape[2])
    except Exception:
        self.store[request_id] = kv
        raise
    size, table = cache.pool.shape[3], torch.tensor(cache.manager.tables[request_id])
    tokens = torch.arange(kv.shape[2])
    cache.pool[:, :, table[tokens // size], tokens % size] = kv


@wrong_at(IN, HostPool, "What lies in the blocks of request 1 after step 1")
def in_and_over_another(self, cache, request_id):
    HostPool.swap_in(self, cache, request_id)
    for other, table in cache.manager.tables.items():
        if other != request_id:
            cache.pool[:, :, table[0], 0] = 0


# ---------------------------------------------------------------------------------------- verdicts


@pytest.mark.parametrize(("exercise", "attempt"), RIGHT)
def test_a_right_answer_in_another_style_passes(exercise: str, attempt: Any) -> None:
    for seed in range(3):
        judgement = judge(EXERCISES[exercise], attempt, seed)
        assert judgement.status == PASSED, (judgement.case, judgement.message)


@pytest.mark.parametrize("exercise", EXERCISES)
def test_a_notebook_in_another_style_passes(exercise: str) -> None:
    names = names_in_another_style("kv_reduction")
    judgement = judge(EXERCISES[exercise], names[EXERCISES[exercise].attempt_name])
    assert judgement.status == PASSED, (judgement.case, judgement.message)


@pytest.mark.parametrize(("exercise", "attempt", "said"), WRONGS)
def test_what_is_said_of_a_wrong_one(exercise: str, attempt: Any, said: str) -> None:
    judgement = judge(EXERCISES[exercise], attempt)
    assert judgement.status == WRONG
    assert said in judgement.message


# ------------------------------------------------------------------------------ what cases hold


def test_the_cases_reach_what_is_rare() -> None:
    assert "was refused with OutOfBlocks" in seen_of(EXERCISES[IN], "`swap_in` of request 0")
    assert "was refused with a ValueError" in seen_of(EXERCISES[ATTEND], "`truncate(5)`")
    assert "went through" in seen_of(EXERCISES[ATTEND], "`truncate(2)`")
    assert max(seen_of(EXERCISES[APPEND], "The number of `groups`")) >= 3
    assert 0 in {waiting.shape[2] for waiting in seen_of(EXERCISES[APPEND], "`waiting`")}


def test_some_cases_tell_heads_from_groups() -> None:
    """Where there are as many groups as heads in each, one may be taken for the other."""
    attention, pooled = (trials(EXERCISES[name])[0].cases for name in (GROUPED, POOL))
    pairs = [(case.data["queries"].shape[1], case.data["keys"].shape[1]) for case in attention]
    assert any(1 < kv_heads != n_head // kv_heads > 1 for n_head, kv_heads in pairs)
    pairs = [(case.data["n_head"], case.data["kv_heads"]) for case in pooled]
    assert any(1 < kv_heads != n_head // kv_heads > 1 for n_head, kv_heads in pairs)
