"""Answers to lab 11's exercises: fewer heads, a window, heavy rows, codes of keys, swapping."""

import torch
import torch.nn.functional as F
from torch import Tensor

from solutions.kv_reduction import (
    ChannelKeys,
    HostPool,
    WindowCache,
    grouped_attention,
    pool_heads,
)
from solutions.kv_variants.packed_rows import Codes
from tests.common.attempts import right, wrong

BYTES, GROUPED = "kv_reduction.kv_bytes_per_token", "kv_reduction.grouped_attention"
POOL, MASK, HEAVY = (f"kv_reduction.{name}" for name in ("pool_heads", "window_mask", "keep_heavy"))
ATTEND, APPEND = "kv_reduction.WindowCache.attend", "kv_reduction.ChannelKeys.append"
OUT, IN = "kv_reduction.HostPool.swap_out", "kv_reduction.HostPool.swap_in"


# ------------------------------------------------------------------------- bytes, and fewer heads


@right(BYTES)
def as_a_tensor(config, kv_heads, bits=32, group=None):
    per_number = bits / 8 + (4 / group if group is not None else 0)
    return torch.tensor(2.0 * config.n_layer * config.head_dim * kv_heads * per_number)


@right(GROUPED)
def by_torchs_own_groups(queries, keys, values, mask):
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=True)


@right(GROUPED)
def folded_into_the_queries(queries, keys, values, mask):
    """The heads of a group stand behind one another, as if they were more tokens."""
    batch, heads, q_len, head_dim = queries.shape
    group = heads // keys.shape[1]
    folded = queries.reshape(batch, keys.shape[1], group * q_len, head_dim)
    mask = None if mask is None else mask.repeat(1, 1, group, 1)
    attended = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask)
    return attended.reshape(queries.shape)


@right(POOL)
def by_a_matrix(weight, bias, n_head, kv_heads):
    """Each new column is a mixture of old ones."""
    group, head_dim = n_head // kv_heads, weight.shape[0] // n_head
    mixture = torch.eye(kv_heads).repeat_interleave(group, dim=0) / group
    mixture = torch.kron(mixture.to(weight), torch.eye(head_dim).to(weight))
    blocks = torch.block_diag(torch.eye(weight.shape[0]).to(weight), mixture, mixture)
    return [weight @ blocks, bias @ blocks]


@wrong(POOL, "pool_heads returns two tensors, weight and bias; this is a Tensor.")
def the_weight_alone(weight, bias, n_head, kv_heads):
    return pool_heads(weight, bias, n_head, kv_heads)[0]


# --------------------------------------------------------------------------------------- a window


@right(MASK)
def by_what_is_hidden(query_positions, key_positions, window, sinks):
    queries, keys = query_positions.unsqueeze(-1), key_positions.unsqueeze(-2)
    too_far = (keys <= queries - window) & (keys >= sinks)
    return ~((keys > queries) | too_far).unsqueeze(1)


@right(ATTEND, base=WindowCache)
def token_by_token(self, layer, queries, keys, values):
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


@wrong(
    ATTEND,
    "The memory of keys and values after step 3 is that of 6 rows a lay",
    base=WindowCache,
)
def keeping_more_beside(self, layer, queries, keys, values):
    self.spare = [*vars(self).get("spare", []), keys, values]
    return WindowCache.attend(self, layer, queries, keys, values)


# ------------------------------------------------------------------------- heavy rows, and codes


@right(HEAVY)
def by_a_weight_beyond_all(mass, budget, recent):
    """The recent ones are made heavier than everything else."""
    protected = mass.clone()
    protected[:, mass.shape[1] - recent :] = torch.inf
    return protected.argsort(dim=1, descending=True)[:, :budget].sort(dim=1).values


@right(APPEND, base=ChannelKeys)
def by_splitting(self, keys):
    joined = keys if self.waiting is None else torch.cat([self.waiting, keys], dim=2)
    ends = range(self.group, joined.shape[2] - self.recent + 1, self.group)
    *full, rest = joined.tensor_split([*ends], dim=2)
    self.groups.extend(Codes(part.permute(0, 1, 3, 2), self.bits) for part in full)
    self.waiting = rest.clone(memory_format=torch.contiguous_format)


@wrong(APPEND, "`groups[0].packed` after 4 tokens", base=ChannelKeys)
def channels_in_the_other_direction(self, keys):
    before = len(self.groups)
    ChannelKeys.append(self, keys)
    for codes in self.groups[before:]:
        codes.packed = codes.packed.flip(2)


# --------------------------------------------------------------------------------------- swapping


@right(OUT, base=HostPool)
def out_token_by_token(self, cache, request_id):
    manager, size = cache.manager, cache.pool.shape[3]
    rows: list[Tensor] = []
    for token in range(manager.lengths[request_id]):
        block = manager.tables[request_id][token // size]
        rows.append(cache.pool[:, :, block, token % size])
    self.store.update({request_id: torch.stack(rows, dim=2)})
    cache.free(request_id=request_id)


@wrong(
    OUT, "The memory of `store[0]` after request 0 was swapped out holds 240 numb", base=HostPool
)
def a_slice_of_whole_blocks(self, cache, request_id):
    blocks = cache.manager.tables[request_id]
    kept = cache.pool[:, :, blocks].flatten(2, 3)
    self.store[request_id] = kept[:, :, : cache.manager.lengths[request_id]]
    cache.free(request_id)


@right(IN, base=HostPool)
def put_back_where_there_is_no_room(self, cache, request_id):
    kv = self.store.pop(request_id)
    try:
        cache.manager.allocate(request_id, kv.shape[2])
    except Exception:
        self.store[request_id] = kv
        raise
    size, table = cache.pool.shape[3], torch.tensor(cache.manager.tables[request_id])
    tokens = torch.arange(kv.shape[2])
    cache.pool[:, :, table[tokens // size], tokens % size] = kv


@wrong(IN, "What lies in the blocks of request 1 after step 1", base=HostPool)
def over_another(self, cache, request_id):
    HostPool.swap_in(self, cache, request_id)
    for other, table in cache.manager.tables.items():
        if other != request_id:
            cache.pool[:, :, table[0], 0] = 0
