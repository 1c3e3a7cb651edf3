"""Answers to lab 11's exercises: fewer heads, a window, heavy rows, codes of keys, swapping."""

import torch
import torch.nn.functional as F

from solutions.kv_reduction import (
    ChannelKeys,
    HostPool,
    WindowCache,
    grouped_attention,
    join,
    kv_bytes_per_token,
    window_mask,
)
from solutions.kv_variants.packed_rows import Codes
from tests.common.attempts import right, wrong

# ------------------------------------------------------------------------- bytes, and fewer heads


@wrong(kv_bytes_per_token, "The number of bytes is 2; expected 2.25.")
def whole_bytes(config, kv_heads, bits=32, group=None):
    return int(kv_bytes_per_token(config, kv_heads, bits, group))


@right(grouped_attention)
def by_torchs_own_groups(queries, keys, values, mask):
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=True)


# --------------------------------------------------------------------------------------- a window


@wrong(window_mask, "The mask (shape [1, 1, 1, 5]) differs first at [0, 0, 0, 1]")
def ending_at_the_last_key(query_positions, key_positions, window, sinks):
    last = key_positions.max() - query_positions.max()
    return window_mask(query_positions + last, key_positions, window, sinks)


@right(WindowCache.attend)
def newest_rows_first(self, layer, queries, keys, values):
    end = self.length + queries.shape[2]
    new = positions = torch.arange(self.length, end)[None]
    if self.length:
        positions = torch.cat([new, self.positions[layer]], dim=1)
        keys = torch.cat([keys, self.keys[layer]], dim=2)
        values = torch.cat([values, self.values[layer]], dim=2)
    output = grouped_attention(
        queries, keys, values, window_mask(new, positions, self.window, self.sinks)
    )
    seen = (positions[0] < self.sinks) | (positions[0] > end - self.window)
    self.positions[layer] = positions[:, seen]
    self.keys[layer], self.values[layer] = keys[:, :, seen], values[:, :, seen]
    self.length = end if layer == len(self.keys) - 1 else self.length
    return output


@wrong(WindowCache.attend, "sees, of layer 0 after step 1 holds floats; expected integers")
def positions_as_floats(self, layer, queries, keys, values):
    output = WindowCache.attend(self, layer, queries, keys, values)
    self.positions[layer] = self.positions[layer].double()
    return output


@wrong(WindowCache.attend, "The memory of `positions` of layer 0 after step 2 is that of 4 rows")
def a_view_of_all_positions(self, layer, queries, keys, values):
    output = WindowCache.attend(self, layer, queries, keys, values)
    rows = self.positions[layer][0]
    if rows.numel() and int(rows[-1] - rows[0]) == rows.numel() - 1:
        self.positions[layer] = torch.arange(int(rows[-1]) + 1)[None, int(rows[0]) :]
    return output


@wrong(WindowCache.attend, "memory of keys and values after step 1 is that of 2.5 rows per la")
def keeping_more_beside(self, layer, queries, keys, values):
    self.spare = [*vars(self).get("spare", []), keys, values]
    return WindowCache.attend(self, layer, queries, keys, values)


# ------------------------------------------------------------------------- heavy rows, and codes


@right(ChannelKeys.append)
def by_splitting(self, keys):
    joined = keys if self.waiting is None else torch.cat([self.waiting, keys], dim=2)
    ends = range(self.group, joined.shape[2] - self.recent + 1, self.group)
    *full, rest = joined.tensor_split([*ends], dim=2)
    self.groups.extend(Codes(part.permute(0, 1, 3, 2), self.bits) for part in full)
    self.waiting = rest.clone(memory_format=torch.contiguous_format)


@wrong(ChannelKeys.append, "`groups[0].packed` after 4 tokens")
def channels_in_the_other_direction(self, keys):
    before = len(self.groups)
    ChannelKeys.append(self, keys)
    for codes in self.groups[before:]:
        codes.packed = codes.packed.flip(2)


@wrong(ChannelKeys.append, "`waiting` after 3 tokens has shape [1, 2, 2, 3]; expected [1, 2, 3, 3]")
def negative_groups(self, keys):
    joined = join(self.waiting, keys, dim=2)
    full = (joined.shape[2] - self.recent) // self.group
    for first in range(0, full * self.group, self.group):
        part = joined[:, :, first : first + self.group]
        self.groups.append(Codes(part.transpose(2, 3), self.bits))
    self.waiting = joined[:, :, full * self.group :].clone()


# --------------------------------------------------------------------------------------- swapping


@wrong(HostPool.swap_out, "`store[0]` after request 0 was swapped out has shape [2, 3, 2, 2, 5];")
def keeping_an_older_copy(self, cache, request_id):
    older = self.store.get(request_id)
    HostPool.swap_out(self, cache, request_id)
    if older is not None:
        self.store[request_id] = older


@wrong(HostPool.swap_out, "The memory of `store[0]` after request 0 was swapped out holds 240 numb")
def a_slice_of_whole_blocks(self, cache, request_id):
    blocks = cache.manager.tables[request_id]
    kept = cache.pool[:, :, blocks].flatten(2, 3)
    self.store[request_id] = kept[:, :, : cache.manager.lengths[request_id]]
    cache.free(request_id)


@right(HostPool.swap_in)
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


@wrong(HostPool.swap_in, "The content of the blocks of request 1 after step 1")
def over_another(self, cache, request_id):
    HostPool.swap_in(self, cache, request_id)
    for other, table in cache.manager.tables.items():
        if other != request_id:
            cache.pool[:, :, table[0], 0] = 0


# ------------------------------------------------------------- mutants that do the same by right

EQUIVALENT = {
    "kv_reduction.grouped_attention": {
        "mask.unsqueeze(2) -> mask.unsqueeze(1)": "the dimension in between is one of 1, too",
    },
    "kv_reduction.WindowCache.attend": {
        "new[:, -1:] + 1 -> new[:, -1:] + 0": (
            "one row more is kept, which is allowed, and the mask hides it"
        ),
    },
}
